// SPDX-License-Identifier: Apache-2.0
/*
 * speculation_test - measures what drafted rows cost and bring: rows of `cairn bench`
 *
 *   llama3_8b_speculation
 *	one request, a prompt of 1024 random tokens and an answer of NEW, random weights, bf16; times per
 *	step and per token, in ms, over the answer without its first tokens.
 *	  plain_ms           without speculation
 *	  rows8_ms, rows16_ms    7 and 15 drafts in each step, none of them right: the time of a step; and
 *	                     rows8, rows16: that in plain steps
 *	  tree16_ms, tree16    the same with 15 drafts as a binary tree
 *	  forced_ms, forced  four drafts in each step, so many of them right that a step gives 3.08 tokens:
 *	                     the time per token, and how many times as fast as plain that is
 *	  none_right_ms, none_right    four drafts at most, as many as pay, none of them right
 *
 *   llama3_8b_speculation_7k
 *	the same after a prompt of 7168 tokens.
 *   llama3_8b_speculation_ops
 *	the time of gemm, attention and all other operations of a step with 1, 5, 8 and 16 rows of one
 *	request, as lists of operations, each between two events.
 *
 * The answers are made by a bias that is larger than all logits, so that a drafter can be right or wrong as
 * often as it is told. That changes the tokens and not the work of a pass, since plain runs have it, too.
 */
#include <string.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/bench/load_test.h"
#include "serving/model/model_test.h"

enum { MAX_PROMPT = 7168, NEW = 400, WARM_UP = 60, TOKEN = 7, WRONG = 9 };

struct run {
	struct cairn_speculation opt;
	double right;			/* chance that a draft is right if those before it are */
	uint64_t seed;
	/* of the answer from token WARM_UP on */
	int32_t num, new_tokens;
	int64_t begin, end, steps;
	struct cairn_engine *e;
	enum cairn_decode_path decode;
	int no_graphs;
};

static int32_t draft(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
		     int32_t *drafts, int32_t *parents, int32_t room)
{
	struct run *r = ctx;

	(void)id, (void)index, (void)tokens, (void)num;
	for (int32_t k = 0; k < room; k++) {
		r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
		drafts[k] = (double)(r->seed >> 33) < r->right * 0x1p31 ? TOKEN : WRONG;
		if (r->opt.branches == 2) {
			parents[k] = k / 2;
			drafts[k] += k % 2;
		}
	}
	return room;
}

static int take(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct run *r = ctx;
	struct cairn_engine_stats stats;

	(void)index;
	(void)token;
	if (++r->num != WARM_UP && r->num != r->new_tokens)
		return 0;
	cairn_engine_stats(r->e, &stats);
	*(r->num == WARM_UP ? &r->begin : &r->end) = cairn_clock_ns();
	r->steps = stats.steps - r->steps;
	return 0;
}

static void run(struct cairn_test *t, struct cairn_model *m, int32_t num_prompt, int32_t new_tokens,
		struct run *r, struct cairn_engine_stats *stats)
{
	static const struct cairn_logit_bias bias = { TOKEN, 1e6f };
	static int32_t prompt[MAX_PROMPT];
	struct cairn_engine_options opt = {
		.max_batch = 1, .max_context = num_prompt + new_tokens, .page_size = 64,
		.speculation = r->opt, .decode = r->decode, .no_graphs = r->no_graphs,
	};
	struct cairn_request req = {
		.prompt = prompt, .num_prompt = num_prompt, .max_new_tokens = new_tokens, .ignore_eos = 1,
		.sampling = { .top_p = 1, .bias = &bias, .num_bias = 1 }, .on_token = take, .ctx = r,
	};

	for (int i = 0; i < num_prompt; i++)
		prompt[i] = (int32_t)(cairn_rand(t) % (uint64_t)m->config.vocab_size);
	if (!opt.speculation.draft)
		opt.speculation.draft = draft;
	opt.speculation.ctx = r;
	r->num = 0;
	r->steps = 0;
	r->new_tokens = new_tokens;
	if (!EXPECT(t, cairn_engine_create(&r->e, m, &opt) == 0))
		return;
	EXPECT(t, cairn_engine_submit(r->e, &req) == 0 && cairn_engine_run(r->e) == 0);
	EXPECT(t, r->num == new_tokens);
	cairn_engine_stats(r->e, stats);
	cairn_engine_destroy(r->e);
}

static double ms(const struct run *r, int64_t per)
{
	return (double)(r->end - r->begin) * 1e-6 / (double)(per > 0 ? per : 1);
}

