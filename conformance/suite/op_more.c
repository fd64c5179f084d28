// SPDX-License-Identifier: Apache-2.0
/* op_more - the further calls of a case; all but the one with other lists must give the first call's bits */
#include "conformance/suite/op_side.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/place.h"
#include "conformance/device/turn.h"
#include "conformance/tables/tables.h"

/* These calls keep the canaries of the call before them. */
static const struct cairn_round calm = { .canary = 0x4b, .workspace = 0x5a };

/* A copy of an op whose buffers, arguments and contents can be changed. */
static int copy_op(struct cairn_op *copy, const struct cairn_family *f, const struct cairn_op *op)
{
	*copy = *op;
	copy->args = malloc(f->args_size);
	copy->bufs = malloc((size_t)op->num_bufs * sizeof(*op->bufs));
	if (copy->args)
		memcpy(copy->args, op->args, f->args_size);
	if (copy->bufs)
		memcpy(copy->bufs, op->bufs, (size_t)op->num_bufs * sizeof(*op->bufs));
	return copy->args && copy->bufs ? 0 : cairn_error(ENOMEM, "no memory for a further call");
}

static void free_copy(struct cairn_op *copy)
{
	free(copy->args);
	free(copy->bufs);
}

static void *pointer_at(const void *args, size_t field)
{
	void *p;

	memcpy(&p, (const char *)args + field, sizeof(p));
	return p;
}

static int32_t int_at(const void *args, size_t field)
{
	int32_t n;

	memcpy(&n, (const char *)args + field, sizeof(n));
	return n;
}

/* Fetches the results of a call with the inputs of op. Returns 0, or an error that it has reported. */
static int fetch(const struct cairn_more *m, struct cairn_side *side, const struct cairn_op *op)
{
	int ret = cairn_side_fetch(side, op, m->later);

	if (!ret)
		cairn_check_memory(side, op, m->later, &calm, m->o);
	return ret ? cairn_call_failed(m->o, side->impl, ret, "after a further call") : 0;
}

/* Makes one call with side->args. Returns 0, or an error that it has reported. */
static int call(const struct cairn_more *m, struct cairn_side *side, const char *doing)
{
	int ret = cairn_side_call_round(side, m->f, &calm);

	if (ret)
		cairn_call_failed(m->o, side->impl, ret, doing);
	if (ret == -EOPNOTSUPP)		/* the same call on other memory has succeeded */
		m->o->verdict = CAIRN_FAIL;
	return ret;
}

/* Returns the bounds of output i, or NULL if the family has none. */
static const double *bound_of(const struct cairn_more *m, int i)
{
	int k = 0;

	while (i-- > 0)
		k += m->op->bufs[i].role != CAIRN_ROLE_IN;
	return m->f->exact || m->f->exact_ranks ? m->expected->exact[k].bound : NULL;
}

/*
 * Excludes from the comparison the elements of output `out` that may have any value, such as rows of requests
 * without a key: copies the wanted bits over them. The results lie in buffer `at`.
 */
static void forgive(const struct cairn_more *m, int out, int at, const uint8_t *want)
{
	const struct cairn_buf *b = &m->op->bufs[out];
	const double *bound = bound_of(m, out);
	size_t esize = cairn_dtype_bytes(b->dtype);
	struct cairn_range r;

	for (int k = 0; bound && cairn_buf_range(b, k, &r); k++)
		for (int64_t i = r.first; i < r.first + r.count; i++)
			if (isinf(bound[i]))
				memcpy(m->later[at] + CAIRN_CANARY + (size_t)i * esize,
				       want + CAIRN_CANARY + (size_t)i * esize, esize);
}

static void forgive_all(const struct cairn_more *m)
{
	for (int i = 0; i < m->op->num_bufs; i++)
		if (m->op->bufs[i].role != CAIRN_ROLE_IN && m->later[i])
			forgive(m, i, i, m->own[i]);
}

/* ---- an output that shares an input's buffer ---- */

/*
 * Finds the buffers of a declared alias. Returns whether both exist separately, with the same size and dtype.
 * A pointer that the case already aliases has no buffer.
 */
