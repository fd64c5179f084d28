/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wqe - work queue entries (WQEs) of mlx5 network cards, their indices and doorbells
 *
 * A send queue is a ring of 64-byte basic blocks; their number is a power of two. A WQE consists of ds
 * segments of 16 bytes, 1 <= ds <= 63. It begins on a block, takes ceil(ds / 4) blocks and may wrap from
 * the ring's last byte to its first. Every field is big-endian; numbers are byte offsets in the segment.
 *
 *   ctrl    0 opmod (0)   1 index (16 bits)   3 opcode   4 qpn (24 bits)   7 ds
 *           8 signature (0)   9 stream (0)   11 flags   12 immediate: 4 bytes, sent unchanged
 *   raddr   0 remote address (64)   8 rkey   12 zero
 *   atomic  0 swap or add operand (64)   8 compare operand (64; ignored by fetch-and-add)
 *   data    0 length, 1 to 2^31 - 1 (zero would mean 2 GiB)   4 lkey   8 local address (64)
 *   inline  0 length | 2^31   4 the bytes themselves, then zeros up to a multiple of 16
 *
 *   NOP                   ctrl
 *   SEND, SEND_IMM        ctrl, data... or inline
 *   WRITE, WRITE_IMM      ctrl, raddr, data... or inline
 *   READ                  ctrl, raddr, data...
 *   ATOMIC_CS, ATOMIC_FA  ctrl, raddr, atomic, data of 8 bytes that receives the old value
 *
 * Indices count blocks, not WQEs, and never restart. Software keeps 64 bits, the wire carries the low 16, and
 * the low log2(num_blocks) bits are the place in the ring. The doorbell record holds the index after the last
 * WQE. The doorbell is an 8-byte store in one of two forms: libmlx5 stores the first 8 bytes of the last WQE;
 * NVSHMEM, DeepEP and GPUNetIO store a ctrl that names only the queue pair and the index after the last WQE
 * (GPUNetIO leaves bits 16 to 23 of the index in the opmod byte, which the card ignores).
 *
 * All functions are pure and run on host and device. Values for the doorbell record and the doorbell are
 * returned so that a plain store puts their bytes into memory in the right order. Memory ordering is left to
 * the poster. wqe_build.h builds whole requests, with all checks; cqe.h handles completions.
 *
 * Source: rdma-core's mlx5dv.h for layout and constants; the bytes that libmlx5 writes (golden.c) for the
 * rest.
 */
#ifndef CAIRN_WQE_H
#define CAIRN_WQE_H

#include <assert.h>
#include <stdint.h>

#ifdef __CUDACC__
#define CAIRN_WQE_FN static __host__ __device__ __forceinline__
#else
#define CAIRN_WQE_FN static inline
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian machines: x86-64 and arm64 hosts, NVIDIA GPUs"
#endif

#define CAIRN_WQE_BLOCK		64		/* bytes */
#define CAIRN_WQE_MAX_DS	63		/* segments */
#define CAIRN_WQE_INLINE_FLAG	0x80000000u	/* in the first word of an inline segment */

enum cairn_wqe_opcode {
	CAIRN_WQE_NOP = 0x00,
	CAIRN_WQE_WRITE = 0x08,
	CAIRN_WQE_WRITE_IMM = 0x09,
	CAIRN_WQE_SEND = 0x0a,
	CAIRN_WQE_SEND_IMM = 0x0b,
	CAIRN_WQE_READ = 0x10,
	CAIRN_WQE_ATOMIC_CS = 0x11,
	CAIRN_WQE_ATOMIC_FA = 0x12,
};

enum cairn_wqe_flags {
	CAIRN_WQE_SOLICITED = 0x02,	/* the receiver's completion raises an event */
	CAIRN_WQE_SIGNALED = 0x08,	/* writes an entry to the completion queue when done */
	CAIRN_WQE_SMALL_FENCE = 0x20,	/* waits for earlier local invalidations and memory window binds */
	CAIRN_WQE_FENCE = 0x80,		/* waits for earlier READs and atomics */
};

/* One segment as it is stored in memory. */
struct cairn_wqe_seg {
	uint32_t w[4];
} __attribute__((aligned(16)));
static_assert(sizeof(struct cairn_wqe_seg) == 16, "segments are 16 bytes");

struct cairn_wqe_ring {
	struct cairn_wqe_seg *segs;	/* [4 * num_blocks] */
	uint32_t num_blocks;		/* a power of two, at most 32768 */
	uint32_t qpn;			/* queue pair number, 24 bits */
};

CAIRN_WQE_FN uint32_t cairn_be32(uint32_t x)
{
#ifdef __CUDA_ARCH__
	return __byte_perm(x, 0, 0x0123);
#else
	return __builtin_bswap32(x);
#endif
}

