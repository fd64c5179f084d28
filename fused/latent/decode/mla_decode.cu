// SPDX-License-Identifier: Apache-2.0
/*
 * mla_decode - absorbed attention by wgmma: the 64 packed rows of a CTA share every tile of 64 latents
 *
 * A CTA has two consumer warpgroups and a producer (mla_decode_consume.cuh, mla_decode_fetch.cuh,
 * mla_decode_convert.cuh). If no request has more than MLA_FEW packed rows, the consumers are those of
 * mla_decode_few.cuh. CTAs of the same request run at the same time and share its keys through the L2, or as
 * a cluster of two, each of which copies or converts half of every tile for both. Keys are split over CTAs if
 * there are fewer tasks than SMs; a second kernel then merges the parts in the order of the keys.
 *
 * Registers    consumers 232 (O 128, S 32, two P of 16), producer 40; where threads copy keys 224 and 56,
 *              where they convert them 208 and, in two warpgroups, 48
 * Shared memory  MLA_SMEM_BYTES: Q 72 KiB, two tiles of keys 144 KiB, P 8 KiB, states, mbarriers
 * Floor        h heads and a key: 2 * (576 + 512) * h flops, at most 4096 a clock and SM; 1152 bytes (656).
 *              Up to 64 heads the bytes decide, at 128 heads the products. Beside them, a tile moves 303 KB
 *              through shared memory, 2365 clocks, against 2176 of products. NOTES.md has the figures.
 */
#include "fused/latent/decode/mla_decode.h"

#include "fused/latent/decode/mla_decode_convert.cuh"
#include "fused/latent/decode/mla_decode_few.cuh"
#include "primitives/base/args.h"
#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"

#define MERGE_THREADS	(MLA_RANK / 4)
#define MLA_FEW		32	/* up to this many packed rows per request, the products are transposed */
#define MLA_FEWEST	16	/* up to this many, they have half as many columns */
#define CLUSTER_TILES	8	/* least tiles of keys of a CTA in a cluster */
#define MAX_PARTIAL	((size_t)512 << 20)

/* Sets the rows past the last request to 0, and their lse to -INFINITY. 128 threads call it. */
ATTN_DEV void zero_rest(const struct mla_call &c)
{
	const int64_t first = (int64_t)c.qo_indptr[c.batch] * c.num_heads;
	const int64_t at = (int64_t)blockIdx.x * 128 + mla_thread(), step = (int64_t)gridDim.x * 128;

	for (int64_t i = first * (MLA_RANK / 8) + at; i < c.rows * (MLA_RANK / 8); i += step)
		((uint4 *)c.out)[i] = make_uint4(0, 0, 0, 0);
	for (int64_t i = first + at; c.lse && i < c.rows; i += step)
		c.lse[i] = -CUDART_INF_F;
}

