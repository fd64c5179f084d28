/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla_attn.cuh - attention of cluster_mla over the latent cache, and the merge of partial results
 *
 * A task is one request and 16 heads. The heads are the 16 rows of a matrix product with the latents, which
 * all heads share, so every key is read once for 16 heads. If each tile has a CTA of its own, a task has 8
 * heads: this halves the reads of q and the writes, and leaves half of the product's rows unused. `parts`
 * teams of `team` CTAs divide the keys of a task into contiguous shares of tiles of 32 keys. A tile is 32
 * bulk copies of 1152 bytes, one for each key; two tiles are in flight. There is no L2 prefetch of later
 * tiles, because a bulk prefetch takes as much of the copy engine's time as a copy: a tile takes 1.85 us with
 * prefetch, 1.23 us without.
 *
 *   logits   warp w: keys 8 (w % 4) .. + 7, quarter w / 4 of the 576 columns; 16 x 32 x 4 partial sums are
 *            added through shared memory
 *   softmax  warp w: head w, one lane for each key; m and l stay in its registers
 *   P C      warp w: columns 32 w .. + 31 of the latents for all 16 heads; o stays in its registers
 *
 * Only the CTA whose share ends with the new key handles it: the loader computes it from the LL words of the
 * first product, stores it in its tile and, for the first group of heads, in the cache. No CTA reads that
 * slot.
 *
 * States are merged in two steps: within a team through distributed shared memory (m and l are pushed to all
 * ranks before the cluster barrier, then each rank pulls a share of the columns), and across teams by the
 * CTAs that compute v of a head.
 */
#ifndef CAIRN_CLUSTER_MLA_ATTN_CUH
#define CAIRN_CLUSTER_MLA_ATTN_CUH

#include "fused/latent/cluster_mla_product.cuh"

/* A request, a group of 16 or 8 heads, and this CTA's share of the request's keys */
struct job {
	int task, part, b, group, len;	/* len: keys of the request */
	int first, end;			/* the share: tiles first .. end-1 */
};

/* Returns the first tile of `rank` of `ranks` (up to 160) CTAs that share a task; exact to 2^29 keys. */
MLA int tile_share(int len, int ranks, int rank)
{
	return (int)((uint32_t)(len + KEYS - 1) / KEYS * (uint32_t)rank / (uint32_t)ranks);
}

MLA int mla_len(const struct cairn_cluster_mla_args &a, int b)
{
	return kv_walk_len(a.kv.indptr[b + 1] - a.kv.indptr[b], a.kv.last_page_len[b], a.kv.page_size);
}

MLA struct job job_at(const struct mla_args &g, int index, int len)
{
	int rank = blockIdx.x % g.team, ranks = g.parts * g.team;
	struct job j;

	j.task = index / g.parts;
	j.part = index % g.parts;
	j.b = j.task / g.groups;
	j.group = j.task % g.groups;
	j.len = len;
	j.first = tile_share(j.len, ranks, j.part * g.team + rank);
	j.end = tile_share(j.len, ranks, j.part * g.team + rank + 1);
	return j;
}

/* Returns whether a team has any keys; if not, it stores no state, and no CTA waits for one. */
MLA int part_exists(const struct mla_args &g, int len, int part)
{
	int ranks = g.parts * g.team;

	return tile_share(len, ranks, part * g.team) < tile_share(len, ranks, (part + 1) * g.team);
}

MLA int64_t key_slot(const struct cairn_cluster_mla_args &a, int b, int key)
{
	int page = key / a.kv.page_size;

	return (int64_t)a.kv.indices[a.kv.indptr[b] + page] * a.kv.page_size + key - page * a.kv.page_size;
}

/*
 * Returns the address of this lane's key of a tile in the cache; NULL if there is none, or if it is the new
 * key.
 */
MLA const char *key_source(const struct mla_ctx &c, const struct mla_args &g, const struct job &j, int tile)
{
	int key = tile * KEYS + c.lane;

	return tile < j.end && key < j.len - 1 ?
	       (const char *)g.a.kv.k_pages + key_slot(g.a, j.b, key) * WIDTH * 2 : NULL;
}

/* Tile buffers (two, or three if wide): the nth tile's buffer, its parity, a row's address, mbarriers. */
template <int wide> MLA int tile_buf(int nth)
{
	return wide ? nth % 3 : nth & 1;
}

