// SPDX-License-Identifier: Apache-2.0
/*
 * chat_template_eval - evaluates the tree of a template to text
 *
 * Names are looked up through scopes: the template has one, and so has each iteration of a for and each call
 * of a macro. As in Jinja, `if` opens no scope, and `set` assigns in the innermost one, so that a loop can
 * pass values out only through a namespace.
 */
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/template/chat_template_impl.h"
#include "serving/base/json.h"

enum flow { GO_ON, BROKEN, CONTINUED };

static int eval(struct render *r, const struct node *n, struct val *out);
static int run(struct render *r, const struct node *list, enum flow *flow);

/* Finds a variable of one scope. Adds the number of variables it looked at to *num. */
static struct var *find_var(const struct scope *s, const char *name, size_t *num)
{
	struct var *v = s->vars;

	for (; v && v->name != name; v = v->next)
		++*num;
	return v;
}

static int set_var(struct render *r, int line, struct scope *s, const char *name, const struct val *v)
{
	size_t num = 0;
	struct var *var = find_var(s, name, &num);

	CAIRN_TRY(cairn_tpl_charge(r, line, num));
	if (!var) {
		var = cairn_tpl_alloc(&r->arena, sizeof(*var));
		if (!var)
			return -EINVAL;
		var->name = name;
		var->next = s->vars;
		s->vars = var;
	}
	var->value = *v;
	return 0;
}

static int get_var(struct render *r, int line, const char *name, struct val *out)
{
	const struct var *var = NULL;
	size_t num = 0;
	int global;

	for (const struct scope *s = r->scope; s && !var; s = s->up)
		var = find_var(s, name, &num);
	CAIRN_TRY(cairn_tpl_charge(r, line, num));
	if (var) {
		*out = var->value;
		return 0;
	}
	global = cairn_tpl_global(name);
	*out = global < 0 ? (struct val) { .kind = V_UNDEFINED, .str = cairn_tpl_str(name).str }
			  : (struct val) { .kind = V_GLOBAL, .i = global };
	return 0;
}

static struct scope *push(struct render *r, struct scope *up)
{
	struct scope *s = cairn_tpl_alloc(&r->arena, sizeof(*s));

	if (s)
		s->up = up;
	return s;
}

static int eval_args(struct render *r, const struct node *n, struct args *args)
{
	args->num = 0;
	for (int named = 0; named < 2; named++)
		for (const struct node *a = named ? n->list2 : n->list; a; a = a->next) {
			args->names[args->num] = named ? a->name : NULL;
			CAIRN_TRY(eval(r, named ? a->a : a, &args->v[args->num++]));
		}
	return 0;
}

static int eval_list(struct render *r, const struct node *n, struct val *out)
{
	struct list *l = cairn_tpl_new_list(r, 0);
	struct val v;

	if (!l)
		return -EINVAL;
	for (const struct node *e = n->list; e; e = e->next) {
		CAIRN_TRY(eval(r, e, &v));
		CAIRN_TRY(cairn_tpl_list_add(r, l, &v));
	}
	*out = (struct val) { .kind = n->kind == N_LIST ? V_LIST : V_TUPLE, .list = l };
	return 0;
}

static int eval_dict(struct render *r, const struct node *n, struct val *out)
{
	struct dict *d = cairn_tpl_alloc(&r->arena, sizeof(*d));
	struct val key, v;

	if (!d)
		return -EINVAL;
	for (const struct node *e = n->list; e; e = e->next->next) {
		CAIRN_TRY(eval(r, e, &key));
		CAIRN_TRY(eval(r, e->next, &v));
		CAIRN_TRY(cairn_tpl_need_key(r, n->line, &key));
		CAIRN_TRY(cairn_tpl_dict_set(r, d, &key, &v));
	}
	*out = (struct val) { .kind = V_DICT, .dict = d };
	return 0;
}

static int eval_compare(struct render *r, const struct node *n, struct val *out)
{
	struct val left, right;
	bool result = true;

	CAIRN_TRY(eval(r, n->a, &left));
	for (const struct node *e = n->list; e && result; e = e->next) {
		CAIRN_TRY(eval(r, e->a, &right));
		CAIRN_TRY(cairn_tpl_compare(r, n->line, e->op, &left, &right, &result));
		left = right;
	}
	*out = (struct val) { .kind = V_BOOL, .i = result };
	return 0;
}

