// SPDX-License-Identifier: Apache-2.0
#include "conformance/dropin/dropin_attn.h"

#include "primitives/base/error.h"

#define ALIGN		256
#define MAX_SMS		1024		/* more than a device has */

static size_t aligned(size_t bytes)
{
	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Takes memory from the front of the workspace. */
static int take(struct dropin_attn *a, size_t bytes, void *out)
{
	size_t used = aligned(bytes);

	if (used > a->workspace_bytes)
		return cairn_error(EINVAL, "%s: workspace: %zu bytes are left, %zu more are needed", a->name,
				   a->workspace_bytes, used);
	*(char **)out = a->workspace;
	a->workspace += used;
	a->workspace_bytes -= used;
	return 0;
}

/* Writes the array 0, step, 2 * step, ... of `count` numbers into the workspace. */
static int counted(const struct dropin *d, struct dropin_attn *a, int32_t step, int32_t count,
		   const int32_t **out)
{
	struct dropin_count c = { .step = step, .count = count };

	CAIRN_TRY(take(a, (size_t)count * sizeof(*c.to), &c.to));
	CAIRN_TRY(d->arrays->count(&c, a->stream));
	*out = c.to;
	return 0;
}

/* Makes the arrays of offsets that FlashInfer's call did not have. */
static int offsets(const struct dropin *d, struct dropin_attn *a)
{
	if (!a->qo_indptr)
		CAIRN_TRY(counted(d, a, a->max_rows, a->batch + 1, &a->qo_indptr));
	if (!a->kv_indptr)
		CAIRN_TRY(counted(d, a, a->num_blocks, 2, &a->kv_indptr));
	return 0;
}

/* Takes the workspace of the operation; `asked` is what its query returned. */
static int op_workspace(struct dropin_attn *a, int asked, size_t bytes, void **workspace,
			size_t *workspace_bytes)
{
	CAIRN_TRY(asked);
	if (!bytes)
		return 0;
	CAIRN_TRY(take(a, bytes, workspace));
	*workspace_bytes = bytes;
	return 0;
}

static int same_strides(const struct dropin_strides *x, const struct dropin_strides *y)
{
	return x->block == y->block && x->slot == y->slot && x->head == y->head;
}

static int is_whole_pages(const struct dropin_attn *a)
{
	struct dropin_strides whole = { .head = a->qk_dim };

	whole.slot = (int64_t)a->kv_heads * a->qk_dim;
	whole.block = a->block_n * whole.slot;
	return a->indices && a->last_len && !a->mask && a->qk_dim == a->v_dim &&
	       same_strides(&a->k_at, &whole) && same_strides(&a->v_at, &whole);
}

static int is_dense(const struct dropin_attn *a)
{
	return !a->indices && !a->mask && !a->kv_fp8;
}

static int paged_bytes(const struct dropin *d, const struct cairn_attn_paged_args *p, size_t *bytes)
{
	*bytes = 0;
	return d->table->attn_paged_workspace ? d->table->attn_paged_workspace(p, bytes) : 0;
}

/*
 * If the number of keys is known, attn_paged may divide them among CTAs, which takes some MB. Callers that
 * give less get the kernels for an unknown number.
 */
static int fit_keys(const struct dropin *d, const struct dropin_attn *a, struct cairn_attn_paged_args *p,
		    size_t *bytes)
{
	CAIRN_TRY(paged_bytes(d, p, bytes));
	if (!p->nnz_kv || aligned(*bytes) <= a->workspace_bytes)
		return 0;
	p->nnz_kv = 0;
	return paged_bytes(d, p, bytes);
}

static int paged(const struct dropin *d, struct dropin_attn *a)
{
	struct cairn_attn_paged_args p = {
		.size = sizeof(p), .out = a->out, .lse = a->lse, .q = a->q, .qo_indptr = a->qo_indptr,
		.kv = { .k_pages = (void *)a->k, .v_pages = (void *)a->v, .indptr = a->kv_indptr,
			.indices = a->indices, .last_page_len = a->last_len, .num_pages = a->num_blocks,
			.page_size = a->block_n, .batch = a->batch, .max_len = a->max_keys },
		.q_stride = a->q_stride, .nnz_qo = a->rows, .nnz_kv = a->nnz_kv, .max_qo_len = a->max_rows,
		.num_qo_heads = a->heads, .num_kv_heads = a->kv_heads, .head_dim = a->qk_dim,
		.dtype = a->dtype, .causal = a->causal, .sm_scale = a->sm_scale, .window = a->window,
		.softcap = a->softcap, .kv_fp8 = a->kv_fp8,
	};
	size_t bytes;
	int asked = fit_keys(d, a, &p, &bytes);

	CAIRN_TRY(op_workspace(a, asked, bytes, &p.workspace, &p.workspace_bytes));
	return d->table->attn_paged(&p, a->stream);
}

static int dense(const struct dropin *d, struct dropin_attn *a)
{
	struct cairn_attn_dense_args p = {
		.size = sizeof(p), .out = a->out, .lse = a->lse, .q = a->q, .k = a->k, .v = a->v,
		.qo_indptr = a->qo_indptr, .kv_indptr = a->kv_indptr, .q_stride = a->q_stride,
		.k_stride = a->k_at.block, .v_stride = a->v_at.block, .k_head_stride = a->k_at.head,
		.v_head_stride = a->v_at.head, .batch = a->batch, .nnz_qo = a->rows, .nnz_kv = a->num_blocks,
		.max_qo_len = a->max_rows, .max_kv_len = a->max_keys, .num_qo_heads = a->heads,
		.num_kv_heads = a->kv_heads, .qk_dim = a->qk_dim, .v_dim = a->v_dim, .dtype = a->dtype,
		.causal = a->causal, .sm_scale = a->sm_scale, .window = a->window, .softcap = a->softcap,
	};
	size_t bytes = 0;
	int asked = d->table->attn_dense_workspace ? d->table->attn_dense_workspace(&p, &bytes) : 0;

	CAIRN_TRY(op_workspace(a, asked, bytes, &p.workspace, &p.workspace_bytes));
	return d->table->attn_dense(&p, a->stream);
}

/* Converts the mask to lines of attn_bsr. */
static int lines(const struct dropin *d, struct dropin_attn *a, struct cairn_attn_part *part)
{
	struct dropin_lines l = {
		.packed = a->mask, .packed_indptr = a->mask_indptr, .qo_indptr = a->qo_indptr,
		.kv_indptr = a->kv_indptr, .last_len = a->last_len,
		.line_bytes = ((int64_t)a->max_keys + 7) / 8, .block_n = a->block_n, .batch = a->batch,
		.max_rows = a->max_rows,
	};

	CAIRN_TRY(take(a, (size_t)a->batch * sizeof(*l.lines_indptr), &l.lines_indptr));
	CAIRN_TRY(take(a, (size_t)a->rows * (size_t)l.line_bytes, &l.lines));
	CAIRN_TRY(d->arrays->lines(&l, a->stream));
	part->mask = l.lines;
	part->mask_indptr = l.lines_indptr;
	part->mask_mode = CAIRN_ATTN_BITS;
	return 0;
}

static int bsr_bytes(const struct dropin *d, const struct cairn_attn_bsr_args *p, size_t *bytes)
{
	*bytes = 0;
	return d->table->attn_bsr_workspace ? d->table->attn_bsr_workspace(p, bytes) : 0;
}

/*
 * attn_bsr keeps partial results for each SM. On all SMs they take 35 MB at head_dim 256, but many callers of
 * FlashInfer give 32 MiB. Sets p->sms to 0 (all SMs) if the workspace suffices for that, else to the largest
 * number for which it does.
 */
static int fit_sms(const struct dropin *d, const struct dropin_attn *a, struct cairn_attn_bsr_args *p,
		   size_t *bytes)
{
	int32_t fits = 1, most = MAX_SMS;

	CAIRN_TRY(bsr_bytes(d, p, bytes));
	if (aligned(*bytes) <= a->workspace_bytes)
		return 0;
	while (fits < most) {
		p->sms = fits + (most - fits + 1) / 2;
		CAIRN_TRY(bsr_bytes(d, p, bytes));
		if (aligned(*bytes) <= a->workspace_bytes)
			fits = p->sms;
		else
			most = p->sms - 1;
	}
	p->sms = fits;
	return bsr_bytes(d, p, bytes);
}

static int bsr(const struct dropin *d, struct dropin_attn *a)
{
	struct cairn_attn_bsr_args p = {
		.size = sizeof(p), .out = a->out, .lse = a->lse, .q = a->q, .q_stride = a->q_stride,
		.num_parts = 1, .nnz_qo = a->rows, .num_qo_heads = a->heads, .num_kv_heads = a->kv_heads,
		.head_dim = a->qk_dim, .dtype = a->dtype, .kv_fp8 = a->kv_fp8, .sm_scale = a->sm_scale,
		.window = a->window, .softcap = a->softcap,
		.part[0] = {
			.k = a->k, .v = a->v, .row_indptr = a->qo_indptr, .blk_indptr = a->kv_indptr,
			.blk_indices = a->indices, .last_len = a->last_len, .block_stride = a->k_at.block,
			.slot_stride = a->k_at.slot, .head_stride = a->k_at.head, .rows = a->batch,
			.block_m = a->max_rows, .block_n = a->block_n, .index_heads = 1,
			.num_blocks = a->num_blocks, .max_keys = a->max_keys,
			.mask_mode = a->causal ? CAIRN_ATTN_CAUSAL : CAIRN_ATTN_ALL,
		},
	};
	size_t bytes;

	if (a->qk_dim != a->v_dim)
		return cairn_error(EOPNOTSUPP, "%s: head_dim_vo: differs from head_dim_qk", a->name);
	if (!same_strides(&a->k_at, &a->v_at))
		return cairn_error(EOPNOTSUPP, "%s: v: its strides differ from those of k", a->name);
	if (!a->indices)
		CAIRN_TRY(counted(d, a, 1, a->num_blocks, &p.part[0].blk_indices));
	if (a->mask)
		CAIRN_TRY(lines(d, a, &p.part[0]));
	CAIRN_TRY(fit_sms(d, a, &p, &bytes));
	CAIRN_TRY(op_workspace(a, 0, bytes, &p.workspace, &p.workspace_bytes));
	return d->table->attn_bsr(&p, a->stream);
}

int dropin_attn(const struct dropin *d, struct dropin_attn *a)
{
	struct dropin_base2 base2 = { .lse = a->lse, .count = (int64_t)a->rows * a->heads };

	if (!a->rows || !a->batch)
		return 0;
	CAIRN_TRY(offsets(d, a));
	if (is_whole_pages(a))
		CAIRN_TRY(paged(d, a));
	else if (is_dense(a))
		CAIRN_TRY(dense(d, a));
	else
		CAIRN_TRY(bsr(d, a));
	return a->lse ? d->arrays->base2(&base2, a->stream) : 0;
}
