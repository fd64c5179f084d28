/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_post - the poster; the rules are in fhbn.h
 *
 * One source for GPU and CPU. fhbn.cuh or fhbn_host.h includes it and defines the accesses it uses:
 *
 *   fhbn_store_seg(to, seg)          16 bytes of a WQE, unordered
 *   fhbn_fence(mode, why)            releases all that this thread has written or seen, in `mode`'s scope
 *   fhbn_store_record(to, word)      one store; also fhbn_store_cq_record
 *   fhbn_ring8(reg, word)            8 bytes to the UAR
 *   fhbn_ring64(reg, segs)           64 bytes to the UAR, the doorbell's bytes last
 *   fhbn_load_entry(cqe)             last 8 bytes of a completion, acquire; fhbn_load_error: the 8 before
 *   fhbn_load, fhbn_store            a counter that only this poster uses
 *   fhbn_load_acquire, fhbn_store_release, fhbn_add, fhbn_try_lock, fhbn_unlock    for a shared counter
 *   fhbn_peek                        the same, relaxed; a later fhbn_fence_acquire() makes it an acquire
 *   fhbn_load_signal(flag)           a sequence number, acquire
 *   fhbn_raise(word, kind)           sets a word that is 0 to kind; returns whether this call did
 *   fhbn_load_kind, fhbn_written     a fault's kind, relaxed; marks the fault as written, release
 *   fhbn_now_ns(), fhbn_pause(), fhbn_caller(&block, &thread)
 *   FHBN_FN                          function qualifiers
 */
#ifndef CAIRN_FHBN_POST_H
#define CAIRN_FHBN_POST_H

#include "rdma/fhbn/fhbn_wait.h"

enum fhbn_why { FHBN_BEFORE_RECORD, FHBN_BEFORE_REGISTER, FHBN_BEFORE_READY };

/* ---- requests ---- */

FHBN_FN struct cairn_fhbn_request cairn_fhbn_request(uint32_t opcode, uint64_t remote, uint32_t rkey,
						     uint64_t local, uint32_t lkey, uint32_t bytes)
{
	struct cairn_fhbn_request r = {};

	r.opcode = opcode;
	r.remote = remote;
	r.rkey = rkey;
	r.local = local;
	r.lkey = lkey;
	r.bytes = bytes;
	return r;
}

/* bytes < 2^31; 0 gives a request without data */
FHBN_FN struct cairn_fhbn_request cairn_fhbn_write(uint64_t remote, uint32_t rkey, uint64_t local,
							uint32_t lkey, uint32_t bytes)
{
	return cairn_fhbn_request(CAIRN_WQE_WRITE, remote, rkey, local, lkey, bytes);
}

FHBN_FN struct cairn_fhbn_request cairn_fhbn_write_imm(uint64_t remote, uint32_t rkey, uint64_t local,
							    uint32_t lkey, uint32_t bytes, uint32_t imm_be)
{
	struct cairn_fhbn_request r = cairn_fhbn_request(CAIRN_WQE_WRITE_IMM, remote, rkey, local, lkey,
							 bytes);

	r.imm_be = imm_be;
	return r;
}

FHBN_FN struct cairn_fhbn_request cairn_fhbn_read(uint64_t remote, uint32_t rkey, uint64_t local,
						       uint32_t lkey, uint32_t bytes)
{
	return cairn_fhbn_request(CAIRN_WQE_READ, remote, rkey, local, lkey, bytes);
}

/* A WRITE of 8 bytes stored inline in the request, such as a sequence number. */
FHBN_FN struct cairn_fhbn_request cairn_fhbn_write_u64(uint64_t remote, uint32_t rkey, uint64_t value)
{
	struct cairn_fhbn_request r = cairn_fhbn_request(CAIRN_WQE_WRITE, remote, rkey, 0, 0, 8);

	r.value = value;
	r.is_inline = 1;
	return r;
}

