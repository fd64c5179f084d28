// SPDX-License-Identifier: Apache-2.0
/*
 * grid - the kernel behind decode_step and cluster_attn (AUTO), and its launcher
 *
 * One CTA per SM: 8 compute warps (consumers), 8 loader warps (producers, grid_stream.cuh). Phases of a
 * layer:
 *   QKV       norm of x -> shared memory | a share of the rows of w_qkv -> qkv, in the L2
 *   ATTN      a share of the keys of a request and 1, 2 or 4 KV heads (grid_attn.cuh) -> attn
 *   OUT       attn -> shared memory | rows of w_o, + x -> x_mid
 *   GATE_UP   norm of x_mid -> shared memory | pairs of rows, silu(g) u -> act
 *   DOWN      act -> shared memory | rows of w_down, + x_mid -> x_out
 * HEAD follows the last layer. Between two phases, one vector of activations (4 to 60 KB) crosses the L2.
 * With up to GRID_LL_BATCH requests it travels as LL words that readers poll (grid_exchange.cuh), with more
 * requests behind a grid barrier. A persistent launch runs all phases. Otherwise each phase is a launch of
 * its own, which loads its first weights before griddepcontrol.wait. Both forms give the same bits. CTAs wait
 * for each other, so all must be resident at once; grid.h says which launches may run concurrently.
 *
 * Sums: the 8 warps divide k stage by stage, a warp adds its stages in four chains, and the 8 sums are added
 * in order. The bits do not depend on which CTA computes a row. There are no floating-point atomics.
 *
 * More than 8 requests: CTAs work in pairs (clusters of two, GRID_TEAM) that share rows and divide k. Each
 * CTA holds half of every request's activations and has a ring of twice the length. The sums (grid_wide.cuh)
 * and the squares of norms (pair_squares) travel between the two by st.async.
 *
 * Several ranks that share the model (comm.ranks > 1): the sums of OUT and DOWN, and logits, also cross to
 * the other ranks (grid_ranks.cuh).
 *
 * Shared memory
 *   0                float [8] of the norms; a flag: this is the last split
 *   GRID_FREE        mbarrier, above 8 requests: the place of the activations is free for keys
 *   GRID_PAIR_MBARS  pairs: an mbarrier for the other CTA's sums of squares, 4 for its sums
 *   GRID_MBARS       8 rings x 6 stages x 2 mbarriers: full (32 arrivals, a lane's cp.async each), empty (1)
 *   GRID_SHARES      this CTA's rows of each kind of product
 *   GRID_SUMS        float [1, 2 or 8][8 warps][batch][16 rows; 20 without LL words]; in attention (m, l), q
 *                    and the new key and value
 *   at_rope          float2 [batch][head_dim / 2]
 *   at_pair          from the other CTA of a pair: float [16] squares, [4][2][128] sums
 *   at_a             activations of a product; in attention O of the warps' states, or a ring of keys
 *   at_rings         [8 warps][stages] of 4 KiB; 6 stages at batch 1
 * Barriers: __syncthreads() once, after the first loads are issued; then WORK_BAR of the 256 compute threads.
 * With LL words, units of 16 rows use barriers 2 .. 9, on which all warps but the writer only arrive.
 * Registers per thread: 184 compute, 72 load (setmaxnreg; other numbers above 8 requests); no spills. Group
 * up to 8.
 * Floor: weights and keys once through memory; figures in reports/. Optimisation history: NOTES.md.
 */
#include "fused/grid/grid.h"

#include "primitives/base/launch.h"
#include "fused/grid/grid_attn.cuh"

#define THREADS		(2 * WORKERS)
#define LOADER_REGS(way)	((way) == GRID_WIDE ? 88 : 72)
/* 256 threads of each kind: 65536 registers in all */
#define WORKER_REGS(way)	(256 - LOADER_REGS(way))

