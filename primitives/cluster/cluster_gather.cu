/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_gather - kernel and launcher of all-gather, around the device functions of cluster.cuh
 *
 * Each rank is one CTA, and all of its threads belong to the group. For each call the CTA copies the rank's
 * block from global to shared memory, runs the collective `rounds` times, and copies the result back. Shared
 * memory: state (512 bytes), the block, and two sets of results if they fit, else one. mbarriers and threads
 * are those of cluster_reduce.cu.
 *
 * H200, SM cycles of one all-gather, one cluster alone (all clusters of the chip at once: within 15%):
 *
 *   cluster size               2      4      8     16
 *   256 B per rank ONESHOT   317    351    419    637
 *                  TREE      714   1095   1477   1947
 *                  RING      626   1298   2642   5477
 *                  OFFCHIP   553    586    748    997
 *   4 KB per rank  ONESHOT   534    940   1743   3998
 *                  OFFCHIP  1181   2176   2501   3215
 *
 * ONESHOT is the fastest on-chip algorithm for any size: all algorithms send the same bytes, and ONESHOT
 * sends them in one hop. Floor: the hop (cluster_reduce.cu), and N - 1 blocks at 12.7 B/clk with all SMs
 * active, or about 20 B/clk for a cluster alone. OFFCHIP uses LL words up to 512 B, mails up to 16 KB in all,
 * else flags (cluster_offchip.cuh).
 *
 * Optimisation history: NOTES.md.
 */
#include "primitives/cluster/cluster_gather.h"

#include "primitives/cluster/cluster_offchip.cuh"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

#define THREADS		256
#define MAX_SMEM	(227 * 1024)

struct plan {
	uint32_t granules, num_sets;	/* granules of a block; sets of results */
	uint32_t src, dst, bytes;	/* offsets in shared memory; its size */
};

CAIRN_CLUSTER_INLINE struct plan make_plan(const struct cairn_cluster_gather_args *a)
{
	const uint32_t n = (uint32_t)a->cluster_size;
	struct plan p;

	p.granules = ((uint32_t)a->len * (a->dtype == CAIRN_F32 ? 4 : 2) + 15) / 16;
	p.src = CLUSTER_STATE_BYTES;
	p.dst = p.src + p.granules * 16;
	p.num_sets = p.dst + 2 * n * p.granules * 16 <= MAX_SMEM ? 2 : 1;
	p.bytes = p.dst + p.num_sets * n * p.granules * 16;
	return p;
}

/* Elements are 2 or 4 bytes; a row in global memory is aligned to its elements only. */
template <typename word>
static __device__ void load(unsigned char *dst, const void *src, int64_t first, uint32_t len)
{
	for (uint32_t i = threadIdx.x; i < len; i += blockDim.x)
		((word *)dst)[i] = ((const word *)src)[first + i];
}

/* Stores a result as n rows of len elements. */
template <typename word>
static __device__ void store(void *dst, int64_t first, const unsigned char *src, uint32_t n, uint32_t len,
			     uint32_t block)
{
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t i = threadIdx.x; i < len; i += blockDim.x)
			((word *)dst)[first + r * len + i] = ((const word *)(src + r * block))[i];
}

/* size: the cluster size as a constant, as in a fused kernel; 0: any size */
template <int size>
static __device__ __forceinline__ uint32_t repeat_oneshot(struct cluster_comm *c,
							  const struct cluster_grid *grid,
							  const struct cluster_gather_buffers *b, int rounds)
{
	struct cluster_comm known = *c;
	uint32_t result = b->dst;

	if (size)
		known.size = size;
#pragma unroll 1
	for (int round = 0; round < rounds; round++)
		result = cluster_gather_oneshot(&known, grid, b);
	*c = known;
	return result;
}

template <int size>
static __device__ __forceinline__ void repeat_ll(struct cluster_comm *c, struct cluster_mailbox *box,
						    const struct cluster_gather_buffers *b, int rounds)
{
	struct cluster_comm known = *c;

	if (size)
		known.size = size;
#pragma unroll 1
	for (int round = 0; round < rounds; round++)
		cluster_ll_gather<size ? size : CAIRN_CLUSTER_MAX_SIZE>(&known, box, b->dst, b->src,
									b->granules * 4);
	*c = known;
}

/* Runs the collective `rounds` times; returns the address of the result. */
template <int way>
static __device__ __forceinline__ uint32_t repeat(struct cluster_comm *c, struct cluster_mailbox *box,
						  int algo, const struct cluster_grid *grid,
						  const struct cluster_gather_buffers *b, int rounds)
{
	uint32_t result = b->dst;

	if constexpr (way == 0) {
		if (algo == CAIRN_CLUSTER_RING || algo == CAIRN_CLUSTER_TREE)
			for (int round = 0; round < rounds; round++)
				result = cluster_gather_steps(c, algo, grid, b);
		else if (c->size == 2)
			result = repeat_oneshot<2>(c, grid, b, rounds);
		else if (c->size == 4)
			result = repeat_oneshot<4>(c, grid, b, rounds);
		else if (c->size == 8)
			result = repeat_oneshot<8>(c, grid, b, rounds);
		else if (c->size == 16)
			result = repeat_oneshot<16>(c, grid, b, rounds);
		else
			result = repeat_oneshot<0>(c, grid, b, rounds);
	} else if constexpr (way == CLUSTER_BY_LL) {
		if (c->size == 2)
			repeat_ll<2>(c, box, b, rounds);
		else if (c->size == 4)
			repeat_ll<4>(c, box, b, rounds);
		else if (c->size == 8)
			repeat_ll<8>(c, box, b, rounds);
		else if (c->size == 16)
			repeat_ll<16>(c, box, b, rounds);
		else
			repeat_ll<0>(c, box, b, rounds);
	} else {
#pragma unroll 1
		for (int round = 0; round < rounds; round++)
			if constexpr (way == CLUSTER_BY_MAIL)
				cluster_mail_gather(c, box, b->dst, b->src, b->granules);
			else
				cluster_offchip_gather(c, box, b->dst, b->src, b->granules);
	}
	return result;
}