/* The chance with which a step with four drafts gives 3.08 tokens: 1 + p + p^2 + p^3 + p^4. */
#define CHANCE_3_08	0.7185

static void measure(struct cairn_test *t, struct cairn_model *m, int32_t num_prompt, const char *name)
{
	struct run plain = { .seed = 1 }, rows8 = plain, rows16 = plain, tree16 = plain, forced = plain;
	struct run none = plain;
	struct cairn_engine_stats stats, s;
	const int64_t tokens = NEW - WARM_UP;

	rows8.opt = (struct cairn_speculation){ CAIRN_SPECULATE_CALLER, .num_tokens = 7, .always = 1 };
	rows16.opt = (struct cairn_speculation){ CAIRN_SPECULATE_CALLER, .num_tokens = 15, .always = 1 };
	tree16.opt = (struct cairn_speculation){ CAIRN_SPECULATE_CALLER, .num_tokens = 4, .branches = 2,
						 .tree_rows = 15, .always = 1 };
	forced.opt = (struct cairn_speculation){ CAIRN_SPECULATE_CALLER, .num_tokens = 4, .always = 1 };
	none.opt = (struct cairn_speculation){ CAIRN_SPECULATE_CALLER, .num_tokens = 4 };
	forced.right = CHANCE_3_08;
	run(t, m, num_prompt, NEW, &plain, &s);
	run(t, m, num_prompt, NEW, &rows8, &s);
	EXPECT(t, s.speculation.accepted_tokens == 0 && rows8.steps == tokens);
	run(t, m, num_prompt, NEW, &rows16, &s);
	EXPECT(t, s.speculation.accepted_tokens == 0 && rows16.steps == tokens);
	run(t, m, num_prompt, NEW, &tree16, &s);
	EXPECT(t, s.speculation.accepted_tokens == 0 && tree16.steps == tokens);
	run(t, m, num_prompt, NEW, &forced, &stats);
	run(t, m, num_prompt, NEW, &none, &s);
	cairn_row(t, name, "cuda",
		  "\"plain_ms\":%.4f,\"rows8_ms\":%.4f,\"rows8\":%.3f,\"rows16_ms\":%.4f,\"rows16\":%.3f,"
		  "\"tree16_ms\":%.4f,\"tree16\":%.3f,\"forced_ms\":%.4f,\"forced\":%.3f,"
		  "\"tokens_a_step\":%.3f,\"none_right_ms\":%.4f,\"none_right\":%.3f,"
		  "\"none_right_drafts\":%lld,\"pauses\":%lld",
		  ms(&plain, tokens), ms(&rows8, tokens), ms(&rows8, tokens) / ms(&plain, tokens),
		  ms(&rows16, tokens), ms(&rows16, tokens) / ms(&plain, tokens), ms(&tree16, tokens),
		  ms(&tree16, tokens) / ms(&plain, tokens), ms(&forced, tokens),
		  ms(&plain, tokens) / ms(&forced, tokens), (double)tokens / (double)forced.steps,
		  ms(&none, tokens), ms(&plain, tokens) / ms(&none, tokens),
		  (long long)s.speculation.draft_tokens, (long long)s.speculation.pauses);
}

/* ---- operations ---- */

enum { GEMM, ATTN, OTHER, NUM_KINDS, MAX_TIMED = 20000 };

static struct {
	struct cairn_impl real;
	void *from[MAX_TIMED], *to[MAX_TIMED];
	int kind[MAX_TIMED], num, wanted;
} timed;

#define TIMED(fn, k) \
	static int timed_##fn(const struct cairn_##fn##_args *args, void *stream) \
	{ \
		int at = timed.num; \
	\
		if (!timed.wanted || at == MAX_TIMED) \
			return timed.real.fn(args, stream); \
		timed.kind[timed.num++] = k; \
		CAIRN_TRY(timed.real.event_create(&timed.from[at])); \
		CAIRN_TRY(timed.real.event_create(&timed.to[at])); \
		CAIRN_TRY(timed.real.event_record(timed.from[at], stream)); \
		CAIRN_TRY(timed.real.fn(args, stream)); \
		return timed.real.event_record(timed.to[at], stream); \
	}
TIMED(gemm, GEMM)
TIMED(gemm_gated, GEMM)
TIMED(qkv_append, GEMM)
TIMED(attn_paged, ATTN)
TIMED(rmsnorm, OTHER)
TIMED(rope, OTHER)
TIMED(kv_append, OTHER)
TIMED(silu_mul, OTHER)
TIMED(penalize, OTHER)
TIMED(argmax, OTHER)

