/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_decode_few - the consumer warpgroups of mla_decode for requests of few packed rows
 *
 * The products are transposed: the 64 rows of wgmma are keys or columns of the latent, and packed rows are
 * its columns, 16 or 32 of them, so that little work is spent on rows that do not exist.
 *
 *   S^T = K Q^T    64 keys x rows             O^T += V^T P^T    512 x rows, in eight products of 64
 *
 * A warpgroup then has registers for all of O. Warpgroup 0 processes the even tiles, warpgroup 1 the odd
 * ones, each with its own softmax. Neither waits for the other until both have finished and merge their
 * states. So a tile's buffer is free again soon after its last byte has arrived.
 *
 * Keys past the end need no special treatment: the threads that copy keys write zeros in their place.
 *
 * A thread holds columns mla_few_column(0 .. rows / 4 - 1) of a product. Lane l holds rows l / 4 and
 * l / 4 + 8 (keys, or columns of the latent) of its warp's 16. P^T passes through shared memory, because
 * wgmma reads its second operand there.
 */
#ifndef CAIRN_MLA_DECODE_FEW_CUH
#define CAIRN_MLA_DECODE_FEW_CUH

#include "fused/latent/decode/mla_decode_consume.cuh"

#define MLA_FEW_ROW	(MLA_RANK + 4)		/* floats from one row of O to the next in shared memory */
#define MLA_FEW_PANELS	(MLA_RANK / 64)

template <int rows> struct mla_few {
	float m[rows / 4], l[rows / 4];	/* the maximum; the sum over the thread's own keys */
	int32_t sees[rows / 4];		/* the end of the keys that the row sees */
};

/* Returns the packed row that is column c of a thread. */
ATTN_DEV int mla_few_column(int c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }

/* Offsets in shared memory: P^T of a warpgroup; one float for each of its warps and rows, in two arrays */
template <int rows> ATTN_DEV uint32_t mla_few_p(uint32_t smem, int group)
{
	return smem + MLA_AT_P + group * rows * ATTN_PANEL;
}

template <int rows> ATTN_DEV uint32_t mla_few_word(uint32_t smem, int array, int group, int warp, int row)
{
	return smem + MLA_AT_STATE + (((array * 2 + group) * 4 + warp) * rows + row) * 4;
}

/* Computes S^T = K Q^T of tile i, whose panels come in the order of mla_group(). */
template <int dtype, int fetch, int rows> ATTN_DEV void mla_few_qk(float *s, uint32_t smem, int i)
{
	const uint64_t k = wgmma_desc(smem + MLA_AT_KEYS + (i & 1) * MLA_TILE_BYTES, 0);
	const uint64_t q = wgmma_desc(smem, 0);

	wgmma_keep<rows / 2>(s);
#pragma unroll
	for (int nth = 0; nth < MLA_GROUPS; nth++) {
		const int turn = nth < 4 ? (i & 1) * (nth < 2 ? 4 : -4) : 0;

		mla_wait_full<fetch>(smem, i, nth < 4 ? nth ^ (i & 1) * 2 : nth);
		ptx_wgmma_fence();
#pragma unroll
		for (int p = 2 * nth; p < min(2 * nth + 2, MLA_PANELS); p++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				int64_t at = (p + turn) * (MLA_PANEL_BYTES >> 4) + j * 2;

				ptx_wgmma_ss<dtype, rows>(s, k + at, q + at, p + j > 0);
			}
	}
	ptx_wgmma_commit_group();
	wgmma_keep<rows / 2>(s);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<rows / 2>(s);
}

