// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_share_test - the shares of weights that are cut by vocabulary, by columns of experts or by heads, and
 * mutants of what ranks exchange
 *
 * A mutant changes one rank's model or table. It is caught if the run ends with an error (a rank has drawn
 * another token) or if log-probabilities are not those of one process.
 */
#include "conformance/harness.h"
#include "primitives/base/dtype.h"
#include "serving/base/clock.h"
#include "serving/model/forward.h"
#include "serving/ranks/ranks_model_test.h"

#define LOAD(m, impl, dir, s, rank) \
	cairn_model_load_rank(m, impl, dir, rank, (s)->ranks, (s)->weights, (s)->kv, NULL, NULL)

static char model_dir[PATH_MAX];	/* of the mutant's model */
static const struct shared *shared;

/* ---- shares ---- */

static size_t weight_bytes(const struct cairn_model *m, enum cairn_weight w)
{
	return m->elements[w] * cairn_dtype_bytes(m->dtype);
}

/* The output matrix of a rank is its rows of the whole one. */
static void head(struct cairn_test *t)
{
	const struct shared s = { .ranks = 2 };
	struct cairn_model *whole = NULL, *m = NULL;
	struct cairn_impl impl;
	char dir[PATH_MAX];

	EXPECT(t, !cairn_impl_open("cpu", &impl) && !cairn_impl_start(&impl, 0));
	if (write_model(t, &s, dir) ||
	    !EXPECT(t, cairn_model_load(&whole, &impl, dir, NULL, NULL) == 0))
		return;
	for (int32_t r = 0; r < s.ranks; r++) {
		size_t bytes;

		if (!EXPECT(t, LOAD(&m, &impl, dir, &s, r) == 0))
			break;
		bytes = weight_bytes(m, CAIRN_W_LM_HEAD);
		EXPECT(t, 2 * bytes == weight_bytes(whole, CAIRN_W_LM_HEAD));
		EXPECT(t, !memcmp(cairn_model_weight(m, 0, CAIRN_W_LM_HEAD),
				  (const char *)cairn_model_weight(whole, 0, CAIRN_W_LM_HEAD) +
				  (size_t)r * bytes, bytes));
		cairn_model_free(m);
	}
	cairn_model_free(whole);
}

/* Returns whether the matrix [rows, cols] is 0 except in the first rows_used rows and cols_used columns. */
static int is_padded(const uint16_t *w, int32_t rows, int32_t cols, int32_t rows_used, int32_t cols_used)
{
	int64_t filled = 0, wrong = 0;

	for (int32_t i = 0; i < rows; i++)
		for (int32_t j = 0; j < cols; j++) {
			int inside = i < rows_used && j < cols_used;

			filled += inside && w[(int64_t)i * cols + j];
			wrong += !inside && w[(int64_t)i * cols + j];
		}
	return filled > (int64_t)rows_used * cols_used / 2 && !wrong;
}

/* 64 columns among four ranks: 16 each, and zeros up to 64. */
static void padding(struct cairn_test *t)
{
	const struct shared s = { .name = "qwen3_moe_tiny", .ranks = 4 };
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	char dir[PATH_MAX];

	EXPECT(t, !cairn_impl_open("cpu", &impl) && !cairn_impl_start(&impl, 0));
	if (write_model(t, &s, dir) || !EXPECT(t, LOAD(&m, &impl, dir, &s, 3) == 0))
		return;
	for (int e = 0; e < 8; e++) {
		const uint16_t *up = cairn_model_weight(m, 1, CAIRN_W_EXPERTS_GATE_UP);
		const uint16_t *down = cairn_model_weight(m, 1, CAIRN_W_EXPERTS_DOWN);

		up += (size_t)e * 128 * 192;
		EXPECT(t, is_padded(up, 64, 192, 16, 192) && is_padded(up + (size_t)64 * 192, 64, 192, 16,
								      192));
		EXPECT(t, is_padded(down + (size_t)e * 192 * 64, 192, 64, 192, 16));
	}
	cairn_model_free(m);
}

/* ---- pieces of the vocabulary ---- */

#define VOCAB	40000	/* a share of 20000 does not fit into one row of all_to_all */

static int pieces;

/* Rank 1 has the logits of rank 0, plus 1. */
static int gather_from_oneself(const struct cairn_all_to_all_args *a, void *stream)
{
	(void)stream;
	pieces += a->rows > 0;
	for (int32_t i = 0; i < a->rows; i++)
		for (int32_t j = 0; j < a->row_bytes / 4; j++) {
			float v = ((const float *)((const char *)a->x + i * a->x_stride))[j];
			float *to = (float *)((char *)a->out + i * a->out_stride) + j;

			*to = v;
			to[a->out_block / 4] = v + 1;
		}
	return 0;
}

static int no_sum(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	const struct cairn_rmsnorm_args n = {
		.size = sizeof(n), .out = a->out, .residual = a->residual, .x = a->x, .weight = a->weight,
		.rows = a->rows, .dim = a->dim, .dtype = a->dtype, .eps = a->eps,
		.weight_offset = a->weight_offset,
	};

	return cairn_rmsnorm_cpu(&n, stream);
}

