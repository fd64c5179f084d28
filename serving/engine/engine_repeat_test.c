// SPDX-License-Identifier: Apache-2.0
/*
 * engine_repeat_test - a repeatable engine gives a request the same bits alone and among 63 others
 *
 * The others share prefixes with it, have prompts of all lengths and other sampling parameters and penalties,
 * and need more pages than there are, so that requests are preempted. Without `repeatable` the bits differ on
 * a GPU.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/engine/engine_test.h"

enum {
	OTHERS = 63,
	PROMPT = 300,
	NEW = 48,
	SUBJECTS = 4,
};

/* The requests under test, which must get the same answers in both runs, and the others. */
struct crowd {
	struct cairn_model *m;
	struct cairn_engine_options opt;
	int32_t prompts[SUBJECTS][PROMPT], other[OTHERS][PROMPT];
	struct answer alone[SUBJECTS][2], among[SUBJECTS][2], ignored[OTHERS];
};

static struct cairn_request make(const int32_t *prompt, int32_t num, struct answer *a)
{
	const struct golden g = { .tokens = (int32_t *)prompt };
	struct cairn_request r = request(&g, num, NEW, a);

	r.ignore_eos = 1;
	r.sampling.num_logprobs = 6;
	return r;
}

/* Under test: greedy; sampled; with two answers; greedy with a prompt that ends where a chunk does. */
static struct cairn_request subject(struct crowd *c, int i, struct answer *a)
{
	struct cairn_request r = make(c->prompts[i], i == 3 ? 256 : PROMPT - 7 * i, a);

	a[1] = a[0];
	if (i == 1 || i == 2)
		r.sampling.temperature = 1;
	r.sampling.seed = 5 + (uint64_t)i;
	r.num_seqs = i == 2 ? 2 : 1;
	return r;
}

static struct cairn_request neighbour(struct crowd *c, int i)
{
	struct cairn_request r = make(c->other[i], 1 + i * 37 % (PROMPT - 1), &c->ignored[i]);

	r.max_new_tokens = 1 + i % NEW;
	r.sampling.num_logprobs = i % 3;
	if (i % 2)
		r.sampling.temperature = 1;
	if (i % 5 == 1)
		r.sampling.repetition_penalty = 1.3f;
	return r;
}

static int run(struct cairn_test *t, struct crowd *c, struct cairn_engine_stats *stats, int with_others,
	       int only)
{
	struct cairn_engine *e;

	if (!EXPECT(t, cairn_engine_create(&e, c->m, &c->opt) == 0))
		return -1;
	for (int i = 0; i < OTHERS && with_others; i++) {
		struct cairn_request r = neighbour(c, i);

		EXPECT(t, cairn_engine_submit(e, &r) == 0);
		if (i % 16 == 14) {	/* the last request under test comes last, so it is preempted first */
			r = subject(c, i / 16, c->among[i / 16]);
			EXPECT(t, cairn_engine_submit(e, &r) == 0);
		}
	}
	if (!with_others) {
		struct cairn_request s = subject(c, only, c->alone[only]);

		EXPECT(t, cairn_engine_submit(e, &s) == 0);
	}
	EXPECT(t, cairn_engine_run(e) == 0 && cairn_engine_verify(e) == 0);
	cairn_engine_stats(e, stats);
	cairn_engine_destroy(e);
	return 0;
}

static int same(const struct answer *a, const struct answer *b)
{
	return a->num_ids == NEW && a->num_ids == b->num_ids && !memcmp(a->ids, b->ids, sizeof(a->ids)) &&
	       !memcmp(a->logprob, b->logprob, sizeof(a->logprob)) &&
	       !memcmp(a->top, b->top, sizeof(a->top)) &&
	       !memcmp(a->top_logprob, b->top_logprob, sizeof(a->top_logprob));
}

/* Returns how many answers of the requests under test have different bits alone and among the others. */
static int differing(struct cairn_test *t, struct crowd *c, struct cairn_engine_stats *stats)
{
	int differ = 0;

	for (int i = 0; i < SUBJECTS; i++) {
		if (run(t, c, stats, 0, i))
			return -1;
	}
	if (run(t, c, stats, 1, 0))
		return -1;
	for (int i = 0; i < SUBJECTS; i++) {
		for (int k = 0; k < 1 + (i == 2); k++)
			differ += !same(&c->alone[i][k], &c->among[i][k]);
	}
	return differ;
}

