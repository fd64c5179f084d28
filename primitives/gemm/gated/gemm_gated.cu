// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_gated - checks the call; the kernels are those of gemm for few rows (gemm.cu, gemm_tile.cu)
 *
 * Floor: reading b once, as gemm. What it saves is a launch, 2 to 4 us: ../NOTES.md.
 */
#include "primitives/base/error.h"
#include "primitives/gemm/gated/gemm_gated.h"
#include "primitives/gemm/gemm.cuh"

extern "C" int cairn_gemm_gated(const struct cairn_gemm_gated_args *args, void *stream)
{
	struct cairn_gemm_args product;

	CAIRN_TRY(cairn_gemm_gated_check(args));
	product = cairn_gemm_gated_product(args);
	return cairn_gemm_few_gated(&product, stream);
}
