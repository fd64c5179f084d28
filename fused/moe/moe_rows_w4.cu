// SPDX-License-Identifier: Apache-2.0
/*
 * moe_rows_w4 - the two products of moe_rows.cu for weights in 4 bits and few rows of each expert; for more
 * rows see moe_rows_codes.cuh
 *
 *   out^T = w x^T by mma.m16n8k16: 16 rows of weights (a unit of gemm_w4_layout.h) times 8 places
 *   gate_up   a unit of gates and its unit of ups: h, in the order of fragment_at()
 *   down      two units that follow each other: y, fp32
 *
 * An item of work is a tile of up to 32 places of an expert and either one pair of units, whose k is divided
 * among the 8 warps of a CTA (up to CAIRN_MOE_FEW rows, where reading weights is all the work), or 8 pairs,
 * one for each warp. Warps are independent: DEPTH steps of 64 along k ahead, a lane loads its 16 bytes of
 * codes of 16 x 64 elements and the scales of its two rows into registers, and with up to 8 places its part
 * of x. Codes and x need no shared memory, because both lie in the order in which lanes use them.
 *
 * A sum restarts with each group, or after 64 along k if groups are longer; it is scaled and added to a total
 * in fp32. The order of a place's sums depends neither on its tile nor on its place in it.
 *
 * Shared memory: 8 KiB, the totals of the 8 warps, up to CAIRN_MOE_FEW rows. Registers: at most 128 there, so
 * that 16 warps with 48 KiB of codes in flight are on an SM, and at most 255 otherwise; no spills.
 * Floor: the codes and scales of the chosen experts once through memory.
 */
#include "fused/moe/moe_rows.cuh"

#include "primitives/base/launch.h"
#include "primitives/gemm/w4/gemm_w4.cuh"
#include "primitives/ptx/ptx_copy.cuh"
#include "fused/moe/moe_w4.h"

#define WARPS		8
#define THREADS		(WARPS * 32)
#define TILE_K		CAIRN_W4_TILE_K
#define UNIT		CAIRN_W4_ROWS
#define DEPTH		3

struct product_w4 {
	const uint8_t *w, *scales;
	int64_t expert_codes, expert_scales;	/* bytes of an expert */
	const uint4 *in;			/* in the order of fragment_at() */
	void *out;				/* h, or y */
	const float *weight;			/* weight of the pair at each place */
	const int32_t *pair, *num_tiles;
	const struct tile *tiles;
	struct cairn_moe_between between;
	const float *factors;			/* of gates and ups, or of down; NULL: all are 1 */
	int32_t down, hidden;
	int32_t k_tiles;			/* tiles of 64 along k */
	int32_t cells, shift;		/* bytes of the cells of a unit; a group has 2^shift elements */
	int32_t unit_pairs, items;		/* pairs of units of an expert; items of a tile */
};

/* An item of work: a tile's places, and the first pair of units. */
struct item {
	int32_t expert, first, count, unit_pair;
};

ATTN_DEV struct item find_item(const struct product_w4 &p, int nth, int pairs_of_item)
{
	const struct tile t = p.tiles[nth / p.items];
	const int local = nth - t.base * p.items, among = local % t.num;

	/* items that read the same weights are neighbours */
	return { t.expert, t.first + among * t.size, min(t.size, t.count - among * t.size),
		 local / t.num * pairs_of_item };
}

/* What a lane loads of two units for 64 along k; scales and zero points as they are stored */
template <int share> struct step {
	uint4 codes[2];
	uint32_t scale[2][4 / share], zero[2][4 / share];
};

/* A lane's part of x for 64 along k */
template <int places> struct columns {
	uint4 x[places / 8][2];
};

/* Where the codes and cells of a pair's units begin. */
struct units {
	const uint8_t *codes[2], *cells[2];
};

ATTN_DEV struct units find_units(const struct product_w4 &p, int expert, int unit_pair)
{
	struct units u;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int64_t unit = p.down ? 2 * unit_pair + i : unit_pair + i * p.unit_pairs;

		u.codes[i] = p.w + expert * p.expert_codes + unit * p.k_tiles * CAIRN_W4_TILE_BYTES;
		u.cells[i] = p.scales + expert * p.expert_scales + unit * p.cells;
	}
	return u;
}

