// SPDX-License-Identifier: Apache-2.0
/* pt2_run - computes an exported program, whole or in slices (pt2_run.h) */
#include "serving/pt2/pt2_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/pt2/pt2_eval.h"

#define MAX_ELEMENTS	((int64_t)1 << 32)	/* of one tensor */

/* ---- what operations ask of a node ---- */

int pt2_call_error(const struct pt2_call *c, const char *what)
{
	return cairn_error(EINVAL, "%s: node %s (%s): %s", c->p->path, CAIRN_QUOTED(c->n->name),
			   CAIRN_QUOTED(c->n->target), what);
}

const struct cairn_pt2_tensor *pt2_tensor(const struct pt2_call *c, const char *name)
{
	const json_t *arg = cairn_pt2_arg(c->n, name), *tensor = json_object_get(arg, "as_tensor");
	const char *value;
	int32_t v;

	if (!tensor)
		tensor = json_object_get(json_object_get(arg, "as_optional_tensor"), "as_tensor");
	value = json_string_value(json_object_get(tensor, "name"));
	v = value ? cairn_pt2_find(c->p, value) : -1;
	return v < 0 ? NULL : &c->values[v];
}

const struct cairn_pt2_tensor *pt2_input(const struct pt2_call *c, int32_t i)
{
	return i < c->n->num_in ? &c->values[c->p->ids[c->n->first_in + i]] : NULL;
}

static int sym_value(const struct pt2_call *c, const json_t *sym, int64_t *value)
{
	const char *name = json_string_value(json_object_get(sym, "as_name"));

	if (name)
		return cairn_pt2_sym(c->p, name, c->symbols, value);
	if (!json_is_integer(json_object_get(sym, "as_int")))
		return pt2_call_error(c, "has a symbolic size without a value");
	*value = json_integer_value(json_object_get(sym, "as_int"));
	return 0;
}

int pt2_int(const struct pt2_call *c, const char *name, int64_t *value)
{
	const json_t *arg = cairn_pt2_arg(c->n, name), *sym = json_object_get(arg, "as_sym_int");

	if (!arg || json_object_get(arg, "as_none"))
		return 0;
	if (sym)
		return sym_value(c, sym, value);
	if (!json_is_integer(json_object_get(arg, "as_int")))
		return pt2_call_error(c, "has an argument that is no integer");
	*value = json_integer_value(json_object_get(arg, "as_int"));
	return 0;
}

/* Infinities are written as text. */
int pt2_number(const struct pt2_call *c, const char *name, double *value)
{
	const json_t *arg = cairn_pt2_arg(c->n, name), *number = json_object_get(arg, "as_float");
	const json_t *truth = json_object_get(arg, "as_bool");
	const char *text = json_string_value(number);
	int64_t integer;

	if (json_is_number(number)) {
		*value = json_number_value(number);
	} else if (text) {
		*value = !strcmp(text, "Infinity") ? INFINITY : !strcmp(text, "-Infinity") ? -INFINITY : NAN;
	} else if (truth) {
		*value = json_is_true(truth);
	} else if (arg && !json_object_get(arg, "as_none")) {
		CAIRN_TRY(pt2_int(c, name, &integer));
		*value = (double)integer;
	}
	return 0;
}

int pt2_ints(const struct pt2_call *c, const char *name, int64_t *values, int32_t *num)
{
	const json_t *arg = cairn_pt2_arg(c->n, name), *list = json_object_get(arg, "as_ints"), *item;
	int symbolic = !list;
	size_t i;

	if (!list)
		list = json_object_get(arg, "as_sym_ints");
	if (json_array_size(list) > CAIRN_PT2_RANK)
		return pt2_call_error(c, "has a list of more integers than dimensions");
	json_array_foreach(list, i, item) {
		if (symbolic)
			CAIRN_TRY(sym_value(c, item, &values[i]));
		else
			values[i] = json_integer_value(item);
	}
	*num = (int32_t)json_array_size(list);
	return 0;
}

int pt2_dim(const struct pt2_call *c, const char *name, int32_t rank, int64_t *dim)
{
	CAIRN_TRY(pt2_int(c, name, dim));
	if (*dim < 0)
		*dim += rank;
	return *dim < 0 || *dim >= rank ? pt2_call_error(c, "has a dimension that its input has not") : 0;
}

int64_t pt2_product(const struct cairn_pt2_tensor *t, int32_t from, int32_t to)
{
	int64_t product = 1;

	for (int32_t i = from; i < to; i++)
		product *= t->size[i];
	return product;
}

