/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_host - the poster on a CPU: the memory accesses that fhbn_post.h uses
 *
 * Every access to memory that another thread or the card reads or writes goes through one of these functions.
 * If the thread has a tap, the function passes the access to the tap before executing it. A tap records what
 * the poster does and in which order; it may also alter or drop the access. fhbn_trace.c uses this to make
 * defective posters without a second implementation.
 */
#ifndef CAIRN_FHBN_HOST_H
#define CAIRN_FHBN_HOST_H

#include <sched.h>
#include <string.h>
#include <time.h>

#include "rdma/fhbn/fhbn.h"

enum fhbn_access {
	FHBN_STORE_SEG,			/* to; v: first 8 bytes; data: all 16 */
	FHBN_FENCE,			/* mode; v: enum fhbn_why */
	FHBN_STORE_RECORD,		/* to, v */
	FHBN_RING8,			/* to, v */
	FHBN_RING64,			/* to; v: first 8 bytes; data: all 64 */
	FHBN_STORE_CQ_RECORD,		/* to, v */
	FHBN_LOAD_ENTRY,		/* from */
	FHBN_LOAD_ERROR,
	FHBN_LOAD,			/* a counter of a single poster, or one protected by the lock */
	FHBN_STORE,
	FHBN_LOAD_ACQUIRE,
	FHBN_PEEK,			/* relaxed */
	FHBN_FENCE_ACQUIRE,		/* orders all preceding FHBN_PEEKs */
	FHBN_STORE_RELEASE,
	FHBN_ADD,			/* returns the old value */
	FHBN_TRY_LOCK,			/* returns whether the caller now holds the lock */
	FHBN_UNLOCK,
	FHBN_LOAD_SIGNAL,
	/* changes a 32-bit word from 0 to v; returns whether this call changed it */
	FHBN_RAISE,
	FHBN_LOAD_KIND,
	FHBN_WRITTEN,
	FHBN_NOW,
	FHBN_PAUSE,			/* between two polls */
};

struct fhbn_op {
	enum fhbn_access access;
	void *at;
	uint64_t v;
	const struct cairn_wqe_seg *data;
	uint32_t mode;
};

/* Returns the result of the access. A tap that changes nothing returns fhbn_carry_out(op). */
struct fhbn_tap {
	uint64_t (*access)(struct fhbn_tap *tap, struct fhbn_op op);
};

extern _Thread_local struct fhbn_tap *fhbn_tap;

/* Stores to the UAR. memcpy() is not used, because it may store in any order and width. */
static inline void fhbn_carry_out_ring64(uint64_t *reg, const struct cairn_wqe_seg *segs)
{
	for (int k = 7; k >= 0; k--) {
		const uint32_t *w = &segs[k / 2].w[k % 2 * 2];

		__atomic_store_n(&reg[k], (uint64_t)w[1] << 32 | w[0], __ATOMIC_RELAXED);
	}
}

