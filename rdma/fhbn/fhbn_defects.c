// SPDX-License-Identifier: Apache-2.0
/* fhbn_defects - posters with one defect each, made by altering the accesses of the correct poster */
#include "rdma/fhbn/fhbn_trace.h"

#define SYS	CAIRN_FHBN_SYS
#define SHARED	CAIRN_FHBN_SHARED
#define BF	CAIRN_FHBN_BLUEFLAME

static uint64_t no_fence_before_record(struct fhbn_trace *s, struct fhbn_op op)
{
	return op.access == FHBN_FENCE && op.v == FHBN_BEFORE_RECORD ? 0 : fhbn_trace_judge(s, op);
}

static uint64_t no_fence_before_register(struct fhbn_trace *s, struct fhbn_op op)
{
	return op.access == FHBN_FENCE && op.v == FHBN_BEFORE_REGISTER ? 0 : fhbn_trace_judge(s, op);
}

/* Uses gpu scope where the card reads host memory. */
static uint64_t narrow_fence_before_record(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_FENCE && op.v == FHBN_BEFORE_RECORD)
		op.mode &= ~SYS;
	return fhbn_trace_judge(s, op);
}

static uint64_t narrow_fence_before_register(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_FENCE && op.v == FHBN_BEFORE_REGISTER)
		op.mode &= ~SYS;
	return fhbn_trace_judge(s, op);
}

static uint64_t ready_published_relaxed(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_FENCE && op.v == FHBN_BEFORE_READY)
		return 0;
	if (op.access == FHBN_STORE_RELEASE && op.at == &s->state.ready)
		op.access = FHBN_STORE;
	return fhbn_trace_judge(s, op);
}

static uint64_t ready_read_relaxed(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_FENCE_ACQUIRE)
		return 0;
	if (op.access == FHBN_LOAD_ACQUIRE && op.at == &s->state.ready)
		op.access = FHBN_PEEK;
	return fhbn_trace_judge(s, op);
}

static uint64_t register_before_record(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_STORE_RECORD) {
		s->held = op;
		s->holding = 1;
		return 0;
	}
	fhbn_trace_judge(s, op);
	if (!s->holding || op.access != FHBN_RING8)
		return fhbn_carry_out(op);
	s->holding = 0;
	return fhbn_trace_judge(s, s->held);
}

static uint64_t bent_record(struct fhbn_trace *s, struct fhbn_op op, uint32_t word)
{
	if (op.access == FHBN_STORE_RECORD)
		op.v = word;
	return fhbn_trace_judge(s, op);
}

static uint64_t record_one_too_many(struct fhbn_trace *s, struct fhbn_op op)
{
	return bent_record(s, op, cairn_wqe_dbrec(cairn_be32((uint32_t)op.v) + 1));
}

static uint64_t record_one_short(struct fhbn_trace *s, struct fhbn_op op)
{
	return bent_record(s, op, cairn_wqe_dbrec(cairn_be32((uint32_t)op.v) - 1));
}

static uint64_t record_native_endian(struct fhbn_trace *s, struct fhbn_op op)
{
	return bent_record(s, op, cairn_be32((uint32_t)op.v));
}

static uint64_t record_of_32_bits(struct fhbn_trace *s, struct fhbn_op op)
{
	return bent_record(s, op, cairn_be32(cairn_be32((uint32_t)op.v) | 0x10000));
}

static uint64_t record_missing(struct fhbn_trace *s, struct fhbn_op op)
{
	return op.access == FHBN_STORE_RECORD ? 0 : fhbn_trace_judge(s, op);
}

static uint64_t doorbell_missing(struct fhbn_trace *s, struct fhbn_op op)
{
	return op.access == FHBN_RING8 ? 0 : fhbn_trace_judge(s, op);
}

static uint64_t bent_doorbell(struct fhbn_trace *s, struct fhbn_op op, uint64_t word)
{
	if (op.access == FHBN_RING8)
		op.v = word;
	return fhbn_trace_judge(s, op);
}

/* Rings with the index of the last request instead of the index after it. */
static uint64_t doorbell_of_last_index(struct fhbn_trace *s, struct fhbn_op op)
{
	return bent_doorbell(s, op, cairn_wqe_doorbell_next(s->recorded - 1, TRACE_QPN));
}

