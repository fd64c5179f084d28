// SPDX-License-Identifier: Apache-2.0
/*
 * pt2_random_test - cuts of random programs, compared with all cuts that are possible
 *
 * The programs are graphs; their tensors have random sizes, which need not fit their operations.
 */
#include "conformance/harness.h"
#include "serving/pt2/pt2_slices_impl.h"
#include "serving/pt2/pt2_test.h"

#define MAX_NODES	24
#define MAX_CUTTABLE	12

struct random_program {
	json_t *values, *nodes;
	int num, num_attn;
	char free_name[16];		/* a tensor that depends on no parameter, or "" */
	uint8_t read[MAX_NODES];
};

/* Adds a tensor of 1 to 6 floats. */
static void add_tensor(struct cairn_test *t, json_t *values, const char *name, int dtype)
{
	json_object_set_new(values, name,
			    json_pack("{s:i, s:[{s:i}], s:i}", "dtype", dtype, "sizes", "as_int",
				      1 + (int)(cairn_rand(t) % 6), "layout", 7));
}

/* Appends a node; inputs: names of arguments and of tensors, alternating. Its result is v<number>. */
static void add_node(struct cairn_test *t, struct random_program *r, const char *target,
		     const char *const *inputs)
{
	json_t *args = json_array();
	char name[16], full[64];

	snprintf(name, sizeof(name), "v%d", r->num++);
	snprintf(full, sizeof(full), "torch.ops.aten.%s", target);
	add_tensor(t, r->values, name, CAIRN_PT2_F32);
	for (; *inputs; inputs += 2)
		json_array_append_new(args, json_pack("{s:s, s:{s:{s:s}}}", "name", inputs[0], "arg",
						      "as_tensor", "name", inputs[1]));
	json_array_append_new(r->nodes, json_pack("{s:s, s:s, s:o, s:[{s:{s:s}}]}", "target", full,
						  "name", name, "inputs", args, "outputs", "as_tensor",
						  "name", name));
}

/* Chooses a result, mostly one that nothing has read yet. free: also one that depends on no parameter. */
static const char *pick(struct cairn_test *t, struct random_program *r, char name[16])
{
	int v = 0;

	for (int tries = 0; tries < 50; tries++) {
		v = (int)(cairn_rand(t) % (uint64_t)r->num);
		snprintf(name, 16, "v%d", v);
		if (strcmp(name, r->free_name) && (!r->read[v] || cairn_rand(t) % 3 == 0))
			break;
	}
	r->read[v] = 1;
	return name;
}

static void add_some(struct cairn_test *t, struct random_program *r)
{
	char x[16], y[16], z[16];

	switch (cairn_rand(t) % 6) {
	case 0:
		add_node(t, r, "linear.default",
			 (const char *[]){ "input", pick(t, r, x), "weight", "w", NULL });
		return;
	case 1:
	case 2:
		add_node(t, r, "reshape.default", (const char *[]){ "self", pick(t, r, x), NULL });
		return;
	case 3:
		if (r->num_attn == 2)
			return;
		r->num_attn++;
		add_node(t, r, "scaled_dot_product_attention.default",
			 (const char *[]){ "query", pick(t, r, x), "key", pick(t, r, y), "value",
					   pick(t, r, z), *r->free_name ? "attn_mask" : NULL, r->free_name,
					   NULL });
		return;
	case 4:
		if (*r->free_name) {
			add_node(t, r, "mul.Tensor", (const char *[]){ "self", pick(t, r, x), "other",
								       r->free_name, NULL });
			return;
		}
		add_node(t, r, "cos.default", (const char *[]){ "self", "ids", NULL });
		snprintf(r->free_name, sizeof(r->free_name), "v%d", r->num - 1);
		r->read[r->num - 1] = 1;
		return;
	default:
		add_node(t, r, "add.Tensor", (const char *[]){ "self", pick(t, r, x), "other",
							       pick(t, r, y), NULL });
		return;
	}
}

/* Adds up what nothing has read, so that there is one output. */
static void add_end(struct cairn_test *t, struct random_program *r)
{
	char x[16], y[16];

	for (;;) {
		int a = -1, b = -1;

		for (int v = 0; v < r->num; v++)
			if (!r->read[v]) {
				b = a;
				a = v;
			}
		if (b < 0)
			return;
		r->read[a] = r->read[b] = 1;
		snprintf(x, sizeof(x), "v%d", a);
		snprintf(y, sizeof(y), "v%d", b);
		add_node(t, r, "add.Tensor", (const char *[]){ "self", x, "other", y, NULL });
	}
}