template <int dtype, int head_dim, int way, int shared>
GRID void run_worker(const struct grid_args &a)
{
	struct ring r = ring_of(a, threadIdx.x / 32);
	/*
	 * with LL words: this call's phases are numbered base + 1 + phase; otherwise: grid barriers before
	 * this launch
	 */
	uint32_t base = 0;
	struct grid_lens lens = {};
	struct pair_sums pair = {};
	struct grid_call call;
	uint32_t norms = 0;
	int position = 0, have_rope = 0, rope = threadIdx.x < a.s.kv.batch * (head_dim / 2);
	float freq = rope ? __ldg(a.s.inv_freq + threadIdx.x % (head_dim / 2)) : 0;

	for (int phase = a.first_phase; phase < a.end_phase; phase++) {
		const int kind = grid_kind_of(a, phase),
			  normed = kind == GRID_QKV || kind == GRID_GATE_UP || kind == GRID_HEAD;
		const int k = grid_k(a, kind);
		struct grid_addend addend;
		struct norm_left left;

		left.rows = 0;
		if (normed)
			norm_prefetch<way>(a, phase, kind, left.weights);
		if (phase == a.first_phase) {
			ptx_griddepcontrol_wait();
			if (a.first_launch)
				ptx_griddepcontrol_launch_dependents();
			/*
			 * These loads are in flight together with those of x. Their values are used as
			 * late as possible, because latency is high while memory is busy.
			 */
			if (way == GRID_BY_LL)
				base = __ldcg(&a.calls[blockIdx.x].x);
			else
				base = __ldcg(&a.calls[blockIdx.x].y);
			if (shared)
				grid_call_begin(a, call);
			if (blockIdx.x < a.num_tasks)
				lens = grid_load_lens<way>(a, blockIdx.x);
			if (rope)
				position = __ldg(a.s.positions + threadIdx.x / (head_dim / 2));
		} else if (way != GRID_BY_LL) {
			grid_await(a, base + (uint32_t)(phase - a.first_phase));
		}
		if (kind == GRID_ATTN) {
			if (!have_rope)
				make_rope<head_dim>(a, position, freq);
			have_rope = 1;
			struct ring keys = has_key_ring<way>(a) ? key_ring_of(a, threadIdx.x / 32) : r;

			run_attention<dtype, head_dim, way>(a, keys, phase, lens, base + 1 + phase);
			if (!has_key_ring<way>(a))
				r = keys;
			continue;
		}
		if (way != GRID_WIDE)
			addend = grid_first_addend(a, phase, kind);
		if (normed && way == GRID_BY_LL)
			load_normed_ll<dtype>(a, phase, kind, left.weights, base + phase);
		else if (normed)
			load_normed<dtype, way>(a, phase, kind, left, norms++);
		else if (way == GRID_BY_LL)
			load_ll(a, grid_ll_in(a, kind), k, base + phase);
		else if (a_fits(a, a_part(way, k)))
			load_plain<way>(a, grid_activations(a, kind), k);
		/* this work hides the latency of the first weights */
		if (!have_rope && a.end_phase > phase + 1) {
			make_rope<head_dim>(a, position, freq);
			have_rope = 1;
		}
		if constexpr (way == GRID_WIDE)
			run_wide<dtype>(a, r, phase, kind, left, pair);
		else
			run_product<dtype, way, shared>(a, r, phase, kind, addend, left, base + 1 + phase,
							call);
		/* all compute warps have read the number of the call, and synchronised since */
		if (shared && phase == a.first_phase && threadIdx.x == 0)
			call.entered = comm_enter(a.comm);
		/* all compute warps have synchronised since the product, so they have finished it */
		if (has_key_ring<way>(a) && kind == GRID_QKV && threadIdx.x == 0)
			ptx_mbarrier_arrive(ptx_smem(grid_mem) + GRID_FREE);
	}
	if (shared)
		grid_gather_logits(a, call);
	if (shared && threadIdx.x == 0)
		comm_leave(a.comm, call.number, call.entered);
	/*
	 * Each CTA has its own counter: with a shared one, every CTA would wait for the reply before it
	 * exits, which would delay the next kernel's CTA on its SM.
	 */
	if (way == GRID_BY_LL && a.end_phase == a.call_end && threadIdx.x == 0)
		a.calls[blockIdx.x].x = base + (uint32_t)a.call_end;
	if (way != GRID_BY_LL && threadIdx.x == 0)
		a.calls[blockIdx.x].y = base + (uint32_t)(a.end_phase - a.first_phase - 1);
}

