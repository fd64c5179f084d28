/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_reduce_kernel - the kernel of all-reduce, around the device functions of cluster.cuh
 *
 * Each rank is one CTA, and all of its threads belong to the group. For each call the CTA copies the rank's
 * input from global to shared memory (RING and TREE: as fp32), runs the collective `rounds` times, and copies
 * the result back. There is a kernel for each algorithm, because instruction cache misses would be noticeable
 * in 400 cycles.
 */
#ifndef CAIRN_CLUSTER_REDUCE_KERNEL_CUH
#define CAIRN_CLUSTER_REDUCE_KERNEL_CUH

#include "primitives/cluster/cluster_offchip.cuh"
#include "primitives/cluster/cluster_reduce.h"

#define CLUSTER_REDUCE_THREADS	256		/* at most */
#define CLUSTER_REDUCE_SMEM	(227 * 1024)

/* Offsets in shared memory, computed on host and device alike; bytes: total. */
struct cluster_reduce_smem {
	uint32_t granules, ml_granules;		/* granules of a message, and of its (m, l) */
	uint32_t src, dst, src_ml, dst_ml, slots, set_bytes, bytes;
};

CAIRN_CLUSTER_INLINE int cluster_reduce_carries_fp32(int algo)
{
	return algo == CAIRN_CLUSTER_RING || algo == CAIRN_CLUSTER_TREE;
}

CAIRN_CLUSTER_INLINE uint32_t cluster_reduce_wire_bytes(const struct cairn_cluster_reduce_args *a)
{
	return (uint32_t)a->len * (a->dtype == CAIRN_F32 || cluster_reduce_carries_fp32(a->algo) ? 4 : 2);
}

CAIRN_CLUSTER_INLINE struct cluster_reduce_smem cluster_reduce_smem(const struct cairn_cluster_reduce_args *a)
{
	const uint32_t n = (uint32_t)a->cluster_size,
		       rows = a->op == CAIRN_CLUSTER_SOFTMAX ? a->len / a->head_dim : 0;
	struct cluster_reduce_smem p;
	uint32_t chunk, want, room;

	p.granules = (cluster_reduce_wire_bytes(a) + 15) / 16;
	p.ml_granules = (rows + 1) / 2;
	p.src = CLUSTER_STATE_BYTES;
	p.dst = p.src + p.granules * 16;
	p.src_ml = p.dst + p.granules * 16;
	p.dst_ml = p.src_ml + p.ml_granules * 16;
	p.slots = p.dst_ml + p.ml_granules * 16;
	/* slots for one piece if they fit, else all remaining shared memory */
	chunk = (p.granules + n - 1) / n;
	want = a->algo >= CAIRN_CLUSTER_OFFCHIP ? 0 :
	       a->algo == CAIRN_CLUSTER_TREE ? (uint32_t)cairn_cluster_log2((int)n) * p.granules :
	       a->algo == CAIRN_CLUSTER_ONESHOT ? (n - 1) * p.granules : (n - 1) * chunk;
	want += (n - 1) * p.ml_granules;
	room = (CLUSTER_REDUCE_SMEM - p.slots) / 32;
	p.set_bytes = (want < room ? want : room) * 16;
	p.bytes = p.slots + 2 * p.set_bytes;
	return p;
}

/*
 * Copy between global memory, where a row is aligned to its elements only, and shared memory, as fp32 or
 * unchanged.
 */
static __device__ __forceinline__ void
cluster_reduce_load(uint32_t dst, const void *src, int64_t first, uint32_t len, int dtype, int as_float)
{
	for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) {
		const uint32_t bits = dtype == CAIRN_F32 ? ((const uint32_t *)src)[first + i] :
							   ((const uint16_t *)src)[first + i];
		float v[2] = { __uint_as_float(bits) };

		if (dtype == CAIRN_BF16)
			cluster_unpack<CAIRN_BF16>(bits, v);
		else if (dtype == CAIRN_F16)
			cluster_unpack<CAIRN_F16>(bits, v);
		if (as_float)
			ptx_st_shared_f32(dst + i * 4, v[0]);
		else
			ptx_st_shared_b16(dst + i * 2, (uint16_t)bits);
	}
}

