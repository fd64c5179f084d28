// SPDX-License-Identifier: Apache-2.0
/*
 * sliced_mutants_test - the comparisons of sliced_test.c notice a wrong slice, message, placement or merge
 *
 * Each mutant changes one thing on table cpu, whose memory is the host's. The pass must then differ from the
 * sequential one, or fail; without mutants it may not.
 */
#include <math.h>

#include "conformance/harness.h"
#include "serving/slices/sliced_test.h"

static const struct scene_request requests[] = { { 1, 14 }, { 1, 33 }, { 12, 5 }, { 40, 7 } };
/* the merge attends to their own keys */
static const struct scene_request decoding[] = { { 1, 14 }, { 1, 33 }, { 1, 5 }, { 1, 7 } };

/* ---- messages ---- */

static void keys_for_values(struct slicer *x, struct cairn_attn_rows *rows, int of_kv)
{
	const void *k = rows->k;

	(void)x;
	if (!of_kv)
		return;
	rows->k = rows->v;
	rows->v = k;
}

static void keys_for_queries(struct slicer *x, struct cairn_attn_rows *rows, int of_kv)
{
	(void)x;
	if (!of_kv)
		rows->q = (char *)rows->q + x->m->config.head_dim * 2;
}

static void queries_too_far_apart(struct slicer *x, struct cairn_attn_rows *rows, int of_kv)
{
	(void)of_kv;
	rows->q_stride = x->m->dims[CAIRN_D_QKV];
}

static void window_forgotten(struct slicer *x, struct cairn_attn_rows *rows, int of_kv)
{
	(void)x, (void)of_kv;
	rows->window = 0;
}

static void keys_of_the_other_layer(struct slicer *x, struct cairn_attn_rows *rows, int of_kv)
{
	(void)x;
	rows->layer ^= of_kv;
}

static void both_of_the_other_layer(struct slicer *x, struct cairn_attn_rows *rows, int of_kv)
{
	(void)x, (void)of_kv;
	rows->layer ^= 1;
}

static void a_row_less(struct slicer *x, struct cairn_attn_rows *rows, int of_kv)
{
	(void)x, (void)of_kv;
	rows->num_rows--;
}

/* ---- results ---- */

static int result_dropped(struct slicer *x, void *o, float *lse, void *stream)
{
	(void)lse;
	return x->m->impl->mem_set(o, 0, 64, stream);
}

static size_t num_lse(const struct slicer *x)
{
	return (size_t)x->num_rows * (size_t)x->m->config.num_attention_heads;
}

static int lse_in_base_2(struct slicer *x, void *o, float *lse, void *stream)
{
	(void)o, (void)stream;
	for (size_t i = 0; i < num_lse(x); i++)
		lse[i] *= (float)M_LOG2E;
	return 0;
}

static int previous_keys_dropped(struct slicer *x, void *o, float *lse, void *stream)
{
	(void)o, (void)stream;
	for (size_t i = 0; i < num_lse(x); i++)
		lse[i] = -INFINITY;
	return 0;
}

/* State 1 follows state 0. */
static int own_keys_dropped(struct slicer *x, void *o, float *lse, void *stream)
{
	return previous_keys_dropped(x, o, lse + num_lse(x), stream);
}

static int weights_equal(struct slicer *x, void *o, float *lse, void *stream)
{
	(void)o, (void)stream;
	for (size_t i = 0; i < 2 * num_lse(x); i++)
		lse[i] = 0;
	return 0;
}

static int lse_of_the_next_row(struct slicer *x, void *o, float *lse, void *stream)
{
	(void)o, (void)stream;
	memmove(lse, lse + x->m->config.num_attention_heads,
		(num_lse(x) - (size_t)x->m->config.num_attention_heads) * sizeof(*lse));
	return 0;
}

/* ---- slices and placement, changed after they were checked ---- */

static struct cairn_slice_step *find(struct slicer *x, enum cairn_step_kind kind, enum cairn_step_part part,
				     int nth)
{
	struct cairn_slice_step *step = x->slices->steps;

	while (step->kind != kind || step->part != part || nth--)
		step++;
	return step;
}

static void swap(struct cairn_slice_step *a, struct cairn_slice_step *b)
{
	struct cairn_slice_step step = *a;

	*a = *b;
	*b = step;
}

static void stream_not_saved(struct slicer *x)
{
	x->slices->slices[0].num_saves = 0;
}

static void keys_not_computed(struct slicer *x)
{
	find(x, CAIRN_STEP_OP, CAIRN_PART_KV, 0)->part = CAIRN_PART_Q;
}

static void queries_before_rotation(struct slicer *x)
{
	struct cairn_slice_step *send = find(x, CAIRN_STEP_SEND_Q, CAIRN_PART_ALL, 0);

	swap(send, send - 1);
}

static void keys_before_rotation(struct slicer *x)
{
	struct cairn_slice_step *send = find(x, CAIRN_STEP_SEND_KV, CAIRN_PART_ALL, 0);

	swap(send, send - 1);
}

