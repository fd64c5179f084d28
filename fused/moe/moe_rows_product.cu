// SPDX-License-Identifier: Apache-2.0
/*
 * moe_rows_product - instances of moe_rows_product.cuh for 16-bit weights, and the launcher of all
 * instances
 */
#include "fused/moe/moe_rows_product.cuh"

#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"

/*
 * Makes the map of [matrices][rows][k], in boxes of 128 bytes of 128 rows of one matrix, or of 64 rows of two
 * matrices.
 */
static int make_map(CUtensorMap *map, const void *w, int bytes, int k, int rows, int matrices, int down)
{
	const struct cairn_tensor_layout t = {
		.data = w, .dims = 3, .element_bytes = bytes,
		.size = { (uint64_t)k, (uint64_t)rows, (uint64_t)matrices },
		.stride = { (uint64_t)k * bytes, (uint64_t)k * bytes * rows },
		.box = { (uint32_t)(PANEL_ROW / bytes), (uint32_t)(down ? HALF_ROWS : HALF_ROWS / 2),
			 down ? 1u : 2u },
		.swizzle = 128,
	};

	return cairn_tensor_map(map, &t, "moe");
}

/* Sets one side (routed or shared) of one product. */
static int make_side(struct side *side, const struct moe_scales *scales, const struct cairn_moe_args *a,
		     int shared, int down)
{
	const int wide = shared ? a->shared_intermediate : a->intermediate;
	const int experts = shared ? 1 : a->num_experts;

	side->k = down ? wide : a->hidden;
	side->height = down ? a->hidden : wide;
	side->items = attn_div_up(side->height, down ? 2 * HALF_ROWS : HALF_ROWS);
	if (down) {
		side->scales = shared ? scales->shared_down : scales->down;
		side->expert_scales = scales->expert_down;
		return make_map(&side->w, shared ? a->w_shared_down : a->w_down, a->fp8w ? 1 : 2, side->k,
				side->height, experts, 1);
	}
	side->scales = shared ? scales->shared_gate_up : scales->gate_up;
	side->expert_scales = scales->expert_gate_up;
	return make_map(&side->w, shared ? a->w_shared_gate_up : a->w_gate_up, a->fp8w ? 1 : 2, side->k,
			side->height, 2 * experts, 0);
}

static const void *kernel_16(int f16, int down)
{
	if (down)
		return f16 ? (const void *)product_kernel<BITS_16, CAIRN_F16, true> :
		       (const void *)product_kernel<BITS_16, CAIRN_BF16, true>;
	return f16 ? (const void *)product_kernel<BITS_16, CAIRN_F16, false> :
	       (const void *)product_kernel<BITS_16, CAIRN_BF16, false>;
}

static int launch(const struct rows *g, const struct cairn_moe_args *args, int down, void *stream)
{
	const int f16 = args->dtype == CAIRN_F16, num_sms = cairn_sms_of(args->sms);
	const struct moe_scales scales = moe_scales_of(args);
	struct product p = {};
	struct cairn_launch l = {};
	void *params[] = { &p };
	const void *kernel;
	int64_t items;
	int kind;

	if (num_sms < 0)
		return num_sms;
	CAIRN_TRY(make_side(&p.side[0], &scales, args, 0, down));
	if (g->shared_rows)
		CAIRN_TRY(make_side(&p.side[1], &scales, args, 1, down));
	if (down) {
		p.side[0].in = (const char *)g->h;
		p.side[1].in = (const char *)g->shared_h;
		p.side[0].in_rows = g->num_places;
		p.side[1].in_rows = g->shared_rows;
		p.side[0].out = g->y;
		p.side[1].out = g->y + (int64_t)g->num_pairs * args->hidden;
	} else {
		p.side[0].in = (const char *)g->x;
		p.side[1].in = (const char *)g->x + (int64_t)g->num_places * PANEL_ROW;
		p.side[0].in_rows = p.side[1].in_rows = g->num_places + g->shared_rows;
		p.side[0].out = g->h;
		p.side[1].out = g->shared_h;
		p.side[0].out_rows = g->num_places;
		p.side[1].out_rows = g->shared_rows;
	}
	p.weight = g->weight;
	p.pair = g->pair;
	p.num_tiles = g->counters + NUM_TILES;
	p.next = g->counters + (down ? NEXT_DOWN : NEXT_GATE_UP);
	p.tiles = g->tiles;
	p.hidden = args->hidden;
	p.batch = args->batch;
	p.most = g->most;
	p.shared_tiles = g->shared_rows ?
		attn_div_up(args->batch, tile_size(args->batch, g->most)) : 0;
	p.between = g->between;
	if (!args->fp8w) {
		kind = BITS_16;
		kernel = down || cairn_moe_is_plain(&g->between) ? kernel_16(f16, down) :
			 moe_rows_between_kernel(f16);
	} else if (scales.blocks) {
		kind = BITS_8_BLOCKS;
		kernel = moe_rows_fp8_blocks_kernel(f16, down);
	} else {
		kind = BITS_8;
		kernel = moe_rows_fp8_kernel(f16, down);
	}
	items = (int64_t)g->num_tiles * p.side[0].items + (int64_t)p.shared_tiles * p.side[1].items;
	l.grid[0] = (unsigned int)(items < num_sms ? items : num_sms);
	l.block[0] = THREADS;
	l.smem = (size_t)smem_bytes(kind);
	l.pdl = !args->sms;
	l.stream = stream;
	return cairn_launch(kernel, &l, params);
}

int moe_rows_most(const struct cairn_moe_args *args)
{
	if (cairn_moe_w4_of(args))
		return MOE_W4_PLACES;
	return most_places(!args->fp8w ? BITS_16 :
			   args->scale_kind == CAIRN_FP8_SCALE_BLOCKS ? BITS_8_BLOCKS : BITS_8);
}

int moe_rows_products(const struct rows *g, const struct cairn_moe_args *args, void *stream)
{
	CAIRN_TRY(launch(g, args, 0, stream));
	return launch(g, args, 1, stream);
}