/* Builds the WQE. Returns its number of segments; the unused ones are zero. */
FHBN_FN uint32_t fhbn_form(const struct cairn_fhbn_request *r, uint64_t index, uint32_t qpn,
				uint32_t flags, struct cairn_wqe_seg segs[4])
{
	uint32_t ds = r->opcode == CAIRN_WQE_NOP ? 1 : r->bytes ? 3 : 2;

	segs[0] = cairn_wqe_ctrl(r->opcode, index, qpn, ds, flags, r->imm_be);
	segs[1] = cairn_wqe_raddr(r->remote, r->rkey);
	segs[2] = r->is_inline ? cairn_wqe_inline_u64(r->value) : cairn_wqe_data(r->local, r->bytes, r->lkey);
	segs[3] = cairn_wqe_words(0, 0, 0, 0);
	return ds;
}

/* ---- posting ---- */

/*
 * Announces all requests before `end` to the card; segs are the last request's. Only one poster at a time
 * may be in this function.
 */
FHBN_FN void fhbn_announce(const struct cairn_fhbn_qp *q, uint32_t mode, uint64_t end,
				const struct cairn_wqe_seg segs[4])
{
	struct cairn_fhbn_state *s = q->state;
	uint32_t half;

	fhbn_fence(mode, FHBN_BEFORE_RECORD);
	fhbn_store_record(q->record, cairn_wqe_dbrec(end));
	fhbn_fence(mode, FHBN_BEFORE_REGISTER);
	if (mode & CAIRN_FHBN_BLUEFLAME) {
		half = s->bf_half;
		fhbn_ring64(half ? q->reg[1] : q->reg[0], segs);
		s->bf_half = half ^ 1;
	} else {
		fhbn_ring8(q->reg[0], mode & CAIRN_FHBN_BELL_WQE ? cairn_wqe_doorbell(segs[0]) :
							     cairn_wqe_doorbell_next(end, q->sq.qpn));
	}
	fhbn_store(&s->rung, end);
}

/* Returns whether the doorbell may be left to the next poster (see fhbn.h). The values read may be stale,
 * which is safe because both only grow. */
FHBN_FN int fhbn_successor_rings(const struct cairn_fhbn_qp *q, uint64_t index, uint64_t end)
{
	if (index / CAIRN_FHBN_RING_EVERY != end / CAIRN_FHBN_RING_EVERY)
		return 0;
	return fhbn_peek(&q->state->reserved) > end &&
	       end + CAIRN_FHBN_MAX_BATCH <= fhbn_peek(&q->state->retired) + q->sq.num_blocks;
}

/*
 * Publishes requests index..end when it is their turn. ready: the counter's value when the blocks were
 * reserved. A poster that had to wait looks for a successor; one that did not wait assumes it is alone and
 * rings at once.
 */
FHBN_FN int fhbn_publish(const struct cairn_fhbn_qp *q, uint32_t mode, uint64_t index, uint64_t end,
			 uint64_t ready, const struct cairn_wqe_seg segs[4])
{
	struct cairn_fhbn_state *s = q->state;
	struct fhbn_patience patience = {};
	int has_waited = ready != index;
	uint64_t waited;

	while (ready != index) {
		ready = fhbn_load_acquire(&s->ready);
		if (ready == index)
			break;
		if (fhbn_load_kind(&s->fault.kind))
			return fhbn_code(fhbn_load_kind(&s->fault.kind));
		waited = fhbn_waited(&patience, q->timeout_ns);
		if (waited)
			return fhbn_fail(&s->fault, q->sq.qpn, CAIRN_FHBN_NO_TURN, index, ready, waited, 0);
	}
	if (has_waited && fhbn_successor_rings(q, index, end))
		fhbn_fence(mode, FHBN_BEFORE_READY);
	else
		fhbn_announce(q, mode, end, segs);
	fhbn_store_release(&s->ready, end);
	return 0;
}

