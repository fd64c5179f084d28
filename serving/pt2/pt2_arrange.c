// SPDX-License-Identifier: Apache-2.0
/* pt2_arrange - operations of exported programs that move or make elements (pt2_run.h) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/pt2/pt2_eval.h"

static int misfit(const struct pt2_call *c)
{
	return pt2_call_error(c, "its inputs do not fit its result");
}

/* ---- the same elements ---- */

static int run_copy(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_input(c, 0);

	if (!x || x->num != c->out->num)
		return misfit(c);
	memcpy(c->out->data, x->data, (size_t)x->num * sizeof(*x->data));
	return 0;
}

static int run_dropout(const struct pt2_call *c)
{
	double trains = 0;

	CAIRN_TRY(pt2_number(c, "train", &trains));
	return trains != 0 ? pt2_call_error(c, "drops elements at random") : run_copy(c);
}

static int run_expand(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_input(c, 0);
	int64_t step[CAIRN_PT2_RANK];

	if (!x || pt2_spread(x, c->out, step))
		return misfit(c);
	for (int64_t i = 0; i < c->out->num; i++)
		c->out->data[i] = x->data[pt2_at(c->out, step, i)];
	return 0;
}

/* Dimension i of the result is dimension order[i] of x. */
static int permute(const struct pt2_call *c, const struct cairn_pt2_tensor *x, const int64_t *order)
{
	int64_t step[CAIRN_PT2_RANK];
	int seen = 0;

	if (!x || x->rank != c->out->rank)
		return misfit(c);
	for (int32_t i = 0; i < x->rank; i++) {
		int64_t from = order[i] < 0 ? order[i] + x->rank : order[i];

		if (from < 0 || from >= x->rank || seen >> from & 1 || x->size[from] != c->out->size[i])
			return misfit(c);
		seen |= 1 << from;
		step[i] = pt2_product(x, (int32_t)from + 1, x->rank);
	}
	for (int64_t i = 0; i < x->num; i++)
		c->out->data[i] = x->data[pt2_at(c->out, step, i)];
	return 0;
}

static int run_permute(const struct pt2_call *c)
{
	int64_t order[CAIRN_PT2_RANK];
	int32_t num = 0;

	CAIRN_TRY(pt2_ints(c, "dims", order, &num));
	return num == c->out->rank ? permute(c, pt2_input(c, 0), order) : misfit(c);
}

static int run_transpose(const struct pt2_call *c)
{
	int64_t order[CAIRN_PT2_RANK] = { 0, 1, 2, 3, 4, 5, 6, 7 }, a = 0, b = 1;

	if (c->out->rank < 2)
		return misfit(c);
	CAIRN_TRY(pt2_dim(c, "dim0", c->out->rank, &a));
	CAIRN_TRY(pt2_dim(c, "dim1", c->out->rank, &b));
	order[a] = b;
	order[b] = a;
	return permute(c, pt2_input(c, 0), order);
}

/* ---- parts ---- */

/* out = x[..., from + i * step, ...] for i < out's size in the dimension. */
static int take(const struct pt2_call *c, const struct cairn_pt2_tensor *x, struct cairn_pt2_tensor *out,
		int32_t dim, int64_t from, int64_t step, int64_t num)
{
	int64_t inner = pt2_product(x, dim + 1, x->rank), size = x->size[dim];

	if (from < 0 || step < 1 || (num && (num - 1 > (size - 1 - from) / step || from >= size)) ||
	    out->num != pt2_product(x, 0, dim) * num * inner)
		return misfit(c);
	for (int64_t i = 0; i < out->num; i++) {
		int64_t at = i / inner % num;

		out->data[i] = x->data[(i / inner / num * size + from + at * step) * inner + i % inner];
	}
	return 0;
}

/* Results follow one another along the dimension; with unbind, each has one place and no such dimension. */
static int run_parts(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_input(c, 0);
	int unbinds = strstr(c->n->target, "unbind") != NULL;
	int64_t dim = 0, at = 0;

	if (!x || !x->rank)
		return misfit(c);
	CAIRN_TRY(pt2_dim(c, "dim", x->rank, &dim));
	for (int32_t i = 0; i < c->n->num_out; i++) {
		int64_t num = unbinds ? 1 : c->out[i].rank == x->rank ? c->out[i].size[dim] : -1;

		if (num < 0 || num > x->size[dim])
			return misfit(c);
		CAIRN_TRY(take(c, x, &c->out[i], (int32_t)dim, at, 1, num));
		at += num;
	}
	return at == x->size[dim] ? 0 : misfit(c);
}

static int run_select(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_input(c, 0);
	int64_t dim = 0, index = 0;

	if (!x || !x->rank)
		return misfit(c);
	CAIRN_TRY(pt2_dim(c, "dim", x->rank, &dim));
	CAIRN_TRY(pt2_int(c, "index", &index));
	return take(c, x, c->out, (int32_t)dim, index < 0 ? index + x->size[dim] : index, 1, 1);
}

static int run_slice(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_input(c, 0);
	int64_t dim = 0, start = 0, step = 1;

	if (!x || !x->rank || c->out->rank != x->rank)
		return misfit(c);
	CAIRN_TRY(pt2_dim(c, "dim", x->rank, &dim));
	CAIRN_TRY(pt2_int(c, "start", &start));
	CAIRN_TRY(pt2_int(c, "step", &step));
	if (start < 0)
		start = start + x->size[dim] < 0 ? 0 : start + x->size[dim];
	if (step > x->size[dim])
		step = x->size[dim] > 0 ? x->size[dim] : 1;
	return take(c, x, c->out, (int32_t)dim, start, step, c->out->size[dim]);
}

