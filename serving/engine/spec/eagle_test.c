// SPDX-License-Identifier: Apache-2.0
/*
 * eagle_test - an EAGLE-3 head of the embedded model (tools/train_eagle3.py): its results, and its drafts
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "primitives/base/dtype.h"
#include "serving/engine/spec/draft_head_test.h"
#include "serving/engine/spec/eagle_head.h"
#include "serving/engine/spec/engine_spec_test.h"
#include "serving/model/checkpoint/safetensors.h"
#include "serving/tokenizer/tokenizer.h"

static int open_embedded(struct cairn_test *t, struct cairn_impl *impl, struct cairn_model **m,
			 struct cairn_draft_head **head)
{
	char dir[PATH_MAX];

	*m = NULL;
	snprintf(dir, sizeof(dir), "%.2000s/serving/embedded", cairn_data_dir());
	if (open_table(t, "cpu", impl) || !EXPECT(t, cairn_model_load(m, impl, dir, NULL, NULL) == 0))
		return -1;
	snprintf(dir, sizeof(dir), "%.2000s/serving/golden/eagle3_embedded", cairn_data_dir());
	if (EXPECT(t, cairn_eagle_head_load(head, *m, dir) == 0))
		return 0;
	cairn_model_free(*m);
	return -1;
}

static void close_embedded(struct cairn_model *m, struct cairn_draft_head *head)
{
	cairn_draft_head_free(head);
	cairn_model_free(m);
}

/* ---- results ---- */

/*
 * The logits of the head, as JAX computes them in f32 from the stored weights; the target and the head run in
 * bf16 here. Some sixty values in a row are rounded, each by at most 2^-9 of itself: for logits of up to 20
 * errors that add up at random are about 20 * 2^-9 * sqrt(60) = 0.3. The mean error is far below the largest.
 */
static void golden_logits(struct cairn_test *t)
{
	enum { ROWS = 39 };
	const struct cairn_tensor *tokens, *want;
	const int64_t num = ROWS + 1, shape[2] = { ROWS, 192 };
	struct cairn_draft_head *head;
	struct cairn_safetensors *st;
	struct cairn_model *m;
	struct cairn_impl impl;
	char path[PATH_MAX];
	static float logits[ROWS * 192];
	double worst = 0, sum = 0;
	int agree = 0;

	if (open_embedded(t, &impl, &m, &head))
		return;
	snprintf(path, sizeof(path), "%.2000s/serving/golden/eagle3_embedded/golden.safetensors",
		 cairn_data_dir());
	if (!EXPECT(t, cairn_safetensors_open(path, &st) == 0)) {
		close_embedded(m, head);
		return;
	}
	if (EXPECT(t, cairn_safetensors_get(st, "tokens", 1, &num, &tokens) == 0 &&
		      cairn_safetensors_get(st, "logits", 2, shape, &want) == 0)) {
		head_logits(t, m, head, tokens->data, ROWS + 1, logits);
		for (int i = 0; i < ROWS; i++) {
			const float *a = logits + i * 192, *b = (const float *)want->data + i * 192;
			int best[2] = { 0 };

			for (int k = 0; k < 192; k++) {
				best[0] = a[k] > a[best[0]] ? k : best[0];
				best[1] = b[k] > b[best[1]] ? k : best[1];
				worst = fmax(worst, fabs((double)a[k] - (double)b[k]));
				sum += fabs((double)a[k] - (double)b[k]);
			}
			agree += best[0] == best[1];
		}
		cairn_note(t, "largest difference %.3f, mean %.4f; %d of %d argmaxes agree", worst,
			   sum / (ROWS * 192), agree, ROWS);
		EXPECT(t, worst < 0.3 && sum / (ROWS * 192) < 0.05 && agree >= ROWS - 3);
	}
	cairn_safetensors_close(st);
	close_embedded(m, head);
}

/* ---- drafts ---- */

enum { QUESTIONS = 24 };

