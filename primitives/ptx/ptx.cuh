/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx - one wrapper per PTX instruction, named ptx_ and the mnemonic with underscores for dots
 *
 * The comment above each group names the section of the PTX ISA manual (version 9.0) that explains its
 * instructions. A wrapper adds no meaning to its instruction, except ptx_mbarrier_wait() and
 * ptx_mbarrier_wait_cluster(), which loop on try_wait. In DEBUG=N builds, these loops trap after about 2 N
 * seconds and report which thread waits for what. Other spin loops call ptx_spin_check() for the same
 * purpose.
 *
 * Addresses of shared memory are uint32_t in the shared window: ptx_smem(p) for the CTA's own memory,
 * ptx_mapa() of such an address for a peer's memory in the cluster. An address of the CTA's own memory is
 * valid wherever a cluster address is.
 *
 * Asm that accesses or orders memory is volatile with a "memory" clobber; asm that only computes has neither.
 */
#ifndef CAIRN_PTX_CUH
#define CAIRN_PTX_CUH

#include <stdint.h>

#ifdef CAIRN_DEBUG
extern "C" __device__ void __assertfail(const char *assertion, const char *file, unsigned int line,
					const char *function, size_t char_size);
#endif

#define PTX static __device__ __forceinline__

/* ---- special registers (10) ---- */

PTX uint32_t ptx_laneid(void) { uint32_t v; asm("mov.u32 %0, %%laneid;" : "=r"(v)); return v; }
PTX uint32_t ptx_smid(void) { uint32_t v; asm("mov.u32 %0, %%smid;" : "=r"(v)); return v; }
PTX uint32_t ptx_nsmid(void) { uint32_t v; asm("mov.u32 %0, %%nsmid;" : "=r"(v)); return v; }
PTX uint32_t ptx_clusterid_x(void) { uint32_t v; asm("mov.u32 %0, %%clusterid.x;" : "=r"(v)); return v; }
PTX uint32_t ptx_nclusterid_x(void) { uint32_t v; asm("mov.u32 %0, %%nclusterid.x;" : "=r"(v)); return v; }

PTX uint32_t ptx_cluster_ctarank(void)
{
	uint32_t v;

	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v));
	return v;
}

PTX uint32_t ptx_cluster_nctarank(void)
{
	uint32_t v;

	asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(v));
	return v;
}

PTX uint32_t ptx_dynamic_smem_size(void)
{
	uint32_t v;

	asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(v));
	return v;
}

/* volatile keeps two reads from being merged; the clobber keeps the timed work between them */
PTX int64_t ptx_clock64(void)
{
	int64_t v;

	asm volatile("mov.u64 %0, %%clock64;" : "=l"(v) : : "memory");
	return v;
}

PTX uint64_t ptx_globaltimer(void)
{
	uint64_t v;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v) : : "memory");
	return v;
}

/*
 * For the body of a spin loop; start is ptx_clock64() before the loop. Traps as a failed assert() does, with
 * its message: "WHAT:a: odd or even (b): block: [..], thread: [..] Assertion `waited in vain` failed."
 * (printf would need a stack in every kernel.)
 */
PTX void ptx_spin_check(int64_t start, const char *what, uint32_t a, uint32_t b)
{
#ifdef CAIRN_DEBUG
	if (ptx_clock64() - start > 4000000000ll * CAIRN_DEBUG)
		__assertfail("waited in vain", what, a, b & 1 ? "odd" : "even", 1);
#else
	(void)start, (void)what, (void)a, (void)b;
#endif
}

/* ---- arithmetic without a C spelling (9.7.3) ---- */

