// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_fixed - launches gemm_fixed_kernel
 *
 * Floor: 2 m n k operations at the rate of wgmma, 4096 a clock and SM, or reading b once. The chip reaches
 * neither at its nominal clock: at 700 W a product of this kind runs at about 1.5 GHz, 790 TFLOP/s at most.
 *
 * The divisions of a product into tiles: gemm_fixed_plan.h. Budget, predictions and figures: NOTES.md.
 */
#include "primitives/base/args.h"
#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"
#include "primitives/gemm/fixed/gemm_fixed_kernel.cuh"

static int map_a(CUtensorMap *map, const struct cairn_gemm_fixed_args *g, const struct gemm_fixed_plan *p)
{
	const struct cairn_tensor_layout t = {
		.data = g->a, .dims = 2, .element_bytes = 2, .size = { (uint64_t)g->k, (uint64_t)g->m },
		.stride = { (uint64_t)cairn_gemm_fixed_a_stride(g) * 2 },
		.box = { GEMM_FIXED_STAGE_K, (uint32_t)(GEMM_FIXED_GROUP_ROWS * p->groups) },
		.swizzle = 128, .promotion = 128,
	};

	return cairn_tensor_map(map, &t, "gemm_fixed");
}

/* PLAIN: [1][1][n][k]; SILU_MUL: [eights][gate, up][8][k] */
static int map_b(CUtensorMap *map, const struct cairn_gemm_fixed_args *g, const struct gemm_fixed_plan *p)
{
	const int silu = g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL;
	const uint64_t row = (uint64_t)g->k * 2, n = (uint64_t)g->n, width = (uint64_t)p->width;
	struct cairn_tensor_layout t = {
		.data = g->b, .dims = 4, .element_bytes = 2, .size = { (uint64_t)g->k, n, 1, 1 },
		.stride = { row, row, row }, .box = { GEMM_FIXED_STAGE_K, (uint32_t)width / 2, 1, 1 },
		.swizzle = 128, .promotion = 128,
	};

	if (silu) {
		t.size[1] = t.box[1] = 8;
		t.size[2] = t.box[2] = 2;
		t.size[3] = n / 16;
		t.box[3] = (uint32_t)width / 32;
		t.stride[1] = n / 2 * row;
		t.stride[2] = 8 * row;
	}
	return cairn_tensor_map(map, &t, "gemm_fixed");
}

static int make_plan(struct gemm_fixed_plan *p, const struct cairn_gemm_fixed_args *g, const void *kernel)
{
	const struct cairn_launch pair = { .grid = { 2 }, .block = { THREADS }, .smem = SMEM_BYTES,
					   .cluster = 2 };
	struct gemm_fixed_shape shape = { .m = g->m, .n = g->n, .k = g->k };

	shape.multiple = g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL ? 32 : 16;
	shape.sms = cairn_sms_of(g->sms);
	if (shape.sms < 0)
		return shape.sms;
	shape.pairs = cairn_max_active_clusters(kernel, &pair);
	if (shape.pairs < 0)
		return shape.pairs;
	*p = gemm_fixed_choose(&shape);
	if (g->m > GEMM_FIXED_MOST || g->n > GEMM_FIXED_MOST || !p->clusters)
		return cairn_error(EOPNOTSUPP, "gemm_fixed: m %d, n %d: too many tiles", g->m, g->n);
	return 0;
}

extern "C" int cairn_gemm_fixed(const struct cairn_gemm_fixed_args *g, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .smem = SMEM_BYTES, .stream = stream };
	struct cairn_gemm_fixed_args args;
	struct gemm_fixed_plan p;
	struct maps maps;
	void *params[] = { &args, &maps, &p };
	const void *kernel;

	CAIRN_TRY(cairn_gemm_fixed_check(g));
	cairn_copy_args(&args, g, sizeof(args));
	args.out_stride = cairn_gemm_fixed_out_stride(g);	/* the kernel's out_stride is never 0 */
	kernel = g->dtype == CAIRN_BF16 ? (const void *)gemm_fixed_kernel<CAIRN_BF16> :
		 (const void *)gemm_fixed_kernel<CAIRN_F16>;
	CAIRN_TRY(make_plan(&p, g, kernel));
	CAIRN_TRY(map_a(&maps.a, &args, &p));
	CAIRN_TRY(map_b(&maps.b, &args, &p));
	l.grid[0] = (unsigned int)(p.clusters * p.pair);
	l.cluster = p.pair > 1 ? p.pair : 0;
	l.pdl = !g->sms;	/* a dependent launch would take SMs that are not this call's */
	return cairn_launch(kernel, &l, params);
}