CAIRN_WQE_FN struct cairn_wqe_seg cairn_wqe_words(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	struct cairn_wqe_seg s = { { cairn_be32(a), cairn_be32(b), cairn_be32(c), cairn_be32(d) } };

	return s;
}

CAIRN_WQE_FN struct cairn_wqe_seg cairn_wqe_ctrl(uint32_t opcode, uint64_t index, uint32_t qpn, uint32_t ds,
						 uint32_t flags, uint32_t imm_be)
{
	struct cairn_wqe_seg s = cairn_wqe_words(((uint32_t)index & 0xffff) << 8 | opcode, qpn << 8 | ds,
						 flags, 0);

	s.w[3] = imm_be;
	return s;
}

CAIRN_WQE_FN struct cairn_wqe_seg cairn_wqe_raddr(uint64_t addr, uint32_t rkey)
{
	return cairn_wqe_words((uint32_t)(addr >> 32), (uint32_t)addr, rkey, 0);
}

CAIRN_WQE_FN struct cairn_wqe_seg cairn_wqe_atomic(uint64_t swap_add, uint64_t compare)
{
	return cairn_wqe_words((uint32_t)(swap_add >> 32), (uint32_t)swap_add, (uint32_t)(compare >> 32),
			       (uint32_t)compare);
}

CAIRN_WQE_FN struct cairn_wqe_seg cairn_wqe_data(uint64_t addr, uint32_t length, uint32_t lkey)
{
	return cairn_wqe_words(length, lkey, (uint32_t)(addr >> 32), (uint32_t)addr);
}

/*
 * Returns segment k of an inline data segment for `bytes` (>= 1) bytes, built in registers. Bytes after the
 * data are zero.
 */
CAIRN_WQE_FN struct cairn_wqe_seg cairn_wqe_inline(const void *data, uint32_t bytes, uint32_t k)
{
	struct cairn_wqe_seg s = { { k ? 0 : cairn_be32(bytes | CAIRN_WQE_INLINE_FLAG), 0, 0, 0 } };
	const uint8_t *p = (const uint8_t *)data;

#pragma unroll
	for (uint32_t i = 0; i < 16; i++) {
		uint32_t at = 16 * k + i;

		if (at >= 4 && at - 4 < bytes)
			s.w[i / 4] |= (uint32_t)p[at - 4] << (8 * (i % 4));
	}
	return s;
}

/*
 * Returns the inline segment that carries one 8-byte value held in a register, such as a sequence number.
 * The value is stored in this machine's byte order.
 */
CAIRN_WQE_FN struct cairn_wqe_seg cairn_wqe_inline_u64(uint64_t value)
{
	struct cairn_wqe_seg s = { { cairn_be32(8 | CAIRN_WQE_INLINE_FLAG), (uint32_t)value,
				     (uint32_t)(value >> 32), 0 } };

	return s;
}

CAIRN_WQE_FN uint32_t cairn_wqe_inline_segs(uint32_t bytes)
{
	return bytes ? (bytes + 4 + 15) / 16 : 0;
}

CAIRN_WQE_FN uint32_t cairn_wqe_blocks(uint32_t ds)
{
	return (ds + 3) / 4;
}

/* Returns the address of segment k of the WQE at this index. */
CAIRN_WQE_FN struct cairn_wqe_seg *cairn_wqe_at(const struct cairn_wqe_ring *q, uint64_t index, uint32_t k)
{
	return &q->segs[(4 * index + k) & (4 * (uint64_t)q->num_blocks - 1)];
}

/*
 * Returns the doorbell record for `next`, the index after the last WQE. Also valid for receive queues, whose
 * indices count entries.
 */
CAIRN_WQE_FN uint32_t cairn_wqe_dbrec(uint64_t next)
{
	return cairn_be32((uint32_t)next & 0xffff);
}

/* Returns libmlx5's doorbell value: the first 8 bytes of the last WQE's ctrl segment. */
CAIRN_WQE_FN uint64_t cairn_wqe_doorbell(struct cairn_wqe_seg ctrl)
{
	return (uint64_t)ctrl.w[1] << 32 | ctrl.w[0];
}

/*
 * Returns the doorbell value of NVSHMEM, DeepEP and GPUNetIO, which names only the queue pair and the index
 * after the last WQE.
 */
CAIRN_WQE_FN uint64_t cairn_wqe_doorbell_next(uint64_t next, uint32_t qpn)
{
	return cairn_wqe_doorbell(cairn_wqe_ctrl(0, next, qpn, 0, 0, 0));
}

#endif