static void merge_after_its_reader(struct slicer *x)
{
	struct cairn_slice_step *merge = find(x, CAIRN_STEP_MERGE, CAIRN_PART_ALL, 0);

	swap(merge, merge + 1);
}

static void merge_missing(struct slicer *x)
{
	*find(x, CAIRN_STEP_MERGE, CAIRN_PART_ALL, 0) = (struct cairn_slice_step){
		.kind = CAIRN_STEP_OP, .op = x->m->graph->num_ops - 1,
	};
}

static void everything_in_one_place(struct slicer *x)
{
	for (int32_t v = 0; v < x->m->graph->num_values; v++)
		if (x->sliced->buffers.offset[v] > 0)
			x->sliced->buffers.offset[v] = 0;
}

static void queries_end_when_sent(struct slicer *x)
{
	const struct cairn_op_graph *g = x->m->graph;
	const struct cairn_seam *seam = &x->slices->seams[0];
	const struct cairn_slice_step *first = find(x, CAIRN_STEP_OP, CAIRN_PART_Q, 0);

	x->sliced->buffers.offset[g->values[seam->q].storage] =
		x->sliced->buffers.offset[g->ops[first->op].in[0]];
}

/* ---- previous keys ---- */

static void a_key_twice(struct all_past *p)
{
	p->of[0].last_page_len[1]++;
}

static void a_key_less(struct all_past *p)
{
	p->of[0].last_page_len[1]--;
}

static void no_previous_keys(struct all_past *p)
{
	memset(p->of[0].indptr, 0, sizeof(p->of[0].indptr));
}

static void pages_of_another_request(struct all_past *p)
{
	int32_t *indices = p->of[0].indices, *other = indices + p->of[0].indptr[1], page = *indices;

	*indices = *other;
	*other = page;
}

static void stripe_twice(struct all_past *p)
{
	p->of[1] = p->of[0];
}

static void position_0_for_all(struct all_past *p)
{
	memset(p->key_pos, 0, sizeof(p->key_pos));
}

/* ---- merges that attend to own keys ---- */

static void own_key_forgotten(struct cairn_attn_merge_args *a)
{
	a->q = NULL;
}

static void own_scale_forgotten(struct cairn_attn_merge_args *a)
{
	a->sm_scale = 1;
}

static void own_key_for_value(struct cairn_attn_merge_args *a)
{
	a->v = a->k;
}

static void own_key_of_head_0(struct cairn_attn_merge_args *a)
{
	a->num_kv_heads = 1;
}

static void own_rows_packed(struct cairn_attn_merge_args *a)
{
	a->kv_stride = 0;
}

static void a_state_too_few(struct cairn_attn_merge_args *a)
{
	a->num_states--;
}

/* The table's merge, and how the mutant under test bends its arguments. */
static int (*plain_merge)(const struct cairn_attn_merge_args *args, void *stream);
static void (*bend_merge)(struct cairn_attn_merge_args *args);

static int bent_merge(const struct cairn_attn_merge_args *args, void *stream)
{
	struct cairn_attn_merge_args bent = *args;

	if (args->rows)
		bend_merge(&bent);
	return plain_merge(&bent, stream);
}

#define ROUNDING	0.4

struct mutant {
	const char *model, *name;
	int previous;
	void (*rows)(struct slicer *x, struct cairn_attn_rows *rows, int of_kv);
	int (*result)(struct slicer *x, void *o, float *lse, void *stream);
	void (*slices)(struct slicer *x);
	void (*past)(struct all_past *past);
	void (*merge)(struct cairn_attn_merge_args *args);
	int decoding;				/* the requests decode */
};

