// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_stripes_test - ranks that each hold some of the pages agree with one process that holds all of them
 *
 * Pages are so small that a request has some of each rank, and a pass gathers them in several rounds.
 * Attention to pages in stripes rounds otherwise than in one go, so log-probabilities are close, and tokens
 * the same where these decide.
 */
#include "conformance/harness.h"
#include "serving/ranks/ranks_changed_test.h"

#define STRIPES(n)	.ranks = n, .page_size = 2, .stripes = 1
#define RING(n)		STRIPES(n), .context = CAIRN_EXCHANGE_RING, .context_rows = 8
#define LATENT(n)	.name = "deepseek_tiny", STRIPES(n), .too = CAIRN_EXCHANGE_RING, .context_rows = 16, \
			.close = 0.05f, .edits = { ALL_EXPERTS(2, 8) }

static struct cairn_impl right;		/* the table of a rank before it was changed */
static size_t most;			/* bytes of the largest allocation of rank 0 */
static int rank;			/* of this process */
static int gathers;
static const char *lowest;		/* the layer of the first move to held pages: layer 0 */

static int alloc_poisoned(void **p, size_t bytes)
{
	CAIRN_TRY(right.mem_alloc(p, bytes));
	memset(*p, 0xff, bytes);
	most = bytes > most ? bytes : most;
	return 0;
}

/* Fills new memory with NaN, so that whatever is read must have been written in this run. */
static void poison(struct cairn_model *m, struct cairn_impl *impl)
{
	right = *impl;
	rank = m->context_rank;
	most = 0;
	gathers = 0;
	lowest = NULL;
	impl->mem_alloc = alloc_poisoned;
}

/* Returns whether the tokens drawn at random are the same, too, as far as that can be expected. */
static int compare(struct cairn_test *t, const struct shared *s)
{
	struct scored whole, striped, again;
	int32_t tokens[NUM];
	char dir[PATH_MAX];

	if (write_model(t, s, dir))
		return 0;
	write_prompt(tokens);
	if (!EXPECT(t, score_shared(t, s, dir, tokens, poison, &striped) == 0))
		cairn_note(t, "%s", cairn_last_error());
	EXPECT(t, score_whole(s, dir, tokens, &whole) == 0);
	if (!EXPECT(t, agree(s, &whole, &striped)))
		cairn_note(t, "%s, %d ranks: logprobs differ by %g, %d tokens are the same",
			   s->name ? s->name : "crafted", s->ranks, (double)apart(&whole, &striped),
			   same_tokens(&whole, &striped));
	EXPECT(t, score_shared(t, s, dir, tokens, NULL, &again) == 0 && same(&striped, &again));
	return same_drawn(&whole, &striped);
}

/* Rounding may decide a draw at random, but hardly two. */
static void compare_all(struct cairn_test *t, const struct shared *all, int num)
{
	int same = 0;

	for (int i = 0; i < num; i++)
		same += compare(t, &all[i]);
	EXPECT(t, same >= num - 1);
}

/*
 * Prompts are computed in a ring and, in passes of few rows, whole by each rank. A request has 15 pages. In
 * the third case that is more than a rank holds, and the two requests take turns.
 */
static void rings(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ .name = "llama3_tiny", RING(2), .close = 0.05f, .max_rows = 25 },
		{ .name = "llama3_tiny", RING(4), .close = 0.05f, .max_rows = 30, .kv = CAIRN_KV_FP8 },
		{ .name = "mixtral_tiny", RING(3), .close = 0.05f, .max_rows = 30, .num_pages = 20,
		  .edits = { ALL_EXPERTS(2, 8) } },
	};

	compare_all(t, all, ARRAY_SIZE(all));
}

static void latents(struct cairn_test *t)
{
	static const struct shared all[] = {
		{ LATENT(2), .max_rows = 25 },
		{ .name = "deepseek_tiny", RING(3), .max_rows = 25, .num_pages = 30, .close = 0.05f,
		  .edits = { ALL_EXPERTS(2, 8) } },
	};

	compare_all(t, all, ARRAY_SIZE(all));
}

/* With stripes the memory of a rank's pages is that of half as many pages. */
static void room(struct cairn_test *t)
{
	struct shared s = { .name = "llama3_tiny", RING(2), .num_pages = 20000 };
	struct scored got;
	int32_t tokens[NUM];
	char dir[PATH_MAX];
	size_t striped;

	if (write_model(t, &s, dir))
		return;
	write_prompt(tokens);
	EXPECT(t, score_shared(t, &s, dir, tokens, poison, &got) == 0);
	striped = most;
	s.stripes = 0;
	EXPECT(t, score_shared(t, &s, dir, tokens, poison, &got) == 0);
	EXPECT(t, striped > most / 2 && striped < most / 2 + most / 100);
}

