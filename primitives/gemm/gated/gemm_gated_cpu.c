// SPDX-License-Identifier: Apache-2.0
/* gemm_gated_cpu - gemm and silu_mul of the same table */
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/gemm/gated/gemm_gated.h"
#include "primitives/rows/silu_mul.h"

int cairn_gemm_gated_cpu(const struct cairn_gemm_gated_args *g, void *stream)
{
	struct cairn_silu_mul_args silu = { .size = sizeof(silu) };
	struct cairn_gemm_args product;
	int ret;

	CAIRN_TRY(cairn_gemm_gated_check(g));
	product = cairn_gemm_gated_product(g);
	product.out = aligned_alloc(64, ((size_t)g->m * 2 * (size_t)g->n * 2 + 63) / 64 * 64);
	if (!product.out)
		return cairn_error(ENOMEM, "gemm_gated: no memory for %d rows of %d", g->m, 2 * g->n);
	silu.out = g->out;
	silu.x = product.out;
	silu.rows = g->m;
	silu.dim = g->n;
	silu.dtype = g->dtype;
	ret = cairn_gemm_cpu(&product, stream);
	if (!ret)
		ret = cairn_silu_mul_cpu(&silu, stream);
	free(product.out);
	return ret;
}
