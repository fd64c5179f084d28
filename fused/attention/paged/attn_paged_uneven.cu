/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_uneven - the decode kernel for requests of very different lengths
 *
 * A cluster of attn_paged.cu works on one task, and holds all of its SMs until its last CTA has ended. That
 * suits tasks of one length. Here, a task gets a team of 1, 2, 4, 8 or 16 CTAs, as many as it takes to give
 * none of them more than a share of the keys, and a cluster has teams of one size. Long tasks come first, so
 * that short ones fill the SMs beside them.
 *
 * Every CTA counts the requests of each size of team by itself: it reads all lengths of the batch, which
 * takes one round trip to the L2 for every 32 requests. So a captured graph serves any lengths within its
 * bounds. nnz_kv bounds the number of clusters; those that are left over exit.
 *
 * A request's team depends on its own length and on the share alone. So its bits do not depend on the lengths
 * of the other requests.
 *
 * Shared memory: that of attn_paged.cu, and struct item.
 * Barriers: __syncthreads() once before a task; then those of attn_paged.cu. If the cluster has teams of
 * several CTAs, CTAs without a task pass the cluster barriers, too.
 * Registers: 110, 169, 254 for head_dim 64, 128, 256; 122, 168, 246 with 8-bit keys; no spills.
 * Floor and optimisation history: attn_paged.cu, ../NOTES.md.
 */
#include "fused/attention/paged/attn_paged_team.cuh"
#include "fused/attention/paged/attn_paged_uneven.h"

/* Returns the logarithm of the size of a request's team; -1: there is no such request or nothing to do. */
ATTN_DEV int team_of(const struct cairn_attn_paged_args &a, const struct attn_uneven &u, int b, int largest)
{
	const int at = min(b, a.kv.batch - 1);	/* all loads are independent of each other */
	const int32_t rows = (a.qo_indptr[at + 1] - a.qo_indptr[at]) * u.group;
	const int32_t len = kv_walk_len(a.kv.indptr[at + 1] - a.kv.indptr[at], a.kv.last_page_len[at],
					a.kv.page_size);
	int32_t ctas = attn_div_up(min(len, u.max_keys), u.share);

	if (b > at || rows == 0 || rows > u.max_rows)
		return -1;
	return ctas <= 1 ? 0 : min(32 - __clz(ctas - 1), largest);
}

/* The task of a CTA, which warp 0 determines. */
struct item {
	int32_t tasks[ATTN_TEAM_SIZES];	/* number of tasks of each team size */
	int32_t size;			/* logarithm of the size of the cluster's teams; -1: no task */
	int32_t has_task;		/* whether this team has a task */
	struct attn_request r;		/* of that task */
};

/* Counts the tasks of each size of team. A warp calls it. */
ATTN_DEV void count_tasks(const struct cairn_attn_paged_args &a, const struct attn_uneven &u, int largest,
			  struct item *s)
{
	int lane = threadIdx.x % 32, num = 0;

	for (int first = 0; first < a.kv.batch; first += 32) {
		int size = team_of(a, u, first + lane, largest);

#pragma unroll
		for (int i = 0; i < ATTN_TEAM_SIZES; i++) {
			uint32_t theirs = __ballot_sync(~0u, size == i);

			num += lane == i ? __popc(theirs) : 0;
		}
	}
	if (lane < ATTN_TEAM_SIZES)
		s->tasks[lane] = num * a.num_kv_heads;
	__syncwarp();
}

/* Returns the request that is number n among those with teams of 1 << size CTAs. A warp calls it. */
ATTN_DEV int find_request(const struct cairn_attn_paged_args &a, const struct attn_uneven &u, int size,
			  int largest, int n)
{
	const int lane = threadIdx.x % 32;

	for (int first = 0;; first += 32) {
		bool theirs = team_of(a, u, first + lane, largest) == size;
		uint32_t all = __ballot_sync(~0u, theirs), before = all & ((1u << lane) - 1);
		uint32_t hit = __ballot_sync(~0u, theirs && __popc(before) == n);

		if (hit)
			return first + __ffs(hit) - 1;
		n -= __popc(all);
	}
}