static int alias_bufs(const struct cairn_more *m, const struct cairn_may_alias *a, int *out, int *in)
{
	const struct cairn_buf *bufs = m->op->bufs;

	*out = *in = -1;
	for (int i = 0; i < m->op->num_bufs && a->out; i++) {
		if (bufs[i].field == a->out)
			*out = i;
		if (bufs[i].field == a->in)
			*in = i;
	}
	return *out >= 0 && *in >= 0 && bufs[*out].bytes == bufs[*in].bytes && bufs[*out].bytes &&
	       bufs[*out].dtype == bufs[*in].dtype && !bufs[*out].far && !bufs[*in].far;
}

static int call_in_place(const struct cairn_more *m, const struct cairn_may_alias *a, int out, int in)
{
	uint8_t **want = malloc((size_t)m->op->num_bufs * sizeof(*want));
	char doing[128];
	void *data;
	struct cairn_op op;
	int ret = copy_op(&op, m->f, m->op);

	if (!want || ret) {
		ret = cairn_call_failed(m->o, m->side->impl, -ENOMEM, "in place");
		goto out_free;
	}
	/* the results are in the input; the output's own buffer is not written */
	memcpy(want, m->own, (size_t)op.num_bufs * sizeof(*want));
	want[in] = m->own[out];
	want[out] = op.bufs[out].base;
	op.bufs[in].role = CAIRN_ROLE_INOUT;
	snprintf(doing, sizeof(doing), "a call in which %s is %s", op.bufs[out].name, op.bufs[in].name);
	ret = cairn_side_send(m->side, m->f, &op, &calm, 1);
	if (ret) {
		cairn_call_failed(m->o, m->side->impl, ret, doing);
		goto out_free;
	}
	data = pointer_at(m->side->args, a->in);
	memcpy((char *)m->side->args + a->out, &data, sizeof(data));
	ret = call(m, m->side, doing);
	if (!ret)
		ret = fetch(m, m->side, &op);
	if (!ret) {
		forgive_all(m);
		/* elements without a bound may differ in the input's buffer and in the unused output's */
		forgive(m, out, in, m->own[out]);
		forgive(m, out, out, op.bufs[out].base);
		cairn_check_bits(m->f, &op, want, m->later, doing, m->o);
	}
	data = m->side->base[out] + CAIRN_CANARY;
	memcpy((char *)m->side->args + a->out, &data, sizeof(data));
	cairn_set_alias(m->op, m->side->args);
out_free:
	free_copy(&op);
	free(want);
	return ret;
}

static int calls_in_place(const struct cairn_more *m)
{
	for (size_t k = 0; k < ARRAY_SIZE(m->f->may_alias); k++) {
		const struct cairn_may_alias *a = &m->f->may_alias[k];
		int out, in;

		if (alias_bufs(m, a, &out, &in) && (!a->if_args || a->if_args(m->op->args)))
			CAIRN_TRY(call_in_place(m, a, out, in));
	}
	return 0;
}

/* ---- without an output ---- */

static int call_without(const struct cairn_more *m, const struct cairn_may_omit *omit)
{
	const size_t fields[] = { omit->out, omit->with };
	uint8_t **want = malloc((size_t)m->op->num_bufs * sizeof(*want));
	cairn_check_fn check = cairn_check_of(m->f);
	void *pointer[ARRAY_SIZE(fields)], *null = NULL;
	char doing[128];
	int ret, legal;

	if (!want)
		return cairn_call_failed(m->o, m->side->impl, -ENOMEM, "without an output");
	memcpy(want, m->own, (size_t)m->op->num_bufs * sizeof(*want));
	ret = cairn_side_send(m->side, m->f, m->op, &calm, 1);
	for (size_t k = 0; k < ARRAY_SIZE(fields) && fields[k]; k++) {
		int at = cairn_buf_of(m->op, fields[k]);

		/* an output that is left out is not written */
		want[at] = m->op->bufs[at].base;
		pointer[k] = pointer_at(m->side->args, fields[k]);
		memcpy((char *)m->side->args + fields[k], &null, sizeof(null));
	}
	snprintf(doing, sizeof(doing), "a call without %s",
		 m->op->bufs[cairn_buf_of(m->op, omit->out)].name);
	legal = !check || !check(m->side->args);
	if (ret)
		cairn_call_failed(m->o, m->side->impl, ret, doing);
	else if (legal)
		ret = call(m, m->side, doing);
	if (!ret && legal)
		ret = fetch(m, m->side, m->op);
	if (!ret && legal) {
		forgive_all(m);
		for (size_t k = 0; k < ARRAY_SIZE(fields) && fields[k]; k++) {
			int at = cairn_buf_of(m->op, fields[k]);

			forgive(m, at, at, want[at]);
		}
		cairn_check_bits(m->f, m->op, want, m->later, doing, m->o);
	}
	for (size_t k = 0; k < ARRAY_SIZE(fields) && fields[k]; k++)
		memcpy((char *)m->side->args + fields[k], &pointer[k], sizeof(pointer[k]));
	free(want);
	return ret;
}