int pt2_spread(const struct cairn_pt2_tensor *t, const struct cairn_pt2_tensor *shape,
	       int64_t stride[CAIRN_PT2_RANK])
{
	const int32_t extra = shape->rank - t->rank;
	int64_t step = 1;

	if (extra < 0)
		return -1;
	memset(stride, 0, CAIRN_PT2_RANK * sizeof(*stride));
	for (int32_t i = t->rank - 1; i >= 0; i--) {
		if (t->size[i] != 1 && t->size[i] != shape->size[i + extra])
			return -1;
		stride[i + extra] = t->size[i] == 1 ? 0 : step;
		step *= t->size[i];
	}
	return 0;
}

int64_t pt2_at(const struct cairn_pt2_tensor *shape, const int64_t *stride, int64_t i)
{
	int64_t at = 0;

	for (int32_t d = shape->rank - 1; d >= 0; d--) {
		at += i % shape->size[d] * stride[d];
		i /= shape->size[d];
	}
	return at;
}

/* ---- values ---- */

/* The values of a slice or of an attention worker. */
struct place {
	const struct cairn_pt2 *p;
	const int64_t *symbols;
	struct cairn_pt2_tensor *values;	/* [num_values] */
};

static void forget(struct cairn_pt2_tensor *t)
{
	free(t->data);
	t->data = NULL;
}

static int make(const struct place *at, int32_t value, struct cairn_pt2_tensor *t)
{
	const struct cairn_pt2_value *v = &at->p->values[value];

	*t = (struct cairn_pt2_tensor){ .rank = v->rank };
	CAIRN_TRY(cairn_pt2_shape(at->p, value, at->symbols, t->size, &t->num));
	if (t->num > MAX_ELEMENTS)
		return cairn_error(EINVAL, "%s: value %s has %lld elements", at->p->path,
				   CAIRN_QUOTED(v->name), (long long)t->num);
	t->data = calloc((size_t)t->num + 1, sizeof(*t->data));
	return t->data ? 0 : cairn_error(ENOMEM, "%s: no memory for %s", at->p->path, CAIRN_QUOTED(v->name));
}

static int copy(const struct place *to, const struct place *from, int32_t value)
{
	struct cairn_pt2_tensor *t = &to->values[value];

	if (!from->values[value].data)
		return cairn_error(EINVAL, "%s: value %s does not exist where it is sent", to->p->path,
				   CAIRN_QUOTED(to->p->values[value].name));
	forget(t);
	CAIRN_TRY(make(to, value, t));
	memcpy(t->data, from->values[value].data, (size_t)t->num * sizeof(*t->data));
	return 0;
}

static double element(enum cairn_pt2_dtype dtype, const void *data, int64_t i)
{
	const uint8_t *at = (const uint8_t *)data + i * cairn_pt2_dtype_bytes(dtype);
	union { int8_t i8; int16_t i16; int32_t i32; int64_t i64; float f32; double f64; uint64_t bits; } x;

	memcpy(&x, at, (size_t)cairn_pt2_dtype_bytes(dtype));
	switch (dtype) {
	case CAIRN_PT2_I8:
		return x.i8;
	case CAIRN_PT2_I16:
		return x.i16;
	case CAIRN_PT2_I32:
		return x.i32;
	case CAIRN_PT2_I64:
		return (double)x.i64;
	case CAIRN_PT2_F32:
		return (double)x.f32;
	case CAIRN_PT2_F64:
		return x.f64;
	case CAIRN_PT2_F16:
		return cairn_load(&x, CAIRN_F16, 0);
	case CAIRN_PT2_BF16:
		return cairn_load(&x, CAIRN_BF16, 0);
	default:	/* U8, BOOL */
		return *at;
	}
}

