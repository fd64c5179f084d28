// SPDX-License-Identifier: Apache-2.0
/*
 * moe_rows_product - instances of moe_rows_product.cuh for 16-bit weights, and the launcher of all
 * instances
 */
#include "fused/moe/moe_rows_product.cuh"

#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"
#include "fused/moe/moe_w4.h"

/*
 * With 4 bits, calls with at most this number of rows for each expert on average take moe_rows_w4.cu. It
 * decodes codes once for each 32 places; moe_rows_codes.cuh decodes them once for up to 144, but a few places
 * take it almost as long as 64. The number is an estimate.
 */
#define FEW_OF_EXPERT	16

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
	if (cairn_moe_w4_of(a))
		return 0;		/* make_codes() makes its maps */
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

/* Makes the maps of codes and cells of one product's weights in 4 bits, in boxes of 64 rows. */
static int make_codes(struct product *p, const struct cairn_moe_args *a, int down)
{
	const int32_t n = down ? a->hidden : 2 * a->intermediate, k = p->side[0].k;
	const int32_t format = cairn_moe_w4_format(a->w4), group = cairn_moe_w4_group(a->w4);
	const uint64_t units = (uint64_t)a->num_experts * cairn_w4_units(n), tile = CAIRN_W4_TILE_BYTES;
	const uint64_t cells = (uint64_t)cairn_w4_groups(k, group) * cairn_w4_cell_bytes(format);
	const int stage_k = stage_panels(BITS_4_INT) * PANEL;
	struct cairn_tensor_layout t = {
		.data = down ? a->w_down : a->w_gate_up, .dims = 3, .element_bytes = 2,
		.size = { tile / 2, (uint64_t)cairn_w4_tiles(k), units },
		.stride = { tile, tile * cairn_w4_tiles(k) },
		.box = { CAIRN_W4_TILE_BYTES / 2, UNIT_CODES / CAIRN_W4_TILE_BYTES, BOX_UNITS },
	};

	p->factors = cairn_moe_factors(a, down);
	p->shift = cairn_w4_shift(group);
	p->stage_cells = (group && group < stage_k ? stage_k / group : 1) * cairn_w4_cell_bytes(format);
	CAIRN_TRY(cairn_tensor_map(&p->side[0].w, &t, "moe"));
	t = {
		.data = down ? a->w_down_scale : a->w_gate_up_scale, .dims = 2, .element_bytes = 2,
		.size = { cells / 2, units }, .stride = { cells },
		.box = { (uint32_t)p->stage_cells / 2, BOX_UNITS },
	};
	return cairn_tensor_map(&p->side[0].cells, &t, "moe");
}

static const void *kernel_4(int32_t w4, int f16, int down)
{
	return w4 == CAIRN_MOE_W4_MX ? moe_rows_mx_kernel(f16, down) :
	       w4 == CAIRN_MOE_W4_NV ? moe_rows_nv_kernel(f16, down) : moe_rows_int_kernel(f16, down);
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
	if (cairn_moe_w4_of(args)) {
		CAIRN_TRY(make_codes(&p, args, down));
		kind = BITS_4_INT;
		kernel = kernel_4(args->w4, f16, down);
	} else if (!args->fp8w) {
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

int moe_rows_is_w4_of_few(const struct cairn_moe_args *args)
{
	return cairn_moe_w4_of(args) && (args->batch <= CAIRN_MOE_FEW ||
					 (int64_t)args->batch * args->experts_per_token <=
					 (int64_t)FEW_OF_EXPERT * args->num_experts);
}

int moe_rows_most(const struct cairn_moe_args *args)
{
	if (moe_rows_is_w4_of_few(args))
		return MOE_W4_PLACES;
	return most_places(cairn_moe_w4_of(args) ? BITS_4_INT : !args->fp8w ? BITS_16 :
			   args->scale_kind == CAIRN_FP8_SCALE_BLOCKS ? BITS_8_BLOCKS : BITS_8);
}

int moe_rows_products(const struct rows *g, const struct cairn_moe_args *args, void *stream)
{
	CAIRN_TRY(launch(g, args, 0, stream));
	return launch(g, args, 1, stream);
}
