// SPDX-License-Identifier: Apache-2.0
/*
 * grid - the kernel behind decode_step and cluster_attn (AUTO), and how it is launched
 *
 * One CTA an SM, 8 warps that compute and 8 that load for them (grid_stream.cuh). A layer is five phases:
 *
 *   QKV       norm of x -> shared memory | a share of the rows of w_qkv -> qkv, in the L2
 *   ATTN      a share of the keys of a request and KV head, or 2 or 4 heads (grid_attn.cuh) -> attn
 *   OUT       attn -> shared memory | rows of w_o, + x -> x_mid
 *   GATE_UP   norm of x_mid -> shared memory | pairs of rows, silu(g) u -> act
 *   DOWN      act -> shared memory | rows of w_down, + x_mid -> x_out
 *
 * and HEAD comes last. What crosses between two phases is one vector of activations, 4 to 60 KB, through
 * the L2: up to GRID_WORDS_BATCH requests as words that readers poll (grid_exchange.cuh), and nobody meets;
 * else all CTAs meet at a counter. A persistent launch runs all phases; else each phase is a launch of its
 * own, which asks for its first weights before it waits for its predecessor, and does just the same, so
 * that both forms give the same bits.
 *
 * All CTAs of a launch must be on the device at once, as they wait for each other: two such launches must
 * not run side by side.
 *
 * What is summed where: k is shared out to the 8 warps stage by stage, a warp adds up its stages in four
 * chains, and the 8 sums are added in order; which CTA has a row does not matter. No floating-point
 * atomics.
 *
 * More than 8 requests: CTAs work in pairs, clusters of two, which share rows and divide k (GRID_TEAM). Each
 * holds half of every request's activations, which would else fill shared memory, and has room for a ring of
 * twice the length; sums cross by st.async (grid_wide.cuh), and those of squares (pair_squares).
 *
 * Shared memory
 *   0              float [8] of the norms, a word: is this the last split
 *   GRID_FREE      an mbarrier: of more than 8 requests, the activations' place is free for keys
 *   GRID_PAIR_MBARS  of a pair: an mbarrier for the other's sums of squares, 4 for its sums
 *   GRID_MBARS     8 rings x 6 stages x 2 mbarriers: full (32 arrivals: a lane's cp.async each), empty (1)
 *   GRID_SHARES    this CTA's rows of each kind of product
 *   GRID_SUMS      float [1, 2 or 8][8 warps][batch][16 rows, by meetings 20]; in attention (m, l) of
 *                  states, q and the new key and value
 *   at_rope        float2 [batch][head_dim / 2]
 *   at_pair        what comes from the other of a pair: float [16] squares, [4][2][128] sums
 *   at_a           activations of a product; in attention O of the warps' states, or a ring of keys
 *   at_rings       [8 warps][stages] of 4 KiB; 6 stages at batch 1
 * Barriers: __syncthreads() once, when the loaders' first loads are on their way; then WORK_BAR among the
 * 256 threads that compute; by words, for units of 16 rows, barriers 2 .. 9, where all but the writer of
 * the unit's results just arrive.
 * Registers: 184 compute, 72 load (setmaxnreg; more requests: other shares), no spills. Group (query heads
 * of a KV head) up to 8.
 *
 * Floor: weights and keys once through memory. What is reached: reports/; at batch 1, KV 1K on an H200
 * decode_step 95% of the read stream for 7B and 8B shapes, 83% for 1B. Where the rest goes,
 * Llama-3-8B, of 103 us a layer (98 at the stream): from the last q to the first product with attention's
 * result, 8.5 us pass, of which a full ring covers 5.6 us; in all loaders find their rings full for an
 * eighth of the time (1B: a sixth). Each exchange takes 0.4 us from when the slowest CTA is done; but SMs
 * are not equal: 24 of 132 stream a fifth faster than the others and wait for them.
 *
 * What brought it there, in order of worth (Llama-3-8B, us a token): 3890 by meetings; 3690 by words; 3580
 * with no more than GRID_ON_WAY + 1 stages of a warp on their way: a load that somebody waits for stands in
 * no queue of 192 KB an SM, which takes 5 us to be served; 3550 with the slots of the first keys known
 * ahead, instead of two dependent loads in each layer with which the loaders stop. The module cluster_attn:
 * 29.3, 27.0, 25.3 us; 24.6 without a counter of CTAs that leave, whose answer each waited for. Batch 16
 * (Llama-2-7B's module at 1K keys, by a driver): 122.0; 116.5 with lengths and pages of the next task known
 * ahead and activations asked for all at once; 113.1 with pages not looked at before they are needed and
 * eight rows of a norm in registers at a time; 112.5 with their squares by mma, and with stages scaled just
 * before the first unit multiplies them. Then activations in an order whose reading meets all banks at once
 * (two lanes of four met the same): 113.3 to 112.9, batch 1 37.9 to 37.3, Llama-3.2-1B's token 399 to 393;
 * and pairs: 111.8. There the products were the limit, no longer memory: a stage of 16 rows and 16 requests
 * took a warp 1 us, ring full or not, which is just the stream's pace, so that nothing was caught up that was
 * lost before x came (9 us from the launch to the first unit's end). Shared memory was why: weights are
 * written and read there, and as many bytes of activations read. With units of 32 rows half of the latter:
 * 108.0 instead of 111.2 at 1K keys, 287.5 instead of 291.0 at 4K. Last, a task of four heads, two warps
 * each: the keys of neighbouring heads lie side by side, and are now asked for at the same time. At 4K, held
 * against the chain of separate kernels: 1.016 of its time with one head a task, 1.000 with two, 0.994.
 *
 * Tried and lost
 *   16 warps that load for themselves: 104 bytes of spills. 8 of them with 255 registers: 3824 us for
 *     Llama-2-7B, as the cursor's arithmetic is then in the way of every product; loaders of their own: 3514.
 *   Requests as the 16 rows of the mma, weights as its columns: twice the mma, and registers moved about: 2%.
 *   Rows shared out by the measured speed of the SMs: the fast ones no longer wait, yet the slowest finish
 *     no earlier, and odd ends of 16 rows cost what was won (1B: 788 us -> 825).
 *   The L2 asked for weights beyond the ring (cp.async.bulk.prefetch.L2), always when the ring is full:
 *     3478 us -> 3624 (3 stages a warp), 3925 (24); only while the CTA waits for an exchange: 3515 (4),
 *     3654 (12).
 *   A merge of the splits whose weights come through shared memory: 2.4 us instead of 1.2.
 *   By words: polling all words of a vector, or one, or one of each item first: within 0.5%. Barriers that
 *     only the writer waits at, without words: nothing. q read by each warp for itself: 1 us slower.
 *   One stage on its way: 3960 us for Llama-3-8B; three, 3670; as many as there are, 3700; two, 3580.
 *   Batch 16 (us of Llama-2-7B's module at 1K, 4K keys): the heads' keys shared out evenly, where whole
 *     tasks leave 16 SMs idle in the last of four rounds: 118.9, 303.8 instead of 116.5, 295.3, as the
 *     heads of a token, which lie side by side in memory, are no longer read at the same time; just the
 *     last round: 119.3, 299.4. Rows by bulk copies instead of cp.async: the same, batch 8 2% slower.
 *     Tasks beyond the second claimed from a counter by whoever is fast: 111.2, 290.5 instead of 111.6,
 *     290.3; of half, a third or a quarter of the keys: 118, 124, 132. q of the next task asked for a task
 *     ahead, and two barriers fewer: 113.7, 294.7 instead of 113.1, 293.9. Three or four stages of keys on
 *     their way: 113.4, 293.5 instead of 113.0, 293.8. 128 CTAs, for which the tasks of one head come out
 *     even: the same as 132, so that the idle ones of the last round cost nothing. One or two warps that
 *     add up all sums of a unit while the others go on: 113.6 instead of 112.8, batch 8 75.2 instead of
 *     73.5. A pair's activations in registers: 400 bytes of spills.
 */