template <int format, int share>
ATTN_DEV void fetch(struct step<share> *s, const struct product_w4 &p, const struct units &u, int k_tile)
{
	const int lane = threadIdx.x % 32, g = lane / 4;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		const uint8_t *codes = u.codes[i] + (int64_t)k_tile * CAIRN_W4_TILE_BYTES;

		s->codes[i] = ptx_ld_global_nc_no_allocate_v4(codes + lane * 16);
#pragma unroll
		for (int q = 0; q < 4 / share; q++) {
			const int group = (k_tile * TILE_K + q * share * 16) >> p.shift;
			const uint8_t *cell = u.cells[i] + (int64_t)group * cairn_w4_cell_bytes(format);

			if (format == CAIRN_W4_INT) {
				s->scale[i][q] = __ldg((const uint32_t *)cell + g);
				s->zero[i][q] = __ldg((const uint16_t *)(cell + 2 * UNIT) + g);
			} else {
				s->scale[i][q] = __ldg((const uint16_t *)cell + g);
			}
		}
	}
}

/* from: x of the item's first places */
template <int places>
ATTN_DEV void fetch_columns(struct columns<places> *s, const struct product_w4 &p, const uint4 *from,
			    int k_tile)
{
#pragma unroll
	for (int c = 0; c < places / 8; c++)
#pragma unroll
		for (int i = 0; i < 2; i++)
			s->x[c][i] = from[((int64_t)c * p.k_tiles + k_tile) * 64 + i * 32 + threadIdx.x % 32];
}

/* Adds the scaled products of 64 along k to the totals. */
template <int format, int share, int dtype, int places>
ATTN_DEV void consume(float total[2][places / 8][4], const struct step<share> &s,
		      const struct columns<places> &columns)
{
#pragma unroll
	for (int q = 0; q < 4 / share; q++)
#pragma unroll
		for (int u = 0; u < 2; u++) {
			const struct w4_scales scales = w4_decode_scales<format, dtype>(s.scale[u][q],
											s.zero[u][q]);
			uint32_t a[share][4];

#pragma unroll
			for (int i = 0; i < share; i++)
				w4_decode<format, dtype>(w4_word(s.codes[u], q * share + i), scales, a[i]);
#pragma unroll
			for (int c = 0; c < places / 8; c++) {
				float part[4] = { 0, 0, 0, 0 };

#pragma unroll
				for (int i = 0; i < share; i++) {
					const int at = q * share + i;
					const uint4 &x = columns.x[c][at / 2];
					const uint32_t b[2] = { at % 2 ? x.z : x.x, at % 2 ? x.w : x.y };

					attn_mma<dtype>(part, a[i], b);
				}
#pragma unroll
				for (int e = 0; e < 4; e++)
					total[u][c][e] += scales.s[e / 2] * part[e];
			}
		}
}

/* Multiplies tiles first, first + by, ... along k of a pair of units with the item's places. */
template <int format, int share, int dtype, int places>
ATTN_DEV void multiply(float total[2][places / 8][4], const struct product_w4 &p, const struct item &w,
		       int unit_pair, int first, int by)
{
	constexpr bool ahead = places == 8;
	const struct units u = find_units(p, w.expert, unit_pair);
	const uint4 *x = p.in + (int64_t)(w.first / 8) * p.k_tiles * 64;
	const int num = (p.k_tiles - first + by - 1) / by;
	struct columns<places> columns[ahead ? DEPTH : 1];
	struct step<share> s[DEPTH];

#pragma unroll
	for (int d = 0; d < DEPTH; d++) {
		if (d >= num)
			break;
		fetch<format>(&s[d], p, u, first + d * by);
		if (ahead)
			fetch_columns(&columns[d], p, x, first + d * by);
	}
	for (int t = 0; t < num; t += DEPTH) {
#pragma unroll
		for (int d = 0; d < DEPTH; d++) {
			const int next = first + (t + d + DEPTH) * by;

			if (t + d >= num)
				break;
			if (!ahead)
				fetch_columns(columns, p, x, first + (t + d) * by);
			consume<format, share, dtype, places>(total, s[d], columns[ahead ? d : 0]);
			if (t + d + DEPTH >= num)
				continue;
			fetch<format>(&s[d], p, u, next);
			if (ahead)
				fetch_columns(&columns[d], p, x, next);
		}
	}
}

