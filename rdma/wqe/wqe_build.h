/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wqe_build - checks a whole work request and writes it into the ring
 *
 * This is the general form, for host and device. Kernels that post one fixed kind of request compose it from
 * the segments of wqe.h. Like libmlx5, it leaves out segments and inline data of length zero, because a zero
 * in a data segment would mean 2 GiB.
 *
 *   ds = 1 + (raddr) + (atomic) + segments of length > 0, or + ceil((4 + inline_bytes) / 16)
 *
 * Errors:   -EINVAL     unknown opcode or flag, both fences; ring not a power of two up to 32768, qpn beyond
 *                       24 bits; NOP with data, inline data for READ or an atomic, inline data and segments;
 *                       an atomic whose old value does not go to one segment of 8 bytes
 *           -E2BIG      more than 63 segments, or more blocks than the ring has
 *           -EMSGSIZE   more inline data than 63 segments hold: 988 bytes for SEND, 972 for WRITE
 *           -EOVERFLOW  2 GiB or more in total
 *           On error nothing is written.
 * Not checked: keys, addresses, their alignment, the queue pair's capabilities, free space in the ring.
 */
#ifndef CAIRN_WQE_BUILD_H
#define CAIRN_WQE_BUILD_H

#include <errno.h>

#include "rdma/wqe/wqe.h"

struct cairn_wqe_sge {			/* same layout as struct ibv_sge */
	uint64_t addr;
	uint32_t length, lkey;
};

struct cairn_wqe_req {
	uint32_t opcode, flags;
	const struct cairn_wqe_sge *sge;	/* [num_sge] */
	const void *inline_data;		/* [inline_bytes]; used instead of sge */
	uint32_t num_sge, inline_bytes;
	uint64_t remote_addr;			/* READ, WRITE, atomics */
	uint64_t swap_add, compare;		/* atomics; compare is used by ATOMIC_CS only */
	uint32_t rkey;				/* READ, WRITE, atomics */
	uint32_t imm_be;			/* WRITE_IMM, SEND_IMM: in wire byte order */
};

CAIRN_WQE_FN int cairn_wqe_is_atomic(uint32_t opcode)
{
	return opcode == CAIRN_WQE_ATOMIC_CS || opcode == CAIRN_WQE_ATOMIC_FA;
}

CAIRN_WQE_FN int cairn_wqe_has_imm(uint32_t opcode)
{
	return opcode == CAIRN_WQE_WRITE_IMM || opcode == CAIRN_WQE_SEND_IMM;
}

/* Returns the number of segments before the data; 0 for an unknown opcode. */
CAIRN_WQE_FN uint32_t cairn_wqe_head_segs(uint32_t opcode)
{
	switch (opcode) {
	case CAIRN_WQE_NOP:
	case CAIRN_WQE_SEND:
	case CAIRN_WQE_SEND_IMM:
		return 1;
	case CAIRN_WQE_WRITE:
	case CAIRN_WQE_WRITE_IMM:
	case CAIRN_WQE_READ:
		return 2;
	case CAIRN_WQE_ATOMIC_CS:
	case CAIRN_WQE_ATOMIC_FA:
		return 3;
	}
	return 0;
}

/* Returns the number of segments (ds) of this request, or -errno. */
CAIRN_WQE_FN int cairn_wqe_ds(const struct cairn_wqe_req *r)
{
	const uint32_t flags = CAIRN_WQE_SOLICITED | CAIRN_WQE_SIGNALED | CAIRN_WQE_SMALL_FENCE |
			       CAIRN_WQE_FENCE;
	const uint32_t fences = CAIRN_WQE_SMALL_FENCE | CAIRN_WQE_FENCE;
	uint32_t ds = cairn_wqe_head_segs(r->opcode);
	uint64_t bytes = 0;

	if (!ds || (r->flags & ~flags) || (r->flags & fences) == fences)
		return -EINVAL;
	if (r->inline_bytes) {
		if (r->num_sge || r->opcode == CAIRN_WQE_NOP || r->opcode == CAIRN_WQE_READ ||
		    cairn_wqe_is_atomic(r->opcode))
			return -EINVAL;
		if (r->inline_bytes > 16 * (CAIRN_WQE_MAX_DS - ds) - 4)
			return -EMSGSIZE;
		return (int)(ds + cairn_wqe_inline_segs(r->inline_bytes));
	}
	if (cairn_wqe_is_atomic(r->opcode) && (r->num_sge != 1 || r->sge[0].length != 8))
		return -EINVAL;
	if (r->opcode == CAIRN_WQE_NOP && r->num_sge)
		return -EINVAL;
	for (uint32_t i = 0; i < r->num_sge; i++) {
		if (!r->sge[i].length)
			continue;
		bytes += r->sge[i].length;
		if (bytes >> 31)
			return -EOVERFLOW;
		if (++ds > CAIRN_WQE_MAX_DS)
			return -E2BIG;
	}
	return (int)ds;
}

/* Writes the WQE at this index. Returns the number of blocks it takes, or -errno. */
CAIRN_WQE_FN int cairn_wqe_build(const struct cairn_wqe_ring *q, uint64_t index,
				 const struct cairn_wqe_req *r)
{
	uint32_t n = q->num_blocks, head, k;
	int ds = cairn_wqe_ds(r);

	if (ds < 0)
		return ds;
	if (!n || (n & (n - 1)) || n > 32768 || q->qpn >> 24)
		return -EINVAL;
	if (cairn_wqe_blocks((uint32_t)ds) > n)
		return -E2BIG;
	*cairn_wqe_at(q, index, 0) = cairn_wqe_ctrl(r->opcode, index, q->qpn, (uint32_t)ds, r->flags,
						    cairn_wqe_has_imm(r->opcode) ? r->imm_be : 0);
	head = cairn_wqe_head_segs(r->opcode);
	if (head > 1)
		*cairn_wqe_at(q, index, 1) = cairn_wqe_raddr(r->remote_addr, r->rkey);
	if (head > 2)
		*cairn_wqe_at(q, index, 2) = cairn_wqe_atomic(r->swap_add, r->opcode == CAIRN_WQE_ATOMIC_CS ?
									   r->compare : 0);
	for (k = 0; k < cairn_wqe_inline_segs(r->inline_bytes); k++)
		*cairn_wqe_at(q, index, head + k) = cairn_wqe_inline(r->inline_data, r->inline_bytes, k);
	for (uint32_t i = 0; i < r->num_sge; i++)
		if (r->sge[i].length)
			*cairn_wqe_at(q, index, head + k++) = cairn_wqe_data(r->sge[i].addr, r->sge[i].length,
									     r->sge[i].lkey);
	return (int)cairn_wqe_blocks((uint32_t)ds);
}

#endif