#include "fused/grid/grid.h"

#include "primitives/base/launch.h"
#include "fused/grid/grid_attn.cuh"

#define THREADS		(2 * WORKERS)
#define LOADER_REGS(way)	((way) == GRID_WIDE ? 88 : 72)
#define WORKER_REGS(way)	(256 - LOADER_REGS(way))	/* 256 threads each: 65536 in all */

template <int dtype, int head_dim, int way>
GRID void run_worker(const struct grid_args &a)
{
	struct ring r = ring_of(a, threadIdx.x / 32);
	/* by words: phases of this call have base + 1 + phase; else: meetings before this launch */
	uint32_t base = 0;
	struct grid_lens lens = {};
	struct pair_sums pair = {};
	uint32_t norms = 0;
	int position = 0, have_rope = 0, rope = threadIdx.x < a.s.batch * (head_dim / 2);
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
			 * asked for together with x, looked at when they are needed: memory is busy,
			 * and answers late
			 */
			if (way == GRID_BY_WORDS)
				base = __ldcg(&a.calls[blockIdx.x].x);
			else
				base = __ldcg(&a.calls[blockIdx.x].y);
			if (blockIdx.x < a.num_tasks)
				lens = grid_load_lens<way>(a, blockIdx.x);
			if (rope)
				position = __ldg(a.s.positions + threadIdx.x / (head_dim / 2));
		} else if (way != GRID_BY_WORDS) {
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
		if (normed && way == GRID_BY_WORDS)
			load_normed_words<dtype>(a, phase, kind, left.weights, base + phase);
		else if (normed)
			load_normed<dtype, way>(a, phase, kind, left, norms++);
		else if (way == GRID_BY_WORDS)
			load_words(a, grid_words_in(a, kind), k, base + phase);
		else if (a_fits(a, a_part(way, k)))
			load_plain<way>(a, grid_activations(a, kind), k);
		/* memory has some way to go before it waits for us */
		if (!have_rope && a.end_phase > phase + 1) {
			make_rope<head_dim>(a, position, freq);
			have_rope = 1;
		}
		if constexpr (way == GRID_WIDE)
			run_wide<dtype>(a, r, phase, kind, left, pair);
		else
			run_product<dtype, way>(a, r, phase, kind, addend, left, base + 1 + phase);
		/* all have multiplied: they met since */
		if (has_key_ring<way>(a) && kind == GRID_QKV && threadIdx.x == 0)
			ptx_mbarrier_arrive(ptx_smem(grid_mem) + GRID_FREE);
	}
	/*
	 * no counter that all CTAs would share: who leaves would have to wait for it,
	 * and with him the next kernel's CTA
	 */
	if (way == GRID_BY_WORDS && a.end_phase == a.call_end && threadIdx.x == 0)
		a.calls[blockIdx.x].x = base + (uint32_t)a.call_end;
	if (way != GRID_BY_WORDS && threadIdx.x == 0)
		a.calls[blockIdx.x].y = base + (uint32_t)(a.end_phase - a.first_phase - 1);
}