static int calls_without(const struct cairn_more *m)
{
	for (size_t k = 0; k < ARRAY_SIZE(m->f->may_omit); k++) {
		const struct cairn_may_omit *omit = &m->f->may_omit[k];

		if (omit->out && cairn_buf_of(m->op, omit->out) >= 0 && !cairn_op_is_far(m->op))
			CAIRN_TRY(call_without(m, omit));
	}
	return 0;
}

/* ---- rows beside other rows ---- */

/*
 * Chooses a request with rows: sets *kept to its number, and *first and *end to its rows. Returns 0 if there
 * is none, or if it has all rows.
 */
static int kept_rows(const struct cairn_more *m, int32_t *kept, int32_t *first, int32_t *end)
{
	const struct cairn_company *c = &m->f->company;
	int32_t rows = int_at(m->op->args, c->rows);
	int32_t n = c->requests ? int_at(m->op->args, c->requests) : rows;
	const int32_t *indptr = c->requests ? pointer_at(m->op->args, c->indptr) : NULL;

	for (int32_t k = 0; k < n; k++) {
		int32_t at = (m->op->case_index + k) % n;

		*kept = at;
		*first = indptr ? indptr[at] - indptr[0] : at;
		*end = indptr ? indptr[at + 1] - indptr[0] : at + 1;
		if (*first < *end)
			return *end - *first < rows;
	}
	return 0;
}

