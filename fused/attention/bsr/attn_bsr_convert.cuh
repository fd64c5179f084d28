/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_convert - the converter of attn_bsr: 8-bit keys on their way from the producer to the consumers
 *
 * The producer fetches 8-bit keys to a ring of their own, in the layout of 16-bit keys with half the bytes.
 * The converter is a warpgroup that takes one tile after the other from there, as soon as the consumers have
 * room. It knows nothing of lists and masks, so its warps run one short loop. A producer that also converted
 * spent more time between its conversions than in them (../NOTES.md).
 *
 * Consumers with 256 dimensions leave no registers for a fourth warpgroup. There, the producer converts each
 * tile after it has arrived.
 */
#ifndef CAIRN_ATTN_BSR_CONVERT_CUH
#define CAIRN_ATTN_BSR_CONVERT_CUH

#include "primitives/ptx/fp8.cuh"
#include "fused/attention/bsr/attn_bsr_copy.cuh"

/*
 * The converter's places in the rings of K and V, and in the ring for 8-bit keys; the byte offsets of a
 * thread's first piece in a tile of that ring and in a tile of K or V.
 */
struct attn_bsr_converter {
	struct attn_place k, v, raw;
	uint32_t from, to;
};

/*
 * Each warp converts a quarter of a tile. Eight lanes, which access shared memory together, have four pieces
 * of each of two rows, r and r ^ 5 of a group: these are free of bank conflicts both when they are read and
 * when they are written.
 */
template <class F> ATTN_DEV struct attn_bsr_converter attn_begin_convert(void)
{
	const int thread = attn_thread(), lane = thread % 32;
	const int first = thread / 32 * (F::keys / 4) + (lane / 8 ^ (lane & 4 ? 5 : 0));

	return { { 0, 1 }, { 0, 1 }, { 0, 0 }, attn_piece_at<F::v>(first, lane % 4),
		 attn_piece_at<2 * F::v>(first, lane % 4 * 2) };
}

/*
 * Converts the pieces of a thread. The first one is at `from` in the ring and goes to `to`. An odd panel of
 * the ring, and every second piece of the 16-bit tile, lie where one bit of the address differs.
 */
template <class F, int dtype> ATTN_DEV void attn_convert_8bit(uint32_t to, uint32_t from)
{
	constexpr int dim = F::v, panels = dim / 64, half = dim > 64 ? 2 : 1;
	constexpr int at_once = 4;	/* loads in flight */
	const uint32_t from_odd = from ^ 64, to_odd = to ^ 16;

#pragma unroll
	for (int i = 0; i < F::keys / 32 * panels; i += at_once) {
		uint4 raw[at_once];

#pragma unroll
		for (int j = 0; j < at_once; j++) {
			int group = (i + j) / panels, panel = (i + j) % panels;

			raw[j] = ptx_ld_shared_v4((panel % half ? from_odd : from) + group * 8 * dim +
						  panel / half * 8 * ATTN_PANEL);
		}
#pragma unroll
		for (int j = 0; j < at_once; j++) {
			int at = (i + j) / panels * 16 * dim + (i + j) % panels * 8 * ATTN_PANEL;
			uint4 lo, hi;

			fp8_widen<dtype>(raw[j].x, &lo.x, &lo.y);
			fp8_widen<dtype>(raw[j].y, &lo.z, &lo.w);
			fp8_widen<dtype>(raw[j].z, &hi.x, &hi.y);
			fp8_widen<dtype>(raw[j].w, &hi.z, &hi.w);
			ptx_st_shared_v4(to + at, lo);
			ptx_st_shared_v4(to_odd + at, hi);
		}
	}
}

/*
 * Converts the next tile of the ring for 8-bit keys, and hands it to the consumers. Returns false if there
 * are no more tiles.
 */
template <class F, int dtype>
ATTN_DEV bool attn_convert_tile(const struct attn_smem<struct attn_bsr_tile> &s, struct attn_bsr_converter *c)
{
	struct attn_bsr_extra<F> *x = attn_extra<F>(s);
	uint32_t tile, full;
	int kind;

	static_assert(F::qk == F::v, "tiles of K and V are alike");
	ptx_mbarrier_wait(ptx_smem(&x->full[c->raw.stage]), c->raw.phase);
	kind = *(const volatile int32_t *)&x->kind[c->raw.stage];
	if (kind == ATTN_RAW_END)
		return false;
	if (kind == ATTN_RAW_K) {
		ptx_mbarrier_wait(s.empty_k + 8 * c->k.stage, c->k.phase);
		tile = s.k + c->k.stage * F::k_bytes;
		full = s.full_k + 8 * c->k.stage;
		attn_advance<F::stages>(&c->k);
	} else {
		ptx_mbarrier_wait(s.empty_v + 8 * c->v.stage, c->v.phase);
		tile = s.v + c->v.stage * F::v_bytes;
		full = s.full_v + 8 * c->v.stage;
		attn_advance<F::stages>(&c->v);
	}
	attn_convert_8bit<F, dtype>(tile + c->to, ptx_smem(x->raw) + c->raw.stage * F::raw_bytes + c->from);
	attn_fetched(full, false);
	elected_arrive(ptx_smem(&x->empty[c->raw.stage]));
	attn_advance<F::raw_stages>(&c->raw);
	return true;
}

/* The converter: hands all tiles of the ring for 8-bit keys to the consumers. */
template <class F, int dtype>
ATTN_DEV void attn_convert_tiles(const struct attn_smem<struct attn_bsr_tile> &s)
{
	struct attn_bsr_converter c = attn_begin_convert<F>();

	while (attn_convert_tile<F, dtype>(s, &c))
		;
}

#endif