template <int dtype, int head_dim, int way, int shared>
static __global__ __launch_bounds__(THREADS, 1) void grid_kernel(const __grid_constant__ struct grid_args a)
{
	struct loader l;

	if (threadIdx.x >= WORKERS) {
		loader_start<head_dim, way>(a, l);
	} else {
		share_out<way>(a);
		if (!a.first_launch)
			ptx_griddepcontrol_launch_dependents();
	}
	if (way == GRID_WIDE) {
		ptx_barrier_cluster_arrive_release();
		ptx_barrier_cluster_wait_acquire();
	} else {
		__syncthreads();
	}
	if (threadIdx.x >= WORKERS) {
		ptx_setmaxnreg_dec<LOADER_REGS(way)>();
		run_loader<head_dim, way>(a, l);
	} else {
		ptx_setmaxnreg_inc<WORKER_REGS(way)>();
		run_worker<dtype, head_dim, way, shared>(a);
	}
}

#define SMEM_MAX	(227 * 1024)

static int grid_way(const struct grid_args *a)
{
	return a->by_ll ? GRID_BY_LL : a->s.kv.batch > 8 ? GRID_WIDE : GRID_BY_BARRIER;
}

/* Lays out shared memory; returns its size in bytes. */
static size_t layout(struct grid_args *a)
{
	int sums = a->sum_bufs * GRID_WARPS * a->s.kv.batch * SUM_ROW(grid_way(a)) * 4;
	int states = grid_heads_at(*a) + a->task_heads * (a->group + 2) * GRID_HEAD_ROW(a->s.head_dim);
	int outputs = GRID_WARPS * a->group * (a->s.head_dim + 4) * 4;

	a->at_ml = GRID_SUMS;		/* shares the place of the sums */
	a->at_o = (GRID_SUMS + states + 127) / 128 * 128;
	if (a->key_stages && a->at_o + outputs > GRID_SUMS + sums)
		sums = a->at_o + outputs - GRID_SUMS;
	a->at_rope = GRID_SUMS + (sums > states ? sums : states);
	a->at_pair = a->at_rope + a->s.kv.batch * a->s.head_dim * 4;
	a->at_a = (a->at_pair + (grid_way(a) == GRID_WIDE ?
				64 + GRID_TALL(GRID_WIDE) * GRID_PAIR_BUFS * WORKERS / 2 * 4 : 0) +
		   1023) / 1024 * 1024;
	if (!a->key_stages)
		a->at_o = a->at_a;
	a->at_rings = (a->at_a + a->a_bytes + 1023) / 1024 * 1024;	/* ldmatrix addresses step by xor */
	return (size_t)a->at_rings + GRID_WARPS * a->stages * GRID_STAGE_BYTES;
}

/* Returns the bytes of a CTA's part of a row in shared memory. */
static int part_bytes(const struct grid_args *a, int k)
{
	return (int)a_stride(a_part(grid_way(a), k));
}

static int padded_bytes(int k)
{
	return (k + STAGE_K - 1) / STAGE_K * (STAGE_K * 2) + 64;	/* as in a_stride() */
}

/*
 * Chooses the largest number of stages that fits. Activations that a norm produces must be in shared memory.
 * The others are there too if that leaves two thirds of the ring; otherwise they are read from the L2 when
 * needed.
 */
