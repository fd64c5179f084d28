// SPDX-License-Identifier: Apache-2.0
/* op_side - a case's arguments and buffers in a table's memory */
#include "conformance/suite/op_side.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/suite/guard.h"
#include "conformance/device/side_memory.h"
#include "conformance/tables/tables.h"

#define SLOW_BYTES	((size_t)4 << 20)
#define SLOW_TIMES	32

typedef int (*op_fn)(const void *args, void *stream);
typedef int (*workspace_fn)(const void *args, size_t *bytes);

static void *table_member(const struct cairn_impl *impl, size_t offset)
{
	void *fn;

	memcpy(&fn, (const char *)impl + offset, sizeof(fn));
	return fn;
}

/*
 * Returns the alignment that the contract promises for buffer i: that of an element if the argument check
 * accepts such a pointer (per-row arrays, lists, scales), else 16 bytes, or 128 for the chains of dsmem.
 */
static size_t alignment(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
			int i)
{
	const size_t most = f->op == offsetof(struct cairn_impl, dsmem) ? 128 : 16;
	const struct cairn_buf *b = &op->bufs[i];
	const size_t esize = cairn_dtype_bytes(b->dtype);
	const uint8_t *data = b->base + CAIRN_CANARY + esize;
	cairn_check_fn check = cairn_check_of(f);

	/* the contract of `stream` promises 16 bytes, but its check does not test that */
	if (!check || b->far || esize < 4 || f->op == offsetof(struct cairn_impl, stream))
		return most;
	memcpy(side->passed, op->args, f->args_size);
	memcpy((char *)side->passed + b->field, &data, sizeof(data));
	cairn_set_alias(op, side->passed);
	return check(side->passed) ? most : esize;
}

static void set_pointer(struct cairn_side *side, const struct cairn_op *op, int i, uint8_t *data)
{
	side->base[i] = data - CAIRN_CANARY;
	memcpy((char *)side->args + op->bufs[i].field, &data, sizeof(data));
}

/*
 * Returns whether the contract allows NULL for an empty buffer. Only the headers of these operations do;
 * other operations may refuse NULL even if the call does nothing.
 */
static int may_be_null(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		       int i)
{
	const int says_so = f->op == offsetof(struct cairn_impl, pick_ids) ||
			    f->op == offsetof(struct cairn_impl, token_counts) ||
			    f->op == offsetof(struct cairn_impl, logprobs) ||
			    f->op == offsetof(struct cairn_impl, kv_move);
	cairn_check_fn check = cairn_check_of(f);
	int works = 0;
	void *null = NULL;

	for (int k = 0; k < op->num_bufs; k++)
		works |= op->bufs[k].role != CAIRN_ROLE_IN && op->bufs[k].count;
	if (!says_so || !works || !check || op->bufs[i].count || check(op->args))
		return 0;
	memcpy(side->passed, op->args, f->args_size);
	memcpy((char *)side->passed + op->bufs[i].field, &null, sizeof(null));
	return !check(side->passed);
}

static int open_guard(struct cairn_guard *g, const struct cairn_buf *b, size_t align)
{
	size_t esize = cairn_dtype_bytes(b->dtype);
	struct cairn_span *spans;
	int ret;

	if (!b->far)
		return cairn_guard_open(g, b->bytes, align);
	spans = malloc((size_t)(b->num_touched + 1) * sizeof(*spans));
	if (!spans)
		return cairn_error(ENOMEM, "no memory");
	for (int k = 0; k < b->num_touched; k++)
		spans[k] = (struct cairn_span){ (size_t)b->touched[k].first * esize,
						(size_t)b->touched[k].count * esize };
	ret = cairn_guard_open_far(g, b->bytes, align, spans, b->num_touched, b->idle);
	free(spans);
	return ret;
}

/* Returns the size of the allocation for buffer i: its data, both canaries, and room for a shift. */
static size_t buffer_bytes(const struct cairn_side *side, const struct cairn_op *op, int i)
{
	return op->bufs[i].bytes + 2 * CAIRN_CANARY + side->align[i];
}

