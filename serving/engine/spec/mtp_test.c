// SPDX-License-Identifier: Apache-2.0
/*
 * mtp_test - the layer for multi-token prediction of deepseek_v3_tiny: its results, compared with those of
 * tools/golden/golden_mtp.py, and its drafts
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/dtype.h"
#include "serving/engine/spec/draft_head_test.h"
#include "serving/engine/spec/engine_spec_test.h"
#include "serving/engine/spec/head_drafter.h"
#include "serving/engine/spec/mtp_head.h"
#include "serving/model/checkpoint/safetensors.h"

enum { TEXT = 32, VOCAB = 192, CHAINS = 4, DEPTH = 4 };

/*
 * Each draft's logit exceeds the runner-up's by at least 0.44, some two standard deviations (`bound` is six).
 * So a build that rounds differently may change one chain; a wrong layer gets none right.
 */
#define FEWEST_CHAINS	(CHAINS - 1)

struct setting {
	struct cairn_impl impl;
	struct golden g;
	struct cairn_model *m;
	struct cairn_draft_head *head;
};

static int open_setting(struct cairn_test *t, struct setting *s, const char *table,
			enum cairn_weights weights)
{
	memset(s, 0, sizeof(*s));
	if (open_table(t, table, &s->impl) || open_golden(t, &s->g, "deepseek_v3_tiny"))
		return -1;
	if (EXPECT(t, cairn_model_load_as(&s->m, &s->impl, s->g.dir, weights, CAIRN_KV_PLAIN, NULL,
					  NULL) == 0) &&
	    EXPECT(t, cairn_mtp_head_load(&s->head, s->m, s->g.dir) == 0))
		return 0;
	close_model(s->m, &s->g);
	return -1;
}

static void close_setting(struct setting *s)
{
	cairn_draft_head_free(s->head);
	close_model(s->m, &s->g);
}

/* ---- results ---- */

/* What tools/golden/golden_mtp.py has written. */
struct mtp_golden {
	struct cairn_safetensors *st;
	const int32_t *tokens, *lengths, *chains;
	const float *logits, *bound;
};

static int read_golden(struct cairn_test *t, struct mtp_golden *g)
{
	const int64_t text = TEXT, rows[2] = { TEXT - 1, VOCAB }, chains[2] = { CHAINS, DEPTH };
	const struct cairn_tensor *x[5];
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%.2000s/serving/golden/deepseek_v3_tiny/mtp.safetensors",
		 cairn_data_dir());
	if (!EXPECT(t, cairn_safetensors_open(path, &g->st) == 0))
		return -1;
	if (!EXPECT(t, cairn_safetensors_get(g->st, "tokens", 1, &text, &x[0]) == 0 &&
		       cairn_safetensors_get(g->st, "logits", 2, rows, &x[1]) == 0 &&
		       cairn_safetensors_get(g->st, "bound", 2, rows, &x[2]) == 0 &&
		       cairn_safetensors_get(g->st, "lengths", 1, chains, &x[3]) == 0 &&
		       cairn_safetensors_get(g->st, "chains", 2, chains, &x[4]) == 0)) {
		cairn_safetensors_close(g->st);
		return -1;
	}
	g->tokens = x[0]->data;
	g->logits = x[1]->data;
	g->bound = x[2]->data;
	g->lengths = x[3]->data;
	g->chains = x[4]->data;
	return 0;
}

/* Returns the largest error of the logits in units of its bound; sets how many argmaxes agree. */
static double logits_error(struct cairn_test *t, struct setting *s, const struct mtp_golden *g, int *agree)
{
	static float logits[(TEXT - 1) * VOCAB];
	double worst = 0;

	for (int i = 0; i < (TEXT - 1) * VOCAB; i++)
		logits[i] = NAN;
	head_logits(t, s->m, s->head, g->tokens, TEXT, logits);
	*agree = 0;
	for (int i = 0; i < TEXT - 1; i++) {
		int best[2] = { 0 };

		for (int k = 0; k < VOCAB; k++) {
			const int at = i * VOCAB + k;
			double off = fabs((double)logits[at] - (double)g->logits[at]);
			double error = off / (double)g->bound[at];

			worst = error <= worst ? worst : isnan(error) ? INFINITY : error;
			best[0] = logits[at] > logits[i * VOCAB + best[0]] ? k : best[0];
			best[1] = g->logits[at] > g->logits[i * VOCAB + best[1]] ? k : best[1];
		}
		*agree += best[0] == best[1];
	}
	return worst;
}

