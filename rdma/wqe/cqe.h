/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cqe - completion queue entries (CQEs) of mlx5 network cards
 *
 * A completion queue is a ring of num_cqes entries of 64 bytes; num_cqes is a power of two. Before use,
 * op_own of every entry is set to CAIRN_CQE_UNUSED. The card writes an entry's last byte last. An entry is
 * valid if its opcode is not INVALID and its owner bit is that of the reader's lap; the bit flips each time
 * the ring wraps:
 *
 *   read op_own; cairn_cqe_valid(op_own, index, num_cqes); load barrier; read the rest
 *
 * index is the consumer's index; it has 64 bits and never restarts. A completion of the send queue retires
 * its own WQE and all earlier ones. Fields are big-endian; cairn_cqe_parse() returns them in this machine's
 * byte order, except imm_be, which holds the sender's bytes. Not handled: compressed entries, entries of 128
 * bytes, data scattered into the entry (libmlx5 scatters unless MLX5_SCATTER_TO_CQE=0; `format` shows it).
 *
 * Source: rdma-core's mlx5dv.h.
 */
#ifndef CAIRN_CQE_H
#define CAIRN_CQE_H

#include <stddef.h>

#include "rdma/wqe/wqe.h"

#define CAIRN_CQE_UNUSED	0xf0

enum cairn_cqe_opcode {
	CAIRN_CQE_REQ = 0,		/* completion of a send queue's WQE */
	CAIRN_CQE_RESP_WRITE_IMM = 1,	/* this and the next two: completions of a receive queue's entry */
	CAIRN_CQE_RESP_SEND = 2,
	CAIRN_CQE_RESP_SEND_IMM = 3,
	CAIRN_CQE_REQ_ERR = 13,
	CAIRN_CQE_RESP_ERR = 14,
	CAIRN_CQE_INVALID = 15,
};

enum cairn_cqe_syndrome {
	CAIRN_CQE_LOCAL_LENGTH = 0x01,
	CAIRN_CQE_LOCAL_QP_OP = 0x02,
	CAIRN_CQE_LOCAL_PROTECTION = 0x04,
	CAIRN_CQE_FLUSHED = 0x05,
	CAIRN_CQE_BIND = 0x06,
	CAIRN_CQE_BAD_RESPONSE = 0x10,
	CAIRN_CQE_LOCAL_ACCESS = 0x11,
	CAIRN_CQE_REMOTE_INVALID = 0x12,
	CAIRN_CQE_REMOTE_ACCESS = 0x13,
	CAIRN_CQE_REMOTE_OP = 0x14,
	CAIRN_CQE_TRANSPORT_RETRY = 0x15,
	CAIRN_CQE_RNR_RETRY = 0x16,
	CAIRN_CQE_REMOTE_ABORTED = 0x22,
};

struct cairn_cqe {
	uint8_t reserved0[32];
	uint32_t user_index;		/* cqe_version 1; in version 0 the shared receive queue's number */
	uint32_t imm;
	uint8_t reserved40[4];
	uint32_t byte_count;
	/* the upper 6 of 8 bytes; an error CQE has syndromes in the other 2 */
	uint8_t timestamp[6];
	uint8_t vendor_syndrome;	/* errors only, like syndrome */
	uint8_t syndrome;
	uint32_t opcode_qpn;		/* opcode of the sent WQE in 8 bits, queue pair number in 24 */
	uint16_t wqe_counter;		/* low 16 bits of the index of the WQE or of the receive entry */
	uint8_t signature;
	uint8_t op_own;			/* opcode in 4 bits, format in 2, solicited in 1, owner in 1 */
} __attribute__((aligned(64)));
static_assert(sizeof(struct cairn_cqe) == 64, "completions are 64 bytes");
static_assert(offsetof(struct cairn_cqe, syndrome) == 55 && offsetof(struct cairn_cqe, op_own) == 63,
	      "the fields of a completion lie where the card puts them");

struct cairn_cqe_result {
	uint8_t opcode, format, solicited;
	uint8_t syndrome, vendor_syndrome;	/* 0 unless the opcode is an error */
	uint8_t sent_opcode;			/* enum cairn_wqe_opcode; send queue completions only */
	uint16_t wqe_counter;
	uint32_t qpn, user_index, byte_count, imm_be;
};