/* Makes what exists everywhere: inputs, parameters and constants. */
static int give(const struct place *at, const struct cairn_pt2_tensor *inputs)
{
	const struct cairn_pt2 *p = at->p;

	for (int32_t v = 0; v < p->num_values; v++) {
		struct cairn_pt2_tensor *t = &at->values[v];
		const void *data;
		size_t bytes;

		if (p->values[v].kind != CAIRN_PT2_WEIGHT && p->values[v].kind != CAIRN_PT2_CONSTANT)
			continue;
		CAIRN_TRY(make(at, v, t));
		CAIRN_TRY(cairn_pt2_weight(p, v, &data, &bytes));
		for (int64_t i = 0; i < t->num; i++)
			t->data[i] = element(p->values[v].dtype, data, i);
	}
	for (int32_t i = 0; i < p->num_inputs; i++) {
		struct cairn_pt2_tensor *t = &at->values[p->inputs[i]];

		CAIRN_TRY(make(at, p->inputs[i], t));
		if (t->num != inputs[i].num)
			return cairn_error(EINVAL, "%s: input %s has %lld elements, not %lld", p->path,
					   CAIRN_QUOTED(p->values[p->inputs[i]].name),
					   (long long)inputs[i].num, (long long)t->num);
		memcpy(t->data, inputs[i].data, (size_t)t->num * sizeof(*t->data));
	}
	return 0;
}

int cairn_pt2_fit(const struct cairn_pt2 *p, const struct cairn_pt2_tensor *inputs, int64_t *symbols)
{
	cairn_pt2_symbols(p, symbols);
	for (int32_t i = 0; i < p->num_inputs; i++) {
		const struct cairn_pt2_value *v = &p->values[p->inputs[i]];
		int64_t size[CAIRN_PT2_RANK], num;

		for (int32_t d = 0; d < v->rank && v->rank == inputs[i].rank; d++) {
			int32_t symbol = cairn_pt2_expr_symbol(&p->exprs, v->size[d]);

			if (symbol >= 0)
				symbols[symbol] = inputs[i].size[d];
		}
		CAIRN_TRY(cairn_pt2_shape(p, p->inputs[i], symbols, size, &num));
		for (int32_t d = 0; d < v->rank; d++)
			if (v->rank != inputs[i].rank || size[d] != inputs[i].size[d])
				return cairn_error(EINVAL, "%s: input %s has other sizes", p->path,
						   CAIRN_QUOTED(v->name));
	}
	for (int32_t i = 0; i < p->exprs.num_symbols; i++)
		if (symbols[i] < p->exprs.symbols[i].least || symbols[i] > p->exprs.symbols[i].most)
			return cairn_error(EINVAL, "%s: %s is %lld, not %lld to %lld", p->path,
					   p->exprs.symbols[i].name, (long long)symbols[i],
					   (long long)p->exprs.symbols[i].least,
					   (long long)p->exprs.symbols[i].most);
	return 0;
}

/* ---- running ---- */

static int run_node(const struct place *at, int32_t node)
{
	const struct cairn_pt2_node *n = &at->p->nodes[node];
	struct pt2_call c = { .p = at->p, .n = n, .symbols = at->symbols, .values = at->values };
	pt2_fn fn = pt2_eval_compute(n->op->target);
	int ret = 0;

	if (!fn)
		fn = pt2_eval_arrange(n->op->target);
	if (!fn)
		return pt2_call_error(&c, "is not implemented");
	for (int32_t i = 0; i < n->num_in; i++)
		if (!at->values[at->p->ids[n->first_in + i]].data)
			return pt2_call_error(&c, "reads a value that does not exist here");
	c.out = calloc((size_t)n->num_out, sizeof(*c.out));
	if (!c.out)
		return cairn_error(ENOMEM, "%s: no memory", at->p->path);
	for (int32_t i = 0; i < n->num_out && !ret; i++)
		ret = make(at, at->p->ids[n->first_out + i], &c.out[i]);
	c.dtype = at->p->values[at->p->ids[n->first_out]].dtype;
	if (!ret)
		ret = fn(&c);
	for (int32_t i = 0; i < n->num_out; i++) {
		struct cairn_pt2_tensor *t = &at->values[at->p->ids[n->first_out + i]];

		if (ret) {
			forget(&c.out[i]);
			continue;
		}
		forget(t);
		*t = c.out[i];
	}
	free(c.out);
	return ret;
}

/* Keeps the outputs that exist now, before a cut forgets them. */
static int keep_outputs(struct cairn_pt2_results *r, const struct place *at)
{
	for (int32_t i = 0; i < r->num; i++) {
		const struct cairn_pt2_tensor *t = &at->values[at->p->outputs[i]];

		if (!t->data || r->outputs[i].data)
			continue;
		r->outputs[i] = *t;
		r->outputs[i].data = malloc(((size_t)t->num + 1) * sizeof(*t->data));
		if (!r->outputs[i].data)
			return cairn_error(ENOMEM, "%s: no memory", at->p->path);
		memcpy(r->outputs[i].data, t->data, (size_t)t->num * sizeof(*t->data));
	}
	return 0;
}