/*
 * Returns how many of the chains are the golden ones. The drafter is asked after each token of the text, so
 * that it computes most places first from its own states, and again from the target's.
 */
static int right_chains(struct cairn_test *t, struct setting *s, const struct mtp_golden *g)
{
	const struct cairn_worker_options opt = {
		.max_batch = 1, .max_rows = 64, .max_context = 64, .num_pages = 20, .page_size = 3,
	};
	struct cairn_head_drafter *d = NULL;
	struct cairn_kv_pool *pool = NULL;
	struct cairn_worker *w = NULL;
	int32_t drafts[DEPTH], parents[DEPTH], kv, n_pages;
	int right = 0, caught_up;

	if (EXPECT(t, cairn_kv_pool_create(&pool, 8, HEAD_PAGE, 1) == 0 &&
		      cairn_kv_pool_open(pool, &kv) == 0 && cairn_kv_pool_resize(pool, kv, TEXT, NULL) == 0))
		w = head_worker(t, s->m, s->head, cairn_kv_pool_pages(pool, kv, &n_pages), g->tokens, TEXT);
	if (!w || !EXPECT(t, cairn_head_drafter_create(&d, s->head, w, &opt, 1) == 0))
		goto out;
	for (int32_t n = 2, k = 0; n <= TEXT && k < CHAINS; n++) {
		struct cairn_sched_draft p = {
			.request = 7, .kv = kv, .tokens = g->tokens, .num_tokens = n, .drafts = drafts,
			.parents = parents, .room = DEPTH, .depth = DEPTH,
		};

		memset(drafts, 0xff, sizeof(drafts));
		if (!EXPECT(t, cairn_head_drafter_propose(d, pool, &p, 1, &caught_up) == 0))
			break;
		if (n == g->lengths[k])
			right += p.num == DEPTH && !memcmp(drafts, g->chains + DEPTH * k++, sizeof(drafts));
	}
out:
	cairn_head_drafter_destroy(d);
	cairn_kv_pool_destroy(pool);
	cairn_worker_destroy(w);
	return right;
}

static void golden(struct cairn_test *t)
{
	struct mtp_golden g;
	struct setting s;
	double worst;
	int agree, right;

	if (open_setting(t, &s, "cpu", CAIRN_WEIGHTS_PLAIN))
		return;
	if (!read_golden(t, &g)) {
		worst = logits_error(t, &s, &g, &agree);
		right = right_chains(t, &s, &g);
		cairn_note(t, "largest error %.2f of its bound; %d of %d argmaxes agree, %d of %d chains",
			   worst, agree, TEXT - 1, right, CHAINS);
		EXPECT(t, worst <= 1 && agree >= TEXT / 2 && right >= FEWEST_CHAINS);
		/* a feature of 128 elements and a latent of 512 + 64 */
		EXPECT(t, cairn_draft_head_token_bytes(s.head) == 2 * (128 + 576));
		EXPECT(t, s.head->bytes == cairn_mtp_head_model(s.head)->bytes);
		cairn_safetensors_close(g.st);
	}
	close_setting(&s);
}

/* ---- drafts ---- */

static void fill(const struct cairn_model *m, int32_t layer, enum cairn_weight w, double v)
{
	char *p = cairn_model_weight(m, layer, w);

	for (size_t i = 0; i < m->elements[w]; i++)
		cairn_store(p, m->dtype, (int64_t)i, v);
}

static void copy(const struct cairn_model *to, const struct cairn_model *from, enum cairn_weight w)
{
	memcpy(cairn_model_weight(to, 0, w), cairn_model_weight(from, 0, w),
	       from->elements[w] * cairn_dtype_bytes(from->dtype));
}