static uint64_t doorbell_of_another_queue(struct fhbn_trace *s, struct fhbn_op op)
{
	return bent_doorbell(s, op, cairn_wqe_doorbell_next(s->recorded, TRACE_QPN + 1));
}

static uint64_t doorbell_native_endian(struct fhbn_trace *s, struct fhbn_op op)
{
	return bent_doorbell(s, op, __builtin_bswap64(op.v));
}

static uint64_t doorbell_twice(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_RING8)
		fhbn_trace_judge(s, op);
	return fhbn_trace_judge(s, op);
}

static uint64_t blueflame_of_first_request(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_RING64)
		op.data = &s->ring[(s->recorded - 2) % TRACE_BLOCKS * 4];
	return fhbn_trace_judge(s, op);
}

static uint64_t blueflame_not_alternated(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_RING64)
		op.at = s->q.reg[0];
	return fhbn_trace_judge(s, op);
}

/* One segment reaches memory after the fence that should have ordered it. */
static uint64_t segment_after_fence(struct fhbn_trace *s, struct fhbn_op op)
{
	uint64_t ret;

	if (op.access == FHBN_STORE_SEG && ((struct cairn_wqe_seg *)op.at - s->ring) % 4 == 1) {
		if (s->holding)
			fhbn_trace_judge(s, s->held);
		s->held = op;
		s->held_seg = *op.data;
		s->held.data = &s->held_seg;
		s->holding = 1;
		return 0;
	}
	ret = fhbn_trace_judge(s, op);
	if (s->holding && op.access == FHBN_FENCE) {
		s->holding = 0;
		fhbn_trace_judge(s, s->held);
	}
	return ret;
}

static uint64_t segment_missing(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_STORE_SEG && ((struct cairn_wqe_seg *)op.at - s->ring) % 4 == 2)
		return 0;
	return fhbn_trace_judge(s, op);
}

static uint64_t index_plus_1(struct fhbn_trace *s, struct fhbn_op op)
{
	struct cairn_wqe_seg bent;

	if (op.access != FHBN_STORE_SEG || ((struct cairn_wqe_seg *)op.at - s->ring) % 4)
		return fhbn_trace_judge(s, op);
	bent = *op.data;
	bent.w[0] = cairn_be32(cairn_be32(bent.w[0]) + 0x100);
	op.data = &bent;
	op.v = cairn_wqe_doorbell(bent);
	return fhbn_trace_judge(s, op);
}

static uint64_t bent_retired(struct fhbn_trace *s, struct fhbn_op op, uint64_t more)
{
	uint64_t ret = fhbn_trace_judge(s, op);

	return (op.access == FHBN_LOAD || op.access == FHBN_LOAD_ACQUIRE || op.access == FHBN_PEEK) &&
	       op.at == &s->state.retired ? ret + more : ret;
}

static uint64_t reuse_before_completion(struct fhbn_trace *s, struct fhbn_op op)
{
	return bent_retired(s, op, TRACE_BLOCKS / 2);
}

static uint64_t window_one_too_wide(struct fhbn_trace *s, struct fhbn_op op)
{
	return bent_retired(s, op, 1);
}

/* An entry of the previous lap looks valid. */
static uint64_t owner_bit_ignored(struct fhbn_trace *s, struct fhbn_op op)
{
	uint64_t ret = fhbn_trace_judge(s, op), index;

	if (op.access != FHBN_LOAD_ENTRY)
		return ret;
	index = (uint64_t)((char *)op.at - (char *)s->cq) / sizeof(struct cairn_cqe);
	/* index of the entry in this place, less than a lap after cq_next */
	index = s->state.cq_next + (index - s->state.cq_next) % TRACE_BLOCKS;
	return (ret & ~(1ull << 56)) | (uint64_t)!!(index & TRACE_BLOCKS) << 56;
}

static uint64_t owner_bit_inverted(struct fhbn_trace *s, struct fhbn_op op)
{
	uint64_t ret = fhbn_trace_judge(s, op);

	return op.access == FHBN_LOAD_ENTRY ? ret ^ 1ull << 56 : ret;
}

static uint64_t counter_native_endian(struct fhbn_trace *s, struct fhbn_op op)
{
	uint64_t ret = fhbn_trace_judge(s, op), counter = ret >> 32 & 0xffff;

	if (op.access != FHBN_LOAD_ENTRY)
		return ret;
	counter = (counter << 8 | counter >> 8) & 0xffff;
	return (ret & ~(0xffffull << 32)) | counter << 32;
}