static int open_buffers(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op)
{
	for (int i = 0; i < op->num_bufs; i++) {
		void *base;

		side->nullable[i] = may_be_null(side, f, op, i) ? op->bufs[i].field : 0;
		if (side->guards) {
			CAIRN_TRY(open_guard(&side->guards[i], &op->bufs[i], alignment(side, f, op, i)));
			set_pointer(side, op, i, side->guards[i].data);
			continue;
		}
		side->align[i] = alignment(side, f, op, i) > 16 ? 128 : 16;
		CAIRN_TRY(cairn_side_alloc(side->impl, &base, buffer_bytes(side, op, i)));
		set_pointer(side, op, i, (uint8_t *)base + CAIRN_CANARY);
	}
	cairn_set_alias(op, side->args);
	return 0;
}

struct query {
	workspace_fn fn;
	const void *args;
	size_t bytes;
	int ret;
};

static void ask(void *arg)
{
	struct query *q = arg;

	q->ret = q->fn(q->args, &q->bytes);
}

static void take_pointers(void *args, const struct cairn_op *op, const struct cairn_family *f)
{
	void *null = NULL;

	for (int i = 0; i < op->num_bufs; i++)
		memcpy((char *)args + op->bufs[i].field, &null, sizeof(null));
	for (int i = 0; i < op->num_alias; i++)
		memcpy((char *)args + op->alias[i].field, &null, sizeof(null));
	if (f->workspace_op)
		memcpy((char *)args + f->workspace_field, &null, sizeof(null));
}

int cairn_side_query(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		     size_t *bytes)
{
	workspace_fn fn = f->workspace_op ? (workspace_fn)table_member(side->impl, f->workspace_op) : NULL;
	struct query q = { fn, side->args, 0, 0 }, without = { fn, side->passed, 0, 0 };
	int faulted;

	*bytes = 0;
	if (!fn)
		return 0;
	ask(&q);
	if (q.ret)
		return q.ret;
	memcpy(side->passed, side->args, f->args_size);
	take_pointers(side->passed, op, f);
	faulted = cairn_guard_faults(ask, &without);
	if (faulted)
		return cairn_error(EINVAL, "the workspace query crashes when the pointers are NULL; it may "
				   "read only scalars");
	if (without.ret)
		return cairn_error(EINVAL, "the workspace query returns %d when the pointers are NULL; it "
				   "may read only scalars", without.ret);
	if (without.bytes != q.bytes)
		return cairn_error(EINVAL, "the workspace query gives %zu bytes, and %zu when the pointers "
				   "are NULL; it may read only scalars", q.bytes, without.bytes);
	*bytes = q.bytes;
	return 0;
}

/* Returns whether the workspace exceeds memory: filling it would then kill the process. */
static int exceeds_memory(const struct cairn_side *side)
{
	struct cairn_device_info info = { .size = sizeof(info) };

	if (!side->impl->device_info || side->impl->device_info(&info) || info.mem_bytes <= 0 ||
	    side->workspace_bytes <= (uint64_t)info.mem_bytes)
		return 0;
	return cairn_error(E2BIG, "needs a workspace of %zu bytes, and memory has %lld",
			   side->workspace_bytes, (long long)info.mem_bytes);
}