/* Waits for all threads of the cluster. */
ATTN_DEV void meet(void)
{
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

/* Returns the number of registers of a consumer thread. */
static constexpr __host__ __device__ int mla_regs(int fetch)
{
	return fetch >= MLA_THREADS_8 ? 208 : fetch == MLA_THREADS_16 ? 224 : 232;
}

/* Returns the number of registers of a producer thread: what the consumers leave. */
static constexpr __host__ __device__ int mla_producer_regs(int fetch)
{
	return fetch >= MLA_THREADS_8 ? (512 - 2 * mla_regs(fetch)) / 2 : 504 - 2 * mla_regs(fetch);
}

/* blockIdx.x + first_task is the task, blockIdx.y the split. few: 0, or the most packed rows of a task */
template <int dtype, int fetch, int few>
static __global__ void __launch_bounds__(mla_threads(fetch), 1)
mla_decode_kernel(const __grid_constant__ struct mla_call c, const __grid_constant__ struct mla_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	const uint32_t smem = ptx_smem(s_all);
	struct mla_task t;

	if (threadIdx.x == 0) {
		mla_init_barriers<fetch>(smem);
		ptx_prefetch_tensormap(&maps.latent);
		ptx_prefetch_tensormap(&maps.rope);
		if (fetch < MLA_THREADS_16) {
			ptx_prefetch_tensormap(&maps.pairs);
			ptx_prefetch_tensormap(&maps.panels);
		}
	}
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	t = mla_find_task<mla_threads(fetch)>(c, s_all);
	__syncthreads();
	if (mla_sharers(fetch) > 1)
		meet();
	if (threadIdx.x < MLA_CONSUMERS) {
		ptx_setmaxnreg_inc<mla_regs(fetch)>();
		if (few)
			mla_consume_few<dtype, fetch, few ? few : MLA_FEW>(c, t, smem);
		else
			mla_consume<dtype, fetch>(c, t, smem);
	} else {
		ptx_setmaxnreg_dec<mla_producer_regs(fetch)>();
		if (fetch >= MLA_THREADS_16 && threadIdx.x == MLA_CONSUMERS && t.count)
			mla_fetch_q(maps, t, smem, few ? few : MLA_ROWS);
		if constexpr (fetch >= MLA_THREADS_8)
			mla_produce_8bit<dtype, fetch, few != 0>(c, t, smem);
		else if (fetch == MLA_THREADS_16)
			mla_produce_16bit(c, t, smem);
		else if (threadIdx.x < MLA_CONSUMERS + 64 && threadIdx.x % 32 == 0 && t.count)
			mla_produce_boxes<fetch>(c, maps, t, smem);
		__syncwarp();
		if (c.splits == 1 && mla_copier() < 128)
			zero_rest(c);
	}
	/* the other CTA may still copy to this one's shared memory, or arrive there */
	if (mla_sharers(fetch) > 1)
		meet();
}

/* Sets the weights of a row's splits; lane i has those of splits i and i + 32. Returns the row's maximum. */
ATTN_DEV float weigh_splits(const struct mla_call &c, int64_t row, float weight[2], float *total)
{
	const int lane = threadIdx.x % 32;
	float top = -CUDART_INF_F;
	float2 ml[2];

#pragma unroll
	for (int k = 0; k < 2; k++) {
		int split = lane + 32 * k;

		ml[k] = split < c.splits ? c.ml[split * c.rows + row] : make_float2(-CUDART_INF_F, 0);
		top = fmaxf(top, ml[k].x);
	}
#pragma unroll
	for (int s = 16; s > 0; s /= 2)
		top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
	top = top == -CUDART_INF_F ? 0 : top;
	*total = 0;
#pragma unroll
	for (int k = 0; k < 2; k++) {
		weight[k] = ml[k].y > 0 ? ptx_ex2_approx_ftz((ml[k].x - top) * c.sm_scale * ATTN_LOG2E) : 0;
		*total += weight[k] * ml[k].y;
	}
#pragma unroll
	for (int s = 16; s > 0; s /= 2)
		*total += __shfl_xor_sync(~0u, *total, s);
	return top;
}

/* Merges the splits: one CTA for each row, four columns for each thread. */
template <int dtype>
static __global__ void __launch_bounds__(MERGE_THREADS)
mla_merge_kernel(const __grid_constant__ struct mla_call c)
{
	const int64_t row = blockIdx.x;
	float4 sum = make_float4(0, 0, 0, 0);
	float weight[2], total = 0, top = 0;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (row < (int64_t)c.qo_indptr[c.batch] * c.num_heads) {
		top = weigh_splits(c, row, weight, &total);
#pragma unroll 8
		for (int i = 0; i < c.splits; i++) {
			float w = __shfl_sync(~0u, i < 32 ? weight[0] : weight[1], i % 32);
			float4 v;

			if (w == 0)		/* a split without a key has no part[] */
				continue;
			v = ((const float4 *)c.part)[(i * c.rows + row) * (MLA_RANK / 4) + threadIdx.x];
			sum.x += w * v.x;
			sum.y += w * v.y;
			sum.z += w * v.z;
			sum.w += w * v.w;
		}
	}
	if (c.lse && threadIdx.x == 0)
		c.lse[row] = attn_lse(top, total, c.sm_scale);
	total = total > 0 ? 1 / total : 0;
	((uint2 *)c.out)[row * (MLA_RANK / 4) + threadIdx.x] =
		make_uint2(attn_pack<dtype>(sum.x * total, sum.y * total),
			   attn_pack<dtype>(sum.z * total, sum.w * total));
}

/* ---- host ---- */

/* Values that the host derives from the arguments. */
struct plan {
	struct mla_call call;
	enum mla_fetch fetch;
	int few;		/* MLA_FEWEST or MLA_FEW: no request has more packed rows; else 0 */
	int sms;
	int64_t bytes;		/* of the workspace */
};

static void choose_kernel(struct plan *p, const struct cairn_mla_decode_args *a)
{
	const int64_t rows = (int64_t)a->num_heads * (a->num_slots ? 1 : a->max_qo_len);

	p->few = rows <= MLA_FEWEST ? MLA_FEWEST : rows <= MLA_FEW ? MLA_FEW : 0;
	if (a->kv_fp8)
		p->fetch = MLA_THREADS_8;
	else if (p->few || a->num_slots || a->kv.page_size % MLA_KEYS)
		p->fetch = MLA_THREADS_16;
	else
		p->fetch = MLA_BOXES;
}

/* Returns an upper bound for the number of tasks of a split. */
static int64_t most_tasks(const struct cairn_mla_decode_args *a)
{
	int64_t of_token = (a->num_heads + MLA_ROWS - 1) / MLA_ROWS, all = (int64_t)a->nnz_qo * a->num_heads;
	int64_t of_request = ((int64_t)a->max_qo_len * a->num_heads + MLA_ROWS - 1) / MLA_ROWS;

	if (a->num_slots)
		return a->nnz_qo * of_token;
	if (a->max_qo_len == 1)
		return (a->nnz_qo < a->kv.batch ? a->nnz_qo : a->kv.batch) * of_token;
	/* each request has at most one partial tile */
	all = (all + MLA_ROWS - 1) / MLA_ROWS + a->kv.batch;
	return all < a->kv.batch * of_request ? all : a->kv.batch * of_request;
}

/*
 * Returns the number of splits with the least estimated time, in ns: each wave of CTAs has a fixed cost and a
 * cost for each tile of keys; the parts cost a write and a read.
 */
static int32_t choose_splits(const struct plan *p, int32_t max_keys)
{
	const int64_t tiles = (max_keys + MLA_KEYS - 1) / MLA_KEYS, room = p->sms;
	const double each = (double)p->call.rows * (MLA_RANK * sizeof(float) + sizeof(float2));
	double least = INFINITY;
	int32_t best = 1;

	for (int32_t n = 1; n <= MLA_MAX_SPLITS && n <= tiles && n <= room; n++) {
		int64_t waves = (p->call.tasks * (int64_t)n + room - 1) / room;
		double time = (double)waves * (3000 + 1500.0 * (double)((tiles + n - 1) / n));

		if (n > 1)
			time += 2500 + n * each / 1500;
		if (n > 1 && n * each > MAX_PARTIAL)
			break;
		if (time < least) {
			least = time;
			best = n;
		}
	}
	return best;
}

/*
 * Returns whether clusters of two pay. Tasks 2 n and 2 n + 1 must have the same keys. They do if no request
 * has more than one token, or each token has its slots, and there are more than 64 heads: they are then the
 * two row tiles of one request or token. There must also be enough keys to make up for the start, when each
 * CTA of a cluster waits for the other.
 */
static bool in_clusters(const struct plan *p, const struct cairn_mla_decode_args *a)
{
	const int32_t keys = a->num_slots ? a->num_slots : a->kv.max_len;

	return p->fetch != MLA_THREADS_16 && (a->num_slots || a->max_qo_len == 1) &&
	       a->num_heads > MLA_ROWS && keys >= CLUSTER_TILES * MLA_KEYS * p->call.splits &&
	       p->sms == cairn_num_sms();
}

/* Lays out the call and the workspace at `ws`, which may be NULL. Returns 0 or -errno. */
static int make_plan(struct plan *p, const struct cairn_mla_decode_args *a, char *ws)
{
	struct mla_call *c = &p->call;
	int64_t parts, tasks;

	p->sms = cairn_sms_of(a->sms);
	if (p->sms < 0)
		return p->sms;
	choose_kernel(p, a);
	c->out = a->out;
	c->lse = a->lse;
	c->pages = (const uint8_t *)a->kv.k_pages;
	c->qo_indptr = a->qo_indptr;
	c->kv_indptr = a->kv.indptr;
	c->kv_indices = a->kv.indices;
	c->last_page_len = a->kv.last_page_len;
	c->slots = a->num_slots ? a->slots : NULL;
	c->rows = (int64_t)a->nnz_qo * a->num_heads;
	c->magic = attn_magic((uint32_t)a->num_heads);
	c->batch = a->kv.batch;
	c->num_heads = a->num_heads;
	c->page_size = a->kv.page_size;
	c->page_shift = kv_page_shift(a->kv.page_size);
	c->num_slots = a->num_slots;
	c->sm_scale = a->sm_scale;
	tasks = most_tasks(a);
	if (tasks > INT32_MAX / 2 || c->rows > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "mla_decode: nnz_qo: %d rows of %d heads are too many",
				   a->nnz_qo, a->num_heads);
	/* at least one CTA, which zeroes the rows past the last one */
	c->tasks = tasks > 0 ? (int32_t)tasks : 1;
	c->splits = choose_splits(p, a->num_slots ? a->num_slots : a->kv.max_len);
	if (in_clusters(p, a))
		p->fetch = p->fetch == MLA_BOXES ? MLA_CLUSTERS : MLA_PAIRS_8;
	parts = c->splits > 1 ? c->splits * c->rows : 0;
	c->part = (float *)ws;
	c->ml = (float2 *)(ws + parts * MLA_RANK * sizeof(float));
	p->bytes = parts * (int64_t)(MLA_RANK * sizeof(float) + sizeof(float2));
	return 0;
}

static int map_rows(CUtensorMap *map, const void *data, uint64_t rows, uint64_t columns, int64_t stride,
		    uint32_t box)
{
	const struct cairn_tensor_layout t = {
		.data = data, .dims = 2, .element_bytes = 2, .size = { columns, rows ? rows : 1 },
		.stride = { (uint64_t)stride * 2 }, .box = { 64, box }, .swizzle = 128, .promotion = 256,
	};

	return cairn_tensor_map(map, &t, "mla_decode");
}

/* Maps the pool as [panel][key][64], so that a box of 64 keys has two panels. */
static int map_pairs(CUtensorMap *map, const void *pool, uint64_t slots)
{
	const struct cairn_tensor_layout t = {
		.data = pool, .dims = 3, .element_bytes = 2, .size = { 64, slots ? slots : 1, MLA_PANELS },
		.stride = { MLA_KEY_BYTES, ATTN_PANEL }, .box = { 64, MLA_KEYS, 2 }, .swizzle = 128,
		.promotion = 256,
	};

	return cairn_tensor_map(map, &t, "mla_decode");
}

static int make_maps(struct mla_maps *maps, const struct cairn_mla_decode_args *a, const struct plan *p)
{
	const uint64_t slots = (uint64_t)a->kv.num_pages * (uint64_t)a->kv.page_size;
	const uint32_t box = p->few ? (uint32_t)p->few : MLA_ROWS;

	CAIRN_TRY(map_rows(&maps->latent, a->q_latent, (uint64_t)p->call.rows, MLA_RANK,
			   cairn_mla_latent_stride(a), box));
	CAIRN_TRY(map_rows(&maps->rope, a->q_rope, (uint64_t)p->call.rows, MLA_ROPE, cairn_mla_rope_stride(a),
			   box));
	if (p->fetch >= MLA_THREADS_16)
		return 0;
	CAIRN_TRY(map_pairs(&maps->pairs, a->kv.k_pages, slots));
	return map_rows(&maps->panels, a->kv.k_pages, slots, MLA_RANK + MLA_ROPE, MLA_RANK + MLA_ROPE,
			MLA_KEYS);
}

template <int dtype, int fetch> static const void *kernel_of_few(int few)
{
	return few == MLA_FEWEST ? (const void *)mla_decode_kernel<dtype, fetch, MLA_FEWEST> :
	       few ? (const void *)mla_decode_kernel<dtype, fetch, MLA_FEW> :
		     (const void *)mla_decode_kernel<dtype, fetch, 0>;
}

template <int dtype> static const void *kernel_of(const struct plan *p)
{
	switch (p->fetch) {
	case MLA_BOXES:
		return (const void *)mla_decode_kernel<dtype, MLA_BOXES, 0>;
	case MLA_CLUSTERS:
		return (const void *)mla_decode_kernel<dtype, MLA_CLUSTERS, 0>;
	case MLA_PAIRS_8:
		return (const void *)mla_decode_kernel<dtype, MLA_PAIRS_8, 0>;
	case MLA_THREADS_16:
		return kernel_of_few<dtype, MLA_THREADS_16>(p->few);
	default:
		return kernel_of_few<dtype, MLA_THREADS_8>(p->few);
	}
}

/* Launches all tasks at once or, with `sms`, as many at a time as these SMs can run at once. */
static int launch_tasks(struct plan *p, struct mla_maps *maps, const struct cairn_mla_decode_args *a,
			void *stream)
{
	const void *kernel = a->dtype == CAIRN_F16 ? kernel_of<CAIRN_F16>(p) : kernel_of<CAIRN_BF16>(p);
	struct cairn_launch l = { .pdl = !a->sms, .stream = stream };
	void *params[] = { &p->call, maps };
	int at_once = p->call.tasks;

	l.grid[1] = (unsigned int)p->call.splits;
	l.cluster = mla_sharers(p->fetch) > 1 ? 2 : 0;
	l.block[0] = (unsigned int)mla_threads(p->fetch);
	l.smem = MLA_SMEM_BYTES;
	if (p->sms < cairn_num_sms())
		at_once = p->sms / p->call.splits;
	for (int first = 0; first < p->call.tasks; first += at_once) {
		int num = p->call.tasks - first < at_once ? p->call.tasks - first : at_once;

		p->call.first_task = first;
		l.grid[0] = (unsigned int)num;
		CAIRN_TRY(cairn_launch(kernel, &l, params));
	}
	return 0;
}

extern "C" int cairn_mla_decode(const struct cairn_mla_decode_args *args, void *stream)
{
	struct mla_maps maps = {};
	struct plan p = {};

	CAIRN_TRY(cairn_mla_decode_check(args));
	if (!args->kv.batch || !args->nnz_qo)
		return 0;
	CAIRN_TRY(make_plan(&p, args, (char *)args->workspace));
	if (p.bytes && (!args->workspace || args->workspace_bytes < (size_t)p.bytes))
		return cairn_error(EINVAL, "mla_decode: workspace: %lld bytes, 256-byte aligned, are needed",
				   (long long)p.bytes);
	CAIRN_TRY(make_maps(&maps, args, &p));
	CAIRN_TRY(launch_tasks(&p, &maps, args, stream));
	if (p.call.splits > 1) {
		struct cairn_launch merge = { .pdl = !args->sms, .stream = stream };
		void *params[] = { &p.call };

		merge.grid[0] = (unsigned int)p.call.rows;
		merge.block[0] = MERGE_THREADS;
		return cairn_launch(args->dtype == CAIRN_F16 ? (const void *)mla_merge_kernel<CAIRN_F16> :
				    (const void *)mla_merge_kernel<CAIRN_BF16>, &merge, params);
	}
	return 0;
}

extern "C" int cairn_mla_decode_workspace(const struct cairn_mla_decode_args *args, size_t *bytes)
{
	struct plan p = {};

	CAIRN_TRY(cairn_mla_decode_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "mla_decode_workspace: bytes: null pointer");
	if (args->kv.batch && args->nnz_qo)
		CAIRN_TRY(make_plan(&p, args, NULL));
	*bytes = (size_t)p.bytes;
	return 0;
}
