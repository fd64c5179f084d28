// SPDX-License-Identifier: Apache-2.0
/*
 * attn_paged_shares - the decode kernel for many requests of uneven lengths: equal shares of all keys
 *
 * With teams (attn_paged_uneven.cu), the last CTAs leave many SMs idle. Here the tiles of all requests form
 * one sequence, which is cut into as many equal shares as the device holds CTAs for each KV head
 * (attn_tile.h). The CTAs of a share read neighbouring heads of the same keys, which are adjacent in memory,
 * at about the same time.
 *
 *   CTA:   lengths of all requests -> their tiles, by a prefix sum; descriptions of the share's requests
 *   warp:  every nth tile of the share, across requests, through a ring as in attn_paged.cu: the
 *          copies of the next request's first tiles are in flight while the states of this one are merged.
 *          Q of 16-bit keys passes through the stage that is free at the begin of a request
 *   after the last tile of a request: O of each warp -> the stage that the warp freed last; m, l -> their
 *          arrays | CTA barrier | merge over warps | CTA barrier
 *
 * If a CTA has all tiles of a task, it writes the output. Otherwise it leaves its state in the workspace, and
 * the last CTA of the task to do so merges all of them in the order of the shares, whichever CTA that is:
 * results are bitwise repeatable. No CTA waits for another. The counters of arrivals are 0 between calls: a
 * call that is not `planned` begins with a kernel that sets them, and the CTA that merges a task sets its
 * counter to 0 again.
 *
 * Shared memory: that of attn_paged.cu, and a struct task for each thread.
 * Barriers: __syncthreads() twice for each request of a share, four times if the share has only a part of the
 * request; besides, once before each walk, and twice for each prefix sum.
 * Registers: 148, 182, 255 for head_dim 64, 128, 256; 150, 217 with 8-bit keys of 64, 128; no spills.
 * Floor and optimisation history: attn_paged.cu, ../NOTES.md.
 */
#include "fused/attention/paged/attn_paged_decode.cuh"
#include "fused/attention/paged/attn_paged_shares.h"
#include "primitives/base/launch.h"

/* How a launch divides its requests; the arrays lie in the workspace. */
struct attn_divided {
	int32_t max_rows;	/* packed rows of a request that the kernel takes, at most ROWS */
	int32_t group;		/* query heads of a KV head */
	uint32_t magic;		/* attn_magic(group) */
	int32_t most_shares;	/* a share has a CTA for each KV head */
	uint32_t *arrived;	/* [kv.batch][num_kv_heads]: parts of a task that are done; 0 between calls */
	float *states;		/* [num_kv_heads][most_shares][2][ROWS][head_dim + 2] */
};

/* A request. Its tiles have the numbers before .. before + tiles - 1 in the sequence of all tiles. */
struct task {
	struct attn_request r;
	struct attn_span span;
	int32_t request, rows, before, tiles;
};

template <int warps> struct smem {
	struct task tasks[warps * 32];	/* of as many requests as the CTA has threads */
	int32_t sums[warps];
	int32_t places[warps];		/* where in the ring each warp has put its O */
	int32_t first;			/* the first of these requests that the share has tiles of */
};

/* The share of a CTA: tiles begin .. end - 1, none if there are fewer shares. */
struct share {
	struct attn_shares all;
	int32_t nth, begin, end;
};

/* ---- which tiles ---- */

/* Describes request b. Returns its tiles: at least one if it has rows and is not left to another kernel. */
template <int head_dim, bool fp8>
ATTN_DEV int32_t describe(const struct cairn_attn_paged_args &a, const struct attn_divided &u, int b,
			  struct task *k)
{
	k->request = b;
	k->rows = k->tiles = 0;
	if (b >= a.kv.batch)
		return 0;
	k->r = attn_load_request(a, b, blockIdx.x % a.num_kv_heads, u.group, u.magic);
	k->rows = k->r.qo_len * u.group;
	if (k->rows == 0 || k->rows > u.max_rows)
		return 0;
	k->span = span_of<head_dim, fp8>(a, k->r, 0, k->rows);
	k->tiles = max(1, k->span.num_tiles);
	return k->tiles;
}

