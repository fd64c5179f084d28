// SPDX-License-Identifier: Apache-2.0
/* gemm_fp8w - argument checks shared by all of our tables */
#include "primitives/gemm/fp8w/gemm_fp8w.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_gemm_fp8w_check_shape(const struct cairn_gemm_fp8w_args *g)
{
	CAIRN_TRY(cairn_check_args(g, sizeof(*g), "gemm_fp8w"));
	if (g->m < 1 || g->n < 1 || g->k < 1)
		return cairn_error(EINVAL, "gemm_fp8w: m %d, n %d, k %d: must be >= 1", g->m, g->n, g->k);
	if (g->scale_kind != CAIRN_FP8_SCALE_ROWS && g->scale_kind != CAIRN_FP8_SCALE_BLOCKS)
		return cairn_error(EINVAL, "gemm_fp8w: scale_kind: %d is neither 0 nor 1", g->scale_kind);
	if (g->sms < 0)
		return cairn_error(EINVAL, "gemm_fp8w: sms: must be >= 0");
	if (g->k % 16)
		return cairn_error(EOPNOTSUPP, "gemm_fp8w: k %d is not a multiple of 16", g->k);
	if ((g->dtype != CAIRN_BF16 && g->dtype != CAIRN_F16) ||
	    (g->out_dtype != g->dtype && g->out_dtype != CAIRN_F32))
		return cairn_error(EOPNOTSUPP, "gemm_fp8w: dtype %d, out_dtype %d: not supported", g->dtype,
				   g->out_dtype);
	return 0;
}

int cairn_gemm_fp8w_check(const struct cairn_gemm_fp8w_args *g)
{
	CAIRN_TRY(cairn_gemm_fp8w_check_shape(g));
	if (!g->out || !g->a || !g->b || !g->b_scale)
		return cairn_error(EINVAL, "gemm_fp8w: out, a, b, b_scale: must not be null");
	if (((uintptr_t)g->out | (uintptr_t)g->a | (uintptr_t)g->b) & 15)
		return cairn_error(EINVAL, "gemm_fp8w: out, a, b: must be 16-byte aligned");
	return 0;
}
