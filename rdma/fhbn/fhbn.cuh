/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn.cuh - the poster on a GPU: the memory accesses that fhbn_post.h uses, and variants for a whole warp
 *
 * Addresses are in the global window: device memory, or host memory and UARs mapped for the GPU. Counters are
 * in GPU memory, so gpu scope is enough for them. The doorbell is stored with st.mmio, which is performed
 * exactly once, in order with other st.mmio of this thread, and is never merged.
 *
 * Floor: a post of 64 bytes and a sequence number costs a little over two round trips through memory (H200,
 * cycles): 350 for the counters from the L2, all loaded together; 200 for 6 segments of 16 bytes; 490 for the
 * fence, until segments and payload are where the card reads; 410 for the doorbell record and its fence; 110
 * for the doorbell. In host memory the two fences take 940 and 1040: each is a round trip to host memory,
 * whichever fence is used (release, acq_rel, sc). With several posters, an atomic addition and a third fence,
 * before the next poster may publish, are added.
 *
 * Optimisation history: NOTES.md.
 */
#ifndef CAIRN_FHBN_CUH
#define CAIRN_FHBN_CUH

#include "primitives/ptx/ptx.cuh"
#include "rdma/fhbn/fhbn.h"

/* ---- loads, stores (PTX ISA 9.7.9.8 ld, 9.7.9.12 st), fences (9.7.13.4 membar/fence) ---- */

PTX void fhbn_store_seg(struct cairn_wqe_seg *to, struct cairn_wqe_seg v)
{
	asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
		     : : "l"(to), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}

PTX void fhbn_fence_as(uint32_t mode)
{
	if (mode & CAIRN_FHBN_SYS)
		asm volatile("fence.release.sys;" : : : "memory");
	else
		asm volatile("fence.release.gpu;" : : : "memory");
}
#define fhbn_fence(mode, why) fhbn_fence_as(mode)

PTX void fhbn_store_record(uint32_t *to, uint32_t word)
{
	asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(to), "r"(word) : "memory");
}

#define fhbn_store_cq_record(to, word) fhbn_store_record(to, word)

PTX void fhbn_ring8(uint64_t *reg, uint64_t word)
{
	asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" : : "l"(reg), "l"(word) : "memory");
}

/* Four stores of 16 bytes. PCIe does not guarantee a single 64-byte write, so no card may rely on one. */
PTX void fhbn_ring64(uint64_t *reg, const struct cairn_wqe_seg segs[4])
{
#pragma unroll
	for (int k = 3; k >= 0; k--)
		asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
			     : : "l"(reg + 2 * k), "l"((uint64_t)segs[k].w[1] << 32 | segs[k].w[0]),
			     "l"((uint64_t)segs[k].w[3] << 32 | segs[k].w[2]) : "memory");
}

PTX uint64_t fhbn_load_sys(const void *p)
{
	uint64_t v;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

PTX uint64_t fhbn_load_entry(const struct cairn_cqe *e) { return fhbn_load_sys(&e->opcode_qpn); }
PTX uint64_t fhbn_load_error(const struct cairn_cqe *e) { return fhbn_load_sys(e->timestamp); }
PTX uint64_t fhbn_load_signal(const uint64_t *flag) { return fhbn_load_sys(flag); }

/* a weak load, but volatile: otherwise the compiler would move it behind a branch on another load */
PTX uint64_t fhbn_load(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

PTX void fhbn_store(uint64_t *p, uint64_t v) { *p = v; }
PTX uint64_t fhbn_peek(const uint64_t *p) { return ptx_ld_relaxed_gpu_u64(p); }
PTX void fhbn_fence_acquire(void) { asm volatile("fence.acquire.gpu;" : : : "memory"); }

PTX uint64_t fhbn_load_acquire(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

PTX void fhbn_store_release(uint64_t *p, uint64_t v)
{
	asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}

PTX uint64_t fhbn_add(uint64_t *p, uint64_t n)
{
	uint64_t old;

	asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
		     : "=l"(old) : "l"(p), "l"(n) : "memory");
	return old;
}

PTX int fhbn_try_lock(uint32_t *p)
{
	uint32_t old;

	asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], 0, 1;" : "=r"(old) : "l"(p) : "memory");
	return old == 0;
}

PTX void fhbn_unlock(uint32_t *p) { ptx_st_release_gpu_u32(p, 0); }

PTX int fhbn_raise(uint32_t *p, uint32_t v)
{
	uint32_t old;

	asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], 0, %2;"
		     : "=r"(old) : "l"(p), "r"(v) : "memory");
	return old == 0;
}

PTX uint32_t fhbn_load_kind(const uint32_t *p) { return ptx_ld_relaxed_gpu_u32(p); }
PTX void fhbn_written(uint32_t *p) { ptx_st_release_gpu_u32(p, 1); }
PTX uint64_t fhbn_now_ns(void) { return ptx_globaltimer(); }
PTX void fhbn_pause(void) { }

PTX void fhbn_caller(uint32_t *block, uint32_t *thread)
{
	*block = blockIdx.x;
	*thread = threadIdx.x;
}

#define FHBN_FN PTX
#include "rdma/fhbn/fhbn_post.h"

/* ---- for a whole warp: all lanes call; the post covers the stores of every lane ---- */

PTX int cairn_fhbn_post_warp(const struct cairn_fhbn_qp *q, uint32_t mode, const struct cairn_fhbn_request *r,
			     uint32_t num, uint64_t *end)
{
	uint64_t to = 0;
	int ret = 0;

	__syncwarp();
	if (ptx_laneid() == 0)
		ret = cairn_fhbn_post(q, mode, r, num, &to);
	if (end)
		*end = __shfl_sync(0xffffffff, to, 0);
	return __shfl_sync(0xffffffff, ret, 0);
}

PTX int cairn_fhbn_put_signal_warp(const struct cairn_fhbn_qp *q, uint32_t mode,
				   const struct cairn_fhbn_request *put, uint64_t signal_remote,
				   uint32_t signal_rkey, uint64_t sequence, uint64_t *end)
{
	const struct cairn_fhbn_request r[2] = {
		*put, cairn_fhbn_write_u64(signal_remote, signal_rkey, sequence),
	};

	return cairn_fhbn_post_warp(q, mode, r, 2, end);
}

/* One lane polls. Afterwards all lanes may read the data that the signal announces. */
PTX int cairn_fhbn_wait_signal_warp(const uint64_t *flag, uint64_t sequence, uint64_t timeout_ns,
				    struct cairn_fhbn_fault *fault)
{
	int ret = 0;

	if (ptx_laneid() == 0)
		ret = cairn_fhbn_wait_signal(flag, sequence, timeout_ns, fault);
	ret = __shfl_sync(0xffffffff, ret, 0);
	__syncwarp();
	return ret;
}

#endif
