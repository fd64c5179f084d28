/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_rotate - rotations of pairs, and the warps that rotate tiles after their copies
 *
 * The producer's copies of Q complete on mbarriers of their own. The warps beside it wait for these, call the
 * hook query() for each pair of elements, write the pair back to shared memory in dtype, and arrive at
 * full_q, for which the consumers wait. With VARIANT_IN_PLACE, they do the same with K, key() and full_k;
 * otherwise the kernel of attn_variant_keys.cuh has rotated the keys.
 */
#ifndef CAIRN_ATTN_VARIANT_ROTATE_CUH
#define CAIRN_ATTN_VARIANT_ROTATE_CUH

#include "fused/attention/variant/attn_variant_view.cuh"

#define ATTN_RAW_AT	(192 + ATTN_NUM_TILES * (int)sizeof(struct attn_row_tile))

/* The number of warps beside the producer. */
template <class F> ATTN_CONST attn_rotators(void)
{
	return F::threads / 32 - F::groups * 4 - 1;
}

/* The mbarriers on which copies of Q and of K complete, after the descriptions of row tiles. */
template <class F> ATTN_DEV uint32_t attn_raw_q(const struct attn_smem<struct attn_row_tile> &s)
{
	static_assert(ATTN_RAW_AT + 8 * (F::q_stages + F::stages) <= ATTN_EXTRA_BYTES, "mbarriers overlap");
	return s.q + F::data_bytes + ATTN_RAW_AT;
}

template <class F> ATTN_DEV uint32_t attn_raw_k(const struct attn_smem<struct attn_row_tile> &s)
{
	return attn_raw_q<F>(s) + 8 * F::q_stages;
}

/* Makes `full` mbarriers at which the warps beside the producer arrive, and `raw` ones for its copies. */
template <class F> ATTN_DEV void attn_init_ring(uint32_t full, uint32_t raw, int stages)
{
	for (int i = 0; i < stages; i++) {
		ptx_mbarrier_init(raw + 8 * i, 1);
		ptx_mbarrier_inval(full + 8 * i);
		ptx_mbarrier_init(full + 8 * i, attn_rotators<F>() * ELECTED_LANES);
	}
}

template <class F, bool in_place>
ATTN_DEV void attn_init_raw(const struct attn_smem<struct attn_row_tile> &s)
{
	attn_init_ring<F>(s.full_q, attn_raw_q<F>(s), F::q_stages);
	if (in_place)
		attn_init_ring<F>(s.full_k, attn_raw_k<F>(s), F::stages);
	ptx_fence_mbarrier_init_release_cluster();
}

/* Returns the addresses for the producer: full_q and full_k are the mbarriers of its copies. */
template <class F, bool in_place>
ATTN_DEV struct attn_smem<struct attn_row_tile> attn_raw_view(struct attn_smem<struct attn_row_tile> s)
{
	s.full_q = attn_raw_q<F>(s);
	if (in_place)
		s.full_k = attn_raw_k<F>(s);
	return s;
}

/* Returns the low or the high half of a register of two elements. */
template <int dtype> ATTN_DEV float attn_unpack(uint32_t two, int high)
{
	float v;

	if (dtype == CAIRN_BF16)
		return __uint_as_float(high ? two & 0xffff0000 : two << 16);
	if (high)
		asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(v) : "r"(two));
	else
		asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(v) : "r"(two));
	return v;
}

template <class H, bool keys>
ATTN_DEV void attn_rotate_pair(const struct attn_x &x, float *a, float *b, int pair)
{
	if (keys)
		H::key(x, a, b, pair);
	else
		H::query(x, a, b, pair);
}

/* Rotates the pairs within one register of two elements. */
template <int dtype, class H, bool keys>
ATTN_DEV uint32_t attn_rotate_neighbours(const struct attn_x &x, uint32_t two, int pair)
{
	float a = attn_unpack<dtype>(two, 0), b = attn_unpack<dtype>(two, 1);

	attn_rotate_pair<H, keys>(x, &a, &b, pair);
	return attn_pack<dtype>(a, b);
}

/* Rotates the two pairs of two registers, `pair` and the next. */
template <int dtype, class H, bool keys>
ATTN_DEV void attn_rotate_halves(const struct attn_x &x, uint32_t *first, uint32_t *second, int pair)
{
	float a0 = attn_unpack<dtype>(*first, 0), a1 = attn_unpack<dtype>(*first, 1);
	float b0 = attn_unpack<dtype>(*second, 0), b1 = attn_unpack<dtype>(*second, 1);

	attn_rotate_pair<H, keys>(x, &a0, &b0, pair);
	attn_rotate_pair<H, keys>(x, &a1, &b1, pair + 1);
	*first = attn_pack<dtype>(a0, a1);
	*second = attn_pack<dtype>(b0, b1);
}