template <int wide> MLA int tile_parity(int nth)
{
	return wide ? nth / 3 & 1 : nth >> 1 & 1;
}

template <int wide> MLA uint32_t tile_row(int buf, int row)
{
	return wide && buf == 2 ? mla_smem() + WIDE_TILE + row * KEY_ROW :
	       mla_smem() + MLA_TILES + (buf * KEYS + row) * KEY_ROW;
}

template <int wide> MLA uint32_t tile_full(int buf)
{
	return ptx_smem(wide && buf == 2 ? &mla_small()->wide.full : &mla_small()->full[buf]);
}

template <int wide> MLA uint32_t tile_empty(int buf)
{
	return ptx_smem(wide && buf == 2 ? &mla_small()->wide.empty : &mla_small()->empty[buf]);
}

/*
 * Called by the loader: copies a tile's old keys into buffer `buf`, and stores zeros for the new key and for
 * keys past the end. The tile is complete only after the loader's own arrival. `from` is key_source().
 */
template <int wide>
MLA void load_tile(const struct mla_ctx &c, const struct job &j, int tile, int buf, const char *from)
{
	int old = min(max(j.len - 1 - tile * KEYS, 0), KEYS);
	uint32_t dst = tile_row<wide>(buf, c.lane);
	uint32_t full = tile_full<wide>(buf);

	if (!from)
#pragma unroll 4
		for (int i = 0; i < WIDTH * 2; i += 16)
			ptx_st_shared_v4(dst + i, make_uint4(0, 0, 0, 0));
	if (c.lane == 0)
		ptx_mbarrier_expect_tx(full, old * WIDTH * 2);
	__syncwarp();
	/* orders the earlier reads and writes of this buffer by threads before the copy engine's writes */
	ptx_fence_proxy_async_shared_cta();
	if (from)
		ptx_cp_async_bulk_g2s(dst, from, WIDTH * 2, full);
}

/* Returns c with lane and warp read again from %tid.x; used where keeping them in registers causes spills. */
MLA struct mla_ctx here(const struct mla_ctx &c)
{
	struct mla_ctx now = c;
	int tid;

	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
	now.lane = tid % 32;
	now.warp = tid / 32;
	return now;
}

/*
 * Called by the loader: computes the new key from the first product, and stores it in its tile at s_key and
 * in the cache. The rotated part comes first, then the latents, because there are not enough registers for
 * both.
 */
template <int dtype>
MLA void make_new_key(const struct mla_ctx &known, const struct mla_args &g,
		      const struct job &j, uint32_t s_key)
{
	const struct mla_ctx c = here(known);
	const struct cairn_cluster_mla_args &a = g.a;
	char *slot = (char *)a.kv.k_pages + (key_slot(a, j.b, j.len - 1) * WIDTH + c.lane * 4) * 2;
	const float2 *turn = mla_small()->rotation[j.b] + (c.lane * 2 & (ROPE / 2 - 1));
	const int32_t at = mla_small()->at.kv + j.b * (WIDTH / 2) + c.lane * 2;
	const int32_t from_r[1] = { at + RANK / 2 }, from[4] = { at, at + 64, at + 128, at + 192 };
	float sum = 0, scale, f[4], w[4];
	uint2 r[1], v[4];
	float2 lo, hi;

	s_key += c.lane * 8;
	mla_get_ll<1>(c, c.words, from_r, c.lane < ROPE / 4, r);
	row_unpack2<dtype>(r[0].x, f);
	row_unpack2<dtype>(r[0].y, f + 2);
	lo = mla_turn(f, turn[0]);
	hi = mla_turn(f + 2, turn[1]);
	r[0] = make_uint2(row_pack2<dtype>(lo.x, lo.y), row_pack2<dtype>(hi.x, hi.y));
	if (c.lane < ROPE / 4) {
		ptx_st_shared_v2(s_key + RANK * 2, r[0]);
		if (j.group == 0)
			*(uint2 *)(slot + RANK * 2) = r[0];
	}
	mla_get_ll<4>(c, c.words, from, 15, v);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		row_unpack2<dtype>(v[i].x, f);
		row_unpack2<dtype>(v[i].y, f + 2);
		sum = fmaf(f[3], f[3], fmaf(f[2], f[2], fmaf(f[1], f[1], fmaf(f[0], f[0], sum))));
	}
	for (int i = 16; i; i /= 2)
		sum += __shfl_xor_sync(~0u, sum, i);
	scale = 1 / sqrtf(sum / RANK + a.eps);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		/* loaded only now, because no registers are left for it while the LL words are live */
		const uint2 weight = __ldg((const uint2 *)((const char *)a.kv_norm + (i * 32 + c.lane) * 8));

		row_unpack2<dtype>(v[i].x, f);
		row_unpack2<dtype>(v[i].y, f + 2);
		row_unpack2<dtype>(weight.x, w);
		row_unpack2<dtype>(weight.y, w + 2);
		v[i].x = row_pack2<dtype>(f[0] * scale * w[0], f[1] * scale * w[1]);
		v[i].y = row_pack2<dtype>(f[2] * scale * w[2], f[3] * scale * w[3]);
		ptx_st_shared_v2(s_key + i * 256, v[i]);
		if (j.group == 0)
			*(uint2 *)(slot + i * 256) = v[i];
	}
}

