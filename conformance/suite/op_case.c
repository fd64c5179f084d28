// SPDX-License-Identifier: Apache-2.0
/* op_case - puts a case's arguments into a table's memory, calls the operation, and judges the results */
#include "conformance/suite/op_case.h"
#include "conformance/tables/tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*op_fn)(const void *args, void *stream);
typedef int (*workspace_fn)(const void *args, size_t *bytes);

static void *table_member(const struct cairn_impl *impl, size_t offset)
{
	void *fn;

	memcpy(&fn, (const char *)impl + offset, sizeof(fn));
	return fn;
}

/*
 * An input of this size is neither sent nor fetched for the second call: the first fetch has shown that the
 * operation leaves it as it is, and moving gigabytes takes longer than all else.
 */
static int moves_once(const struct cairn_buf *b)
{
	return b->role == CAIRN_ROLE_IN && b->bytes > 64 << 20;
}

/*
 * Sends the buffers; again: all but those that move once. Fills the workspace with workspace_byte unless
 * that is -1.
 */
static int send(struct cairn_side *side, const struct cairn_op *op, int workspace_byte, int again)
{
	const struct cairn_impl *impl = side->impl;

	for (int i = 0; i < op->num_bufs; i++)
		if (!again || !moves_once(&op->bufs[i]))
			CAIRN_TRY(impl->mem_copy(side->base[i], op->bufs[i].base,
						 op->bufs[i].bytes + 2 * CAIRN_CANARY,
						 CAIRN_COPY_TO_DEVICE, side->stream));
	if (side->workspace && workspace_byte >= 0)
		CAIRN_TRY(impl->mem_set(side->workspace, workspace_byte, side->workspace_bytes,
					side->stream));
	return impl->stream_sync(side->stream);
}

/* Allocates the side's memory. Only the workspace is initialised. */
static int open_memory(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		       const struct cairn_impl *impl, void *stream)
{
	workspace_fn workspace = f->workspace_op ? (workspace_fn)table_member(impl, f->workspace_op) : NULL;
	int ret;

	memset(side, 0, sizeof(*side));
	side->impl = impl;
	side->stream = stream;
	side->args = malloc(f->args_size);
	side->base = calloc(op->num_bufs + 1, sizeof(*side->base));
	if (!side->args || !side->base) {
		ret = cairn_error(ENOMEM, "%s: no memory", f->name);
		goto out_close;
	}
	memcpy(side->args, op->args, f->args_size);
	for (int i = 0; i < op->num_bufs; i++) {
		void *data;

		ret = impl->mem_alloc((void **)&side->base[i], op->bufs[i].bytes + 2 * CAIRN_CANARY);
		if (ret)
			goto out_close;
		data = side->base[i] + CAIRN_CANARY;
		memcpy((char *)side->args + op->bufs[i].field, &data, sizeof(data));
	}
	cairn_set_alias(op, side->args);
	if (workspace) {
		ret = workspace(side->args, &side->workspace_bytes);
		if (ret)
			goto out_close;
		if (side->workspace_bytes) {
			ret = impl->mem_alloc(&side->workspace, side->workspace_bytes);
			if (ret)
				goto out_close;
		}
		memcpy((char *)side->args + f->workspace_field, &side->workspace, sizeof(void *));
		memcpy((char *)side->args + f->workspace_field + sizeof(void *), &side->workspace_bytes,
		       sizeof(size_t));
	}
	if (side->workspace)
		ret = impl->mem_set(side->workspace, f->zeroed_workspace ? 0 : 0xff,
				    side->workspace_bytes, stream);
	else
		ret = 0;
	if (ret)
		goto out_close;
	return 0;

out_close:
	cairn_side_close(side, op);
	return ret;
}

int cairn_side_open(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		    const struct cairn_impl *impl, void *stream)
{
	int ret;

	CAIRN_TRY(open_memory(side, f, op, impl, stream));
	ret = send(side, op, -1, 0);
	if (ret)
		cairn_side_close(side, op);
	return ret;
}