static __device__ __forceinline__ void
cluster_reduce_store(void *dst, int64_t first, uint32_t src, uint32_t len, int dtype, int as_float)
{
	for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) {
		float v[2] = { 0, 0 };
		uint32_t bits;

		if (as_float)
			v[0] = ptx_ld_shared_f32(src + i * 4);
		bits = !as_float ? ptx_ld_shared_b16(src + i * 2) :
		       dtype == CAIRN_BF16 ? cluster_pack<CAIRN_BF16>(v) :
		       dtype == CAIRN_F16 ? cluster_pack<CAIRN_F16>(v) : __float_as_uint(v[0]);
		if (dtype == CAIRN_F32)
			((uint32_t *)dst)[first + i] = bits;
		else
			((uint16_t *)dst)[first + i] = (uint16_t)bits;
	}
}

/*
 * Runs the collective `rounds` times. size: the cluster size as a constant, as in a fused kernel, so that the
 * compiler resolves everything that depends on it; 0: any size.
 */
template <int algo, int dtype, int softmax, int size>
static __device__ __forceinline__ void
cluster_reduce_repeat(struct cluster_comm *c, struct cluster_mailbox *box, const struct cluster_plan *plan,
		      int op, const struct cluster_buffers *b, int rounds)
{
	struct cluster_comm known = *c;

	if (size)
		known.size = size;
#pragma unroll 1
	for (int round = 0; round < rounds; round++)
		if constexpr (algo == CLUSTER_BY_FLAGS)
			cluster_offchip_reduce<dtype, softmax>(&known, box, plan, op, b);
		else if constexpr (algo == CLUSTER_BY_LL)
			cluster_ll_all_reduce<dtype, size ? size : CAIRN_CLUSTER_MAX_SIZE>(
				&known, box, plan->total * 4, op, b);
		else if constexpr (algo > CLUSTER_BY_FLAGS)
			cluster_mail_all_reduce<algo, dtype, size ? size : CAIRN_CLUSTER_MAX_SIZE>(
				&known, box, plan->total, op, b);
		else if (size)
			cluster_reduce_piece<algo, dtype, softmax>(&known, plan, op, b);
		else
			cluster_all_reduce<algo, dtype, softmax>(&known, plan, op, b);
	*c = known;
}

template <int algo, int dtype, int softmax>
static __device__ __forceinline__ void
cluster_reduce_rounds(struct cluster_comm *c, struct cluster_mailbox *box, const struct cluster_plan *plan,
		      int op, const struct cluster_buffers *b, int rounds)
{
	const int usual = (softmax || op == CAIRN_CLUSTER_SUM) &&
			  (uint32_t)plan->chunks.granules == plan->total;

	if (usual && c->size == 2)
		cluster_reduce_repeat<algo, dtype, softmax, 2>(c, box, plan, CAIRN_CLUSTER_SUM, b, rounds);
	else if (usual && c->size == 4)
		cluster_reduce_repeat<algo, dtype, softmax, 4>(c, box, plan, CAIRN_CLUSTER_SUM, b, rounds);
	else if (usual && c->size == 8)
		cluster_reduce_repeat<algo, dtype, softmax, 8>(c, box, plan, CAIRN_CLUSTER_SUM, b, rounds);
	else if (usual && c->size == 16)
		cluster_reduce_repeat<algo, dtype, softmax, 16>(c, box, plan, CAIRN_CLUSTER_SUM, b, rounds);
	else
		cluster_reduce_repeat<algo, dtype, softmax, 0>(c, box, plan, op, b, rounds);
}

