// SPDX-License-Identifier: Apache-2.0
/* op_case - calls an operation with the arguments of a case, several times, and judges the results */
#include "conformance/suite/op_case.h"
#include "conformance/suite/guard.h"
#include "conformance/device/large.h"
#include "conformance/suite/op_side.h"
#include "conformance/suite/place.h"
#include "conformance/suite/ranks.h"
#include "conformance/suite/runner.h"
#include "conformance/device/turn.h"
#include "conformance/tables/tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHEAP_BYTES	((size_t)2 << 20)
#define CHEAP_COST	3e6
#define MORE		8	/* limit of op_more.c's calls, in multiples of a cheap case's cost */
#define OTHER_SEED	0x0ddu
#define ALIKE		((size_t)64)	/* bytes with which other inputs begin as the case's own */
#define OTHER_CANARY	0x4b		/* 1.3e7 in bf16 and f32 */

void cairn_say(struct cairn_outcome *o, const char *fmt, ...)
{
	size_t n = strlen(o->text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(o->text + n, sizeof(o->text) - n, fmt, ap);
	va_end(ap);
}

/* Writes where the bad elements of a buffer lie: "; 96 of 4096 elements bad: all in row 3". */
static void say_where(struct cairn_outcome *o, const struct cairn_buf *b, const char *what,
		      int (*is_bad)(const void *arg, int64_t i), const void *arg)
{
	char where[256];
	int64_t bad = cairn_place_pattern(b, is_bad, arg, where, sizeof(where));

	cairn_say(o, "; %lld of %lld elements %s: %s\n", (long long)bad, (long long)b->count, what, where);
}

/* Two images of a buffer that should hold the same bits. */
struct images {
	const uint8_t *a, *b;
	size_t esize;
};

static int differ(const void *arg, int64_t i)
{
	const struct images *x = arg;

	return memcmp(x->a + (size_t)i * x->esize, x->b + (size_t)i * x->esize, x->esize) != 0;
}

void cairn_say_differ(struct cairn_outcome *o, const struct cairn_buf *b, const uint8_t *image,
		      const uint8_t *other, const char *what)
{
	const struct images x = { image + CAIRN_CANARY, other + CAIRN_CANARY, cairn_dtype_bytes(b->dtype) };
	char at[128];
	int64_t i = 0;
	struct cairn_range r;

	for (int k = 0; cairn_buf_range(b, k, &r); k++)
		for (i = r.first; i < r.first + r.count; i++)
			if (differ(&x, i))
				goto found;
found:
	cairn_place_element(b, i, at, sizeof(at));
	o->verdict = CAIRN_FAIL;
	cairn_say(o, "%s: %s", at, what);
	say_where(o, b, "differ", differ, &x);
}

/* Reports accesses outside buffer i, or outside the workspace. */
static void check_outside(struct cairn_side *side, const struct cairn_op *op, int i, const uint8_t *image,
			  const struct cairn_round *r, struct cairn_outcome *o)
{
	struct cairn_damage d;
	const char *who = i < op->num_bufs ? op->bufs[i].name : "workspace";

	cairn_side_damage(side, op, i, image, r, &d);
	if (d.below || d.above || d.stray[0].seen || d.stray[1].seen || d.stray[2].seen)
		o->verdict = CAIRN_FAIL;
	if (d.stray[2].seen)
		cairn_say(o, "%s: %s element %lld, which the call may not touch\n", who,
			  d.stray[2].wrote ? "wrote" : "read",
			  d.stray[2].distance / (long long)cairn_dtype_bytes(op->bufs[i].dtype));
	if (d.below || d.above)
		cairn_say(o, "%s: written outside: %zu bytes before it, %zu bytes past its end\n", who,
			  d.below, d.above);
	for (int k = 0; k < 2; k++)
		if (d.stray[k].seen)
			cairn_say(o, "%s: %s outside of it, %lld bytes %s\n", who,
			    d.stray[k].wrote ? "wrote" : "read", d.stray[k].distance,
			    k ? "past its end" : "before it");
}

void cairn_check_memory(struct cairn_side *side, const struct cairn_op *op, uint8_t *const *images,
			const struct cairn_round *r, struct cairn_outcome *o)
{
	for (int i = 0; i <= op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];
		const uint8_t *input = side->guards ? side->base[i] : images[i];

		check_outside(side, op, i, images[i], r, o);
		if (i < op->num_bufs && images[i] && b->role == CAIRN_ROLE_IN &&
		    cairn_buf_differs(b, input + CAIRN_CANARY, b->base + CAIRN_CANARY))
			cairn_say_differ(o, b, input, b->base, "an input was written");
	}
}