/* Returns the sum of n over the threads before this one; *sum becomes the sum over all. All call it. */
ATTN_DEV int32_t scan(int32_t n, int32_t *s_sums, int32_t *sum)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int32_t upto = n, before = 0;

#pragma unroll
	for (int k = 1; k < 32; k *= 2) {
		const int32_t other = __shfl_up_sync(~0u, upto, k);

		upto += lane >= k ? other : 0;
	}
	__syncthreads();	/* all threads have read the sums of the previous scan */
	if (lane == 31)
		s_sums[warp] = upto;
	__syncthreads();
	*sum = 0;
	for (int w = 0; w < blockDim.x / 32; w++) {
		before += w < warp ? s_sums[w] : 0;
		*sum += s_sums[w];
	}
	return before + upto - n;
}

ATTN_DEV struct share find_share(int32_t total, int32_t most, int32_t nth)
{
	struct share s = {};

	s.nth = nth;
	if (total)
		s.all = attn_shares_of(total, most);
	if (nth < s.all.num) {
		s.begin = attn_share_begin(s.all, nth);
		s.end = attn_share_begin(s.all, nth + 1);
	}
	return s;
}

/* ---- states of parts ---- */

/*
 * Returns where a share leaves its state of a task. A share leaves at most two states: one of the task at its
 * beginning (`begins`), and one of the task at its end.
 */
template <int head_dim>
ATTN_DEV float *state_of(const struct attn_divided &u, int32_t head, int32_t share, bool begins)
{
	return u.states + (((int64_t)head * u.most_shares + share) * 2 + !begins) * (ROWS * (head_dim + 2));
}

/* Counts this CTA's state of a task, and returns whether it was the last of `parts`. All threads call it. */
ATTN_DEV bool is_last(uint32_t *arrived, int32_t parts)
{
	int last = 0;

	__syncthreads();
	if (threadIdx.x == 0) {
		last = ptx_atom_acq_rel_gpu_add_u32(arrived, 1) == (uint32_t)parts - 1;
		if (last)
			*arrived = 0;
	}
	return __syncthreads_or(last);
}

/* Writes the output of a task from the states that shares first .. last have left. */
template <int dtype, int head_dim>
ATTN_DEV void merge_shares(const struct cairn_attn_paged_args &a, const struct attn_divided &u,
			   const struct task &k, const struct share &share, int32_t first, int32_t last,
			   const struct attn_scaling &z)
{
	constexpr int vecs = head_dim / 4;
	const bool begins = attn_share_begin(share.all, first) == k.before;

	for (int i = threadIdx.x; i < k.rows * vecs; i += blockDim.x) {
		const int row = i / vecs;
		struct attn_vec v = { make_float4(0, 0, 0, 0), -CUDART_INF_F, 0 };

#pragma unroll 8
		for (int32_t s = first; s <= last; s++) {
			const float *from = state_of<head_dim>(u, k.r.head, s, s > first || begins);
			const float4 o = __ldcg((const float4 *)from + i);
			const float m = __ldcg(from + ROWS * head_dim + row);
			const float l = __ldcg(from + ROWS * head_dim + ROWS + row);
			const float top = fmaxf(v.m, m), keep = merge_weight(v.m, top, z.scale_log2);

			v.o = make_float4(v.o.x * keep, v.o.y * keep, v.o.z * keep, v.o.w * keep);
			v.l *= keep;
			add_part(&v.o, &v.l, o, l, merge_weight(m, top, z.scale_log2));
			v.m = top;
		}
		write_out<dtype, head_dim>(a, k.r, z.scales, row, i % vecs * 4, v.o, v.m, v.l);
	}
}