PTX float ptx_ex2_approx_ftz(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

PTX float ptx_rcp_approx_ftz(float x)
{
	float y;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

PTX float ptx_max_nan(float a, float b)
{
	float y;

	asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
	return y;
}

PTX float ptx_min_nan(float a, float b)
{
	float y;

	asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
	return y;
}

/* ---- addresses (9.7.9.20 cvta, 9.7.9.22 mapa) ---- */

PTX uint32_t ptx_smem(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
PTX const void *ptx_cvta_shared_u64(uint32_t addr) { return __cvta_shared_to_generic(addr); }

PTX uint32_t ptx_mapa(uint32_t addr, uint32_t cta_rank)
{
	uint32_t v;

	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(v) : "r"(addr), "r"(cta_rank));
	return v;
}

/* ---- loads and stores of the CTA's own and of peers' shared memory (9.7.9.8 ld, 9.7.9.12 st) ---- */

PTX float ptx_ld_shared_f32(uint32_t addr)
{
	float v;

	asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(addr) : "memory");
	return v;
}

PTX uint16_t ptx_ld_shared_b16(uint32_t addr)
{
	uint16_t v;

	asm volatile("ld.shared.b16 %0, [%1];" : "=h"(v) : "r"(addr) : "memory");
	return v;
}

PTX void ptx_st_shared_b16(uint32_t addr, uint16_t v)
{
	asm volatile("st.shared.b16 [%0], %1;" : : "r"(addr), "h"(v) : "memory");
}

PTX uint32_t ptx_ld_shared_b32(uint32_t addr)
{
	uint32_t v;

	asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(addr) : "memory");
	return v;
}

PTX uint2 ptx_ld_shared_v2(uint32_t addr)
{
	uint2 v;

	asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(addr) : "memory");
	return v;
}

PTX uint4 ptx_ld_shared_v4(uint32_t addr)
{
	uint4 v;

	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(addr) : "memory");
	return v;
}

PTX void ptx_st_shared_f32(uint32_t addr, float v)
{
	asm volatile("st.shared.f32 [%0], %1;" : : "r"(addr), "f"(v) : "memory");
}

PTX void ptx_st_shared_b32(uint32_t addr, uint32_t v)
{
	asm volatile("st.shared.b32 [%0], %1;" : : "r"(addr), "r"(v) : "memory");
}

PTX void ptx_st_shared_v2(uint32_t addr, uint2 v)
{
	asm volatile("st.shared.v2.b32 [%0], {%1, %2};" : : "r"(addr), "r"(v.x), "r"(v.y) : "memory");
}

PTX void ptx_st_shared_v4(uint32_t addr, uint4 v)
{
	asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
		     : : "r"(addr), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

PTX uint32_t ptx_ld_shared_cluster_b32(uint32_t addr)
{
	uint32_t v;

	asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(v) : "r"(addr) : "memory");
	return v;
}

PTX uint4 ptx_ld_shared_cluster_v4(uint32_t addr)
{
	uint4 v;

	asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(addr) : "memory");
	return v;
}

PTX void ptx_st_shared_cluster_b32(uint32_t addr, uint32_t v)
{
	asm volatile("st.shared::cluster.b32 [%0], %1;" : : "r"(addr), "r"(v) : "memory");
}

PTX void ptx_st_shared_cluster_v4(uint32_t addr, uint4 v)
{
	asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};"
		     : : "r"(addr), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/* .relaxed makes the access single-copy atomic, so a value and its flag may share the 64 bits */
PTX uint64_t ptx_ld_relaxed_cluster_shared_b64(uint32_t addr)
{
	uint64_t v;

	asm volatile("ld.relaxed.cluster.shared::cta.b64 %0, [%1];" : "=l"(v) : "r"(addr) : "memory");
	return v;
}

PTX void ptx_st_relaxed_cluster_shared_b64(uint32_t addr, uint64_t v)
{
	asm volatile("st.relaxed.cluster.shared::cluster.b64 [%0], %1;" : : "r"(addr), "l"(v) : "memory");
}

/* ---- st.async, red.async to a peer, counted in bytes by the peer's mbarrier (9.7.9.13, 9.7.13.8) ---- */