void cairn_expected_free(struct cairn_expected *e)
{
	for (int k = 0; k < CAIRN_MAX_BUFS; k++) {
		if (e->far_bytes[k]) {
			cairn_far_free(e->exact[k].val, e->far_bytes[k]);
			cairn_far_free(e->exact[k].bound, e->far_bytes[k]);
			continue;
		}
		cairn_large_free(e->exact[k].val);
		cairn_large_free(e->exact[k].bound);
	}
	if (e->other)
		cairn_op_close(e->other);
	free(e->other);
	if (e->relisted)
		cairn_expected_free(e->relisted);
	free(e->relisted);
	memset(e, 0, sizeof(*e));
}

/* Calls the reference, unless it has already been called for another table. */
static void make_expected(const struct cairn_family *f, const struct cairn_op *op, struct cairn_expected *e)
{
	int num_outs = 0;

	if (e->made)
		return;
	e->made = 1;
	for (int i = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];
		struct cairn_exact *x = &e->exact[num_outs];
		size_t bytes = (size_t)(b->count + 1) * sizeof(double);
		struct cairn_range r;

		if (b->role == CAIRN_ROLE_IN)
			continue;
		e->far_bytes[num_outs] = b->far ? bytes : 0;
		num_outs++;
		x->val = b->far ? cairn_far_alloc(bytes) : cairn_buffer_alloc(bytes);
		x->bound = b->far ? cairn_far_alloc(bytes) : cairn_buffer_alloc(bytes);
		if (!x->val || !x->bound) {
			e->ret = cairn_error(ENOMEM, "no memory");
			break;
		}
		x->wanted = b->touched;
		x->num_wanted = b->idle ? b->num_touched : 0;
		/* val is defined only where exact() sets bound */
		for (int n = 0; cairn_buf_range(b, n, &r); n++) {
			#pragma omp parallel for schedule(static) if (r.count > 1 << 20)
			for (int64_t k = r.first; k < r.first + r.count; k++)
				x->bound[k] = NAN;
		}
	}
	if (!e->ret)
		e->ret = f->exact ? f->exact(op->args, e->exact) : cairn_ranks_exact(f, op, e->exact);
	if (e->ret)
		snprintf(e->text, sizeof(e->text), "%s", cairn_last_error());
}

struct judged {
	const struct cairn_buf *b;
	const uint8_t *got, *before;
	const struct cairn_exact *exact;
	int equal;
};

static int is_bad(const void *arg, int64_t i)
{
	const struct judged *x = arg;
	double ratio;

	return !cairn_judge_one(x->b->dtype, i, x->got, x->before, x->exact, x->equal, &ratio);
}

/* Reports the bad elements of an output; the first of them is at `first`. */
static void say_values(struct cairn_outcome *o, const struct judged *x, int64_t first)
{
	double bound = x->exact->bound[first], got = cairn_load(x->got, x->b->dtype, first);
	char at[128];

	cairn_place_element(x->b, first, at, sizeof(at));
	if (isnan(bound))
		cairn_say(o, "%s: got %.9g, must keep %.9g", at, got,
			  cairn_load(x->before, x->b->dtype, first));
	else
		cairn_say(o, "%s: got %.9g, want %.9g, bound %.3g", at, got, x->exact->val[first],
		    x->equal && isfinite(bound) ? 0 : bound);
	o->verdict = CAIRN_FAIL;
	say_where(o, x->b, "bad", is_bad, x);
}

/* Judges the mean error of an output. All its elements must be within their bounds. */
static void check_bias(const struct judged *x, struct cairn_outcome *o)
{
	struct cairn_bias b;

	if (!cairn_judge_bias(x->b->dtype, x->b->count, x->got, x->exact, &b))
		return;
	o->verdict = CAIRN_FAIL;
	cairn_say(o, "%s: all elements are within their bounds, but errors lean to one side: %+.3f ulp %s in "
		  "the mean, limit %.3f; is an intermediate result truncated?\n", x->b->name, b.mean,
		  b.is_signed ? "away from zero" : "upwards", b.limit);
}