/* Merges the states of the warps after the last tile that the share has of a task. All threads call it. */
template <int dtype, int head_dim, bool fp8>
ATTN_DEV void end_task(const struct cairn_attn_paged_args &a, const struct attn_divided &u,
		       const int32_t *places, const struct task &k, const struct share &share,
		       const struct attn_scaling &z)
{
	constexpr int vecs = head_dim / 4;
	const struct attn_decode_smem d = decode_smem<head_dim, fp8>();
	const bool whole = k.before >= share.begin && k.before + k.tiles <= share.end;
	float *to = state_of<head_dim>(u, k.r.head, share.nth, k.before <= share.begin);
	int32_t first, last;

	for (int i = threadIdx.x; i < k.rows * vecs; i += blockDim.x) {
		const struct attn_vec v = merge_warps<head_dim>(d, i, z.scale_log2,
								[places](int w) { return places[w]; });
		const int row = i / vecs;

		if (whole) {
			write_out<dtype, head_dim>(a, k.r, z.scales, row, i % vecs * 4, v.o, v.m, v.l);
			continue;
		}
		((float4 *)to)[i] = v.o;
		if (i % vecs == 0) {
			to[ROWS * head_dim + row] = v.m;
			to[ROWS * head_dim + ROWS + row] = v.l;
		}
	}
	if (whole)
		return;
	first = attn_share_at(share.all, k.before);
	last = attn_share_at(share.all, k.before + k.tiles - 1);
	if (is_last(u.arrived + (int64_t)k.request * a.num_kv_heads + k.r.head, last - first + 1))
		merge_shares<dtype, head_dim>(a, u, k, share, first, last, z);
}

/* ---- the walk ---- */

/* Where a warp looks up slots: a tile, and the request that it belongs to. */
struct cursor {
	int32_t tile, task;
};

/* Looks up a lane's key of the cursor's tile, and moves on to the warp's next tile. */
template <int head_dim, bool fp8>
ATTN_DEV struct attn_place look_ahead(const struct cairn_attn_paged_args &a, const struct task *tasks,
				      struct cursor *c, int32_t end, int32_t page_shift)
{
	constexpr int keys = tile_keys<head_dim, fp8>();
	const int32_t tile = c->tile;
	const int lane = threadIdx.x % 32;

	c->tile += blockDim.x / 32;
	if (tile >= end)
		return { 0, -1 };
	while (tile >= tasks[c->task].before + tasks[c->task].tiles)
		c->task++;
	const struct task &k = tasks[c->task];

	return attn_look_up(a, k.r, page_shift, k.span.begin + (tile - k.before) * keys + lane,
			    lane < keys ? k.span.end : 0);
}

/* Attends to tiles begin .. end - 1 of the share, which belong to requests in s->tasks. */
template <int dtype, int head_dim, bool fp8, int warps>
ATTN_DEV void walk(const struct cairn_attn_paged_args &a, const struct attn_divided &u, struct smem<warps> *s,
		   const struct share &share, int32_t begin, int32_t end)
{
	constexpr int stages = num_stages<head_dim, fp8>(), ring = ring_bytes<head_dim, fp8>();
	constexpr int keys = tile_keys<head_dim, fp8>(), stage = 2 * tile_bytes<head_dim, fp8>();
	static_assert(stage >= ROWS * head_dim * 4, "a stage holds the O of a warp");
	const struct attn_decode_smem d = decode_smem<head_dim, fp8>();
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int32_t page_shift = kv_page_shift(a.kv.page_size);
	const uint32_t s_warp = ptx_smem(d.ring) + warp * ring;
	struct cursor ahead = { begin + warp, s->first };
	struct attn_place places[stages], place;
	int32_t tile = begin + warp, n = 0, upto;

#pragma unroll
	for (int i = 0; i < stages; i++)
		places[i] = look_ahead<head_dim, fp8>(a, s->tasks, &ahead, end, page_shift);
#pragma unroll
	for (int i = 0; i < stages - 1; i++) {
		if (tile + i * warps < end)
			gather<head_dim, fp8>(a, s->tasks[s->first].r, s_warp + i * stage,
					      attn_slot_at(a, places[i]));
		ptx_cp_async_commit_group();
	}
	place = places[stages - 1];
	for (const struct task *k = s->tasks + s->first;; k++) {
		float o[head_dim / 8][4] = {}, m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {}, cap;
		uint32_t q[head_dim / 16][4];
		struct attn_scaling z;
		bool q_is_f16;
		struct seen see;
		int freed;
		/* the stage of the last tile is refilled only by the next step of the loop below */
		const uint32_t s_q = s_warp + stage_before<stages>(n) * stage;

		if (!k->tiles)
			continue;
		upto = min(end, k->before + k->tiles);
		if constexpr (fp8) {
			load_q_for_codes<head_dim>(q, a, k->r, 0, k->rows);
		} else {
			copy_q<head_dim>(a, k->r, s_q, 0, k->rows);
			ptx_cp_async_commit_group();
		}
		z.scales = attn_scales_of<fp8>(a, k->r.head);
		prepare_q<dtype, head_dim, fp8>(a, q, &z, &cap, &q_is_f16);
		set_seen(a, k->r, 0, lane, &see);
		if constexpr (!fp8) {
			ptx_cp_async_wait_group<0>();
			__syncwarp();
			read_q<head_dim>(q, s_q);
		}
		for (; tile < upto; tile += warps) {
			const int refill = stage_before<stages>(n);

			ptx_cp_async_wait_group<stages - 2>();
			__syncwarp();
			if (tile + (stages - 1) * warps < end)
				gather<head_dim, fp8>(a, k->r, s_warp + refill * stage,
						      attn_slot_at(a, place));
			ptx_cp_async_commit_group();
			place = look_ahead<head_dim, fp8>(a, s->tasks, &ahead, end, page_shift);
			attend_tile<dtype, head_dim, fp8>(o, m, l, a, k->r, see, q, s_warp + n * stage, 0,
							  k->span.begin + (tile - k->before) * keys,
							  z.scale_log2, cap, q_is_f16);
			n = n == stages - 1 ? 0 : n + 1;
		}
		if (upto == share.end)
			ptx_griddepcontrol_launch_dependents();
		__syncwarp();
		freed = warp * ring + stage_before<stages>(n) * stage;
		put_state<dtype, head_dim, fp8>(d.ring + freed, d.m + warp * ROWS, d.l + warp * ROWS, o, m, l,
						k->rows);
		if (lane == 0)
			s->places[warp] = freed;
		__syncthreads();
		end_task<dtype, head_dim, fp8>(a, u, s->places, *k, share, z);
		if (upto == end)
			return;
		__syncthreads();
	}
}

