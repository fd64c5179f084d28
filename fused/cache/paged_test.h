/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paged_test - builds a ragged batch over a paged cache, for the tests of the families that use one
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_PAGED_TEST_H
#define CAIRN_PAGED_TEST_H

#include <stddef.h>
#include <stdlib.h>

#include "fused/cache/kv_view.h"
#include "primitives/base/fp8.h"

#define PAGED_MAX_BATCH	2200

enum paged_flags {		/* the low bits of a test's flags */
	PAGED_RAGGED = 1,	/* lengths of requests after the first are random, 0 included */
	/* bounds above the actual lengths and spare rows at the end, as in a captured graph */
	PAGED_PADDED = 2,
	PAGED_DUPLICATE = 4,	/* page ids are random and repeat */
	PAGED_SAME = 8,		/* all page ids are equal */
	PAGED_HIGH = 16,	/* page ids are those at the end of a large pool */
	PAGED_FULL = 32,	/* there are no unlisted pages */
	PAGED_HELD = 64,	/* a request without keys still has a page */
	PAGED_FAR = 128,	/* the last pages of a pool of several GiB; paged_far() declares the pool */
	/* many keys in little memory: all pages except the last two repeat with period `pool` */
	PAGED_CYCLE = 256,
	/* together: a request whose last page is full has one more, without a key */
	PAGED_SPARE = PAGED_FULL | PAGED_HELD,
	PAGED_FLAGS = 512	/* the first free bit */
};

struct paged {
	int batch, page_size, num_pages, pool;	/* pool: pages wanted with PAGED_HIGH, _FAR, _CYCLE */
	unsigned flags;
	int qo_len[PAGED_MAX_BATCH], kv_len[PAGED_MAX_BATCH];
	int nnz, max_qo, max_kv;		/* actual values; the arguments' bounds may be larger */
	const int32_t *kv_indptr, *kv_indices;
};

/*
 * Sets the lengths: from the lists if not NULL, else qo and kv for all requests. keep: every request gets at
 * least as many keys as queries.
 */
static inline void paged_lengths(struct cairn_op *op, struct paged *p, int qo, int kv, const int *qo_lens,
				 const int *kv_lens, int keep)
{
	for (int b = 0; b < p->batch; b++) {
		int drawn = b && (p->flags & PAGED_RAGGED);

		p->qo_len[b] = qo_lens ? qo_lens[b] : drawn ? (int)cairn_op_range(op, 0, qo) : qo;
		p->kv_len[b] = kv_lens ? kv_lens[b] : drawn ? (int)cairn_op_range(op, 0, kv) : kv;
		if (keep && p->kv_len[b] < p->qo_len[b])
			p->kv_len[b] = p->qo_len[b];
		p->nnz += p->qo_len[b];
		p->max_qo = p->qo_len[b] > p->max_qo ? p->qo_len[b] : p->max_qo;
		p->max_kv = p->kv_len[b] > p->max_kv ? p->kv_len[b] : p->max_kv;
	}
}

static inline int paged_pages(const struct paged *p, int b)
{
	int pages = (p->kv_len[b] + p->page_size - 1) / p->page_size;

	if ((p->flags & PAGED_SPARE) == PAGED_SPARE)
		return p->kv_len[b] / p->page_size + 1;
	return pages || !(p->flags & PAGED_HELD) ? pages : 1;
}

