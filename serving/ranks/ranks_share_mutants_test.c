// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_share_mutants_test - mutants of shares and of what ranks exchange in a pass
 *
 * A mutant changes one rank's model or table. It is caught if the run ends with an error (a rank has drawn
 * another token) or if log-probabilities are not those of one process.
 */
#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/ranks/ranks_model_test.h"

static char model_dir[PATH_MAX];	/* of the mutant's model */
static const struct shared *shared;
static struct cairn_impl right;		/* the table of a rank before it was changed */
static int rank;			/* of this process */

/* Changes the arguments of the calls of ranks from `of` on. */
#define GATHER(name, of, change) \
	static int name##_call(const struct cairn_all_to_all_args *args, void *stream) \
	{ \
		struct cairn_all_to_all_args a = *args; \
		if (rank >= (of)) { \
			change; \
		} \
		return right.all_to_all(&a, stream); \
	} \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		(void)m; \
		impl->all_to_all = name##_call; \
	}

GATHER(gather_shifted, 1, a.x = (const char *)a.x + 16)
GATHER(gather_row_lost, 0, if (a.rows > 1)
       memset((char *)a.out + --a.rows * a.out_stride, 0, (size_t)a.row_bytes))
GATHER(gather_first_row, 1, for (int32_t i = 1; i < a.rows; i++)
       memcpy((char *)(uintptr_t)a.x + i * a.x_stride, a.x, (size_t)a.row_bytes))
GATHER(gather_short, 0, a.row_bytes -= 16)

/* The blocks are in the opposite order of the ranks. */
static int swapped_call(const struct cairn_all_to_all_args *a, void *stream)
{
	char block[65536];
	int ret = right.all_to_all(a, stream);

	for (int32_t i = 0; i < a->rows && !ret; i++) {
		char *first = (char *)a->out + i * a->out_stride, *second = first + a->out_block;

		memcpy(block, first, (size_t)a->row_bytes);
		memcpy(first, second, (size_t)a->row_bytes);
		memcpy(second, block, (size_t)a->row_bytes);
	}
	return ret;
}

static void gather_swapped(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)m;
	impl->all_to_all = swapped_call;
}

/* The tied output matrix is read from its first row on. */
static void head_of_rank_0(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)impl;
	m->rank = 0;
}

static int own_sum_call(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	if (rank)
		memset((void *)(uintptr_t)a->x, 0, (size_t)a->rows * (size_t)a->dim * 2);
	return right.all_reduce_norm(a, stream);
}

static void sum_lost(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)m;
	impl->all_reduce_norm = own_sum_call;
}

#define MOE(name, change) \
	static int name##_call(const struct cairn_moe_args *args, void *stream) \
	{ \
		struct cairn_moe_args a = *args; \
		if (rank) { \
			change; \
		} \
		return right.moe(&a, stream); \
	} \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		(void)m; \
		impl->moe = name##_call; \
	}

MOE(residual_twice, a.no_residual = 0)
MOE(one_expert_less, a.experts_per_token--)
MOE(other_scaling, a.scaling *= 1.5f)
MOE(shared_lost, a.shared_intermediate = 0; a.w_shared_gate_up = a.w_shared_down = NULL)

/* Copies a weight of all layers from the share of rank 0. */
static void take_from_rank_0(struct cairn_model *m, const struct cairn_impl *impl, enum cairn_weight w,
			     int32_t first)
{
	struct cairn_model *other = NULL;

	if (!rank || LOAD(&other, impl, model_dir, shared, 0))
		return;
	for (int32_t layer = first; layer < m->config.num_hidden_layers; layer++)
		memcpy(cairn_model_weight(m, layer, w), cairn_model_weight(other, layer, w),
		       m->weights ? m->elements[w] : weight_bytes(m, w));
	cairn_model_free(other);
}

#define FROM_0(name, weight, first) \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		take_from_rank_0(m, impl, weight, first); \
	}

FROM_0(o_of_rank_0, CAIRN_W_O, 0)
FROM_0(gate_up_of_rank_0, CAIRN_W_EXPERTS_GATE_UP, 1)
FROM_0(experts_down_of_rank_0, CAIRN_W_EXPERTS_DOWN, 1)
FROM_0(q_of_rank_0, CAIRN_W_Q, 0)
FROM_0(kv_b_of_rank_0, CAIRN_W_KV_B, 0)
FROM_0(shared_down_of_rank_0, CAIRN_W_SHARED_DOWN, 1)

/* The elements after the columns of the share are not 0. */
static void padding_not_0(struct cairn_model *m, struct cairn_impl *impl)
{
	uint16_t *up = cairn_model_weight(m, 1, CAIRN_W_EXPERTS_GATE_UP);
	uint16_t *down = cairn_model_weight(m, 1, CAIRN_W_EXPERTS_DOWN);

	(void)impl;
	memcpy(up + 16 * 192, up, sizeof(*up) * 16 * 192);
	memcpy(up + 80 * 192, up + 64 * 192, sizeof(*up) * 16 * 192);
	for (int i = 0; i < 192; i++)
		memcpy(down + 64 * i + 16, down + 64 * i, sizeof(*down) * 16);
}