/* Describes requests from b on, one for each thread; `before` tiles precede them. Returns their tiles. */
template <int head_dim, bool fp8, int warps>
ATTN_DEV int32_t describe_some(const struct cairn_attn_paged_args &a, const struct attn_divided &u,
			       struct smem<warps> *s, int b, int32_t before)
{
	struct task *k = &s->tasks[threadIdx.x];
	int32_t sum;

	k->before = before + scan(describe<head_dim, fp8>(a, u, b + threadIdx.x, k), s->sums, &sum);
	return sum;
}

template <int dtype, int head_dim, bool fp8>
static __global__ __launch_bounds__(attn_shares_warps(head_dim, fp8) * 32, 2) void
attn_paged_shares_kernel(const __grid_constant__ struct cairn_attn_paged_args a,
			 const __grid_constant__ struct attn_divided u)
{
	__shared__ struct smem<attn_shares_warps(head_dim, fp8)> s;
	const struct task *k = &s.tasks[threadIdx.x];
	int32_t total = 0, sum, b = a.kv.batch;
	struct share share;

	ptx_griddepcontrol_wait();
	/* backwards: afterwards s.tasks describes the first requests, with which the next loop begins */
	for (b = (b - 1) / (int)blockDim.x * (int)blockDim.x; b >= 0; b -= blockDim.x)
		total += sum = describe_some<head_dim, fp8>(a, u, &s, b, 0);
	share = find_share(total, u.most_shares, blockIdx.x / a.num_kv_heads);
	for (int32_t before = 0; before < share.end; before += sum) {
		const int32_t begin = max(before, share.begin);

		b += blockDim.x;
		if (b)
			sum = describe_some<head_dim, fp8>(a, u, &s, b, before);
		if (begin >= before + sum)
			continue;
		if (k->before <= begin && begin < k->before + k->tiles)
			s.first = threadIdx.x;
		__syncthreads();
		walk<dtype, head_dim, fp8>(a, u, &s, share, begin, min(before + sum, share.end));
		__syncthreads();	/* the next step overwrites s.tasks */
	}
}

/* Sets the counters of arrivals to 0. */
static __global__ void zero_kernel(uint32_t *arrived, int32_t num)
{
	ptx_griddepcontrol_launch_dependents();
	ptx_griddepcontrol_wait();
	for (int i = threadIdx.x; i < num; i += blockDim.x)
		arrived[i] = 0;
}

