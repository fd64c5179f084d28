// SPDX-License-Identifier: Apache-2.0
/*
 * pt2_mutants_test - wrong slices of the golden program are refused by the check, and by running them
 *
 * Each mutant changes one thing in slices that were made. The check must refuse it with the text; running the
 * slices must fail, or give other bits than the program, too: so the two judges agree.
 */
#include "conformance/harness.h"
#include "serving/pt2/pt2_test.h"

struct bent {
	const struct cairn_pt2 *p;
	struct cairn_pt2_slices *s;
};

static struct cairn_slice_step *find(const struct bent *b, enum cairn_step_kind kind, int nth)
{
	struct cairn_slice_step *step = b->s->steps;

	while (step->kind != kind || nth--)
		step++;
	return step;
}

static void swap(struct cairn_slice_step *a, struct cairn_slice_step *b)
{
	struct cairn_slice_step step = *a;

	*a = *b;
	*b = step;
}

static void stream_not_saved(const struct bent *b)
{
	b->s->slices[0].num_saves = 0;
}

static void other_value_saved(const struct bent *b)
{
	b->s->saves[b->s->slices[1].first_save] = b->p->inputs[0];
}

static void embedding_missing(const struct bent *b)
{
	b->s->slices[0].first_step++;
	b->s->slices[0].num_steps--;
}

static void last_op_missing(const struct bent *b)
{
	b->s->slices[2].num_steps--;
}

static void reader_first(const struct bent *b)
{
	swap(&b->s->steps[0], &b->s->steps[1]);
}

static void keys_before_queries(const struct bent *b)
{
	swap(find(b, CAIRN_STEP_SEND_Q, 0), find(b, CAIRN_STEP_SEND_KV, 0));
}

static void queries_too_early(const struct bent *b)
{
	struct cairn_slice_step *send = find(b, CAIRN_STEP_SEND_Q, 1);

	swap(send, send - 1);
}

static void keys_not_sent(const struct bent *b)
{
	struct cairn_slice_step *send = find(b, CAIRN_STEP_SEND_KV, 1);

	*send = b->s->steps[b->s->slices[1].first_step + 1];
}

static void merged_late(const struct bent *b)
{
	struct cairn_slice_step *merge = find(b, CAIRN_STEP_MERGE, 0);

	swap(merge, merge + 1);
}

static void merge_of_the_next(const struct bent *b)
{
	find(b, CAIRN_STEP_MERGE, 0)->op = b->s->seams[1].attn;
}

static void attention_in_a_slice(const struct bent *b)
{
	find(b, CAIRN_STEP_SEND_KV, 0)->kind = CAIRN_STEP_OP;
}

static void mask_not_made(const struct bent *b)
{
	b->s->seams[1].first_op++;
	b->s->seams[1].num_ops--;
}

static void heads_not_repeated(const struct bent *b)
{
	b->s->seams[1].num_ops--;
}

static void key_for_value(const struct bent *b)
{
	b->s->seams[0].v = b->s->seams[0].k;
}

static void other_query(const struct bent *b)
{
	b->s->seams[0].q = b->s->seams[0].k;
}

#define MUTANT(fn, says)	{ #fn, fn, says }

static const struct {
	const char *name;
	void (*bend)(const struct bent *b);
	const char *says;		/* NULL: allowed */
} mutants[] = {
	{ "none", NULL, NULL },
	MUTANT(stream_not_saved, "does not exist there"), MUTANT(other_value_saved, "does not exist there"),
	MUTANT(embedding_missing, "does not exist there"), MUTANT(last_op_missing, "is not computed"),
	MUTANT(reader_first, "does not exist there"), MUTANT(keys_before_queries, "sends k and v of"),
	MUTANT(queries_too_early, "\"a message\" needs value"),
	MUTANT(keys_not_sent, "ends without the messages of"),
	MUTANT(merged_late, "does not exist there"), MUTANT(merge_of_the_next, "out of turn"),
	MUTANT(attention_in_a_slice, "out of turn"), MUTANT(mask_not_made, "does not exist there"),
	MUTANT(heads_not_repeated, "does not exist there"), MUTANT(key_for_value, "does not exist there"),
	MUTANT(other_query, "does not exist there"),
};

/* Returns whether the slices give the bits of the program. */
static int runs(const struct bent *b, const struct cairn_pt2_tensor *input, const int64_t *symbols,
		const struct cairn_pt2_results *want)
{
	struct cairn_pt2_results got;
	int same;

	if (cairn_pt2_run(&got, b->p, b->s, input, symbols))
		return 0;
	same = !memcmp(got.outputs->data, want->outputs->data, (size_t)want->outputs->num * sizeof(double));
	cairn_pt2_results_free(&got);
	return same;
}

static void noticed(struct cairn_test *t)
{
	double ids[] = { 3, 1, 4, 1, 5 };
	const struct cairn_pt2_tensor input = { .rank = 2, .size = { 1, 5 }, .num = 5, .data = ids };
	int64_t symbols[CAIRN_PT2_SYMBOLS];
	struct cairn_pt2_results want;
	struct cairn_pt2 *p;
	char path[PATH_MAX];

	golden_pt2(path, "mixed.pt2");
	if (!EXPECT(t, cairn_pt2_open(&p, path) == 0))
		return;
	EXPECT(t, cairn_pt2_fit(p, &input, symbols) == 0);
	if (!EXPECT(t, cairn_pt2_run(&want, p, NULL, &input, symbols) == 0))
		goto out;
	for (size_t i = 0; i < ARRAY_SIZE(mutants); i++) {
		struct bent b = { .p = p };

		if (!EXPECT(t, cairn_pt2_slices_create(&b.s, p, symbols) == 0))
			break;
		if (mutants[i].bend)
			mutants[i].bend(&b);
		if (!EXPECT(t, cairn_pt2_slices_check(b.s, p) == (mutants[i].says ? -EINVAL : 0)) ||
		    !EXPECT(t, runs(&b, &input, symbols, &want) == !mutants[i].says))
			cairn_note(t, "%s", mutants[i].name);
		cairn_pt2_slices_check(b.s, p);
		if (mutants[i].says)
			EXPECT_CONTAINS(t, cairn_last_error(), mutants[i].says);
		cairn_pt2_slices_destroy(b.s);
	}
	cairn_pt2_results_free(&want);
out:
	cairn_pt2_close(p);
}

static const struct cairn_unit units[] = {
	{ "noticed", noticed },
};

const struct cairn_family cairn_pt2_mutants_family = {
	.stage = "serving", .name = "pt2_mutants", .units = units, .num_units = ARRAY_SIZE(units),
};