/* Declares and fills the page lists of the struct cairn_kv_view at offset `view` of the args. */
static inline void paged_kv_tables(struct cairn_op *op, struct paged *p, size_t view)
{
	int32_t *kv_indptr = cairn_in(op, view + offsetof(struct cairn_kv_view, indptr), CAIRN_I32,
				      p->batch + 1);
	int32_t *last = cairn_in(op, view + offsetof(struct cairn_kv_view, last_page_len), CAIRN_I32,
				 p->batch);
	/* a view of the last requests of a longer list: these entries belong to none of them */
	const int before = p->flags & PAGED_RAGGED ? 3 : 0;
	int32_t *indices, *ids;
	int total = 0;

	for (int b = 0; b < p->batch; b++)
		total += paged_pages(p, b);
	indices = cairn_in(op, view + offsetof(struct cairn_kv_view, indices), CAIRN_I32, before + total);
	cairn_name(op, view + offsetof(struct cairn_kv_view, indptr), "kv.indptr");
	cairn_name(op, view + offsetof(struct cairn_kv_view, last_page_len), "kv.last_page_len");
	cairn_name(op, view + offsetof(struct cairn_kv_view, indices), "kv.indices");
	p->num_pages = p->flags & PAGED_FAR ? p->pool : p->flags & PAGED_CYCLE ? p->pool + 3 :
		       p->flags & PAGED_FULL ? total + !total : total + total / 4 + 2;
	if (p->flags & PAGED_HIGH && p->pool > p->num_pages)
		p->num_pages = p->pool;
	ids = p->flags & PAGED_FAR ? NULL : malloc(sizeof(*ids) * (size_t)p->num_pages);
	if (!ids && !(p->flags & PAGED_FAR))
		abort();
	for (int i = 0; ids && i < p->num_pages; i++)
		ids[i] = i;
	if (!(p->flags & (PAGED_HIGH | PAGED_FAR))) {
		for (int i = p->num_pages - 1; i > 0; i--) {
			int k = (int)cairn_op_range(op, 0, i), id = ids[i];

			ids[i] = ids[k];
			ids[k] = id;
		}
	}
	for (int i = 0; i < total; i++) {
		int32_t *id = &indices[before + i];

		if (p->flags & PAGED_CYCLE)
			*id = ids[i < total - 2 ? i % p->pool : p->num_pages - total + i];
		else
			*id = ids ? ids[p->num_pages - 1 - i] : p->num_pages - 1 - 2 * i;
		if (p->flags & PAGED_DUPLICATE)
			*id = ids[cairn_op_range(op, 0, total / 3)];
		if (p->flags & PAGED_SAME)
			*id = ids[0];
	}
	free(ids);
	kv_indptr[0] = before;
	for (int b = 0; b < p->batch; b++) {
		int n = paged_pages(p, b);

		kv_indptr[b + 1] = kv_indptr[b] + n;
		/* ignored for a request without a page: 0 or another value */
		last[b] = n ? p->kv_len[b] - (n - 1) * p->page_size : b % 2 * p->page_size;
	}
	p->kv_indptr = kv_indptr;
	p->kv_indices = indices;
}

/* Declares the shape of the pages, which lie at offset `field` of the args. */
static inline void paged_shape(struct cairn_op *op, const struct paged *p, size_t field, int64_t heads,
			       int64_t dim)
{
	cairn_shape(op, field, { "page", p->num_pages }, { "slot", p->page_size }, { "head", heads },
		    { "dim", dim });
}

/*
 * As paged_kv_tables(), and also fills qo_indptr (or positions, of batch + 1 rows) at offset `qo` of the
 * args.
 */
static inline void paged_tables(struct cairn_op *op, struct paged *p, size_t qo, size_t view)
{
	int32_t *qo_indptr = cairn_in(op, qo, CAIRN_I32, p->batch + 1);

	cairn_name(op, qo, "qo_indptr");
	paged_kv_tables(op, p, view);
	qo_indptr[0] = 0;
	for (int b = 0; b < p->batch; b++)
		qo_indptr[b + 1] = qo_indptr[b] + p->qo_len[b];
}

/* Returns the slot of key j of request b, counted over all pages. */
static inline int64_t paged_slot(const struct paged *p, int b, int j)
{
	return (int64_t)p->kv_indices[p->kv_indptr[b] + j / p->page_size] * p->page_size + j % p->page_size;
}

/* Takes the last row of a batch from the request that has it. Returns whether there was one. */
static inline int paged_drop_row(const int32_t *indptr, int32_t batch)
{
	int32_t *x = (int32_t *)(uintptr_t)indptr, end = batch ? x[batch] : 0;

	for (int32_t b = batch; end && b > 0 && x[b] == end; b--)
		x[b]--;
	return end > 0;
}

/*
 * For cairn_family.relist of requests without pages: removes a key of the first request with two, and a row
 * of the last with any.
 */
static inline int paged_drop_key_and_row(const int32_t *kv_indptr, const int32_t *qo_indptr, int32_t batch)
{
	int32_t *kv = (int32_t *)(uintptr_t)kv_indptr;
	int changed = 0;

	for (int32_t b = 0; b < batch && !changed; b++) {
		if (kv[b + 1] - kv[b] < 2)
			continue;
		for (int32_t k = b + 1; k <= batch; k++)
			kv[k]--;
		changed = 1;
	}
	return paged_drop_row(qo_indptr, batch) || changed;
}

/*
 * For cairn_family.relist: swaps the first two pages of each request that has more than two, and removes a
 * key from the last page of each request if that page holds another key and the request keeps at least as
 * many keys as it has rows. If no page is listed twice, the first request that has enough keys also loses its
 * last page, which shifts the page lists of the requests after it. qo_indptr may be NULL: one row for each
 * request.
 */