template <int head_dim> static const void *kernel_of(int32_t dtype, int32_t kv_fp8)
{
	if (kv_fp8) {
		if constexpr (head_dim == 256)
			return NULL;	/* a stage does not hold a warp's O */
		else
			return dtype == CAIRN_F16 ?
			       (const void *)attn_paged_shares_kernel<CAIRN_F16, head_dim, true> :
			       (const void *)attn_paged_shares_kernel<CAIRN_BF16, head_dim, true>;
	}
	return dtype == CAIRN_F16 ?
	       (const void *)attn_paged_shares_kernel<CAIRN_F16, head_dim, false> :
	       (const void *)attn_paged_shares_kernel<CAIRN_BF16, head_dim, false>;
}

static const void *choose_kernel(const struct cairn_attn_paged_args *a)
{
	return a->head_dim == 64 ? kernel_of<64>(a->dtype, a->kv_fp8) :
	       a->head_dim == 128 ? kernel_of<128>(a->dtype, a->kv_fp8) : kernel_of<256>(a->dtype, a->kv_fp8);
}

/* ---- the launch ---- */

template <int head_dim> static size_t smem_of(int32_t kv_fp8)
{
	const int warps = attn_shares_warps(head_dim, kv_fp8);
	const int ring = kv_fp8 ? ring_bytes<head_dim, true>() : ring_bytes<head_dim, false>();

	return (size_t)warps * ring + (warps + 1) * ROWS * 2 * sizeof(float);
}

static size_t add_array(size_t *bytes, int64_t items, size_t size)
{
	const size_t at = (*bytes + 255) / 256 * 256;

	*bytes = at + (size_t)items * size;
	return at;
}

int attn_shares_lay_out(const struct cairn_attn_paged_args *args, int32_t resident,
			struct attn_shares_room *room, size_t *bytes)
{
	const int64_t num_tasks = (int64_t)args->kv.batch * args->num_kv_heads;
	/* of 16 keys or more; a request without keys has one */
	const int64_t most_tiles = args->nnz_kv / 16 + args->kv.batch;

	*room = {};
	if (!choose_kernel(args) || num_tasks > INT32_MAX || most_tiles > INT32_MAX)
		return 0;
	room->most = resident / args->num_kv_heads;
	if (!room->most)
		return 0;
	room->arrived = add_array(bytes, num_tasks, sizeof(uint32_t));
	room->states = add_array(bytes, (int64_t)args->num_kv_heads * room->most * 2 * ROWS *
				 (args->head_dim + 2), sizeof(float));
	return 0;
}

int attn_shares_begin(const struct cairn_attn_paged_args *args, const struct attn_shares_room *room,
		      void *stream)
{
	uint32_t *arrived = (uint32_t *)((char *)args->workspace + room->arrived);
	int32_t num_tasks = args->kv.batch * args->num_kv_heads;
	void *params[] = { &arrived, &num_tasks };
	struct cairn_launch l = {};

	l.pdl = 1;
	l.stream = stream;
	l.block[0] = 256;
	return cairn_launch((const void *)zero_kernel, &l, params);
}

int attn_shares_attend(const struct cairn_attn_paged_args *args, int32_t max_rows,
		       const struct attn_shares_room *room, void *stream)
{
	const int32_t group = args->num_qo_heads / args->num_kv_heads, dim = args->head_dim;
	char *workspace = (char *)args->workspace;
	struct attn_divided u = {
		max_rows, group, attn_magic((uint32_t)group), room->most,
		(uint32_t *)(workspace + room->arrived), (float *)(workspace + room->states),
	};
	void *params[] = { (void *)args, &u };
	struct cairn_launch l = {};

	l.pdl = 1;
	l.stream = stream;
	l.grid[0] = (unsigned int)(room->most * args->num_kv_heads);
	l.block[0] = (unsigned int)attn_shares_warps(dim, args->kv_fp8) * 32;
	l.smem = dim == 64 ? smem_of<64>(args->kv_fp8) : dim == 128 ? smem_of<128>(args->kv_fp8) :
		 smem_of<256>(args->kv_fp8);
	return cairn_launch(choose_kernel(args), &l, params);
}