/* Writes what row `row` of a pair's units gives for a place of the item. */
template <int dtype>
ATTN_DEV void write(const struct product_w4 &p, const struct item &w, int unit_pair, int row, int place,
		    float first, float second)
{
	const int at = unit_pair * UNIT + row, wide = p.unit_pairs * UNIT;
	const uint16_t *bias = (const uint16_t *)p.between.gate_up_bias + (int64_t)w.expert * 2 * wide;

	if (place >= w.count)
		return;
	place += w.first;
	if (p.factors) {
		first *= p.factors[p.down ? w.expert : 2 * w.expert];
		second *= p.factors[p.down ? w.expert : 2 * w.expert + 1];
	}
	if (p.down) {
		float *y = (float *)p.out + (int64_t)p.pair[place] * p.hidden + 2 * unit_pair * UNIT + row;

		y[0] = first;
		y[UNIT] = second;
		return;
	}
	if (p.between.gate_up_bias) {
		first += row_element<dtype>(bias, at);
		second += row_element<dtype>(bias, wide + at);
	}
	row_store((char *)p.out + fragment_at(wide / TILE_K, place, at / 8, at % 8 / 2), dtype, at % 2,
		  moe_activated(p.between, first, second) * p.weight[place]);
}

/* Element e of a lane's total belongs to this row of the unit, and to place element_place(). */
ATTN_DEV int element_row(int lane, int e)
{
	return lane / 4 + e / 2 * 8;
}

ATTN_DEV int element_place(int lane, int e)
{
	return lane % 4 * 2 + e % 2;
}

/* A warp multiplies a pair of units with all places of the item. */
template <int format, int share, int dtype, int places>
ATTN_DEV void do_pair(const struct product_w4 &p, const struct item &w, int unit_pair)
{
	float total[2][places / 8][4] = {};

	multiply<format, share, dtype, places>(total, p, w, unit_pair, 0, 1);
#pragma unroll
	for (int c = 0; c < places / 8; c++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			write<dtype>(p, w, unit_pair, element_row(threadIdx.x % 32, e),
				     c * 8 + element_place(threadIdx.x % 32, e), total[0][c][e],
				     total[1][c][e]);
}

/* A CTA multiplies a pair of units with up to 8 places; half of it adds the totals of the warps. */
template <int format, int share, int dtype>
ATTN_DEV void do_few(const struct product_w4 &p, const struct item &w, float *s_total)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	float total[2][1][4] = {};

	multiply<format, share, dtype, 8>(total, p, w, w.unit_pair, warp, WARPS);
	__syncthreads();		/* the totals of the previous item have been read */
#pragma unroll
	for (int i = 0; i < 8; i++)
		s_total[(warp * 8 + i) * 32 + lane] = total[i / 4][0][i % 4];
	__syncthreads();
	if (warp < 4) {
		float sum[2] = { 0, 0 };

#pragma unroll
		for (int i = 0; i < 2 * WARPS; i++)
			sum[i % 2] += s_total[(i / 2 * 8 + i % 2 * 4 + warp) * 32 + lane];
		write<dtype>(p, w, w.unit_pair, element_row(lane, warp), element_place(lane, warp), sum[0],
			     sum[1]);
	}
}