#define MUTANT(at, hook, fn)	{ .model = "llama3_tiny", .name = #fn, .previous = at, .hook = fn }
#define DECODING(of, at, hook, fn) \
	{ .model = of, .name = #fn, .previous = at, .hook = fn, .decoding = 1 }

static const struct mutant mutants[] = {
	{ .model = "llama3_tiny", .name = "none" },
	{ .model = "llama3_tiny", .name = "none", .previous = 1 },
	MUTANT(0, rows, keys_for_values), MUTANT(1, rows, keys_for_queries),
	MUTANT(0, rows, queries_too_far_apart), MUTANT(0, rows, keys_of_the_other_layer),
	MUTANT(0, rows, both_of_the_other_layer), MUTANT(0, rows, a_row_less),
	MUTANT(0, result, result_dropped), MUTANT(1, result, result_dropped),
	MUTANT(1, result, lse_in_base_2), MUTANT(1, result, previous_keys_dropped),
	MUTANT(1, result, own_keys_dropped), MUTANT(1, result, weights_equal),
	MUTANT(1, result, lse_of_the_next_row),
	MUTANT(0, slices, stream_not_saved), MUTANT(0, slices, keys_not_computed),
	MUTANT(1, slices, queries_before_rotation), MUTANT(0, slices, keys_before_rotation),
	MUTANT(0, slices, merge_after_its_reader), MUTANT(0, slices, merge_missing),
	MUTANT(0, slices, everything_in_one_place), MUTANT(1, slices, queries_end_when_sent),
	MUTANT(1, past, a_key_twice), MUTANT(1, past, a_key_less), MUTANT(1, past, no_previous_keys),
	MUTANT(1, past, pages_of_another_request),
	{ .model = "llama3_tiny", .name = "none", .previous = 1, .decoding = 1 },
	DECODING("llama3_tiny", 1, merge, own_key_forgotten),
	DECODING("llama3_tiny", 1, merge, own_scale_forgotten),
	DECODING("llama3_tiny", 1, merge, own_key_for_value),
	DECODING("llama3_tiny", 1, merge, own_key_of_head_0),
	DECODING("llama3_tiny", 1, merge, own_rows_packed),
	DECODING("llama3_tiny", 2, merge, a_state_too_few),
	DECODING("llama3_tiny", 1, result, previous_keys_dropped),
	DECODING("llama3_tiny", 1, slices, queries_end_when_sent),
	{ .model = "gemma2_tiny", .name = "none", .previous = 3, .decoding = 1 },
	DECODING("gemma2_tiny", 3, merge, own_key_forgotten),
	DECODING("gemma2_tiny", 3, merge, own_scale_forgotten),
	{ .model = "gemma2_tiny", .name = "none" },
	{ .model = "gemma2_tiny", .name = "none", .previous = 1 },
	{ .model = "gemma2_tiny", .name = "window_forgotten", .rows = window_forgotten },
	{ .model = "gemma2_tiny", .name = "window_forgotten", .previous = 1, .rows = window_forgotten },
	{ .model = "gemma2_tiny", .name = "none", .previous = 3 },
	{ .model = "gemma2_tiny", .name = "position_0_for_all", .previous = 3, .past = position_0_for_all },
	{ .model = "deepseek_tiny", .name = "none", .previous = 2 },
	{ .model = "deepseek_tiny", .name = "stripe_twice", .previous = 2, .past = stripe_twice },
	{ .model = "deepseek_tiny", .name = "previous_keys_dropped", .previous = 2,
	  .result = previous_keys_dropped },
	{ .model = "deepseek_tiny", .name = "own_keys_dropped", .previous = 1, .result = own_keys_dropped },
	{ .model = "deepseek_tiny", .name = "lse_in_base_2", .previous = 1, .result = lse_in_base_2 },
	{ .model = "deepseek_tiny", .name = "a_key_less", .previous = 1, .past = a_key_less },
};

/* Runs the scene's pass with a mutant. Returns the largest difference of a logit; INFINITY: it failed. */
static double difference(struct cairn_test *t, struct scene *s, const struct mutant *m)
{
	const size_t num = (size_t)(s->batch.num_logits * s->m->config.vocab_size);
	double worst = 0;
	struct slicer x;
	int64_t bad;

	if (open_slicer(t, &x, s->m, s->s, &s->kv, CAIRN_SLICED_PARTS, m->previous)) {
		close_slicer(&x);
		return NAN;
	}
	x.bend_rows = m->rows;
	x.bend_result = m->result;
	if (m->slices)
		m->slices(&x);
	x.bend_past = m->past;
	plain_merge = s->impl.attn_merge;
	bend_merge = m->merge;
	if (m->merge)
		s->impl.attn_merge = bent_merge;
	bad = run_sliced(s, &x);
	s->impl.attn_merge = plain_merge;
	for (size_t i = 0; i < num && bad >= 0; i++) {
		double d = fabs((double)s->got[i] - (double)s->want[i]);

		worst = d <= worst ? worst : d;
	}
	close_slicer(&x);
	return bad < 0 ? INFINITY : bad > 0 && !m->previous && worst == 0 ? 1 : worst;
}

/*
 * A logit of these models is below 20 in magnitude. Merging rounds two results to 8 bits, which changes a
 * logit by less than ROUNDING (sliced_test.c has the real bound); each mutant changes one by more.
 */
static void noticed(struct cairn_test *t)
{
	struct scene s = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		const struct mutant *m = &mutants[i];
		int none = !strcmp(m->name, "none");
		int other = !i || strcmp(m->model, m[-1].model) || m->decoding != m[-1].decoding;
		double worst;

		if (i && other)
			close_scene(&s);
		if (other && (open_scene(t, &s, "cpu", m->model) ||
			      run_scene(t, &s, m->decoding ? decoding : requests, 4)))
			break;
		worst = difference(t, &s, m);
		cairn_note(t, "%s, %s%s%s: %.3g", m->model, m->name, m->previous ? ", previous" : "",
			   m->decoding ? ", decoding" : "", worst);
		EXPECT(t, none ? (m->previous ? worst < ROUNDING : worst == 0) : !(worst < ROUNDING));
	}
	close_scene(&s);
}

static const struct cairn_unit units[] = {
	{ "noticed", noticed },
};

const struct cairn_family cairn_sliced_mutants_family = {
	.stage = "serving", .name = "sliced_mutants", .units = units, .num_units = ARRAY_SIZE(units),
};