static int eval_concat(struct render *r, const struct node *n, struct val *out)
{
	struct out o = { 0 };
	struct val a, b;

	CAIRN_TRY(eval(r, n->a, &a));
	CAIRN_TRY(eval(r, n->b, &b));
	CAIRN_TRY(cairn_tpl_print(r, n->line, &a, &o));
	CAIRN_TRY(cairn_tpl_print(r, n->line, &b, &o));
	*out = (struct val) { .kind = V_STR, .str = cairn_tpl_taken(&o) };
	return 0;
}

static int eval_slice(struct render *r, const struct node *n, struct val *out)
{
	const struct node *const parts[] = { n->a, n->b, n->c };
	struct val v, bounds[3];

	CAIRN_TRY(eval(r, n->list, &v));
	for (int i = 0; i < 3; i++) {
		bounds[i] = (struct val) { .kind = V_ABSENT };
		if (parts[i])
			CAIRN_TRY(eval(r, parts[i], &bounds[i]));
	}
	return cairn_tpl_slice(r, n->line, &v, &bounds[0], &bounds[1], &bounds[2], out);
}

static int eval_sign(struct render *r, const struct node *n, struct val *out)
{
	const struct val zero = { .kind = V_INT };
	struct val v;

	CAIRN_TRY(eval(r, n->a, &v));
	if (v.kind == V_FLOAT) {
		*out = (struct val) { .kind = V_FLOAT, .f = n->kind == N_NEG ? -v.f : v.f };
		return 0;
	}
	return cairn_tpl_binary(r, n->line, n->kind == N_NEG ? OP_SUB : OP_ADD, &zero, &v, out);
}

static int eval_call(struct render *r, const struct node *n, struct val *out)
{
	struct val callee;
	struct args args;

	CAIRN_TRY(eval(r, n->a, &callee));
	CAIRN_TRY(eval_args(r, n, &args));
	return cairn_tpl_call(r, n->line, &callee, &args, out);
}

static int eval_filter(struct render *r, const struct node *n, struct val *out)
{
	struct args args;
	bool result;
	struct val v;

	CAIRN_TRY(eval(r, n->a, &v));
	CAIRN_TRY(eval_args(r, n, &args));
	if (n->kind == N_FILTER)
		return cairn_tpl_filter(r, n->line, n->name, &v, &args, out);
	CAIRN_TRY(cairn_tpl_test(r, n->line, n->name, &v, &args, &result));
	*out = (struct val) { .kind = V_BOOL, .i = result };
	return 0;
}

static int eval_pair(struct render *r, const struct node *n, struct val *out)
{
	struct val a, b;

	CAIRN_TRY(eval(r, n->a, &a));
	CAIRN_TRY(eval(r, n->b, &b));
	if (n->kind == N_ITEM)
		return cairn_tpl_item(r, n->line, &a, &b, out);
	return cairn_tpl_binary(r, n->line, n->op, &a, &b, out);
}

static int eval_node(struct render *r, const struct node *n, struct val *out)
{
	struct val v;

	switch (n->kind) {
	case N_CONST:
		*out = n->value;
		return 0;
	case N_NAME:
		return get_var(r, n->line, n->name, out);
	case N_LIST:
	case N_TUPLE:
		return eval_list(r, n, out);
	case N_DICT:
		return eval_dict(r, n, out);
	case N_COND:
		CAIRN_TRY(eval(r, n->a, &v));
		if (cairn_tpl_true(&v))
			return eval(r, n->b, out);
		if (n->c)
			return eval(r, n->c, out);
		*out = (struct val) { .kind = V_UNDEFINED, .str = cairn_tpl_str("an if without else").str };
		return 0;
	case N_AND:
	case N_OR:
		CAIRN_TRY(eval(r, n->a, out));
		return cairn_tpl_true(out) == (n->kind == N_AND) ? eval(r, n->b, out) : 0;
	case N_NOT:
		CAIRN_TRY(eval(r, n->a, &v));
		*out = (struct val) { .kind = V_BOOL, .i = !cairn_tpl_true(&v) };
		return 0;
	case N_NEG:
	case N_POS:
		return eval_sign(r, n, out);
	case N_BINARY:
	case N_ITEM:
		return eval_pair(r, n, out);
	case N_CONCAT:
		return eval_concat(r, n, out);
	case N_COMPARE:
		return eval_compare(r, n, out);
	case N_ATTR:
		CAIRN_TRY(eval(r, n->a, &v));
		return cairn_tpl_attr(r, n->line, &v, cairn_tpl_str(n->name).str, out);
	case N_SLICE:
		return eval_slice(r, n, out);
	case N_CALL:
		return eval_call(r, n, out);
	default:
		return eval_filter(r, n, out);
	}
}

