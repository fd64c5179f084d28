/* SPDX-License-Identifier: Apache-2.0 */
/* moe_w4 - an expert's matrix in 4 bits, as gemm_w4 describes it */
#ifndef CAIRN_MOE_W4_H
#define CAIRN_MOE_W4_H

#include <string.h>

#include "fused/moe/moe.h"
#include "primitives/gemm/w4/gemm_w4_layout.h"

static inline int32_t cairn_moe_w4_format(int32_t w4)
{
	return w4 == CAIRN_MOE_W4_MX ? CAIRN_W4_MX : w4 == CAIRN_MOE_W4_NV ? CAIRN_W4_NV : CAIRN_W4_INT;
}

static inline int32_t cairn_moe_w4_group(int32_t w4)
{
	return w4 == CAIRN_MOE_W4_MX || w4 == CAIRN_MOE_W4_INT_32 ? 32 : w4 == CAIRN_MOE_W4_INT_64 ? 64 :
	       w4 == CAIRN_MOE_W4_INT_128 ? 128 : w4 == CAIRN_MOE_W4_NV ? 16 : 0;
}

/* Returns matrix number `nth` of several [n, k]. scale: its member of the arguments */
static inline struct cairn_gemm_w4_args cairn_moe_w4_matrix(int32_t w4, const void *w, const void *scale,
							    int64_t nth, int32_t n, int32_t k)
{
	struct cairn_gemm_w4_args g;

	memset(&g, 0, sizeof(g));
	g.size = sizeof(g);
	g.n = n;
	g.k = k;
	g.format = cairn_moe_w4_format(w4);
	g.group = cairn_moe_w4_group(w4);
	g.b = (const uint8_t *)w + nth * cairn_w4_code_bytes(n, k);
	g.b_scale = (const uint8_t *)scale + nth * cairn_w4_scale_bytes(g.format, n, k, g.group);
	return g;
}

/* Returns the factor of row i of [n, k], matrix number `nth` of w_down, or of w_gate_up. */
static inline float cairn_moe_factor(const struct cairn_moe_args *args, int is_down, int64_t nth, int64_t i,
				     int64_t n)
{
	const float *factors = cairn_moe_factors(args, is_down);

	return !factors ? 1 : is_down ? factors[nth] : factors[2 * nth + (i >= n / 2)];
}

#endif
