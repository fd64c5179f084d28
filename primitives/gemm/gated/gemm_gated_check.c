// SPDX-License-Identifier: Apache-2.0
/* gemm_gated - argument checks shared by all of our tables */
#include "primitives/gemm/gated/gemm_gated.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_gemm_gated_check(const struct cairn_gemm_gated_args *g)
{
	CAIRN_TRY(cairn_check_args(g, sizeof(*g), "gemm_gated"));
	if (g->m < 1 || g->n < 1 || g->k < 1)
		return cairn_error(EINVAL, "gemm_gated: m %d, n %d, k %d: must be >= 1", g->m, g->n, g->k);
	if (g->sms < 0)
		return cairn_error(EINVAL, "gemm_gated: sms: must be >= 0");
	if (g->dtype != CAIRN_F16 && g->dtype != CAIRN_BF16)
		return cairn_error(EOPNOTSUPP, "gemm_gated: dtype: %d is not supported", g->dtype);
	if (g->m > CAIRN_GEMM_GATED_M)
		return cairn_error(EOPNOTSUPP, "gemm_gated: m: %d, at most %d", g->m, CAIRN_GEMM_GATED_M);
	if (g->n % 8 || g->n > 1 << 30)
		return cairn_error(EOPNOTSUPP, "gemm_gated: n: %d is no multiple of 8 up to 2^30", g->n);
	if (g->k % 8)
		return cairn_error(EOPNOTSUPP, "gemm_gated: k: %d is not a multiple of 8", g->k);
	if (!g->out || !g->a || !g->b)
		return cairn_error(EINVAL, "gemm_gated: out, a, b: must not be null");
	if (((uintptr_t)g->out | (uintptr_t)g->a | (uintptr_t)g->b) & 15)
		return cairn_error(EINVAL, "gemm_gated: out, a, b: must be 16-byte aligned");
	return 0;
}
