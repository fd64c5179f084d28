/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_view - the front of attn_forward.cuh for lists of keys: what rows see, and where results go
 *
 * Whether a token sees a key may depend on positions, bits and the end of the list. For key tiles outside a
 * range that all tokens of the row tile are known to see, the producer computes one bit for each token and
 * key, and writes these bits to shared memory. The consumers read them only if some token does not see some
 * key.
 */
#ifndef CAIRN_ATTN_BSR_VIEW_CUH
#define CAIRN_ATTN_BSR_VIEW_CUH

#include "fused/attention/forward/attn_forward.cuh"
#include "fused/attention/bsr/attn_bsr_dev.cuh"

#define ATTN_ALL_SEEN	0x01010101u

/* A piece of a unit, as the producer describes it to the consumers. */
struct attn_bsr_tile {
	int32_t begin, num_tiles;	/* its first key; number of its key tiles, -1: no piece follows */
	int32_t row0, rows;		/* first packed row; packed rows of the block row */
	int32_t head;			/* the first query head of the KV head */
	int32_t part, slot;		/* slot: where the piece's state goes, -1: it is a whole unit */
	int32_t by_threads;		/* whether threads, not TMA alone, write its K and V */
	int32_t all_first, all_end;	/* every token sees at least these keys of the list */
	float k_scale, v_scale;
};

/*
 * A form of attn_forward.cuh, with K and V in groups of eight keys (attn_bsr_copy.cuh). raw_stages is the
 * number of tiles in the ring for 8-bit keys; 0: keys have 16 bits. converter_regs is the number of registers
 * of a thread in the converter warpgroup; 0: the producer converts.
 */
template <int dim, int keys_, int groups_, int stages_, int q_stages_, int regs_, int producer_regs_,
	  int raw_stages_ = 0, int converter_regs_ = 0>
struct attn_bsr_form : attn_form<dim, dim, keys_, groups_, stages_, q_stages_, regs_, producer_regs_> {
	static constexpr int raw_stages = raw_stages_, raw_bytes = keys_ * dim;
	static constexpr int element_bytes = raw_stages ? 1 : 2;
	static constexpr int converter_regs = converter_regs_;
	/*
	 * Number of descriptions of pieces. While consumers compute the softmax of piece n, the results of
	 * piece n - 1 may still be being written and, if pieces have only one key tile, the producer may have
	 * begun piece n + 3. So five descriptions are in use.
	 */
	static constexpr int tiles = 5;
	static constexpr int threads = (groups_ + (converter_regs ? 2 : 1)) * 128;
	static constexpr int panel_step = 8 * ATTN_PANEL, group_step = 8 * dim * 2;
	/* attn_bsr_extra begins at a multiple of 1024 bytes, as the swizzle of TMA requires */
	static constexpr int smem_bytes = attn_form<dim, dim, keys_, groups_, stages_, q_stages_, regs_,
						    producer_regs_>::data_bytes + 1024;
};

/*
 * The token of a producer thread: its position, its line of bits or NULL, and the range of keys that
 * positions admit. It is kept in shared memory to save registers.
 */
struct attn_bsr_token {
	int64_t position;
	const uint8_t *line;
	int32_t first, end;
};

/* The contents of a tile in the ring for 8-bit keys; ATTN_RAW_END: no tile follows. */
enum attn_raw { ATTN_RAW_K, ATTN_RAW_V, ATTN_RAW_END };

/* Shared memory in addition to that of attn_forward.cuh. */
template <class F> struct attn_bsr_extra {
	/*
	 * Bit n of bits[i][t]: token t of the row tile sees key n of the key tile. all_seen[i]: ATTN_ALL_SEEN
	 * if all tokens see all keys; each warp of the producer writes one byte. Neither is written for key
	 * tiles within the range that all tokens see. A consumer reads both after it has released the stage
	 * of K, so each stage has two of each.
	 */
	uint4 bits[2 * F::stages][F::rows];
	uint32_t all_seen[2 * F::stages];
	int32_t tokens[F::tiles][F::rows];	/* of each row tile */
	int32_t positions[2][F::keys];			/* of keys, for the threads of the producer */
	struct attn_bsr_token mine[F::rows];
	int32_t runs, whole;				/* of struct attn_plan_head */
	struct attn_run begin, end;			/* of the CTA's run, unless runs are whole units */
	int32_t next;					/* the run after this one */
	/* the ring for 8-bit keys: mbarriers, enum attn_raw of its tiles, the tiles */
	uint64_t full[F::raw_stages + 1], empty[F::raw_stages + 1];
	int32_t kind[F::raw_stages + 1];
	__align__(1024) uint8_t raw[F::raw_stages ? F::raw_stages * F::raw_bytes : 16];
};

template <class F> ATTN_CONST attn_bsr_smem(void)
{
	return F::smem_bytes + (int)sizeof(struct attn_bsr_extra<F>);
}

template <class F>
ATTN_DEV struct attn_bsr_extra<F> *attn_extra(const struct attn_smem<struct attn_bsr_tile> &s)
{
	return (struct attn_bsr_extra<F> *)s.extra;
}

/* The tokens of the row tile to which a lane's two rows belong. */
struct attn_bsr_sight {
	int32_t token[2];
	int32_t own;			/* bit r: the lane's row r is a row of the block row */
	int32_t all_first, all_end;	/* of struct attn_bsr_tile */
};

