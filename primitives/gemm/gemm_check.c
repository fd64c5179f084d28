// SPDX-License-Identifier: Apache-2.0
/* gemm - argument checks shared by all of our tables */
#include "primitives/gemm/gemm.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_gemm_check_shape(const struct cairn_gemm_args *g)
{
	CAIRN_TRY(cairn_check_args(g, sizeof(*g), "gemm"));
	if (g->m < 1 || g->n < 1 || g->k < 1)
		return cairn_error(EINVAL, "gemm: m %d, n %d, k %d: must be >= 1", g->m, g->n, g->k);
	if (g->sms < 0)
		return cairn_error(EINVAL, "gemm: sms: must be >= 0");
	if (g->k % 8)
		return cairn_error(EOPNOTSUPP, "gemm: k %d is not a multiple of 8", g->k);
	if (!cairn_dtype_is_float(g->dtype) || (g->out_dtype != g->dtype && g->out_dtype != CAIRN_F32))
		return cairn_error(EOPNOTSUPP, "gemm: dtype %d, out_dtype %d: not supported", g->dtype,
				   g->out_dtype);
	return 0;
}

int cairn_gemm_check(const struct cairn_gemm_args *g)
{
	CAIRN_TRY(cairn_gemm_check_shape(g));
	return g->out && g->a && g->b ? 0 : cairn_error(EINVAL, "gemm: out, a, b: must not be null");
}
