// SPDX-License-Identifier: Apache-2.0
/*
 * nano_test - a pass as nano-batches gives the bits of the sequential pass
 *
 * On table late, streams advance in random order as far as events allow, and one lane then runs before the
 * others, so that a missing wait shows. --repeat N checks N times as many random plans and orders.
 */
#include <math.h>

#include "conformance/harness.h"
#include "serving/nano/nano_test.h"

/*
 * Decoding requests whose keys end before, at and after the edge of a page, then chunks of prompts that begin
 * and end before, at and after one. 5 decoding rows, 59 others.
 */
static const struct scene_request mixed[] = {
	{ 1, 14 }, { 1, 15 }, { 1, 16 }, { 1, 40 }, { 1, 1 }, { 20, 0 }, { 17, 15 }, { 2, 30 }, { 20, 33 },
};
static const struct scene_request decoding[] = {
	{ 1, 14 }, { 1, 15 }, { 1, 16 }, { 1, 40 }, { 1, 1 }, { 1, 31 }, { 1, 3 }, { 1, 47 },
};
static const struct scene_request one_prompt[] = { { 70, 9 } };

#define PLACES	160

/* Runs a plan with cuts; the pass must have the bits of the sequential one. */
static void same(struct cairn_test *t, struct scene *s, const struct cairn_nano_plan *plan,
		 const struct cairn_nano_cuts *cuts, const char *what)
{
	struct cairn_nano *n = NULL;
	int64_t bad;

	if (!EXPECT(t, cairn_nano_create(&n, s->s, plan) == 0)) {
		cairn_note(t, "%s: %s", what, cairn_last_error());
		return;
	}
	bad = run_nano(s, n, cuts);
	if (!EXPECT(t, bad == 0))
		cairn_note(t, "%s: %s, %d nano-batches cut at %d %d %d: %lld bad, %s", s->impl.name, what,
			   cuts->num_batches, cuts->row[1], cuts->row[2], cuts->row[3], (long long)bad,
			   bad < 0 ? cairn_last_error() : "");
	cairn_nano_destroy(n);
}

/* Cuts before, at and after each edge of a request, and of a page within a chunk. */
static int edges(const struct scene *s, int32_t *rows)
{
	int num = 0;

	for (int32_t r = 1; r < s->batch.num_rows; r++) {
		int near = 0;

		for (int32_t i = 0; i <= s->batch.batch; i++)
			near |= abs(s->host.qo_indptr[i] - r) <= 1;
		for (int32_t i = r > 0 ? r - 1 : r; i <= r + 1 && i < s->batch.num_rows; i++)
			near |= s->host.positions[i] % SCENE_PAGE == 0;
		if (near)
			rows[num++] = r;
	}
	return num;
}

static void all_cuts(struct cairn_test *t, struct scene *s, int every)
{
	int32_t rows[SCENE_ROWS];
	int num = edges(s, rows);
	struct cairn_nano_plan plan = { .num_lanes = 2 };

	for (int i = 0; i < num; i += every) {
		struct cairn_nano_cuts two = cuts_at(s, 2, &rows[i]);

		plan.num_batches = 2;
		same(t, s, &plan, &two, "two lanes");
	}
	for (int k = 1; k <= 4; k++) {
		struct cairn_nano_cuts c;

		plan.num_batches = plan.num_lanes = k;
		if (EXPECT(t, cairn_nano_cut(&c, &plan, s->host.qo_indptr, s->batch.batch, s->batch.num_rows,
					     s->num_decodes) == 0))
			same(t, s, &plan, &c, "a lane for each");
	}
}

/* Random plans and cuts; some of them give decoding rows to each nano-batch. */
static void random_plans(struct cairn_test *t, struct scene *s, int num)
{
	struct cairn_nano_place places[PLACES];

	for (int i = 0; i < num; i++) {
		int k = 1 + (int)(cairn_rand(t) % 4), lanes = 1 + (int)(cairn_rand(t) % 4);
		struct cairn_nano_plan plan;
		struct cairn_nano_cuts cuts;

		random_plan(t, s->m->graph, k, lanes, &plan, places, PLACES);
		if (s->impl.stream_create_part)
			random_parts(t, s->m->graph, &plan);
		for (int b = 0; b < k; b++) {
			plan.rows[b] = 1 + (int32_t)(cairn_rand(t) % 9);
			plan.decodes[b] = i % 2 ? (int32_t)(cairn_rand(t) % 5) : 0;
		}
		s->first_lane = (int)(cairn_rand(t) % (uint64_t)lanes);
		if (EXPECT(t, cairn_nano_cut(&cuts, &plan, s->host.qo_indptr, s->batch.batch,
					     s->batch.num_rows, s->num_decodes) == 0))
			same(t, s, &plan, &cuts, "a random plan");
		s->first_lane = 0;
	}
}

/* Latent attention takes most of the time, so only one of its models tries many cuts. */
static void on_cpu(struct cairn_test *t, const char *model)
{
	int latent = !strncmp(model, "deepseek", 8);
	struct scene s;

	if (open_scene(t, &s, "cpu", model))
		goto out;
	if (!run_scene(t, &s, mixed, ARRAY_SIZE(mixed))) {
		if (!latent || !strcmp(model, "deepseek_q_tiny"))
			all_cuts(t, &s, latent ? 11 : 4);
		random_plans(t, &s, latent ? 2 : 4);
	}
	if (!run_scene(t, &s, decoding, ARRAY_SIZE(decoding)))
		random_plans(t, &s, latent ? 1 : 2);
	s.all_logits = 1;
	if (!run_scene(t, &s, one_prompt, ARRAY_SIZE(one_prompt)))
		random_plans(t, &s, latent ? 1 : 2);
out:
	close_scene(&s);
}

