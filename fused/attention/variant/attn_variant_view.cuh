/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_view - the front of attn_forward.cuh for contiguous keys, with the hooks of a text
 *
 * H is the class of hooks that attn_variant_hooks.cuh makes from a text. A hook that the text lacks costs
 * nothing.
 */
#ifndef CAIRN_ATTN_VARIANT_VIEW_CUH
#define CAIRN_ATTN_VARIANT_VIEW_CUH

#include "fused/attention/dense/attn_dense_fetch.cuh"
#include "fused/attention/variant/attn_variant_bend.cuh"
#include "fused/attention/variant/attn_variant_call.cuh"

#define real	float
#include "fused/attention/variant/attn_variant_text.h"

/*
 * The keys that a warpgroup's rows see by causal mask and range(). Everything else that the hooks need to
 * know about a row is computed again for each key tile, because the loop over key tiles needs the registers.
 */
struct attn_variant_sight {
	struct attn_sight keys;
	const struct attn_variant_call *call;
	const struct attn_row_tile *tile;
	int32_t row;			/* the lane's first packed row; the other one is 8 rows after it */
	int32_t own;
	int32_t q_pos[2];		/* with head_slope() */
	float slope[2], cap[2];		/* of the hooks; with `leans`, the slope is divided by sm_scale */
	float near[2];			/* with `leans`, the distance of the lane's first key of a tile */
};

/* Returns the hooks' argument for a query. The caller sets k_pos and distance. */
ATTN_DEV struct attn_x attn_variant_x(const struct attn_variant_call &a, const struct attn_row_tile &t,
				      int row)
{
	struct attn_x x = {};
	int token = min(row >> a.shift, t.qo_len - 1);

	x.q_pos = token + t.kv_len - t.qo_len;
	x.head = t.head + (row & ((1 << a.shift) - 1));
	x.kv_head = t.head / a.group;
	x.request = t.request;
	x.row = t.qo_first + token;
	x.qo_len = t.qo_len;
	x.kv_len = t.kv_len;
	x.p = a.p;
	x.t = a.t;
	return x;
}

/* Returns the argument of the hook key(). The caller sets k_pos. */
ATTN_DEV struct attn_x attn_variant_x_of_keys(const struct attn_variant_call &a,
					      const struct attn_row_tile &t)
{
	struct attn_x x = {};

	x.kv_head = t.head / a.group;
	x.request = t.request;
	x.qo_len = t.qo_len;
	x.kv_len = t.kv_len;
	x.p = a.p;
	x.t = a.t;
	return x;
}

/* Sets the keys *lo .. *hi - 1 that packed row `row` sees; there may be none. */
template <class H>
ATTN_DEV void attn_variant_keys(const struct attn_variant_call &a, const struct attn_row_tile &t, int row,
				int *lo, int *hi)
{
	struct attn_x x = attn_variant_x(a, t, row);
	int end = attn_visible(x.q_pos + t.qo_len - t.kv_len, t.qo_len, t.kv_len, a.causal);

	*lo = 0;
	*hi = end;
	H::range(x, lo, hi);
	*lo = max(*lo, 0);
	*hi = min(*hi, end);
}

/*
 * Sets t->begin and *end to the smallest range with all keys that the rows of a row tile see. A row tile
 * whose rows see no key gets one key tile, so that its results are written.
 */
template <class F, class H>
ATTN_DEV void attn_variant_tile_keys(const struct attn_variant_call &a, struct attn_row_tile *t, int *end)
{
	int unused;

	attn_variant_keys<H>(a, *t, t->row0, &t->begin, &unused);
	attn_variant_keys<H>(a, *t, t->row0 + F::rows - 1, &unused, end);
	if (*end <= t->begin) {
		t->begin = max(0, min(t->begin, t->kv_len - 1));
		*end = min(t->begin + 1, t->kv_len);
	}
}

