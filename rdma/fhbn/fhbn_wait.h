/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_wait - completions, sequence numbers, and faults after a time-out; part of fhbn_post.h
 *
 * Uses the same accesses as fhbn_post.h, on GPU and CPU.
 */
#ifndef CAIRN_FHBN_WAIT_H
#define CAIRN_FHBN_WAIT_H

#include <errno.h>

#include "rdma/fhbn/fhbn.h"

#define FHBN_LOOKS_PER_CLOCK	32	/* reading the clock takes longer than one poll */

/* ---- failure ---- */

FHBN_FN int fhbn_code(uint32_t kind)
{
	return kind == CAIRN_FHBN_NO_FAULT ? 0 : kind == CAIRN_FHBN_FAILED ? -EIO : -ETIMEDOUT;
}

/* Records a failure; the first one stays. */
FHBN_FN int fhbn_fail(struct cairn_fhbn_fault *f, uint32_t qpn, uint32_t kind, uint64_t want,
			   uint64_t seen, uint64_t waited_ns, uint64_t error)
{
	if (!fhbn_raise(&f->kind, kind))
		return fhbn_code(fhbn_load_kind(&f->kind));
	fhbn_caller(&f->block, &f->thread);
	f->qpn = qpn;
	f->vendor_syndrome = (uint8_t)(error >> 48);
	f->syndrome = (uint8_t)(error >> 56);
	f->opcode = (uint8_t)error;
	f->want = want;
	f->seen = seen;
	f->waited_ns = waited_ns;
	fhbn_written(&f->written);
	return fhbn_code(kind);
}

struct fhbn_patience {
	uint64_t since_ns;
	uint32_t looks;
};

/* Returns the time waited, in ns, once it exceeds the time-out; otherwise 0. Call it after each poll that
 * found nothing. */
FHBN_FN uint64_t fhbn_waited(struct fhbn_patience *p, uint64_t timeout_ns)
{
	uint64_t now;

	fhbn_pause();
	if (p->looks++ % FHBN_LOOKS_PER_CLOCK)
		return 0;
	now = fhbn_now_ns();
	if (!p->since_ns)
		p->since_ns = now;
	return now - p->since_ns > timeout_ns ? now - p->since_ns : 0;
}

/* ---- completions ---- */

FHBN_FN uint64_t fhbn_retired(const struct cairn_fhbn_qp *q, uint32_t mode)
{
	return mode & CAIRN_FHBN_SHARED ? fhbn_load_acquire(&q->state->retired) :
		fhbn_load(&q->state->retired);
}

/* Reads the completions that have arrived and frees their blocks. With several posters, the holder of the
 * lock reads for all; a poster that finds the lock taken returns. */
FHBN_FN int fhbn_reap(const struct cairn_fhbn_qp *q, uint32_t mode)
{
	struct cairn_fhbn_state *s = q->state;
	uint64_t next, first, retired, tail;
	int ret = 0;

	if (mode & CAIRN_FHBN_SHARED && !fhbn_try_lock(&s->cq_lock))
		return 0;
	first = next = fhbn_load(&s->cq_next);
	retired = fhbn_load(&s->retired);
	for (;; next++) {
		const struct cairn_cqe *e = &q->cq[next & (q->num_cqes - 1)];

		/* bytes 0..3: opcode and qpn, 4..5: counter, 6: signature, 7: op_own; a successful
		 * completion holds no more */
		tail = fhbn_load_entry(e);
		if (!cairn_cqe_valid((uint8_t)(tail >> 56), next, q->num_cqes))
			break;
		retired = cairn_cqe_index(retired, (uint16_t)((tail >> 32 & 0xff) << 8 |
							      (tail >> 40 & 0xff))) + 1;
		if (tail >> 60 != CAIRN_CQE_REQ) {
			ret = fhbn_fail(&s->fault, q->sq.qpn, CAIRN_FHBN_FAILED, retired - 1, 0, 0,
					fhbn_load_error(e) | (tail & 0xff));
			break;
		}
	}
	if (next != first) {
		fhbn_store(&s->cq_next, next);
		fhbn_store_cq_record(q->cq_record, cairn_cqe_dbrec(next));
		if (!ret && mode & CAIRN_FHBN_SHARED)
			fhbn_store_release(&s->retired, retired);
		else if (!ret)
			fhbn_store(&s->retired, retired);
	}
	if (mode & CAIRN_FHBN_SHARED)
		fhbn_unlock(&s->cq_lock);
	return ret;
}

/* Waits until all requests before `end`, less `slack`, are retired. */
FHBN_FN int fhbn_wait_retired(const struct cairn_fhbn_qp *q, uint32_t mode, uint64_t end, uint64_t slack,
				   uint32_t kind)
{
	struct fhbn_patience patience = {};
	uint64_t retired, waited;
	int ret;

	while ((retired = fhbn_retired(q, mode)) + slack < end) {
		ret = fhbn_reap(q, mode);
		if (ret)
			return ret;
		if (mode & CAIRN_FHBN_SHARED && fhbn_load_kind(&q->state->fault.kind))
			return fhbn_code(fhbn_load_kind(&q->state->fault.kind));
		waited = fhbn_waited(&patience, q->timeout_ns);
		if (waited)
			return fhbn_fail(&q->state->fault, q->sq.qpn, kind, end, retired, waited, 0);
	}
	return 0;
}

/* ---- receiving ---- */

/*
 * Waits for the sequence number or a later one. After that, everything put before the number may be read.
 */
FHBN_FN int cairn_fhbn_wait_signal(const uint64_t *flag, uint64_t sequence, uint64_t timeout_ns,
					struct cairn_fhbn_fault *fault)
{
	struct fhbn_patience patience = {};
	uint64_t seen, waited;

	while ((seen = fhbn_load_signal(flag)) < sequence) {
		waited = fhbn_waited(&patience, timeout_ns);
		if (waited)
			return fhbn_fail(fault, 0, CAIRN_FHBN_NO_SIGNAL, sequence, seen, waited, 0);
	}
	return 0;
}

#endif