static void scales_wrong(struct cairn_model *m, struct cairn_impl *impl)
{
	float *scale = (float *)(uintptr_t)cairn_model_scale(m, 0, CAIRN_W_DOWN);

	(void)impl;
	for (int i = 0; rank && i < m->dims[CAIRN_D_HIDDEN]; i++)
		scale[i] *= 1.5f;
}

/* An operation of rank 0 fails, while rank 1 waits for it in a collective. */
static int failing_call(const struct cairn_moe_args *a, void *stream)
{
	return rank ? right.moe(a, stream) : -EINVAL;
}

static void fail_of_rank_0(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)m;
	impl->moe = failing_call;
}

struct mutant {
	const char *name;
	alter_fn alter;
};

static alter_fn change;

static void alter_rank(struct cairn_model *m, struct cairn_impl *impl)
{
	rank = m->rank;
	right = *impl;
	change(m, impl);
}

static void run_mutants(struct cairn_test *t, const struct shared *s, const struct mutant *mutants,
			size_t num)
{
	struct scored whole, again, got;
	int32_t tokens[NUM];

	write_prompt(tokens);
	shared = s;
	if (write_model(t, s, model_dir))
		return;
	EXPECT(t, score_whole(s, model_dir, tokens, &whole) == 0);
	EXPECT(t, score_shared(t, s, model_dir, tokens, NULL, &again) == 0 && agree(s, &whole, &again));
	for (size_t i = 0; i < num; i++) {
		change = mutants[i].alter;
		if (!EXPECT(t, score_shared(t, s, model_dir, tokens, alter_rank, &got) ||
			       !agree(s, &whole, &got)))
			cairn_note(t, "%s was not caught", mutants[i].name);
	}
}

/* Rank 1 is ended at once: it is not asked to end and given CAIRN_TP_END_S. */
static void own_error(struct cairn_test *t)
{
	static const struct shared s = { .name = "qwen3_moe_tiny", .ranks = 2 };
	const int64_t start = cairn_clock_ns();
	int32_t tokens[NUM];
	struct scored got;

	write_prompt(tokens);
	if (write_model(t, &s, model_dir))
		return;
	change = fail_of_rank_0;
	EXPECT(t, score_shared(t, &s, model_dir, tokens, alter_rank, &got) == -EINVAL);
	EXPECT(t, cairn_clock_ns() - start < CAIRN_TP_END_S * (int64_t)1000000000);
}

static void mutants_of_heads(struct cairn_test *t)
{
	static const struct shared s = { .name = "llama3_tiny", .ranks = 2, .close = 0.05f };
	static const struct mutant mutants[] = {
		{ "gather_shifted", gather_shifted }, { "gather_row_lost", gather_row_lost },
		{ "gather_first_row", gather_first_row }, { "gather_short", gather_short },
		{ "gather_swapped", gather_swapped }, { "head_of_rank_0", head_of_rank_0 },
		{ "sum_lost", sum_lost }, { "o_of_rank_0", o_of_rank_0 },
	};

	run_mutants(t, &s, mutants, ARRAY_SIZE(mutants));
}

static void mutants_of_experts(struct cairn_test *t)
{
	static const struct shared s = { .name = "qwen3_moe_tiny", .ranks = 4, .close = 0.05f,
					 .edits = { ALL_EXPERTS(3, 8) } };
	static const struct mutant mutants[] = {
		{ "residual_twice", residual_twice }, { "one_expert_less", one_expert_less },
		{ "other_scaling", other_scaling }, { "gate_up_of_rank_0", gate_up_of_rank_0 },
		{ "experts_down_of_rank_0", experts_down_of_rank_0 }, { "padding_not_0", padding_not_0 },
	};

	run_mutants(t, &s, mutants, ARRAY_SIZE(mutants));
}

static void mutants_of_latents(struct cairn_test *t)
{
	static const struct shared s = { .name = "deepseek_tiny", .ranks = 2, .close = 0.05f,
					 .edits = { ALL_EXPERTS(2, 8) } };
	static const struct mutant mutants[] = {
		{ "q_of_rank_0", q_of_rank_0 }, { "kv_b_of_rank_0", kv_b_of_rank_0 },
		{ "shared_down_of_rank_0", shared_down_of_rank_0 }, { "shared_lost", shared_lost },
	};

	run_mutants(t, &s, mutants, ARRAY_SIZE(mutants));
}

static void mutants_of_eight_bits(struct cairn_test *t)
{
	static const struct shared s = { .name = "llama3_tiny", .ranks = 2, .close = 0.05f,
					 .weights = CAIRN_WEIGHTS_FP8 };
	static const struct mutant mutants[] = {
		{ "scales_wrong", scales_wrong }, { "o_of_rank_0", o_of_rank_0 },
	};

	run_mutants(t, &s, mutants, ARRAY_SIZE(mutants));
}

static const struct cairn_unit units[] = {
	{ "own_error", own_error }, { "heads", mutants_of_heads }, { "experts", mutants_of_experts },
	{ "latents", mutants_of_latents }, { "eight_bits", mutants_of_eight_bits },
};

const struct cairn_family cairn_ranks_share_mutants_family = {
	.stage = "serving", .name = "ranks_share_mutants",
	.units = units, .num_units = ARRAY_SIZE(units),
};
