// SPDX-License-Identifier: Apache-2.0
/*
 * pipeline_mutants_test - a stage does something wrong, and comparing it with the whole model must show it
 *
 * The model has three layers, so each of three stages has one. A pass of two prompts of 24 rows has chunks of
 * 16 and 8 rows. A mutant is caught if the run ends with an error, or with other numbers than the whole
 * model.
 */
#include "conformance/harness.h"
#include "serving/ranks/ranks_model_test.h"

static struct cairn_impl right;		/* the table of a rank before it was changed */
static int stage;			/* of this process */
static char dir[PATH_MAX];
static int calls;			/* of the operation that is falsified */
static _Alignas(256) char other[1 << 16], kept[1 << 16];	/* room for the rows of a chunk */

#define BEGIN(m, impl) \
	do { \
		(void)(m); \
		right = *(impl); \
		stage = (m)->config.stage; \
	} while (0)

/* ---- what passes from stage to stage ---- */

#define PASSED(name, change) \
	static int name##_call(const struct cairn_send_recv_args *args, void *stream) \
	{ \
		struct cairn_send_recv_args a = *args; \
		const int is_in = a.from >= 0 && stage == 1, is_out = a.to >= 0 && stage == 1; \
		(void)is_in; \
		(void)is_out; \
		calls += is_in; \
		change \
		return 0; \
	} \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		BEGIN(m, impl); \
		impl->send_recv = name##_call; \
	}
#define CALL()	CAIRN_TRY(right.send_recv(&a, stream))

/* Every second chunk is received, and not put where the stage reads it. */
PASSED(rows_of_old_chunk, if (is_in && calls % 2 == 0) a.out = other; CALL();)
/* Each chunk gets the rows of the one before. */
PASSED(chunk_late, CALL(); if (is_in) {
	memcpy(other, a.out, (size_t)a.bytes);
	memcpy(a.out, kept, (size_t)a.bytes);
	memcpy(kept, other, (size_t)a.bytes);
})
PASSED(last_rows_lost, if (is_in) memcpy(other, a.out, (size_t)a.bytes);
       CALL();
       if (is_in) memcpy((char *)a.out + a.bytes / 2, other + a.bytes / 2, (size_t)a.bytes / 2);)
/* What has arrived leaves, as if the stage had no layers. */
static const void *arrived;
PASSED(layers_skipped, if (is_out && arrived) { memcpy(kept, arrived, (size_t)a.bytes); a.x = kept; }
       CALL();
       if (is_in) arrived = a.out;)
PASSED(sent_too_early, if (is_out) { memcpy(other, a.x, (size_t)a.bytes); a.x = kept; }
       CALL();
       if (is_out) memcpy(kept, other, (size_t)a.bytes);)
PASSED(rows_shifted, CALL();
       if (is_in && a.bytes > 512) memmove((char *)a.out + 512, a.out, (size_t)a.bytes - 512);)

/* ---- drawn tokens ---- */

#define SHARED(name, change) \
	static int name##_call(const struct cairn_all_to_all_args *args, void *stream) \
	{ \
		const struct cairn_all_to_all_args a = *args; \
		char *last = (char *)a.out + 2 * a.out_block; \
		CAIRN_TRY(right.all_to_all(&a, stream)); \
		change \
		return 0; \
	} \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		BEGIN(m, impl); \
		impl->all_to_all = name##_call; \
	}

SHARED(tokens_of_first_stage, memcpy(last, a.out, (size_t)a.out_block);)
SHARED(tokens_lost_on_rank_1, if (stage == 1) memset(last, 0, (size_t)a.out_block);)
SHARED(tokens_of_last_pass, if (a.out_block <= (int64_t)sizeof(kept)) {
	memcpy(other, last, (size_t)a.out_block);
	memcpy(last, kept, (size_t)a.out_block);
	memcpy(kept, other, (size_t)a.out_block);
})

/* ---- layers and keys ---- */

/* The middle stage has the weights of another layer. */
static void take_layer(struct cairn_model *m, struct cairn_impl *impl, int other_stage)
{
	struct cairn_model *from = NULL;

	BEGIN(m, impl);
	if (stage != 1 || cairn_model_load_stage(&from, impl, dir, other_stage, 3, CAIRN_WEIGHTS_PLAIN,
						 CAIRN_KV_PLAIN, NULL, NULL))
		return;
	memcpy(m->base, from->base, m->layer_bytes);
	cairn_model_free(from);
}

