// SPDX-License-Identifier: Apache-2.0
/* gemm_fixed - argument checks shared by all of our tables */
#include "primitives/gemm/fixed/gemm_fixed.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int check_strides(const struct cairn_gemm_fixed_args *g)
{
	if (cairn_gemm_fixed_out_stride(g) < cairn_gemm_fixed_width(g))
		return cairn_error(EINVAL, "gemm_fixed: out_stride: must be 0 or at least %d",
				   cairn_gemm_fixed_width(g));
	if (cairn_gemm_fixed_a_stride(g) < g->k)
		return cairn_error(EINVAL, "gemm_fixed: a_stride: must be 0 or at least %d", g->k);
	if (g->a_stride % 8)
		return cairn_error(EOPNOTSUPP, "gemm_fixed: a_stride: is not a multiple of 8");
	return 0;
}

int cairn_gemm_fixed_check_shape(const struct cairn_gemm_fixed_args *g)
{
	CAIRN_TRY(cairn_check_args(g, sizeof(*g), "gemm_fixed"));
	if (g->m < 1 || g->n < 1 || g->k < 1)
		return cairn_error(EINVAL, "gemm_fixed: m %d, n %d, k %d: must be >= 1", g->m, g->n, g->k);
	if (g->sms < 0)
		return cairn_error(EINVAL, "gemm_fixed: sms: must be >= 0");
	if (g->k % 8)
		return cairn_error(EOPNOTSUPP, "gemm_fixed: k %d is not a multiple of 8", g->k);
	if ((g->dtype != CAIRN_F16 && g->dtype != CAIRN_BF16) ||
	    (g->out_dtype != g->dtype && g->out_dtype != CAIRN_F32))
		return cairn_error(EOPNOTSUPP, "gemm_fixed: dtype %d, out_dtype %d: not supported", g->dtype,
				   g->out_dtype);
	if (g->epilogue != CAIRN_GEMM_FIXED_PLAIN && g->epilogue != CAIRN_GEMM_FIXED_SILU_MUL)
		return cairn_error(EOPNOTSUPP, "gemm_fixed: epilogue %d: not supported", g->epilogue);
	if (g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL && g->n % 16)
		return cairn_error(EOPNOTSUPP, "gemm_fixed: n %d: silu_mul needs a multiple of 16", g->n);
	return check_strides(g);
}

int cairn_gemm_fixed_check(const struct cairn_gemm_fixed_args *g)
{
	CAIRN_TRY(cairn_gemm_fixed_check_shape(g));
	return g->out && g->a && g->b ? 0 :
	       cairn_error(EINVAL, "gemm_fixed: out, a, b: must not be null");
}