PTX void ptx_st_async_b32(uint32_t addr, uint32_t v, uint32_t mbar)
{
	asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
		     : : "r"(addr), "r"(v), "r"(mbar) : "memory");
}

PTX void ptx_st_async_b64(uint32_t addr, uint64_t v, uint32_t mbar)
{
	asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
		     : : "r"(addr), "l"(v), "r"(mbar) : "memory");
}

PTX void ptx_st_async_v2(uint32_t addr, uint2 v, uint32_t mbar)
{
	asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
		     : : "r"(addr), "r"(v.x), "r"(v.y), "r"(mbar) : "memory");
}

PTX void ptx_st_async_v4(uint32_t addr, uint4 v, uint32_t mbar)
{
	asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
		     "[%0], {%1, %2, %3, %4}, [%5];"
		     : : "r"(addr), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(mbar) : "memory");
}

PTX void ptx_red_async_add_u32(uint32_t addr, uint32_t v, uint32_t mbar)
{
	asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 "
		     "[%0], %1, [%2];"
		     : : "r"(addr), "r"(v), "r"(mbar) : "memory");
}

PTX void ptx_red_async_add_u64(uint32_t addr, uint64_t v, uint32_t mbar)
{
	asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64 "
		     "[%0], %1, [%2];"
		     : : "r"(addr), "l"(v), "r"(mbar) : "memory");
}

/* ---- global memory: flags, counters, LL words, streaming loads (9.7.9.8, 9.7.9.12) ---- */