int cairn_side_clone(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		     const struct cairn_side *from)
{
	const struct cairn_impl *impl = from->impl;
	int ret;

	CAIRN_TRY(open_memory(side, f, op, impl, from->stream));
	for (int i = 0; i < op->num_bufs; i++) {
		ret = impl->mem_copy(side->base[i], from->base[i], op->bufs[i].bytes + 2 * CAIRN_CANARY,
				     CAIRN_COPY_ON_DEVICE, side->stream);
		if (ret)
			goto out_close;
	}
	ret = impl->stream_sync(side->stream);
	if (!ret)
		return 0;
out_close:
	cairn_side_close(side, op);
	return ret;
}

int cairn_side_call(struct cairn_side *side, const struct cairn_family *f)
{
	op_fn fn = (op_fn)table_member(side->impl, f->op);

	return fn ? fn(side->args, side->stream) :
		cairn_error(EOPNOTSUPP, "%s: not in table %s", f->name, side->impl->name);
}

/* Calls that follow each other, like the layers of a model, share one workspace. */
void cairn_side_share_workspace(struct cairn_side *side, const struct cairn_side *with,
				const struct cairn_family *f)
{
	if (!side->workspace || side->workspace_bytes != with->workspace_bytes)
		return;
	side->impl->mem_free(side->workspace);
	side->workspace = NULL;		/* the other side frees it */
	memcpy((char *)side->args + f->workspace_field, &with->workspace, sizeof(void *));
}

void cairn_side_close(struct cairn_side *side, const struct cairn_op *op)
{
	for (int i = 0; side->base && i < op->num_bufs; i++)
		if (side->base[i])
			side->impl->mem_free(side->base[i]);
	if (side->workspace)
		side->impl->mem_free(side->workspace);
	free(side->base);
	free(side->args);
	memset(side, 0, sizeof(*side));
}

static void __attribute__((format(printf, 2, 3))) say(struct cairn_outcome *o, const char *fmt, ...)
{
	size_t n = strlen(o->text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(o->text + n, sizeof(o->text) - n, fmt, ap);
	va_end(ap);
}

/* Describes buffer i by its number and offset, since the argument's name is not known here. */
static const char *role_name(const struct cairn_op *op, int i, char *buf, size_t len)
{
	static const char *const roles[] = { "input", "output", "in/out" };

	snprintf(buf, len, "%s %d (args offset %zu)", roles[op->bufs[i].role], i, op->bufs[i].field);
	return buf;
}

static int fetch(struct cairn_side *side, const struct cairn_op *op, uint8_t **images)
{
	for (int i = 0; i < op->num_bufs; i++)
		if (images[i])
			CAIRN_TRY(side->impl->mem_copy(images[i], side->base[i],
						       op->bufs[i].bytes + 2 * CAIRN_CANARY,
						       CAIRN_COPY_TO_HOST, side->stream));
	return side->impl->stream_sync(side->stream);
}

static void check_memory(const struct cairn_op *op, uint8_t *const *images, struct cairn_outcome *o)
{
	char who[64];

	for (int i = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];
		const uint8_t *image = images[i];
		int below = 0, above = 0;

		for (int k = 0; k < CAIRN_CANARY; k++) {
			below += image[k] != 0xff;
			above += image[CAIRN_CANARY + b->bytes + k] != 0xff;
		}
		if (below || above) {
			o->verdict = CAIRN_FAIL;
			say(o, "%s: written outside: %d bytes before it, %d bytes past its end\n",
			    role_name(op, i, who, sizeof(who)), below, above);
		}
		if (b->role == CAIRN_ROLE_IN && memcmp(image, b->base, b->bytes + CAIRN_CANARY)) {
			o->verdict = CAIRN_FAIL;
			say(o, "%s: an input was written\n", role_name(op, i, who, sizeof(who)));
		}
	}
}

void cairn_expected_free(struct cairn_expected *e)
{
	for (int k = 0; k < CAIRN_MAX_BUFS; k++) {
		free(e->exact[k].val);
		free(e->exact[k].bound);
	}
	memset(e, 0, sizeof(*e));
}

