/* SPDX-License-Identifier: Apache-2.0 */
/* attn_dense_kernel - the kernel of attn_dense as a template, and descriptions of its instances */
#ifndef CAIRN_ATTN_DENSE_KERNEL_CUH
#define CAIRN_ATTN_DENSE_KERNEL_CUH

#include "fused/attention/dense/attn_dense_fetch.cuh"

/* An instance: its kernel for f16 and bf16, and the sizes of its form. */
struct attn_dense_kernel {
	const void *kernel[2];
	int32_t qk, v, rows, keys, threads;
	int32_t ctas;			/* of a cluster, which share the tiles of K and V; 1: no clusters */
	size_t smem;
};

/* Waits for all threads of the cluster. */
ATTN_DEV void attn_dense_meet(void)
{
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

template <int dtype, class F>
static __global__ __launch_bounds__(F::threads, 1) void
attn_dense_kernel(const __grid_constant__ struct attn_call a,
		  const __grid_constant__ struct attn_dense_plan plan,
		  const __grid_constant__ struct attn_dense_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	struct attn_smem<struct attn_row_tile> s = attn_lay_out<F, struct attn_row_tile>(s_all);

	if (threadIdx.x == 0)
		attn_init_barriers<F>(s, 1);
	__syncthreads();
	if (F::ctas > 1)
		attn_dense_meet();
	ptx_griddepcontrol_wait();
	if (threadIdx.x >= F::groups * 128) {
		ptx_setmaxnreg_dec<F::producer_regs>();
		if (threadIdx.x < F::groups * 128 + 32)
			attn_dense_produce<F>(plan, a, maps, s);
		else
			attn_dense_write_empty(plan, a, blockIdx.x * 3 + threadIdx.x / 32 - F::groups * 4 - 1,
					       gridDim.x * 3);
		ptx_griddepcontrol_launch_dependents();
	} else {
		ptx_setmaxnreg_inc<F::regs>();
		attn_consume<dtype, F, struct attn_range>(a, s);
	}
	/* the other CTA may still copy to this one's shared memory, or arrive there */
	if (F::ctas > 1)
		attn_dense_meet();
}

template <class F> static struct attn_dense_kernel attn_dense_instance(void)
{
	return { { (const void *)attn_dense_kernel<CAIRN_F16, F>,
		   (const void *)attn_dense_kernel<CAIRN_BF16, F> },
		 F::qk, F::v, F::rows, F::keys, F::threads, F::ctas, F::smem_bytes };
}

/* The instances; a name gives the dimensions with which the instance computes. */
struct attn_dense_kernel attn_dense_64(void);
struct attn_dense_kernel attn_dense_64_even(void);		/* with tiles that more lengths fill */
struct attn_dense_kernel attn_dense_96(void);
struct attn_dense_kernel attn_dense_128(void);
struct attn_dense_kernel attn_dense_128_long(void);
struct attn_dense_kernel attn_dense_128_pair(void);		/* attn_dense_128_long() in clusters of two */
struct attn_dense_kernel attn_dense_192_128(void);
struct attn_dense_kernel attn_dense_192_128_shared(void);	/* attn_dense_shared.h */
struct attn_dense_kernel attn_dense_256_128(void);
struct attn_dense_kernel attn_dense_128_256(void);
struct attn_dense_kernel attn_dense_256(void);

#endif
