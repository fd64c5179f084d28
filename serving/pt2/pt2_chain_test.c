// SPDX-License-Identifier: Apache-2.0
/*
 * pt2_chain_test - programs with one attention operator, behind a chain of views of any length
 *
 * The slice before it sends the result of a product; the worker expands that, which makes it four times as
 * large, and views it again and again. Nothing is saved.
 */
#include <pthread.h>

#include "conformance/harness.h"
#include "serving/pt2/pt2_slices.h"
#include "serving/pt2/pt2_test.h"

static void put_value(FILE *f, const char *name, int rows, const char *tokens)
{
	fprintf(f, "\"%s\":{\"dtype\":7,\"sizes\":[{\"as_int\":%d},%s,{\"as_int\":8}],\"layout\":7},", name,
		rows, tokens);
}

/* inputs: the argument and the tensor of each, alternating; NULL ends them. */
static void put_node(FILE *f, const char *name, const char *target, const char *const *inputs)
{
	fprintf(f, "{\"name\":\"%s\",\"target\":\"torch.ops.aten.%s.default\",\"inputs\":[", name, target);
	for (int i = 0; inputs[i]; i += 2)
		fprintf(f, "%s{\"name\":\"%s\",\"arg\":{\"as_tensor\":{\"name\":\"%s\"}}}", i ? "," : "",
			inputs[i], inputs[i + 1]);
	fprintf(f, "],\"outputs\":[{\"as_tensor\":{\"name\":\"%s\"}}]}", name);
}

static void put_values(FILE *f, int num_views, const char *tokens)
{
	static const char *const names[] = { "x", "q", "k", "v", "e" };
	char name[16];

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		put_value(f, names[i], i < 2 ? 1 : 4, tokens);
	for (int i = 0; i < num_views; i++) {
		snprintf(name, sizeof(name), "c%d", i);
		put_value(f, name, 4, tokens);
	}
	put_value(f, "w", 8, "{\"as_int\":1}");
	fprintf(f, "\"o\":{\"dtype\":7,\"sizes\":[],\"layout\":7}");
}

static void put_nodes(FILE *f, int num_views)
{
	static const char *const products[] = { "q", "k", "v" };
	char name[16], last[16] = "e";

	for (size_t i = 0; i < ARRAY_SIZE(products); i++) {
		put_node(f, products[i], "linear",
			 (const char *[]){ "input", "x", "weight", "w", NULL });
		fprintf(f, ",");
	}
	put_node(f, "e", "expand", (const char *[]){ "self", "q", NULL });
	for (int i = 0; i < num_views; i++) {
		snprintf(name, sizeof(name), "c%d", i);
		fprintf(f, ",");
		put_node(f, name, "view", (const char *[]){ "self", last, NULL });
		strcpy(last, name);
	}
	fprintf(f, ",");
	put_node(f, "o", "scaled_dot_product_attention",
		 (const char *[]){ "query", last, "key", "k", "value", "v", NULL });
}

/* tokens: the JSON of the middle size; ranges: that of the ranges of symbols. */
static int open_chain(struct cairn_pt2 **p, int num_views, const char *tokens, const char *ranges)
{
	struct zip_member m = { .name = "models/m.json" };
	struct archive a;
	char *text = NULL;
	FILE *f = open_memstream(&text, &m.num_bytes);
	int ret;

	fprintf(f, "{\"schema_version\":{\"major\":8,\"minor\":8},\"range_constraints\":{%s},", ranges);
	fprintf(f, "\"graph_module\":{\"graph\":{\"sym_int_values\":{},\"tensor_values\":{");
	put_values(f, num_views, tokens);
	fprintf(f, "},\"nodes\":[");
	put_nodes(f, num_views);
	fprintf(f, "]},\"signature\":{\"input_specs\":[{\"parameter\":{\"arg\":{\"name\":\"w\"},"
		"\"parameter_name\":\"w\"}},{\"user_input\":{\"arg\":{\"as_tensor\":{\"name\":\"x\"}}}}],"
		"\"output_specs\":[{\"user_output\":{\"arg\":{\"as_tensor\":{\"name\":\"o\"}}}}]}}}");
	fclose(f);
	m.data = text;
	a = zip_make(&m, 1, 0);
	ret = cairn_pt2_open_mem(p, a.bytes, a.num_bytes, "chain");
	free(a.bytes);
	free(text);
	return ret;
}

struct cutting {
	const struct cairn_pt2 *p;
	struct cairn_pt2_slices *s;
	int ret;
};

static void *cut(void *arg)
{
	const int64_t none[CAIRN_PT2_SYMBOLS] = { 0 };
	struct cutting *c = arg;

	c->ret = cairn_pt2_slices_create(&c->s, c->p, none);
	return NULL;
}

/* The stack does not grow with the chain: 1 MiB is enough for 50,000 views. */
static void long_chain(struct cairn_test *t)
{
	const int num_views = 50000;
	struct cairn_pt2 *p = NULL;
	struct cutting c = { .ret = -1 };
	pthread_attr_t attr;
	pthread_t thread;

	if (!EXPECT(t, open_chain(&p, num_views, "{\"as_int\":2}", "") == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	c.p = p;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 1 << 20);
	if (EXPECT(t, !pthread_create(&thread, &attr, cut, &c)))
		pthread_join(thread, NULL);
	pthread_attr_destroy(&attr);
	if (EXPECT(t, c.ret == 0)) {
		const struct cairn_pt2_seam *seam = &c.s->seams[0];

		EXPECT(t, !strcmp(p->values[seam->q].name, "q") && c.s->num_saves == 0);
		EXPECT(t, seam->num_ops == num_views + 1);
		for (int32_t i = 1; i < seam->num_ops; i++)
			EXPECT(t, c.s->far[seam->first_op + i] == c.s->far[seam->first_op] + i);
	}
	cairn_pt2_slices_destroy(c.s);
	cairn_pt2_close(p);
}

/* Slices of other sizes are compared, even though there are no lists of saved values. UBSan watches. */
static void nothing_saved(struct cairn_test *t)
{
	static const char tokens[] =
		"{\"as_expr\":{\"expr_str\":\"Symbol('s0')\",\"hint\":{\"as_int\":2}}}";
	int64_t symbols[CAIRN_PT2_SYMBOLS], at;
	struct cairn_pt2_slices *s = NULL;
	struct cairn_pt2 *p = NULL;
	int32_t where, symbol;

	if (EXPECT(t, open_chain(&p, 1, tokens, "\"s0\":{\"min_val\":2,\"max_val\":100}") == 0)) {
		cairn_pt2_symbols(p, symbols);
		if (EXPECT(t, cairn_pt2_slices_create(&s, p, symbols) == 0 && p->exprs.num_symbols == 1))
			EXPECT(t, !s->saves && !cairn_pt2_slices_vary(s, p, symbols, &where, &symbol, &at) &&
			       where == -1);
	}
	cairn_pt2_slices_destroy(s);
	cairn_pt2_close(p);
}

static const struct cairn_unit units[] = {
	{ "long_chain", long_chain }, { "nothing_saved", nothing_saved },
};

const struct cairn_family cairn_pt2_chain_family = {
	.stage = "serving", .name = "pt2_chain", .units = units, .num_units = ARRAY_SIZE(units),
};
