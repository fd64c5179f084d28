// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_ring_test - ranks of a ring agree with one process, and changes to the ring do not
 *
 * Pages are so small that every rank has two pieces of each prompt. Attention in steps rounds otherwise than
 * in one go, so log-probabilities are close, and tokens the same where these decide. Latent attention is not
 * divided into steps, and all bits are those of one process.
 */
#include <signal.h>

#include "conformance/harness.h"
#include "serving/ranks/ranks_changed_test.h"
#include "serving/ranks/ranks_model_test.h"

#define PAGES(n)	RING(n), .context_keys = 1
#define RING(n)	.ranks = n, .context = CAIRN_EXCHANGE_RING, .page_size = 2, .context_rows = 1

static struct cairn_impl right_table;		/* the table of a rank before it was changed */

static int alloc_poisoned(void **p, size_t bytes)
{
	int ret = right_table.mem_alloc(p, bytes);

	if (!ret)
		memset(*p, 0xff, bytes);
	return ret;
}

/* Fills new memory with NaN, so that nothing is found in it that an earlier run has left there. */
static void poison(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)m;
	right_table = *impl;
	impl->mem_alloc = alloc_poisoned;
}

static void compare(struct cairn_test *t, const struct shared *s)
{
	struct scored whole, shared, again;
	int32_t tokens[NUM];
	char dir[PATH_MAX];

	if (write_model(t, s, dir))
		return;
	write_prompt(tokens);
	if (!EXPECT(t, score_shared(t, s, dir, tokens, NULL, &shared) == 0))
		cairn_note(t, "%s", cairn_last_error());
	EXPECT(t, score_whole(s, dir, tokens, &whole) == 0);
	for (int i = 1; i < NUM; i++)
		EXPECT(t, whole.prompt[i] < 0);
	if (!EXPECT(t, is_right(s, &whole, &shared)))
		cairn_note(t, "%s, %d ranks: logprobs differ by %g, %d tokens are the same",
			   s->name ? s->name : "crafted", s->ranks, (double)apart(&whole, &shared),
			   same_tokens(&whole, &shared));
	EXPECT(t, score_shared(t, s, dir, tokens, poison, &again) == 0);
	EXPECT(t, same(&shared, &again));
}

static void rings(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ RING(2), .close = 0.001f },
		/* passes of a few rows find keys in the cache, in the middle of a page */
		{ RING(3), .close = 0.001f, .max_rows = 25 },
		{ .name = "llama3_tiny", RING(4), .close = 0.05f, .kv = CAIRN_KV_FP8 },
		{ .name = "qwen3_tiny", .ranks = 3, .context = CAIRN_EXCHANGE_BLOCKS, .page_size = 2,
		  .context_rows = 1, .close = 0.05f },
		/* windows, capped logits; sinks */
		{ .name = "gemma2_tiny", RING(3), .close = 0.05f, .max_rows = 25 },
		{ .name = "gpt_oss_tiny", RING(2), .close = 0.05f, .edits = { ALL_EXPERTS(4, 8) } },
		/* a page holds most of a prompt, so some pieces have no rows */
		{ .ranks = 4, .context = CAIRN_EXCHANGE_RING, .context_rows = 1, .close = 0.001f },
		/* passes with fewer rows are computed whole */
		{ .ranks = 2, .context = CAIRN_EXCHANGE_RING, .context_rows = 64 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		compare(t, &all[i]);
}

static void latents(struct cairn_test *t)
{
	static const struct shared s = { .name = "deepseek_tiny", RING(3), .max_rows = 25 };

	compare(t, &s);
}

/* Tensor parallelism, whose long passes are shared by rows and fill the same cache. */
static void with_tensors(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .ranks = 2, .too = CAIRN_EXCHANGE_HEADS, .context_rows = 8, .close = 0.001f },
		/* of both kinds of passes over prompts; several ranks have the same KV head */
		{ .name = "llama3_tiny", .ranks = 4, .too = CAIRN_EXCHANGE_HEADS, .context_rows = 24,
		  .max_rows = 25, .kv = CAIRN_KV_FP8, .close = 0.05f },
		{ .name = "deepseek_tiny", .ranks = 2, .too = CAIRN_EXCHANGE_RING, .context_rows = 8,
		  .page_size = 2, .close = 0.05f, .edits = { ALL_EXPERTS(2, 8) } },
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		compare(t, &all[i]);
}