/* Takes attention and experts out of all layers, so that the hidden state remains the embedding. */
static void empty_layers(const struct cairn_model *m)
{
	for (int32_t l = 0; l < m->config.num_hidden_layers; l++) {
		fill(m, l, CAIRN_W_O, 0);
		if (l < m->config.experts.dense_layers) {
			fill(m, l, CAIRN_W_DOWN, 0);
			continue;
		}
		fill(m, l, CAIRN_W_EXPERTS_DOWN, 0);
		fill(m, l, CAIRN_W_SHARED_DOWN, 0);
	}
}

/* Makes the next token a function of the last one, and the layer one that knows the function. */
static void make_certain(struct setting *s)
{
	struct cairn_model *h = cairn_mtp_head_model(s->head);
	void *proj = cairn_model_weight(h, 0, CAIRN_W_EH_PROJ);
	const int64_t hidden = s->head->hidden;

	empty_layers(s->m);
	empty_layers(h);
	fill(h, 0, CAIRN_W_E_NORM, 1);
	fill(h, 0, CAIRN_W_EH_PROJ, 0);
	for (int64_t i = 0; i < hidden; i++)
		cairn_store(proj, h->dtype, i * 2 * hidden + i, 1);
	copy(h, s->m, CAIRN_W_EMBED);
	copy(h, s->m, CAIRN_W_FINAL_NORM);
	copy(h, s->m, CAIRN_W_LM_HEAD);
}

/*
 * Random requests. The drafts of the layer as it is are hardly ever right; those of the other layer are right
 * unless an answer samples. Neither layer changes an answer.
 */
static void random_requests(struct cairn_test *t)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct setting s;

	if (!EXPECT(t, c) || open_setting(t, &s, "cpu", CAIRN_WEIGHTS_PLAIN)) {
		free(c);
		return;
	}
	c->m = s.m;
	c->head = s.head;
	c->method = CAIRN_SPECULATE_MTP;
	crowd_rounds(t, c, 1);
	EXPECT(t, c->drafts > 50);
	make_certain(&s);
	c->drafts = c->accepted = 0;
	crowd_rounds(t, c, 2);
	EXPECT(t, c->drafts > 100 && c->accepted > c->drafts / 4);
	close_setting(&s);
	free(c);
}

/* One greedy answer: the certain layer's chains of four are right. */
static void chains_accepted(struct cairn_test *t)
{
	const struct cairn_engine_options opt = {
		.max_batch = 1, .max_rows = 15, .max_context = 128, .decode = CAIRN_DECODE_UNFUSED,
	};
	struct cairn_engine_options again = opt;
	struct cairn_engine_stats stats = { 0 };
	static struct answer want, got;
	struct cairn_engine *e;
	struct setting s;

	if (open_setting(t, &s, "cpu", CAIRN_WEIGHTS_PLAIN))
		return;
	make_certain(&s);
	again.speculation = (struct cairn_speculation){
		.method = CAIRN_SPECULATE_MTP, .head = s.head, .num_tokens = DEPTH, .always = 1,
	};
	for (int i = 0; i < 2; i++) {
		struct answer *a = i ? &got : &want;
		struct cairn_request r = {
			.id = 1, .prompt = s.g.tokens, .num_prompt = s.g.num_tokens, .max_new_tokens = 60,
			.sampling = { .top_p = 1 }, .ignore_eos = 1, .on_token = take, .on_finish = done,
			.on_started = started, .ctx = a,
		};

		memset(a, 0, sizeof(*a));
		if (!EXPECT(t, cairn_engine_create(&e, s.m, i ? &again : &opt) == 0))
			break;
		a->engine = e;
		a->id = r.id;
		EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
		cairn_engine_stats(e, &stats);
		cairn_engine_destroy(e);
	}
	cairn_note(t, "%lld of %lld drafts right; by place %lld, %lld, %lld, %lld",
		   (long long)stats.speculation.accepted_tokens, (long long)stats.speculation.draft_tokens,
		   (long long)stats.speculation.accepted_per_position[0],
		   (long long)stats.speculation.accepted_per_position[1],
		   (long long)stats.speculation.accepted_per_position[2],
		   (long long)stats.speculation.accepted_per_position[3]);
	EXPECT(t, want.num_ids == 60 && crowd_same(&want, &got));
	EXPECT(t, stats.speculation.accepted_tokens >= 44 && stats.speculation.drafts <= 16);
	close_setting(&s);
}