/* Returns the JSON of a program with one or two attention operators. */
static char *random_text(struct cairn_test *t)
{
	struct random_program r = { .values = json_object(), .nodes = json_array() };
	char last[16], *text;
	json_t *root;

	add_tensor(t, r.values, "ids", CAIRN_PT2_I64);
	add_tensor(t, r.values, "w", CAIRN_PT2_F32);
	add_node(t, &r, "embedding.default", (const char *[]){ "weight", "w", "indices", "ids", NULL });
	for (int i = 0; i < 40 && (i < 6 || !r.num_attn) && r.num < 12; i++)
		add_some(t, &r);
	add_end(t, &r);
	snprintf(last, sizeof(last), "v%d", r.num - 1);
	root = json_pack("{s:{s:i, s:i}, s:{}, s:{s:{s:o, s:o, s:{}}, s:{s:[{s:{s:{s:s}, s:s}}, "
			 "{s:{s:{s:{s:s}}}}], s:[{s:{s:{s:{s:s}}}}]}}}",
			 "schema_version", "major", 8, "minor", 20, "range_constraints", "graph_module",
			 "graph", "nodes", r.nodes, "tensor_values", r.values, "sym_int_values",
			 "signature", "input_specs", "parameter", "arg", "name", "w", "parameter_name", "w",
			 "user_input", "arg", "as_tensor", "name", "ids", "output_specs", "user_output",
			 "arg", "as_tensor", "name", last);
	text = json_dumps(root, JSON_COMPACT);
	json_decref(root);
	return text;
}

/* ---- all cuts ---- */

struct judge {
	const struct cairn_pt2 *p;
	struct pt2_facts *f;
	const struct cairn_pt2_slices *s;
	int32_t cuttable[MAX_CUTTABLE], num;
	int32_t bit[MAX_NODES];		/* of a node; -1: it is free, or runs at the attention worker */
};

static int is_before(const struct judge *j, uint32_t before, int32_t node)
{
	return j->bit[node] >= 0 && before >> j->bit[node] & 1;
}

static int has_source(const struct judge *j, uint32_t before, int32_t value)
{
	int32_t source = pt2_source(j->f, value);

	return source < 0 || is_before(j, before, source);
}

static int seam_reads(const struct cairn_pt2_seam *seam, int32_t value)
{
	return value == seam->q || value == seam->k || value == seam->v;
}

static int allowed(const struct judge *j, int32_t at, uint32_t before)
{
	for (int32_t i = 0; i < j->f->num_attn; i++) {
		const struct cairn_pt2_seam *seam = &j->s->seams[i];
		int need = i <= at;

		if (is_before(j, before, seam->attn) != (i < at))
			return 0;
		if (need && (!has_source(j, before, seam->q) || !has_source(j, before, seam->k) ||
			     !has_source(j, before, seam->v)))
			return 0;
	}
	for (int32_t k = 0; k < j->num; k++) {
		const struct cairn_pt2_node *n = &j->p->nodes[j->cuttable[k]];

		for (int32_t i = 0; i < n->num_in && before >> k & 1; i++)
			if (n->op->role != CAIRN_PT2_ATTENDS &&
			    !has_source(j, before, j->p->ids[n->first_in + i]))
				return 0;
	}
	return 1;
}

static int is_kept(const struct judge *j, int32_t at, uint32_t before, int32_t value)
{
	int32_t source = pt2_source(j->f, value);

	if (source < 0 || !is_before(j, before, source))
		return 0;
	for (int32_t i = at + 1; i < j->f->num_attn; i++)
		if (seam_reads(&j->s->seams[i], value))
			return 1;
	for (int32_t i = j->f->first_reader[value]; i < j->f->first_reader[value + 1]; i++) {
		int32_t reader = j->f->readers[i];

		if (j->bit[reader] >= 0 && !is_before(j, before, reader) &&
		    j->p->nodes[reader].op->role != CAIRN_PT2_ATTENDS)
			return 1;
	}
	return 0;
}