/* Forgets what is computed, except for the saved values; slice NULL: all of it. */
static void cut(const struct place *at, const struct cairn_pt2_slices *s, const struct cairn_slice *slice)
{
	int32_t next = 0;

	for (int32_t v = 0; v < at->p->num_values; v++) {
		int saved = slice && next < slice->num_saves && s->saves[slice->first_save + next] == v;

		next += saved;
		if (!saved && at->p->values[v].kind == CAIRN_PT2_RESULT)
			forget(&at->values[v]);
	}
}

/* The worker of a seam begins with what exists everywhere and with its messages. */
static int attend(const struct place *far, const struct cairn_pt2_slices *s,
		  const struct cairn_pt2_seam *seam)
{
	for (int32_t i = 0; i < seam->num_ops; i++)
		CAIRN_TRY(run_node(far, s->far[seam->first_op + i]));
	return run_node(far, seam->attn);
}

static int run_step(const struct place *at, const struct place *far, const struct cairn_pt2_slices *s,
		    int32_t index, const struct cairn_slice_step *step)
{
	const struct cairn_pt2_seam *seam = &s->seams[index];
	const struct cairn_pt2_node *n = &at->p->nodes[step->op];

	switch (step->kind) {
	case CAIRN_STEP_OP:
		return run_node(at, step->op);
	case CAIRN_STEP_SEND_Q:
		cut(far, s, NULL);
		return copy(far, at, seam->q);
	case CAIRN_STEP_SEND_KV:
		CAIRN_TRY(copy(far, at, seam->k));
		CAIRN_TRY(copy(far, at, seam->v));
		return attend(far, s, seam);
	case CAIRN_STEP_MERGE:
		for (int32_t i = 0; i < n->num_out; i++)
			CAIRN_TRY(copy(at, far, at->p->ids[n->first_out + i]));
		return 0;
	}
	return 0;
}

static int run_slices(struct cairn_pt2_results *r, const struct place *at, const struct place *far,
		      const struct cairn_pt2_slices *s)
{
	for (int32_t i = 0; i < s->num_slices; i++) {
		for (int32_t k = 0; k < s->slices[i].num_steps; k++)
			CAIRN_TRY(run_step(at, far, s, i, &s->steps[s->slices[i].first_step + k]));
		CAIRN_TRY(keep_outputs(r, at));
		cut(at, s, &s->slices[i]);
	}
	return 0;
}

static int run_whole(struct cairn_pt2_results *r, const struct place *at)
{
	for (int32_t n = 0; n < at->p->num_nodes; n++)
		CAIRN_TRY(run_node(at, n));
	return keep_outputs(r, at);
}

static void clear(const struct place *at)
{
	for (int32_t v = 0; at->values && v < at->p->num_values; v++)
		forget(&at->values[v]);
	free(at->values);
}

int cairn_pt2_run(struct cairn_pt2_results *r, const struct cairn_pt2 *p,
		  const struct cairn_pt2_slices *slices, const struct cairn_pt2_tensor *inputs,
		  const int64_t *symbols)
{
	struct place at = { p, symbols, calloc((size_t)p->num_values + 1, sizeof(*at.values)) };
	struct place far = { p, symbols, calloc((size_t)p->num_values + 1, sizeof(*far.values)) };
	int ret;

	*r = (struct cairn_pt2_results){
		calloc((size_t)p->num_outputs + 1, sizeof(*r->outputs)), p->num_outputs,
	};
	ret = at.values && far.values && r->outputs ? give(&at, inputs) :
	      cairn_error(ENOMEM, "%s: no memory", p->path);
	if (!ret && slices)
		ret = give(&far, inputs);
	if (!ret)
		ret = slices ? run_slices(r, &at, &far, slices) : run_whole(r, &at);
	clear(&at);
	clear(&far);
	for (int32_t i = 0; i < p->num_outputs && !ret; i++)
		if (!r->outputs[i].data)
			ret = cairn_error(EINVAL, "%s: output %s is not computed", p->path,
					  CAIRN_QUOTED(p->values[p->outputs[i]].name));
	if (ret)
		cairn_pt2_results_free(r);
	return ret;
}

void cairn_pt2_results_free(struct cairn_pt2_results *r)
{
	for (int32_t i = 0; r->outputs && i < r->num; i++)
		free(r->outputs[i].data);
	free(r->outputs);
	*r = (struct cairn_pt2_results){ 0 };
}
