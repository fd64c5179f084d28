// SPDX-License-Identifier: Apache-2.0
/* fhbn_host.c - the poster compiled for a CPU, and the error text of a fault from CPU or GPU */
#include <stdio.h>

#include "primitives/base/error.h"
#include "rdma/fhbn/fhbn_host.h"

_Thread_local struct fhbn_tap *fhbn_tap;
_Thread_local uint32_t fhbn_host_thread;

int cairn_fhbn_host_post(const struct cairn_fhbn_qp *q, const struct cairn_fhbn_request *r, uint32_t num,
			 uint64_t *end)
{
	if (!num || num > CAIRN_FHBN_MAX_BATCH)
		return cairn_error(EINVAL, "fhbn: num: %u requests, a batch is 1 to %d", num,
				   CAIRN_FHBN_MAX_BATCH);
	return cairn_fhbn_post(q, q->mode, r, num, end);
}

int cairn_fhbn_host_put_signal(const struct cairn_fhbn_qp *q, const struct cairn_fhbn_request *put,
			       uint64_t signal_remote, uint32_t signal_rkey, uint64_t sequence)
{
	return cairn_fhbn_put_signal(q, q->mode, put, signal_remote, signal_rkey, sequence, NULL);
}

int cairn_fhbn_host_flush(const struct cairn_fhbn_qp *q)
{
	return cairn_fhbn_flush(q, q->mode);
}

int cairn_fhbn_host_wait_signal(const uint64_t *flag, uint64_t sequence, uint64_t timeout_ns,
				struct cairn_fhbn_fault *fault)
{
	return cairn_fhbn_wait_signal(flag, sequence, timeout_ns, fault);
}

static const char *request_name(uint8_t opcode)
{
	switch (opcode) {
	case CAIRN_WQE_NOP:		return "NOP";
	case CAIRN_WQE_WRITE:		return "WRITE";
	case CAIRN_WQE_WRITE_IMM:	return "WRITE with immediate";
	case CAIRN_WQE_READ:		return "READ";
	}
	return "request";
}

int cairn_fhbn_fault_error(const struct cairn_fhbn_fault *f)
{
	unsigned long long want = f->want, seen = f->seen;
	double ms = (double)f->waited_ns * 1e-6;
	char waiter[64];

	if (f->block == ~0u)
		snprintf(waiter, sizeof(waiter), "CPU thread %u", f->thread);
	else
		snprintf(waiter, sizeof(waiter), "block %u thread %u", f->block, f->thread);
	switch (f->kind) {
	case CAIRN_FHBN_NO_FAULT:
		return 0;
	case CAIRN_FHBN_NO_ROOM:
		return cairn_error(ETIMEDOUT, "fhbn: queue pair %#x: %s waited %.1f ms for room up to index "
				   "%llu; completed up to %llu", f->qpn, waiter, ms, want, seen);
	case CAIRN_FHBN_NO_TURN:
		return cairn_error(ETIMEDOUT, "fhbn: queue pair %#x: %s waited %.1f ms for its turn at index "
				   "%llu; published up to %llu", f->qpn, waiter, ms, want, seen);
	case CAIRN_FHBN_NOT_COMPLETED:
		return cairn_error(ETIMEDOUT, "fhbn: queue pair %#x: %s waited %.1f ms for completions up to "
				   "index %llu; completed up to %llu", f->qpn, waiter, ms, want, seen);
	case CAIRN_FHBN_NO_SIGNAL:
		return cairn_error(ETIMEDOUT, "fhbn: %s waited %.1f ms for sequence number %llu; last seen "
				   "%llu", waiter, ms, want, seen);
	default:
		return cairn_error(EIO, "fhbn: queue pair %#x: %s at index %llu failed: %s (syndrome %#x, "
				   "vendor %#x), read by %s", f->qpn, request_name(f->opcode), want,
				   cairn_cqe_syndrome_name(f->syndrome), f->syndrome,
				   f->vendor_syndrome, waiter);
	}
}