/* Sets the logits of keys that a row does not see to -inf. */
template <int fetch, int rows>
ATTN_DEV void mla_few_mask(float (*s)[4], const struct mla_call &c, const struct mla_task &t,
			   const struct mla_few<rows> &w, const struct mla_work &x, int i)
{
	const int at = mla_thread() / 32 * 16 + threadIdx.x % 32 / 4;

	if (!(fetch >= MLA_THREADS_16 && c.slots) && (t.first + i + 1) * MLA_KEYS <= x.all_see)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const int32_t key = (t.first + i) * MLA_KEYS + at + 8 * half;
		bool listed = true;

		if (fetch >= MLA_THREADS_16 && c.slots)
			listed = ptx_ld_shared_b16(x.smem + MLA_AT_VALID +
						   ((i & 1) * MLA_KEYS + at + 8 * half) * 2);
#pragma unroll
		for (int n = 0; n < rows / 4; n++)
			if (!listed || key >= w.sees[n])
				s[n / 2][2 * half + n % 2] = -CUDART_INF_F;
	}
}

/*
 * Writes one float for each row to this warp's part of an array in shared memory. Lanes 0 to 3 of the warp
 * together hold the values of all rows.
 */
template <int rows> ATTN_DEV void mla_few_put_words(const struct mla_work &x, int array, const float *word)
{
	if (threadIdx.x % 32 < 4)
#pragma unroll
		for (int n = 0; n < rows / 4; n += 2)
			ptx_st_shared_v2(mla_few_word<rows>(x.smem, array, x.group, mla_thread() / 32,
							    mla_few_column(n)),
					 make_uint2(__float_as_uint(word[n]), __float_as_uint(word[n + 1])));
	__syncwarp();
}

/* Sets top[] to the maximum of each row over the tile's keys and its maximum so far. */
template <int rows>
ATTN_DEV void mla_few_max(float *top, float (*s)[4], const struct mla_few<rows> &w, const struct mla_work &x)
{
#pragma unroll
	for (int n = 0; n < rows / 4; n++) {
		top[n] = fmaxf(s[n / 2][n % 2], s[n / 2][2 + n % 2]);
#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			top[n] = fmaxf(top[n], __shfl_xor_sync(~0u, top[n], k));
	}
	mla_few_put_words<rows>(x, 0, top);
	ptx_bar_sync(MLA_BAR_GROUP + x.group, 128);
#pragma unroll
	for (int n = 0; n < rows / 4; n += 2) {
		top[n] = w.m[n];
		top[n + 1] = w.m[n + 1];
#pragma unroll
		for (int k = 0; k < 4; k++) {
			uint2 y = ptx_ld_shared_v2(mla_few_word<rows>(x.smem, 0, x.group, k,
								      mla_few_column(n)));

			top[n] = fmaxf(top[n], __uint_as_float(y.x));
			top[n + 1] = fmaxf(top[n + 1], __uint_as_float(y.y));
		}
	}
}

/* Turns the logits into p and the state into that after the tile; rescales O. */
template <int rows>
ATTN_DEV void mla_few_softmax(float (*o)[rows / 8][4], float (*s)[4], struct mla_few<rows> *w,
			      const struct mla_work &x)
{
	float top[rows / 4], keep[rows / 4];
	bool stays = true;

	mla_few_max<rows>(top, s, *w, x);
#pragma unroll
	for (int n = 0; n < rows / 4; n++) {
		const float base = top[n] == -CUDART_INF_F ? 0 : top[n];

		keep[n] = ptx_ex2_approx_ftz((w->m[n] - base) * x.scale_log2);
		stays = stays && keep[n] == 1;
		w->m[n] = top[n];
		w->l[n] *= keep[n];
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float *p = &s[n / 2][2 * half + n % 2];

			*p = ptx_ex2_approx_ftz((*p - base) * x.scale_log2);
			w->l[n] += *p;
		}
	}
	if (__all_sync(~0u, stays))
		return;
#pragma unroll
	for (int p = 0; p < MLA_FEW_PANELS; p++)
#pragma unroll
		for (int n = 0; n < rows / 8; n++) {
			o[p][n][0] *= keep[2 * n];
			o[p][n][1] *= keep[2 * n + 1];
			o[p][n][2] *= keep[2 * n];
			o[p][n][3] *= keep[2 * n + 1];
		}
}