/* dtype: type of the elements of a message */
template <int algo, int dtype, int softmax>
__global__ void __launch_bounds__(CLUSTER_REDUCE_THREADS, 1)
cluster_reduce_kernel(const __grid_constant__ struct cairn_cluster_reduce_args a)
{
	extern __shared__ __align__(128) unsigned char shared[];
	const struct cluster_reduce_smem p = cluster_reduce_smem(&a);
	const uint32_t s = cluster_keep(ptx_smem(shared)),
		       rows = softmax ? (uint32_t)(a.len / a.head_dim) : 0;
	const int64_t cluster = blockIdx.x / a.cluster_size;
	const struct cluster_buffers b = { cluster_keep(s + p.dst), s + p.src, cluster_keep(s + p.dst_ml),
					   cluster_keep(s + p.src_ml) };
	struct cluster_mailbox box = {};
	struct cluster_plan plan;
	struct cluster_comm c;
	int64_t cycles = 0;

	cluster_comm_init(&c, threadIdx.x, blockDim.x, 0, s, s + p.slots, p.set_bytes);
	if (algo >= CAIRN_CLUSTER_OFFCHIP)
		cluster_mailbox_init(&box, &c,
				     (char *)a.workspace + cluster * (a.workspace_bytes / a.num_clusters),
				     algo == CLUSTER_BY_FLAGS ? 0 :
				     algo == CLUSTER_BY_LL ? 2 * CLUSTER_LL_SETS * p.granules * c.size :
								4 * p.granules * (c.size + 1));
	cluster_plan_reduce(&plan, &c, algo, p.granules, rows, softmax ? (uint32_t)a.head_dim : 0);
	cluster_sync();

	/*
	 * If the call is timed, call 0 first runs once more, so that all instructions are in the instruction
	 * cache.
	 */
	for (int call = a.cycles ? -1 : 0; call < a.num_calls; call++) {
		const int64_t row = (cluster * a.num_calls + (call < 0 ? 0 : call)) * a.cluster_size + c.rank;
		const int rounds = call < 0 ? 2 : a.rounds;

		cluster_reduce_load(b.src, a.in, row * a.len, a.len, a.dtype, dtype == CAIRN_F32);
		if (softmax)
			cluster_reduce_load(b.src_ml, a.in_ml, row * rows * 2, rows * 2, CAIRN_F32, 1);
		__syncthreads();
		cycles = ptx_clock64();
		cluster_reduce_rounds<algo, dtype, softmax>(&c, &box, &plan, a.op, &b, rounds);
		cycles = (ptx_clock64() - cycles) / rounds;
		cluster_reduce_store(a.out, row * a.len, b.dst, a.len, a.dtype, dtype == CAIRN_F32);
		if (softmax)
			cluster_reduce_store(a.out_ml, row * rows * 2, b.dst_ml, rows * 2, CAIRN_F32, 1);
		__syncthreads();
	}
	if (a.cycles && threadIdx.x == 0)
		a.cycles[blockIdx.x] = cycles;
}

/* Returns the kernel of an algorithm that sends messages of any dtype. */
template <int algo> static const void *cluster_reduce_pick_kernel(int dtype, int softmax)
{
	switch (dtype) {
	case CAIRN_F32:
		return softmax ? (const void *)cluster_reduce_kernel<algo, CAIRN_F32, 1> :
				 (const void *)cluster_reduce_kernel<algo, CAIRN_F32, 0>;
	case CAIRN_F16:
		return softmax ? (const void *)cluster_reduce_kernel<algo, CAIRN_F16, 1> :
				 (const void *)cluster_reduce_kernel<algo, CAIRN_F16, 0>;
	default:
		return softmax ? (const void *)cluster_reduce_kernel<algo, CAIRN_BF16, 1> :
				 (const void *)cluster_reduce_kernel<algo, CAIRN_BF16, 0>;
	}
}

/* Each is in its own file, so that they compile in parallel. */
const void *cluster_reduce_oneshot_kernel(int dtype, int softmax);
const void *cluster_reduce_twoshot_kernel(int dtype, int softmax);
const void *cluster_reduce_offchip_kernel(int way, int dtype, int softmax);
const void *cluster_reduce_mail_kernel(int way, int dtype);
#endif