/* Judges the size of the errors of an output, in a case that asks for it. */
static void check_rounding(const struct cairn_family *f, const struct cairn_op *op, const struct judged *x,
			   struct cairn_outcome *o)
{
	int64_t row = x->b->num_dims ? x->b->dims[x->b->num_dims - 1].count : 0;
	struct cairn_case c = { 0 };
	struct cairn_rounding r;

	f->describe(op->case_index, &c);
	if (c.roundings <= 0 || row < 1 ||
	    !cairn_judge_rounding(x->b->dtype, x->b->count / row, row, x->got, x->exact, c.roundings, &r))
		return;
	o->verdict = CAIRN_FAIL;
	cairn_say(o, "%s: all elements are within their bounds, but the mean square of the errors is %.2f "
		  "times that of rounding once, limit %.2f, and that of the part which the elements of a row "
		  "share is %.3f times, limit %.2f; is an intermediate result rounded?\n", x->b->name,
		  r.size, r.most_size, r.common, r.most_common);
}

/* Judges the ranges of an output that may be touched; *first is an index in the whole buffer. */
static int64_t judge_buffer(const struct cairn_buf *b, const uint8_t *got, const struct cairn_exact *e,
			    int equal, int64_t *first, struct cairn_outcome *o)
{
	size_t esize = cairn_dtype_bytes(b->dtype);
	int64_t bad = 0, at;
	struct cairn_range r;

	for (int k = 0; cairn_buf_range(b, k, &r); k++) {
		struct cairn_exact part = { .val = e->val + r.first, .bound = e->bound + r.first };
		int64_t more = cairn_judge(b->dtype, r.count, got + (size_t)r.first * esize,
					   b->base + CAIRN_CANARY + (size_t)r.first * esize, &part, equal,
					   &at, &o->err_over_bound, &o->judged);

		if (more && !bad)
			*first = r.first + at;
		bad += more;
	}
	return bad;
}

static void check_values(const struct cairn_family *f, const struct cairn_op *op, uint8_t *const *images,
			 struct cairn_expected *e, struct cairn_outcome *o)
{
	make_expected(f, op, e);
	if (e->ret) {
		o->verdict = e->ret == -EOPNOTSUPP ? CAIRN_SKIP : CAIRN_FAIL;
		cairn_say(o, "the reference: %s\n", e->text);
		return;
	}
	for (int i = 0, k = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];
		struct judged x = { b, images[i] + CAIRN_CANARY, b->base + CAIRN_CANARY, &e->exact[k],
				    f->exact_is_equal && op->kind == CAIRN_KIND_EXACT };
		int64_t first = -1;

		if (b->role == CAIRN_ROLE_IN)
			continue;
		if (judge_buffer(b, x.got, x.exact, x.equal, &first, o))
			say_values(o, &x, first);
		else if (op->kind == CAIRN_KIND_NORMAL && !f->errors_may_lean && !b->far)
			check_bias(&x, o);
		if (op->kind == CAIRN_KIND_NORMAL && !b->far && o->verdict == CAIRN_PASS)
			check_rounding(f, op, &x, o);
		k++;
	}
}

/* Makes arguments that point to the fetched outputs and op's inputs, for the hooks judge and extra. */
static void *image_args(const struct cairn_family *f, const struct cairn_op *op, uint8_t *const *images)
{
	void *args = malloc(f->args_size);

	if (!args)
		return NULL;
	memcpy(args, op->args, f->args_size);
	for (int i = 0; i < op->num_bufs; i++) {
		int is_input = op->bufs[i].role == CAIRN_ROLE_IN;
		void *data = (is_input ? op->bufs[i].base : images[i]) + CAIRN_CANARY;

		memcpy((char *)args + op->bufs[i].field, &data, sizeof(data));
	}
	cairn_set_alias(op, args);
	return args;
}

uint8_t **cairn_make_images(const struct cairn_op *op, int again)
{
	uint8_t **images = calloc(op->num_bufs + 1, sizeof(*images));

	for (int i = 0; images && i < op->num_bufs; i++) {
		if (again && cairn_moves_once(&op->bufs[i]))
			continue;
		images[i] = cairn_image_alloc(&op->bufs[i]);
		if (!images[i])
			abort();
	}
	return images;
}

void cairn_free_images(const struct cairn_op *op, uint8_t **images)
{
	for (int i = 0; images && i < op->num_bufs; i++)
		cairn_image_free(&op->bufs[i], images[i]);
	free(images);
}