static uint64_t completions_not_given_back(struct fhbn_trace *s, struct fhbn_op op)
{
	return op.access == FHBN_STORE_CQ_RECORD ? 0 : fhbn_trace_judge(s, op);
}

static uint64_t consumer_record_native_endian(struct fhbn_trace *s, struct fhbn_op op)
{
	if (op.access == FHBN_STORE_CQ_RECORD)
		op.v = cairn_be32((uint32_t)op.v);
	return fhbn_trace_judge(s, op);
}

static uint64_t turn_not_awaited(struct fhbn_trace *s, struct fhbn_op op)
{
	uint64_t ret = fhbn_trace_judge(s, op);

	return (op.access == FHBN_LOAD_ACQUIRE || op.access == FHBN_PEEK) && op.at == &s->state.ready ?
	       s->own_index[s->me] : ret;
}

static uint64_t reservation_not_atomic(struct fhbn_trace *s, struct fhbn_op op)
{
	uint64_t old, n = op.v;

	if (op.access != FHBN_ADD)
		return fhbn_trace_judge(s, op);
	op.access = FHBN_LOAD;
	old = fhbn_trace_judge(s, op);
	fhbn_trace_yield(s);
	op.access = FHBN_STORE;
	op.v = old + n;
	fhbn_trace_judge(s, op);
	return old;
}

static uint64_t lock_ignored(struct fhbn_trace *s, struct fhbn_op op)
{
	uint64_t ret = fhbn_trace_judge(s, op);

	return op.access == FHBN_TRY_LOCK ? 1 : ret;
}

static uint64_t always_left_to_successor(struct fhbn_trace *s, struct fhbn_op op)
{
	uint64_t ret = fhbn_trace_judge(s, op);

	return op.access == FHBN_PEEK && op.at == &s->state.reserved ? ret + TRACE_BLOCKS : ret;
}

#define DEFECT(name_, ...) { .name = #name_, .bend = name_, __VA_ARGS__ }
#define ALONE	.threads = 1
#define MANY	.threads = 3, .mode = SHARED
const struct fhbn_defect fhbn_defects[] = {
	DEFECT(no_fence_before_record, ALONE), DEFECT(no_fence_before_register, ALONE),
	DEFECT(narrow_fence_before_record, .threads = 1, .mode = SYS),
	DEFECT(narrow_fence_before_register, .threads = 3, .mode = SYS | SHARED),
	DEFECT(ready_published_relaxed, MANY), DEFECT(ready_read_relaxed, MANY),
	DEFECT(register_before_record, ALONE), DEFECT(record_one_too_many, ALONE),
	DEFECT(record_one_short, ALONE), DEFECT(record_native_endian, ALONE),
	DEFECT(record_of_32_bits, ALONE), DEFECT(record_missing, ALONE),
	DEFECT(doorbell_missing, ALONE), DEFECT(doorbell_of_last_index, ALONE),
	DEFECT(doorbell_of_another_queue, ALONE), DEFECT(doorbell_native_endian, ALONE),
	DEFECT(doorbell_twice, ALONE),
	DEFECT(blueflame_of_first_request, .threads = 1, .mode = BF),
	DEFECT(blueflame_not_alternated, .threads = 1, .mode = BF),
	DEFECT(segment_after_fence, ALONE), DEFECT(segment_missing, ALONE), DEFECT(index_plus_1, ALONE),
	DEFECT(reuse_before_completion, ALONE), DEFECT(window_one_too_wide, MANY),
	DEFECT(owner_bit_ignored, ALONE), DEFECT(owner_bit_inverted, ALONE),
	DEFECT(counter_native_endian, ALONE), DEFECT(completions_not_given_back, ALONE),
	DEFECT(consumer_record_native_endian, ALONE), DEFECT(turn_not_awaited, MANY),
	DEFECT(reservation_not_atomic, MANY), DEFECT(lock_ignored, MANY),
	DEFECT(always_left_to_successor, MANY),
	{ .name = "signal_before_payload", .threads = 1, .signal_first = 1 },
	{ .name = "payload_stored_after_post", .threads = 1, .payload_late = 1 },
};
const int fhbn_num_defects = sizeof(fhbn_defects) / sizeof(fhbn_defects[0]);