/*
 * 8-bit weights: the layer has them, too. Matrices rounded to 2^-4 change the logits of so small a model by
 * about their deviation; a wrong layer would agree in one argmax of 192.
 */
static void eight_bits(struct cairn_test *t)
{
	struct mtp_golden g;
	struct setting s;
	int agree;

	if (open_setting(t, &s, "cpu", CAIRN_WEIGHTS_FP8))
		return;
	if (!read_golden(t, &g)) {
		logits_error(t, &s, &g, &agree);
		cairn_note(t, "%d of %d argmaxes agree", agree, TEXT - 1);
		EXPECT(t, cairn_model_scale(cairn_mtp_head_model(s.head), 0, CAIRN_W_Q) != NULL);
		EXPECT(t, agree >= (TEXT - 1) / 4);
		cairn_safetensors_close(g.st);
	}
	close_setting(&s);
}

/* ---- what is refused ---- */

/* Writes the checkpoint's weights again, with a tensor left out, or of other sizes. */
static void without(struct cairn_test *t, const char *name, const char *sizes)
{
	char path[PATH_MAX + 64], line[256];
	FILE *from, *to;

	snprintf(path, sizeof(path), "%.2000s/serving/golden/deepseek_v3_tiny/recipe.txt", cairn_data_dir());
	from = fopen(path, "r");
	cairn_tmpfile(t, path, sizeof(path), "recipe.txt", "", 0);
	to = fopen(path, "w");
	if (!EXPECT(t, from && to))
		return;
	while (fgets(line, sizeof(line), from)) {
		if (!strstr(line, name))
			fputs(line, to);
		else if (sizes)
			fprintf(to, "draw %s %s 9\n", name, sizes);
	}
	fclose(from);
	fclose(to);
	recipe_weights(t, path);
}

static void refused(struct cairn_test *t)
{
	static const struct { const char *name, *sizes, *text; } tensors[] = {
		{ "model.layers.3.eh_proj.weight", NULL, "model.layers.3.eh_proj.weight" },
		{ "model.layers.3.enorm.weight", NULL, "model.layers.3.enorm.weight" },
		{ "model.layers.3.hnorm.weight", NULL, "model.layers.3.hnorm.weight" },
		{ "model.layers.3.embed_tokens.weight", NULL, "model.layers.3.embed_tokens.weight" },
		{ "model.layers.3.shared_head.norm.weight", NULL, "model.layers.3.shared_head.norm.weight" },
		{ "model.layers.3.shared_head.head.weight", NULL, "model.layers.3.shared_head.head.weight" },
		{ "model.layers.3.mlp.experts.7.up_proj.weight", NULL, "layers.3.mlp.experts.7.up_proj" },
		{ "model.layers.3.eh_proj.weight", "128 128", "model.layers.3.eh_proj.weight" },
	};
	static const struct { const char *to, *text; int ret; } configs[] = {
		{ "0", "num_nextn_predict_layers: is 0, must be 1", -EINVAL },
		{ "2", "num_nextn_predict_layers: is 2, must be 1", -EOPNOTSUPP },
	};
	struct cairn_draft_head *head = NULL;
	char dir[PATH_MAX], to[64];
	struct setting s;

	if (open_setting(t, &s, "cpu", CAIRN_WEIGHTS_PLAIN))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(tensors); i++) {
		without(t, tensors[i].name, tensors[i].sizes);
		EXPECT(t, cairn_mtp_head_load(&head, s.m, s.g.dir) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), tensors[i].text);
	}
	without(t, "no such name", NULL);
	for (size_t i = 0; i < ARRAY_SIZE(configs); i++) {
		snprintf(to, sizeof(to), "\"num_nextn_predict_layers\": %s", configs[i].to);
		altered_config(t, s.g.dir, i ? "\"num_nextn_predict_layers\": 0" :
			       "\"num_nextn_predict_layers\": 1", to);
		EXPECT(t, cairn_mtp_head_load(&head, s.m, s.g.dir) == configs[i].ret);
		EXPECT_CONTAINS(t, cairn_last_error(), configs[i].text);
	}
	snprintf(dir, sizeof(dir), "%.2000s/serving/golden/llama3_tiny", cairn_data_dir());
	EXPECT(t, cairn_mtp_head_load(&head, s.m, dir) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "architectures: multi-token prediction is supported for");
	EXPECT(t, head == NULL);
	close_setting(&s);
}