int cairn_call_failed(struct cairn_outcome *o, const struct cairn_impl *impl, int ret, const char *doing)
{
	const char *text;

	if (ret == -EOPNOTSUPP)
		o->verdict = CAIRN_SKIP;
	else
		o->verdict = ret == -EIO ? CAIRN_LOST : CAIRN_FAIL;
	text = cairn_impl_error(impl);
	cairn_say(o, "%s: returned %d (%s)%s%s\n", doing, ret, strerror(ret < 0 ? -ret : ret),
		  *text ? ": " : "", text);
	return ret;
}

void cairn_start_outcome(struct cairn_outcome *o)
{
	o->verdict = CAIRN_PASS;
	o->err_over_bound = 0;
	o->judged = 0;
	o->exempt = o->peer_rule = 0;
	o->text[0] = o->extra[0] = 0;
}

/*
 * The calls of a case. The operation must give the same bits each time, whatever lies around its buffers and
 * in its workspace. A cheap case is called five times. Its first judged call therefore finds the state that a
 * call with other inputs has left, and the later calls show faults that appear only in the third call or in
 * every second one. Where the bits may vary (cairn_impl_bits_vary()), the values of each call are judged
 * instead.
 */
static const struct cairn_round two_rounds[] = {
	{ .canary = 0xff, .workspace = 0xff },
	{ .canary = OTHER_CANARY, .workspace = 0x5a, .at_begin = 1, .longer = 1 },
};
static const struct cairn_round five_rounds[] = {
	{ .other = 1, .canary = 0xff, .workspace = 0xff },
	{ .canary = 0xff, .workspace = 0x5a, .behind = 1 },
	{ .canary = OTHER_CANARY, .workspace = 0xa5, .at_begin = 1, .longer = 1, .pause_us = 200 },
	{ .other = 1, .canary = OTHER_CANARY, .workspace = -1, .at_begin = 1, .shifted = 1,
	  .repeats = 1 },
	{ .canary = OTHER_CANARY, .workspace = 0, .shorter = 1, .repeats = 3 },
};

/* Returns whether the case costs at most `times` as much as a cheap one, which is called five times. */
static int costs_at_most(const struct cairn_family *f, const struct cairn_op *op, int times)
{
	struct cairn_selected s = { .what = CAIRN_SEL_CASE };
	size_t bytes = 0;

	f->describe(op->case_index, &s.desc);
	for (int i = 0; i < op->num_bufs; i++)
		bytes += op->bufs[i].used;
	times *= f->cheap_factor ? f->cheap_factor : 1;
	return bytes <= times * CHEAP_BYTES && cairn_cost(&s) <= times * CHEAP_COST;
}

int cairn_op_is_cheap(const struct cairn_family *f, const struct cairn_op *op)
{
	return costs_at_most(f, op, 1);
}

static int same_ranges(const struct cairn_buf *a, const struct cairn_buf *b)
{
	return a->num_touched == b->num_touched &&
	       (!a->far || !memcmp(a->touched, b->touched, (size_t)a->num_touched * sizeof(*a->touched)));
}

/* Returns whether the arguments of two cases of f differ only in the contents of their buffers. */
static int same_scalars(const struct cairn_family *f, const struct cairn_op *a, const struct cairn_op *b)
{
	char *args;
	int same = a->num_bufs == b->num_bufs && a->num_alias == b->num_alias;

	for (int i = 0; same && i < a->num_bufs; i++)
		same = a->bufs[i].field == b->bufs[i].field && a->bufs[i].bytes == b->bufs[i].bytes &&
		       same_ranges(&a->bufs[i], &b->bufs[i]);
	for (int i = 0; same && i < a->num_alias; i++)
		same = !memcmp(&a->alias[i], &b->alias[i], sizeof(a->alias[i]));
	args = same ? malloc(f->args_size) : NULL;
	if (!args)
		return 0;
	memcpy(args, b->args, f->args_size);
	for (int i = 0; i < a->num_bufs; i++)
		memcpy(args + a->bufs[i].field, (char *)a->args + a->bufs[i].field, sizeof(void *));
	cairn_set_alias(a, args);
	same = !memcmp(args, a->args, f->args_size);
	free(args);
	return same;
}