static inline uint64_t fhbn_carry_out(struct fhbn_op op)
{
	uint32_t *w = op.at, zero = 0;
	uint64_t *d = op.at;

	switch (op.access) {
	case FHBN_STORE_SEG:
		memcpy(op.at, op.data, sizeof(*op.data));
		return 0;
	case FHBN_FENCE:
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		return 0;
	case FHBN_STORE_RECORD: case FHBN_STORE_CQ_RECORD:
		__atomic_store_n(w, (uint32_t)op.v, __ATOMIC_RELAXED);
		return 0;
	case FHBN_RING8:
		__atomic_store_n(d, op.v, __ATOMIC_RELAXED);
		return 0;
	case FHBN_RING64:
		fhbn_carry_out_ring64(op.at, op.data);
		return 0;
	case FHBN_LOAD_ENTRY: case FHBN_LOAD_ERROR: case FHBN_LOAD_ACQUIRE: case FHBN_LOAD_SIGNAL:
		return __atomic_load_n(d, __ATOMIC_ACQUIRE);
	case FHBN_FENCE_ACQUIRE:
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		return 0;
	case FHBN_LOAD: case FHBN_PEEK:
		return __atomic_load_n(d, __ATOMIC_RELAXED);
	case FHBN_STORE:
		__atomic_store_n(d, op.v, __ATOMIC_RELAXED);
		return 0;
	case FHBN_STORE_RELEASE:
		__atomic_store_n(d, op.v, __ATOMIC_RELEASE);
		return 0;
	case FHBN_ADD:
		return __atomic_fetch_add(d, op.v, __ATOMIC_RELAXED);
	case FHBN_TRY_LOCK:
		return __atomic_compare_exchange_n(w, &zero, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
	case FHBN_RAISE:
		return __atomic_compare_exchange_n(w, &zero, (uint32_t)op.v, 0, __ATOMIC_ACQ_REL,
						   __ATOMIC_RELAXED);
	case FHBN_UNLOCK:
		__atomic_store_n(w, 0, __ATOMIC_RELEASE);
		return 0;
	case FHBN_WRITTEN:
		__atomic_store_n(w, 1, __ATOMIC_RELEASE);
		return 0;
	case FHBN_LOAD_KIND:
		return __atomic_load_n(w, __ATOMIC_RELAXED);
	case FHBN_PAUSE:
		sched_yield();	/* the card may be a thread that needs this core */
		return 0;
	case FHBN_NOW: {
		struct timespec t;

		clock_gettime(CLOCK_MONOTONIC, &t);
		return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	}
	}
	return 0;
}

static inline uint64_t fhbn_do(struct fhbn_op op)
{
	return fhbn_tap ? fhbn_tap->access(fhbn_tap, op) : fhbn_carry_out(op);
}

#define FHBN_OP(kind, ...) fhbn_do((struct fhbn_op) { .access = FHBN_##kind, __VA_ARGS__ })
#define FHBN_FN static inline __attribute__((unused))

FHBN_FN void fhbn_store_seg(struct cairn_wqe_seg *to, struct cairn_wqe_seg v)
{
	FHBN_OP(STORE_SEG, .at = to, .v = (uint64_t)v.w[1] << 32 | v.w[0], .data = &v);
}

FHBN_FN void fhbn_fence(uint32_t mode, uint32_t why)
{
	FHBN_OP(FENCE, .mode = mode, .v = why);
}

FHBN_FN void fhbn_store_record(uint32_t *to, uint32_t word)
{
	FHBN_OP(STORE_RECORD, .at = to, .v = word);
}

FHBN_FN void fhbn_store_cq_record(uint32_t *to, uint32_t word)
{
	FHBN_OP(STORE_CQ_RECORD, .at = to, .v = word);
}

FHBN_FN void fhbn_ring8(uint64_t *reg, uint64_t word) { FHBN_OP(RING8, .at = reg, .v = word); }

FHBN_FN void fhbn_ring64(uint64_t *reg, const struct cairn_wqe_seg segs[4])
{
	FHBN_OP(RING64, .at = reg, .v = (uint64_t)segs[0].w[1] << 32 | segs[0].w[0], .data = segs);
}

FHBN_FN uint64_t fhbn_load_entry(const struct cairn_cqe *e)
{
	return FHBN_OP(LOAD_ENTRY, .at = (void *)&e->opcode_qpn);
}

FHBN_FN uint64_t fhbn_load_error(const struct cairn_cqe *e)
{
	return FHBN_OP(LOAD_ERROR, .at = (void *)e->timestamp);
}

FHBN_FN uint64_t fhbn_load(const uint64_t *p) { return FHBN_OP(LOAD, .at = (void *)p); }
FHBN_FN void fhbn_store(uint64_t *p, uint64_t v) { FHBN_OP(STORE, .at = p, .v = v); }
FHBN_FN uint64_t fhbn_peek(const uint64_t *p) { return FHBN_OP(PEEK, .at = (void *)p); }
FHBN_FN void fhbn_fence_acquire(void) { FHBN_OP(FENCE_ACQUIRE); }
FHBN_FN uint64_t fhbn_load_acquire(const uint64_t *p) { return FHBN_OP(LOAD_ACQUIRE, .at = (void *)p); }
FHBN_FN void fhbn_store_release(uint64_t *p, uint64_t v) { FHBN_OP(STORE_RELEASE, .at = p, .v = v); }
FHBN_FN uint64_t fhbn_add(uint64_t *p, uint64_t n) { return FHBN_OP(ADD, .at = p, .v = n); }
FHBN_FN int fhbn_try_lock(uint32_t *p) { return (int)FHBN_OP(TRY_LOCK, .at = p); }
FHBN_FN void fhbn_unlock(uint32_t *p) { FHBN_OP(UNLOCK, .at = p); }
FHBN_FN uint64_t fhbn_load_signal(const uint64_t *flag) { return FHBN_OP(LOAD_SIGNAL, .at = (void *)flag); }
FHBN_FN int fhbn_raise(uint32_t *p, uint32_t v) { return (int)FHBN_OP(RAISE, .at = p, .v = v); }
FHBN_FN uint32_t fhbn_load_kind(const uint32_t *p) { return (uint32_t)FHBN_OP(LOAD_KIND, .at = (void *)p); }
FHBN_FN void fhbn_written(uint32_t *p) { FHBN_OP(WRITTEN, .at = p); }
FHBN_FN uint64_t fhbn_now_ns(void) { return FHBN_OP(NOW); }
FHBN_FN void fhbn_pause(void) { FHBN_OP(PAUSE); }

/* number of this thread in faults; set by the thread's creator */
extern _Thread_local uint32_t fhbn_host_thread;

FHBN_FN void fhbn_caller(uint32_t *block, uint32_t *thread)
{
	*block = ~0u;
	*thread = fhbn_host_thread;
}

#include "rdma/fhbn/fhbn_post.h"

#endif
