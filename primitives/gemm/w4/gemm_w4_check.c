// SPDX-License-Identifier: Apache-2.0
/* gemm_w4 - argument checks shared by all of our tables */
#include "primitives/gemm/w4/gemm_w4.h"

#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int check_group(const struct cairn_gemm_w4_args *g)
{
	int32_t want = g->format == CAIRN_W4_MX ? 32 : 16;

	if (g->format != CAIRN_W4_INT && g->format != CAIRN_W4_MX && g->format != CAIRN_W4_NV)
		return cairn_error(EINVAL, "gemm_w4: format: %d is not 0, 1 or 2", g->format);
	if (g->group < 0)
		return cairn_error(EINVAL, "gemm_w4: group: must be >= 0");
	if (g->format == CAIRN_W4_INT && g->group && g->group != 32 && g->group != 64 && g->group != 128)
		return cairn_error(EOPNOTSUPP, "gemm_w4: group: %d is not 32, 64, 128 or 0", g->group);
	if (g->format != CAIRN_W4_INT && g->group != want)
		return cairn_error(EOPNOTSUPP, "gemm_w4: group: %d is not %d, the only one of the format",
				   g->group, want);
	return 0;
}

int cairn_gemm_w4_check_shape(const struct cairn_gemm_w4_args *g)
{
	CAIRN_TRY(cairn_check_args(g, sizeof(*g), "gemm_w4"));
	if (g->m < 1 || g->n < 1 || g->k < 1)
		return cairn_error(EINVAL, "gemm_w4: m %d, n %d, k %d: must be >= 1", g->m, g->n, g->k);
	if (g->sms < 0)
		return cairn_error(EINVAL, "gemm_w4: sms: must be >= 0");
	if (!isfinite(g->scale))
		return cairn_error(EINVAL, "gemm_w4: scale: must be finite");
	CAIRN_TRY(check_group(g));
	if (g->k % 32)
		return cairn_error(EOPNOTSUPP, "gemm_w4: k %d is not a multiple of 32", g->k);
	if ((g->dtype != CAIRN_BF16 && g->dtype != CAIRN_F16) ||
	    (g->out_dtype != g->dtype && g->out_dtype != CAIRN_F32))
		return cairn_error(EOPNOTSUPP, "gemm_w4: dtype %d, out_dtype %d: not supported", g->dtype,
				   g->out_dtype);
	return 0;
}

int cairn_gemm_w4_check(const struct cairn_gemm_w4_args *g)
{
	CAIRN_TRY(cairn_gemm_w4_check_shape(g));
	if (!g->out || !g->a || !g->b || !g->b_scale)
		return cairn_error(EINVAL, "gemm_w4: out, a, b, b_scale: must not be null");
	if (((uintptr_t)g->out | (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->b_scale) & 15)
		return cairn_error(EINVAL, "gemm_w4: out, a, b, b_scale: must be 16-byte aligned");
	return 0;
}