template <int dtype, int head_dim, int way>
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
		run_worker<dtype, head_dim, way>(a);
	}
}

#define SMEM_MAX	(227 * 1024)

static int grid_way(const struct grid_args *a)
{
	return a->by_words ? GRID_BY_WORDS : a->s.batch > 8 ? GRID_WIDE : GRID_BY_MEETING;
}

/* Lays shared memory out; returns its bytes. */
static size_t layout(struct grid_args *a)
{
	int sums = a->sum_bufs * GRID_WARPS * a->s.batch * SUM_ROW(grid_way(a)) * 4;
	int states = grid_heads_at(*a) + a->task_heads * (a->group + 2) * GRID_HEAD_ROW(a->s.head_dim);
	int outputs = GRID_WARPS * a->group * (a->s.head_dim + 4) * 4;

	a->at_ml = GRID_SUMS;		/* not needed at the same time */
	a->at_o = (GRID_SUMS + states + 127) / 128 * 128;
	if (a->key_stages && a->at_o + outputs > GRID_SUMS + sums)
		sums = a->at_o + outputs - GRID_SUMS;
	a->at_rope = GRID_SUMS + (sums > states ? sums : states);
	a->at_pair = a->at_rope + a->s.batch * a->s.head_dim * 4;
	a->at_a = (a->at_pair + (grid_way(a) == GRID_WIDE ?
				64 + GRID_TALL(GRID_WIDE) * GRID_PAIR_BUFS * WORKERS / 2 * 4 : 0) +
		   1023) / 1024 * 1024;
	if (!a->key_stages)
		a->at_o = a->at_a;
	a->at_rings = (a->at_a + a->a_bytes + 1023) / 1024 * 1024;	/* ldmatrix addresses step by xor */
	return (size_t)a->at_rings + GRID_WARPS * a->stages * GRID_STAGE_BYTES;
}

