// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_share_test - tests the shares of weights that are cut by vocabulary, by columns of experts or in 8
 * bits, and logits that are gathered in pieces
 */
#include "conformance/harness.h"
#include "serving/model/forward/forward.h"
#include "serving/ranks/ranks_model_test.h"

/* ---- shares ---- */

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

/* Returns whether part is the columns from `first` on of whole, [rows, whole_cols], of `bytes` each. */
static int is_columns(const void *part, const void *whole, int rows, int cols, int first, int whole_cols,
		      size_t bytes)
{
	int same = 1;

	for (int i = 0; i < rows; i++)
		same &= !memcmp((const char *)part + (size_t)(i * cols) * bytes,
				(const char *)whole + (size_t)(i * whole_cols + first) * bytes,
				(size_t)cols * bytes);
	return same;
}

/* A checkpoint in block fp8 keeps codes and scales of q, cut by rows, and of o, cut by columns. */
static void codes(struct cairn_test *t)
{
	const struct shared s = { .name = "deepseek_v3_fp8_tiny", .ranks = 2,
				  .weights = CAIRN_WEIGHTS_FP8_BLOCKS };
	struct cairn_model *whole = NULL, *m = NULL;
	struct cairn_impl impl;
	char dir[PATH_MAX];

	EXPECT(t, !cairn_impl_open("cpu", &impl) && !cairn_impl_start(&impl, 0));
	if (write_model(t, &s, dir) ||
	    !EXPECT(t, cairn_model_load_as(&whole, &impl, dir, s.weights, s.kv, NULL, NULL) == 0))
		return;
	for (int r = 0; r < 2 && EXPECT(t, LOAD(&m, &impl, dir, &s, r) == 0); r++) {
		const int hidden = m->dims[CAIRN_D_HIDDEN], attn = m->dims[CAIRN_D_ATTN];
		const int q = m->dims[CAIRN_D_Q], lora = m->dims[CAIRN_D_Q_LORA], k = (lora + 127) / 128;

		EXPECT(t, attn % 128 == 0 && q % 128 == 0 && lora > 0);
		EXPECT(t, is_columns(cairn_model_weight(m, 1, CAIRN_W_O),
				     cairn_model_weight(whole, 1, CAIRN_W_O), hidden, attn, r * attn,
				     2 * attn, 1));
		EXPECT(t, is_columns(cairn_model_scale(m, 1, CAIRN_W_O),
				     cairn_model_scale(whole, 1, CAIRN_W_O), (hidden + 127) / 128, attn / 128,
				     r * attn / 128, 2 * attn / 128, sizeof(float)));
		EXPECT(t, is_columns(cairn_model_weight(m, 1, CAIRN_W_Q),
				     cairn_model_weight(whole, 1, CAIRN_W_Q), 1, q * lora, r * q * lora, 0,
				     1));
		EXPECT(t, is_columns(cairn_model_scale(m, 1, CAIRN_W_Q),
				     cairn_model_scale(whole, 1, CAIRN_W_Q), 1, q / 128 * k, r * q / 128 * k,
				     0, sizeof(float)));
		cairn_model_free(m);
		m = NULL;
	}
	cairn_model_free(whole);
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
	char dir[PATH_MAX];
	const struct cairn_batch b = {
		.logits = logits, .ids = ids, .positions = positions, .qo_indptr = rows, .kv_indptr = indptr,
		.kv_indices = &page, .kv_last_page_len = &len, .num_rows = 2, .batch = 1, .num_logits = 2,
		.max_qo_len = 2, .max_kv_len = 2,
	};

	EXPECT(t, !cairn_impl_open("cpu", &impl) && !cairn_impl_start(&impl, 0));
	impl.all_to_all = gather_from_oneself;
	impl.all_reduce_norm = no_sum;
	snprintf(dir, sizeof(dir), "%s/serving/golden/llama3_tiny", cairn_data_dir());
	EXPECT(t, cairn_model_config_load(dir, &c) == 0);
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

static const struct cairn_unit units[] = {
	{ "head", head }, { "padding", padding }, { "codes", codes }, { "gather_pieces", gather_pieces },
};

const struct cairn_family cairn_ranks_share_family = {
	.stage = "serving", .name = "ranks_share",
	.units = units, .num_units = ARRAY_SIZE(units),
};
