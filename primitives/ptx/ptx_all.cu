/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_all - uses every wrapper of ptx.cuh and ptx_copy.cuh once, so that ptxas checks all of them
 *
 * The kernels are never launched. tools/lint.sh complains if a wrapper is missing here.
 */
#include "primitives/ptx/ptx_copy.cuh"

__global__ void ptx_all_kernel(void *g, uint64_t *out, uint32_t a, uint32_t n)
{
	uint32_t *word = (uint32_t *)g, r2[2] = { a, n }, r4[4] = { a, n, a, n };
	uint64_t *wide = (uint64_t *)g, u64 = a, sum = 0;
	uint2 v2 = make_uint2(a, n);
	uint4 v4 = make_uint4(a, n, a, n);
	float f = 1, d4[4] = { f, f, f, f };

	sum += ptx_laneid();
	sum += ptx_smid();
	sum += ptx_nsmid();
	sum += ptx_clusterid_x();
	sum += ptx_nclusterid_x();
	sum += ptx_cluster_ctarank();
	sum += ptx_cluster_nctarank();
	sum += ptx_dynamic_smem_size();
	sum += ptx_clock64();
	sum += ptx_globaltimer();
	ptx_spin_check(a, "x", a, a);
	f += ptx_ex2_approx_ftz(f);
	f += ptx_rcp_approx_ftz(f);
	f += ptx_max_nan(f, f);
	f += ptx_min_nan(f, f);
	sum += ptx_smem(g);
	sum += (uint64_t)ptx_cvta_shared_u64(a);
	sum += ptx_mapa(a, a);
	f += ptx_ld_shared_f32(a);
	sum += ptx_ld_shared_b16(a);
	ptx_st_shared_b16(a, (uint16_t)n);
	sum += ptx_ld_shared_b32(a);
	v2 = ptx_ld_shared_v2(a);
	v4 = ptx_ld_shared_v4(a);
	ptx_st_shared_f32(a, f);
	ptx_st_shared_b32(a, n);
	ptx_st_shared_v2(a, v2);
	ptx_st_shared_v4(a, v4);
	sum += ptx_ld_shared_cluster_b32(a);
	v4 = ptx_ld_shared_cluster_v4(a);
	ptx_st_shared_cluster_b32(a, a);
	ptx_st_shared_cluster_v4(a, v4);
	sum += ptx_ld_relaxed_cluster_shared_b64(a);
	ptx_st_relaxed_cluster_shared_b64(a, u64);
	ptx_st_async_b32(a, a, a);
	ptx_st_async_b64(a, u64, a);
	ptx_st_async_v2(a, v2, a);
	ptx_st_async_v4(a, v4, a);
	ptx_red_async_add_u32(a, a, a);
	ptx_red_async_add_u64(a, u64, a);
	sum += ptx_ld_relaxed_gpu_u32(word);
	sum += ptx_ld_acquire_gpu_u32(word);
	ptx_st_relaxed_gpu_u32(word, a);
	ptx_st_release_gpu_u32(word, a);
	ptx_red_release_gpu_add_u32(word, n);
	sum += ptx_atom_acq_rel_gpu_add_u32(word, n);
	sum += ptx_ld_relaxed_gpu_u64(wide);
	ptx_st_relaxed_gpu_u64(wide, u64);
	v4 = ptx_ld_relaxed_gpu_v2_u64(g);
	ptx_st_relaxed_gpu_v2_u64(g, v4);
	sum += ptx_ld_global_cg_u64(wide);
	v2 = ptx_ld_global_nc_no_allocate_v2(g);
	v4 = ptx_ld_global_nc_no_allocate_v4(g);
	v4 = ptx_ld_global_nc_no_allocate_hint_v4(g, u64);
	sum += ptx_createpolicy_evict_first();
	sum += ptx_createpolicy_evict_last();
	ptx_prefetch_global_L2(g);
	ptx_prefetch_tensormap(g);
	ptx_bar_sync(n, 32);
	ptx_bar_arrive(n, 32);
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_arrive_relaxed();
	ptx_barrier_cluster_wait_acquire();
	ptx_fence_acq_rel_cluster();
	ptx_fence_acq_rel_gpu();
	ptx_fence_acq_rel_sys();
	ptx_fence_mbarrier_init_release_cluster();
	ptx_fence_proxy_async();
	ptx_fence_proxy_async_shared_cta();
	ptx_fence_proxy_async_shared_cluster();
	ptx_fence_proxy_async_global();
	ptx_mbarrier_init(a, a);
	ptx_mbarrier_inval(a);
	ptx_mbarrier_arrive(a);
	ptx_mbarrier_arrive_count(a, a);
	ptx_mbarrier_arrive_cluster(a);
	ptx_mbarrier_arrive_relaxed_cluster(a);
	ptx_mbarrier_expect_tx(a, a);
	ptx_mbarrier_arrive_expect_tx(a, a);
	ptx_mbarrier_arrive_expect_tx_cluster(a, a);
	sum += ptx_mbarrier_test_wait_parity(a, a);
	sum += ptx_mbarrier_try_wait_parity(a, a);
	sum += ptx_mbarrier_try_wait_parity_cluster(a, a);
	ptx_mbarrier_wait(a, a);
	ptx_mbarrier_wait_cluster(a, a);
	ptx_cp_async_bulk_g2s(a, g, a, a);
	ptx_cp_async_bulk_g2s_hint(a, g, a, a, u64);
	ptx_cp_async_bulk_g2s_multicast(a, g, a, a, (uint16_t)a);
	ptx_cp_async_bulk_s2s(a, a, a, a);
	ptx_cp_async_bulk_s2g(g, a, a);
	ptx_cp_reduce_async_bulk_s2g_add_f32((float *)g, a, a);
	ptx_cp_async_bulk_prefetch_L2(g, a);
	ptx_cp_async_bulk_commit_group();
	ptx_cp_async_bulk_wait_group<1>();
	ptx_cp_async_bulk_wait_group_read<1>();
	ptx_cp_async_bulk_tensor_1d_g2s(a, g, a, a);
	ptx_cp_async_bulk_tensor_2d_g2s(a, g, a, a, a);
	ptx_cp_async_bulk_tensor_2d_g2s_hint(a, g, a, a, a, u64);
	ptx_cp_async_bulk_tensor_4d_g2s_hint(a, g, a, a, a, a, a, u64);
	ptx_cp_async_bulk_tensor_3d_g2s(a, g, a, a, a, a);
	ptx_cp_async_bulk_tensor_4d_g2s(a, g, a, a, a, a, a);
	ptx_cp_async_bulk_tensor_4d_g2s_multicast(a, g, a, a, a, a, a, (uint16_t)a);
	ptx_cp_async_bulk_tensor_5d_g2s(a, g, a, a, a, a, a, a);
	ptx_cp_async_bulk_tensor_5d_g2s_hint(a, g, a, a, a, a, a, a, u64);
	ptx_cp_async_bulk_tensor_2d_g2s_multicast(a, g, a, a, a, (uint16_t)a);
	ptx_cp_async_bulk_tensor_3d_g2s_multicast(a, g, a, a, a, a, (uint16_t)a);
	ptx_cp_async_bulk_tensor_1d_s2g(g, a, a);
	ptx_cp_async_bulk_tensor_2d_s2g(g, a, a, a);
	ptx_cp_async_bulk_tensor_3d_s2g(g, a, a, a, a);
	ptx_cp_async_bulk_prefetch_tensor_2d(g, a, a);
	ptx_cp_async_bulk_prefetch_tensor_3d(g, a, a, 0);
	ptx_cp_async_cg(a, g, a);
	ptx_cp_async_cg_hint(a, g, 16, u64);
	ptx_cp_async_ca(a, g, a);
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<1>();
	ptx_cp_async_mbarrier_arrive_noinc(a);
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	ptx_ldmatrix_x2(r2,a);
	ptx_ldmatrix_x2_trans(r2,a);
	ptx_ldmatrix_x4(r4,a);
	ptx_ldmatrix_x4_trans(r4,a);
	ptx_stmatrix_x4(a,r4);
	ptx_stmatrix_x4_trans(a,r4);
	sum += ptx_movmatrix_trans(n);
	ptx_mma_m16n8k16_f16(d4,r4,r2);
	ptx_mma_m16n8k16_bf16(d4,r4,r2);
	out[0] = sum + v2.x + v2.y + v4.x + v4.y + v4.z + v4.w + r2[0] + r4[0] +
		 (uint64_t)(f + d4[0] + d4[1]);
}

/* setmaxnreg compiles only in a kernel with launch bounds. */
__global__ void __launch_bounds__(128, 1) ptx_all_setmaxnreg_kernel(void)
{
	ptx_setmaxnreg_inc<64>();
	ptx_setmaxnreg_dec<40>();
}
