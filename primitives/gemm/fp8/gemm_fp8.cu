// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8 - launches gemm_fp8_kernel
 *
 * Floor: 2 m n k operations at the rate of wgmma, 8192 a clock and SM. The chip does not reach it at its
 * nominal clock: the 700 W limit sets the clock. Figures: NOTES.md.
 *
 * For the tiles and maps of gemm_fixed, two codes are one element of 16 bits.
 */
#include "primitives/gemm/fixed/gemm_fixed_launch.cuh"
#include "primitives/gemm/fp8/gemm_fp8_kernel.cuh"

template <int dtype, bool blocks> static const void *kernel_of(int32_t width)
{
	switch (width) {
	case 64:
		return (const void *)gemm_fp8_kernel<dtype, blocks, 64>;
	case 128:
		return (const void *)gemm_fp8_kernel<dtype, blocks, 128>;
	case 192:
		return (const void *)gemm_fp8_kernel<dtype, blocks, 192>;
	default:
		return (const void *)gemm_fp8_kernel<dtype, blocks, 256>;
	}
}

static const void *kernel_for(const struct cairn_gemm_fp8_args *g, int32_t width)
{
	const bool blocks = g->scale_kind == CAIRN_FP8_SCALE_BLOCKS;

	if (g->dtype == CAIRN_BF16)
		return blocks ? kernel_of<CAIRN_BF16, true>(width) : kernel_of<CAIRN_BF16, false>(width);
	return blocks ? kernel_of<CAIRN_F16, true>(width) : kernel_of<CAIRN_F16, false>(width);
}

extern "C" int cairn_gemm_fp8(const struct cairn_gemm_fp8_args *g, void *stream)
{
	struct cairn_gemm_fixed_args tiles = { .size = sizeof(tiles) };
	struct cairn_gemm_fp8_args args;
	struct gemm_fixed_plan p;

	CAIRN_TRY(cairn_gemm_fp8_check(g));
	cairn_copy_args(&args, g, sizeof(args));
	args.a_scale_stride = cairn_gemm_fp8_a_scale_stride(&args);	/* never 0 in the kernel */
	tiles.out = args.out;
	tiles.a = args.a;
	tiles.b = args.b;
	tiles.bias = args.bias;
	tiles.out_stride = args.n;
	tiles.m = args.m;
	tiles.n = args.n;
	tiles.k = args.k / 2;
	tiles.dtype = args.dtype;
	tiles.out_dtype = args.out_dtype;
	tiles.epilogue = CAIRN_GEMM_FIXED_PLAIN;
	tiles.sms = args.sms;
	CAIRN_TRY(make_plan(&p, &tiles, BATCH / 2, BATCH, kernel_for(&args, GEMM_FIXED_MOST_WIDTH),
			    "gemm_fp8"));
	return launch_tiles(&tiles, &p, kernel_for(&args, p.width), &args, "gemm_fp8", stream);
}
