// SPDX-License-Identifier: Apache-2.0
/* attn_bsr - argument checks shared by all of our tables, and the check of the arrays */
#include "fused/attention/bsr/attn_bsr.h"

#include <math.h>
#include <stdlib.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int misaligned(const void *p)
{
	return ((uintptr_t)p & 15) != 0;
}

static int bad_stride(int64_t stride, int64_t least, int multiple)
{
	return stride != 0 && (stride < least || stride % multiple != 0);
}

static int check_part_shape(const struct cairn_attn_bsr_args *a, int i)
{
	const struct cairn_attn_part *p = &a->part[i];
	int multiple = a->kv_fp8 ? 16 : 8;

	if (p->rows < 0 || p->num_blocks < 0 || p->max_keys < 0)
		return cairn_error(EINVAL, "attn_bsr: part[%d].rows, num_blocks, max_keys: must be >= 0", i);
	if (p->block_m < 1 || p->block_n < 1)
		return cairn_error(EINVAL, "attn_bsr: part[%d].block_m, block_n: must be >= 1", i);
	if (p->index_heads != 1 && p->index_heads != a->num_kv_heads)
		return cairn_error(EINVAL, "attn_bsr: part[%d].index_heads: must be 1 or num_kv_heads", i);
	if (p->mask_mode < 0 || p->mask_mode >= CAIRN_ATTN_NUM_MASKS)
		return cairn_error(EINVAL, "attn_bsr: part[%d].mask_mode: must be 0 .. 3", i);
	if (bad_stride(p->block_stride, a->head_dim, multiple) ||
	    bad_stride(p->slot_stride, a->head_dim, multiple) ||
	    bad_stride(p->head_stride, a->head_dim, multiple))
		return cairn_error(EINVAL, "attn_bsr: part[%d].block_stride, slot_stride, head_stride: must "
				   "be 0 or a multiple of 16 bytes, at least head_dim", i);
	if (p->reserved)
		return cairn_error(EOPNOTSUPP, "attn_bsr: part[%d].reserved: must be 0", i);
	if (p->mask_mode & CAIRN_ATTN_BITS && p->index_heads > 1)
		return cairn_error(EOPNOTSUPP, "attn_bsr: part[%d].mask_mode: no bits with lists of each "
				   "head", i);
	return 0;
}

int cairn_attn_bsr_check_shape(const struct cairn_attn_bsr_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_bsr"));
	if (a->nnz_qo < 0 || a->num_qo_heads < 1 || a->num_kv_heads < 1 || a->head_dim < 1)
		return cairn_error(EINVAL, "attn_bsr: nnz_qo must be >= 0, heads and head_dim >= 1");
	if (a->num_parts < 1)
		return cairn_error(EINVAL, "attn_bsr: num_parts: must be >= 1");
	if (a->sms < 0)
		return cairn_error(EINVAL, "attn_bsr: sms: must be >= 0");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "attn_bsr: sm_scale: must be finite and > 0");
	if (a->window < 0 || !(a->softcap >= 0) || isinf(a->softcap))
		return cairn_error(EINVAL, "attn_bsr: window, softcap: must be >= 0, and softcap finite");
	if (bad_stride(a->q_stride, (int64_t)a->num_qo_heads * a->head_dim, 8))
		return cairn_error(EINVAL, "attn_bsr: q_stride: must be 0 or a multiple of 8, at least "
				   "num_qo_heads * head_dim");
	if (a->kv_fp8 < 0 || a->kv_fp8 > 1 || a->planned < 0 || a->planned > 1)
		return cairn_error(EINVAL, "attn_bsr: kv_fp8, planned: must be 0 or 1");
	if (a->num_parts > CAIRN_ATTN_PARTS)
		return cairn_error(EOPNOTSUPP, "attn_bsr: num_parts: %d is more than %d", a->num_parts,
				   CAIRN_ATTN_PARTS);
	for (int i = 0; i < a->num_parts; i++)
		CAIRN_TRY(check_part_shape(a, i));
	if (a->dtype != CAIRN_F16 && a->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "attn_bsr: dtype: %s", cairn_dtype_name(a->dtype));
	if (a->head_dim != 64 && a->head_dim != 128 && a->head_dim != 256)
		return cairn_error(EOPNOTSUPP, "attn_bsr: head_dim: %d is not 64, 128 or 256", a->head_dim);
	if (a->num_qo_heads % a->num_kv_heads)
		return cairn_error(EOPNOTSUPP, "attn_bsr: num_qo_heads: %d is not a multiple of %d",
				   a->num_qo_heads, a->num_kv_heads);
	return 0;
}

static int check_part(const struct cairn_attn_bsr_args *a, int i)
{
	const struct cairn_attn_part *p = &a->part[i];

	if (!p->k || !p->v || !p->blk_indptr || !p->blk_indices)
		return cairn_error(EINVAL, "attn_bsr: part[%d].k, v, blk_indptr, blk_indices: null "
				   "pointer", i);
	if (misaligned(p->k) || misaligned(p->v))
		return cairn_error(EINVAL, "attn_bsr: part[%d].k, v: must be 16-byte aligned", i);
	if (p->mask_mode & CAIRN_ATTN_BITS && (!p->mask || !p->mask_indptr))
		return cairn_error(EINVAL, "attn_bsr: part[%d].mask, mask_indptr: null pointer", i);
	if ((p->k_scale || p->v_scale) && !a->kv_fp8)
		return cairn_error(EINVAL, "attn_bsr: part[%d].k_scale, v_scale: only with kv_fp8", i);
	if (p->key_pos && !a->q_pos)
		return cairn_error(EINVAL, "attn_bsr: part[%d].key_pos: needs q_pos", i);
	return 0;
}

