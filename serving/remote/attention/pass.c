// SPDX-License-Identifier: Apache-2.0
/* pass - writes and checks the description of a pass (pass.h) */
#include "serving/remote/attention/pass.h"

#include <string.h>

#include "primitives/base/error.h"
#include "serving/remote/remote_fault.h"

size_t cairn_remote_pass_most(const struct cairn_remote_limits *l, int32_t max_moves)
{
	const size_t pages = ((size_t)l->max_context + (size_t)l->page_size - 1) / (size_t)l->page_size;

	return sizeof(int32_t) * (4 + 2 + 3 * (size_t)l->max_batch + pages * (size_t)l->max_batch +
				  2 * (size_t)max_moves);
}

static char *put(char *to, const void *from, size_t num)
{
	if (num)
		memcpy(to, from, num * sizeof(int32_t));
	return to + num * sizeof(int32_t);
}

void cairn_remote_pass_write(void *to, const struct cairn_remote_pass *p)
{
	const int32_t head[4] = { p->num_rows, p->batch, p->num_pages, p->num_moves };
	const size_t batch = (size_t)p->batch;
	char *at = to;

	at = put(at, head, 4);
	at = put(at, p->qo_indptr, batch + 1);
	at = put(at, p->kv_indptr, batch + 1);
	at = put(at, p->last_page_len, batch);
	at = put(at, p->kv_indices, (size_t)p->num_pages);
	put(at, p->moves, 2 * (size_t)p->num_moves);
}

static int bad(const char *array, int64_t at, int64_t value)
{
	return cairn_error(EINVAL, "pass: %s[%lld] is %lld", array, (long long)at, (long long)value);
}

static int check_size(const char *member, int32_t value, int32_t least, int32_t most)
{
	return value >= least && value <= most ? 0 :
	       cairn_error(EINVAL, "pass: %s is %d, not %d to %d", member, value, least, most);
}

/* Row pointers ascend strictly, from 0 to `end`: every request has rows, and pages. */
static int check_indptr(const char *array, const int32_t *indptr, int32_t batch, int32_t end)
{
	if (indptr[0])
		return bad(array, 0, indptr[0]);
	for (int32_t i = 0; i < batch; i++)
		if (indptr[i + 1] <= indptr[i] || indptr[i + 1] > end)
			return bad(array, i + 1, indptr[i + 1]);
	return indptr[batch] == end ? 0 : bad(array, batch, indptr[batch]);
}

static int check_pages(const char *array, const int32_t *pages, int64_t num, int32_t num_pages)
{
	for (int64_t i = 0; i < num; i++)
		if ((pages[i] < 0 || pages[i] >= num_pages) && !FAULT(PLAN_UNCHECKED))
			return bad(array, i, pages[i]);
	return 0;
}

static int check_lengths(const struct cairn_remote_pass *p, const struct cairn_remote_limits *l)
{
	for (int32_t i = 0; i < p->batch; i++) {
		const int64_t pages = p->kv_indptr[i + 1] - p->kv_indptr[i];
		const int64_t keys = (pages - 1) * l->page_size + p->last_page_len[i];

		if (p->last_page_len[i] < 1 || p->last_page_len[i] > l->page_size || keys > l->max_context ||
		    keys < p->qo_indptr[i + 1] - p->qo_indptr[i])
			return bad("last_page_len", i, p->last_page_len[i]);
	}
	return 0;
}

int cairn_remote_pass_read(struct cairn_remote_pass *p, const void *bytes, size_t num_bytes,
			   const struct cairn_remote_limits *l)
{
	const int32_t *at = bytes;

	if (num_bytes < 4 * sizeof(*at))
		return cairn_error(EINVAL, "pass: has %zu bytes", num_bytes);
	*p = (struct cairn_remote_pass){ at[0], at[1], at[2], at[3], NULL, NULL, NULL, NULL, NULL };
	CAIRN_TRY(check_size("num_rows", p->num_rows, 1, l->max_rows));
	CAIRN_TRY(check_size("batch", p->batch, 1, l->max_batch));
	CAIRN_TRY(check_size("num_pages", p->num_pages, 1, INT32_MAX));
	CAIRN_TRY(check_size("num_moves", p->num_moves, 0, INT32_MAX));
	if (num_bytes != cairn_remote_pass_bytes(p))
		return cairn_error(EINVAL, "pass: has %zu bytes, not %zu", num_bytes,
				   cairn_remote_pass_bytes(p));
	p->qo_indptr = at + 4;
	p->kv_indptr = p->qo_indptr + p->batch + 1;
	p->last_page_len = p->kv_indptr + p->batch + 1;
	p->kv_indices = p->last_page_len + p->batch;
	p->moves = (const int32_t (*)[2])(p->kv_indices + p->num_pages);
	CAIRN_TRY(check_indptr("qo_indptr", p->qo_indptr, p->batch, p->num_rows));
	CAIRN_TRY(check_indptr("kv_indptr", p->kv_indptr, p->batch, p->num_pages));
	CAIRN_TRY(check_lengths(p, l));
	CAIRN_TRY(check_pages("kv_indices", p->kv_indices, p->num_pages, l->num_pages));
	return check_pages("moves", (const int32_t *)p->moves, 2 * (int64_t)p->num_moves, l->num_pages);
}