static int open_workspace(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op)
{
	void *base;

	if (!f->workspace_op || !table_member(side->impl, f->workspace_op))
		return 0;
	CAIRN_TRY(cairn_side_query(side, f, op, &side->workspace_bytes));
	CAIRN_TRY(exceeds_memory(side));
	if (side->workspace_bytes && side->guards) {
		CAIRN_TRY(cairn_guard_open(&side->guards[op->num_bufs], side->workspace_bytes, 256));
		side->workspace = side->guards[op->num_bufs].data;
	} else if (side->workspace_bytes) {
		CAIRN_TRY(cairn_side_alloc(side->impl, &base, side->workspace_bytes + 2 * CAIRN_CANARY));
		side->workspace = (char *)base + CAIRN_CANARY;
		side->canaries = malloc(2 * CAIRN_CANARY);
		if (!side->canaries)
			return cairn_error(ENOMEM, "no memory");
	}
	memcpy((char *)side->args + f->workspace_field, &side->workspace, sizeof(void *));
	memcpy((char *)side->args + f->workspace_field + sizeof(void *), &side->workspace_bytes,
	       sizeof(size_t));
	if (!side->workspace)
		return 0;
	return side->impl->mem_set(side->workspace, cairn_is_zeroed(f, op->args) ? 0 : 0xff,
				   side->workspace_bytes, side->stream);
}

/* Allocates the side's memory. Only the workspace is initialised. */
static int open_memory(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		       const struct cairn_impl *impl, void *stream, int guarded)
{
	int ret;

	memset(side, 0, sizeof(*side));
	side->impl = impl;
	side->stream = stream;
	side->args = malloc(f->args_size);
	side->passed = malloc(f->args_size + CAIRN_TAIL);
	side->base = calloc(op->num_bufs + 1, sizeof(*side->base));
	if (guarded)
		side->guards = calloc(op->num_bufs + 1, sizeof(*side->guards));
	if (!side->args || !side->passed || !side->base || (guarded && !side->guards)) {
		ret = cairn_error(ENOMEM, "%s: no memory", f->name);
	} else {
		memcpy(side->args, op->args, f->args_size);
		ret = open_buffers(side, f, op);
	}
	if (!ret)
		ret = open_workspace(side, f, op);
	if (ret)
		cairn_side_close(side, op);
	return ret;
}

int cairn_side_is_guarded(const struct cairn_impl *impl)
{
	return (impl->flags & CAIRN_IMPL_HOST_MEM) && impl->mem_alloc == cairn_host_runtime.mem_alloc;
}

int cairn_side_open_guarded(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
			    const struct cairn_impl *impl, void *stream)
{
	return open_memory(side, f, op, impl, stream, cairn_side_is_guarded(impl));
}

static int copy_bytes(struct cairn_side *side, void *to, const void *from, size_t bytes, int kind)
{
	if (kind == CAIRN_COPY_TO_DEVICE)
		return cairn_side_upload(side->impl, to, from, bytes, side->stream);
	if (kind == CAIRN_COPY_TO_HOST)
		return cairn_side_download(side->impl, to, from, bytes, side->stream);
	return side->impl->mem_copy(to, from, bytes, kind, side->stream);
}

/* Copies the data of a buffer; of a far one, only the touched ranges. */
static int copy_data(struct cairn_side *side, const struct cairn_buf *b, uint8_t *to, const uint8_t *from,
		     int kind)
{
	size_t esize = cairn_dtype_bytes(b->dtype);
	struct cairn_range r;

	for (int k = 0; cairn_buf_range(b, k, &r); k++)
		CAIRN_TRY(copy_bytes(side, to + (size_t)r.first * esize, from + (size_t)r.first * esize,
				     (size_t)r.count * esize, kind));
	return 0;
}

/* As copy_data(), with the canaries before and after the data. */
static int copy_buffer(struct cairn_side *side, const struct cairn_buf *b, uint8_t *to, const uint8_t *from,
		       int kind)
{
	const size_t end = CAIRN_CANARY + b->bytes;

	if (!b->far)
		return copy_bytes(side, to, from, end + CAIRN_CANARY, kind);
	CAIRN_TRY(copy_bytes(side, to, from, CAIRN_CANARY, kind));
	CAIRN_TRY(copy_bytes(side, to + end, from + end, CAIRN_CANARY, kind));
	return copy_data(side, b, to + CAIRN_CANARY, from + CAIRN_CANARY, kind);
}