/*
 * Lets the float inputs of `other` begin as those of op: an operation that keeps results for an address, and
 * compares only the beginning of what lies there, then gets the next call wrong.
 */
static void begin_alike(const struct cairn_op *op, struct cairn_op *other)
{
	for (int i = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];

		if (b->role == CAIRN_ROLE_IN && cairn_dtype_is_float(b->dtype))
			memcpy(other->bufs[i].base + CAIRN_CANARY, b->base + CAIRN_CANARY,
			       b->bytes / 2 < ALIKE ? b->bytes / 2 / 4 * 4 : ALIKE);
	}
}

/* Reverses the order of a buffer's finite numbers; the others keep their places. */
static void reverse_numbers(const struct cairn_buf *b)
{
	const size_t bytes = cairn_dtype_bytes(b->dtype);
	uint8_t *x = b->base + CAIRN_CANARY, number[8];

	for (int64_t i = 0, k = b->count - 1; i < k;) {
		if (!isfinite(cairn_load(x, b->dtype, i))) {
			i++;
		} else if (!isfinite(cairn_load(x, b->dtype, k))) {
			k--;
		} else {
			memcpy(number, x + (size_t)i * bytes, bytes);
			memcpy(x + (size_t)i++ * bytes, x + (size_t)k * bytes, bytes);
			memcpy(x + (size_t)k-- * bytes, number, bytes);
		}
	}
}

/*
 * Reverses the float inputs that are equal in both cases, such as frequencies. Otherwise an operation that
 * caches what it has read from an address would go unnoticed.
 */
static void make_differ(const struct cairn_op *other, const struct cairn_op *op)
{
	for (int i = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &other->bufs[i];

		if (b->role == CAIRN_ROLE_IN && !b->far && cairn_dtype_is_float(b->dtype) &&
		    !memcmp(b->base + CAIRN_CANARY, op->bufs[i].base + CAIRN_CANARY, b->bytes))
			reverse_numbers(b);
	}
}

/*
 * Returns the case with other inputs: those of another seed or, if the sizes depend on the seed, the case's
 * own numbers in another order. Returns the case itself if memory has run out.
 */
static const struct cairn_op *other_inputs(const struct cairn_family *f, const struct cairn_op *op,
					   struct cairn_expected *e)
{
	const uint64_t seeds[] = { OTHER_SEED, op->seed };

	for (size_t k = 0; k < ARRAY_SIZE(seeds) && !e->other; k++) {
		e->other = calloc(1, sizeof(*e->other));
		if (!e->other)
			return op;
		if (!cairn_op_open(e->other, f, op->case_index, op->kind, seeds[k]) &&
		    same_scalars(f, op, e->other)) {
			/* the reference of a collective makes the inputs of all ranks again */
			if (!f->comm_field && !cairn_op_is_far(op)) {
				make_differ(e->other, op);
				begin_alike(op, e->other);
			}
			break;
		}
		if (e->other->args)
			cairn_op_close(e->other);
		free(e->other);
		e->other = NULL;
	}
	return e->other ? e->other : op;
}

void cairn_check_bits(const struct cairn_family *f, const struct cairn_op *op, uint8_t *const *first,
		      uint8_t *const *again, const char *call, struct cairn_outcome *o)
{
	char what[400];

	for (int i = 0; i < op->num_bufs; i++) {
		int timing = 0;

		for (size_t k = 0; k < ARRAY_SIZE(f->timing_fields); k++)
			timing |= f->timing_fields[k] && op->bufs[i].field == f->timing_fields[k];
		/* inputs have been compared with those of the case */
		if (timing || op->bufs[i].role == CAIRN_ROLE_IN || !again[i] ||
		    !cairn_buf_differs(&op->bufs[i], first[i] + CAIRN_CANARY, again[i] + CAIRN_CANARY))
			continue;
		snprintf(what, sizeof(what), "%s gave other bits", call);
		cairn_say_differ(o, &op->bufs[i], again[i], first[i], what);
	}
}

/* Returns whether a second call, on the memory as the first one left it, must give the same bits. */
static int may_repeat(const struct cairn_family *f, const struct cairn_op *op)
{
	for (int i = 0; i < op->num_alias; i++) {
		int at = cairn_buf_of(op, op->alias[i].same_as);

		if (at < 0 || op->bufs[at].role != CAIRN_ROLE_IN)
			return 0;
	}
	/* in/out buffers change, but families with a zeroed workspace append the same keys again */
	for (int i = 0; i < op->num_bufs && !f->zeroed_workspace; i++)
		if (op->bufs[i].role == CAIRN_ROLE_INOUT)
			return 0;
	return 1;
}