static int plan_smem(struct grid_args *a)
{
	const int batch = a->s.kv.batch, normed = batch * part_bytes(a, a->s.hidden);
	const int q = batch * part_bytes(a, a->q_dim), act = batch * part_bytes(a, a->s.intermediate),
		  merge = GRID_WARPS * a->group * (a->s.head_dim + 4) * 4;
	const int all = normed > q ? normed > act ? normed : act : q > act ? q : act;

	a->key_stages = 0;
	for (int least = 4; least; least -= 3) {
		int bytes = least == 4 ? all : normed;

		a->a_bytes = bytes > merge ? bytes : merge;
		for (a->stages = GRID_MAX_STAGES; a->stages >= least; a->stages--) {
			a->sum_bufs = a->by_ll ? GRID_WARPS :
				      grid_way(a) == GRID_WIDE ? GRID_TALL(GRID_WIDE) :
				      a->stages > 2 ? 2 : 1;
			if (layout(a) <= SMEM_MAX)
				goto fits;
		}
	}
	return cairn_error(EOPNOTSUPP, "batch, hidden: %d * %d do not fit into shared memory",
			   a->s.kv.batch, a->s.hidden);

fits:
	if (a->s.kv.batch > 8 && a->stages < 4) {
		a->key_stages = a->a_bytes / (GRID_WARPS * GRID_STAGE_BYTES);
		if (a->key_stages > GRID_MAX_STAGES - a->stages)
			a->key_stages = GRID_MAX_STAGES - a->stages;
		if (a->key_stages <= a->stages || layout(a) > SMEM_MAX)
			a->key_stages = 0;
		layout(a);
	}
	return 0;
}

/*
 * Returns the number of heads in a task: the largest of 4, 2 and 1 for which tasks take no more time than
 * tasks of one head do.
 */
static int heads_of_tasks(int pairs, int num_kv_heads, int num_ctas)
{
	int rounds = (pairs + num_ctas - 1) / num_ctas;

	for (int heads = 4; heads > 1; heads /= 2)
		if (num_kv_heads % heads == 0 && pairs >= num_ctas &&
		    (pairs / heads + num_ctas - 1) / num_ctas * heads <= rounds)
			return heads;
	return 1;
}

int grid_plan(struct grid_args *a, char *ws, size_t *bytes)
{
	int num_sms = cairn_sms_of(a->s.sms), pairs = a->s.kv.batch * a->s.num_kv_heads;
	size_t at = 0, batch = a->s.kv.batch;

	if (num_sms < 0)
		return num_sms;
	if (a->s.kv.batch > 8 && num_sms < 2)
		return cairn_error(EOPNOTSUPP, "sms: batch %d needs at least 2, because CTAs work in pairs",
				   a->s.kv.batch);
	a->per_hidden = 1 / (float)a->s.hidden;
	a->group = a->s.num_qo_heads / a->s.num_kv_heads;
	a->q_dim = a->s.num_qo_heads * a->s.head_dim;
	a->qkv_dim = a->q_dim + 2 * a->s.num_kv_heads * a->s.head_dim;
	/* at most one split for each lane */
	a->num_splits = num_sms / pairs < 1 ? 1 : num_sms / pairs < 32 ? num_sms / pairs : 32;
	a->task_heads = a->s.kv.batch > 8 ? heads_of_tasks(pairs, a->s.num_kv_heads, num_sms) : 1;
	a->head_warps = GRID_WARPS / a->task_heads;
	a->request_tasks = a->s.num_kv_heads / a->task_heads;
	a->num_tasks = pairs / a->task_heads * a->num_splits;
	/*
	 * LL words require that a CTA has at most one task, and that registers or shared memory hold
	 * everything received
	 */
	a->by_ll = a->s.kv.batch <= GRID_LL_BATCH && a->num_tasks <= num_sms &&
		      a->s.kv.batch * a->s.hidden <= GRID_LL_HIDDEN;
	CAIRN_TRY(plan_smem(a));
	if (a->by_ll && !(a_fits(*a, a->q_dim) && a_fits(*a, a->s.intermediate))) {
		a->by_ll = 0;
		CAIRN_TRY(plan_smem(a));
	}
#define PART(field, size) do { *(void **)&a->field = ws + at; at += ((size) + 255) / 256 * 256; } while (0)
	PART(arrived, 256);
	PART(calls, (size_t)num_sms * sizeof(*a->calls));
	/* sizes do not depend on batch, so that LL words keep their places */
	for (int kind = 0; kind < GRID_HEAD; kind++)
		PART(ll[kind], (size_t)GRID_LL_BATCH * 4 *
		     (kind == GRID_QKV ? a->qkv_dim : kind == GRID_ATTN ? a->q_dim :
		      kind == GRID_GATE_UP ? a->s.intermediate : a->s.hidden));
	PART(part_ll, (size_t)num_sms * a->group * (a->s.head_dim + 2) * 8);
	/* sized for any batch, because they are zeroed once */
	PART(tickets, (size_t)GRID_MAX_BATCH * a->s.num_kv_heads * 4);
	PART(part_o, (size_t)a->num_tasks * a->group * a->s.head_dim * 4);
	PART(part_ml, (size_t)a->num_tasks * a->group * 8);
	PART(qkv, batch * a->qkv_dim * 2);
	PART(attn, batch * padded_bytes(a->q_dim));
	PART(act, batch * padded_bytes(a->s.intermediate));
	PART(x_mid, batch * a->s.hidden * 2);
	PART(x_out, batch * a->s.hidden * 2);
#undef PART
	*bytes = at;
	return 0;
}

