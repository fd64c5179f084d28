// SPDX-License-Identifier: Apache-2.0
/* op_reject - calls an operation with arguments that it must refuse */
#include "conformance/suite/op_case.h"
#include "conformance/suite/op_side.h"
#include "conformance/suite/ranks.h"
#include "conformance/suite/runner.h"
#include "conformance/device/turn.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/tables/tables.h"

#define ALL_ARGUMENTS	"arguments"	/* the name of the refused calls of op_refuse.c */
#define CASES		12		/* number of cases whose arguments those calls start from */
#define COST		2e7		/* the largest cost of such a case */

static const struct cairn_round calm = { .canary = 0xff, .workspace = 0xff };

int cairn_op_reject_name(const struct cairn_family *f, int i, const char **name)
{
	void *scratch;
	int want;

	*name = i == CAIRN_REJECT_UNKNOWN ? "unknown_members" : NULL;
	if (*name || !f->reject)
		return *name != NULL;
	scratch = calloc(1, f->args_size);
	if (!scratch)
		return cairn_error(ENOMEM, "%s: no memory for its refused calls", f->name);
	*name = f->reject(scratch, i, &want);
	/* this name comes after the family's own bad arguments */
	if (!*name && cairn_refuses(f) && (i == 0 || f->reject(scratch, i - 1, &want)))
		*name = ALL_ARGUMENTS;
	free(scratch);
	return *name != NULL;
}

/*
 * Calls with an argument struct that is longer than the operation knows and has one nonzero byte in the
 * unknown part: the first, a middle and the last one in turn. Returns the first result other than
 * -EOPNOTSUPP.
 */
static int call_with_more(struct cairn_side *side, const struct cairn_family *f)
{
	static const size_t bytes[] = { 0, CAIRN_TAIL / 2, CAIRN_TAIL - 1 };
	int ret = -EOPNOTSUPP;

	for (size_t k = 0; k < ARRAY_SIZE(bytes) && ret == -EOPNOTSUPP; k++)
		ret = cairn_side_call_unknown(side, f, bytes[k]);
	return ret;
}

/* Makes bad calls from the arguments of a case: the family's i-th one, or those of op_refuse.c. */
static void call_badly(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		       int i, int all, struct cairn_outcome *o)
{
	int want = 0, ret = 0;

	if (all) {
		cairn_refuse_all(side, f, op, o);
		return;
	}
	if (i == CAIRN_REJECT_UNKNOWN) {
		want = -EOPNOTSUPP;
		ret = call_with_more(side, f);
	} else if (f->reject(side->args, i, &want)) {
		ret = cairn_side_call(side, f);
	}
	if (ret == want)
		return;
	o->verdict = CAIRN_FAIL;
	cairn_say(o, "returned %d, want %d\n", ret, want);
}

/* Fails the case if a refused call has changed memory. */
static void check_untouched(struct cairn_side *side, const struct cairn_op *op, uint8_t **images,
			    struct cairn_outcome *o)
{
	int ret = cairn_side_fetch(side, op, images);

	if (!ret)
		cairn_check_memory(side, op, images, &calm, o);
	if (ret)
		cairn_call_failed(o, side->impl, ret, "after the refused call");
	for (int k = 0; !ret && k < op->num_bufs; k++)
		if (op->bufs[k].role != CAIRN_ROLE_IN &&
		    memcmp(images[k] + CAIRN_CANARY, op->bufs[k].base + CAIRN_CANARY, op->bufs[k].bytes))
			cairn_say_differ(o, &op->bufs[k], images[k], op->bufs[k].base,
					 "memory was written in spite of the error");
}

struct bad_call {
	const struct cairn_family *f;
	const struct cairn_impl *impl;
	void *stream;
	uint64_t seed;
	int i, all;
};

static void refuse(const struct bad_call *c, int case_index, struct cairn_outcome *o)
{
	struct cairn_side side;
	struct cairn_op op;
	uint8_t **images;
	int ret;

	if (cairn_op_open(&op, c->f, case_index, CAIRN_KIND_NORMAL, c->seed)) {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "the call was not made: %s\n", cairn_last_error());
		return;
	}
	images = cairn_make_images(&op, 0);
	cairn_turn_take(c->impl);
	ret = cairn_side_open_guarded(&side, c->f, &op, c->impl, c->stream);
	if (!ret && (ret = cairn_side_send(&side, c->f, &op, &calm, 0)))
		cairn_side_close(&side, &op);
	if (!ret) {
		call_badly(&side, c->f, &op, c->i, c->all, o);
		check_untouched(&side, &op, images, o);
		cairn_side_close(&side, &op);
	} else if (!c->all || ret != -EOPNOTSUPP) {	/* other cases may be supported */
		cairn_call_failed(o, c->impl, ret, "setting up");
	}
	cairn_turn_end();
	cairn_free_images(&op, images);
	cairn_op_close(&op);
}

void cairn_op_reject(const struct cairn_family *f, int i, const struct cairn_impl *impl, void *stream,
		     uint64_t seed, struct cairn_outcome *o)
{
	struct bad_call c = { f, impl, stream, seed, i, 0 };
	const int step = f->num_cases / CASES + 1;
	const char *name;
	void *fn;
	int ret;

	if (f->comm_field && !cairn_ranks_inside()) {
		cairn_ranks_reject(f, i, impl, seed, o);
		return;
	}
	cairn_start_outcome(o);
	memcpy(&fn, (const char *)impl + f->op, sizeof(fn));
	if (!fn) {
		o->verdict = CAIRN_SKIP;
		cairn_say(o, "%s: not in table %s\n", f->name, impl->name);
		return;
	}
	ret = cairn_op_reject_name(f, i, &name);
	if (ret <= 0) {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "the call was not made: %s\n",
			  ret ? cairn_last_error() : "the family has no such bad argument");
		return;
	}
	c.all = !strcmp(name, ALL_ARGUMENTS);
	refuse(&c, 0, o);
	/* make all kinds of bad calls from other cheap cases too, because these have other features */
	for (int k = 1; c.all && k < f->num_cases && o->verdict == CAIRN_PASS; k++) {
		struct cairn_selected s = { .what = CAIRN_SEL_CASE };

		f->describe(k, &s.desc);
		if (s.desc.device_only || s.desc.far || cairn_cost(&s) > COST)
			continue;
		refuse(&c, k, o);
		k += step - 1;
	}
}