static int eval(struct render *r, const struct node *n, struct val *out)
{
	int ret;

	CAIRN_TRY(cairn_tpl_charge(r, n->line, 0));
	if (++r->depth > TPL_MAX_DEPTH)
		return cairn_tpl_error(r, EINVAL, n->line, "nested deeper than %d", TPL_MAX_DEPTH);
	ret = eval_node(r, n, out);
	r->depth--;
	return ret;
}

/* Assigns to one name or namespace member, or element by element to several names. */
static int assign(struct render *r, const struct node *target, const struct val *v)
{
	const struct list *l;
	const struct node *n;
	size_t i = 0;
	struct val ns;

	if (target->kind == N_NAME)
		return set_var(r, target->line, r->scope, target->name, v);
	if (target->kind == N_ATTR) {
		struct val key = cairn_tpl_str(target->name);

		CAIRN_TRY(get_var(r, target->line, target->a->name, &ns));
		if (ns.kind != V_NAMESPACE)
			return cairn_tpl_error(r, EINVAL, target->line, "%.40s is not a namespace",
					       target->a->name);
		return cairn_tpl_dict_set(r, ns.dict, &key, v);
	}
	CAIRN_TRY(cairn_tpl_elements(r, target->line, v, &l));
	for (n = target->list; n && i < l->num; n = n->next)
		CAIRN_TRY(set_var(r, target->line, r->scope, n->name, &l->v[i++]));
	if (n || i != l->num)
		return cairn_tpl_error(r, EINVAL, target->line,
				       "cannot unpack %zu elements into a different number of names", l->num);
	return 0;
}

/* Returns the elements that satisfy the condition of a `for ... if`. */
static int filtered(struct render *r, const struct node *n, const struct list *all, const struct list **out)
{
	struct scope *outer = r->scope;
	struct list *l = cairn_tpl_new_list(r, 0);
	struct val keep;

	for (size_t i = 0; l && i < all->num; i++) {
		r->scope = push(r, outer);
		if (!r->scope)
			return -EINVAL;
		CAIRN_TRY(assign(r, n->a, &all->v[i]));
		CAIRN_TRY(eval(r, n->c, &keep));
		if (cairn_tpl_true(&keep))
			CAIRN_TRY(cairn_tpl_list_add(r, l, &all->v[i]));
	}
	r->scope = outer;
	*out = l;
	return l ? 0 : -EINVAL;
}

static int run_scope(struct render *r, const struct node *list, enum flow *flow)
{
	struct scope *outer = r->scope;

	r->scope = push(r, outer);
	if (!r->scope)
		return -EINVAL;
	CAIRN_TRY(run(r, list, flow));
	r->scope = outer;
	return 0;
}

/* *flow is that of the loop around this one, to which break and continue in the else belong. */
static int run_for(struct render *r, const struct node *n, enum flow *flow)
{
	struct loop *loop = cairn_tpl_alloc(&r->arena, sizeof(*loop));
	struct scope *outer = r->scope;
	enum flow inside = GO_ON;
	bool completed = false;
	const struct list *l;
	struct val v;

	CAIRN_TRY(eval(r, n->b, &v));
	CAIRN_TRY(cairn_tpl_elements(r, n->line, &v, &l));
	if (n->c)
		CAIRN_TRY(filtered(r, n, l, &l));
	if (!loop)
		return -EINVAL;
	*loop = (struct loop) { l, 0 };
	v = (struct val) { .kind = V_LOOP, .loop = loop };
	for (; loop->index < l->num && inside != BROKEN; loop->index++) {
		CAIRN_TRY(cairn_tpl_charge(r, n->line, 0));
		r->scope = push(r, outer);
		if (!r->scope)
			return -EINVAL;
		CAIRN_TRY(assign(r, n->a, &l->v[loop->index]));
		if (r->loop_name)
			CAIRN_TRY(set_var(r, n->line, r->scope, r->loop_name, &v));
		inside = GO_ON;
		CAIRN_TRY(run(r, n->list, &inside));
		completed |= inside == GO_ON;
	}
	r->scope = outer;
	/* as in Jinja, the else also runs if break or continue ended each iteration */
	return completed || !n->list2 ? 0 : run_scope(r, n->list2, flow);
}

static int run_if(struct render *r, const struct node *n, enum flow *flow)
{
	struct val v;

	for (const struct node *b = n->list; b; b = b->next) {
		if (b->a)
			CAIRN_TRY(eval(r, b->a, &v));
		if (!b->a || cairn_tpl_true(&v))
			return run(r, b->list, flow);
	}
	return 0;
}