static void engine_refuses(struct cairn_test *t)
{
	struct cairn_engine_options opt = {
		.max_batch = 1, .max_context = 64, .speculation = { .method = CAIRN_SPECULATE_MTP },
	};
	static const struct cairn_nano_plans plans;
	struct cairn_engine *e;
	struct setting s;

	if (open_setting(t, &s, "cpu", CAIRN_WEIGHTS_PLAIN))
		return;
	EXPECT(t, cairn_engine_create(&e, s.m, &opt) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "speculative: mtp has no head");
	opt.speculation.head = s.head;
	opt.nano = &plans;
	EXPECT(t, cairn_engine_create(&e, s.m, &opt) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "speculative: mtp does not go with nano");
	opt.nano = NULL;
	opt.speculation.branches = 2;
	EXPECT(t, cairn_engine_create(&e, s.m, &opt) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "latent attention has no masks for trees");
	close_setting(&s);
}

/* ---- mutants ---- */

static const struct cairn_impl *right_impl;
static const struct cairn_draft_head_ops *right_ops;
static const struct setting *mutated;

static const void *weight_of_head(enum cairn_weight w)
{
	return cairn_model_weight(cairn_mtp_head_model(mutated->head), 0, w);
}

/* The norm with this weight is left out. */
static int skip_norm(const struct cairn_rmsnorm_args *args, void *stream, const void *weight)
{
	const size_t bytes = (size_t)args->rows * (size_t)args->dim * cairn_dtype_bytes(args->dtype);

	if (args->weight != weight)
		return right_impl->rmsnorm(args, stream);
	return right_impl->mem_copy(args->out, args->x, bytes, CAIRN_COPY_ON_DEVICE, stream);
}

static int embedding_not_normed(const struct cairn_rmsnorm_args *args, void *stream)
{
	return skip_norm(args, stream, weight_of_head(CAIRN_W_E_NORM));
}

static int state_not_normed(const struct cairn_rmsnorm_args *args, void *stream)
{
	return skip_norm(args, stream, weight_of_head(CAIRN_W_H_NORM));
}

static int result_not_normed(const struct cairn_rmsnorm_args *args, void *stream)
{
	return skip_norm(args, stream, weight_of_head(CAIRN_W_FINAL_NORM));
}

static int features_not_normed(const struct cairn_rmsnorm_args *args, void *stream)
{
	return skip_norm(args, stream, cairn_model_weight(mutated->m, 0, CAIRN_W_FINAL_NORM));
}

/* Rows of pairs: the state comes first. */
static int pairs_swapped(const struct cairn_embedding_args *args, void *stream)
{
	struct cairn_embedding_args other = *args;
	int32_t ids[2 * HEAD_TEXT];

	if (args->vocab % 2 || args->rows < 2 || args->ids[0] != 0 || args->ids[1] != args->vocab / 2)
		return right_impl->embedding(args, stream);
	for (int32_t i = 0; i < args->rows; i++)
		ids[i] = args->ids[i ^ 1];
	other.ids = ids;
	return right_impl->embedding(&other, stream);
}