/* Keys and values of 8 bits. */
static void kv_fp8_late(struct cairn_test *t)
{
	struct scene s;

	if (!open_scene_as(t, &s, "late", "llama3_tiny", CAIRN_KV_FP8) &&
	    !run_scene(t, &s, mixed, ARRAY_SIZE(mixed)))
		random_plans(t, &s, 4);
	close_scene(&s);
}

static void on_late(struct cairn_test *t, const char *model)
{
	int latent = !strncmp(model, "deepseek", 8);
	struct scene s;
	char table[32];

	snprintf(table, sizeof(table), "late%u", 1 + (unsigned)(cairn_rand(t) % 100000));
	if (!open_scene(t, &s, table, model) && !run_scene(t, &s, mixed, ARRAY_SIZE(mixed)))
		random_plans(t, &s, latent ? 1 : 4);
	close_scene(&s);
}

/* Returns the largest difference between logits, as a share of the largest logit; NaN counts as infinite. */
static double worst_difference(const struct scene *s)
{
	double most = 0, worst = 0;

	for (int32_t i = 0; i < s->batch.num_logits * s->m->config.vocab_size; i++) {
		double d = fabs((double)s->got[i] - (double)s->want[i]);

		most = fmax(most, fabs((double)s->want[i]));
		worst = d <= worst ? worst : d < INFINITY ? d : INFINITY;
	}
	return worst / most;
}

/*
 * On a GPU, sums may depend on the number of rows, requests and keys of a call. There, one nano-batch gives
 * the bits of the sequential pass, and with the same cuts all plans give the same bits, which are close to
 * those of the sequential pass.
 */
static void on_cuda(struct cairn_test *t, const char *model)
{
	static const int32_t cuts_of[3][3] = { { 31 }, { 4, 43 }, { 5, 22, 46 } };
	struct cairn_nano_plan one = { .num_batches = 1, .num_lanes = 1 }, plan;
	struct cairn_nano_place places[PLACES];
	struct cairn_nano *n = NULL;
	struct cairn_nano_cuts cuts;
	struct scene s;

	if (open_scene(t, &s, "cuda", model))
		goto out;
	for (int k = 1; k <= 4; k++) {
		if (run_scene(t, &s, mixed, ARRAY_SIZE(mixed)))
			goto out;
		cuts = cuts_at(&s, k, k > 1 ? cuts_of[k - 2] : NULL);
		one.num_batches = k;
		if (!EXPECT(t, cairn_nano_create(&n, s.s, &one) == 0))
			goto out;
		EXPECT(t, k == 1 ? run_nano(&s, n, &cuts) == 0 : run_nano(&s, n, &cuts) >= 0);
		cairn_nano_destroy(n);
		cairn_note(t, "%d nano-batches: logits differ by %.2g of the largest", k,
			   worst_difference(&s));
		EXPECT(t, worst_difference(&s) < 0.05);
		expect_last(&s, &cuts);
		for (int i = 0; i < 4; i++) {
			random_plan(t, s.m->graph, k, 1 + i, &plan, places, PLACES);
			random_parts(t, s.m->graph, &plan);
			for (int32_t p = 0; p < plan.num_places; p++)	/* whole calls have other shapes */
				if (places[p].batch < 0)
					places[p--] = places[--plan.num_places];
			same(t, &s, &plan, &cuts, "a random plan");
		}
	}
out:
	close_scene(&s);
}

#define EACH(what) \
	what(llama2, "llama2_tiny") what(llama3, "llama3_tiny") what(qwen2, "qwen2_tiny") \
	what(qwen3, "qwen3_tiny") what(mistral, "mistral_tiny") what(gemma2, "gemma2_tiny") \
	what(longrope, "longrope_tiny") what(mixtral, "mixtral_tiny") what(qwen3_moe, "qwen3_moe_tiny") \
	what(gpt_oss, "gpt_oss_tiny") \
	what(deepseek, "deepseek_tiny") what(deepseek_q, "deepseek_q_tiny") \
	what(deepseek_v2_group, "deepseek_v2_group_tiny") what(deepseek_v3, "deepseek_v3_tiny") \
	what(deepseek_v3_fp8, "deepseek_v3_fp8_tiny") what(qwen2_gptq, "qwen2_gptq_tiny")
#define DEFINE(unit, name) \
	static void unit##_cpu(struct cairn_test *t) { on_cpu(t, name); } \
	static void unit##_late(struct cairn_test *t) { on_late(t, name); } \
	static void unit##_cuda(struct cairn_test *t) { on_cuda(t, name); }
#define LIST_CPU(unit, name) { #unit "_cpu", unit##_cpu },
#define LIST_LATE(unit, name) { #unit "_late", unit##_late },
#define LIST_CUDA(unit, name) { #unit "_cuda", unit##_cuda },
EACH(DEFINE)

static const struct cairn_unit units[] = {
	EACH(LIST_CPU)
	EACH(LIST_LATE)
	EACH(LIST_CUDA)
	{ "kv_fp8_late", kv_fp8_late },
};

const struct cairn_family cairn_nano_family = {
	.stage = "serving",
	.name = "nano",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 6,
};