static void one_layer_too_early(struct cairn_model *m, struct cairn_impl *impl)
{
	take_layer(m, impl, 0);
}

static void one_layer_too_late(struct cairn_model *m, struct cairn_impl *impl)
{
	take_layer(m, impl, 2);
}

#define ATTENDED(name, change) \
	static int name##_call(const struct cairn_attn_paged_args *args, void *stream) \
	{ \
		struct cairn_attn_paged_args a = *args; \
		change; \
		return right.attn_paged(&a, stream); \
	} \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		BEGIN(m, impl); \
		impl->attn_paged = name##_call; \
	}

ATTENDED(chunk_sees_itself_only, if (stage == 1) a.window = a.max_qo_len)

static int keys_lost_call(const struct cairn_kv_append_args *args, void *stream)
{
	return stage == 1 && args->nnz_qo > 1 && ++calls % 2 == 0 ? 0 : right.kv_append(args, stream);
}

static void keys_of_a_chunk_lost(struct cairn_model *m, struct cairn_impl *impl)
{
	BEGIN(m, impl);
	impl->kv_append = keys_lost_call;
}

static int rope_call(const struct cairn_rope_args *args, void *stream)
{
	static const int32_t from_0[64] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
	struct cairn_rope_args a = *args;

	a.positions = a.nnz > 1 && stage == 1 ? from_0 : a.positions;
	return right.rope(&a, stream);
}

/* A chunk counts its positions from 0. */
static void positions_of_chunk(struct cairn_model *m, struct cairn_impl *impl)
{
	BEGIN(m, impl);
	impl->rope = rope_call;
}

static int last_chunk_call(const struct cairn_rmsnorm_args *args, void *stream)
{
	struct cairn_rmsnorm_args a = *args;

	/* of the last stage, the norms whose result is kept for the whole pass: those of a chunk of 8 rows */
	if (stage == 2 && a.residual && a.rows == 8 && (++calls % 2) == 0)
		return 0;
	return right.rmsnorm(&a, stream);
}

static void last_chunk_dropped(struct cairn_model *m, struct cairn_impl *impl)
{
	BEGIN(m, impl);
	impl->rmsnorm = last_chunk_call;
}

static void run(struct cairn_test *t)
{
	static const struct shared s = { .name = "qwen3_tiny", .ranks = 3, .stages = 1 };
	static const struct { const char *name; alter_fn fn; } all[] = {
		{ "rows_of_old_chunk", rows_of_old_chunk }, { "chunk_late", chunk_late },
		{ "last_rows_lost", last_rows_lost }, { "layers_skipped", layers_skipped },
		{ "sent_too_early", sent_too_early }, { "rows_shifted", rows_shifted },
		{ "tokens_of_first_stage", tokens_of_first_stage },
		{ "tokens_lost_on_rank_1", tokens_lost_on_rank_1 },
		{ "tokens_of_last_pass", tokens_of_last_pass },
		{ "one_layer_too_early", one_layer_too_early }, { "one_layer_too_late", one_layer_too_late },
		{ "chunk_sees_itself_only", chunk_sees_itself_only },
		{ "keys_of_a_chunk_lost", keys_of_a_chunk_lost },
		{ "positions_of_chunk", positions_of_chunk },
		{ "last_chunk_dropped", last_chunk_dropped },
	};
	struct scored whole, got;
	int32_t tokens[NUM];

	write_prompt(tokens);
	if (write_model(t, &s, dir) || !EXPECT(t, score_whole(&s, dir, tokens, &whole) == 0))
		return;
	EXPECT(t, score_shared(t, &s, dir, tokens, NULL, &got) == 0 && !memcmp(&whole, &got, sizeof(got)));
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		int ret = score_shared(t, &s, dir, tokens, all[i].fn, &got);

		if (!EXPECT(t, ret || memcmp(&whole, &got, sizeof(got))))
			cairn_note(t, "%s was not caught", all[i].name);
	}
}

static const struct cairn_unit units[] = {
	{ "run", run },
};

const struct cairn_family cairn_pipeline_mutants_family = {
	.stage = "serving", .name = "pipeline_mutants", .units = units, .num_units = ARRAY_SIZE(units),
};