/*
 * Waits for the team's last cluster barrier if the wait is outstanding (*owed). This is required before the
 * tile buffers are overwritten, because peers may still read states there, and before exit.
 */
MLA void await_team(const struct mla_args &g, int *owed)
{
	if (*owed && g.team > 1)
		ptx_barrier_cluster_wait_acquire();
	*owed = 0;
}

/* Takes part in the cluster barriers, for the warps other than workers and loader. */
MLA void join_team(const struct mla_args &g, int jobs, int first_job, int num_teams)
{
	int owed = 1;

	ptx_griddepcontrol_wait();	/* an earlier kernel may write the lengths */
#pragma unroll 1
	for (int index = first_job; index < jobs; index += num_teams) {
		if (!part_exists(g, mla_len(g.a, index / g.parts / g.groups), index % g.parts))
			continue;
		await_team(g, &owed);
		ptx_barrier_cluster_arrive_release();
		ptx_barrier_cluster_wait_acquire();
		ptx_barrier_cluster_arrive_relaxed();
		owed = 1;
	}
	await_team(g, &owed);
}

/*
 * The loader's program: fetches the tiles of all jobs. It takes part in the same cluster barriers as the
 * workers in put_state().
 */
template <int dtype, int wide>
MLA void run_loader(const struct mla_ctx &c, const struct mla_args &g, int jobs, int first_job, int num_teams)
{
	int n = 0, owed = 1;

#pragma unroll 1
	for (int index = first_job; index < jobs; index += num_teams) {
		const struct job j = job_at(g, index, mla_small()->len[index / g.parts / g.groups]);
		int last = (j.len + KEYS - 1) / KEYS - 1;
		const char *from;

		if (!part_exists(g, j.len, j.part))
			continue;
		from = key_source(c, g, j, j.first);
		await_team(g, &owed);
#pragma unroll 1
		for (int tile = j.first; tile < j.end; tile++, n++) {
			int buf = tile_buf<wide>(n);

			if (n >= 2 + wide)
				ptx_mbarrier_wait(tile_empty<wide>(buf), tile_parity<wide>(n) ^ 1);
			else if (wide && n == 2)
				ptx_mbarrier_wait(ptx_smem(&mla_small()->wide.absorbed), 0);
			load_tile<wide>(c, j, tile, buf, from);
			from = key_source(c, g, j, tile + 1);	/* looked up before the wait for its buffer */
			if (tile == last)
				make_new_key<dtype>(c, g, j, tile_row<wide>(buf, (j.len - 1) % KEYS));
			elected_arrive(tile_full<wide>(buf));
		}
		if (g.team > 1) {
			ptx_barrier_cluster_arrive_release();
			ptx_barrier_cluster_wait_acquire();
			ptx_barrier_cluster_arrive_relaxed();
		}
		owed = 1;
	}
	await_team(g, &owed);
}

/* Returns log2 of the heads of a task; a constant in a linked body, to save a register. */
template <int linked> MLA int heads_shift(const struct mla_args &g)
{
	return linked ? 4 : g.heads_shift;
}

