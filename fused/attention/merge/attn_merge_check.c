// SPDX-License-Identifier: Apache-2.0
/* attn_merge - argument checks and strides shared by all of our tables */
#include "fused/attention/merge/attn_merge.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

/* Returns the product, or INT64_MAX if it is larger: a caller may give strides that no memory has. */
static int64_t times(int32_t count, int64_t stride)
{
	int64_t product;

	return __builtin_mul_overflow(count, stride, &product) ? INT64_MAX : product;
}

struct cairn_attn_merge_args cairn_attn_merge_strides(const struct cairn_attn_merge_args *args)
{
	struct cairn_attn_merge_args a;

	cairn_copy_args(&a, args, sizeof(a));
	if (!a.head_stride)
		a.head_stride = a.head_dim;
	if (!a.row_stride)
		a.row_stride = times(a.num_heads, a.head_stride);
	if (!a.state_stride)
		a.state_stride = times(a.rows, a.row_stride);
	if (!a.lse_stride)
		a.lse_stride = (int64_t)a.rows * a.num_heads;
	if (a.q && !a.q_stride)
		a.q_stride = (int64_t)a.num_heads * a.head_dim;
	if (a.q && !a.kv_stride)
		a.kv_stride = times(a.num_kv_heads, a.head_dim);
	return a;
}

static int misaligned(const void *p)
{
	return ((uintptr_t)p & 15) != 0;
}

static int bad_stride(int64_t stride, int64_t least)
{
	return stride != 0 && (stride < least || stride % 8 != 0);
}

/* Checks that state 0 of o and out are the same elements, and that no other state lies among them. */
static int check_in_place(const struct cairn_attn_merge_args *args)
{
	struct cairn_attn_merge_args a = cairn_attn_merge_strides(args);
	int64_t row = (int64_t)a.num_heads * a.head_dim;

	if (a.dtype != a.out_dtype)
		return cairn_error(EINVAL, "attn_merge: out: may be o only if out_dtype is dtype");
	if (a.head_stride != a.head_dim || a.row_stride != row)
		return cairn_error(EINVAL, "attn_merge: out: may be o only if the rows of o are packed");
	if (a.num_states > 1 && a.state_stride < a.rows * row)
		return cairn_error(EINVAL, "attn_merge: out: is o, but state_stride is below "
				   "rows * num_heads * head_dim");
	return 0;
}

/* Checks the members that came with q; the others have been checked. */
static int check_own(const struct cairn_attn_merge_args *a)
{
	const int64_t dim = a->head_dim;

	if (a->reserved)
		return cairn_error(EINVAL, "attn_merge: reserved: must be 0");
	if (!a->q)
		return 0;
	if (!a->k || !a->v)
		return cairn_error(EINVAL, "attn_merge: k, v: null pointer, but q is not");
	if (misaligned(a->q) || misaligned(a->k) || misaligned(a->v))
		return cairn_error(EINVAL, "attn_merge: q, k and v must be 16-byte aligned");
	if (a->num_kv_heads < 1)
		return cairn_error(EINVAL, "attn_merge: num_kv_heads: must be >= 1");
	if (bad_stride(a->q_stride, a->num_heads * dim) || bad_stride(a->kv_stride, a->num_kv_heads * dim))
		return cairn_error(EINVAL, "attn_merge: q_stride, kv_stride: must be 0 or a multiple of 8, "
				   "at least the length of a row");
	if (!(a->sm_scale > 0) || isinf(a->sm_scale))
		return cairn_error(EINVAL, "attn_merge: sm_scale: must be finite and > 0");
	if (!(a->softcap >= 0) || isinf(a->softcap))
		return cairn_error(EINVAL, "attn_merge: softcap: must be finite and >= 0");
	if (a->dtype == CAIRN_F32)
		return cairn_error(EOPNOTSUPP, "attn_merge: dtype: %s with q", cairn_dtype_name(a->dtype));
	if (a->head_dim > CAIRN_ATTN_MERGE_OWN_DIM)
		return cairn_error(EOPNOTSUPP, "attn_merge: head_dim: %d is more than %d, with q",
				   a->head_dim, CAIRN_ATTN_MERGE_OWN_DIM);
	if (a->num_heads % a->num_kv_heads)
		return cairn_error(EOPNOTSUPP, "attn_merge: num_kv_heads: %d does not divide %d heads",
				   a->num_kv_heads, a->num_heads);
	return 0;
}

int cairn_attn_merge_check(const struct cairn_attn_merge_args *a)
{
	if (!a || (a->size != CAIRN_ATTN_MERGE_FIRST_BYTES && a->size != CAIRN_ATTN_MERGE_SECOND_BYTES))
		CAIRN_TRY(cairn_check_args(a, sizeof(*a), "attn_merge"));
	if (!a->out || !a->o || !a->lse)
		return cairn_error(EINVAL, "attn_merge: null pointer");
	if (misaligned(a->out) || misaligned(a->o))
		return cairn_error(EINVAL, "attn_merge: out and o must be 16-byte aligned");
	if (((uintptr_t)a->lse | (uintptr_t)a->lse_out | (uintptr_t)a->counts) & 3)
		return cairn_error(EINVAL, "attn_merge: lse, lse_out and counts must be 4-byte aligned");
	if (a->size >= CAIRN_ATTN_MERGE_SECOND_BYTES && (uintptr_t)a->sink & 3)
		return cairn_error(EINVAL, "attn_merge: sink: must be 4-byte aligned");
	if (a->rows < 0 || a->num_heads < 1 || a->head_dim < 1 || a->num_states < 1)
		return cairn_error(EINVAL, "attn_merge: rows: must be >= 0; num_heads, head_dim, num_states: "
				   ">= 1");
	if (bad_stride(a->head_stride, a->head_dim) || bad_stride(a->row_stride, a->head_dim) ||
	    bad_stride(a->state_stride, a->head_dim))
		return cairn_error(EINVAL, "attn_merge: strides of o: must be 0 or a multiple of 8, at least "
				   "head_dim");
	if (a->lse_stride && a->lse_stride < (int64_t)a->rows * a->num_heads)
		return cairn_error(EINVAL, "attn_merge: lse_stride: must be 0 or at least rows * num_heads");
	if (!cairn_dtype_is_float(a->dtype) || !cairn_dtype_is_float(a->out_dtype))
		return cairn_error(EOPNOTSUPP, "attn_merge: dtype, out_dtype: %s, %s",
				   cairn_dtype_name(a->dtype), cairn_dtype_name(a->out_dtype));
	if (a->head_dim % 8 || a->head_dim > 512)
		return cairn_error(EOPNOTSUPP, "attn_merge: head_dim: %d is not a multiple of 8 in 8..512",
				   a->head_dim);
	if (a->num_states > CAIRN_ATTN_MERGE_STATES)
		return cairn_error(EOPNOTSUPP, "attn_merge: num_states: %d is more than %d", a->num_states,
				   CAIRN_ATTN_MERGE_STATES);
	if ((int64_t)a->rows * a->num_heads > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "attn_merge: rows * num_heads: %lld is beyond 32 bits",
				   (long long)a->rows * a->num_heads);
	if (a->size >= sizeof(*a))
		CAIRN_TRY(check_own(a));
	return a->out == a->o ? check_in_place(a) : 0;
}