int cairn_attn_bsr_check(const struct cairn_attn_bsr_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_bsr"));
	if (!a->out || !a->q)
		return cairn_error(EINVAL, "attn_bsr: out, q: null pointer");
	if (misaligned(a->out) || misaligned(a->q))
		return cairn_error(EINVAL, "attn_bsr: out, q: must be 16-byte aligned");
	CAIRN_TRY(cairn_attn_bsr_check_shape(a));
	for (int i = 0; i < a->num_parts; i++)
		CAIRN_TRY(check_part(a, i));
	if (a->window && !a->q_pos && a->num_parts > 1)
		return cairn_error(EINVAL, "attn_bsr: window: needs q_pos with more than one part");
	return 0;
}

/* Checks that n + 1 row pointers ascend. */
static int valid_indptr(const int32_t *indptr, int32_t n, int i, const char *member)
{
	for (int32_t r = 0; r < n; r++)
		if (indptr[r + 1] < indptr[r])
			return cairn_error(EINVAL, "attn_bsr: part[%d].%s[%d]: %d is below the one before "
					   "it", i, member, r + 1, indptr[r + 1]);
	return n >= 0 && indptr[0] < 0 ?
	       cairn_error(EINVAL, "attn_bsr: part[%d].%s[0]: must be >= 0", i, member) : 0;
}

static int valid_places(const struct cairn_attn_bsr_args *a, int i, uint8_t *held)
{
	const struct cairn_attn_part *p = &a->part[i];
	int64_t places = (int64_t)p->rows * p->block_m;

	if (places > a->nnz_qo)
		places = a->nnz_qo;
	if (p->row_indptr) {
		CAIRN_TRY(valid_indptr(p->row_indptr, p->rows, i, "row_indptr"));
		if (p->row_indptr[0] != 0 || p->row_indptr[p->rows] > a->nnz_qo)
			return cairn_error(EINVAL, "attn_bsr: part[%d].row_indptr: must begin with 0 and end "
					   "with at most nnz_qo, %d", i, a->nnz_qo);
		places = p->row_indptr[p->rows];
	}
	for (int64_t k = 0; p->q_index && k < places; k++) {
		int32_t token = p->q_index[k];

		if (token < 0 || token >= a->nnz_qo || held[token])
			return cairn_error(EINVAL, "attn_bsr: part[%d].q_index[%lld]: %d is no token, or "
					   "occurs twice", i, (long long)k, token);
		held[token] = 1;
	}
	return 0;
}

static int valid_lists(const struct cairn_attn_bsr_args *a, int i)
{
	const struct cairn_attn_part *p = &a->part[i];

	for (int h = 0; h < p->index_heads; h++) {
		const int32_t *indptr = p->blk_indptr + (int64_t)h * (p->rows + 1);

		CAIRN_TRY(valid_indptr(indptr, p->rows, i, "blk_indptr"));
		for (int32_t n = indptr[0]; n < indptr[p->rows]; n++)
			if (p->blk_indices[n] < 0 || p->blk_indices[n] >= p->num_blocks)
				return cairn_error(EINVAL, "attn_bsr: part[%d].blk_indices[%d]: %d is not "
						   "among %d blocks", i, n, p->blk_indices[n], p->num_blocks);
		for (int32_t r = 0; r < p->rows; r++) {
			int64_t at = (int64_t)h * p->rows + r, blocks = indptr[r + 1] - indptr[r];
			int32_t last = p->last_len ? p->last_len[at] : p->block_n;

			if (blocks && (last < 1 || last > p->block_n))
				return cairn_error(EINVAL, "attn_bsr: part[%d].last_len[%lld]: %d is not 1 "
						   ".. %d", i, (long long)at, last, p->block_n);
			if (blocks && (blocks - 1) * p->block_n + last > p->max_keys)
				return cairn_error(EINVAL, "attn_bsr: part[%d].max_keys: row %d has more",
						   i, r);
		}
	}
	return 0;
}

int cairn_attn_bsr_valid(const struct cairn_attn_bsr_args *a)
{
	CAIRN_TRY(cairn_attn_bsr_check(a));
	for (int i = 0; i < a->num_parts; i++) {
		uint8_t *held = calloc(1, a->nnz_qo > 0 ? (size_t)a->nnz_qo : 1);
		int failed = held ? valid_places(a, i, held) : cairn_error(ENOMEM, "attn_bsr: no memory");

		free(held);
		CAIRN_TRY(failed);
		CAIRN_TRY(valid_lists(a, i));
		for (int32_t r = 0; a->part[i].mask_mode & CAIRN_ATTN_BITS && r < a->part[i].rows; r++)
			if (a->part[i].mask_indptr[r] < 0)
				return cairn_error(EINVAL, "attn_bsr: part[%d].mask_indptr[%d]: must be >= "
						   "0", i, r);
	}
	return 0;
}