/*
 * Posts num requests and announces them together. *end: the index after the last, for cairn_fhbn_wait();
 * may be NULL. The payload must have been stored by this thread or be visible to it.
 */
FHBN_FN int cairn_fhbn_post(const struct cairn_fhbn_qp *q, uint32_t mode,
				 const struct cairn_fhbn_request *r, uint32_t num, uint64_t *end_out)
{
	struct cairn_fhbn_state *s = q->state;
	const uint32_t half = q->sq.num_blocks / 2;
	uint64_t index, end, retired, ready = 0;
	struct cairn_wqe_seg segs[4];
	uint32_t failed;
	int ret;

	/* issue all loads together: each is a round trip to the L2 */
	if (mode & CAIRN_FHBN_SHARED) {
		index = fhbn_add(&s->reserved, num);
		retired = fhbn_peek(&s->retired);
		ready = fhbn_peek(&s->ready);
		failed = fhbn_load_kind(&s->fault.kind);
		fhbn_fence_acquire();
	} else {
		index = fhbn_load(&s->reserved);
		retired = fhbn_load(&s->retired);
		failed = fhbn_load_kind(&s->fault.kind);
		fhbn_store(&s->reserved, index + num);
	}
	if (failed)
		return fhbn_code(failed);
	end = index + num;
	if (end > retired + q->sq.num_blocks) {
		ret = fhbn_wait_retired(q, mode, end, q->sq.num_blocks, CAIRN_FHBN_NO_ROOM);
		if (ret)
			return ret;
	}
#pragma unroll
	for (uint32_t i = 0; i < num; i++) {
		int signaled = i == num - 1 && (!(mode & CAIRN_FHBN_QUIET) || index / half != end / half);
		uint32_t ds = fhbn_form(&r[i], index + i, q->sq.qpn,
					r[i].flags | (signaled ? CAIRN_WQE_SIGNALED : 0), segs);

#pragma unroll
		for (uint32_t k = 0; k < 4; k++)
			if (k < ds)
				fhbn_store_seg(cairn_wqe_at(&q->sq, index + i, k), segs[k]);
	}
	if (end_out)
		*end_out = end;
	if (mode & CAIRN_FHBN_SHARED)
		return fhbn_publish(q, mode, index, end, ready, segs);
	fhbn_announce(q, mode, end, segs);
	fhbn_store(&s->ready, end);
	return 0;
}

/* Posts a put and the sequence number that signals its arrival: one batch, one doorbell. */
FHBN_FN int cairn_fhbn_put_signal(const struct cairn_fhbn_qp *q, uint32_t mode,
				       const struct cairn_fhbn_request *put, uint64_t signal_remote,
				       uint32_t signal_rkey, uint64_t sequence, uint64_t *end)
{
	const struct cairn_fhbn_request r[2] = {
		*put, cairn_fhbn_write_u64(signal_remote, signal_rkey, sequence),
	};

	return cairn_fhbn_post(q, mode, r, 2, end);
}

/*
 * Waits until all requests before `end` are complete. The request just before `end` must be signalled
 * (not QUIET).
 */
FHBN_FN int cairn_fhbn_wait(const struct cairn_fhbn_qp *q, uint32_t mode, uint64_t end)
{
	return fhbn_wait_retired(q, mode, end, 0, CAIRN_FHBN_NOT_COMPLETED);
}

/* Waits until all earlier requests have been executed at the other end and all READ data has arrived here. */
FHBN_FN int cairn_fhbn_flush(const struct cairn_fhbn_qp *q, uint32_t mode)
{
	struct cairn_fhbn_request nop = cairn_fhbn_request(CAIRN_WQE_NOP, 0, 0, 0, 0, 0);
	uint64_t end;
	int ret = cairn_fhbn_post(q, mode & ~CAIRN_FHBN_QUIET, &nop, 1, &end);

	return ret ? ret : cairn_fhbn_wait(q, mode, end);
}

#endif