static int32_t draft_timed(void *ctx, uint64_t id, int32_t index, const int32_t *tokens, int32_t num,
			   int32_t *drafts, int32_t *parents, int32_t room)
{
	timed.wanted = 1;		/* the prompt's passes are not timed */
	return draft(ctx, id, index, tokens, num, drafts, parents,
		     ((struct run *)ctx)->opt.num_tokens < 2 ? 0 : room);
}

static void operations(struct cairn_test *t, struct cairn_model *m, struct cairn_impl *impl, int32_t rows,
		       const char *name)
{
	struct run r = { .decode = CAIRN_DECODE_UNFUSED, .no_graphs = 1, .seed = 1 };
	struct cairn_engine_stats stats;
	double kinds[NUM_KINDS] = { 0 };
	char row[64];
	float one;

	timed.real = *impl;
	timed.num = timed.wanted = 0;
	impl->gemm = timed_gemm;
	if (impl->gemm_gated)
		impl->gemm_gated = timed_gemm_gated;
	if (impl->qkv_append)
		impl->qkv_append = timed_qkv_append;
	impl->attn_paged = timed_attn_paged;
	impl->rmsnorm = timed_rmsnorm;
	impl->rope = timed_rope;
	impl->kv_append = timed_kv_append;
	impl->silu_mul = timed_silu_mul;
	impl->penalize = timed_penalize;
	impl->argmax = timed_argmax;
	r.opt = (struct cairn_speculation){ CAIRN_SPECULATE_CALLER, .num_tokens = rows > 1 ? rows - 1 : 1,
					    .always = 1, .draft = draft_timed };
	run(t, m, 1024, WARM_UP + 2, &r, &stats);
	*impl = timed.real;
	for (int i = 0; i < timed.num; i++) {
		EXPECT(t, impl->event_elapsed(&one, timed.from[i], timed.to[i]) == 0);
		kinds[timed.kind[i]] += (double)one;
		impl->event_destroy(timed.from[i]);
		impl->event_destroy(timed.to[i]);
	}
	snprintf(row, sizeof(row), "%s_%d", name, rows);
	cairn_row(t, row, "cuda", "\"gemm_ms\":%.4f,\"attn_ms\":%.4f,\"other_ms\":%.4f",
		  kinds[GEMM] / (WARM_UP + 1), kinds[ATTN] / (WARM_UP + 1), kinds[OTHER] / (WARM_UP + 1));
}

static void llama3_8b(struct cairn_test *t)
{
	struct cairn_impl impl;
	struct cairn_model *m;

	if (load_open(t, "llama3-8b", &impl, &m))
		return;
	measure(t, m, 1024, "llama3_8b_speculation");
	measure(t, m, MAX_PROMPT, "llama3_8b_speculation_7k");
	for (int32_t rows = 1; rows <= 16; rows = rows == 1 ? 5 : rows == 5 ? 8 : 2 * rows)
		operations(t, m, &impl, rows, "llama3_8b_speculation_ops");
	cairn_model_free(m);
}

/* The drafter of the measurements is right as often as it should be. */
static void forced(struct cairn_test *t)
{
	struct run r = { .opt = { CAIRN_SPECULATE_CALLER, .num_tokens = 4, .always = 1 }, .seed = 1,
			 .right = CHANCE_3_08 };
	struct cairn_engine_stats stats;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	double a_step;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama2_tiny"))
		return;
	if (EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) == 0)) {
		run(t, m, 40, 460, &r, &stats);
		a_step = (460.0 - WARM_UP) / (double)r.steps;
		cairn_note(t, "%.2f tokens a step", a_step);
		EXPECT(t, a_step > 2.7 && a_step < 3.5);
		r.right = 0;
		r.opt.num_tokens = 7;
		run(t, m, 40, 100, &r, &stats);
		EXPECT(t, r.steps == 100 - WARM_UP && stats.speculation.accepted_tokens == 0);
		r.opt.num_tokens = 4;
		r.opt.branches = 2;
		r.opt.tree_rows = 15;
		run(t, m, 40, 100, &r, &stats);
		EXPECT(t, r.steps == 100 - WARM_UP && stats.speculation.accepted_tokens == 0);
		EXPECT(t, stats.speculation.draft_tokens >= 15 * r.steps);
		cairn_model_free(m);
	}
	close_golden(&g);
}

static const struct cairn_unit units[] = {
	{ "forced", forced },
};

static const struct cairn_unit measures[] = {
	{ "llama3_8b", llama3_8b },
};

const struct cairn_family cairn_speculation_family = {
	.stage = "serving",
	.name = "speculation",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
