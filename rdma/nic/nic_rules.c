// SPDX-License-Identifier: Apache-2.0
/*
 * nic_rules.c - decodes a work request and reports, by name, each rule that its producer broke
 *
 * A broken rule is counted and reported. The request is still executed if possible, as hardware would ignore
 * a set reserved bit; otherwise it fails with a QP operation error.
 */
#include <stdarg.h>
#include <stdio.h>

#include "rdma/nic/nic_model.h"

void nic_broken(const struct nic_qp *qp, enum nic_rule rule, uint32_t index, const char *fmt, ...)
{
	char text[160];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	nic_count(&nic_stats.rules, 1);
	nic_count(&nic_stats.by_rule[rule], 1);
	nic_report_rule(rule, qp->qpn, index, text);
}

#define BROKEN(rule, ...) nic_broken(qp, NIC_RULE_##rule, r->index, __VA_ARGS__)

static void check_control(const struct nic_qp *qp, uint16_t expected, const struct nic_request *r)
{
	uint16_t index = (uint16_t)(nic_get32(r->raw) >> 8);
	uint32_t qpn = nic_get32(r->raw + 4) >> 8;

	if (index != expected)
		BROKEN(wqe_index, "index %u, expected %u", index, expected);
	if (qpn != qp->qpn)
		BROKEN(wqe_qpn, "queue pair %#x, this is %#x", qpn, qp->qpn);
	if (r->raw[7] & 0xc0)
		BROKEN(wqe_ds_reserved, "byte 7 is %#x", r->raw[7]);
	if (r->raw[0])
		BROKEN(wqe_opmod, "opcode modifier %#x", r->raw[0]);
	if (r->raw[8])
		BROKEN(wqe_signature, "signature %#x", r->raw[8]);
	if (r->raw[9] | r->raw[10])
		BROKEN(wqe_stream, "bytes 9 and 10 are %#x, %#x", r->raw[9], r->raw[10]);
	if (r->flags & NIC_FLAG_RESERVED || (r->flags & NIC_FLAG_CE) == 0x04)
		BROKEN(wqe_flags_reserved, "fm_ce_se is %#x", r->flags);
}

/* Decodes data and inline segments from byte `at` of the request to its end. */
static int decode_segments(const struct nic_qp *qp, struct nic_request *r, int at)
{
	int end = r->ds * NIC_SEGMENT, inline_is_wrong = r->opcode >= CAIRN_WQE_READ;

	while (at < end) {
		uint32_t count = nic_get32(r->raw + at);
		struct nic_segment *s = &r->segments[r->num_segments++];

		*s = (struct nic_segment) { 0 };
		if (count & CAIRN_WQE_INLINE_FLAG) {
			s->bytes = count & NIC_INLINE_MASK;
			if (count & ~(CAIRN_WQE_INLINE_FLAG | NIC_INLINE_MASK))
				BROKEN(inline_reserved, "inline length word %#x", count);
			if (inline_is_wrong) {
				BROKEN(inline_misplaced, "operation %#x", r->opcode);
				return CAIRN_CQE_LOCAL_QP_OP;
			}
			if (at + 4 + (int)s->bytes > end) {
				BROKEN(inline_overrun, "%u bytes inline at byte %d of %d", s->bytes, at, end);
				return CAIRN_CQE_LOCAL_QP_OP;
			}
			s->inline_bytes = r->raw + at + 4;
			at += (4 + (int)s->bytes + NIC_SEGMENT - 1) / NIC_SEGMENT * NIC_SEGMENT;
		} else {
			if (!count)
				BROKEN(data_zero_length, "data segment at byte %d", at);
			s->bytes = count ? count : CAIRN_WQE_INLINE_FLAG;		/* 0 is 2^31 */
			s->key = nic_get32(r->raw + at + 4);
			s->addr = nic_get64(r->raw + at + 8);
			at += NIC_SEGMENT;
		}
		r->bytes += s->bytes;
	}
	return 0;
}

/* Returns the number of segments before the data; -1 for an unknown operation. */
static int fixed_segments(int opcode)
{
	switch (opcode) {
	case CAIRN_WQE_NOP: case CAIRN_WQE_SEND: case CAIRN_WQE_SEND_IMM:
		return 1;
	case CAIRN_WQE_WRITE: case CAIRN_WQE_WRITE_IMM: case CAIRN_WQE_READ:
		return 2;
	case CAIRN_WQE_ATOMIC_CS: case CAIRN_WQE_ATOMIC_FA:
		return 3;
	default:
		return -1;
	}
}

/*
 * r->raw holds the request, r->index its index. Returns 0, or the syndrome of a request that cannot be
 * executed.
 */
int nic_decode(const struct nic_qp *qp, uint16_t expected, struct nic_request *r)
{
	int fixed;

	r->opcode = r->raw[3];
	r->flags = r->raw[11];
	r->ds = r->raw[7] & 0x3f;
	r->num_blocks = r->ds ? nic_blocks(r->ds) : 1;
	r->num_segments = 0;
	r->bytes = 0;
	memcpy(&r->imm, r->raw + 12, sizeof(r->imm));
	check_control(qp, expected, r);
	fixed = fixed_segments(r->opcode);
	if (fixed < 0) {
		BROKEN(wqe_opcode, "operation %#x", r->opcode);
		return CAIRN_CQE_LOCAL_QP_OP;
	}
	if (!r->ds || r->num_blocks > (int)qp->sq_blocks) {
		BROKEN(wqe_ds, "ds %u", r->ds);
		return CAIRN_CQE_LOCAL_QP_OP;
	}
	if (r->ds < fixed) {
		BROKEN(wqe_too_short, "operation %#x with ds %u", r->opcode, r->ds);
		return CAIRN_CQE_LOCAL_QP_OP;
	}
	if (fixed >= 2) {
		r->remote = nic_get64(r->raw + 16);
		r->rkey = nic_get32(r->raw + 24);
		if (nic_get32(r->raw + 28))
			BROKEN(raddr_reserved, "word is %#x", nic_get32(r->raw + 28));
	}
	if (fixed == 3) {
		r->swap_add = nic_get64(r->raw + 32);
		r->compare = nic_get64(r->raw + 40);
	}
	if (r->opcode == CAIRN_WQE_NOP)
		return 0;
	if (decode_segments(qp, r, fixed * NIC_SEGMENT))
		return CAIRN_CQE_LOCAL_QP_OP;
	if (fixed == 3 && (r->bytes != 8 || r->num_segments != 1)) {
		BROKEN(atomic_length, "%llu bytes in %d segments", (unsigned long long)r->bytes,
		       r->num_segments);
		return CAIRN_CQE_LOCAL_QP_OP;
	}
	return 0;
}

/* raw: the send word of the doorbell record as stored in memory. Returns the producer index, or -1. */
int nic_record_check(const struct nic_qp *qp, uint32_t raw, uint16_t consumed)
{
	uint32_t value = be32toh(raw);

	if (!(value >> 16))
		return (int)value;
	if (!(value & 0xffff) && raw < 0x10000) {
		nic_broken(qp, NIC_RULE_record_native_endian, consumed, "word is %#x", value);
		return -1;
	}
	nic_broken(qp, NIC_RULE_record_upper_half, consumed, "word is %#x", value);
	return (int)(value & 0xffff);
}
