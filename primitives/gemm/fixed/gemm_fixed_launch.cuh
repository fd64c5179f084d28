/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_fixed_launch - the host's side of gemm_fixed and gemm_fp8: plan, maps of the operands, launch */
#ifndef CAIRN_GEMM_FIXED_LAUNCH_CUH
#define CAIRN_GEMM_FIXED_LAUNCH_CUH

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"
#include "primitives/gemm/fixed/gemm_fixed_ring.cuh"

static inline int map_a(CUtensorMap *map, const struct cairn_gemm_fixed_args *g,
			const struct gemm_fixed_plan *p, const char *caller)
{
	const struct cairn_tensor_layout t = {
		.data = g->a, .dims = 2, .element_bytes = 2, .size = { (uint64_t)g->k, (uint64_t)g->m },
		.stride = { (uint64_t)cairn_gemm_fixed_a_stride(g) * 2 },
		.box = { GEMM_FIXED_STAGE_K, (uint32_t)p->rows_a },
		.swizzle = 128, .promotion = 128,
	};

	return cairn_tensor_map(map, &t, caller);
}

/* PLAIN: [1][1][n][k]; SILU_MUL: [eights][gate, up][8][k] */
static inline int map_b(CUtensorMap *map, const struct cairn_gemm_fixed_args *g,
			const struct gemm_fixed_plan *p, const char *caller)
{
	const int silu = g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL;
	const uint64_t row = (uint64_t)g->k * 2, n = (uint64_t)g->n;
	const uint32_t rows = (uint32_t)(p->width / p->pair);
	struct cairn_tensor_layout t = {
		.data = g->b, .dims = 4, .element_bytes = 2, .size = { (uint64_t)g->k, n, 1, 1 },
		.stride = { row, row, row }, .box = { GEMM_FIXED_STAGE_K, rows, 1, 1 },
		.swizzle = 128, .promotion = 128,
	};

	if (silu) {
		t.size[1] = t.box[1] = 8;
		t.size[2] = t.box[2] = 2;
		t.size[3] = n / 16;
		t.box[3] = rows / 16;
		t.stride[1] = n / 2 * row;
		t.stride[2] = 8 * row;
	}
	return cairn_tensor_map(map, &t, caller);
}

/*
 * Returns whether results can leave by TMA: tiles of whole lines of 128 bytes, and rows of whole 16 bytes,
 * because the copy of a row that ends elsewhere writes beyond its end.
 */
static inline bool can_send(const struct cairn_gemm_fixed_args *g, const struct gemm_fixed_plan *p)
{
	const int32_t cols = g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL ? p->width / 2 : p->width;

	return g->out_dtype != CAIRN_F32 && cols % 64 == 0 && cairn_gemm_fixed_width(g) % 8 == 0 &&
	       g->out_stride % 8 == 0 && (uintptr_t)g->out % 16 == 0;
}

/* out, if results leave by TMA */
static inline int map_out(CUtensorMap *map, const struct cairn_gemm_fixed_args *g, const char *caller)
{
	const struct cairn_tensor_layout t = {
		.data = g->out, .dims = 2, .element_bytes = 2,
		.size = { (uint64_t)cairn_gemm_fixed_width(g), (uint64_t)g->m },
		.stride = { (uint64_t)g->out_stride * 2 }, .box = { 64, WARP_ROWS }, .swizzle = 128,
		.promotion = 128,
	};

	return cairn_tensor_map(map, &t, caller);
}

/* multiple, least, batch: of struct gemm_fixed_shape. kernel: any with the resources of the launch */
static inline int find_shape(struct gemm_fixed_shape *s, const struct cairn_gemm_fixed_args *g,
			     int32_t multiple, int32_t least, int32_t batch, const void *kernel)
{
	const struct cairn_launch pair = { .grid = { 2 }, .block = { THREADS }, .smem = SMEM_BYTES,
					   .cluster = 2 };

	*s = { .m = g->m, .n = g->n, .k = g->k, .multiple = multiple, .least = least, .batch = batch };
	s->sms = cairn_sms_of(g->sms);
	if (s->sms < 0)
		return s->sms;
	s->pairs = cairn_max_active_clusters(kernel, &pair);
	return s->pairs < 0 ? s->pairs : 0;
}

/* Completes the chosen plan of a call. */
static inline int finish_plan(struct gemm_fixed_plan *p, const struct cairn_gemm_fixed_args *g,
			      const char *caller)
{
	if (g->m > GEMM_FIXED_MOST || g->n > GEMM_FIXED_MOST || !p->clusters)
		return cairn_error(EOPNOTSUPP, "%s: m %d, n %d: too many tiles", caller, g->m, g->n);
	p->by_tma = can_send(g, p);
	return 0;
}

/*
 * Makes the maps of a planned call and launches kernel(*extra, args, maps, plan), or without the first
 * parameter if extra is NULL. args: a copy of the caller's, with all strides set.
 */
static inline int launch_tiles(const struct cairn_gemm_fixed_args *args, const struct gemm_fixed_plan *p,
			       const void *kernel, const void *extra, const char *caller, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .smem = SMEM_BYTES, .stream = stream };
	struct maps maps = {};
	void *params[] = { (void *)extra, (void *)args, &maps, (void *)p };

	CAIRN_TRY(map_a(&maps.a, args, p, caller));
	CAIRN_TRY(map_b(&maps.b, args, p, caller));
	if (p->by_tma)
		CAIRN_TRY(map_out(&maps.out, args, caller));
	l.grid[0] = (unsigned int)(p->clusters * p->pair);
	l.cluster = p->pair > 1 ? p->pair : 0;
	l.pdl = !args->sms;	/* a dependent launch would take SMs that are not this call's */
	return cairn_launch(kernel, &l, extra ? params : params + 1);
}

#endif