int cairn_side_open(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		    const struct cairn_impl *impl, void *stream)
{
	const struct cairn_round plain = { .canary = 0xff, .workspace = -1 };
	int ret;

	CAIRN_TRY(open_memory(side, f, op, impl, stream, 0));
	ret = cairn_side_send(side, f, op, &plain, 0);
	if (ret)
		cairn_side_close(side, op);
	return ret;
}

int cairn_side_clone(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		     const struct cairn_side *from)
{
	const struct cairn_impl *impl = from->impl;
	int ret;

	CAIRN_TRY(open_memory(side, f, op, impl, from->stream, 0));
	for (int i = 0; i < op->num_bufs; i++) {
		ret = copy_buffer(side, &op->bufs[i], side->base[i], from->base[i], CAIRN_COPY_ON_DEVICE);
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

static int set_canaries(struct cairn_side *side, char *data, size_t bytes, int byte)
{
	CAIRN_TRY(side->impl->mem_set(data - CAIRN_CANARY, byte, CAIRN_CANARY, side->stream));
	return side->impl->mem_set(data + bytes, byte, CAIRN_CANARY, side->stream);
}

/*
 * Queues slow work on the stream and then a fill of the outputs, so that the results of an operation that
 * does not wait for the stream are overwritten.
 */
static int put_behind(struct cairn_side *side, const struct cairn_op *op)
{
	const struct cairn_impl *impl = side->impl;

	if (!side->slow)
		CAIRN_TRY(cairn_side_alloc(impl, &side->slow, SLOW_BYTES));
	for (int i = 0; i < SLOW_TIMES; i++)
		CAIRN_TRY(impl->mem_set(side->slow, i, SLOW_BYTES, side->stream));
	for (int i = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];
		const uint8_t *data = b->base + CAIRN_CANARY;

		if (b->role == CAIRN_ROLE_OUT && b->bytes && !b->far && !memcmp(data, data + 1, b->bytes - 1))
			CAIRN_TRY(impl->mem_set(side->base[i] + CAIRN_CANARY, data[0], b->bytes,
						side->stream));
	}
	return 0;
}

static int send_one(struct cairn_side *side, const struct cairn_op *op, int i, const struct cairn_round *r)
{
	const struct cairn_buf *b = &op->bufs[i];
	struct cairn_guard *g = side->guards ? &side->guards[i] : NULL;

	if (!g) {
		if (!cairn_moves_once(b)) {
			uint8_t *data = side->base[i] + CAIRN_CANARY - side->shift[i];

			side->shift[i] = r->shifted ? side->align[i] : 0;
			set_pointer(side, op, i, data + side->shift[i]);
		}
		CAIRN_TRY(copy_buffer(side, b, side->base[i], b->base, CAIRN_COPY_TO_DEVICE));
		return r->canary == 0xff ? 0 :
			set_canaries(side, (char *)side->base[i] + CAIRN_CANARY, b->bytes, r->canary);
	}
	if (r->apart)
		cairn_guard_place_apart(g);
	else if (!cairn_moves_once(b))
		cairn_guard_place(g, r->at_begin, r->shifted);
	set_pointer(side, op, i, g->data);
	cairn_guard_fill(g, r->canary);
	return copy_data(side, b, g->data, b->base + CAIRN_CANARY, CAIRN_COPY_TO_DEVICE);
}

int cairn_side_send(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		    const struct cairn_round *r, int again)
{
	for (int i = 0; i < op->num_bufs; i++)
		if (!again || !cairn_moves_once(&op->bufs[i]))
			CAIRN_TRY(send_one(side, op, i, r));
		else if (side->guards)
			cairn_guard_fill(&side->guards[i], r->canary);
	cairn_set_alias(op, side->args);
	if (side->workspace && side->guards)
		cairn_guard_fill(&side->guards[op->num_bufs], r->canary);
	else if (side->workspace)
		CAIRN_TRY(set_canaries(side, side->workspace, side->workspace_bytes, r->canary));
	if (side->workspace && r->workspace >= 0 && !cairn_is_zeroed(f, op->args))
		CAIRN_TRY(side->impl->mem_set(side->workspace, r->workspace, side->workspace_bytes,
					      side->stream));
	CAIRN_TRY(cairn_side_settle(side->impl, side->stream));
	return r->behind && !(side->impl->flags & CAIRN_IMPL_HOST_MEM) ? put_behind(side, op) : 0;
}

static int call_member(struct cairn_side *side, const struct cairn_family *f, size_t op)
{
	op_fn fn = (op_fn)table_member(side->impl, op);

	return fn ? fn(side->args, side->stream) :
		cairn_error(EOPNOTSUPP, "%s: not in table %s", f->name, side->impl->name);
}

int cairn_side_call(struct cairn_side *side, const struct cairn_family *f)
{
	return call_member(side, f, f->op);
}

int cairn_side_has_plan_op(const struct cairn_side *side, const struct cairn_family *f)
{
	return f->plan_op && table_member(side->impl, f->plan_op) != NULL;
}

int cairn_side_call_plan(struct cairn_side *side, const struct cairn_family *f)
{
	return call_member(side, f, cairn_side_has_plan_op(side, f) ? f->plan_op : f->op);
}

/* Returns whether the struct may end before the family's later members, because these are all 0. */
static int may_be_shorter(const struct cairn_side *side, const struct cairn_family *f)
{
	const uint8_t *args = side->args;

	for (size_t at = f->first_bytes; at < f->args_size; at++)
		if (args[at])
			return 0;
	return f->first_bytes != 0;
}

int cairn_side_call_round(struct cairn_side *side, const struct cairn_family *f, const struct cairn_round *r)
{
	op_fn fn = (op_fn)table_member(side->impl, f->op);
	size_t size = r->shorter && may_be_shorter(side, f) ? f->first_bytes :
		      f->args_size + (r->longer ? CAIRN_TAIL : 0);
	void *null = NULL;
	int ret = 0;

	if (!fn)
		return cairn_side_call(side, f);
	if (r->pause_us)
		usleep((useconds_t)r->pause_us);
	for (int i = 0; !ret && i <= r->repeats; i++) {
		memset(side->passed, size < f->args_size ? 0xa5 : 0, f->args_size + CAIRN_TAIL);
		memcpy(side->passed, side->args, size < f->args_size ? size : f->args_size);
		memcpy(side->passed, &size, sizeof(size));
		for (int k = 0; r->longer && k < CAIRN_MAX_BUFS; k++)
			if (side->nullable[k])
				memcpy((char *)side->passed + side->nullable[k], &null, sizeof(null));
		ret = fn(side->passed, side->stream);
		memset(side->passed, 0xa5, f->args_size + CAIRN_TAIL);
	}
	return !ret && f->then_op ? call_member(side, f, f->then_op) : ret;
}

int cairn_side_call_unknown(struct cairn_side *side, const struct cairn_family *f, size_t at)
{
	op_fn fn = (op_fn)table_member(side->impl, f->op);
	size_t size = f->args_size + CAIRN_TAIL;

	if (!fn)
		return cairn_side_call(side, f);
	memset(side->passed, 0, size);
	memcpy(side->passed, side->args, f->args_size);
	memcpy(side->passed, &size, sizeof(size));
	((char *)side->passed)[f->args_size + at] = 1;
	return fn(side->passed, side->stream);
}

void cairn_side_hold(struct cairn_side *side, const struct cairn_op *op, void (*wait)(void))
{
	for (int i = 0; i < op->num_bufs; i++)
		cairn_guard_hold(&side->guards[i], wait);
}

void cairn_side_release(struct cairn_side *side, const struct cairn_op *op)
{
	for (int i = 0; i < op->num_bufs; i++)
		cairn_guard_release(&side->guards[i]);
}

int cairn_side_fetch(struct cairn_side *side, const struct cairn_op *op, uint8_t **images)
{
	const char *workspace = side->workspace;

	for (int i = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];

		if (images[i] && side->guards && b->role == CAIRN_ROLE_IN)
			continue;
		if (images[i] && side->guards)
			CAIRN_TRY(copy_data(side, b, images[i] + CAIRN_CANARY, side->base[i] + CAIRN_CANARY,
					    CAIRN_COPY_TO_HOST));
		else if (images[i])
			CAIRN_TRY(copy_buffer(side, b, images[i], side->base[i], CAIRN_COPY_TO_HOST));
	}
	if (side->canaries) {
		CAIRN_TRY(copy_bytes(side, side->canaries, workspace - CAIRN_CANARY, CAIRN_CANARY,
				     CAIRN_COPY_TO_HOST));
		CAIRN_TRY(copy_bytes(side, side->canaries + CAIRN_CANARY, workspace + side->workspace_bytes,
				     CAIRN_CANARY, CAIRN_COPY_TO_HOST));
	}
	return cairn_side_settle(side->impl, side->stream);
}

