// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_context_test - ranks that share out rows and heads give the bits of one process
 *
 * Products compute rows independently of each other on cpu, and attention heads, so log-probabilities and
 * tokens are compared for equality. A pass of one row is computed by rank 0, and the others have none.
 */
#include "conformance/harness.h"
#include "serving/ranks/ranks_changed_test.h"
#include "serving/ranks/ranks_model_test.h"

#define HEADS	.context = CAIRN_EXCHANGE_HEADS

static void compare(struct cairn_test *t, const struct shared *s, const char *dir)
{
	struct scored whole, shared;
	int32_t tokens[NUM];

	write_prompt(tokens);
	if (!EXPECT(t, score_shared(t, s, dir, tokens, NULL, &shared) == 0))
		cairn_note(t, "%s", cairn_last_error());
	EXPECT(t, score_whole(s, dir, tokens, &whole) == 0);
	for (int i = 1; i < NUM; i++)
		EXPECT(t, whole.prompt[i] < 0);
	if (!EXPECT(t, same(&whole, &shared)))
		cairn_note(t, "%s, %d ranks: logprobs differ by %g, %d tokens are the same",
			   s->name ? s->name : "crafted", s->ranks, (double)apart(&whole, &shared),
			   same_tokens(&whole, &shared));
}

static void latents(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "deepseek_tiny", .ranks = 2, HEADS },
		{ .name = "deepseek_v3_tiny", .ranks = 4, HEADS },
		{ .name = "deepseek_v3_fp8_tiny", .ranks = 2, HEADS, .weights = CAIRN_WEIGHTS_FP8 },
	};
	char dir[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		if (!write_model(t, &all[i], dir))
			compare(t, &all[i], dir);
}

static void heads(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "llama3_tiny", .ranks = 2, HEADS },
		{ .name = "llama3_tiny", .ranks = 2, HEADS, .weights = CAIRN_WEIGHTS_FP8 },
		{ .name = "mixtral_tiny", .ranks = 2, HEADS },
		/* four ranks, but two KV heads, or one */
		{ .name = "llama3_tiny", .ranks = 4, HEADS, .kv = CAIRN_KV_FP8 },
		{ .name = "qwen3_tiny", .ranks = 4, HEADS },
		{ .name = "gemma2_tiny", .ranks = 2, HEADS },
	};
	char dir[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		if (!write_model(t, &all[i], dir))
			compare(t, &all[i], dir);
}

/* Writes mistral_tiny with another number of KV heads, two query heads and scales for each of them. */
static int write_heads(struct cairn_test *t, int heads, char *dir)
{
	const struct { const char *name; int rows, cols; } sizes[] = {
		{ "q_proj", 128 * heads, 256 }, { "k_proj", 64 * heads, 256 }, { "v_proj", 64 * heads, 256 },
		{ "o_proj", 256, 128 * heads },
	};
	char path[PATH_MAX], all[64], of_keys[64];
	struct recipe_line l;
	struct golden g;
	FILE *from, *to;
	int seed = 0;

	snprintf(all, sizeof(all), "\"head_dim\": 64, \"num_attention_heads\": %d", 2 * heads);
	snprintf(of_keys, sizeof(of_keys), "\"num_key_value_heads\": %d", heads);
	if (open_golden(t, &g, "mistral_tiny"))
		return -1;
	snprintf(dir, PATH_MAX, "%s", g.dir);
	close_golden(&g);
	snprintf(path, sizeof(path), "%.2000s/serving/golden/mistral_tiny/recipe.txt", cairn_data_dir());
	from = fopen(path, "r");
	cairn_tmpfile(t, path, sizeof(path), "recipe.txt", "", 0);
	to = fopen(path, "w");
	if (!EXPECT(t, from && to && fscanf(from, "seed %d", &seed) == 1))
		return -1;
	fprintf(to, "seed %d\n", seed);
	while (recipe_next(from, &l)) {
		for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
			if (strstr(l.name, sizes[i].name)) {
				l.rows = sizes[i].rows;
				l.cols = sizes[i].cols;
			}
		fprintf(to, "%s %s %d", l.kind, l.name, l.rows);
		if (*l.kind != 'n')
			fprintf(to, " %d %d", l.cols, l.shift);
		fprintf(to, "\n");
	}
	for (int i = 0; i < 4; i++)
		fprintf(to, "norm model.layers.%d.self_attn.%c_scale %d\n", i / 2, "kv"[i % 2], heads);
	fclose(from);
	fclose(to);
	return recipe_weights(t, path) ||
	       altered_config(t, dir, "\"num_attention_heads\": 4", all) ||
	       altered_config(t, dir, "\"num_key_value_heads\": 2", of_keys) ? -1 : 0;
}