/* Ranks that each have all keys share out the pages of decoding passes. */
static void pages(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "qwen3_tiny", PAGES(2), .close = 0.05f },
		{ .name = "llama3_tiny", PAGES(4), .close = 0.05f, .max_rows = 25, .kv = CAIRN_KV_FP8 },
		{ .name = "deepseek_tiny", .ranks = 2, .too = CAIRN_EXCHANGE_RING, .context_rows = 8,
		  .page_size = 2, .context_keys = 1, .close = 0.05f, .edits = { ALL_EXPERTS(2, 8) } },
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		compare(t, &all[i]);
}

static void chosen(struct cairn_test *t)
{
	static const struct { const char *name; int ranks; enum cairn_exchange exchange; } rows[] = {
		{ "llama3_tiny", 2, CAIRN_EXCHANGE_HEADS },
		{ "llama3_tiny", 4, CAIRN_EXCHANGE_RING },	/* more ranks than KV heads */
		{ "llama3_tiny", 3, CAIRN_EXCHANGE_RING },
		{ "deepseek_tiny", 2, CAIRN_EXCHANGE_RING },
		{ "gpt_oss_tiny", 2, CAIRN_EXCHANGE_RING },	/* sinks */
	};
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_golden(t, &g, rows[i].name))
			continue;
		if (EXPECT(t, cairn_model_load_context(&m, &impl, g.dir, 0, rows[i].ranks,
						       CAIRN_EXCHANGE_AUTO, CAIRN_WEIGHTS_PLAIN,
						       CAIRN_KV_PLAIN, NULL, NULL) == 0))
			EXPECT(t, m->exchange == rows[i].exchange);
		cairn_model_free(m);
		close_golden(&g);
	}
}

static void refused(struct cairn_test *t)
{
	static const struct { size_t member; const char *name; } ops[] = {
		{ offsetof(struct cairn_impl, send_recv), "send_recv" },
		{ offsetof(struct cairn_impl, kv_move), "kv_move" },
		{ offsetof(struct cairn_impl, attn_bsr), "attn_bsr" },
		{ offsetof(struct cairn_impl, attn_merge), "attn_merge" },
	};
	struct cairn_model *m = NULL;
	struct cairn_impl impl, less;
	struct golden g;
	char text[128];

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama3_tiny"))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		less = impl;
		memset((char *)&less + ops[i].member, 0, sizeof(void *));
		EXPECT(t, cairn_model_load_context(&m, &less, g.dir, 0, 2, CAIRN_EXCHANGE_RING,
						   CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, NULL, NULL) ==
			  -EOPNOTSUPP);
		snprintf(text, sizeof(text), "the table has no operation %s, which context parallelism needs",
			 ops[i].name);
		EXPECT_CONTAINS(t, cairn_last_error(), text);
	}
	EXPECT(t, m == NULL);
	close_golden(&g);
}

/* ---- mutants ---- */

static const int32_t from_0[64] = {
	0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27,
	28, 29, 30, 31,
};

/* Changes the arguments of an operation before its call, and its results afterwards. */
#define MUTANT(name, op, change, change_after) \
	static int name##_call(const struct cairn_##op##_args *args, void *stream) \
	{ \
		struct cairn_##op##_args a = *args; \
		int ret; \
		change; \
		ret = right_table.op(&a, stream); \
		change_after; \
		return ret; \
	} \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		poison(m, impl); \
		impl->op = name##_call; \
	}

#define EACH_LSE(a, statement) \
	for (int32_t i = 0; i < (a).nnz_qo * (a).num_qo_heads; i++) { \
		float *lse = &(a).lse[i]; \
		statement; \
	}

static char nowhere[1 << 16];
static const int32_t sixteen[24] = {
	16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16,
};

MUTANT(mask_by_local_position, attn_bsr, a.q_pos = from_0, )
MUTANT(mask_lost, attn_bsr, a.part[0].mask_mode = CAIRN_ATTN_ALL, )
MUTANT(others_masked, attn_bsr, a.part[0].mask_mode = CAIRN_ATTN_CAUSAL, )
MUTANT(last_part_lost, attn_bsr, if (a.num_parts > 1) a.num_parts--, )
MUTANT(first_part_lost, attn_bsr, if (a.num_parts > 1) a.part[0] = a.part[--a.num_parts], )
MUTANT(keys_from_0, attn_bsr, a.part[0].kv_pos0 = NULL, )
MUTANT(lse_in_base_2, attn_bsr, , EACH_LSE(a, *lse *= 1.4426950f))
MUTANT(empty_step_counts, attn_bsr, , EACH_LSE(a, if (*lse == -INFINITY) *lse = 0))
MUTANT(merge_without_weights, attn_merge, memset((void *)(uintptr_t)a.lse, 0,
						 (size_t)(a.num_states * a.rows * a.num_heads) * 4), )