static size_t count(const uint8_t *p, int byte)
{
	size_t n = 0;

	for (size_t k = 0; k < CAIRN_CANARY; k++)
		n += p[k] != byte;
	return n;
}

void cairn_side_damage(struct cairn_side *side, const struct cairn_op *op, int i, const uint8_t *image,
		       const struct cairn_round *r, struct cairn_damage *d)
{
	struct cairn_guard *g = side->guards ? &side->guards[i] : NULL;

	memset(d, 0, sizeof(*d));
	if (g && g->inner) {
		cairn_guard_count(g, r->canary, &d->below, &d->above);
		d->stray[0].distance = (long long)((uintptr_t)g->data - g->stray[0].at);
		d->stray[1].distance = (long long)(g->stray[1].at - (uintptr_t)g->data - g->bytes);
		d->stray[2].distance = (long long)(g->stray[2].at - (uintptr_t)g->data);
		for (int k = 0; k < 3; k++) {
			d->stray[k].seen = g->stray[k].at != 0;
			d->stray[k].wrote = g->stray[k].wrote;
			g->stray[k].at = 0;
		}
	} else if (!g && i < op->num_bufs && image) {
		d->below = count(image, r->canary);
		d->above = count(image + CAIRN_CANARY + op->bufs[i].bytes, r->canary);
	} else if (i == op->num_bufs && side->canaries) {
		d->below = count(side->canaries, r->canary);
		d->above = count(side->canaries + CAIRN_CANARY, r->canary);
	}
}

