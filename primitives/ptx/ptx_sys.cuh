/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_sys - PTX accesses that other GPUs see: words in the memory of a peer, at system scope
 *
 * .relaxed makes each access single-copy atomic, 128 bits included (PTX ISA 8.3, 9.7.9.8 and 9.7.9.11), so a
 * word can carry both a payload and the number that tells that it has arrived.
 */
#ifndef CAIRN_PTX_SYS_CUH
#define CAIRN_PTX_SYS_CUH

#include "primitives/ptx/ptx.cuh"

PTX uint4 ptx_ld_relaxed_sys_b128(const void *p)
{
	uint64_t a, b;

	asm volatile("{ .reg .b128 v; ld.relaxed.sys.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
		     : "=l"(a), "=l"(b) : "l"(p) : "memory");
	return make_uint4((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
}

PTX void ptx_st_relaxed_sys_b128(void *p, uint4 v)
{
	asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.sys.global.b128 [%0], v; }"
		     : : "l"(p), "l"((uint64_t)v.y << 32 | v.x), "l"((uint64_t)v.w << 32 | v.z) : "memory");
}

PTX uint32_t ptx_ld_relaxed_sys_u32(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

PTX void ptx_st_relaxed_sys_u32(uint32_t *p, uint32_t v)
{
	asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

/* Orders nothing, so it does not wait for earlier stores to a peer. */
PTX uint32_t ptx_atom_relaxed_gpu_add_u32(uint32_t *p, uint32_t v)
{
	uint32_t old;

	asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
	return old;
}

PTX uint32_t ptx_ld_acquire_sys_u32(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

PTX void ptx_st_release_sys_u32(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

#endif