/* Of a CTA's part of a row, in shared memory */
static int part_bytes(const struct grid_args *a, int k)
{
	return (int)a_stride(a_part(grid_way(a), k));
}

static int padded_bytes(int k)
{
	return (k + STAGE_K - 1) / STAGE_K * (STAGE_K * 2) + 64;	/* as a_stride() */
}

/*
 * As many stages as there is room for. Activations that come out of a norm must be in shared memory; the
 * others are if that leaves two thirds of the ring, else they come from the L2 as they are needed.
 */
static int plan_smem(struct grid_args *a)
{
	const int normed = a->s.batch * part_bytes(a, a->s.hidden), q = a->s.batch * part_bytes(a, a->q_dim);
	const int act = a->s.batch * part_bytes(a, a->s.intermediate),
		  merge = GRID_WARPS * a->group * (a->s.head_dim + 4) * 4;
	const int all = normed > q ? normed > act ? normed : act : q > act ? q : act;

	a->key_stages = 0;
	for (int least = 4; least; least -= 3) {
		int bytes = least == 4 ? all : normed;

		a->a_bytes = bytes > merge ? bytes : merge;
		for (a->stages = GRID_MAX_STAGES; a->stages >= least; a->stages--) {
			a->sum_bufs = a->by_words ? GRID_WARPS :
				      grid_way(a) == GRID_WIDE ? GRID_TALL(GRID_WIDE) :
				      a->stages > 2 ? 2 : 1;
			if (layout(a) <= SMEM_MAX)
				goto fits;
		}
	}
	return cairn_error(EOPNOTSUPP, "batch * hidden: %d * %d, beyond shared memory",
			   a->s.batch, a->s.hidden);

fits:
	if (a->s.batch > 8 && a->stages < 4) {
		a->key_stages = a->a_bytes / (GRID_WARPS * GRID_STAGE_BYTES);
		if (a->key_stages > GRID_MAX_STAGES - a->stages)
			a->key_stages = GRID_MAX_STAGES - a->stages;
		if (a->key_stages <= a->stages || layout(a) > SMEM_MAX)
			a->key_stages = 0;
		layout(a);
	}
	return 0;
}

/* Heads of a task, of more than one where CTAs are left idle in the last round no longer than with one */
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
	int num_sms = cairn_num_sms(), pairs = a->s.batch * a->s.num_kv_heads;
	size_t at = 0, batch = a->s.batch;

	if (num_sms < 0)
		return num_sms;
	a->per_hidden = 1 / (float)a->s.hidden;
	a->group = a->s.num_qo_heads / a->s.num_kv_heads;
	a->q_dim = a->s.num_qo_heads * a->s.head_dim;
	a->qkv_dim = a->q_dim + 2 * a->s.num_kv_heads * a->s.head_dim;
	/* a lane each */
	a->num_splits = num_sms / pairs < 1 ? 1 : num_sms / pairs < 32 ? num_sms / pairs : 32;
	a->task_heads = a->s.batch > 8 ? heads_of_tasks(pairs, a->s.num_kv_heads, num_sms) : 1;
	a->head_warps = GRID_WARPS / a->task_heads;
	a->request_tasks = a->s.num_kv_heads / a->task_heads;
	a->num_tasks = pairs / a->task_heads * a->num_splits;
	/*
	 * a CTA has one task at most; and whatever comes as words has its place in registers or shared memory
	 */
	a->by_words = a->s.batch <= GRID_WORDS_BATCH && a->num_tasks <= num_sms &&
		      a->s.batch * a->s.hidden <= GRID_WORDS_HIDDEN;
	CAIRN_TRY(plan_smem(a));
	if (a->by_words && !(a_fits(*a, a->q_dim) && a_fits(*a, a->s.intermediate))) {
		a->by_words = 0;
		CAIRN_TRY(plan_smem(a));
	}
