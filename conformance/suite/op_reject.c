// SPDX-License-Identifier: Apache-2.0
/* op_reject - calls an operation with arguments that it must refuse */
#include "conformance/suite/op_case.h"
#include "conformance/suite/op_side.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/tables/tables.h"

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
	free(scratch);
	return *name != NULL;
}

/*
 * Calls with an argument struct that is longer than the operation knows, one byte behind the known ones not
 * being 0: the first, one in the middle, the last. Returns the first result that is not -EOPNOTSUPP.
 */
static int call_with_more(struct cairn_side *side, const struct cairn_family *f)
{
	static const size_t bytes[] = { 0, CAIRN_TAIL / 2, CAIRN_TAIL - 1 };
	int ret = -EOPNOTSUPP;

	for (size_t k = 0; k < ARRAY_SIZE(bytes) && ret == -EOPNOTSUPP; k++)
		ret = cairn_side_call_unknown(side, f, bytes[k]);
	return ret;
}

void cairn_op_reject(const struct cairn_family *f, int i, const struct cairn_impl *impl, void *stream,
		     uint64_t seed, struct cairn_outcome *o)
{
	struct cairn_side side;
	struct cairn_op op;
	uint8_t **images;
	int want = 0, ret;
	void *fn;

	cairn_start_outcome(o);
	memcpy(&fn, (const char *)impl + f->op, sizeof(fn));
	if (!fn) {
		o->verdict = CAIRN_SKIP;
		cairn_say(o, "%s: not in table %s\n", f->name, impl->name);
		return;
	}
	if (cairn_op_open(&op, f, 0, CAIRN_KIND_NORMAL, seed)) {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "the call was not made: %s\n", cairn_last_error());
		return;
	}
	images = cairn_make_images(&op, 0);
	ret = cairn_side_open_guarded(&side, f, &op, impl, stream);
	if (!ret && (ret = cairn_side_send(&side, f, &op, &calm, 0)))
		cairn_side_close(&side, &op);
	if (ret) {
		cairn_call_failed(o, impl, ret, "setting up");
		goto out_free;
	}
	if (i == CAIRN_REJECT_UNKNOWN) {
		want = -EOPNOTSUPP;
		ret = call_with_more(&side, f);
	} else if (f->reject(side.args, i, &want)) {
		ret = cairn_side_call(&side, f);
	} else {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "the call was not made: the family has no bad argument %d\n", i);
		goto out_close;
	}
	if (ret != want) {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "returned %d, want %d\n", ret, want);
	}
	ret = cairn_side_fetch(&side, &op, images);
	if (!ret)
		ret = cairn_check_memory(&side, &op, images, &calm, o);
	if (ret)
		cairn_call_failed(o, impl, ret, "after the refused call");
	for (int k = 0; !ret && k < op.num_bufs; k++) {
		if (memcmp(images[k] + CAIRN_CANARY, op.bufs[k].base + CAIRN_CANARY, op.bufs[k].bytes))
			cairn_say_differ(o, &op.bufs[k], images[k], op.bufs[k].base,
					 "memory was written in spite of the error");
	}
out_close:
	cairn_side_close(&side, &op);
out_free:
	cairn_free_images(&op, images);
	cairn_op_close(&op);
}