template <int format, int share, int dtype, bool few>
static __global__ __launch_bounds__(THREADS, few ? 2 : 1)
void product_w4_kernel(const __grid_constant__ struct product_w4 p)
{
	__shared__ float s_total[few ? WARPS * 8 * 32 : 1];
	int items;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	items = *p.num_tiles * p.items;
	for (int nth = blockIdx.x; nth < items; nth += gridDim.x) {
		const struct item w = find_item(p, nth, few ? 1 : WARPS);
		const int unit_pair = w.unit_pair + threadIdx.x / 32;

		if (few)
			do_few<format, share, dtype>(p, w, s_total);
		else if (unit_pair >= p.unit_pairs)
			continue;
		else if (w.count <= 8)
			do_pair<format, share, dtype, 8>(p, w, unit_pair);
		else if (w.count <= 16)
			do_pair<format, share, dtype, 16>(p, w, unit_pair);
		else
			do_pair<format, share, dtype, MOE_W4_PLACES>(p, w, unit_pair);
	}
}

static const void *kernel_of(int32_t w4, int f16, int few)
{
#define KERNEL(format, share, dtype, few)	(const void *)product_w4_kernel<format, share, dtype, few>
#define KERNELS(format, share) \
	{ { KERNEL(format, share, CAIRN_BF16, false), KERNEL(format, share, CAIRN_BF16, true) }, \
	  { KERNEL(format, share, CAIRN_F16, false), KERNEL(format, share, CAIRN_F16, true) } }
	static const void *const kernels[4][2][2] = {
		KERNELS(CAIRN_W4_MX, 2), KERNELS(CAIRN_W4_INT, 2), KERNELS(CAIRN_W4_INT, 4),
		KERNELS(CAIRN_W4_NV, 1),
	};
	const int form = w4 == CAIRN_MOE_W4_MX ? 0 : w4 == CAIRN_MOE_W4_INT_32 ? 1 :
			 w4 == CAIRN_MOE_W4_NV ? 3 : 2;

	return kernels[form][f16][few];
}

static int launch(const struct rows *g, const struct cairn_moe_args *args, int down, void *stream)
{
	const int32_t n = down ? args->hidden : 2 * args->intermediate;
	const int32_t k = down ? args->intermediate : args->hidden;
	const int32_t format = cairn_moe_w4_format(args->w4), group = cairn_moe_w4_group(args->w4);
	const int few = args->batch <= CAIRN_MOE_FEW, num_sms = cairn_sms_of(args->sms);
	struct product_w4 p = {};
	struct cairn_launch l = {};
	void *params[] = { &p };
	int64_t items;

	if (num_sms < 0)
		return num_sms;
	p.w = (const uint8_t *)(down ? args->w_down : args->w_gate_up);
	p.scales = (const uint8_t *)(down ? args->w_down_scale : args->w_gate_up_scale);
	p.expert_codes = cairn_w4_code_bytes(n, k);
	p.expert_scales = cairn_w4_scale_bytes(format, n, k, group);
	p.in = (const uint4 *)(down ? g->h : g->x);
	p.out = down ? (void *)g->y : g->h;
	p.weight = g->weight;
	p.pair = g->pair;
	p.num_tiles = g->counters + NUM_TILES;
	p.tiles = g->tiles;
	p.between = g->between;
	p.factors = cairn_moe_factors(args, down);
	p.down = down;
	p.hidden = args->hidden;
	p.k_tiles = cairn_w4_tiles(k);
	p.cells = cairn_w4_groups(k, group) * cairn_w4_cell_bytes(format);
	p.shift = cairn_w4_shift(group);
	p.unit_pairs = n / (2 * UNIT);
	p.items = few ? p.unit_pairs : attn_div_up(p.unit_pairs, WARPS);
	items = (int64_t)g->num_tiles * p.items;
	/* without a limit, CTAs that the SMs start one after the other hide the ends of items */
	l.grid[0] = (unsigned int)(args->sms && items > num_sms ? num_sms : items);
	l.block[0] = THREADS;
	l.pdl = !args->sms;
	l.stream = stream;
	return cairn_launch(kernel_of(args->w4, args->dtype == CAIRN_F16, few), &l, params);
}

int moe_rows_products_w4(const struct rows *g, const struct cairn_moe_args *args, void *stream)
{
	CAIRN_TRY(launch(g, args, 0, stream));
	return launch(g, args, 1, stream);
}
