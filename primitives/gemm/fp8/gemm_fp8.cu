// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fp8 - launches gemm_fp8_kernel
 *
 * Floor: 2 m n k operations at the rate of wgmma, 8192 a clock and SM. The chip does not reach it at its
 * nominal clock: the 700 W limit sets the clock. Figures: NOTES.md.
 *
 * A call is one launch, or two with tiles of different widths: gemm_fp8_parts.h.
 */
#include "primitives/gemm/fixed/gemm_fixed_launch.cuh"
#include "primitives/gemm/fp8/gemm_fp8_kernel.cuh"
#include "primitives/gemm/fp8/gemm_fp8_parts.h"

template <int dtype, bool blocks> static const void *kernel_of(int32_t width)
{
	switch (width) {
	case 16:
		return (const void *)gemm_fp8_kernel<dtype, blocks, 16>;
	case 32:
		return (const void *)gemm_fp8_kernel<dtype, blocks, 32>;
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

/* Returns the call as tiles and maps see it: without scales, and two codes are one element of 16 bits. */
static struct cairn_gemm_fixed_args as_pairs(const struct cairn_gemm_fp8_args *args, int64_t out_stride)
{
	struct cairn_gemm_fixed_args tiles = { .size = sizeof(tiles) };

	tiles.out = args->out;
	tiles.a = args->a;
	tiles.b = args->b;
	tiles.bias = args->bias;
	tiles.out_stride = out_stride;
	tiles.m = args->m;
	tiles.n = args->n;
	tiles.k = args->k / 2;
	tiles.dtype = args->dtype;
	tiles.out_dtype = args->out_dtype;
	tiles.epilogue = CAIRN_GEMM_FIXED_PLAIN;
	tiles.sms = args->sms;
	return tiles;
}

/* Launches the tiles of one part of a call, whose args are given, by the plan that was chosen for it. */
static int launch_part(const struct cairn_gemm_fp8_args *args, int64_t out_stride, struct gemm_fixed_plan *p,
		       void *stream)
{
	const struct cairn_gemm_fixed_args tiles = as_pairs(args, out_stride);

	CAIRN_TRY(finish_plan(p, &tiles, "gemm_fp8"));
	return launch_tiles(&tiles, p, kernel_for(args, p->width), args, "gemm_fp8", stream);
}

/* Makes args those of the columns from `first` on, a multiple of CAIRN_FP8_BLOCK. */
static void skip_columns(struct cairn_gemm_fp8_args *args, int32_t first)
{
	const int64_t scales = args->scale_kind == CAIRN_FP8_SCALE_TENSOR ? 0 :
			       args->scale_kind == CAIRN_FP8_SCALE_ROWS ? first :
			       (int64_t)(first / BATCH) * gemm_fixed_div_up(args->k, BATCH);

	args->out = (char *)args->out + first * cairn_dtype_bytes(args->out_dtype);
	args->b += first * (int64_t)args->k;
	args->b_scale += scales;
	if (args->bias)
		args->bias = (const char *)args->bias + first * cairn_dtype_bytes(args->dtype);
	args->n -= first;
}

extern "C" int cairn_gemm_fp8(const struct cairn_gemm_fp8_args *g, void *stream)
{
	struct cairn_gemm_fixed_args tiles;
	struct cairn_gemm_fp8_args args;
	struct gemm_fixed_shape shape;
	struct gemm_fp8_parts parts;

	CAIRN_TRY(cairn_gemm_fp8_check(g));
	cairn_copy_args(&args, g, sizeof(args));
	args.a_scale_stride = cairn_gemm_fp8_a_scale_stride(&args);	/* never 0 in the kernel */
	tiles = as_pairs(&args, args.n);
	CAIRN_TRY(find_shape(&shape, &tiles, BATCH / 2, args.m > GEMM_FIXED_GROUP_ROWS ? BATCH / 2 : 16,
			     BATCH, kernel_for(&args, GEMM_FIXED_MOST_WIDTH)));
	parts = gemm_fp8_choose_parts(&shape);
	args.n = parts.n[0];
	CAIRN_TRY(launch_part(&args, g->n, &parts.plan[0], stream));
	if (!parts.n[1])
		return 0;
	args.n = g->n;
	skip_columns(&args, parts.n[0]);
	return launch_part(&args, g->n, &parts.plan[1], stream);
}