static void gather_pieces(struct cairn_test *t)
{
	static float logits[2 * VOCAB];
	const int32_t ids[] = { 5, 6 }, positions[] = { 0, 1 }, rows[] = { 0, 2 }, indptr[] = { 0, 1 };
	const int32_t page = 0, len = 2;
	struct cairn_model_config c;
	struct cairn_kv_store kv = { 0 };
	struct cairn_scratch *scratch = NULL;
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	int equal = 1, moved;
	const struct cairn_batch b = {
		.logits = logits, .ids = ids, .positions = positions, .qo_indptr = rows, .kv_indptr = indptr,
		.kv_indices = &page, .kv_last_page_len = &len, .num_rows = 2, .batch = 1, .num_logits = 2,
		.max_qo_len = 2, .max_kv_len = 2,
	};

	EXPECT(t, !cairn_impl_open("cpu", &impl) && !cairn_impl_start(&impl, 0));
	impl.all_to_all = gather_from_oneself;
	impl.all_reduce_norm = no_sum;
	snprintf(model_dir, sizeof(model_dir), "%s/serving/golden/llama3_tiny", cairn_data_dir());
	EXPECT(t, cairn_model_config_load(model_dir, &c) == 0);
	c.vocab_size = VOCAB;
	c.num_hidden_layers = 1;
	if (!EXPECT(t, cairn_model_random_rank(&m, &impl, &c, 2, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN,
					       1) == 0))
		return;
	memset(logits, 0xff, sizeof(logits));	/* NaN */
	pieces = 0;
	EXPECT(t, cairn_kv_store_create(&kv, m, 1, 16) == 0 && cairn_scratch_create(&scratch, m, 2, 2) == 0 &&
		  cairn_scratch_reserve(scratch, &kv, &b, NULL, &moved) == 0 &&
		  cairn_forward(scratch, &kv, &b, NULL) == 0);
	EXPECT(t, pieces == 2);
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < VOCAB / 2; j++) {
			const float *row = logits + i * VOCAB;

			equal &= row[j] + 1 == row[VOCAB / 2 + j] && (j < 1 || row[j] != row[j - 1]) &&
				 (j < 16384 || row[j] != row[j - 16384]);
		}
	EXPECT(t, equal && logits[0] != logits[VOCAB]);
	cairn_scratch_destroy(scratch);
	cairn_kv_store_destroy(&kv, m);
	cairn_model_free(m);
}

/* ---- mutants ---- */

static struct cairn_impl right;		/* the table of a rank before it was changed */
static int rank;			/* of this process */

/* Changes the arguments of the rank's calls, or of those of rank 1 alone. */
#define GATHER(name, of, change) \
	static int name##_call(const struct cairn_all_to_all_args *args, void *stream) \
	{ \
		struct cairn_all_to_all_args a = *args; \
		int ret = 0; \
		if (rank >= (of)) { \
			change; \
		} \
		ret = ret ? ret : right.all_to_all(&a, stream); \
		return ret; \
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

/* What is behind the columns of the share is not 0. */
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

static void scales_of_rank_0(struct cairn_model *m, struct cairn_impl *impl)
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

	write_prompt(tokens, s);
	shared = s;
	if (write_model(t, s, model_dir))
		return;
	EXPECT(t, score_whole(s, model_dir, tokens, &whole) == 0);
	EXPECT(t, score_shared(t, s, model_dir, tokens, NULL, &again) == 0);
	EXPECT(t, apart(&whole, &again) <= s->close);
	for (size_t i = 0; i < num; i++) {
		change = mutants[i].alter;
		if (!EXPECT(t, score_shared(t, s, model_dir, tokens, alter_rank, &got) ||
			       !(apart(&whole, &got) <= s->close)))
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

	write_prompt(tokens, &s);
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
	static const struct shared s = { .name = "qwen3_moe_tiny", .ranks = 4, .close = 0.05f };
	static const struct mutant mutants[] = {
		{ "residual_twice", residual_twice }, { "one_expert_less", one_expert_less },
		{ "other_scaling", other_scaling }, { "gate_up_of_rank_0", gate_up_of_rank_0 },
		{ "experts_down_of_rank_0", experts_down_of_rank_0 }, { "padding_not_0", padding_not_0 },
	};

	run_mutants(t, &s, mutants, ARRAY_SIZE(mutants));
}

static void mutants_of_latents(struct cairn_test *t)
{
	static const struct shared s = { .name = "deepseek_tiny", .ranks = 2, .close = 0.05f };
	static const struct mutant mutants[] = {
		{ "q_of_rank_0", q_of_rank_0 }, { "kv_b_of_rank_0", kv_b_of_rank_0 },
		{ "shared_down_of_rank_0", shared_down_of_rank_0 }, { "shared_lost", shared_lost },
	};

	run_mutants(t, &s, mutants, ARRAY_SIZE(mutants));
}

static void mutants_of_eight_bits(struct cairn_test *t)
{
	static const struct shared s = { .name = "llama3_tiny", .ranks = 2, .close = 1,
					 .weights = CAIRN_WEIGHTS_FP8 };
	static const struct mutant mutants[] = {
		{ "scales_of_rank_0", scales_of_rank_0 }, { "o_of_rank_0", o_of_rank_0 },
	};

	run_mutants(t, &s, mutants, ARRAY_SIZE(mutants));
}

static const struct cairn_unit units[] = {
	{ "head", head }, { "padding", padding }, { "gather_pieces", gather_pieces },
	{ "own_error", own_error }, { "mutants_of_heads", mutants_of_heads },
	{ "mutants_of_experts", mutants_of_experts }, { "mutants_of_latents", mutants_of_latents },
	{ "mutants_of_eight_bits", mutants_of_eight_bits },
};

const struct cairn_family cairn_ranks_share_family = {
	.stage = "serving", .name = "ranks_share",
	.units = units, .num_units = ARRAY_SIZE(units),
};