PTX uint32_t ptx_ld_relaxed_gpu_u32(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

PTX uint32_t ptx_ld_acquire_gpu_u32(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

PTX void ptx_st_relaxed_gpu_u32(uint32_t *p, uint32_t v)
{
	asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

PTX void ptx_st_release_gpu_u32(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

PTX void ptx_red_release_gpu_add_u32(uint32_t *p, uint32_t v)
{
	asm volatile("red.release.gpu.global.add.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

PTX uint32_t ptx_atom_acq_rel_gpu_add_u32(uint32_t *p, uint32_t v)
{
	uint32_t old;

	asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
	return old;
}

PTX uint64_t ptx_ld_relaxed_gpu_u64(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

PTX void ptx_st_relaxed_gpu_u64(uint64_t *p, uint64_t v)
{
	asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}

/* Each 64-bit half is single-copy atomic; the 16 bytes together are not. .x and .y are the first half. */
PTX uint4 ptx_ld_relaxed_gpu_v2_u64(const void *p)
{
	uint64_t a, b;

	asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
	return make_uint4((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
}

PTX void ptx_st_relaxed_gpu_v2_u64(void *p, uint4 v)
{
	asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};"
		     : : "l"(p), "l"((uint64_t)v.y << 32 | v.x), "l"((uint64_t)v.w << 32 | v.z) : "memory");
}

/* Bypasses the L1 and reads the L2. */
PTX uint64_t ptx_ld_global_cg_u64(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

/*
 * For data that is read once: the L1 does not keep it and, under an evict-first policy, neither does the L2.
 */
PTX uint2 ptx_ld_global_nc_no_allocate_v2(const void *p)
{
	uint2 v;

	asm volatile("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
	return v;
}

PTX uint4 ptx_ld_global_nc_no_allocate_v4(const void *p)
{
	uint4 v;

	asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
	return v;
}

PTX uint4 ptx_ld_global_nc_no_allocate_hint_v4(const void *p, uint64_t policy)
{
	uint4 v;

	asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
	return v;
}

/* ---- cache policies and prefetch (9.7.9.18 createpolicy, 9.7.9.15 prefetch) ---- */

PTX uint64_t ptx_createpolicy_evict_first(void)
{
	uint64_t v;

	asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(v));
	return v;
}

PTX uint64_t ptx_createpolicy_evict_last(void)
{
	uint64_t v;

	asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(v));
	return v;
}

PTX void ptx_prefetch_global_L2(const void *p)
{
	asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
}

PTX void ptx_prefetch_tensormap(const void *map)
{
	asm volatile("prefetch.tensormap [%0];" : : "l"(map));
}

/* ---- barriers within a CTA and a cluster (9.7.13.1 barrier, 9.7.13.4 barrier.cluster) ---- */

/* num_threads is a multiple of 32: all lanes of whole warps take part */
PTX void ptx_bar_sync(uint32_t id, uint32_t num_threads)
{
	asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(num_threads) : "memory");
}

PTX void ptx_bar_arrive(uint32_t id, uint32_t num_threads)
{
	asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(num_threads) : "memory");
}

PTX void ptx_barrier_cluster_arrive_release(void)
{
	asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
}

/* orders no memory accesses: the barrier then signals only that all threads have arrived */
PTX void ptx_barrier_cluster_arrive_relaxed(void)
{
	asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
}

PTX void ptx_barrier_cluster_wait_acquire(void)
{
	asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}

/* ---- fences (9.7.13.5 membar, fence) ---- */

PTX void ptx_fence_acq_rel_cluster(void) { asm volatile("fence.acq_rel.cluster;" : : : "memory"); }
PTX void ptx_fence_acq_rel_gpu(void) { asm volatile("fence.acq_rel.gpu;" : : : "memory"); }
PTX void ptx_fence_acq_rel_sys(void) { asm volatile("fence.acq_rel.sys;" : : : "memory"); }
/* makes mbarrier.init visible to the cluster and to the async proxy */
PTX void ptx_fence_mbarrier_init_release_cluster(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}
/* required between ordinary accesses and those of bulk copies, TMA or wgmma to the same memory */
PTX void ptx_fence_proxy_async(void) { asm volatile("fence.proxy.async;" : : : "memory"); }

PTX void ptx_fence_proxy_async_shared_cta(void)
{
	asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

PTX void ptx_fence_proxy_async_shared_cluster(void)
{
	asm volatile("fence.proxy.async.shared::cluster;" : : : "memory");
}

PTX void ptx_fence_proxy_async_global(void) { asm volatile("fence.proxy.async.global;" : : : "memory"); }

/* ---- mbarrier (9.7.13.15) ---- */

PTX void ptx_mbarrier_init(uint32_t mbar, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(mbar), "r"(count) : "memory");
}

PTX void ptx_mbarrier_inval(uint32_t mbar)
{
	asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(mbar) : "memory");
}

PTX void ptx_mbarrier_arrive(uint32_t mbar)
{
	asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" : : "r"(mbar) : "memory");
}

PTX void ptx_mbarrier_arrive_count(uint32_t mbar, uint32_t count)
{
	asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;"
		     : : "r"(mbar), "r"(count) : "memory");
}

/* mbar: a peer's, from ptx_mapa() */
PTX void ptx_mbarrier_arrive_cluster(uint32_t mbar)
{
	asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" : : "r"(mbar) : "memory");
}

/* orders no memory accesses: for a slot that only asynchronous copies write, after reads that are over */
PTX void ptx_mbarrier_arrive_relaxed_cluster(uint32_t mbar)
{
	asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" : : "r"(mbar) : "memory");
}

PTX void ptx_mbarrier_expect_tx(uint32_t mbar, uint32_t bytes)
{
	asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
		     : : "r"(mbar), "r"(bytes) : "memory");
}

PTX void ptx_mbarrier_arrive_expect_tx(uint32_t mbar, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;"
		     : : "r"(mbar), "r"(bytes) : "memory");
}

PTX void ptx_mbarrier_arrive_expect_tx_cluster(uint32_t mbar, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;"
		     : : "r"(mbar), "r"(bytes) : "memory");
}

/* Returns whether the phase of that parity (0 or 1) has completed. Does not block. */
PTX bool ptx_mbarrier_test_wait_parity(uint32_t mbar, uint32_t parity)
{
	uint32_t done;

	asm volatile("{\n\t"
		     ".reg .pred p;\n\t"
		     "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
		     "selp.u32 %0, 1, 0, p;\n\t"
		     "}" : "=r"(done) : "r"(mbar), "r"(parity) : "memory");
	return done;
}