/* Returns the bytes from one row to the next, or 0 if the buffer has no such rows. */
static size_t pitch_of(const struct cairn_more *m, const struct cairn_buf *b, int is_first_input)
{
	const struct cairn_company *c = &m->f->company;
	int32_t rows = int_at(m->op->args, c->rows);
	int64_t stride = 0;

	if (b->far)
		return 0;
	if (is_first_input && c->stride)
		memcpy(&stride, (char *)m->op->args + c->stride, sizeof(stride));
	if (stride)
		return (size_t)stride * cairn_dtype_bytes(b->dtype);
	return b->count % rows ? 0 : b->bytes / (size_t)rows;
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/*
 * Gives `op` other inputs in all rows except the kept ones: those of another seed or, if the sizes depend on
 * the seed, copies of a kept row. Returns 0 if the case has no such inputs or memory has run out. The caller
 * frees the contents with free_others().
 */
static int mix_rows(const struct cairn_more *m, struct cairn_op *op, int32_t first, int32_t end)
{
	for (size_t k = 0; k < ARRAY_SIZE(m->f->company.in) && m->f->company.in[k]; k++) {
		int at = cairn_buf_of(op, m->f->company.in[k]);
		size_t pitch, from, to;
		uint8_t *base, *own;

		if (at < 0)		/* an optional input */
			continue;
		pitch = pitch_of(m, &op->bufs[at], k == 0);
		if (!pitch)
			return 0;
		base = cairn_image_alloc(&op->bufs[at]);
		if (!base)
			return 0;
		memcpy(base, m->other->bufs[at].base, op->bufs[at].bytes + 2 * CAIRN_CANARY);
		from = (size_t)first * pitch;
		to = least((size_t)end * pitch, op->bufs[at].bytes);
		own = op->bufs[at].base + CAIRN_CANARY + from;
		for (size_t n = 0; m->other == m->op && n < op->bufs[at].bytes; n += pitch)
			memcpy(base + CAIRN_CANARY + n, own,
			       least(least(pitch, to - from), op->bufs[at].bytes - n));
		memcpy(base + CAIRN_CANARY + from, own, to - from);
		op->bufs[at].base = base;
	}
	return 1;
}

/*
 * Removes all keys of the requests after the kept one, unless results may depend on their number. Returns 0
 * if memory has run out.
 */
static int drop_keys(const struct cairn_more *m, struct cairn_op *op, int32_t kept)
{
	const struct cairn_company *c = &m->f->company;
	int at = c->keys ? cairn_buf_of(op, c->keys) : -1;
	uint8_t *base;
	int32_t *x;

	if (at < 0 || (c->nnz_keys && *(const int64_t *)((const char *)op->args + c->nnz_keys)))
		return 1;
	base = cairn_image_alloc(&op->bufs[at]);
	if (!base)
		return 0;
	memcpy(base, m->op->bufs[at].base, op->bufs[at].bytes + 2 * CAIRN_CANARY);
	x = (int32_t *)(base + CAIRN_CANARY);
	for (int32_t k = kept + 2; k <= int_at(m->op->args, c->requests); k++)
		x[k] = x[kept + 1];
	op->bufs[at].base = base;
	return 1;
}

static void free_others(const struct cairn_more *m, struct cairn_op *op)
{
	for (int i = 0; i < op->num_bufs; i++)
		if (op->bufs[i].base != m->op->bufs[i].base)
			cairn_image_free(&op->bufs[i], op->bufs[i].base);
}

/* Compares the kept rows of output `at`, except elements that may have any value. */
static void check_rows(const struct cairn_more *m, int at, int32_t first, int32_t end)
{
	const struct cairn_buf *b = &m->op->bufs[at];
	const double *bound = bound_of(m, at);
	size_t pitch = pitch_of(m, b, 0), esize = cairn_dtype_bytes(b->dtype);
	const uint8_t *want = m->own[at] + CAIRN_CANARY, *got = m->later[at] + CAIRN_CANARY;
	char who[128];

	for (size_t k = (size_t)first * pitch; k < (size_t)end * pitch; k += esize) {
		if (!memcmp(want + k, got + k, esize) || (bound && isinf(bound[k / esize])))
			continue;
		m->o->verdict = CAIRN_FAIL;
		cairn_place_element(b, (int64_t)(k / esize), who, sizeof(who));
		cairn_say(m->o, "%s: depends on what other rows hold\n", who);
		return;
	}
}

static int call_in_company(const struct cairn_more *m)
{
	const struct cairn_company *c = &m->f->company;
	int32_t kept, first, end;
	struct cairn_op op;
	int ret;

	if (!c->rows || !kept_rows(m, &kept, &first, &end))
		return 0;
	ret = copy_op(&op, m->f, m->op);
	if (ret || !mix_rows(m, &op, first, end) || !drop_keys(m, &op, kept))
		goto out_free;
	ret = cairn_side_send(m->side, m->f, &op, &calm, 1);
	if (ret)
		cairn_call_failed(m->o, m->side->impl, ret, "setting up");
	else
		ret = call(m, m->side, "a call with other rows");
	if (!ret)
		ret = fetch(m, m->side, &op);
	for (size_t k = 0; !ret && k < ARRAY_SIZE(c->out) && c->out[k]; k++) {
		int at = cairn_buf_of(&op, c->out[k]);

		if (at >= 0 && op.bufs[at].role != CAIRN_ROLE_IN && pitch_of(m, &op.bufs[at], 0))
			check_rows(m, at, first, end);
	}
out_free:
	if (op.bufs)
		free_others(m, &op);
	free_copy(&op);
	return ret;
}

/* ---- rows in parts ---- */

/*
 * Sets workspace_bytes to what the narrowed arguments need. Returns 0, or an error: -EOPNOTSUPP if the part
 * needs more than the whole call.
 */
static int fit_workspace(const struct cairn_more *m)
{
	struct cairn_side *side = m->side;
	size_t bytes;

	CAIRN_TRY(cairn_side_query(side, m->f, m->op, &bytes));
	if (bytes > side->workspace_bytes)
		return -EOPNOTSUPP;
	if (m->f->workspace_op)
		memcpy((char *)side->args + m->f->workspace_field + sizeof(void *), &bytes, sizeof(bytes));
	return side->workspace && cairn_is_zeroed(m->f, side->args) ?
		side->impl->mem_set(side->workspace, 0, side->workspace_bytes, side->stream) : 0;
}

static int call_in_parts(const struct cairn_more *m)
{
	char doing[64] = "a call with part of the rows";
	void *whole = malloc(m->f->args_size);
	int ret = whole ? 0 : -ENOMEM;

	if (!m->f->part || !whole)
		goto out_free;
	memcpy(whole, m->side->args, m->f->args_size);
	if (!m->f->part(whole, 0))
		goto out_free;
	ret = cairn_side_send(m->side, m->f, m->op, &calm, 1);
	memcpy(whole, m->side->args, m->f->args_size);
	for (int i = 0; !ret && m->f->part(m->side->args, i); i++) {
		ret = fit_workspace(m);
		if (!ret)
			ret = cairn_side_call_round(m->side, m->f, &calm);
		memcpy(m->side->args, whole, m->f->args_size);
	}
	memcpy(m->side->args, whole, m->f->args_size);
	if (ret && ret != -EOPNOTSUPP)
		cairn_call_failed(m->o, m->side->impl, ret, doing);
	if (!ret)
		ret = fetch(m, m->side, m->op);
	if (!ret) {
		forgive_all(m);
		cairn_check_bits(m->f, m->op, m->own, m->later, "the rows in several calls", m->o);
	}
out_free:
	free(whole);
	return ret == -EOPNOTSUPP ? 0 : ret;
}

/* ---- other forms ---- */

/* optional: a table may lack the form (-EOPNOTSUPP). */
static int call_form(const struct cairn_more *m, const struct cairn_op *op, const char *doing, int optional)
{
	struct cairn_side side;
	int ret = cairn_side_open_guarded(&side, m->f, op, m->side->impl, m->side->stream);

	if (ret == -E2BIG || (ret == -EOPNOTSUPP && optional))
		return 0;
	if (ret) {
		cairn_call_failed(m->o, m->side->impl, ret, doing);
		m->o->verdict = m->o->verdict == CAIRN_SKIP ? CAIRN_FAIL : m->o->verdict;
		return ret;
	}
	ret = cairn_side_send(&side, m->f, op, &calm, 0);
	if (!ret)
		ret = cairn_side_call_round(&side, m->f, &calm);
	if (!ret)
		ret = fetch(m, &side, op);
	else if (ret != -EOPNOTSUPP || !optional)
		cairn_call_failed(m->o, m->side->impl, ret, doing);
	if (ret == -EOPNOTSUPP && !optional)
		m->o->verdict = CAIRN_FAIL;
	if (!ret) {
		forgive_all(m);
		cairn_check_bits(m->f, op, m->own, m->later, doing, m->o);
	}
	cairn_side_close(&side, op);
	return ret == -EOPNOTSUPP ? 0 : ret;
}

int cairn_call_forms(const struct cairn_more *m)
{
	int ret = 0, more = m->f->form != NULL;
	char doing[64];

	for (int i = 0; more && !ret; i++) {
		struct cairn_op op;

		snprintf(doing, sizeof(doing), "other form %d, with the same inputs,", i + 1);
		ret = copy_op(&op, m->f, m->op);
		more = !ret && m->f->form(op.args, i);
		if (more)
			ret = call_form(m, &op, doing, 1);
		free_copy(&op);
	}
	return ret;
}

/* Gives op copies of its inputs: lists of integers or, as zeros, values. Returns 0, or -ENOMEM. */
static int copy_inputs(struct cairn_op *op, int values)
{
	for (int i = 0; i < op->num_bufs; i++) {
		struct cairn_buf *b = &op->bufs[i];
		int is_list = !cairn_dtype_is_float(b->dtype), is_value = b->dtype != CAIRN_I32 &&
			      b->dtype != CAIRN_I64 && b->dtype != CAIRN_F32;	/* f32: scales */
		uint8_t *base, *data;

		/* lists may also be written, as ids by tokens that take their place */
		if (b->role == CAIRN_ROLE_OUT || (values && b->role != CAIRN_ROLE_IN) || b->far ||
		    !(values ? is_value : is_list))
			continue;
		base = cairn_image_alloc(b);
		if (!base)
			return -ENOMEM;
		memcpy(base, b->base, b->bytes + 2 * CAIRN_CANARY);
		b->base = base;
		data = base + CAIRN_CANARY;
		if (values)
			memset(data, 0, b->bytes);
		memcpy((char *)op->args + b->field, &data, sizeof(data));
	}
	cairn_set_alias(op, op->args);
	return 0;
}

/* Fails the case if plan_op, which writes only the workspace, has written an output. */
static int check_plan_alone(const struct cairn_more *m, struct cairn_side *maker, const struct cairn_op *op)
{
	int ret = fetch(m, maker, op);

	for (int k = 0; !ret && k < op->num_bufs; k++)
		if (op->bufs[k].role != CAIRN_ROLE_IN && m->later[k] &&
		    memcmp(m->later[k] + CAIRN_CANARY, op->bufs[k].base + CAIRN_CANARY, op->bufs[k].bytes))
			cairn_say_differ(m->o, &op->bufs[k], m->later[k], op->bufs[k].base,
					 "the operation that makes only a plan has written this");
	return ret;
}

/*
 * Makes the plan of the case in the side's workspace by a call on other memory, with other values and, with
 * `scalars`, other scalars where the contract allows it, as the first layer of a model does for the others.
 * That memory is gone when the function returns.
 */
static int make_plan(const struct cairn_more *m, const struct cairn_side *side, int scalars)
{
	struct cairn_side maker;
	struct cairn_op op;
	int ret = copy_op(&op, m->f, m->op);

	if (!ret)
		ret = copy_inputs(&op, 1);
	for (size_t k = 0; !ret && scalars && k < ARRAY_SIZE(m->f->plan_scalars); k++) {
		float *x = (float *)((char *)op.args + m->f->plan_scalars[k]);

		if (m->f->plan_scalars[k])
			*x = *x > 0 ? 2 * *x : 30;
	}
	if (!ret)
		ret = cairn_side_open_guarded(&maker, m->f, &op, m->side->impl, m->side->stream);
	if (ret)
		goto out_free;
	ret = cairn_side_send(&maker, m->f, &op, &calm, 0);
	if (m->f->workspace_op) {
		memcpy((char *)maker.args + m->f->workspace_field, &side->workspace, sizeof(void *));
		memcpy((char *)maker.args + m->f->workspace_field + sizeof(void *), &side->workspace_bytes,
		       sizeof(size_t));
	}
	if (!ret)
		ret = cairn_side_call_plan(&maker, m->f);
	if (!ret)
		ret = m->side->impl->stream_sync(m->side->stream);
	if (!ret && cairn_side_has_plan_op(&maker, m->f))
		ret = check_plan_alone(m, &maker, &op);
	cairn_side_close(&maker, &op);
out_free:
	if (op.bufs)
		free_others(m, &op);
	free_copy(&op);
	return ret;
}

/*
 * Makes a call with other lists and scalars, in memory and with a workspace of its own, as another batch does
 * between the layers of this one. If the contract lets a case have no other lists, there is no such call.
 */
static int call_another_batch(const struct cairn_more *m)
{
	struct cairn_side side;
	struct cairn_op op;
	int ret = copy_op(&op, m->f, m->op);

	if (!ret)
		ret = copy_inputs(&op, 0);
	if (ret || !m->f->relist || !m->f->relist(op.args))
		goto out_free;
	for (size_t k = 0; k < ARRAY_SIZE(m->f->plan_scalars); k++)
		if (m->f->plan_scalars[k])
			*(float *)((char *)op.args + m->f->plan_scalars[k]) *= 2;
	ret = cairn_side_open_guarded(&side, m->f, &op, m->side->impl, m->side->stream);
	if (ret)
		goto out_free;
	ret = cairn_side_send(&side, m->f, &op, &calm, 0);
	if (!ret)
		ret = cairn_side_call_round(&side, m->f, &calm);
	cairn_side_close(&side, &op);
out_free:
	if (op.bufs)
		free_others(m, &op);
	free_copy(&op);
	return ret == -E2BIG ? 0 : ret;
}

/*
 * Makes two calls by one plan, each into fresh outputs, in memory of their own. The workspace keeps the plan,
 * as if the calls were two layers of a model.
 */
static int call_by_plan(const struct cairn_more *m)
{
	const unsigned kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	const struct cairn_round kept = { .canary = calm.canary, .workspace = -1 };
	const int32_t planned = 1;
	struct cairn_side side;
	int ret;

	if (!m->f->planned_field || !m->cheap || !(CAIRN_KIND_BIT(m->op->kind) & kinds) ||
	    cairn_op_is_far(m->op))
		return 0;
	ret = cairn_side_open_guarded(&side, m->f, m->op, m->side->impl, m->side->stream);
	if (ret == -E2BIG)
		return 0;
	if (ret)
		goto failed;
	ret = cairn_side_send(&side, m->f, m->op, &calm, 0);
	if (!ret)
		ret = make_plan(m, &side, 1);
	if (ret == -EOPNOTSUPP)		/* the table has no softcap, say */
		ret = make_plan(m, &side, 0);
	if (!ret && m->op->case_index % 4 == 0)		/* often enough to see it, and it costs a call */
		ret = call_another_batch(m);
	memcpy((char *)side.args + m->f->planned_field, &planned, sizeof(planned));
	for (int i = 0; !ret && i < 2; i++) {
		ret = cairn_side_send(&side, m->f, m->op, &kept, 0);
		if (!ret)
			ret = cairn_side_call_round(&side, m->f, &kept);
	}
	if (!ret) {
		ret = fetch(m, &side, m->op);
		forgive_all(m);
		cairn_check_bits(m->f, m->op, m->own, m->later, "the second call by one plan", m->o);
		cairn_side_close(&side, m->op);
		return ret;
	}
	cairn_side_close(&side, m->op);
failed:
	cairn_call_failed(m->o, m->side->impl, ret, "a call by a plan");
	m->o->verdict = CAIRN_FAIL;
	return ret;
}

static int call_with_all_sms(const struct cairn_more *m)
{
	const int32_t most = INT32_MAX;
	struct cairn_op op;
	int ret;

	/* The call has memory of its own, and a device may have no room for a far case twice. */
	if (!m->f->sms_field || int_at(m->op->args, m->f->sms_field) || cairn_op_is_far(m->op))
		return 0;
	ret = copy_op(&op, m->f, m->op);
	if (!ret) {
		memcpy((char *)op.args + m->f->sms_field, &most, sizeof(most));
		ret = call_form(m, &op, "the call with sms 2147483647", 0);
	}
	free_copy(&op);
	return ret;
}

/* ---- other lists at the same addresses ---- */

/* Calls with other lists at the same addresses. An operation that caches lists by address gets this wrong. */
static int call_relisted(const struct cairn_more *m)
{
	const unsigned kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL) | CAIRN_KIND_BIT(CAIRN_KIND_EXACT);
	struct cairn_op op;
	int ret;

	if (!m->f->relist || !m->cheap || !(CAIRN_KIND_BIT(m->op->kind) & kinds))
		return 0;
	ret = copy_op(&op, m->f, m->op);
	if (!ret)
		ret = copy_inputs(&op, 0);
	if (!m->expected->relisted)
		m->expected->relisted = calloc(1, sizeof(*m->expected->relisted));
	if (ret || !m->expected->relisted || !m->f->relist(op.args))
		goto out_free;
	op.relisted = 1;
	ret = cairn_side_send(m->side, m->f, m->op, &calm, 1);
	if (!ret)
		ret = call(m, m->side, "a call before the lists change");
	if (!ret)
		ret = cairn_side_send(m->side, m->f, &op, &calm, 1);
	if (!ret)
		ret = call(m, m->side, "a call with other lists");
	if (!ret)
		ret = fetch(m, m->side, &op);
	cairn_turn_end();		/* judging calls the reference */
	if (!ret)
		cairn_judge_call(m->f, &op, m->later, m->expected->relisted, m->o);
	if (m->o->verdict == CAIRN_FAIL)
		cairn_say(m->o, "in a call that found other lists at the addresses of the call before it\n");
out_free:
	if (op.bufs)
		free_others(m, &op);
	free_copy(&op);
	return ret;
}

void cairn_further_calls(const struct cairn_more *m)
{
	if (calls_in_place(m) || calls_without(m) || m->o->verdict != CAIRN_PASS)
		return;
	if (call_in_company(m) || call_in_parts(m) || cairn_call_forms(m) || call_with_all_sms(m) ||
	    call_by_plan(m) || m->o->verdict != CAIRN_PASS)
		return;
	call_relisted(m);
}