/* Finds the task of this CTA. A warp calls it. */
ATTN_DEV void find_task(const struct cairn_attn_paged_args &a, const struct attn_uneven &u, int largest,
			struct item *s)
{
	const int ctas = ptx_cluster_nctarank();
	int size = largest, nth = ptx_clusterid_x(), num, task, b;
	bool has_task;

	/* the clusters of the largest teams come first */
	for (; size >= 0; size--) {
		num = attn_div_up(s->tasks[size], ctas >> size);
		if (nth < num)
			break;
		nth -= num;
	}
	task = size < 0 ? 0 : nth * (ctas >> size) + (ptx_cluster_ctarank() >> size);
	has_task = size >= 0 && task < s->tasks[size];
	if (has_task)
		b = find_request(a, u, size, largest, task / a.num_kv_heads);
	if (threadIdx.x)
		return;
	s->size = size;
	s->has_task = has_task;
	if (has_task)
		s->r = attn_load_request(a, b, task % a.num_kv_heads, u.group, u.magic);
}

/* Teams of one size share the cluster. */
struct part_of_cluster {
	const volatile int32_t *log_size;

	__device__ __forceinline__ int size() const { return 1 << *log_size; }
	__device__ __forceinline__ int first() const { return ptx_cluster_ctarank() & -size(); }
	__device__ __forceinline__ int rank() const { return ptx_cluster_ctarank() & (size() - 1); }
	__device__ __forceinline__ int share(int total, int rank) const
	{
		return (uint32_t)total * (uint32_t)rank >> *log_size;
	}
};

template <int dtype, int head_dim, bool fp8>
static __global__ __launch_bounds__(num_warps<head_dim, fp8>() * 32) void
attn_paged_uneven_kernel(const __grid_constant__ struct cairn_attn_paged_args a,
			 const __grid_constant__ struct attn_uneven u)
{
	__shared__ struct item s_item;

	/* as in attn_paged.cu; 32 lengths lie in a line */
	for (int i = threadIdx.x * 32; i < a.kv.batch; i += blockDim.x * 32) {
		ptx_prefetch_global_L2(a.kv.indptr + i);
		ptx_prefetch_global_L2(a.kv.last_page_len + i);
		ptx_prefetch_global_L2(a.qo_indptr + i);
	}
	ptx_griddepcontrol_wait();
	if (threadIdx.x < 32) {
		const int largest = 31 - __clz(ptx_cluster_nctarank());

		count_tasks(a, u, largest, &s_item);
		find_task(a, u, largest, &s_item);
	}
	__syncthreads();
	if (s_item.has_task) {
		const struct attn_request r = s_item.r;

		attend_rows<dtype, head_dim, fp8>(a, r, 0, r.qo_len * u.group,
						  (struct part_of_cluster){ &s_item.size });
	} else if (s_item.size > 0) {	/* all CTAs of the cluster arrive */
		for (int i = 0; i < 2; i++) {
			ptx_barrier_cluster_arrive_release();
			ptx_barrier_cluster_wait_acquire();
		}
	}
}

template <int head_dim> static const void *kernel_of(int32_t dtype, int32_t kv_fp8)
{
	if (kv_fp8)
		return dtype == CAIRN_F16 ?
		       (const void *)attn_paged_uneven_kernel<CAIRN_F16, head_dim, true> :
		       (const void *)attn_paged_uneven_kernel<CAIRN_BF16, head_dim, true>;
	return dtype == CAIRN_F16 ?
	       (const void *)attn_paged_uneven_kernel<CAIRN_F16, head_dim, false> :
	       (const void *)attn_paged_uneven_kernel<CAIRN_BF16, head_dim, false>;
}

const void *attn_paged_uneven_kernel(int32_t dtype, int32_t head_dim, int32_t kv_fp8)
{
	return head_dim == 64 ? kernel_of<64>(dtype, kv_fp8) :
	       head_dim == 128 ? kernel_of<128>(dtype, kv_fp8) : kernel_of<256>(dtype, kv_fp8);
}