static void refused(struct cairn_test *t)
{
	static const struct { struct shared s; const char *says; } rows[] = {
		{ { STRIPES(2), .context = CAIRN_EXCHANGE_HEADS }, "stripes: is for ranks that would each" },
		{ { STRIPES(2) }, "worker: stripes: is for ranks that would each hold all keys" },
		{ { .name = "gemma2_tiny", RING(2) }, "stripes: not for this model on the table cpu" },
	};
	struct scored got;
	int32_t tokens[NUM];
	char dir[PATH_MAX];

	write_prompt(tokens);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (write_model(t, &rows[i].s, dir))
			continue;
		EXPECT(t, score_shared(t, &rows[i].s, dir, tokens, NULL, &got) < 0);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].says);
	}
}

/* ---- mutants ---- */

/* Changes the arguments of an operation before its call. */
#define MUTANT(name, op, change) \
	static int name##_call(const struct cairn_##op##_args *args, void *stream) \
	{ \
		struct cairn_##op##_args a = *args; \
		change; \
		return right.op(&a, stream); \
	} \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		poison(m, impl); \
		impl->op = name##_call; \
	}

/* Bytes of a page of one layer of llama3_tiny: two tokens of two heads of 64 elements, K and V. */
#define PAGE		(2 * 2 * 2 * 64 * 2)
#define IS_GATHER(a)	((a).row_bytes == PAGE && !(a).x_block)
#define IS_ARRIVAL(a)	((a).from[0] < 0 && !(a).layer_bytes)	/* to the gathered layer */
#define IS_KEPT(a)	((a).from[0] < 0 && (a).layer_bytes)	/* to held pages */
#define IS_COPY(a)	((a).bytes % (2 * PAGE) == 0 && ((a).to < 0 || (a).from < 0))

static int32_t list[256];

static const char *first_base(const void *base)
{
	lowest = lowest ? lowest : base;
	return lowest;
}

static const int32_t *last_first(const int32_t *of, int32_t num)
{
	memcpy(list, of, (size_t)num * sizeof(*list));
	list[0] = of[num - 1];
	list[num - 1] = of[0];
	return list;
}

static const int32_t *without_spares(const int32_t *of, int32_t num, int32_t num_pages)
{
	for (int32_t i = 0; i < num; i++)
		list[i] = of[i] >= num_pages - NUM / 2 ? 0 : of[i];
	return list;
}

MUTANT(nothing_gathered, all_to_all, if (IS_GATHER(a)) a.rows = 0)
MUTANT(second_round_lost, all_to_all, if (IS_GATHER(a) && ++gathers % 2 == 0) a.rows = 0)
MUTANT(own_pages_for_all, all_to_all, if (IS_GATHER(a) && rank) memset((void *)(uintptr_t)a.x, 0, PAGE))
MUTANT(arrivals_swapped, kv_move, if (IS_ARRIVAL(a)) a.to = last_first(a.to, a.num_moves))
MUTANT(arrival_lost, kv_move, if (IS_ARRIVAL(a)) a.num_moves--)
MUTANT(values_not_arrived, kv_move, if (IS_ARRIVAL(a)) a.v_offset = 0)
MUTANT(new_pages_lost, kv_move, if (IS_KEPT(a)) return 0)
MUTANT(last_new_page_lost, kv_move, if (IS_KEPT(a)) a.num_moves--)
MUTANT(new_pages_of_layer_0, kv_move, if (IS_KEPT(a) && (char *)a.base > first_base(a.base)) return 0)
MUTANT(others_keys_appended, qkv_append, if (a.kv.num_pages < 32) a.kv.indices =
       without_spares(a.kv.indices, a.kv.batch, a.kv.num_pages))
MUTANT(copy_not_sent, send_recv, if (IS_COPY(a)) return 0)

static void stripe_of_rank_0(struct cairn_model *m, struct cairn_impl *impl)
{
	poison(m, impl);
	m->context_rank = 0;
}

#define M(name)	{ #name, name }

static void mutants(struct cairn_test *t)
{
	/* so few pages that the first of the second request's answers copies a page of the other rank */
	static const struct shared s = {
		.name = "llama3_tiny", RING(2), .close = 0.05f, .max_rows = 25, .num_pages = 20,
	};
	static const struct mutant all[] = {
		M(nothing_gathered), M(second_round_lost), M(own_pages_for_all), M(arrivals_swapped),
		M(arrival_lost), M(values_not_arrived), M(new_pages_lost), M(last_new_page_lost),
		M(new_pages_of_layer_0), M(others_keys_appended), M(copy_not_sent), M(stripe_of_rank_0),
	};

	run_mutants(t, &s, all, ARRAY_SIZE(all));
}

static const struct cairn_unit units[] = {
	{ "rings", rings }, { "latents", latents }, { "room", room }, { "refused", refused },
	{ "mutants", mutants },
};

const struct cairn_family cairn_ranks_stripes_family = {
	.stage = "serving", .name = "ranks_stripes",
	.units = units, .num_units = ARRAY_SIZE(units),
};