/* Runs statements and returns their output as a string value. */
static int capture(struct render *r, const struct node *list, struct scope *scope, enum flow *flow,
		   struct val *out)
{
	struct scope *outer = r->scope;
	struct out *before = r->out, o = { 0 };

	if (!scope)
		return -EINVAL;
	r->scope = scope;
	r->out = &o;
	CAIRN_TRY(run(r, list, flow));
	r->scope = outer;
	r->out = before;
	*out = (struct val) { .kind = V_STR, .str = cairn_tpl_taken(&o) };
	return 0;
}

int cairn_tpl_call_macro(struct render *r, int line, const struct macro *m, const struct args *args,
			 struct val *out)
{
	struct scope *scope = push(r, m->scope), *outer = r->scope;
	const char *names[TPL_MAX_ARGS];
	struct val v[TPL_MAX_ARGS];
	enum flow flow = GO_ON;
	int num = 0, ret;

	if (!scope)
		return -EINVAL;
	if (++r->depth > TPL_MAX_DEPTH)
		return cairn_tpl_error(r, EINVAL, line, "nested deeper than %d", TPL_MAX_DEPTH);
	for (const struct node *p = m->node->list2; p; p = p->next)
		names[num++] = p->name;
	CAIRN_TRY(cairn_tpl_bind(r, line, m->node->name, args, names, num, 0, v));
	num = 0;
	r->scope = scope;
	for (const struct node *p = m->node->list2; p; p = p->next, num++) {
		if (v[num].kind == V_ABSENT && p->a)
			CAIRN_TRY(eval(r, p->a, &v[num]));
		else if (v[num].kind == V_ABSENT)
			v[num] = (struct val) { .kind = V_UNDEFINED, .str = cairn_tpl_str(p->name).str };
		CAIRN_TRY(set_var(r, line, scope, p->name, &v[num]));
	}
	r->scope = outer;
	ret = capture(r, m->node->list, scope, &flow, out);
	r->depth--;
	return ret;
}

static int define_macro(struct render *r, const struct node *n)
{
	struct macro *m = cairn_tpl_alloc(&r->arena, sizeof(*m));

	if (!m)
		return -EINVAL;
	*m = (struct macro) { n, r->scope };
	return set_var(r, n->line, r->scope, n->name, &(struct val) { .kind = V_MACRO, .macro = m });
}

static int run_one(struct render *r, const struct node *n, enum flow *flow)
{
	struct val v;

	switch (n->kind) {
	case N_DATA:
		return cairn_tpl_put(r, n->line, r->out, n->value.str);
	case N_OUTPUT:
		CAIRN_TRY(eval(r, n->a, &v));
		return cairn_tpl_print(r, n->line, &v, r->out);
	case N_IF:
		return run_if(r, n, flow);
	case N_FOR:
		return run_for(r, n, flow);
	case N_SET:
		CAIRN_TRY(eval(r, n->b, &v));
		return assign(r, n->a, &v);
	case N_SET_BLOCK:
		CAIRN_TRY(capture(r, n->list, push(r, r->scope), flow, &v));
		return *flow == GO_ON ? assign(r, n->a, &v) : 0;
	case N_MACRO:
		return define_macro(r, n);
	case N_BREAK:
		*flow = BROKEN;
		return 0;
	case N_CONTINUE:
		*flow = CONTINUED;
		return 0;
	default:
		return run_scope(r, n->list, flow);
	}
}

static int run(struct render *r, const struct node *list, enum flow *flow)
{
	if (++r->depth > TPL_MAX_DEPTH)
		return cairn_tpl_error(r, EINVAL, list ? list->line : 0, "nested deeper than %d",
				       TPL_MAX_DEPTH);
	for (const struct node *n = list; n && *flow == GO_ON; n = n->next) {
		CAIRN_TRY(cairn_tpl_charge(r, n->line, 0));
		CAIRN_TRY(run_one(r, n, flow));
	}
	r->depth--;
	return 0;
}

int cairn_tpl_run(struct render *r, struct out *out)
{
	enum flow flow = GO_ON;

	r->out = out;
	for (size_t i = 0; i < r->tpl->num_names && !r->loop_name; i++)
		if (!strcmp(r->tpl->names[i], "loop"))
			r->loop_name = r->tpl->names[i];
	return run(r, r->tpl->body, &flow);
}