/* Returns the number of this CTA's slice; read again at each call, as attn_thread(). */
ATTN_DEV int attn_variant_slice(const struct attn_variant_call &a)
{
	int cta;

	asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
	return cta % a.slices;
}

/*
 * Narrows the keys of a row tile to the slice of this CTA, which may be empty. The slices of a row tile have
 * equally many key tiles, but the last one may have fewer. They depend on the row tile's own keys and on
 * a.slices, so that a row's bits do not depend on other requests.
 */
template <class F>
ATTN_DEV void attn_variant_cut(const struct attn_variant_call &a, struct attn_row_tile *t, int *end)
{
	const int all = attn_div_up(*end - t->begin, F::keys), tiles = attn_div_up(all, a.slices);
	const int first = attn_variant_slice(a) * tiles;

	if (first >= all) {
		*end = t->begin;
		return;
	}
	t->begin += first * F::keys;
	*end = min(*end - t->begin, tiles * F::keys) + t->begin;
}

/* The class V that attn_forward.cuh describes. sliced: each CTA has a slice of the keys of one row tile. */
template <class H, enum attn_variant_kind kind> struct attn_variant_view {
	typedef struct attn_variant_call call;
	typedef struct attn_row_tile tile;
	typedef struct attn_variant_sight sight;
	static constexpr bool by_threads = false, by_tma = false, sliced = kind != VARIANT_WHOLE;
	static constexpr bool from_end = kind != VARIANT_IN_PLACE;	/* see attn_rotate_k() */
	/* leans: the softmax adds a bias for the distance; bends: hooks have changed logits before it */
	static constexpr bool changes = H::has_logit || H::has_logit_cap;
	static constexpr bool leans = H::has_head_slope && !changes && !H::has_weight;
	static constexpr bool bends = changes || (H::has_head_slope && !leans);

	ATTN_METHOD int slices(const call &a) { return sliced ? a.slices : 1; }

	template <class F> ATTN_METHOD void keys_of(const call &a, tile *t, int *end)
	{
		attn_variant_tile_keys<F, H>(a, t, end);
		if (sliced)
			attn_variant_cut<F>(a, t, end);
	}

	/*
	 * If a hook bends logits, they are in natural units afterwards; otherwise the softmax scales them.
	 */
	ATTN_METHOD struct attn_scale scale(const call &a, const tile &)
	{
		return { (bends ? 1 : a.sm_scale) * ATTN_LOG2E, 0 };
	}

	ATTN_METHOD sight look(const call &a, const struct attn_smem<tile> &s, int nth, int group)
	{
		const tile &t = s.tiles[nth % ATTN_NUM_TILES];
		int thread = attn_thread(), row0 = t.row0 + group * 64, unused;
		int row = row0 + thread / 32 * 16 + thread % 32 / 4;
		sight w;

		w.call = &a;
		w.tile = &t;
		w.row = row;
		w.own = 0;
#pragma unroll
		for (int half = 0; half < 2; half++) {
			struct attn_x x = attn_variant_x(a, t, row + half * 8);
			int lo, hi;

			attn_variant_keys<H>(a, t, row + half * 8, &lo, &hi);
			w.keys.first[half] = lo;
			w.keys.span[half] = max(0, hi - lo);
			w.own |= (row + half * 8 < t.qo_len << a.shift) << half;
			w.q_pos[half] = x.q_pos;
			w.slope[half] = leans ? H::head_slope(x) / a.sm_scale : H::head_slope(x);
			w.cap[half] = H::logit_cap(x);
		}
		attn_variant_keys<H>(a, t, row0 + 63, &w.keys.all_first, &unused);
		attn_variant_keys<H>(a, t, row0, &unused, &w.keys.all_end);
		return w;
	}

	/*
	 * Sets the logits of keys that keep() hides to `none`. The loop over keep() is not unrolled in full,
	 * because the loads of all its calls together would need too many registers. The last tile's keys may
	 * end behind the request's; hooks then get its last key, because they may read arrays at k_pos.
	 */
	template <class F> ATTN_METHOD void hide(float (*s)[4], const sight &w, int key, float none)
	{
		static_assert(F::keys <= 128, "a lane's keys of a row have a bit each");
#pragma unroll
		for (int half = 0; half < 2; half++) {
			struct attn_x x = attn_variant_x(*w.call, *w.tile, w.row + half * 8);
			const int last = max(x.kv_len - 1, 0);
			uint32_t kept = 0;

#pragma unroll 4
			for (int i = 0; i < F::keys / 4; i++) {
				x.k_pos = min(key + i / 2 * 8 + i % 2, last);
				x.near = x.distance = (float)(x.k_pos - x.q_pos);
				kept |= (uint32_t)(H::keep(x) != 0) << i;
			}
#pragma unroll
			for (int i = 0; i < F::keys / 4; i++)
				if (!(kept >> i & 1))
					s[i / 2][2 * half + i % 2] = none;
		}
	}

	/* Calls logit() or, if `weighs`, weight() for the logits of a lane's row; limits k_pos as hide(). */
	template <bool weighs, int keys>
	ATTN_METHOD void call_hook(float (*s)[4], const sight &w, int key, int half, float scale)
	{
		struct attn_x x = attn_variant_x(*w.call, *w.tile, w.row + half * 8);
		const int last = max(x.kv_len - 1, 0);

		x.near = (float)(key - x.q_pos);
#pragma unroll
		for (int i = 0; i < keys / 4; i++) {
			float *v = &s[i / 2][2 * half + i % 2];

			x.k_pos = min(key + i / 2 * 8 + i % 2, last);
			x.step = (float)(i / 2 * 8 + i % 2);
			x.distance = x.near + x.step;
			*v = weighs ? H::weight(x, *v * scale) : H::logit(x, *v * scale);
		}
	}

	/*
	 * Applies the hooks to the logits of the key tile that begins at `key`. Keys that a row does not see
	 * get weight 0.
	 */
	template <class F>
	ATTN_METHOD void bend(float (*s)[4], sight &w, int key, const struct attn_smem<tile> &,
			      const struct attn_place &, float)
	{
		const bool whole = key + F::keys <= w.keys.all_end && key >= w.keys.all_first;
		const float none = H::has_weight ? 0 : -CUDART_INF_F;

		key += threadIdx.x % 4 * 2;
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float scale = w.call->sm_scale, near = (float)(key - w.q_pos[half]);

			if (leans) {
				w.near[half] = near;
			} else if (H::has_head_slope) {
				attn_add_slope<F::keys>(s, half, scale, w.slope[half], near);
				scale = 1;
			}
			if (H::has_logit) {
				call_hook<false, F::keys>(s, w, key, half, scale);
				scale = 1;
			}
			if (H::has_logit_cap) {
				attn_cap_row<F::keys>(s, half, scale, w.cap[half]);
				scale = 1;
			}
			if (H::has_weight)
				call_hook<true, F::keys>(s, w, key, half, scale);
		}
		if (H::has_keep)
			hide<F>(s, w, key, none);
		if (whole)
			return;
#pragma unroll
		for (int half = 0; half < 2; half++) {
#pragma unroll
			for (int i = 0; i < F::keys / 4; i++) {
				uint32_t at = (uint32_t)(key + i / 2 * 8 + i % 2 - w.keys.first[half]);

				if (at >= (uint32_t)w.keys.span[half])
					s[i / 2][2 * half + i % 2] = none;
			}
		}
	}

	template <int tiles, class Between, class After>
	ATTN_METHOD void soften(float (*s)[4], float m[2], float l[2], float keep[2], float scale_log2,
				const sight &w, Between between, After after)
	{
		if (!H::has_weight) {
			attn_softmax_fused<tiles, ATTN_LATE, leans>(s, m, l, keep, scale_log2, w.own, between,
								    after, [&](int r) {
				attn_add_steps<tiles * 8>(s, r, w.slope[r]);
				return w.slope[r] * w.near[r];
			});
			return;
		}
		keep[0] = keep[1] = 1;
		between();
		after();
	}

	/* Adds the sink to a row's sum l. Returns the factor for O, and sets lse. */
	ATTN_METHOD float close(const struct attn_x &x, float m, float l, float scale, float *lse)
	{
		float sink, top, own, sum;

		if (H::has_weight)
			return 1;
		*lse = attn_lse(m, l, scale);
		if (!H::has_sink)
			return l > 0 ? 1 / l : 0;
		sink = H::sink(x);
		if (sink == -CUDART_INF_F)
			return l > 0 ? 1 / l : 0;
		top = l > 0 ? fmaxf(m * scale, sink) : sink;
		own = l > 0 ? ptx_ex2_approx_ftz((m * scale - top) * ATTN_LOG2E) : 0;
		sum = fmaf(l, own, ptx_ex2_approx_ftz((sink - top) * ATTN_LOG2E));
		*lse = attn_lse(top, sum, 1);
		return own / sum;
	}

	/* Writes the states of a slice's rows. */
	template <class F>
	ATTN_METHOD void write_states(const call &a, const tile &t, float (*o)[4], const float m[2],
				      const float l[2], int group)
	{
		const int thread = attn_thread(), lane = thread % 32;
		const int first = t.row0 + group * 64 + thread / 32 * 16 + lane / 4;

#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int row = first + half * 8;
			const int64_t at = attn_row_at(a, t, row) + attn_variant_slice(a) * a.state_rows;
			const float sum = attn_quad_sum(l[half]);
			float2 *to = (float2 *)(a.state_o + at * F::v) + lane % 4;

			if (row >= t.qo_len << a.shift)
				continue;
#pragma unroll
			for (int i = 0; i < F::v / 8; i++)
				to[i * 4] = make_float2(o[i][2 * half], o[i][2 * half + 1]);
			if (!H::has_weight && lane % 4 == 0)
				a.state_sums[at] = make_float2(m[half], sum);
		}
	}

	/* Writes the rows' results, as attn_finish(). */
	template <int dtype, class F>
	ATTN_METHOD void write_rows(const call &a, const tile &t, float (*o)[4], const float m[2],
				    const float l[2], int group)
	{
		int thread = attn_thread(), warp = thread / 32, lane = thread % 32;

#pragma unroll
		for (int half = 0; half < 2; half++) {
			int row = t.row0 + group * 64 + warp * 16 + lane / 4 + half * 8;
			struct attn_x x = attn_variant_x(a, t, row);
			bool own = row < t.qo_len << a.shift;
			float lse = 0, factor = close(x, m[half], H::has_weight ? 0 : attn_quad_sum(l[half]),
						      bends ? 1 : a.sm_scale, &lse);
			int64_t at = attn_row_at(a, t, row);
			uint4 *out = (uint4 *)a.out + at * (a.v_dim / 8);

#pragma unroll
			for (int i = 0; i < F::v / 8; i += 4) {
				uint32_t p[4];
				uint4 eight;

#pragma unroll
				for (int j = 0; j < 4; j++) {
					int c = (i + j) * 8 + lane % 4 * 2;

					p[j] = attn_pack<dtype>(
						H::output(x, o[i + j][2 * half] * factor, c),
						H::output(x, o[i + j][2 * half + 1] * factor, c + 1));
				}
				eight = attn_gather_quad(p);
				if (own)
					out[i + lane % 4] = eight;
			}
			if (a.lse && lane % 4 == 0 && own)
				a.lse[at] = lse;
		}
	}

	template <int dtype, class F>
	ATTN_METHOD void finish(const call &a, const struct attn_smem<tile> &s, int nth, float (*o)[4],
				const float m[2], const float l[2], int group)
	{
		const tile &t = s.tiles[nth % ATTN_NUM_TILES];

		if (sliced)
			write_states<F>(a, t, o, m, l, group);
		else
			write_rows<dtype, F>(a, t, o, m, l, group);
	}
};

#endif