/* Waits for ql and the rotated part of q of the group's heads, and stores them in MLA_SUMS, [16][WIDTH]. */
template <int linked>
MLA void load_q(const struct mla_ctx &c, const struct mla_args &g, const struct job &j)
{
	const int shift = heads_shift<linked>(g);
	const struct cairn_cluster_mla_args &a = g.a;
	int32_t from[5];
	uint32_t wanted = 0;
	uint2 v[5];

	/* 144 pairs of LL words for each head */
#pragma unroll
	for (int i = 0; i < 5; i++) {
		int at = i * WORKERS + threadIdx.x, head = (j.group << shift) + at / 144, pair = at % 144;
		int row = j.b * a.num_heads + head;

		from[i] = (pair < RANK / 4 ?
			   mla_small()->at.ql + row * (RANK / 2) + pair * 2 :
			   mla_small()->at.q + row * (Q_DIM / 2) + NOPE / 2 + (pair - RANK / 4) * 2);
		if (at < 144 << shift && head < a.num_heads)
			wanted |= 1u << i;
	}
	mla_get_ll<5, 0>(c, c.words, from, wanted, v);
#pragma unroll
	for (int i = 0; i < 5; i++) {
		int at = i * WORKERS + threadIdx.x;

		if (at < 144 << shift)
			ptx_st_shared_v2(mla_smem() + MLA_SUMS + at / 144 * KEY_ROW + at % 144 * 8, v[i]);
	}
}

/* Softmax state of the CTA: warp w has m and l of head w, and columns 32 w .. 32 w + 31 of all heads' o. */
struct state {
	float m, l, o[4][4];
};

#define LOGIT_ROW	40	/* floats */
#define P_ROW		80	/* bytes */
#define S_P		(MLA_SUMS + 4 * HEADS * LOGIT_ROW * 4)

/*
 * Adds a tile to the state. keys: the number of keys from the tile's first one on, which may exceed the tile.
 * Warps as above.
 */
template <int dtype>
MLA void attend_tile(const struct mla_ctx &known, struct state *st, const uint32_t (&q)[9][4],
		     uint32_t tile, int keys, float scale_log2)
{
	const struct mla_ctx c = here(known);
	int quarter = c.warp / 4;
	uint32_t at = tile + (c.warp % 4 * 8 + c.lane % 8) * KEY_ROW + quarter * 288 + c.lane / 8 * 16;
	float *s_part = (float *)(mla_mem + MLA_SUMS), s[2][4] = {}, logit, top, p, keep[2];
	uint32_t b[4], pa[4];

#pragma unroll
	for (int k = 0; k < 8; k += 2) {
		ptx_ldmatrix_x4(b, at + k * 32);
		attn_mma<dtype>(s[0], q[k], b);
		attn_mma<dtype>(s[1], q[k + 1], b + 2);
	}
	ptx_ldmatrix_x2(b, at + 8 * 32 - (c.lane >= 16 ? 32 : 0));
	attn_mma<dtype>(s[0], q[8], b);
#pragma unroll
	for (int i = 0; i < 2; i++)
		*(float2 *)(s_part + (quarter * HEADS + c.lane / 4 + 8 * i) * LOGIT_ROW + c.warp % 4 * 8 +
			    c.lane % 4 * 2) =
			make_float2(s[0][2 * i] + s[1][2 * i], s[0][2 * i + 1] + s[1][2 * i + 1]);
	work_sync();
	s_part += c.warp * LOGIT_ROW + c.lane;
	logit = s_part[0] + s_part[HEADS * LOGIT_ROW] +
		s_part[2 * HEADS * LOGIT_ROW] + s_part[3 * HEADS * LOGIT_ROW];
	if (c.lane >= keys)
		logit = -CUDART_INF_F;
	top = logit;
	for (int i = 16; i; i /= 2)
		top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
	top = fmaxf(top, st->m);
	p = ptx_ex2_approx_ftz((logit - top) * scale_log2);
	keep[0] = ptx_ex2_approx_ftz((st->m - top) * scale_log2);
	st->m = top;
	ptx_st_shared_b16(mla_smem() + S_P + c.warp * P_ROW + c.lane * 2, (uint16_t)row_pack2<dtype>(p, 0));
	st->l = st->l * keep[0] + p;
	if (c.lane == 0)
		mla_small()->keep[c.warp] = keep[0];
	work_sync();
	keep[0] = mla_small()->keep[c.lane / 4];
	keep[1] = mla_small()->keep[c.lane / 4 + 8];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		st->o[i][0] *= keep[0];
		st->o[i][1] *= keep[0];
		st->o[i][2] *= keep[1];
		st->o[i][3] *= keep[1];
	}
	tile += c.lane % 16 * KEY_ROW + c.warp * 64 + c.lane / 16 * 16;