static void more_ranks(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "three heads", .ranks = 3, HEADS },
		{ .name = "three heads, 8-bit cache", .ranks = 3, HEADS, .kv = CAIRN_KV_FP8 },
		{ .name = "four heads", .ranks = 4, HEADS },
		{ .name = "eight heads, 8-bit cache", .ranks = 4, HEADS, .kv = CAIRN_KV_FP8 },
	};
	static const int heads[] = { 3, 3, 4, 8 };
	char dir[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		if (!write_heads(t, heads[i], dir))
			compare(t, &all[i], dir);
}

#define REFUSE(dir, ranks) \
	cairn_model_load_context(&m, &impl, dir, 0, ranks, CAIRN_EXCHANGE_HEADS, CAIRN_WEIGHTS_PLAIN, \
				 CAIRN_KV_PLAIN, NULL, NULL)

static void refused(struct cairn_test *t)
{
	static const struct { const char *name; int ranks; const char *text; } rows[] = {
		{ "llama3_tiny", 3, "num_attention_heads: 4 is not divisible among 3 ranks" },
		{ "deepseek_tiny", 3, "num_attention_heads: 8 is not divisible among 3 ranks" },
		{ "gpt_oss_tiny", 2, "model_type: attention sinks are not supported with context" },
	};
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct golden g;
	char dir[PATH_MAX];

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_golden(t, &g, rows[i].name))
			continue;
		EXPECT(t, REFUSE(g.dir, rows[i].ranks) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].text);
		close_golden(&g);
	}
	/* six query heads */
	if (!write_heads(t, 3, dir) &&
	    !altered_config(t, dir, "\"num_key_value_heads\": 3", "\"num_key_value_heads\": 2")) {
		EXPECT(t, REFUSE(dir, 3) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), "num_key_value_heads: 2 heads are neither divisible");
	}
	impl.all_to_all = NULL;
	if (!open_golden(t, &g, "llama3_tiny")) {
		EXPECT(t, REFUSE(g.dir, 2) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), "the table has no operation all_to_all");
		close_golden(&g);
	}
	EXPECT(t, m == NULL);
}

/* ---- mutants ---- */

static struct cairn_impl right;		/* the table of a rank before it was changed */
static int calls;			/* of all_to_all */
static int own_rank;

#define EXCHANGE(name, change) \
	static int name##_call(const struct cairn_all_to_all_args *args, void *stream) \
	{ \
		struct cairn_all_to_all_args a = *args; \
		int is_gather = !a.x_block, is_back = a.out_block == a.row_bytes; \
		(void)is_gather; \
		(void)is_back; \
		change; \
		calls++; \
		return right.all_to_all(&a, stream); \
	} \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		(void)m; \
		right = *impl; \
		impl->all_to_all = name##_call; \
	}

/* Moves bytes of the block of each rank, so that it gets those of the next one. */
static const void *next_block(const struct cairn_all_to_all_args *a)
{
	return (const char *)a->x + a->x_block;
}

EXCHANGE(exchange_lost, if (!is_gather && !is_back && calls % 5 == 1) return (calls++, 0))
EXCHANGE(way_back_lost, if (is_back && calls > 8) return 0)
EXCHANGE(other_heads_sent, if (!is_gather && !is_back) a.x = next_block(&a); a.x_block = -a.x_block)
EXCHANGE(rows_of_rank_0, if (is_back) a.out_block = 0)
EXCHANGE(last_row_lost, if (a.rows > 1) a.rows--)
EXCHANGE(states_not_gathered, if (is_gather) a.rows = 0)

