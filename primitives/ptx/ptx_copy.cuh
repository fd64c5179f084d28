/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_copy - wrappers, as in ptx.cuh, of the asynchronous copies to and from shared memory
 */
#ifndef CAIRN_PTX_COPY_CUH
#define CAIRN_PTX_COPY_CUH

#include "primitives/ptx/ptx.cuh"

/* ---- bulk copies; sizes and addresses are multiples of 16 bytes (9.7.9.25.4 cp.async.bulk) ---- */

/* dst and mbar lie both in the CTA's own shared memory or both in the same peer's */
PTX void ptx_cp_async_bulk_g2s(uint32_t dst, const void *src, uint32_t bytes, uint32_t mbar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
		     : : "r"(dst), "l"(src), "r"(bytes), "r"(mbar) : "memory");
}

PTX void ptx_cp_async_bulk_g2s_hint(uint32_t dst, const void *src, uint32_t bytes, uint32_t mbar,
				    uint64_t policy)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
		     "[%0], [%1], %2, [%3], %4;"
		     : : "r"(dst), "l"(src), "r"(bytes), "r"(mbar), "l"(policy) : "memory");
}

/* Copies to the same offsets (dst and mbar) in every CTA whose bit in cta_mask is set. */
PTX void ptx_cp_async_bulk_g2s_multicast(uint32_t dst, const void *src, uint32_t bytes, uint32_t mbar,
					 uint16_t cta_mask)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
		     "[%0], [%1], %2, [%3], %4;"
		     : : "r"(dst), "l"(src), "r"(bytes), "r"(mbar), "h"(cta_mask) : "memory");
}

/* Copies from the CTA's own shared memory to a peer's; mbar is the peer's. */
PTX void ptx_cp_async_bulk_s2s(uint32_t dst, uint32_t src, uint32_t bytes, uint32_t mbar)
{
	asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
		     "[%0], [%1], %2, [%3];"
		     : : "r"(dst), "r"(src), "r"(bytes), "r"(mbar) : "memory");
}

PTX void ptx_cp_async_bulk_s2g(void *dst, uint32_t src, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
		     : : "l"(dst), "r"(src), "r"(bytes) : "memory");
}

/* Adds floats to global memory, each by an atomic addition that rounds to nearest. */
PTX void ptx_cp_reduce_async_bulk_s2g_add_f32(float *dst, uint32_t src, uint32_t bytes)
{
	asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
		     : : "l"(dst), "r"(src), "r"(bytes) : "memory");
}

PTX void ptx_cp_async_bulk_prefetch_L2(const void *src, uint32_t bytes)
{
	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(src), "r"(bytes) : "memory");
}

PTX void ptx_cp_async_bulk_commit_group(void)
{
	asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

/*
 * Waits until at most n groups are in flight. The data of the other groups has then been written. With _read,
 * it has only been read from shared memory, which may then be overwritten.
 */
template <int n> PTX void ptx_cp_async_bulk_wait_group(void)
{
	asm volatile("cp.async.bulk.wait_group %0;" : : "n"(n) : "memory");
}

template <int n> PTX void ptx_cp_async_bulk_wait_group_read(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(n) : "memory");
}

/* ---- TMA: map is a CUtensorMap in a __grid_constant__ parameter; x is contiguous (9.7.9.25.5) ---- */

PTX void ptx_cp_async_bulk_tensor_1d_g2s(uint32_t dst, const void *map, int32_t x, uint32_t mbar)
{
	asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%2}], [%3];" : : "r"(dst), "l"(map), "r"(x), "r"(mbar) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_2d_g2s(uint32_t dst, const void *map, int32_t x, int32_t y, uint32_t mbar)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%2, %3}], [%4];"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(mbar) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_2d_g2s_hint(uint32_t dst, const void *map, int32_t x, int32_t y,
					      uint32_t mbar, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
		     ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(mbar), "l"(policy) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_3d_g2s(uint32_t dst, const void *map, int32_t x, int32_t y, int32_t z,
					 uint32_t mbar)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%2, %3, %4}], [%5];"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(mbar) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_4d_g2s(uint32_t dst, const void *map, int32_t x, int32_t y, int32_t z,
					 int32_t u, uint32_t mbar)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%2, %3, %4, %5}], [%6];"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(mbar) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_4d_g2s_hint(uint32_t dst, const void *map, int32_t x, int32_t y, int32_t z,
					      int32_t u, uint32_t mbar, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
		     ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(mbar), "l"(policy)
		     : "memory");
}