#define PART(field, size) do { *(void **)&a->field = ws + at; at += ((size) + 255) / 256 * 256; } while (0)
	PART(meetings, 256);
	PART(calls, (size_t)num_sms * sizeof(*a->calls));
	/* the same whatever the batch: words are never laid over by something else */
	for (int kind = 0; kind < GRID_HEAD; kind++)
		PART(words[kind], (size_t)GRID_WORDS_BATCH * 4 *
		     (kind == GRID_QKV ? a->qkv_dim : kind == GRID_ATTN ? a->q_dim :
		      kind == GRID_GATE_UP ? a->s.intermediate : a->s.hidden));
	PART(part_words, (size_t)num_sms * a->group * (a->s.head_dim + 2) * 8);
	/* whatever the batch: they are zeroed once */
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
 * By meetings, of all launches that share a workspace: as many as fit in pairs. Asked for once: it is the
 * same for all devices of a kind.
 */
static int num_meeting_ctas(const void *wide)
{
	static int num_ctas;
	struct cairn_launch l = {};
	int pairs;

	if (num_ctas)
		return num_ctas;
	l.grid[0] = 2;
	l.block[0] = THREADS;
	l.smem = SMEM_MAX;
	l.cluster = 2;
	pairs = cairn_max_active_clusters(wide, &l);
	if (pairs > 0)
		num_ctas = 2 * pairs;
	return pairs > 0 ? num_ctas : pairs < 0 ? pairs :
		cairn_error(EOPNOTSUPP, "this device grants no cluster of 2 with %d bytes of shared memory",
			    SMEM_MAX);
}

static const void *pick_kernel(const struct grid_args *a)
{
#define PICK(way) (a->s.head_dim == 128 ? \
	a->s.dtype == CAIRN_F16 ? (const void *)grid_kernel<CAIRN_F16, 128, way> : \
				  (const void *)grid_kernel<CAIRN_BF16, 128, way> : \
	a->s.dtype == CAIRN_F16 ? (const void *)grid_kernel<CAIRN_F16, 64, way> : \
				  (const void *)grid_kernel<CAIRN_BF16, 64, way>)
	switch (grid_way(a)) {
	case GRID_BY_WORDS:
		return PICK(GRID_BY_WORDS);
	case GRID_BY_MEETING:
		return PICK(GRID_BY_MEETING);
	default:
		return PICK(GRID_WIDE);
	}
#undef PICK
}

int grid_launch(struct grid_args *a, int32_t first, int32_t end, int persistent, void *stream)
{
	struct cairn_launch l = {};
	void *params[] = { a };
	int num_ctas = a->by_words ? cairn_num_sms() :
		       num_meeting_ctas((const void *)grid_kernel<CAIRN_BF16, 128, GRID_WIDE>);

	if (num_ctas < 0)
		return num_ctas;
	l.grid[0] = (unsigned int)num_ctas;
	l.block[0] = THREADS;
	if (end - first > GRID_KINDS)
		a->key_stages = 0;	/* its loaders do not count layers */
	l.smem = layout(a);
	l.pdl = 1;
	l.cluster = grid_way(a) == GRID_WIDE ? 2 : 0;
	l.stream = stream;
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