/* Answers some held-out questions greedily; returns the tokens of a step, and the answers in ids. */
static double answers(struct cairn_test *t, struct cairn_model *m, const struct cairn_speculation *s,
		      int32_t prompts[][96], const int32_t *lens, struct answer *got)
{
	const struct cairn_engine_options opt = {
		.max_batch = 4, .max_rows = 128, .max_context = 160, .decode = CAIRN_DECODE_UNFUSED,
		.speculation = *s,
	};
	struct cairn_engine_stats stats;
	struct cairn_engine *e;

	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		return 0;
	for (int i = 0; i < QUESTIONS; i++) {
		struct cairn_request r = {
			.id = (uint64_t)i, .prompt = prompts[i], .num_prompt = lens[i], .max_new_tokens = 32,
			.sampling = { .top_p = 1 }, .on_token = take, .on_finish = done,
			.on_started = started, .ctx = &got[i],
		};

		memset(&got[i], 0, sizeof(got[i]));
		got[i].engine = e;
		got[i].id = r.id;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
	}
	EXPECT(t, cairn_engine_run(e) == 0 && cairn_engine_verify(e) == 0);
	cairn_engine_stats(e, &stats);
	cairn_engine_destroy(e);
	if (!stats.speculation.drafts)
		return 1;
	cairn_note(t, "%d branches: %lld drafts right of %lld, in %lld steps; by place %lld, %lld, %lld",
		   s->branches, (long long)stats.speculation.accepted_tokens,
		   (long long)stats.speculation.draft_tokens, (long long)stats.speculation.drafts,
		   (long long)stats.speculation.accepted_per_position[0],
		   (long long)stats.speculation.accepted_per_position[1],
		   (long long)stats.speculation.accepted_per_position[2]);
	return 1 + (double)stats.speculation.accepted_tokens / (double)stats.speculation.drafts;
}

/* Reads the prompts of some held-out questions. */
static int read_questions(struct cairn_test *t, int32_t prompts[][96], int32_t *lens)
{
	struct cairn_tokenizer *tok;
	char path[PATH_MAX], line[4096];
	int num = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%.2000s/serving/embedded/eval.jsonl", cairn_data_dir());
	f = fopen(path, "r");
	snprintf(path, sizeof(path), "%.2000s/serving/embedded", cairn_data_dir());
	if (!EXPECT(t, f) || !EXPECT(t, cairn_tokenizer_open(path, &tok) == 0)) {
		if (f)
			fclose(f);
		return -1;
	}
	for (int i = 0; num < QUESTIONS && fgets(line, sizeof(line), f); i++) {
		char *text = strstr(line, "\"prompt\": \""), *end = text ? strstr(text, "\\n\"") : NULL;
		int32_t *ids = NULL;
		size_t n = 0;

		if (!end || i % 5)
			continue;
		text += strlen("\"prompt\": \"");
		*end = '\n';
		if (EXPECT(t, cairn_tokenizer_encode(tok, text, (size_t)(end + 1 - text),
					      CAIRN_ENCODE_ADD_SPECIAL, &ids, &n) == 0) &&
		    n < 96) {
			memcpy(prompts[num], ids, n * sizeof(*ids));
			lens[num++] = (int32_t)n;
		}
		free(ids);
	}
	fclose(f);
	cairn_tokenizer_free(tok);
	return EXPECT(t, num == QUESTIONS) ? 0 : -1;
}

static void drafts(struct cairn_test *t)
{
	static int32_t prompts[QUESTIONS][96], lens[QUESTIONS];
	static struct answer want[QUESTIONS], got[QUESTIONS];
	struct cairn_speculation s = { CAIRN_SPECULATE_OFF, .num_tokens = 3, .always = 1 };
	struct cairn_draft_head *head;
	struct cairn_model *m;
	struct cairn_impl impl;
	double chain, tree;

	if (open_embedded(t, &impl, &m, &head))
		return;
	if (!read_questions(t, prompts, lens)) {
		answers(t, m, &s, prompts, lens, want);
		s.method = CAIRN_SPECULATE_EAGLE3;
		s.head = head;
		chain = answers(t, m, &s, prompts, lens, got);
		for (int i = 0; i < QUESTIONS; i++)
			EXPECT(t, crowd_same(&want[i], &got[i]));
		s.branches = 3;
		tree = answers(t, m, &s, prompts, lens, got);
		for (int i = 0; i < QUESTIONS; i++)
			EXPECT(t, crowd_same(&want[i], &got[i]));
		cairn_note(t, "%.2f tokens a step in chains, %.2f in trees", chain, tree);
		EXPECT(t, chain > 1.3 && tree > chain);
	}
	close_embedded(m, head);
}

