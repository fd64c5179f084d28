// SPDX-License-Identifier: Apache-2.0
/* rope - argument checks shared by all of our tables */
#include "primitives/rows/rope.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/rows/rmsnorm.h"

#define MAX_DIM	512

static int check_stride(int64_t stride, int32_t heads, int32_t head_dim, const char *what)
{
	if (heads < 1)
		return cairn_error(EINVAL, "rope: %s: has %d heads", what, heads);
	if (stride && (stride % 8 || stride < (int64_t)heads * head_dim))
		return cairn_error(EINVAL, "rope: %s_stride: %lld is not a multiple of 8 that holds a row",
				   what, (long long)stride);
	return 0;
}

int cairn_rope_check(const struct cairn_rope_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "rope"));
	if (a->nnz < 0 || a->head_dim < 1 || a->rotary_dim < 1 || a->rotary_dim > a->head_dim)
		return cairn_error(EINVAL, "rope: nnz %d, head_dim %d, rotary_dim %d: must be >= 0, >= 1, "
				   "1 to head_dim", a->nnz, a->head_dim, a->rotary_dim);
	if (!cairn_dtype_is_float(a->dtype))
		return cairn_error(EOPNOTSUPP, "rope: dtype: %d is not supported", a->dtype);
	if (a->head_dim % 16 || a->rotary_dim % 16 || a->head_dim > MAX_DIM)
		return cairn_error(EOPNOTSUPP,
				   "rope: head_dim %d, rotary_dim %d: not multiples of 16 up to 512",
				   a->head_dim, a->rotary_dim);
	if (!isfinite(a->scale))
		return cairn_error(EINVAL, "rope: scale: must be finite");
	CAIRN_TRY(check_stride(a->q_stride, a->num_qo_heads, a->head_dim, "q"));
	if (a->k)
		CAIRN_TRY(check_stride(a->k_stride, a->num_kv_heads, a->head_dim, "k"));
	if ((a->q_norm || (a->k && a->k_norm)) && !cairn_is_eps(a->norm_eps))
		return cairn_error(EINVAL, "rope: norm_eps: must be finite and at least 2^-126");
	if (a->nnz == 0)
		return 0;
	if (!a->q || !a->inv_freq || !a->positions)
		return cairn_error(EINVAL, "rope: q, inv_freq, positions: must not be null");
	if (((uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->q_norm) & 15 ||
	    (a->k && (uintptr_t)a->k_norm & 15))
		return cairn_error(EINVAL, "rope: q, k, q_norm, k_norm: must be 16-byte aligned");
	return 0;
}