#pragma unroll
	for (int k = 0; k < 2; k++) {
		ptx_ldmatrix_x4(pa, mla_smem() + S_P + c.lane % 16 * P_ROW + c.lane / 16 * 16 + k * 32);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			ptx_ldmatrix_x4_trans(b, tile + k * 16 * KEY_ROW + i * 32);
			attn_mma<dtype>(st->o[2 * i], pa, b);
			attn_mma<dtype>(st->o[2 * i + 1], pa, b + 2);
		}
	}
}

/*
 * Returns the index of a pair of columns of a head's o among a state's LL words. Pairs are in the order of a
 * warp's lanes, so that the lanes' stores form whole lines.
 */
MLA int o_at(int head, int column)
{
	return column / 32 * (32 * HEADS) + (column % 32 / 8 * 2 + head / 8) * 64 +
	       (head % 8 * 4 + column % 8 / 2) * 2;
}

MLA float merge_weight(float m, float top, float scale_log2)
{
	return m == -CUDART_INF_F ? 0 : ptx_ex2_approx_ftz((m - top) * scale_log2);
}

/* Merges this rank's share of the columns of all heads; all ranks' m and l are already in MLA_STATES. */
MLA void merge_team(const struct mla_ctx &c, const struct mla_args &g, int slot, float scale_log2)
{
	int rank = ptx_cluster_ctarank();
	int first = HEADS * RANK / 4 * rank / g.team, end = HEADS * RANK / 4 * (rank + 1) / g.team;
	const float *s_ml = (const float *)(mla_mem + MLA_STATES);

#pragma unroll 1
	for (int i = first + threadIdx.x; i < end; i += WORKERS) {
		int head = i / (RANK / 4);
		uint32_t at = mla_smem() + MLA_TILES + head * STATE_ROW + i % (RANK / 4) * 16;
		float top = -CUDART_INF_F, total = 0;
		float4 sum = make_float4(0, 0, 0, 0);
		uint32_t to = mla_small()->at.o + slot * HEADS * RANK + o_at(head, i % (RANK / 4) * 4);

#pragma unroll 2
		for (int k = 0; k < g.team; k++)
			top = fmaxf(top, s_ml[k * 2 * HEADS + head]);
#pragma unroll 2
		for (int k = 0; k < g.team; k++) {
			uint4 v = ptx_ld_shared_cluster_v4(ptx_mapa(at, k));
			float w = merge_weight(s_ml[k * 2 * HEADS + head], top, scale_log2);

			total += w * s_ml[k * 2 * HEADS + HEADS + head];
			sum.x += w * __uint_as_float(v.x);
			sum.y += w * __uint_as_float(v.y);
			sum.z += w * __uint_as_float(v.z);
			sum.w += w * __uint_as_float(v.w);
		}
		mla_put_ll_pair(c, to, __float_as_uint(sum.x), __float_as_uint(sum.y));
		mla_put_ll_pair(c, to + 2, __float_as_uint(sum.z), __float_as_uint(sum.w));
		if (i % (RANK / 4) == 0)
			mla_put_ll_pair(c, mla_small()->at.ml + (slot * HEADS + head) * 2,
					__float_as_uint(top), __float_as_uint(total));
	}
}