/*
 * Returns the number of CTAs that every launch with grid barriers has if it shares this workspace: as many as
 * fit, in pairs, into the call's SMs.
 */
static int num_barrier_ctas(const struct grid_args *a)
{
	struct cairn_launch l = {};
	int pairs, sms = cairn_sms_of(a->s.sms);

	if (sms < 2)
		return sms;
	l.grid[0] = 2;
	l.block[0] = THREADS;
	l.smem = SMEM_MAX;
	l.cluster = 2;
	/* all instances have the same occupancy */
	pairs = cairn_max_active_clusters((const void *)grid_kernel<CAIRN_BF16, 128, GRID_WIDE, 0>, &l);
	if (pairs > sms / 2)
		pairs = sms / 2;
	return pairs > 0 ? 2 * pairs : pairs < 0 ? pairs :
		cairn_error(EOPNOTSUPP, "this device grants no cluster of 2 with %d bytes of shared memory",
			    SMEM_MAX);
}

static const void *pick_kernel(const struct grid_args *a)
{
#define PICK(way, shared) (a->s.head_dim == 128 ? \
	a->s.dtype == CAIRN_F16 ? (const void *)grid_kernel<CAIRN_F16, 128, way, shared> : \
				  (const void *)grid_kernel<CAIRN_BF16, 128, way, shared> : \
	a->s.dtype == CAIRN_F16 ? (const void *)grid_kernel<CAIRN_F16, 64, way, shared> : \
				  (const void *)grid_kernel<CAIRN_BF16, 64, way, shared>)
	switch (grid_way(a)) {
	case GRID_BY_LL:
		return a->comm.ranks > 1 ? PICK(GRID_BY_LL, 1) : PICK(GRID_BY_LL, 0);
	case GRID_BY_BARRIER:
		return PICK(GRID_BY_BARRIER, 0);
	default:
		return PICK(GRID_WIDE, 0);
	}
#undef PICK
}

int grid_launch(struct grid_args *a, int32_t first, int32_t end, int persistent, void *stream)
{
	struct cairn_launch l = {};
	void *params[] = { a };
	int num_ctas = a->by_ll ? cairn_sms_of(a->s.sms) : num_barrier_ctas(a);

	if (num_ctas < 0)
		return num_ctas;
	l.grid[0] = (unsigned int)num_ctas;
	l.block[0] = THREADS;
	/* loaders wait only for the first phase of GRID_FREE, so a ring for keys can serve only one layer */
	if (end - first > GRID_KINDS)
		a->key_stages = 0;
	l.smem = layout(a);
	/* with sms set, a dependent launch would start on other calls' SMs while the preceding kernel runs */
	l.pdl = !a->s.sms;
	l.cluster = grid_way(a) == GRID_WIDE ? 2 : 0;
	l.stream = stream;
	CAIRN_TRY(cairn_check_resident(pick_kernel(a), &l, "grid"));
	a->call_first = first;
	a->call_end = end;
	for (int32_t p = first; p < end; p = a->end_phase) {
		a->first_phase = p;
		a->end_phase = persistent ? end : p + 1;
		a->first_launch = p == first;
		CAIRN_TRY(cairn_launch(pick_kernel(a), &l, params));
	}
	return 0;
}