static void repeats(struct cairn_test *t, struct cairn_model *m, int on_gpu)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_engine_stats stats;
	int32_t vocab = m->config.vocab_size;

	if (!EXPECT(t, c != NULL))
		return;
	c->m = m;
	for (int i = 0; i < SUBJECTS; i++) {
		for (int k = 0; k < PROMPT; k++)
			c->prompts[i][k] = (int32_t)(cairn_rand(t) % (uint64_t)vocab);
	}
	for (int i = 0; i < OTHERS; i++) {
		for (int k = 0; k < PROMPT; k++)	/* some begin with 100 to 300 tokens of a subject */
			c->other[i][k] = i % 2 && k < 100 + i % 5 * 50 ? c->prompts[i / 2 % SUBJECTS][k] :
					 (int32_t)(cairn_rand(t) % (uint64_t)vocab);
	}
	/* chunks of 64 rows; pages for about eight requests; expected_new 1 admits more than fit */
	c->opt = (struct cairn_engine_options){
		.max_batch = 64, .max_context = PROMPT + NEW, .max_rows = 64, .page_size = 4,
		.num_pages = 300, .expected_new = 1, .repeatable = 1,
	};
	EXPECT(t, differing(t, c, &stats) == 0);
	EXPECT(t, stats.scheduler.recomputed > 0 && stats.scheduler.hit_tokens > 0);
	cairn_note(t, "%lld recomputed, %lld tokens of the cache", (long long)stats.scheduler.recomputed,
		   (long long)stats.scheduler.hit_tokens);
	c->opt.host_pages = 800;
	c->opt.recompute_ns = 1000000;
	c->opt.swap_ns = 1;
	EXPECT(t, differing(t, c, &stats) == 0);
	EXPECT(t, stats.scheduler.swapped > 0 && stats.fused_steps == 0);
	if (on_gpu) {		/* without repeatable, the bits depend on the composition of passes */
		c->opt.repeatable = 0;
		EXPECT(t, differing(t, c, &stats) > 0);
	}
	free(c);
}

/* The operations of cpu, run asynchronously. */
static void late(struct cairn_test *t)
{
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "late", "llama3_tiny", &impl, &g, &m))
		return;
	repeats(t, m, 0);
	close_model(m, &g);
}

/* Two layers of a real shape: large enough that kernels are chosen by shape and keys are split. */
static void layers(struct cairn_test *t, const char *shape, enum cairn_weights weights, enum cairn_kv_form kv)
{
	struct cairn_model_config c;
	struct cairn_model *m;
	struct cairn_impl impl;

	if (open_table(t, "cuda", &impl) || !EXPECT(t, cairn_model_shape(shape, &c) == 0))
		return;
	c.num_hidden_layers = 2;
	c.vocab_size = 8192;
	if (EXPECT(t, cairn_model_random_as(&m, &impl, &c, weights, kv, 3) == 0)) {
		repeats(t, m, 1);
		cairn_model_free(m);
	}
}

static void llama_cuda(struct cairn_test *t)
{
	layers(t, "llama32-1b", CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN);
}

static void kv_fp8_cuda(struct cairn_test *t)
{
	layers(t, "llama32-1b", CAIRN_WEIGHTS_PLAIN, CAIRN_KV_FP8);
}

static void fp8_cuda(struct cairn_test *t)
{
	layers(t, "llama32-1b", CAIRN_WEIGHTS_FP8, CAIRN_KV_PLAIN);
}

static void fp8_blocks_cuda(struct cairn_test *t)
{
	layers(t, "llama32-1b", CAIRN_WEIGHTS_FP8_BLOCKS, CAIRN_KV_PLAIN);
}

static void latent_fp8_cuda(struct cairn_test *t)
{
	layers(t, "dsv2lite", CAIRN_WEIGHTS_FP8, CAIRN_KV_PLAIN);
}

static void latent_cuda(struct cairn_test *t)
{
	layers(t, "dsv2lite", CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN);
}

/* Options and requests that cannot be repeatable are refused. */
static void refused(struct cairn_test *t)
{
	struct cairn_engine_options opt = { .max_batch = 2, .max_context = 64, .repeatable = 1 };
	struct cairn_engine *e;
	struct cairn_request r;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct answer a;
	struct golden g;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		return;
	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		r = request(&g, 8, 1, &a);
		r.prompt_logprobs = 1;
		EXPECT(t, cairn_engine_submit(e, &r) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "prompt_logprobs: does not go with repeatable");
		cairn_engine_destroy(e);
	}
	opt.max_rows = 8;
	opt.page_size = 16;
	EXPECT(t, cairn_engine_create(&e, m, &opt) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "max_rows: is 8, must be at least page_size 16");
	opt.max_rows = 32;
	opt.cache_grain = 1;
	EXPECT(t, cairn_engine_create(&e, m, &opt) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "cache_grain: 1 does not go with repeatable");
	close_model(m, &g);
}

static const struct cairn_unit units[] = {
	{ "late", late },
	{ "llama_cuda", llama_cuda },
	{ "kv_fp8_cuda", kv_fp8_cuda },
	{ "fp8_cuda", fp8_cuda },
	{ "fp8_blocks_cuda", fp8_blocks_cuda },
	{ "latent_cuda", latent_cuda },
	{ "latent_fp8_cuda", latent_fp8_cuda },
	{ "refused", refused },
};

const struct cairn_family cairn_engine_repeat_family = {
	.stage = "serving", .name = "engine_repeat", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 20,
};