static int run_cat(const struct pt2_call *c)
{
	int64_t dim = 0, at = 0, inner;

	if (!c->out->rank)
		return misfit(c);
	CAIRN_TRY(pt2_dim(c, "dim", c->out->rank, &dim));
	inner = pt2_product(c->out, (int32_t)dim + 1, c->out->rank);
	for (int32_t k = 0; k < c->n->num_in; k++) {
		const struct cairn_pt2_tensor *x = pt2_input(c, k);

		if (x->rank != c->out->rank)
			return misfit(c);
		for (int32_t i = 0; i < x->rank; i++)
			if (i == dim ? x->size[i] > c->out->size[i] - at : x->size[i] != c->out->size[i])
				return misfit(c);
		for (int64_t i = 0; i < x->num; i++) {
			int64_t row = i / inner / x->size[dim], place = at + i / inner % x->size[dim];

			c->out->data[(row * c->out->size[dim] + place) * inner + i % inner] = x->data[i];
		}
		at += x->size[dim];
	}
	return at == c->out->size[dim] ? 0 : misfit(c);
}

/* x[indices...], the indices spread to one shape, followed by the dimensions that have none. */
static int run_index(const struct pt2_call *c)
{
	const struct cairn_pt2_tensor *x = pt2_input(c, 0);
	int64_t step[CAIRN_PT2_RANK][CAIRN_PT2_RANK], inner;
	int32_t num = c->n->num_in - 1;
	struct cairn_pt2_tensor places = *c->out;
	const json_t *list = json_object_get(cairn_pt2_arg(c->n, "indices"), "as_optional_tensors");

	if (!x || num < 1 || num > x->rank || (list && json_array_size(list) != (size_t)num))
		return pt2_call_error(c, "is only known for indices of the first dimensions");
	places.rank -= x->rank - num;
	if (places.rank < 0)
		return misfit(c);
	inner = pt2_product(x, num, x->rank);
	if (pt2_product(&places, 0, places.rank) * inner != c->out->num)
		return misfit(c);
	for (int32_t k = 0; k < num; k++)
		if (pt2_spread(pt2_input(c, k + 1), &places, step[k]))
			return misfit(c);
	for (int64_t i = 0; i < c->out->num; i++) {
		int64_t at = 0;

		for (int32_t k = 0; k < num; k++) {
			double index = pt2_input(c, k + 1)->data[pt2_at(&places, step[k], i / inner)];

			index += index < 0 ? (double)x->size[k] : 0;
			if (!(index >= 0 && index < (double)x->size[k]))
				return pt2_call_error(c, "has an index out of range");
			at = at * x->size[k] + (int64_t)index;
		}
		c->out->data[i] = x->data[at * inner + i % inner];
	}
	return 0;
}

/* ---- new elements ---- */

static int run_arange(const struct pt2_call *c)
{
	double start = 0, step = 1;

	CAIRN_TRY(pt2_number(c, "start", &start));
	CAIRN_TRY(pt2_number(c, "step", &step));
	for (int64_t i = 0; i < c->out->num; i++)
		c->out->data[i] = start + (double)i * step;
	return 0;
}

static int fill(const struct pt2_call *c, double value)
{
	for (int64_t i = 0; i < c->out->num; i++)
		c->out->data[i] = value;
	return 0;
}

static int run_full(const struct pt2_call *c)
{
	double value = NAN;

	CAIRN_TRY(pt2_number(c, "fill_value", &value));
	return fill(c, value);
}

static int run_ones(const struct pt2_call *c)
{
	return fill(c, 1);
}

static int run_zeros(const struct pt2_call *c)
{
	return fill(c, 0);
}

static const struct { const char *target; pt2_fn fn; } functions[] = {
	{ "aten._unsafe_view.default", run_copy }, { "aten.alias.default", run_copy },
	{ "aten.arange.default", run_arange }, { "aten.arange.start", run_arange },
	{ "aten.arange.start_step", run_arange }, { "aten.cat.default", run_cat },
	{ "aten.chunk.default", run_parts }, { "aten.clone.default", run_copy },
	{ "aten.contiguous.default", run_copy }, { "aten.detach.default", run_copy },
	{ "aten.dropout.default", run_dropout }, { "aten.expand.default", run_expand },
	{ "aten.full.default", run_full }, { "aten.index.Tensor", run_index },
	{ "aten.new_ones.default", run_ones }, { "aten.ones.default", run_ones },
	{ "aten.permute.default", run_permute }, { "aten.reshape.default", run_copy },
	{ "aten.select.int", run_select }, { "aten.slice.Tensor", run_slice },
	{ "aten.split.Tensor", run_parts }, { "aten.split_with_sizes.default", run_parts },
	{ "aten.squeeze.dim", run_copy }, { "aten.t.default", run_transpose },
	{ "aten.transpose.int", run_transpose }, { "aten.unbind.int", run_parts },
	{ "aten.unsqueeze.default", run_copy }, { "aten.view.default", run_copy },
	{ "aten.zeros.default", run_zeros },
};

pt2_fn pt2_eval_arrange(const char *target)
{
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (!strcmp(functions[i].target, target))
			return functions[i].fn;
	return NULL;
}