/* The class V that attn_forward.cuh describes. */
template <class F> struct attn_bsr_view {
	typedef struct attn_bsr_call call;
	typedef struct attn_bsr_tile tile;
	typedef struct attn_bsr_sight sight;
	static constexpr bool by_threads = true, by_tma = !F::raw_stages, from_end = false;

	ATTN_METHOD struct attn_scale scale(const call &c, const tile &t)
	{
		return attn_scale_of(c.a.sm_scale * t.k_scale, c.a.softcap);
	}

	ATTN_METHOD sight look(const call &c, const struct attn_smem<tile> &s, int nth, int group)
	{
		const tile &t = s.tiles[nth % F::tiles];
		int thread = attn_thread(), first = attn_token(t.row0, c.d.magic);
		int last = attn_token(min(t.row0 + F::rows, t.rows) - 1, c.d.magic);
		sight w;

		w.all_first = t.all_first;
		w.all_end = t.all_end;
		w.own = 0;
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int row = t.row0 + group * 64 + thread / 32 * 16 + thread % 32 / 4 + half * 8;

			w.token[half] = min(attn_token(row, c.d.magic), last) - first;
			w.own |= (row < t.rows) << half;
		}
		return w;
	}

	template <class>
	ATTN_METHOD void bend(float (*s)[4], const sight &w, int key, const struct attn_smem<tile> &smem,
			      const struct attn_place &k, float cap)
	{
		const struct attn_bsr_extra<F> *x = attn_extra<F>(smem);
		const int i = k.stage + (int)k.phase * F::stages;

		attn_cap_all<F::keys>(s, cap);
		if ((key >= w.all_first && key + F::keys <= w.all_end) ||
		    *(const volatile uint32_t *)&x->all_seen[i] == ATTN_ALL_SEEN)
			return;
#pragma unroll
		for (int half = 0; half < 2; half++) {
			uint4 bits = ptx_ld_shared_v4(ptx_smem(&x->bits[i][w.token[half]]));
			uint32_t word[4] = { bits.x, bits.y, bits.z, bits.w };

#pragma unroll
			for (int t = 0; t < F::keys / 8; t++) {
				uint32_t two = word[t / 4] >> threadIdx.x % 4 * 2;

				if (!(two >> t % 4 * 8 & 1))
					s[t][2 * half] = -CUDART_INF_F;
				if (!(two >> t % 4 * 8 & 2))
					s[t][2 * half + 1] = -CUDART_INF_F;
			}
		}
	}

	template <int tiles, class Between, class After>
	ATTN_METHOD void soften(float (*s)[4], float m[2], float l[2], float keep[2], float scale_log2,
				const sight &w, Between between, After after)
	{
		attn_softmax_fused<tiles>(s, m, l, keep, scale_log2, w.own, between, after);
	}

	template <int dtype, class>
	ATTN_METHOD void finish(const call &c, const struct attn_smem<tile> &s, int nth, float (*o)[4],
				const float m[2], const float l[2], int group)
	{
		const tile &t = s.tiles[nth % F::tiles];
		const int32_t *tokens = attn_extra<F>(s)->tokens[nth % F::tiles];
		int thread = attn_thread(), in_tile = group * 64 + thread / 32 * 16 + thread % 32 / 4;
		float scale = c.a.softcap > 0 ? c.a.softcap : c.a.sm_scale * t.k_scale;

#pragma unroll
		for (int half = 0; half < 2; half++, in_tile += 8) {
			float sum = attn_quad_sum(l[half]), lse = attn_lse(m[half], sum, scale);
			float factor = sum > 0 ? 1 / sum * t.v_scale : 0;
			int row = t.row0 + in_tile, token = attn_token(row, c.d.magic);
			bool own = row < t.rows;
			int64_t at = 0;

			if (own) {
				at = tokens[token - attn_token(t.row0, c.d.magic)];
				at = at * c.a.num_qo_heads + t.head + row - token * c.d.group;
			}
			if (t.slot < 0 && c.a.num_parts == 1) {
				write_out<dtype>(c, at, own, o, half, factor);
				write_lse(c.a.lse, at, own, lse);
			} else if (t.slot < 0) {
				at += (int64_t)t.part * c.a.nnz_qo * c.a.num_qo_heads;
				write_state(c.w.part_o, at, own, o, half, factor);
				write_lse(c.w.part_lse, at, own, lse);
			} else {
				at = (int64_t)t.slot * F::rows + in_tile;
				write_state(c.w.piece_o, at, own, o, half, factor);
				write_lse(c.w.piece_lse, at, own, lse);
			}
		}
	}

private:
	/* Writes row `at` of out if the row belongs to the block row. A quad's lanes call it together. */
	template <int dtype>
	ATTN_METHOD void write_out(const call &c, int64_t at, bool own, float (*o)[4], int half, float factor)
	{
		uint4 *out = (uint4 *)c.a.out + at * (F::v / 8) + threadIdx.x % 4;

#pragma unroll
		for (int i = 0; i < F::v / 8; i += 4) {
			uint32_t x[4];
			uint4 eight;

#pragma unroll
			for (int j = 0; j < 4; j++)
				x[j] = attn_pack<dtype>(o[i + j][2 * half] * factor,
							o[i + j][2 * half + 1] * factor);
			eight = attn_gather_quad(x);
			if (own)
				out[i] = eight;
		}
	}

	ATTN_METHOD void write_state(float *states, int64_t at, bool own, float (*o)[4], int half,
				     float factor)
	{
		float2 *out = (float2 *)(states + at * F::v) + threadIdx.x % 4;

#pragma unroll
		for (int i = 0; own && i < F::v / 8; i++)
			out[i * 4] = make_float2(o[i][2 * half] * factor, o[i][2 * half + 1] * factor);
	}

	ATTN_METHOD void write_lse(float *lses, int64_t at, bool own, float lse)
	{
		if (lses && own && threadIdx.x % 4 == 0)
			lses[at] = lse;
	}
};

#endif