/* Writes P^T as rows of 64 keys. */
template <int dtype, int rows> ATTN_DEV void mla_few_put_p(float (*s)[4], const struct mla_work &x)
{
	const int lane = threadIdx.x % 32, piece = mla_thread() / 32 * 2 + lane / 8 % 2;

#pragma unroll
	for (int n = 0; n < rows / 8; n += 2) {
		uint32_t r[4];

		attn_p_fragment<dtype>(r, s + n);
		ptx_stmatrix_x4_trans(mla_few_p<rows>(x.smem, x.group) +
				      attn_swizzle((n + lane / 16) * 8 + lane % 8, piece, ATTN_PANEL), r);
	}
	ptx_fence_proxy_async_shared_cta();
	ptx_bar_sync(MLA_BAR_GROUP + x.group, 128);
}

/* O^T += V^T P^T of tile i. */
template <int dtype, int rows>
ATTN_DEV void mla_few_pv(float (*o)[rows / 8][4], const struct mla_work &x, int i)
{
	const uint64_t v = wgmma_desc(x.smem + MLA_AT_KEYS + (i & 1) * MLA_TILE_BYTES, MLA_PANEL_BYTES);
	const uint64_t pt = wgmma_desc(mla_few_p<rows>(x.smem, x.group), 0);

	wgmma_keep<MLA_FEW_PANELS * rows / 2>(o[0][0]);
	ptx_wgmma_fence();
#pragma unroll
	for (int p = 0; p < MLA_FEW_PANELS; p++)
#pragma unroll
		for (int j = 0; j < MLA_KEYS / 16; j++)
			ptx_wgmma_ss_ta<dtype, rows>(o[p][0], v + p * (MLA_PANEL_BYTES >> 4) +
						     j * (16 * ATTN_PANEL >> 4), pt + j * 2, 1);
	ptx_wgmma_commit_group();
	wgmma_keep<MLA_FEW_PANELS * rows / 2>(o[0][0]);
	ptx_wgmma_wait_group<0>();
	wgmma_keep<MLA_FEW_PANELS * rows / 2>(o[0][0]);
}

/* Writes the warpgroup's O, maxima, and sums of each warp to shared memory, where the keys were. */
template <int rows>
ATTN_DEV void mla_few_put_state(float (*o)[rows / 8][4], const struct mla_few<rows> &w,
				const struct mla_work &x)
{
	const int column = mla_thread() / 32 * 16 + threadIdx.x % 32 / 4;
	float l[rows / 4];

#pragma unroll
	for (int n = 0; n < rows / 4; n++) {
		const int row = x.group * rows + mla_few_column(n);
		const uint32_t to = x.smem + (row * MLA_FEW_ROW + column) * 4;

		l[n] = w.l[n];
#pragma unroll
		for (int p = 0; p < MLA_FEW_PANELS; p++) {
			ptx_st_shared_f32(to + p * 256, o[p][n / 2][n % 2]);
			ptx_st_shared_f32(to + p * 256 + 32, o[p][n / 2][2 + n % 2]);
		}
#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			l[n] += __shfl_xor_sync(~0u, l[n], k);
	}
	mla_few_put_words<rows>(x, 0, w.m);
	mla_few_put_words<rows>(x, 1, l);
}

/* The merged state of a row: the factors of both warpgroups' O, and the maximum and the sum over both. */
struct mla_few_joined {
	float factor[2], m, l;
};