static inline int paged_relist(const struct cairn_kv_view *kv, const int32_t *qo_indptr)
{
	int32_t *indptr = (int32_t *)(uintptr_t)kv->indptr, *ids = (int32_t *)(uintptr_t)kv->indices;
	int32_t *last = (int32_t *)(uintptr_t)kv->last_page_len, total = kv->batch ? indptr[kv->batch] : 0;
	int twice = 0, dropped = 0, changed = 0;

	for (int32_t i = indptr[0]; i < total; i++)
		for (int32_t k = indptr[0]; k < i && !twice; k++)
			twice = ids[i] == ids[k];
	for (int32_t b = 0; b < kv->batch; b++) {
		int32_t first = indptr[b], pages = indptr[b + 1] - first;
		int32_t rows = qo_indptr ? qo_indptr[b + 1] - qo_indptr[b] : 1;

		if (pages > 2) {
			int32_t id = ids[first];

			ids[first] = ids[first + 1];
			ids[first + 1] = id;
			changed = 1;
		}
		if (pages && last[b] > 1 && cairn_kv_len(kv, b) > rows) {
			last[b]--;
			changed = 1;
		}
		if (twice || dropped || pages < 2 || !last[b] || cairn_kv_len(kv, b) - kv->page_size < rows)
			continue;
		for (int32_t k = b + 1; k <= kv->batch; k++)
			indptr[k]--;
		dropped = changed = 1;
	}
	return changed;
}

/*
 * For cairn_family.relist: changes each position by one. If there are more than two positions, one of them
 * stays: the first if their number is odd, the last if it is even. So an implementation cannot tell from the
 * first or the last position alone whether positions have changed. Returns whether there are any positions.
 */
static inline int paged_move_rows(const int32_t *positions, int32_t rows)
{
	int32_t kept = rows <= 2 ? rows : rows % 2 ? 0 : rows - 1;

	for (int32_t i = 0; i < rows; i++)
		((int32_t *)(uintptr_t)positions)[i] ^= i != kept;
	return rows > 0;
}

/*
 * With PAGED_FAR: declares the pool (written: as an in/out buffer, else as an input) and fills the listed
 * pages. An operation may also read page 0 in place of a key past the end.
 */
#define paged_far(op, p, field, dtype, row, written) \
	paged_far_as(op, p, field, #field, dtype, row, written)
static inline void *paged_far_as(struct cairn_op *op, const struct paged *p, size_t field,
				 const char *expression, int dtype, int64_t row, int written)
{
	int64_t page = p->page_size * row;
	char *x = cairn_far_buffer(op, field, expression, written ? CAIRN_ROLE_INOUT : CAIRN_ROLE_IN, dtype,
				   p->num_pages * page);

	cairn_touch(op, x, 0, page);
	for (int i = p->kv_indptr[0]; i < p->kv_indptr[p->batch]; i++) {
		int64_t at = p->kv_indices[i] * page;

		cairn_touch(op, x, at, page);
		cairn_fill(op, x + at * (int64_t)cairn_dtype_bytes(dtype), dtype, page, 1);
	}
	return x;
}

/* paged_fill() for pages of e4m3. NaN is the code 0x7f. */
static inline void paged_fill_codes(struct cairn_op *op, const struct paged *p, void *pages, int64_t row)
{
	int64_t slots = p->num_pages * (int64_t)p->page_size;
	uint8_t *listed = calloc((size_t)slots + 1, 1);
	float *draw = malloc((size_t)(row + 1) * sizeof(*draw));
	const int64_t block = (1 << 20) / row + 7;	/* a large pool repeats slots, as in cairn_fill() */

	if (!listed || !draw)
		abort();
	for (int b = 0; b < p->batch && op->kind == CAIRN_KIND_POISON; b++)
		for (int j = 0; j < p->kv_len[b]; j++)
			listed[paged_slot(p, b, j)] = 1;
	if (op->kind != CAIRN_KIND_POISON)
		memset(listed, 1, (size_t)slots);
	memset(pages, 0x7f, (size_t)(slots * row));
	for (int64_t i = 0; i < slots; i++) {
		uint8_t *code = (uint8_t *)pages + i * row;

		if (!listed[i])
			continue;
		if (i >= block && listed[i % block]) {
			memcpy(code, code - i / block * block * row, (size_t)row);
			continue;
		}
		cairn_fill(op, draw, CAIRN_F32, row, 1);
		for (int64_t c = 0; c < row; c++)
			code[c] = cairn_narrow_e4m3(draw[c]);
	}
	free(listed);
	free(draw);
}

/* Fills the pages; with kind POISON only the slots that hold a key, and all others with NaN. */
static inline void paged_fill(struct cairn_op *op, const struct paged *p, void *pages, int dtype, int64_t row)
{
	size_t esize = cairn_dtype_bytes(dtype);

	if (op->kind != CAIRN_KIND_POISON) {
		cairn_fill(op, pages, dtype, p->num_pages * (int64_t)p->page_size * row, 1);
		return;
	}
	cairn_fill_nan(pages, dtype, 0, p->num_pages * (int64_t)p->page_size * row);
	for (int b = 0; b < p->batch; b++)
		for (int j = 0; j < p->kv_len[b]; j++)
			cairn_fill(op, (char *)pages + paged_slot(p, b, j) * row * esize, dtype, row, 1);
}

#endif