/* Random requests: batches, samples, forks, prefix hits and preemption do not change an answer. */
static void random_requests(struct cairn_test *t)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_impl impl;

	if (!EXPECT(t, c) || open_embedded(t, &impl, &c->m, &c->head)) {
		free(c);
		return;
	}
	c->method = CAIRN_SPECULATE_EAGLE3;
	crowd_rounds(t, c, 1);
	c->branches = 3;
	crowd_rounds(t, c, 1);
	EXPECT(t, c->drafts > 100 && c->trees > 0);
	close_embedded(c->m, c->head);
	free(c);
}

/* What a checkpoint may have wrong; each copy of the head differs in one thing. */
static void refused(struct cairn_test *t)
{
	static const struct { const char *from, *to, *text; } rows[] = {
		{ "LlamaForCausalLMEagle3", "LlamaForCausalLM", "architectures: is no EAGLE-3 head" },
		{ "\"vocab_size\": 512", "\"vocab_size\": 513", "vocab_size 513" },
		{ "\"hidden_size\": 64", "\"hidden_size\": 72", "hidden_size: 72 is no multiple of 16" },
		{ "\"intermediate_size\": 96", "\"intermediate_size\": 64", "midlayer.mlp.gate_proj.weight" },
		{ "\"draft_vocab_size\": 192", "\"draft_vocab_size\": 191", "lm_head.weight" },
		{ "    4\n", "    5\n", "eagle_aux_hidden_state_layer_ids: the model has no layer 5" },
		{ "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", "num_hidden_layers: only 1" },
	};
	char from[PATH_MAX], to[PATH_MAX], dir[PATH_MAX], text[4096], other[4096];
	struct cairn_draft_head *head;
	struct cairn_model *m, *none;
	struct cairn_impl impl;

	if (open_embedded(t, &impl, &m, &head))
		return;
	cairn_draft_head_free(head);
	snprintf(dir, sizeof(dir), "%.2000s/serving/golden/eagle3_embedded", cairn_data_dir());
	EXPECT(t, cairn_model_load(&none, &impl, dir, NULL, NULL) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "is an EAGLE-3 head");
	snprintf(from, sizeof(from), "%.2000s/model.safetensors", dir);
	snprintf(to, sizeof(to), "%.2000s/model.safetensors", cairn_tmpdir(t));
	EXPECT(t, symlink(from, to) == 0);
	snprintf(from, sizeof(from), "%.2000s/config.json", dir);
	snprintf(to, sizeof(to), "%.2000s/config.json", cairn_tmpdir(t));
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		FILE *f = fopen(from, "r");
		size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
		char *at;

		if (f)
			fclose(f);
		text[n] = 0;
		at = strstr(text, rows[i].from);
		if (!EXPECT(t, at))
			continue;
		*at = 0;
		snprintf(other, sizeof(other), "%s%s%s", text, rows[i].to, at + strlen(rows[i].from));
		f = fopen(to, "w");
		EXPECT(t, f && fputs(other, f) >= 0 && fclose(f) == 0);
		EXPECT(t, cairn_eagle_head_load(&head, m, cairn_tmpdir(t)) < 0);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].text);
	}
	cairn_model_free(m);
}

static const struct cairn_unit units[] = {
	{ "golden_logits", golden_logits }, { "drafts", drafts }, { "random_requests", random_requests },
	{ "refused", refused },
};

const struct cairn_family cairn_eagle_family = {
	.stage = "serving",
	.name = "eagle",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 3,
};
