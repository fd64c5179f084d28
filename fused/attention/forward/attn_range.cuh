/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_range - the front of attn_forward.cuh for requests with contiguous keys
 *
 * The keys that a row sees are a range: the window sets its begin and the causal mask its end.
 */
#ifndef CAIRN_ATTN_RANGE_CUH
#define CAIRN_ATTN_RANGE_CUH

#include "fused/attention/forward/attn_forward.cuh"

/* A row tile with keys, as the producer describes it to the consumers. */
struct attn_row_tile {
	int32_t qo_first, qo_len, kv_len;
	int32_t head;			/* the first of its query heads */
	int32_t row0;			/* its first packed row */
	int32_t begin, num_tiles;	/* first key; number of key tiles, -1: no row tile follows */
	int32_t request, kv_first;	/* the request, and the row of K and V of its first key */
};

/* The consumers' part of a call. Packed row r is token r >> shift, query head head + r % 2^shift. */
struct attn_call {
	void *out;
	float *lse;
	int32_t num_qo_heads, v_dim, shift, causal, window;
	float sm_scale, softcap;
};

/* The keys that the rows of a warpgroup see in the current row tile. */
struct attn_sight {
	int32_t first[2], span[2];	/* the lane's two rows: first key, number of keys */
	int32_t all_first, all_end;	/* all 64 rows see the keys all_first .. all_end - 1 */
	int32_t own;			/* bit r: the lane's row r is a row of the request */
};

ATTN_DEV struct attn_sight attn_look(const struct attn_call &a, const struct attn_row_tile &t, int group)
{
	int thread = attn_thread(), row0 = t.row0 + group * 64;
	int row = row0 + thread / 32 * 16 + thread % 32 / 4;
	struct attn_sight w;

	w.own = 0;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int token = (row + half * 8) >> a.shift;

		w.own |= (token < t.qo_len) << half;

		w.first[half] = attn_first_key(token, t.qo_len, t.kv_len, a.window);
		w.span[half] = max(0, attn_visible(token, t.qo_len, t.kv_len, a.causal) - w.first[half]);
	}
	w.all_first = attn_first_key((row0 + 63) >> a.shift, t.qo_len, t.kv_len, a.window);
	w.all_end = attn_visible(row0 >> a.shift, t.qo_len, t.kv_len, a.causal);
	return w;
}

/* Caps the logits of the key tile that begins at `key`, and sets those that a row does not see to -inf. */
template <int keys>
ATTN_DEV void attn_bend(float (*s)[4], const struct attn_sight &w, int key, float cap)
{
	attn_cap_all<keys>(s, cap);
	if (key + keys <= w.all_end && key >= w.all_first)
		return;
	key += threadIdx.x % 4 * 2;
#pragma unroll
	for (int half = 0; half < 2; half++) {
#pragma unroll
		for (int t = 0; t < keys / 8; t++) {
			if ((uint32_t)(key + t * 8 - w.first[half]) >= (uint32_t)w.span[half])
				s[t][2 * half] = -CUDART_INF_F;
			if ((uint32_t)(key + t * 8 + 1 - w.first[half]) >= (uint32_t)w.span[half])
				s[t][2 * half + 1] = -CUDART_INF_F;
		}
	}
}

/* Returns the factor that turns a stored logit into its value; a capped logit is stored as its tanh. */
ATTN_DEV float attn_logit_scale(const struct attn_call &a)
{
	return a.softcap > 0 ? a.softcap : a.sm_scale;
}

/* Returns a packed row's index among all rows and heads, which is its row of out and its element of lse. */
ATTN_DEV int64_t attn_row_at(const struct attn_call &a, const struct attn_row_tile &t, int row)
{
	int64_t token = t.qo_first + (row >> a.shift);

	return token * a.num_qo_heads + t.head + (row & ((1 << a.shift) - 1));
}

/* Writes O / l and lse of a warpgroup's rows; m is in units of 1 / scale of a logit. */
template <int dtype, class F>
ATTN_DEV void attn_finish(const struct attn_call &a, const struct attn_row_tile &t, float (*o)[4],
			  const float m[2], const float l[2], int group, float scale)
{
	int thread = attn_thread(), warp = thread / 32, lane = thread % 32, rows = t.qo_len << a.shift;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		float sum = attn_quad_sum(l[half]), inverse = sum > 0 ? 1 / sum : 0;
		int row = t.row0 + group * 64 + warp * 16 + lane / 4 + half * 8;
		int64_t at = attn_row_at(a, t, row);
		uint4 *out = (uint4 *)a.out + at * (a.v_dim / 8);

#pragma unroll
		for (int i = 0; i < F::v / 8; i += 4) {
			uint32_t x[4];
			uint4 eight;

#pragma unroll
			for (int j = 0; j < 4; j++)
				x[j] = attn_pack<dtype>(o[i + j][2 * half] * inverse,
							o[i + j][2 * half + 1] * inverse);
			eight = attn_gather_quad(x);
			if (row < rows && i + lane % 4 < a.v_dim / 8)
				out[i + lane % 4] = eight;
		}
		if (a.lse && lane % 4 == 0 && row < rows)
			a.lse[at] = attn_lse(m[half], sum, scale);
	}
}

/* The class V that attn_forward.cuh describes. */
struct attn_range {
	typedef struct attn_call call;
	typedef struct attn_row_tile tile;
	typedef struct attn_sight sight;
	static constexpr bool by_threads = false, by_tma = false, from_end = true;

	/*
	 * Sets t->begin and *end to the smallest range with all keys that the rows of a row tile see. In a
	 * cluster, t is its first row tile, and the range is that of all its row tiles. t has queries.
	 */
	template <class F> ATTN_METHOD void keys_of(const call &a, tile *t, int *end)
	{
		t->begin = attn_first_key(t->row0 >> a.shift, t->qo_len, t->kv_len, a.window);
		*end = attn_visible(min(t->qo_len - 1, (t->row0 + F::ctas * F::rows - 1) >> a.shift),
				    t->qo_len, t->kv_len, a.causal);
	}

	/* The number of CTAs that share the keys of a row tile, each of which takes a slice of them. */
	ATTN_METHOD constexpr int slices(const call &) { return 1; }

	ATTN_METHOD struct attn_scale scale(const call &a, const tile &)
	{
		return attn_scale_of(a.sm_scale, a.softcap);
	}

	ATTN_METHOD sight look(const call &a, const struct attn_smem<tile> &s, int nth, int group)
	{
		return attn_look(a, s.tiles[nth % ATTN_NUM_TILES], group);
	}

	template <class F>
	ATTN_METHOD void bend(float (*s)[4], const sight &w, int key, const struct attn_smem<tile> &,
			      const struct attn_place &, float cap)
	{
		attn_bend<F::keys>(s, w, key, cap);
	}

	template <int tiles, class Between, class After>
	ATTN_METHOD void soften(float (*s)[4], float m[2], float l[2], float keep[2], float scale_log2,
				const sight &w, Between between, After after)
	{
		attn_softmax_fused<tiles>(s, m, l, keep, scale_log2, w.own, between, after);
	}

	template <int dtype, class F>
	ATTN_METHOD void finish(const call &a, const struct attn_smem<tile> &s, int nth, float (*o)[4],
				const float m[2], const float l[2], int group)
	{
		attn_finish<dtype, F>(a, s.tiles[nth % ATTN_NUM_TILES], o, m, l, group, attn_logit_scale(a));
	}
};

#endif