CAIRN_WQE_FN int cairn_cqe_valid(uint8_t op_own, uint64_t index, uint32_t num_cqes)
{
	return op_own >> 4 != CAIRN_CQE_INVALID && (op_own & 1) == !!(index & num_cqes);
}

CAIRN_WQE_FN int cairn_cqe_is_error(const struct cairn_cqe_result *r)
{
	return r->opcode == CAIRN_CQE_REQ_ERR || r->opcode == CAIRN_CQE_RESP_ERR;
}

CAIRN_WQE_FN struct cairn_cqe_result cairn_cqe_parse(const struct cairn_cqe *e)
{
	uint32_t opcode_qpn = cairn_be32(e->opcode_qpn);
	struct cairn_cqe_result r;

	r.opcode = e->op_own >> 4;
	r.format = e->op_own >> 2 & 3;
	r.solicited = e->op_own >> 1 & 1;
	r.syndrome = cairn_cqe_is_error(&r) ? e->syndrome : 0;
	r.vendor_syndrome = cairn_cqe_is_error(&r) ? e->vendor_syndrome : 0;
	r.sent_opcode = (uint8_t)(opcode_qpn >> 24);
	r.wqe_counter = (uint16_t)(e->wqe_counter << 8 | e->wqe_counter >> 8);
	r.qpn = opcode_qpn & 0xffffff;
	r.user_index = cairn_be32(e->user_index);
	r.byte_count = cairn_be32(e->byte_count);
	r.imm_be = e->imm;
	return r;
}

/* The inverse of cairn_cqe_parse(), for code that emulates the card. Returns the entry at the producer's
 * index. Store op_own last. */
CAIRN_WQE_FN struct cairn_cqe cairn_cqe_build(const struct cairn_cqe_result *r, uint64_t index,
					      uint32_t num_cqes)
{
	struct cairn_cqe e = {};

	e.user_index = cairn_be32(r->user_index);
	e.imm = r->imm_be;
	e.byte_count = cairn_be32(r->byte_count);
	e.vendor_syndrome = r->vendor_syndrome;
	e.syndrome = r->syndrome;
	e.opcode_qpn = cairn_be32((uint32_t)r->sent_opcode << 24 | r->qpn);
	e.wqe_counter = (uint16_t)(r->wqe_counter << 8 | r->wqe_counter >> 8);
	e.op_own = (uint8_t)(r->opcode << 4 | r->format << 2 | r->solicited << 1 | !!(index & num_cqes));
	return e;
}

/* Returns the full index that wqe_counter stands for. `oldest` is the index of the oldest outstanding WQE,
 * which is less than 65536 before it. */
CAIRN_WQE_FN uint64_t cairn_cqe_index(uint64_t oldest, uint16_t wqe_counter)
{
	return oldest + (uint16_t)(wqe_counter - (uint16_t)oldest);
}

/* Returns the completion queue's doorbell record for `next`, the index after the last entry read. */
CAIRN_WQE_FN uint32_t cairn_cqe_dbrec(uint64_t next)
{
	return cairn_be32((uint32_t)next & 0xffffff);
}

CAIRN_WQE_FN const char *cairn_cqe_syndrome_name(uint8_t syndrome)
{
	switch (syndrome) {
	case CAIRN_CQE_LOCAL_LENGTH:		return "local length error";
	case CAIRN_CQE_LOCAL_QP_OP:		return "local queue pair operation error";
	case CAIRN_CQE_LOCAL_PROTECTION:	return "local protection error";
	case CAIRN_CQE_FLUSHED:			return "flushed";
	case CAIRN_CQE_BIND:			return "memory window bind error";
	case CAIRN_CQE_BAD_RESPONSE:		return "bad response";
	case CAIRN_CQE_LOCAL_ACCESS:		return "local access error";
	case CAIRN_CQE_REMOTE_INVALID:		return "remote invalid request";
	case CAIRN_CQE_REMOTE_ACCESS:		return "remote access error";
	case CAIRN_CQE_REMOTE_OP:		return "remote operation error";
	case CAIRN_CQE_TRANSPORT_RETRY:		return "transport retries exceeded";
	case CAIRN_CQE_RNR_RETRY:		return "receiver-not-ready retries exceeded";
	case CAIRN_CQE_REMOTE_ABORTED:		return "remote aborted";
	}
	return "unknown syndrome";
}

#endif