/* Calls the reference, unless it has been called for another table. */
static void make_expected(const struct cairn_family *f, const struct cairn_op *op, struct cairn_expected *e)
{
	int num_outs = 0;

	if (e->made)
		return;
	e->made = 1;
	for (int i = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];
		struct cairn_exact *x = &e->exact[num_outs];

		if (b->role == CAIRN_ROLE_IN)
			continue;
		num_outs++;
		x->val = cairn_buffer_alloc((b->count + 1) * sizeof(double));
		x->bound = cairn_buffer_alloc((b->count + 1) * sizeof(double));
		if (!x->val || !x->bound) {
			e->ret = cairn_error(ENOMEM, "no memory");
			break;
		}
		/* val is defined only where exact() sets bound */
		#pragma omp parallel for schedule(static) if (b->count > 1 << 20)
		for (int64_t k = 0; k < b->count; k++)
			x->bound[k] = NAN;
	}
	if (!e->ret)
		e->ret = f->exact(op->args, e->exact);
	if (e->ret)
		snprintf(e->text, sizeof(e->text), "%s", cairn_last_error());
}

static void check_values(const struct cairn_family *f, const struct cairn_op *op, uint8_t *const *images,
			 struct cairn_expected *e, struct cairn_outcome *o)
{
	make_expected(f, op, e);
	if (e->ret) {
		o->verdict = e->ret == -EOPNOTSUPP ? CAIRN_SKIP : CAIRN_FAIL;
		say(o, "the reference: %s\n", e->text);
		return;
	}
	for (int i = 0, k = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];
		const uint8_t *got = images[i] + CAIRN_CANARY, *before = b->base + CAIRN_CANARY;
		int64_t first = -1, bad;
		char who[64];

		if (b->role == CAIRN_ROLE_IN)
			continue;
		bad = cairn_judge(b->dtype, b->count, got, before, &e->exact[k],
				  f->exact_is_equal && op->kind == CAIRN_KIND_EXACT, &first,
				  &o->err_over_bound, &o->judged);
		if (bad) {
			double bound = e->exact[k].bound[first];

			o->verdict = CAIRN_FAIL;
			say(o, "%s: %lld of %lld elements bad, the first at %lld: "
			    "got %.9g, want %.9g, bound %.3g\n",
			    role_name(op, i, who, sizeof(who)), (long long)bad, (long long)b->count,
			    (long long)first, cairn_load(got, b->dtype, first),
			    isnan(bound) ? cairn_load(before, b->dtype, first) : e->exact[k].val[first],
			    bound);
		}
		k++;
	}
}

/* Makes arguments that point to the fetched images, for the hooks judge and extra. */
static void *image_args(const struct cairn_family *f, const struct cairn_op *op, uint8_t *const *images)
{
	void *args = malloc(f->args_size);

	if (!args)
		return NULL;
	memcpy(args, op->args, f->args_size);
	for (int i = 0; i < op->num_bufs; i++) {
		void *data = images[i] + CAIRN_CANARY;

		memcpy((char *)args + op->bufs[i].field, &data, sizeof(data));
	}
	cairn_set_alias(op, args);
	return args;
}

/* again: leaves out the buffers that move once (NULL). */
static uint8_t **make_images(const struct cairn_op *op, int again)
{
	uint8_t **images = calloc(op->num_bufs + 1, sizeof(*images));

	for (int i = 0; images && i < op->num_bufs; i++) {
		if (again && moves_once(&op->bufs[i]))
			continue;
		images[i] = cairn_buffer_alloc(op->bufs[i].bytes + 2 * CAIRN_CANARY);
		if (!images[i])
			abort();
	}
	return images;
}

static void free_images(const struct cairn_op *op, uint8_t **images)
{
	for (int i = 0; images && i < op->num_bufs; i++)
		free(images[i]);
	free(images);
}

static int failed(struct cairn_outcome *o, const struct cairn_impl *impl, int ret, const char *doing)
{
	if (ret == -EOPNOTSUPP)
		o->verdict = CAIRN_SKIP;
	else
		o->verdict = ret == -EIO ? CAIRN_LOST : CAIRN_FAIL;
	say(o, "%s: %s (%d)\n", doing, cairn_impl_error(impl), ret);
	return ret;
}

static void start_outcome(struct cairn_outcome *o)
{
	o->verdict = CAIRN_PASS;
	o->err_over_bound = 0;
	o->judged = 0;
	o->text[0] = o->extra[0] = 0;
}

