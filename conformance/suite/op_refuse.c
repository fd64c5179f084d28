// SPDX-License-Identifier: Apache-2.0
/*
 * op_refuse - calls that must be refused, made from the arguments of a case by changing one at a time
 *
 * Pointers become NULL or misaligned; 4-byte members become -1, 0, one more, NaN or infinity; `size` becomes
 * too small. The argument check that our tables share decides which of these calls the contract refuses; the
 * others are not made. The error that a call gives may depend on the order of the checks, and 0 may count as
 * invalid or as unsupported. The error is therefore compared only for values that no member of that kind may
 * have.
 */
#include "conformance/suite/op_side.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(name) { offsetof(struct cairn_impl, name), (void *)cairn_##name##_check }
static const struct {
	size_t op;
	void *check;
} checks[] = {
	CHECK(all_reduce_norm), CHECK(all_to_all), CHECK(send_recv),
	CHECK(argmax), CHECK(attn_bsr), CHECK(attn_bwd), CHECK(attn_dense), CHECK(attn_fp8),
	CHECK(attn_merge), CHECK(attn_paged), CHECK(attn_quant), CHECK(attn_variant), CHECK(cluster_attn),
	CHECK(cluster_gather), CHECK(cluster_mla), CHECK(cluster_reduce), CHECK(decode_step),
	CHECK(decode_step_ranks),
	CHECK(dsmem), CHECK(embedding), CHECK(gemm), CHECK(gemm_fixed),
	CHECK(gemm_fp8), CHECK(gemm_gated), CHECK(gemm_w4),
	CHECK(gemm_fp8w), CHECK(kv_append), CHECK(kv_move), CHECK(logprobs), CHECK(lora),
	CHECK(mask_logits),
	CHECK(mla_append), CHECK(mla_decode), CHECK(mla_paged), CHECK(mla_prefill), CHECK(moe),
	CHECK(penalize), CHECK(pick_ids), CHECK(qkv_append), CHECK(quant_fp8w), CHECK(rmsnorm),
	CHECK(rope), CHECK(sample), CHECK(screen), CHECK(silu_mul), CHECK(stream), CHECK(token_counts),
};

cairn_check_fn cairn_check_of(const struct cairn_family *f)
{
	for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
		if (checks[i].op == f->op)
			return (cairn_check_fn)checks[i].check;
	return NULL;
}

int cairn_refuses(const struct cairn_family *f)
{
	return f->reject && cairn_check_of(f) != NULL;
}

struct refusal {
	struct cairn_side *side;
	const struct cairn_family *f;
	cairn_check_fn check;
	void *good;
	struct cairn_outcome *o;
};

static int is_refused(int got, int want, int any_error)
{
	return got == want || (got && any_error) || (want == -EOPNOTSUPP && got == -EINVAL);
}

/* Makes the call with `bytes` bytes at `at` replaced, if it must be refused. Returns 0 if it was not. */
static int try_value(struct refusal *r, size_t at, const void *value, size_t bytes, int any_error)
{
	char text[256];
	int want, got;

	memcpy((char *)r->side->args + at, value, bytes);
	want = r->check(r->side->args);
	snprintf(text, sizeof(text), "%s", cairn_last_error());
	got = want ? cairn_side_call(r->side, r->f) : 0;
	if (want && r->f->plan_op && is_refused(got, want, any_error))	/* a plan has the same arguments */
		got = cairn_side_call_plan(r->side, r->f);
	memcpy(r->side->args, r->good, r->f->args_size);
	if (is_refused(got, want, any_error))
		return 1;
	r->o->verdict = CAIRN_FAIL;
	cairn_say(r->o, "returned %d, want %d (%s)\n", got, want, text);
	return 0;
}

static int try_word(struct refusal *r, size_t at)
{
	const float bad[] = { NAN, INFINITY, -INFINITY };
	const int32_t minus_1 = -1, zero = 0;
	int32_t now, next;
	int ok;

	memcpy(&now, (char *)r->good + at, sizeof(now));
	next = (int32_t)((uint32_t)now + 1);
	ok = try_value(r, at, &minus_1, sizeof(minus_1), 0) && try_value(r, at, &zero, sizeof(zero), 1) &&
	     try_value(r, at, &next, sizeof(next), 1);
	/* a member whose bits form a large integer is a float; for any other member, any error will do */
	for (size_t i = 0; ok && i < ARRAY_SIZE(bad); i++)
		ok = try_value(r, at, &bad[i], sizeof(bad[i]), abs(now) < 1 << 27);
	return ok;
}

static int try_pointer(struct refusal *r, size_t at)
{
	char *now, *bad = NULL;
	int ok = try_value(r, at, &bad, sizeof(bad), 0);

	memcpy(&now, (char *)r->good + at, sizeof(now));
	for (int by = 8; ok && now && by >= 2; by /= 2) {
		bad = now + by;
		ok = try_value(r, at, &bad, sizeof(bad), 0);
	}
	return ok;
}

static int is_pointer(const struct cairn_op *op, size_t at)
{
	for (int i = 0; i < op->num_bufs; i++)
		if (op->bufs[i].field == at)
			return 1;
	for (int i = 0; i < op->num_alias; i++)
		if (op->alias[i].field == at)
			return 1;
	return 0;
}

static int try_all(struct refusal *r, const struct cairn_op *op)
{
	const size_t sizes[] = { 0, r->f->args_size - sizeof(size_t) };
	int ok = 1;

	for (size_t i = 0; ok && i < ARRAY_SIZE(sizes); i++)
		ok = try_value(r, 0, &sizes[i], sizeof(sizes[i]), 0);
	for (size_t at = sizeof(size_t); ok && at + 4 <= r->f->args_size; at += 4)
		if (is_pointer(op, at)) {
			ok = try_pointer(r, at);
			at += 4;
		} else {
			ok = try_word(r, at);
		}
	return ok;
}

/* Makes the call with a workspace that is one byte too small, and with one of no bytes. */
static int try_workspace(struct refusal *r)
{
	const size_t at = r->f->workspace_field + sizeof(void *);
	const size_t bytes[] = { r->side->workspace_bytes - 1, 0 };
	int ok = 1;

	for (size_t i = 0; ok && i < ARRAY_SIZE(bytes); i++) {
		int got;

		memcpy((char *)r->side->args + at, &bytes[i], sizeof(bytes[i]));
		got = cairn_side_call(r->side, r->f);
		memcpy(r->side->args, r->good, r->f->args_size);
		ok = got == -EINVAL;
		if (ok)
			continue;
		r->o->verdict = CAIRN_FAIL;
		cairn_say(r->o, "returned %d, want %d (workspace_bytes: %zu of %zu)\n", got, -EINVAL,
			  bytes[i], r->side->workspace_bytes);
	}
	return ok;
}

void cairn_refuse_all(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		      struct cairn_outcome *o)
{
	struct refusal r = { side, f, cairn_check_of(f), malloc(f->args_size), o };
	int works = 0;	/* a call that has nothing to do need not look at its workspace */

	if (!r.good) {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "the calls were not made: no memory\n");
		return;
	}
	memcpy(r.good, side->args, f->args_size);
	for (int i = 0; i < op->num_bufs; i++)
		works |= op->bufs[i].role == CAIRN_ROLE_OUT && op->bufs[i].count;
	if (try_all(&r, op) && works && f->refuses_small_workspace && side->workspace_bytes)
		try_workspace(&r);
	free(r.good);
}