/* Stores the CTA's state: for its team, which merges at once, or, without a team, as LL words. */
template <int wide, int linked>
MLA void put_state(const struct mla_ctx &known, const struct mla_args &g, const struct state *st, int slot,
		   float scale_log2)
{
	const struct mla_ctx c = wide ? here(known) : known;
	const int column = c.warp * 32 + c.lane % 4 * 2;
	const uint32_t mine = mla_smem() + MLA_TILES + c.lane / 4 * STATE_ROW + column * 4;
	uint64_t *to_o = c.words + mla_small()->at.o + slot * HEADS * RANK + o_at(c.lane / 4, column);

#pragma unroll
	for (int i = 0; i < 4; i++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			uint32_t x = __float_as_uint(st->o[i][2 * half]),
				 y = __float_as_uint(st->o[i][2 * half + 1]);

			if (g.team > 1)
				ptx_st_shared_v2(mine + half * 8 * STATE_ROW + i * 32, make_uint2(x, y));
			else if (half * 8 < 1 << heads_shift<linked>(g))
				ptx_st_relaxed_gpu_v2_u64(to_o + o_at(half * 8, i * 8),
							  make_uint4(x, c.epoch, y, c.epoch));
		}
	}
	if (g.team == 1) {
		if (c.lane == 0 && (linked || c.warp < 1 << g.heads_shift))
			mla_put_ll_pair(c, mla_small()->at.ml + (slot * HEADS + c.warp) * 2,
					__float_as_uint(st->m), __float_as_uint(st->l));
		return;
	}
	if (c.lane < 2 * g.team) {
		uint32_t to = mla_smem() + MLA_STATES +
			      (ptx_cluster_ctarank() * 2 + (c.lane & 1)) * HEADS * 4 + c.warp * 4;

		ptx_st_shared_cluster_b32(ptx_mapa(to, c.lane / 2),
					  __float_as_uint(c.lane & 1 ? st->l : st->m));
	}
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
	merge_team(c, g, slot, scale_log2);
	/* peers have read this CTA's state; the copy engine will overwrite it with the next job's keys */
	ptx_fence_proxy_async_shared_cta();
	/* relaxed: this CTA's reads are complete, and its LL words need no release */
	ptx_barrier_cluster_arrive_relaxed();
	ptx_barrier_cluster_wait_acquire();
}

/* Runs a job: the worker's part. *tiles: the number of tiles that this CTA has waited for so far. */
template <int dtype, int wide, int linked>
MLA void attend(const struct mla_ctx &c, const struct mla_args &g, int index, int *tiles)
{
	const struct job j = job_at(g, index, mla_small()->len[index / g.parts / g.groups]);
	const float scale_log2 = g.a.sm_scale * ATTN_LOG2E;
	struct state st = { -CUDART_INF_F, 0, {} };
	const int first = *tiles - j.first;
	uint32_t q[9][4];

	if (!part_exists(g, j.len, j.part))
		return;
	load_q<linked>(c, g, j);
	work_sync();
#pragma unroll
	for (int k = 0; k < 9; k++)
		ptx_ldmatrix_x4(q[k], mla_smem() + MLA_SUMS + c.lane % 16 * KEY_ROW + c.lane / 16 * 16 +
				      c.warp / 4 * 288 + k * 32);
	work_sync();
#pragma unroll 1
	for (int tile = j.first; tile < j.end; tile++) {
		const int nth = first + tile, buf = tile_buf<wide>(nth);

		ptx_mbarrier_wait(tile_full<wide>(buf), tile_parity<wide>(nth));
		attend_tile<dtype>(c, &st, q, tile_row<wide>(buf, 0), j.len - tile * KEYS, scale_log2);
		elected_arrive(tile_empty<wide>(buf));
	}
	for (int i = 16; i; i /= 2)
		st.l += __shfl_xor_sync(~0u, st.l, i);
	/* a team's states overwrite the tiles, and the next phase reuses MLA_SUMS */
	work_sync();
	put_state<wide, linked>(c, g, &st, index, scale_log2);
	*tiles += j.end - j.first;
}

/* ---- the merge of the parts ---- */

#define SLICE		64	/* columns of a head that are merged together */
#define SLICES		(RANK / SLICE)
#define MERGE_LOADS	2	/* parts that a warp has in flight */

/*
 * Merges this CTA's share of the slices of all heads of all requests. 1, 2, 4, 8 or 16 warps share a slice,
 * so that all warps have work: each warp takes every nth part, and each lane two columns. The warps' sums are
 * added through shared memory in the order of the warps.
 */