/* A part of a row: 16 bytes of neighbouring pairs or, unless interleaved, 16 bytes of each half. */
struct attn_part {
	uint4 a, b;
};

template <int rows, int dim, bool interleaved>
ATTN_DEV struct attn_part attn_load_part(uint32_t tile, int row, int part)
{
	struct attn_part p;

	p.a = ptx_ld_shared_v4(tile + attn_panel_at<rows>(row, part));
	if (!interleaved)
		p.b = ptx_ld_shared_v4(tile + attn_panel_at<rows>(row, part + dim / 16));
	return p;
}

template <int rows, int dim, bool interleaved>
ATTN_DEV void attn_store_part(const struct attn_part &p, uint32_t tile, int row, int part)
{
	ptx_st_shared_v4(tile + attn_panel_at<rows>(row, part), p.a);
	if (!interleaved)
		ptx_st_shared_v4(tile + attn_panel_at<rows>(row, part + dim / 16), p.b);
}

template <int dtype, class H, bool keys, bool interleaved>
ATTN_DEV void attn_rotate_part(const struct attn_x &x, struct attn_part *p, int part)
{
	if (interleaved) {
		p->a.x = attn_rotate_neighbours<dtype, H, keys>(x, p->a.x, part * 4);
		p->a.y = attn_rotate_neighbours<dtype, H, keys>(x, p->a.y, part * 4 + 1);
		p->a.z = attn_rotate_neighbours<dtype, H, keys>(x, p->a.z, part * 4 + 2);
		p->a.w = attn_rotate_neighbours<dtype, H, keys>(x, p->a.w, part * 4 + 3);
	} else {
		attn_rotate_halves<dtype, H, keys>(x, &p->a.x, &p->b.x, part * 8);
		attn_rotate_halves<dtype, H, keys>(x, &p->a.y, &p->b.y, part * 8 + 2);
		attn_rotate_halves<dtype, H, keys>(x, &p->a.z, &p->b.z, part * 8 + 4);
		attn_rotate_halves<dtype, H, keys>(x, &p->a.w, &p->b.w, part * 8 + 6);
	}
}

ATTN_DEV void attn_rotated(uint32_t full)
{
	ptx_fence_proxy_async_shared_cta();
	elected_arrive(full);
}

/*
 * Rotates the first `left` rows of a tile; x_of() returns the hook's argument for a row. A thread rotates the
 * same part of every step-th row, so that values that a hook reads for a pair can stay in registers.
 */
template <int dtype, class F, class H, bool keys, bool interleaved, class X>
ATTN_DEV void attn_rotate_rows(uint32_t tile, int left, int thread, X x_of)
{
	constexpr int parts = F::qk / (interleaved ? 8 : 16), step = attn_rotators<F>() * 32 / parts;
	constexpr int rows = keys ? F::keys : F::rows;

	for (int row = thread / parts; row < left; row += step) {
		struct attn_part p = attn_load_part<rows, F::qk, interleaved>(tile, row, thread % parts);

		attn_rotate_part<dtype, H, keys, interleaved>(x_of(row), &p, thread % parts);
		attn_store_part<rows, F::qk, interleaved>(p, tile, row, thread % parts);
	}
}

template <int dtype, class F, class H, bool interleaved>
ATTN_DEV void attn_rotate_q(const struct attn_variant_call &a, const struct attn_row_tile &t, uint32_t tile,
			    int thread)
{
	if (H::has_query)
		attn_rotate_rows<dtype, F, H, false, interleaved>(
			tile, min(F::rows, (t.qo_len << a.shift) - t.row0), thread,
			[&](int row) { return attn_variant_x(a, t, t.row0 + row); });
}

/*
 * Rotates the key tiles of a row tile, each in its stage of K; *k is the first one's place. Rows past the
 * request's keys stay as they are: the consumers overwrite their logits.
 */
template <int dtype, class F, class H, bool interleaved>
ATTN_DEV void attn_rotate_k(const struct attn_variant_call &a, const struct attn_row_tile &t,
			    const struct attn_smem<struct attn_row_tile> &s, int thread, struct attn_place *k)
{
	struct attn_x x = attn_variant_x_of_keys(a, t);

	for (int i = 0; i < t.num_tiles; i++) {
		const int key = t.begin + i * F::keys;

		ptx_mbarrier_wait(attn_raw_k<F>(s) + 8 * k->stage, k->phase);
		attn_rotate_rows<dtype, F, H, true, interleaved>(
			s.k + k->stage * F::k_bytes, min(F::keys, x.kv_len - key), thread, [&](int row) {
				x.k_pos = key + row;
				return x;
			});
		attn_rotated(s.full_k + 8 * k->stage);
		attn_advance<F::stages>(k);
	}
}

#endif