PTX void ptx_cp_async_bulk_tensor_5d_g2s(uint32_t dst, const void *map, int32_t x, int32_t y, int32_t z,
					 int32_t u, int32_t v, uint32_t mbar)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(mbar) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_5d_g2s_hint(uint32_t dst, const void *map, int32_t x, int32_t y, int32_t z,
					      int32_t u, int32_t v, uint32_t mbar, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
		     ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(mbar), "l"(policy)
		     : "memory");
}

PTX void ptx_cp_async_bulk_tensor_2d_g2s_multicast(uint32_t dst, const void *map, int32_t x, int32_t y,
						   uint32_t mbar, uint16_t cta_mask)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(mbar), "h"(cta_mask) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_3d_g2s_multicast(uint32_t dst, const void *map, int32_t x, int32_t y,
						   int32_t z, uint32_t mbar, uint16_t cta_mask)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(mbar), "h"(cta_mask) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_4d_g2s_multicast(uint32_t dst, const void *map, int32_t x, int32_t y,
						   int32_t z, int32_t u, uint32_t mbar, uint16_t cta_mask)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
		     : : "r"(dst), "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(mbar), "h"(cta_mask)
		     : "memory");
}

PTX void ptx_cp_async_bulk_tensor_1d_s2g(const void *map, uint32_t src, int32_t x)
{
	asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%1}], [%2];"
		     : : "l"(map), "r"(x), "r"(src) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_2d_s2g(const void *map, uint32_t src, int32_t x, int32_t y)
{
	asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
		     : : "l"(map), "r"(x), "r"(y), "r"(src) : "memory");
}

PTX void ptx_cp_async_bulk_tensor_3d_s2g(const void *map, uint32_t src, int32_t x, int32_t y, int32_t z)
{
	asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
		     : : "l"(map), "r"(x), "r"(y), "r"(z), "r"(src) : "memory");
}

PTX void ptx_cp_async_bulk_prefetch_tensor_2d(const void *map, int32_t x, int32_t y)
{
	asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
		     : : "l"(map), "r"(x), "r"(y) : "memory");
}

PTX void ptx_cp_async_bulk_prefetch_tensor_3d(const void *map, int32_t x, int32_t y, int32_t z)
{
	asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];"
		     : : "l"(map), "r"(x), "r"(y), "r"(z) : "memory");
}

/* ---- cp.async, 16 bytes per thread (9.7.9.25.3) ---- */

/* Copies src_bytes (0..16); the rest of the 16 bytes at dst is zeroed, and not read from src. */
PTX void ptx_cp_async_cg(uint32_t dst, const void *src, uint32_t src_bytes)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     : : "r"(dst), "l"(src), "r"(src_bytes) : "memory");
}

PTX void ptx_cp_async_cg_hint(uint32_t dst, const void *src, uint32_t src_bytes, uint64_t policy)
{
	asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
		     : : "r"(dst), "l"(src), "r"(src_bytes), "l"(policy) : "memory");
}

PTX void ptx_cp_async_ca(uint32_t dst, const void *src, uint32_t src_bytes)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
		     : : "r"(dst), "l"(src), "r"(src_bytes) : "memory");
}

PTX void ptx_cp_async_commit_group(void)
{
	asm volatile("cp.async.commit_group;" : : : "memory");
}

template <int n> PTX void ptx_cp_async_wait_group(void)
{
	asm volatile("cp.async.wait_group %0;" : : "n"(n) : "memory");
}

/* Arrives when this thread's earlier cp.async have landed; noinc: the count of mbarrier.init includes it. */
PTX void ptx_cp_async_mbarrier_arrive_noinc(uint32_t mbar)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(mbar) : "memory");
}

#endif