/* The cheapest cut: bytes, then values, then most operations before it. */
static void find_best(const struct judge *j, int32_t at, int64_t best[3])
{
	best[0] = INT64_MAX;
	for (uint32_t before = 0; before < 1u << j->num; before++) {
		int64_t price[3] = { 0, 0, -__builtin_popcount(before) };
		int k = 0;

		if (!allowed(j, at, before))
			continue;
		for (int32_t v = 0; v < j->p->num_values; v++)
			if (is_kept(j, at, before, v)) {
				price[0] += j->f->bytes[v];
				price[1]++;
			}
		while (k < 2 && price[k] == best[k])
			k++;
		if (price[k] < best[k])
			memcpy(best, price, sizeof(price));
	}
}

/* Counts the operations before a cut, attention included. */
static int64_t count_before(const struct judge *j, int32_t at)
{
	int64_t num = at;

	for (int32_t i = 0; i <= at; i++)
		for (int32_t k = 0; k < j->s->slices[i].num_steps; k++) {
			const struct cairn_slice_step *step = &j->s->steps[j->s->slices[i].first_step + k];

			num += step->kind == CAIRN_STEP_OP && !j->f->is_free[step->op];
		}
	return num;
}

/* Returns 0 if the program has too many operations for all cuts to be tried. */
static int judge_program(struct cairn_test *t, const struct cairn_pt2 *p)
{
	const int64_t none[CAIRN_PT2_SYMBOLS] = { 0 };
	struct cairn_pt2_slices *s = NULL, *scratch;
	struct pt2_facts f;
	struct judge j = { .p = p, .f = &f };

	if (!EXPECT(t, cairn_pt2_slices_create(&s, p, none) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return 0;
	}
	if (!EXPECT(t, pt2_facts_create(&f, p, none) == 0))
		return 0;
	scratch = calloc(1, sizeof(*scratch));	/* finding the seams marks what runs at the worker */
	scratch->seams = calloc((size_t)f.num_attn + 1, sizeof(*scratch->seams));
	for (int32_t i = 0; i < f.num_attn; i++)
		EXPECT(t, pt2_seam_find(scratch, &f, i) == 0);
	cairn_pt2_slices_destroy(scratch);
	j.s = s;
	for (int32_t n = 0; n < p->num_nodes; n++) {
		j.bit[n] = f.is_free[n] || f.is_far[n] ? -1 : j.num;
		if (j.bit[n] >= 0 && j.num < MAX_CUTTABLE)
			j.cuttable[j.num] = n;
		j.num += j.bit[n] >= 0;
	}
	for (int32_t i = 0; i < f.num_attn && j.num <= MAX_CUTTABLE; i++) {
		int64_t best[3];

		find_best(&j, i, best);
		if (!EXPECT(t, s->slices[i].save_bytes == best[0] && s->slices[i].num_saves == best[1] &&
			    count_before(&j, i) == -best[2]))
			cairn_note(t, "cut %d: %lld bytes, %d values, %lld operations; best %lld, %lld, %lld",
				   i, (long long)s->slices[i].save_bytes, s->slices[i].num_saves,
				   (long long)count_before(&j, i), (long long)best[0], (long long)best[1],
				   (long long)-best[2]);
	}
	pt2_facts_free(&f);
	cairn_pt2_slices_destroy(s);
	return j.num <= MAX_CUTTABLE;
}

static void optimal(struct cairn_test *t)
{
	int judged = 0;

	for (int i = 0; i < 1500; i++) {
		char *text = random_text(t);
		const struct zip_member m = { "models/m.json", text, strlen(text) };
		struct archive a = zip_make(&m, 1, 0);
		struct cairn_pt2 *p;

		/* what attention reads may depend on no parameter; that is refused */
		if (!cairn_pt2_open_mem(&p, a.bytes, a.num_bytes, "random")) {
			if (strstr(text, "scaled_dot"))
				judged += judge_program(t, p);
			cairn_pt2_close(p);
		} else {
			EXPECT(t, 0);
			cairn_note(t, "%s", cairn_last_error());
		}
		free(a.bytes);
		free(text);
	}
	cairn_note(t, "%d programs", judged);
	EXPECT(t, judged > 1000);
}

static const struct cairn_unit units[] = {
	{ "optimal", optimal },
};

const struct cairn_family cairn_pt2_random_family = {
	.stage = "serving", .name = "pt2_random", .units = units, .num_units = ARRAY_SIZE(units),
};