void cairn_op_verify(const struct cairn_family *f, struct cairn_op *op, const struct cairn_impl *impl,
		     void *stream, struct cairn_expected *expected, struct cairn_outcome *o)
{
	uint8_t **first = make_images(op, 0), **second = make_images(op, 1);
	struct cairn_side side;
	void *got = NULL;
	char who[64];
	int ret;

	start_outcome(o);
	cairn_clear_error();

	ret = cairn_side_open(&side, f, op, impl, stream);
	if (ret) {
		failed(o, impl, ret, "setting up");
		goto out_free;
	}
	ret = cairn_side_call(&side, f);
	if (ret) {
		failed(o, impl, ret, "the call");
		goto out_close;
	}
	ret = fetch(&side, op, first);
	if (ret) {
		failed(o, impl, ret, "after the call");
		goto out_close;
	}
	/*
	 * The second call finds other junk in the workspace, or what the first call left there. Its results
	 * must have the same bits.
	 */
	ret = send(&side, op, f->zeroed_workspace ? -1 : 0x5a, 1);
	if (!ret)
		ret = cairn_side_call(&side, f);
	if (!ret)
		ret = fetch(&side, op, second);
	if (ret) {
		failed(o, impl, ret, "the second call");
		goto out_close;
	}
	check_memory(op, first, o);
	got = image_args(f, op, first);
	if (f->exact)
		check_values(f, op, first, expected, o);
	if (f->judge && o->verdict != CAIRN_SKIP) {
		char why[512] = "";

		if (f->judge(op, got, why, sizeof(why))) {
			o->verdict = CAIRN_FAIL;
			say(o, "%s\n", why);
		}
	}
	for (int i = 0; i < op->num_bufs; i++) {
		int timing = 0;

		for (size_t k = 0; k < ARRAY_SIZE(f->timing_fields); k++)
			timing |= f->timing_fields[k] && op->bufs[i].field == f->timing_fields[k];
		if (timing || !second[i] || !memcmp(first[i], second[i],
						    op->bufs[i].bytes + 2 * CAIRN_CANARY))
			continue;
		o->verdict = CAIRN_FAIL;
		say(o, "%s: a second run gave other bits\n", role_name(op, i, who, sizeof(who)));
	}
	if (f->extra && f->extra(op, got, o->extra, sizeof(o->extra)))
		o->extra[0] = 0;
out_close:
	cairn_side_close(&side, op);
out_free:
	free(got);
	free_images(op, first);
	free_images(op, second);
}

int cairn_op_reject_name(const struct cairn_family *f, int i, const char **name)
{
	void *scratch = calloc(1, f->args_size);
	int want;

	*name = NULL;
	if (!scratch)
		return cairn_error(ENOMEM, "%s: no memory for its refused calls", f->name);
	*name = f->reject(scratch, i, &want);
	free(scratch);
	return *name != NULL;
}

void cairn_op_reject(const struct cairn_family *f, int i, const struct cairn_impl *impl, void *stream,
		     uint64_t seed, struct cairn_outcome *o)
{
	struct cairn_side side;
	struct cairn_op op;
	uint8_t **images;
	int want = 0, ret;

	start_outcome(o);
	if (!table_member(impl, f->op)) {
		o->verdict = CAIRN_SKIP;
		say(o, "%s: not in table %s\n", f->name, impl->name);
		return;
	}
	if (cairn_op_open(&op, f, 0, CAIRN_KIND_NORMAL, seed)) {
		o->verdict = CAIRN_FAIL;
		say(o, "the call was not made: %s\n", cairn_last_error());
		return;
	}
	images = make_images(&op, 0);
	ret = cairn_side_open(&side, f, &op, impl, stream);
	if (ret) {
		failed(o, impl, ret, "setting up");
		goto out_free;
	}
	if (!f->reject(side.args, i, &want)) {
		o->verdict = CAIRN_FAIL;
		say(o, "the call was not made: the family has no bad argument %d\n", i);
		goto out_close;
	}
	ret = cairn_side_call(&side, f);
	if (ret != want) {
		o->verdict = CAIRN_FAIL;
		say(o, "returned %d, want %d\n", ret, want);
	}
	ret = fetch(&side, &op, images);
	if (ret)
		failed(o, impl, ret, "after the refused call");
	for (int k = 0; !ret && k < op.num_bufs; k++) {
		if (!memcmp(images[k], op.bufs[k].base, op.bufs[k].bytes + 2 * CAIRN_CANARY))
			continue;
		o->verdict = CAIRN_FAIL;
		say(o, "memory was written in spite of the error\n");
	}
out_close:
	cairn_side_close(&side, &op);
out_free:
	free_images(&op, images);
	cairn_op_close(&op);
}