template <int rows> ATTN_DEV struct mla_few_joined mla_few_join(const struct mla_work &x, int row)
{
	float m[2], base;
	struct mla_few_joined j;

#pragma unroll
	for (int g = 0; g < 2; g++)
		m[g] = ptx_ld_shared_f32(mla_few_word<rows>(x.smem, 0, g, 0, row));
	j.m = fmaxf(m[0], m[1]);
	base = j.m == -CUDART_INF_F ? 0 : j.m;
	j.l = 0;
#pragma unroll
	for (int g = 0; g < 2; g++) {
		j.factor[g] = ptx_ex2_approx_ftz((m[g] - base) * x.scale_log2);
#pragma unroll
		for (int k = 0; k < 4; k++)
			j.l += j.factor[g] * ptx_ld_shared_f32(mla_few_word<rows>(x.smem, 1, g, k, row));
	}
	return j;
}

/* Merges both warpgroups' states and writes the task's results, or its state if keys are split. */
template <int dtype, int rows>
ATTN_DEV void mla_few_finish(const struct mla_call &c, const struct mla_task &t, const struct mla_work &x)
{
	for (int at = threadIdx.x; at < t.num_rows * (MLA_RANK / 4); at += 256) {
		const int row = at / (MLA_RANK / 4), four = at % (MLA_RANK / 4);
		const int64_t to = t.at + row, part = blockIdx.y * c.rows + to;
		const struct mla_few_joined j = mla_few_join<rows>(x, row);
		const float inverse = c.splits > 1 ? 1 : j.l > 0 ? 1 / j.l : 0;
		float y[4];

#pragma unroll
		for (int k = 0; k < 4; k++) {
			const uint32_t from = x.smem + (row * MLA_FEW_ROW + four * 4 + k) * 4;

			y[k] = (ptx_ld_shared_f32(from) * j.factor[0] +
				ptx_ld_shared_f32(from + rows * MLA_FEW_ROW * 4) * j.factor[1]) * inverse;
		}
		if (c.splits > 1 && four == 0)
			c.ml[part] = make_float2(j.m, j.l);
		else if (c.lse && four == 0)
			c.lse[to] = attn_lse(j.m, j.l, c.sm_scale);
		if (c.splits == 1)
			((uint2 *)c.out)[to * (MLA_RANK / 4) + four] =
				make_uint2(attn_pack<dtype>(y[0], y[1]), attn_pack<dtype>(y[2], y[3]));
		else if (t.count)
			((float4 *)c.part)[part * (MLA_RANK / 4) + four] =
				make_float4(y[0], y[1], y[2], y[3]);
	}
}

template <int dtype, int fetch, int rows>
ATTN_DEV void mla_consume_few(const struct mla_call &c, const struct mla_task &t, uint32_t smem)
{
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);	/* known to be uniform */
	const struct mla_work x = { smem, group,
				    attn_visible(attn_token(t.row0, c.magic), t.qo_len, t.kv_len, 1),
				    c.sm_scale * ATTN_LOG2E };
	float o[MLA_FEW_PANELS][rows / 8][4] = {}, s[rows / 8][4];
	struct mla_few<rows> w = {};

#pragma unroll
	for (int n = 0; n < rows / 4; n++) {
		w.m[n] = -CUDART_INF_F;
		w.sees[n] = attn_visible(attn_token(t.row0 + mla_few_column(n), c.magic), t.qo_len, t.kv_len,
					 1);
	}
	if (t.count)
		ptx_mbarrier_wait(mla_q_full(smem), 0);
	for (int i = group; i < t.count; i += 2) {
		mla_few_qk<dtype, fetch, rows>(s[0], smem, i);
		mla_few_mask<fetch, rows>(s, c, t, w, x, i);
		mla_few_softmax<rows>(o, s, &w, x);
		mla_few_put_p<dtype, rows>(s, x);
		mla_few_pv<dtype, rows>(o, x, i);
		elected_arrive(mla_free(smem, i & 1, 0));
		elected_arrive(mla_free(smem, i & 1, 1));
	}
	ptx_bar_sync(MLA_BAR_BOTH, 256);	/* no key or query is read any more */
	mla_few_put_state<rows>(o, w, x);
	ptx_bar_sync(MLA_BAR_BOTH, 256);
	mla_few_finish<dtype, rows>(c, t, x);
}

#endif