static void free_workspace(struct cairn_side *side)
{
	cairn_side_free(side->impl, (char *)side->workspace - CAIRN_CANARY,
			side->workspace_bytes + 2 * CAIRN_CANARY);
}

/* Makes a side use the workspace of another one, as the layers of a model share one. */
void cairn_side_share_workspace(struct cairn_side *side, const struct cairn_side *with,
				const struct cairn_family *f)
{
	if (!side->workspace || side->workspace_bytes != with->workspace_bytes)
		return;
	free_workspace(side);
	free(side->canaries);
	side->canaries = NULL;
	side->workspace = NULL;		/* the other side frees it */
	memcpy((char *)side->args + f->workspace_field, &with->workspace, sizeof(void *));
}

void cairn_side_close(struct cairn_side *side, const struct cairn_op *op)
{
	for (int i = 0; side->guards && i <= op->num_bufs; i++)
		cairn_guard_close(&side->guards[i]);
	for (int i = 0; !side->guards && side->base && i < op->num_bufs; i++)
		if (side->base[i])
			cairn_side_free(side->impl, side->base[i] - side->shift[i],
					buffer_bytes(side, op, i));
	if (side->workspace && !side->guards)
		free_workspace(side);
	if (side->slow)
		cairn_side_free(side->impl, side->slow, SLOW_BYTES);
	free(side->canaries);
	free(side->guards);
	free(side->base);
	free(side->args);
	free(side->passed);
	memset(side, 0, sizeof(*side));
}