/* Makes one call and fetches its results. Returns 0, or an error that it has reported. */
static int call_round(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		      const struct cairn_round *round, int number, uint8_t **images, struct cairn_outcome *o)
{
	struct cairn_round once = *round;
	const struct cairn_round *r = &once;
	char doing[32] = "the call";
	int ret = cairn_side_send(side, f, op, r, number > 1);

	if (!may_repeat(f, op))
		once.repeats = 0;

	if (ret)
		return cairn_call_failed(o, side->impl, ret, "setting up");
	if (number > 1)
		snprintf(doing, sizeof(doing), "call %d", number);
	ret = cairn_side_call_round(side, f, r);
	if (ret) {
		cairn_call_failed(o, side->impl, ret, doing);
		/* a call with the same scalars has succeeded */
		if (number > 1 && o->verdict == CAIRN_SKIP)
			o->verdict = CAIRN_FAIL;
		return ret;
	}
	ret = cairn_side_fetch(side, op, images);
	return ret ? cairn_call_failed(o, side->impl, ret, "after the call") : 0;
}

/* Makes one call and checks its memory, without the device. Returns 0, or an error that it has reported. */
static int run_round(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		     const struct cairn_round *round, int number, uint8_t **images, struct cairn_outcome *o)
{
	int ret;

	cairn_turn_take(side->impl);
	ret = call_round(side, f, op, round, number, images, o);
	cairn_turn_end();
	if (!ret)
		cairn_check_memory(side, op, images, round, o);
	return ret;
}

void cairn_judge_call(const struct cairn_family *f, const struct cairn_op *op, uint8_t *const *images,
		      struct cairn_expected *expected, struct cairn_outcome *o)
{
	void *got = image_args(f, op, images);
	char why[512] = "";

	if (!got) {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "no memory to judge the results\n");
		return;
	}
	if (f->exact || f->exact_ranks)
		check_values(f, op, images, expected, o);
	if (f->judge && o->verdict != CAIRN_SKIP && f->judge(op, got, why, sizeof(why))) {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "%s\n", why);
	}
	if (f->extra && f->extra(op, got, o->extra, sizeof(o->extra)))
		o->extra[0] = 0;
	free(got);
}

int cairn_op_is_far(const struct cairn_op *op)
{
	int far = 0;

	for (int i = 0; i < op->num_bufs; i++)
		far |= op->bufs[i].far;
	return far;
}

static int is_idle(const struct cairn_op *op)
{
	int idle = 0;

	for (int i = 0; i < op->num_bufs; i++)
		idle |= op->bufs[i].idle;
	return idle;
}

/*
 * Returns whether to skip a far case because its buffers exceed the whole memory of a device. Host tables
 * need only address space for them, except a table with memory of its own, in which idle elements take pages
 * too. A case that would fit but gets no memory is skipped as well, but must-pass then fails it.
 */
static int exceeds_device(const struct cairn_op *op, const struct cairn_impl *impl, struct cairn_outcome *o)
{
	struct cairn_device_info info = { .size = sizeof(info) };
	int64_t bytes = 0;

	for (int i = 0; i < op->num_bufs; i++)
		bytes += (int64_t)op->bufs[i].bytes + 2 * CAIRN_CANARY;
	if ((impl->flags & CAIRN_IMPL_HOST_MEM) && is_idle(op) && !cairn_side_is_guarded(impl)) {
		o->verdict = CAIRN_SKIP;
		o->exempt = 1;
		cairn_say(o, "needs %lld bytes of the table's own host memory\n", (long long)bytes);
		return 1;
	}
	if (!cairn_op_is_far(op) || (impl->flags & CAIRN_IMPL_HOST_MEM) || !impl->device_info ||
	    impl->device_info(&info) || info.mem_bytes <= 0 || bytes <= info.mem_bytes)
		return 0;
	o->verdict = CAIRN_SKIP;
	o->exempt = 1;
	cairn_say(o, "needs %lld bytes of memory, and the device has %lld\n", (long long)bytes,
		  (long long)info.mem_bytes);
	return 1;
}