/* way: enum cluster_offchip_way, or 0 for all on-chip algorithms */
template <int way>
__global__ void __launch_bounds__(THREADS, 1)
cluster_gather_kernel(const __grid_constant__ struct cairn_cluster_gather_args a)
{
	extern __shared__ __align__(128) unsigned char shared[];
	const struct plan p = make_plan(&a);
	const uint32_t s = cluster_keep(ptx_smem(shared)), n = (uint32_t)a.cluster_size,
		       len = (uint32_t)a.len;
	const int64_t cluster = blockIdx.x / a.cluster_size;
	const struct cluster_gather_buffers b = { cluster_keep(s + p.dst), s + p.src,
						  cluster_keep(p.granules), p.num_sets };
	struct cluster_mailbox box = {};
	struct cluster_grid grid;
	struct cluster_comm c;
	int64_t cycles = 0;

	cluster_comm_init(&c, threadIdx.x, blockDim.x, 0, s, 0, 0);
	grid = cluster_grid(&c, b.granules);
	if (way)
		cluster_mailbox_init(&box, &c,
				     (char *)a.workspace + cluster * (a.workspace_bytes / a.num_clusters),
				     way == CLUSTER_BY_LL ? 2 * CLUSTER_LL_SETS * p.granules * n :
				     way == CLUSTER_BY_MAIL ? 4 * p.granules * n : 0);
	cluster_sync();

	/*
	 * If the call is timed, call 0 first runs once more, so that all instructions are in the instruction
	 * cache.
	 */
	for (int call = a.cycles ? -1 : 0; call < a.num_calls; call++) {
		const int64_t row = (cluster * a.num_calls + (call < 0 ? 0 : call)) * n + c.rank;
		const int rounds = call < 0 ? 2 : a.rounds;
		uint32_t result;

		if (a.dtype == CAIRN_F32)
			load<uint32_t>(shared + p.src, a.in, row * len, len);
		else
			load<uint16_t>(shared + p.src, a.in, row * len, len);
		__syncthreads();
		cycles = ptx_clock64();
		result = repeat<way>(&c, &box, a.algo, &grid, &b, rounds);
		cycles = (ptx_clock64() - cycles) / rounds;
		if (a.dtype == CAIRN_F32)
			store<uint32_t>(a.out, row * n * len, shared + (result - s), n, len, p.granules * 16);
		else
			store<uint16_t>(a.out, row * n * len, shared + (result - s), n, len, p.granules * 16);
		__syncthreads();
	}
	if (a.cycles && threadIdx.x == 0)
		a.cycles[blockIdx.x] = cycles;
}

static const void *pick_kernel(const struct cairn_cluster_gather_args *a)
{
	if (a->algo != CAIRN_CLUSTER_OFFCHIP)
		return (const void *)cluster_gather_kernel<0>;
	switch (cluster_offchip_pick_gather(a->cluster_size, make_plan(a).granules)) {
	case CLUSTER_BY_LL:
		return (const void *)cluster_gather_kernel<CLUSTER_BY_LL>;
	case CLUSTER_BY_MAIL:
		return (const void *)cluster_gather_kernel<CLUSTER_BY_MAIL>;
	default:
		return (const void *)cluster_gather_kernel<CLUSTER_BY_FLAGS>;
	}
}

extern "C" int cairn_cluster_gather_workspace(const struct cairn_cluster_gather_args *args, size_t *bytes)
{
	size_t one, sets;

	CAIRN_TRY(cairn_cluster_gather_check_shape(args));
	one = (size_t)args->cluster_size * make_plan(args).granules;
	sets = cluster_offchip_pick_gather(args->cluster_size, make_plan(args).granules) == CLUSTER_BY_LL ?
		CLUSTER_LL_SETS : 2;
	one = (cluster_offchip_bytes(sets * one) + 255) / 256 * 256;
	*bytes = args->algo == CAIRN_CLUSTER_OFFCHIP ? (size_t)args->num_clusters * one : 0;
	return 0;
}

extern "C" int cairn_cluster_gather(const struct cairn_cluster_gather_args *args, void *stream)
{
	const void *kernel;
	struct cairn_cluster_gather_args a;
	struct cairn_launch launch = {};
	void *params[] = { &a };
	size_t need;
	int active;

	CAIRN_TRY(cairn_cluster_gather_check(args));
	CAIRN_TRY(cairn_cluster_gather_workspace(args, &need));
	if (args->num_clusters == 0)
		return 0;
	a = *args;
	if (need && (!a.workspace || a.workspace_bytes < need))
		return cairn_error(EINVAL, "cluster_gather: workspace: %zu bytes needed", need);
	a.workspace_bytes = need;
	kernel = pick_kernel(&a);
	launch.grid[0] = (unsigned int)a.num_clusters * (unsigned int)a.cluster_size;
	launch.block[0] = (a.cluster_size - 1) * make_plan(&a).granules <= THREADS / 2 ?
			  THREADS / 2 : THREADS;
	launch.smem = make_plan(&a).bytes;
	launch.cluster = a.cluster_size;
	launch.stream = stream;
	active = cairn_max_active_clusters(kernel, &launch);
	if (active < 0)
		return active;
	if (active == 0)
		return cairn_error(EOPNOTSUPP, "cluster_gather: cluster_size: this device does not allow "
				   "%d with %zu bytes of shared memory", a.cluster_size, launch.smem);
	return cairn_launch(kernel, &launch, params);
}