static void other_rows(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)impl;
	m->context_rank = 0;
}

static int append_call(const struct cairn_kv_append_args *args, void *stream)
{
	struct cairn_kv_append_args a = *args;

	a.v = a.k;
	return right.kv_append(&a, stream);
}

static void keys_as_values(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)m;
	right = *impl;
	impl->kv_append = append_call;
	impl->qkv_append = NULL;	/* so that passes of few rows call it, too */
}

static int rope_call(const struct cairn_rope_args *args, void *stream)
{
	static const int32_t from_0[64] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
	struct cairn_rope_args a = *args;

	a.positions = a.nnz > 1 ? from_0 : a.positions;
	return right.rope(&a, stream);
}

/* Each rank counts the positions of its own rows. */
static void local_positions(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)m;
	right = *impl;
	impl->rope = rope_call;
	impl->qkv_append = NULL;	/* so that passes of few rows call it, too */
}

EXCHANGE(latents_not_gathered, if (is_gather && a.row_bytes == 2 * (512 + 64)) a.rows = 0)

EXCHANGE(heads_not_gathered, if (is_gather && a.x_stride != a.row_bytes) a.rows = 0)

static int first_head_call(const struct cairn_kv_append_args *args, void *stream)
{
	struct cairn_kv_append_args a = *args;

	a.k = (const char *)a.k - own_rank / 2 * 2 * a.head_dim;
	a.v = (const char *)a.v - own_rank / 2 * 2 * a.head_dim;
	return right.kv_append(&a, stream);
}

/* Two ranks take the first of two KV heads instead of the second. */
static void first_head_of_all(struct cairn_model *m, struct cairn_impl *impl)
{
	own_rank = m->context_rank;
	right = *impl;
	impl->kv_append = first_head_call;
	impl->qkv_append = NULL;	/* so that passes of few rows call it, too */
}

static void kv_b_of_rank_0(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)impl;
	m->offset[CAIRN_W_KV_B] -= m->context_rank * (int64_t)weight_bytes(m, CAIRN_W_KV_B) /
				   m->context_ranks;
}

static void mutants_of_repeats(struct cairn_test *t)
{
	static const struct shared s = { .name = "llama3_tiny", .ranks = 4, HEADS };
	static const struct mutant all[] = {
		{ "heads_not_gathered", heads_not_gathered }, { "first_head_of_all", first_head_of_all },
	};

	run_mutants(t, &s, all, ARRAY_SIZE(all));
}

static void mutants_of_latents(struct cairn_test *t)
{
	static const struct shared s = { .name = "deepseek_tiny", .ranks = 2, HEADS };
	static const struct mutant all[] = {
		{ "latents_not_gathered", latents_not_gathered }, { "kv_b_of_rank_0", kv_b_of_rank_0 },
	};

	run_mutants(t, &s, all, ARRAY_SIZE(all));
}

static void mutants(struct cairn_test *t)
{
	static const struct shared s = { .name = "llama3_tiny", .ranks = 2, HEADS };
	static const struct mutant all[] = {
		{ "exchange_lost", exchange_lost }, { "way_back_lost", way_back_lost },
		{ "other_heads_sent", other_heads_sent }, { "rows_of_rank_0", rows_of_rank_0 },
		{ "last_row_lost", last_row_lost }, { "states_not_gathered", states_not_gathered },
		{ "other_rows", other_rows }, { "keys_as_values", keys_as_values },
		{ "local_positions", local_positions },
	};

	run_mutants(t, &s, all, ARRAY_SIZE(all));
}

static const struct cairn_unit units[] = {
	{ "heads", heads }, { "latents", latents }, { "more_ranks", more_ranks }, { "refused", refused },
	{ "mutants", mutants }, { "mutants_of_repeats", mutants_of_repeats },
	{ "mutants_of_latents", mutants_of_latents },
};

const struct cairn_family cairn_ranks_context_family = {
	.stage = "serving", .name = "ranks_context",
	.units = units, .num_units = ARRAY_SIZE(units),
};