template <int dtype, int linked> MLA void merge_parts(const struct mla_ctx &c, const struct mla_args &g)
{
	const float scale_log2 = g.a.sm_scale * ATTN_LOG2E;
	const int first = share_first(g.each[MLA_PRODUCTS], g.more[MLA_PRODUCTS]);
	const int count = share_count(g.each[MLA_PRODUCTS], g.more[MLA_PRODUCTS]);
	/* log2 of the warps that share a slice */
	const int shift = count <= 1 ? 4 : count <= 2 ? 3 : count <= 4 ? 2 : count <= 8 ? 1 : 0;
	const int nth = c.warp & ((1 << shift) - 1);
	float2 *s_sum = (float2 *)(mla_mem + MLA_SUMS), *s_ml = s_sum + WARPS * 32;

#pragma unroll 1
	for (int from_unit = 0; from_unit < count; from_unit += WARPS >> shift) {
		const int unit = first + from_unit + (c.warp >> shift), there = unit < first + count;
		const int row = there ? unit / SLICES : 0, head = row % g.a.num_heads,
			  b = row / g.a.num_heads;
		const int len = mla_small()->len[b], heads = 1 << heads_shift<linked>(g),
			  slot = (b * g.groups + head / heads) * g.parts;
		float top = -CUDART_INF_F, total = 0, sum[2] = {};

#pragma unroll 1
		for (int p = nth; p < g.parts && there && len > 0; p += MERGE_LOADS << shift) {
			const int at = (slot + p) * HEADS + head % heads;
			const uint64_t *base = c.words + mla_small()->at.ml + at * 2;
			const int to_o = (int)(mla_small()->at.o - mla_small()->at.ml) - at * 2 +
					 (slot + p) * HEADS * RANK +
					 o_at(head % heads, unit % SLICES * SLICE + c.lane * 2);
			int32_t from[2 * MERGE_LOADS];
			uint2 v[2 * MERGE_LOADS];
			uint32_t wanted = 0;

#pragma unroll
			for (int k = 0; k < MERGE_LOADS; k++) {
				from[2 * k] = (k << shift) * HEADS * 2;
				from[2 * k + 1] = to_o + (k << shift) * HEADS * RANK;
				if (p + (k << shift) < g.parts && part_exists(g, len, p + (k << shift)))
					wanted |= 3u << 2 * k;
			}
			mla_get_ll<2 * MERGE_LOADS>(c, base, from, wanted, v);
#pragma unroll
			for (int k = 0; k < MERGE_LOADS; k++) {
				float part_m = __uint_as_float(v[2 * k].x), higher, keep, w;

				if (!(wanted >> 2 * k & 1))
					continue;
				higher = fmaxf(top, part_m);
				keep = merge_weight(top, higher, scale_log2);
				w = merge_weight(part_m, higher, scale_log2);
				top = higher;
				total = total * keep + w * __uint_as_float(v[2 * k].y);
				sum[0] = sum[0] * keep + w * __uint_as_float(v[2 * k + 1].x);
				sum[1] = sum[1] * keep + w * __uint_as_float(v[2 * k + 1].y);
			}
		}
		s_sum[c.warp * 32 + c.lane] = make_float2(sum[0], sum[1]);
		if (c.lane == 0)
			s_ml[c.warp] = make_float2(top, total);
		work_sync();
		if (nth == 0 && there) {
			float2 ml = make_float2(-CUDART_INF_F, 0);
			float w;

			if (c.lane < 1 << shift)
				ml = s_ml[c.warp + c.lane];
			top = ml.x;
			for (int i = 8; i; i /= 2)
				top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
			top = __shfl_sync(~0u, top, 0);
			w = merge_weight(ml.x, top, scale_log2);
			total = w * ml.y;
			for (int i = 8; i; i /= 2)
				total += __shfl_xor_sync(~0u, total, i);
			total = __shfl_sync(~0u, total, 0);
			sum[0] = sum[1] = 0;
#pragma unroll 4
			for (int i = 0; i < 1 << shift; i++) {
				float2 v = s_sum[(c.warp + i) * 32 + c.lane];
				float mine = __shfl_sync(~0u, w, i);

				sum[0] += mine * v.x;
				sum[1] += mine * v.y;
			}
			total = len > 0 ? 1 / total : 0;
			mla_put_ll(c, mla_small()->at.c + row * (RANK / 2) +
				   unit % SLICES * (SLICE / 2) + c.lane,
				   row_pack2<dtype>(sum[0] * total, sum[1] * total));
		}
		work_sync();
	}
}

#endif
