// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_attn_split - algorithm 3: a cluster for each KV head, whose CTAs split rows and keys. Also the
 * launcher of algorithm 5 (cluster_attn_split_head.cu)
 *
 * Schedule. Rank r of N takes the share [r / N, (r + 1) / N) of everything: it computes these rows of the
 * head's q, k, v, attends over these old keys and computes these rows of out. It does so for all requests, so
 * weights are read once. Each of the 8 warps streams its part of the share through a ring of two 4 KiB stages
 * (cluster_attn_split.cuh).
 *
 *   begin       a stage each | griddepcontrol.wait | load x and tables | rest of ring | n in every CTA; if
 *               n exceeds 34 KB every rank norms some rows and all ranks read them from the L2
 *   w_qkv       warps split K: 16 rows x 128 columns a stage, up to 4 units of 16 rows summed at once;
 *               partial sums are added in shared memory, in the order of warps
 *   exchange 1  every thread sends four results to all ranks by st.async; an mbarrier counts the bytes
 *   rotate      in place, in every CTA; the last rank writes k and v to their pages
 *   keys        each warp takes every n-th tile of 16 keys (head_dim 64: 32) of the rank, with an online
 *               softmax; the new key, from shared memory, starts the state of one warp of the last rank. With
 *               many requests, warps form teams, each with its own requests
 *   exchange 2  each CTA merges its warps' states and sends every rank a share of the items (four columns of
 *               a head). That rank merges over ranks, divides, rounds and sends the result to all ranks
 *   w_o         a unit of 16 rows per warp; partial sums over the head's columns to global memory
 *   sum         the last warp to finish given rows, by an integer ticket, adds the heads' partial results in
 *               the order of heads, adds x and bias, rounds and writes out
 *
 * A cluster synchronises twice, and the grid never does, so clusters may run in any order and in waves.
 *
 * Shared memory (offsets s_* of struct split_args; bytes, B requests, g heads, d head_dim)
 *   0          rings [8 warps][stages][4096]
 *   s_qkv      q, k, v [B][g + 2][d], swizzled, split_at(); later the attended heads
 *   s_scratch  partial sums [8 warps][B][68 or 36] f32; cosines and sines [B][d / 2]; then states
 *              [tasks of a wave][team's warps][heads][d] f32, with their (m, l) in s_ml
 *   s_slots    items from all ranks: four columns [N][share] f32, then (m, l) [N][share]
 *   s_n        n [B][n_stride], or nothing; s_table: [B] struct split_request; s_mbar; s_red: 8 floats
 * Barriers. mbarrier 0: q, k, v have arrived; 1: the attended heads; 2: items of a wave. Each expects one
 * arrival, with the byte count (this rank's own included); cluster_size 1 uses __syncthreads. Off chip:
 * cluster_meet(). Cluster barrier: arrive after the norm, wait before the first send; and slots read between
 * waves. A CTA exits once it has all attended heads: no peer accesses its shared memory after that.
 * Registers: 128, two CTAs per SM, no spills.
 */
#include "primitives/base/launch.h"
#include "fused/cluster_attn/cluster_attn_split_attn.cuh"

/* ---- attention ---- */

/* State of one query head in one warp: O [head_dim] and (m, l). m is a logit before sm_scale. */
struct state {
	float m, l;
	float4 o;
};

/* Returns the first head of a task, which is a request and up to 8 of its heads, and their number. */
SPLIT int2 task_heads(const struct split_args &g, int task)
{
	const int first = g.half_shift ? (task & 1) * 8 : 0;

	return make_int2(first, min(g.group - first, g.task_heads));
}

/* Returns the index of the state of warp `warp`, its `nth` task of the wave, head `head` of the task. */
SPLIT int state_at(const struct split_args &g, int nth, int warp, int head)
{
	return (nth * SPLIT_WARPS + warp) * g.task_heads + head;
}

/* Attends over this warp's share of one task, from the first key to its states. */
template <int dtype, int head_dim>
SPLIT void attend(const struct split_args &g, const struct split_cta &c, struct split_cursor &s, int task,
		  int nth)
{
	constexpr int keys = SPLIT_STAGE_BYTES / (2 * head_dim), row_bytes = head_dim * 2;
	const float scale_log2 = g.a.sm_scale * ATTN_LOG2E;
	const int request = task >> g.half_shift;
	const struct split_request r = split_load_request(g, c, request);
	const int2 heads = task_heads(g, task);
	float o[head_dim / 16][4] = {}, m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = { 0, 0 };
	float logits[keys / 16][4];

	/* The last rank takes the new key: p is 1 and O is its value. */
	if (c.rank == g.size - 1 && c.warp % g.team_warps == 0 && r.old_len >= 0) {
		split_logits<dtype, head_dim, head_dim, 16>(g, c, logits, request, heads.x, 0,
							    split_at<head_dim>(g, c, request, g.group,
									       c.lane / 16), 0);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			m[h] = logits[0][h];
			l[h] = c.quad == 0;
		}
#pragma unroll
		for (int i = 0; i < head_dim / 8; i++) {
			const uint16_t bits = ptx_ld_shared_b16(split_at<head_dim>(g, c, request,
										   g.group + 1, i) +
								c.quad * 2);

			o[i / 2][i % 2 * 2] = o[i / 2][i % 2 * 2 + 1] = row_element<dtype>(&bits, 0);
		}
	}
	/* One loop body serves keys and values in turn, so the refill code exists once. */
	for (int tile = r.first_tile + c.warp % g.team_warps, values = 0; tile < r.end_tile; values ^= 1) {
		const uint32_t at = split_wait(c, s);

		if (!values) {
			split_logits<dtype, head_dim, head_dim, keys>(g, c, logits, request, heads.x, 0,
								      at + split_k_at(c, row_bytes),
								      16 * row_bytes);
			split_softmax<head_dim, keys>(c, logits, m, l, o, tile * keys, r.old_len, scale_log2);
		} else {
			split_values<dtype, head_dim, keys>(o, logits, at + split_v_at(c, row_bytes),
							    16 * row_bytes);
			tile += g.team_warps;
		}
		split_release<head_dim, 0>(g, c, s);
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int head = 2 * c.t + h, state = state_at(g, nth, c.warp, head);
		const float sum = split_keys_sum(l[h]);

		if (head >= heads.y)
			continue;
#pragma unroll
		for (int i = 0; i < head_dim / 8; i++)
			ptx_st_shared_f32(c.base + g.s_scratch + (state * head_dim + i * 8 + c.quad) * 4,
					  o[i / 2][i % 2 * 2 + h]);
		if (c.quad == 0)
			ptx_st_shared_v2(c.base + g.s_ml + state * 8,
					 make_uint2(__float_as_uint(m[h]), __float_as_uint(sum)));
	}
}

SPLIT struct state empty_state(void)
{
	const struct state v = { -CUDART_INF_F, 0, { 0, 0, 0, 0 } };

	return v;
}

/* Adds v to *to; each has its own maximum. */
SPLIT void add_state(struct state *to, const struct state *v, float scale_log2)
{
	const float top = fmaxf(to->m, v->m), keep = split_weight(to->m, top, scale_log2);
	const float weight = split_weight(v->m, top, scale_log2);

	to->m = to->m != to->m ? to->m : v->m != v->m ? v->m : top;	/* propagates NaN */
	to->l = keep * to->l + weight * v->l;
	to->o.x = keep * to->o.x + weight * v->o.x;
	to->o.y = keep * to->o.y + weight * v->o.y;
	to->o.z = keep * to->o.z + weight * v->o.z;
	to->o.w = keep * to->o.w + weight * v->o.w;
}

/* Returns a rank's share of `total` items, even so that 16-byte vectors in the slots stay aligned. */
static __host__ __device__ int even_share(int total, int size)
{
	return (total + 2 * size - 1) / (2 * size) * 2;
}

/* Returns the place of item i of a wave (four columns of one head): task, head of the task, first column. */
SPLIT int3 item_place(const struct split_args &g, int item, int fours)
{
	const int row = item / fours, nth = attn_token(row, g.magic);

	return make_int3(nth, row - nth * g.task_heads, item % fours * 4);
}

/*
 * Exchange 2, first half: merges items over this CTA's warps and sends each to the rank that owns it. Slots
 * are laid out [rank][item], O and then (m, l).
 */
template <int head_dim>
SPLIT void send_items(const struct split_args &g, const struct split_cta &c, int items, int most)
{
	constexpr int fours = head_dim / 4;
	const float scale_log2 = g.a.sm_scale * ATTN_LOG2E;
	const int teams = SPLIT_WARPS / g.team_warps;

	for (int item = threadIdx.x; item < items; item += SPLIT_THREADS) {
		const int3 place = item_place(g, item, fours);
		const int first = state_at(g, place.x / teams, place.x % teams * g.team_warps, place.y);
		const int owner = item / most, at = c.rank * most + item - owner * most;
		struct state sum = empty_state(), v;
		uint2 ml;
		uint4 o;

#pragma unroll 2
		for (int w = 0; w < g.team_warps; w++) {
			const int state = first + w * g.task_heads;

			o = ptx_ld_shared_v4(c.base + g.s_scratch + (state * head_dim + place.z) * 4);
			ml = ptx_ld_shared_v2(c.base + g.s_ml + state * 8);
			v.m = __uint_as_float(ml.x);
			v.l = __uint_as_float(ml.y);
			v.o = make_float4(__uint_as_float(o.x), __uint_as_float(o.y), __uint_as_float(o.z),
					  __uint_as_float(o.w));
			add_state(&sum, &v, scale_log2);
		}
		o = make_uint4(__float_as_uint(sum.o.x), __float_as_uint(sum.o.y), __float_as_uint(sum.o.z),
			       __float_as_uint(sum.o.w));
		ml = make_uint2(__float_as_uint(sum.m), __float_as_uint(sum.l));
		if (g.a.offchip) {
			char *to = split_box_slots(g, c, head_dim) + (size_t)owner * g.size * most * 24;

			((uint4 *)to)[at] = o;
			((uint2 *)(to + (size_t)g.size * most * 16))[at] = ml;
		} else {
			const uint32_t to = c.base + g.s_slots, mbar = c.base + g.s_mbar + 16;

			split_send_v4(g, to + at * 16, o, mbar, owner);
			split_send_v2(g, to + (g.size * most + at) * 16 - at * 8, ml, mbar, owner);
		}
	}
}

/*
 * Exchange 2, second half: merges this rank's items over all ranks, divides, rounds and sends the results to
 * all ranks, in q's place. An item takes one lane for each rank (rounded up to a power of two), and each lane
 * sends the result to one rank.
 */
template <int dtype, int head_dim>
SPLIT void merge_items(const struct split_args &g, const struct split_cta &c, int wave0, int items, int most)
{
	constexpr int fours = head_dim / 4;
	const float scale_log2 = g.a.sm_scale * ATTN_LOG2E;
	const int shift = g.size > 1 ? 32 - __clz(g.size - 1) : 0, lanes = 1 << shift, per_warp = 32 >> shift;
	const int first = c.rank * most, count = min(items - first, most), from = c.lane & (lanes - 1);

	/* whole warps iterate: the shuffles need all lanes */
#pragma unroll 1
	for (int i = c.warp * per_warp; i < count; i += SPLIT_WARPS * per_warp) {
		const int mine = i + (c.lane >> shift), nth = min(mine, count - 1), at = from * most + nth;
		const int3 place = item_place(g, first + nth, fours);
		const int task = wave0 + place.x;
		const int2 heads = task_heads(g, task);
		struct state v = empty_state(), other;
		uint2 sum;

		if (from < g.size) {
			uint2 ml;
			uint4 o;

			if (g.a.offchip) {
				const char *slots = split_box_slots(g, c, head_dim) +
						    (size_t)c.rank * g.size * most * 24;

				o = __ldcg((const uint4 *)slots + at);
				ml = __ldcg((const uint2 *)(slots + (size_t)g.size * most * 16) + at);
			} else {
				o = ptx_ld_shared_v4(c.base + g.s_slots + at * 16);
				ml = ptx_ld_shared_v2(c.base + g.s_slots + g.size * most * 16 + at * 8);
			}
			v.m = __uint_as_float(ml.x);
			v.l = __uint_as_float(ml.y);
			v.o = make_float4(__uint_as_float(o.x), __uint_as_float(o.y), __uint_as_float(o.z),
					  __uint_as_float(o.w));
		}
#pragma unroll 1
		for (int k = 1; k < lanes; k *= 2) {
			other.m = __shfl_xor_sync(~0u, v.m, k);
			other.l = __shfl_xor_sync(~0u, v.l, k);
			other.o.x = __shfl_xor_sync(~0u, v.o.x, k);
			other.o.y = __shfl_xor_sync(~0u, v.o.y, k);
			other.o.z = __shfl_xor_sync(~0u, v.o.z, k);
			other.o.w = __shfl_xor_sync(~0u, v.o.w, k);
			add_state(&v, &other, scale_log2);
		}
		v.l = v.l > 0 || v.l != v.l ? 1 / v.l : 0;
		sum = make_uint2(row_pack2<dtype>(v.o.x * v.l, v.o.y * v.l),
				 row_pack2<dtype>(v.o.z * v.l, v.o.w * v.l));
		/* lanes may differ in the last bit because they add in different orders */
		sum.x = __shfl_sync(~0u, sum.x, c.lane & ~(lanes - 1));
		sum.y = __shfl_sync(~0u, sum.y, c.lane & ~(lanes - 1));
		if (mine >= count || place.y >= heads.y || from >= g.size)
			continue;
		if (g.a.offchip) {
			char *to = split_box_attended(g, c);

			if (from == 0)
				*(uint2 *)(to + (((size_t)(task >> g.half_shift) * g.group +
						  heads.x + place.y) * head_dim + place.z) * 2) = sum;
		} else {
			const uint32_t to = split_at<head_dim>(g, c, task >> g.half_shift,
							       heads.x + place.y, place.z / 8) +
					    place.z % 8 * 2;

			split_send_v2(g, to, sum, c.base + g.s_mbar + 8, from);
		}
	}
}

/* Attends over all requests and runs exchange 2: the attended heads replace q. */
template <int dtype, int head_dim>
SPLIT void attend_all(const struct split_args &g, const struct split_cta &c, struct split_cursor &s,
		      uint32_t &epoch)
{
	const int teams = SPLIT_WARPS / g.team_warps;
	uint32_t parity = 0;

	for (int wave0 = 0; wave0 < g.tasks; wave0 += g.wave, parity ^= 1) {
		const int end = min(wave0 + g.wave,
				    g.tasks), items = (end - wave0) * g.task_heads * (head_dim / 4);
		const int most = even_share(items, g.size), mine = max(0, min(items - c.rank * most, most));

		for (int task = wave0 + c.warp / g.team_warps, nth = 0; task < end; task += teams, nth++)
			attend<dtype, head_dim>(g, c, s, task, nth);
		if (wave0 && !g.a.offchip)
			ptx_barrier_cluster_wait_acquire(); /* all ranks have read the last wave's slots */
		__syncthreads();
		send_items<head_dim>(g, c, items, most);
		if (g.a.offchip) {
			split_cluster_sync(g, c, epoch);
		} else {
			/* a cluster of one sends nothing; a phase that awaits bytes bears one arrival */
			if (threadIdx.x == 0)
				ptx_mbarrier_arrive_expect_tx(c.base + g.s_mbar + 16,
							      g.size == 1 ? 0 : g.size * mine * 24);
			split_await(g, c.base + g.s_mbar + 16, parity);
		}
		merge_items<dtype, head_dim>(g, c, wave0, items, most);
		if (end == g.tasks)
			break;
		__syncthreads(); /* all threads have read the states before any thread overwrites them */
		if (g.a.offchip)
			split_cluster_sync(g, c, epoch);
		else
			ptx_barrier_cluster_arrive_release();
	}
	split_take_attended<head_dim>(g, c, epoch);
}

template <int dtype, int head_dim, int wide>
static __global__ __launch_bounds__(SPLIT_THREADS, 2) void
cluster_attn_token_kernel(const __grid_constant__ struct split_args g)
{
	extern __shared__ __align__(1024) uint8_t s_mem[];
	struct split_cursor s;
	struct split_cta c;
	uint32_t epoch = 1;

	split_cta_init(g, c, ptx_smem(s_mem), head_dim);
	split_begin<dtype, head_dim, 0>(g, c, s);
	split_project_qkv<dtype, head_dim, wide, 0>(g, c, s, epoch);
	split_rotate<dtype, head_dim>(g, c);
	split_append<head_dim>(g, c);
	attend_all<dtype, head_dim>(g, c, s, epoch);
	split_project_out<dtype, head_dim, wide, 0>(g, c, s);
	ptx_griddepcontrol_launch_dependents();
}

/* ---- launch ---- */

template <int dtype> static const void *token_kernel(int head_dim, int wide)
{
	if (head_dim == 64)
		return wide ? (const void *)cluster_attn_token_kernel<dtype, 64, 1> :
			      (const void *)cluster_attn_token_kernel<dtype, 64, 0>;
	return wide ? (const void *)cluster_attn_token_kernel<dtype, 128, 1> :
		      (const void *)cluster_attn_token_kernel<dtype, 128, 0>;
}

static uint32_t align_up(uint32_t v, uint32_t to)
{
	return (v + to - 1) / to * to;
}

/* Returns the bytes of one rank's logits of a tile, by_head. */
static uint32_t slot_bytes(const struct split_args *g)
{
	return 16 * (uint32_t)((g->task_heads + 1) / 2 * 2) * 4;
}

/* Returns the size of a rank's share of a wave's items, four columns of a head each. */
static int most_items(const struct split_args *g, int size)
{
	return even_share(g->wave * g->task_heads * g->a.head_dim / 4, size);
}

/* Sets the offsets in shared memory and returns its size in bytes. */
static uint32_t place_smem(struct split_args *g, int size, int by_head)
{
	const struct cairn_cluster_attn_args *a = &g->a;
	const uint32_t batch = (uint32_t)a->kv.batch, dim = (uint32_t)(by_head ? g->own_dim : a->head_dim);
	uint32_t at = SPLIT_WARPS * SPLIT_STAGES * SPLIT_STAGE_BYTES, sums, states;

	g->s_qkv = at;		/* aligned to a head */
	at = align_up(at + batch * (uint32_t)g->rows * 2, 16);
	g->s_scratch = at;
	/* the cosines and sines take less */
	sums = SPLIT_WARPS * batch * (uint32_t)split_sum_row(a->kv.batch > 8) * 4;
	states = (uint32_t)g->num_states * dim * 4;
	at += sums > states ? sums : states;
	g->s_ml = at;
	at = align_up(at + (uint32_t)g->num_states * 8, 16);
	g->s_slots = at;
	at += by_head ? 2 * SPLIT_WARPS * (uint32_t)size * slot_bytes(g) :
	      (uint32_t)size * (uint32_t)most_items(g, size) * 24;
	at = align_up(at, 16);
	g->s_n = at;
	at += batch * (uint32_t)g->n_stride;
	g->s_table = at;
	at += batch * 16;
	g->s_mbar = at;
	at += 24;
	g->s_slot_mbar = at;
	at += by_head ? 2 * SPLIT_WARPS * 8 : 0;
	g->s_red = at;
	return align_up(at + 64, 256);
}

#define N_BYTES		(34 * 1024)	/* largest n that is kept in shared memory */

/* Plans the work and the shared memory of a CTA; returns by_head. */
static int plan_cta(struct split_args *g, int size)
{
	const struct cairn_cluster_attn_args *a = &g->a;
	const int stride = (a->hidden + SPLIT_K - 1) / SPLIT_K * SPLIT_K * 2 + 64, wide = a->kv.batch > 8;
	/* with one CTA both dataflows are the same */
	const int by_head = a->dataflow == CAIRN_CLUSTER_ATTN_SPLIT_HEAD && size > 1;
	int teams = 1, units, passes;

	g->size = size;
	g->group = a->num_qo_heads / a->num_kv_heads;
	g->rows = (g->group + 2) * a->head_dim;
	g->half_shift = g->group > 8;
	g->task_heads = g->group > 8 ? 8 : g->group;
	g->magic = attn_magic((uint32_t)g->task_heads);
	g->tasks = a->kv.batch << g->half_shift;
	while (!by_head && teams < g->tasks && teams < SPLIT_WARPS)
		teams *= 2;
	g->team_warps = SPLIT_WARPS / teams;
	g->wave = teams;
	if (!by_head && g->tasks > teams && g->group <= 2)
		g->wave = 2 * teams;
	g->num_states = g->wave * g->team_warps * g->task_heads;
	g->own_dim = by_head ? a->head_dim / size : a->head_dim;
	g->n_stride = !wide && a->kv.batch * stride <= N_BYTES ? stride : 0;
	g->page_shift = kv_page_shift(a->kv.page_size);
	for (int i = 0; i <= size; i++) {
		g->first_unit[i] = (int16_t)attn_share(g->rows / SPLIT_ROWS, size, i);
		g->first_out[i] = (int16_t)attn_share(a->hidden / SPLIT_ROWS, size, i);
	}
	units = (g->rows / SPLIT_ROWS + size - 1) / size;
	passes = (units + split_pass(wide) - 1) / split_pass(wide);
	g->pass_units = (units + passes - 1) / passes;
	g->out_chunks = (g->group * a->head_dim + SPLIT_K - 1) / SPLIT_K;
	/*
	 * Number of row units that one warp sums over the heads: few if such sums are expensive, because
	 * nothing hides the latency of the last ones.
	 */
	g->sum_units = a->kv.batch > 4 ? 2 : 1024;
	g->smem = place_smem(g, size, by_head);
	return by_head;
}

static const void *kernel_of(const struct cairn_cluster_attn_args *a, int by_head)
{
	const int wide = a->kv.batch > 8;

	if (by_head)
		return cluster_attn_split_head_kernel(a->dtype, a->head_dim, wide);
	return a->dtype == CAIRN_F16 ? token_kernel<CAIRN_F16>(a->head_dim, wide) :
				       token_kernel<CAIRN_BF16>(a->head_dim, wide);
}

static void set_launch(struct cairn_launch *l, const struct split_args *g, int size)
{
	l->block[0] = SPLIT_THREADS;
	l->smem = g->smem;
	l->cluster = size;
	l->grid[0] = (unsigned int)(g->a.num_kv_heads * size);
}

/* Returns how many clusters of this launch the device holds at once. */
static int resident(const struct split_args *g, int size, int by_head)
{
	struct cairn_launch l = {};
	int n;

	set_launch(&l, g, size);
	n = cairn_max_active_clusters(kernel_of(&g->a, by_head), &l);
	return n < 0 ? 0 : n;
}

/*
 * Returns the smallest cluster size that occupies nine SMs of ten, or the largest below it with which all
 * clusters are resident at once and every CTA has rows of w_qkv to compute. More CTAs bring no bandwidth (one
 * CTA on an SM draws as much as two), but they make every exchange slower.
 */
static int choose_size(struct split_args *g)
{
	const int sms = cairn_sms_of(g->a.sms), heads = g->a.num_kv_heads, limited = sms < cairn_num_sms();
	int best = 1;

	for (int size = 2; size <= CAIRN_CLUSTER_MAX_SIZE && heads * best * 10 < sms * 9; size++) {
		int by_head;

		if (g->a.dataflow == CAIRN_CLUSTER_ATTN_SPLIT_HEAD && g->a.head_dim / 8 % size)
			continue;
		by_head = plan_cta(g, size);
		if (limited && heads * size > sms)
			break;
		if (g->rows / SPLIT_ROWS >= size && resident(g, size, by_head) >= heads)
			best = size;
	}
	return best;
}

/* Sets the geometry and the addresses of the workspace's parts; ws may be NULL. */
static int plan(struct split_args *g, const struct cairn_cluster_attn_args *a, int *size,
		const void **kernel, char *ws,
		size_t *bytes)
{
	const size_t batch = (size_t)a->kv.batch, heads = (size_t)a->num_kv_heads;
	const int sms = cairn_sms_of(a->sms);
	size_t at = 0, states;
	int by_head;

	if (sms < 0)
		return sms;
	g->a = *a;
	if ((int64_t)a->kv.num_pages * a->kv.page_size > 0xfffffffell)
		return cairn_error(EOPNOTSUPP, "cluster_attn: kv.num_pages * kv.page_size: beyond 32 bits");
	*size = a->cluster_size ? a->cluster_size : choose_size(g);
	if (sms < cairn_num_sms() && a->num_kv_heads * *size > sms)
		return cairn_error(EOPNOTSUPP, "cluster_attn: sms: %d clusters of %d CTAs need at least %d",
				   a->num_kv_heads, *size, a->num_kv_heads * *size);
	by_head = plan_cta(g, *size);
	*kernel = kernel_of(a, by_head);

	g->radix = a->kv.batch > 4 && heads > 8 ? 8 : (int)heads;
	g->num_groups = ((int)heads + g->radix - 1) / g->radix;
	g->tickets = (uint32_t *)ws;
	at = align_up((uint32_t)((g->num_groups + 1) * (a->hidden / SPLIT_ROWS)) * 4, 256);
	g->part = (float *)(ws + at);
	at += heads * batch * (size_t)a->hidden * 4;
	g->n = ws + at;
	at += g->n_stride ? 0 : heads * batch * (size_t)a->hidden * 2;
	g->box = ws + at;
	states = by_head ?
		 CAIRN_CLUSTER_MAX_SIZE * SPLIT_WARPS * 4 + 2 * SPLIT_WARPS * (size_t)*size * slot_bytes(g) :
		 (size_t)*size * (size_t)*size * (size_t)most_items(g, *size) * 24;
	g->box_bytes = cluster_offchip_bytes(0) + batch * (size_t)(g->rows +
								   g->group * a->head_dim) * 2 + states;
	at += a->offchip ? heads * g->box_bytes : 0;
	*bytes = at;
	return 0;
}

int cluster_attn_split_workspace(const struct cairn_cluster_attn_args *args, size_t *bytes)
{
	struct split_args g;
	const void *kernel;
	int size;

	return plan(&g, args, &size, &kernel, NULL, bytes);
}

int cluster_attn_split(const struct cairn_cluster_attn_args *args, void *stream)
{
	struct cairn_launch l = {};
	struct split_args g;
	void *params[] = { &g };
	const void *kernel;
	size_t bytes;
	int size;

	CAIRN_TRY(plan(&g, args, &size, &kernel, (char *)args->workspace, &bytes));
	if (!args->workspace || args->workspace_bytes < bytes)
		return cairn_error(EINVAL, "cluster_attn: workspace: needs %zu bytes", bytes);
	set_launch(&l, &g, size);
	l.pdl = !args->sms;
	l.stream = stream;
	return cairn_launch(kernel, &l, params);
}