static int embeddings_of_the_target(const struct cairn_embedding_args *args, void *stream)
{
	struct cairn_embedding_args other = *args;

	if (args->table == weight_of_head(CAIRN_W_EMBED))
		other.table = cairn_model_weight(mutated->m, 0, CAIRN_W_EMBED);
	return right_impl->embedding(&other, stream);
}

static int rows_at_one_position(const struct cairn_mla_append_args *args, void *stream)
{
	static const int32_t zeros[64];
	struct cairn_mla_append_args other = *args;

	if (args->norm_weight == weight_of_head(CAIRN_W_KV_NORM))
		other.positions = zeros;
	return right_impl->mla_append(&other, stream);
}

/* The token of the place itself, not the one after it. */
static int token_of_the_place(struct cairn_draft_head *head, const struct cairn_draft_pass *pass,
			      void *stream)
{
	struct cairn_draft_pass other = *pass;
	int32_t ids[64];

	for (int32_t i = 0; i < pass->num_rows; i++)
		ids[i] = pass->ids[i ? i - 1 : 0];
	other.ids = ids;
	return right_ops->run(head, &other, stream);
}

/* A chain goes on from the state that it had before. */
static int state_stays(struct cairn_draft_head *head, const struct cairn_draft_pass *pass, void *stream)
{
	const size_t row = (size_t)head->hidden * 2;
	char *before = malloc((size_t)pass->num_rows * row);
	int ret;

	memcpy(before, pass->states, (size_t)pass->num_rows * row);
	ret = right_ops->run(head, pass, stream);
	for (int32_t i = 0; i < pass->num_last; i++)
		memcpy(pass->next + (size_t)i * row, before + (size_t)pass->last_rows[i] * row, row);
	free(before);
	return ret;
}

#define MUTANT(op, fn)	{ #fn, offsetof(struct cairn_impl, op), (void *)fn, NULL }

static void mutants(struct cairn_test *t)
{
	static const struct {
		const char *name;
		size_t op;
		void *fn;
		int (*run)(struct cairn_draft_head *head, const struct cairn_draft_pass *pass,
			   void *stream);
	} all[] = {
		MUTANT(rmsnorm, embedding_not_normed), MUTANT(rmsnorm, state_not_normed),
		MUTANT(rmsnorm, result_not_normed), MUTANT(rmsnorm, features_not_normed),
		MUTANT(embedding, pairs_swapped), MUTANT(embedding, embeddings_of_the_target),
		MUTANT(mla_append, rows_at_one_position),
		{ "token_of_the_place", 0, NULL, token_of_the_place },
		{ "state_stays", 0, NULL, state_stays },
	};
	struct cairn_draft_head_ops ops;
	struct cairn_impl whole;
	struct mtp_golden g;
	struct setting s;
	int agree, right;

	if (open_setting(t, &s, "cpu", CAIRN_WEIGHTS_PLAIN))
		return;
	whole = s.impl;
	right_impl = &whole;
	right_ops = s.head->ops;
	mutated = &s;
	for (size_t i = 0; !read_golden(t, &g) && i < ARRAY_SIZE(all); i++) {
		double worst;

		ops = *right_ops;
		if (all[i].run)
			ops.run = all[i].run;
		else
			memcpy((char *)&s.impl + all[i].op, &all[i].fn, sizeof(all[i].fn));
		s.head->ops = &ops;
		worst = logits_error(t, &s, &g, &agree);
		right = right_chains(t, &s, &g);
		if (!EXPECT(t, worst > 1 || right < FEWEST_CHAINS))
			cairn_note(t, "%s", all[i].name);
		s.impl = whole;
		s.head->ops = right_ops;
		cairn_safetensors_close(g.st);
	}
	close_setting(&s);
}

static const struct cairn_unit units[] = {
	{ "golden", golden }, { "random_requests", random_requests }, { "chains_accepted", chains_accepted },
	{ "eight_bits", eight_bits }, { "refused", refused }, { "engine_refuses", engine_refuses },
	{ "mutants", mutants },
};

const struct cairn_family cairn_mtp_family = {
	.stage = "serving",
	.name = "mtp",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 2,
};
