// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fixed - launches gemm_fixed_kernel
 *
 * Floor: 2 m n k operations at the rate of wgmma, 4096 a clock and SM, or reading b once. The chip reaches
 * neither at its nominal clock: at 700 W a product of this kind runs at about 1.5 GHz, 790 TFLOP/s at most.
 *
 * The divisions of a product into tiles: gemm_fixed_plan.h. Budget, predictions and figures: NOTES.md.
 */
#include "primitives/gemm/fixed/gemm_fixed_kernel.cuh"
#include "primitives/gemm/fixed/gemm_fixed_launch.cuh"

extern "C" int cairn_gemm_fixed(const struct cairn_gemm_fixed_args *g, void *stream)
{
	const void *kernel = (const void *)gemm_fixed_kernel<CAIRN_BF16>;
	struct cairn_gemm_fixed_args args;
	struct gemm_fixed_shape shape;
	struct gemm_fixed_plan p;
	int32_t multiple;

	CAIRN_TRY(cairn_gemm_fixed_check(g));
	if (g->dtype == CAIRN_F16)
		kernel = (const void *)gemm_fixed_kernel<CAIRN_F16>;
	cairn_copy_args(&args, g, sizeof(args));
	args.out_stride = cairn_gemm_fixed_out_stride(g);	/* the kernel's out_stride is never 0 */
	multiple = g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL ? 32 : 16;
	CAIRN_TRY(find_shape(&shape, &args, multiple, g->m > GEMM_FIXED_GROUP_ROWS ? 32 : multiple,
			     GEMM_FIXED_MOST_WIDTH, kernel));
	p = gemm_fixed_choose(&shape);
	CAIRN_TRY(finish_plan(&p, &args, "gemm_fixed"));
	return launch_tiles(&args, &p, kernel, NULL, "gemm_fixed", stream);
}