MUTANT(last_step_lost, attn_merge, if (a.num_states > 1) a.num_states--, )
MUTANT(first_step_alone, attn_merge, a.num_states = 1, )
MUTANT(old_buffer, send_recv, a.out = nowhere, )
MUTANT(wrong_way, send_recv, int32_t to = a.to; a.to = a.from; a.from = to, )
MUTANT(half_sent, send_recv, a.bytes = a.bytes / 32 * 16, )
MUTANT(arrival_not_stored, kv_move, if (a.from[0] < 0) return 0, )
MUTANT(values_left_behind, kv_move, if (a.from[0] < 0) a.v_offset = 0, )
MUTANT(first_page_left_behind, kv_move, a.from++; a.to++; a.num_moves -= a.num_moves > 0, )
MUTANT(rows_in_order, embedding, if (a.vocab < 64) a.ids = from_0, )
MUTANT(sinks_lost, attn_merge, a.sink = NULL, )

/* Piece 2r + 1 instead of 2n - 1 - r, on one rank. */
static void piece_beside(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)impl;
	if (m->context_rank == 1)
		m->exchange = CAIRN_EXCHANGE_BLOCKS;
}

static int own_rank;

MUTANT(die, send_recv, if (own_rank == 1) raise(SIGKILL), )

static void die_on_1(struct cairn_model *m, struct cairn_impl *impl)
{
	own_rank = m->context_rank;
	die(m, impl);
}

/* A rank that ends while keys travel is named; rank 0 may notice before it has told all others the plan. */
static void lost(struct cairn_test *t)
{
	static const struct shared s = { RING(3), .close = 0.001f };
	int32_t tokens[NUM];
	struct scored got;
	char dir[PATH_MAX];

	write_prompt(tokens);
	if (write_model(t, &s, dir))
		return;
	EXPECT(t, score_shared(t, &s, dir, tokens, die_on_1, &got) == -ECONNRESET);
	EXPECT(t, strstr(cairn_last_error(), "pass 1: send_recv: rank 1 has ended: signal 9 (Killed)") ||
	       strstr(cairn_last_error(), "pass 1: plan: rank 1 has ended: signal 9 (Killed)"));
}

/* Streams that advance in orders of their own, as far as waits allow, give the same bits. */
static void late(struct cairn_test *t)
{
	static const struct shared in_time = { RING(3), .close = 0.001f, .max_rows = 25 };
	struct shared s = in_time;
	struct scored right, got;
	int32_t tokens[NUM];
	char dir[PATH_MAX];

	if (!cairn_beside("late_plugin.so", dir, sizeof(dir))) {
		cairn_skip(t, "late_plugin.so is not next to the program");
		return;
	}
	if (write_model(t, &s, dir))
		return;
	write_prompt(tokens);
	EXPECT(t, score_shared(t, &s, dir, tokens, NULL, &right) == 0);
	s.late = 1;
	if (!EXPECT(t, score_shared(t, &s, dir, tokens, NULL, &got) == 0))
		cairn_note(t, "%s", cairn_last_error());
	EXPECT(t, same(&right, &got));
}

#define M(name)	{ #name, name }

static void mutants(struct cairn_test *t)
{
	static const struct shared s = { RING(3), .close = 0.001f, .max_rows = 25 };
	static const struct mutant all[] = {
		M(mask_by_local_position), M(mask_lost), M(others_masked), M(lse_in_base_2),
		M(empty_step_counts), M(merge_without_weights), M(last_step_lost), M(first_step_alone),
		M(old_buffer), M(wrong_way), M(half_sent), M(arrival_not_stored), M(values_left_behind),
		M(first_page_left_behind), M(rows_in_order), M(piece_beside),
	};

	run_mutants(t, &s, all, ARRAY_SIZE(all));
}