/* As test_wait, but the hardware may suspend the thread for a limited time. */
PTX bool ptx_mbarrier_try_wait_parity(uint32_t mbar, uint32_t parity)
{
	uint32_t done;

	asm volatile("{\n\t"
		     ".reg .pred p;\n\t"
		     "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
		     "selp.u32 %0, 1, 0, p;\n\t"
		     "}" : "=r"(done) : "r"(mbar), "r"(parity) : "memory");
	return done;
}

/* Acquires at cluster scope: pairs with the release of a peer's arrive_cluster, st.async or bulk copy. */
PTX bool ptx_mbarrier_try_wait_parity_cluster(uint32_t mbar, uint32_t parity)
{
	uint32_t done;

	asm volatile("{\n\t"
		     ".reg .pred p;\n\t"
		     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
		     "selp.u32 %0, 1, 0, p;\n\t"
		     "}" : "=r"(done) : "r"(mbar), "r"(parity) : "memory");
	return done;
}

PTX void ptx_mbarrier_wait(uint32_t mbar, uint32_t parity)
{
#ifdef CAIRN_DEBUG
	int64_t start = ptx_clock64();
#else
	int64_t start = 0;
#endif
	while (!ptx_mbarrier_try_wait_parity(mbar, parity))
		ptx_spin_check(start, "mbarrier (address, parity)", mbar, parity);
}

PTX void ptx_mbarrier_wait_cluster(uint32_t mbar, uint32_t parity)
{
#ifdef CAIRN_DEBUG
	int64_t start = ptx_clock64();
#else
	int64_t start = 0;
#endif
	while (!ptx_mbarrier_try_wait_parity_cluster(mbar, parity))
		ptx_spin_check(start, "mbarrier of the cluster (address, parity)", mbar, parity);
}

/* ---- programmatic dependent launch (9.7.13.14 griddepcontrol) ---- */

PTX void ptx_griddepcontrol_wait(void) { asm volatile("griddepcontrol.wait;" : : : "memory"); }

PTX void ptx_griddepcontrol_launch_dependents(void)
{
	asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}

/* ---- moving registers between warpgroups; all warps of the warpgroup call it (9.7.20 setmaxnreg) ---- */

template <int n> PTX void ptx_setmaxnreg_inc(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(n));
}

template <int n> PTX void ptx_setmaxnreg_dec(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(n));
}

/* ---- matrix fragments of a warp (9.7.15.5: .15 ldmatrix, .16 stmatrix, .8 mma) ---- */

PTX void ptx_ldmatrix_x2(uint32_t r[2], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
		     : "=r"(r[0]), "=r"(r[1]) : "r"(addr) : "memory");
}

PTX void ptx_ldmatrix_x2_trans(uint32_t r[2], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
		     : "=r"(r[0]), "=r"(r[1]) : "r"(addr) : "memory");
}

PTX void ptx_ldmatrix_x4(uint32_t r[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

PTX void ptx_ldmatrix_x4_trans(uint32_t r[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

PTX void ptx_stmatrix_x4(uint32_t addr, const uint32_t r[4])
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
		     : : "r"(addr), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

PTX void ptx_stmatrix_x4_trans(uint32_t addr, const uint32_t r[4])
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
		     : : "r"(addr), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

/* Transposes an 8x8 matrix of 16-bit elements that the warp holds, two elements per lane. */
PTX uint32_t ptx_movmatrix_trans(uint32_t v)
{
	uint32_t r;

	asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
	return r;
}

/* d += a b; a is 16 x 16 row-major, b 16 x 8 column-major */
PTX void ptx_mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	    "{%0, %1, %2, %3};"
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

PTX void ptx_mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
	    "{%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
