/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn - the poster on a GPU: what fhbn_post.h is made of, and forms for a whole warp
 *
 * Addresses are of the global window: device memory, or host memory and registers mapped for the GPU.
 * Counters lie in GPU memory: gpu scope. The register's store is st.mmio: performed once, in order with other
 * st.mmio of this thread, never merged.
 *
 * What a post of 64 bytes and a number costs is its way through memory, twice and a bit (H200, cycles): the
 * counters from the L2, all asked for at once, 350; 6 segments of 16 bytes, 200; a fence, 490, until they and
 * the payload are where the card reads; the record and a fence, 410; the register, 110. In host memory the
 * fences are 940 and 1040: a way to the host's memory and back each, whichever fence it is (release, acq_rel,
 * sc). With several posters the atomic addition, and a third fence before the queue is handed on.
 *
 * Tried and lost: the failure's word looked at before the counters are asked for (500 ns more: two ways to
 * the L2 one after the other); ld.acquire for each counter (a fence.acquire behind all of them is one
 * CCTL.IVALL); looking for a successor when one's turn came at once (two more loads before the record).
 * A number in host memory looked at by eight warps in turn, where one look is 1.3 us under way: a way through
 * the model 17 to 20 us instead of 6, as every look takes the line from the CPU that is about to write it.
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

/* Four stores of 16 bytes: no card is promised to see one write of 64, so none may rely on it. */
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

/* weak, but where the program has it: the compiler would move it behind a branch on another load */
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

PTX void fhbn_who(uint32_t *block, uint32_t *thread)
{
	*block = blockIdx.x;
	*thread = threadIdx.x;
}

#define FHBN_FN PTX
#include "rdma/fhbn/fhbn_post.h"

/* ---- for a whole warp: all lanes call, and what any of them has stored is posted ---- */

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

/* One lane polls, all lanes may read what it saw. */
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