/* Windows need positions, so each run of keys is a part. */
static void mutants_of_windows(struct cairn_test *t)
{
	static const struct shared s = { .name = "gemma2_tiny", RING(3), .close = 0.05f, .max_rows = 25 };
	static const struct mutant all[] = { M(last_part_lost), M(first_part_lost), M(keys_from_0) };

	run_mutants(t, &s, all, ARRAY_SIZE(all));
}

static void mutants_of_sinks(struct cairn_test *t)
{
	static const struct shared s = {
		.name = "gpt_oss_tiny", RING(2), .close = 0.05f, .edits = { ALL_EXPERTS(4, 8) },
	};
	static const struct mutant all[] = { M(sinks_lost) };

	run_mutants(t, &s, all, ARRAY_SIZE(all));
}

MUTANT(keys_of_other_heads, kv_append, if (a.nnz_qo > 8) a.k = a.v, )
MUTANT(keys_not_appended, kv_append, if (a.nnz_qo > 8) return 0, )

/* The heads of the whole model's pass are those of another rank than in the share. */
static void heads_of_other_rank(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)impl;
	m->context_rank = 1 - m->context_rank;
}

static void mutants_of_both(struct cairn_test *t)
{
	static const struct shared s = {
		.ranks = 2, .too = CAIRN_EXCHANGE_HEADS, .context_rows = 8, .close = 0.001f,
	};
	static const struct mutant all[] = {
		M(keys_of_other_heads), M(keys_not_appended), M(heads_of_other_rank),
	};

	run_mutants(t, &s, all, ARRAY_SIZE(all));
}

MUTANT(lse_of_pages_in_base_2, attn_paged, , if (a.lse) EACH_LSE(a, *lse *= 1.4426950f))
MUTANT(lse_nan_without_page, attn_paged, , if (a.lse) EACH_LSE(a, *lse = *lse == -INFINITY ? NAN : *lse))
MUTANT(last_pages_whole, attn_paged, if (a.lse) a.kv.last_page_len = sixteen, )
MUTANT(results_not_exchanged, all_to_all, if (a.row_bytes >= 128) return 0, )
MUTANT(lse_not_exchanged, all_to_all, if (a.row_bytes < 128) return 0, )
/* of four heads */
MUTANT(queries_not_gathered, all_to_all, if (a.row_bytes == 4 * 192 * 2 && !a.x_block) a.rows = 0, )

static void pages_of_rank_0(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)impl;
	m->context_rank = 0;
}

static void mutants_of_pages(struct cairn_test *t)
{
	/* the third rank has no page at first */
	static const struct shared s = {
		.name = "llama3_tiny", .ranks = 3, .context = CAIRN_EXCHANGE_RING, .context_rows = 64,
		.context_keys = 1, .close = 0.05f,
	};
	static const struct mutant all[] = {
		M(lse_of_pages_in_base_2), M(lse_nan_without_page), M(last_pages_whole),
		M(results_not_exchanged), M(lse_not_exchanged), M(pages_of_rank_0), M(merge_without_weights),
		M(first_step_alone),
	};
	static const struct shared both = {
		.name = "deepseek_tiny", .ranks = 2, .too = CAIRN_EXCHANGE_RING, .page_size = 2,
		.context_keys = 1, .close = 0.05f, .edits = { ALL_EXPERTS(2, 8) },
	};
	static const struct mutant of_both[] = { M(queries_not_gathered) };

	run_mutants(t, &s, all, ARRAY_SIZE(all));
	run_mutants(t, &both, of_both, ARRAY_SIZE(of_both));
}

static void mutants_of_latents(struct cairn_test *t)
{
	static const struct shared s = { .name = "deepseek_tiny", RING(2) };
	static const struct mutant all[] = { M(old_buffer), M(arrival_not_stored) };

	run_mutants(t, &s, all, ARRAY_SIZE(all));
}

static const struct cairn_unit units[] = {
	{ "rings", rings }, { "latents", latents }, { "with_tensors", with_tensors }, { "pages", pages },
	{ "chosen", chosen }, { "refused", refused }, { "lost", lost }, { "late", late },
	{ "mutants", mutants },
	{ "mutants_of_windows", mutants_of_windows }, { "mutants_of_sinks", mutants_of_sinks },
	{ "mutants_of_both", mutants_of_both },
	{ "mutants_of_pages", mutants_of_pages }, { "mutants_of_latents", mutants_of_latents },
};

const struct cairn_family cairn_ranks_ring_family = {
	.stage = "serving", .name = "ranks_ring",
	.units = units, .num_units = ARRAY_SIZE(units),
};