/* promises: also makes the further calls that the family declares. */
static void verify(const struct cairn_family *f, struct cairn_op *op, const struct cairn_impl *impl,
		   void *stream, int promises, struct cairn_expected *expected, struct cairn_outcome *o)
{
	int cheap = cairn_op_is_cheap(f, op);
	int num = cheap ? ARRAY_SIZE(five_rounds) : is_idle(op) ? 1 : ARRAY_SIZE(two_rounds);
	const struct cairn_round *rounds = cheap ? five_rounds : two_rounds;
	/* images of the first call with the case's inputs, the first with others, and a later call */
	uint8_t **own = cairn_make_images(op, 0), **others = cheap ? cairn_make_images(op, 0) : NULL;
	uint8_t **later = cairn_make_images(op, 1);
	const struct cairn_op *other = cheap ? other_inputs(f, op, expected) : op;
	int had_own = 0, had_other = 0, vary = cairn_impl_bits_vary(impl, f->op), ret;
	struct cairn_side side;
	char call[64];

	cairn_start_outcome(o);
	cairn_clear_error();
	if (exceeds_device(op, impl, o))
		goto out_free;
	ret = cairn_side_open_guarded(&side, f, op, impl, stream);
	/* far cases of other families may hold the device's memory for a moment */
	for (int i = 0; ret == -ENOMEM && cairn_op_is_far(op) && i < 300; i++) {
		usleep(100000);
		ret = cairn_side_open_guarded(&side, f, op, impl, stream);
	}
	if (ret == -E2BIG) {
		o->verdict = CAIRN_SKIP;
		cairn_say(o, "%s\n", cairn_last_error());
		goto out_free;
	}
	if (ret) {
		cairn_call_failed(o, impl, ret, "setting up");
		if (ret == -ENOMEM && cairn_op_is_far(op))
			o->verdict = CAIRN_SKIP;
		goto out_free;
	}
	for (int i = 0; i < num; i++) {
		const struct cairn_round *r = &rounds[i];
		int *had = r->other ? &had_other : &had_own;
		uint8_t **first = r->other ? others : own;

		if (run_round(&side, f, r->other ? other : op, r, i + 1, *had ? later : first, o))
			goto out_judged;
		snprintf(call, sizeof(call), "call %d, with the same inputs,", i + 1);
		if (*had && !vary)
			cairn_check_bits(f, op, first, later, call, o);
		else if (*had && !r->other && !cairn_op_is_far(op))
			cairn_judge_call(f, op, later, expected, o);
		*had = 1;
	}
	cairn_judge_call(f, op, own, expected, o);
out_judged:
	cairn_ranks_settle(f, o);
	if (o->verdict == CAIRN_PASS && !vary && promises) {
		struct cairn_more more = { f, op, other, &side, expected, own, later, cheap, o };

		cairn_turn_take(impl);
		if (costs_at_most(f, op, MORE))
			cairn_further_calls(&more);
		else if (!(impl->flags & CAIRN_IMPL_HOST_MEM) && !cairn_op_is_far(op))
			cairn_call_forms(&more);
		cairn_turn_end();
		cairn_ranks_further(&more);
	}
	cairn_side_close(&side, op);
out_free:
	cairn_free_images(op, own);
	cairn_free_images(op, others);
	cairn_free_images(op, later);
}

/* As verify(), but by the family's rule for other libraries. */
static void verify_peer(const struct cairn_family *f, struct cairn_op *op, const struct cairn_impl *impl,
			void *stream, struct cairn_outcome *o)
{
	struct cairn_expected expected = { 0 };
	struct cairn_family peer = *f;

	peer.exact = f->peer_exact ? f->peer_exact : f->exact;
	peer.judge = f->peer_judge ? f->peer_judge : f->judge;
	verify(&peer, op, impl, stream, 0, &expected, o);
	o->peer_rule = 1;
	cairn_expected_free(&expected);
}

void cairn_op_verify(const struct cairn_family *f, struct cairn_op *op, const struct cairn_impl *impl,
		     void *stream, struct cairn_expected *expected, struct cairn_outcome *o)
{
	if (f->comm_field && !cairn_ranks_inside())
		cairn_ranks_verify(f, op, impl, o);
	else
		verify(f, op, impl, stream, 1, expected, o);
	if (o->verdict == CAIRN_FAIL && cairn_impl_has_own_rules(impl, f->op))
		verify_peer(f, op, impl, stream, o);
}
