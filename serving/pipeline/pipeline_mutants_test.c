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
static _Alignas(256) char other[1 << 16], kept[1 << 16], late[1 << 16];	/* rows of a chunk */

#define BEGIN(m, impl) \
	do { \
		(void)(m); \
		right = *(impl); \
		stage = (m)->config.stage; \
	} while (0)

/* ---- what passes from stage to stage ---- */

/* What is done before and after a call of send_recv in the middle stage; NULL: nothing. */
static void (*before)(struct cairn_send_recv_args *a), (*after)(struct cairn_send_recv_args *a);
static const char *arrived;		/* where the last chunk is */

static int pass_on(const struct cairn_send_recv_args *args, void *stream)
{
	struct cairn_send_recv_args a = *args;

	calls += a.from >= 0;
	if (before && stage == 1)
		before(&a);
	CAIRN_TRY(right.send_recv(&a, stream));
	if (after && stage == 1)
		after(&a);
	return 0;
}

#define PASSED(name, before_call, after_call) \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		BEGIN(m, impl); \
		before = before_call; \
		after = after_call; \
		impl->send_recv = pass_on; \
	}

/* Every second chunk is received, but not to where the stage reads it. */
static void receive_elsewhere(struct cairn_send_recv_args *a)
{
	if (a->from >= 0 && calls % 2 == 0)
		a->out = other;
}

/* Exchanges bytes with those kept at the call before. */
static void exchange_kept(char *bytes, size_t num)
{
	memcpy(other, bytes, num);
	memcpy(bytes, kept, num);
	memcpy(kept, other, num);
}

static void take_one_before(struct cairn_send_recv_args *a)
{
	if (a->from >= 0)
		exchange_kept(a->out, (size_t)a->bytes);
}

static void keep_old_rows(struct cairn_send_recv_args *a)
{
	if (a->from >= 0)
		memcpy(other, a->out, (size_t)a->bytes);
}

static void restore_second_half(struct cairn_send_recv_args *a)
{
	const size_t half = (size_t)a->bytes / 2;

	if (a->from >= 0)
		memcpy((char *)a->out + half, other + half, half);
}

/* What has arrived leaves, as if the stage had no layers. */
static void send_what_came(struct cairn_send_recv_args *a)
{
	if (a->to >= 0 && arrived)
		a->x = memcpy(kept, arrived, (size_t)a->bytes);
}

static void note_arrived(struct cairn_send_recv_args *a)
{
	arrived = a->from >= 0 ? a->out : arrived;
}

static void send_one_before(struct cairn_send_recv_args *a)
{
	if (a->to < 0)
		return;
	memcpy(late, a->x, (size_t)a->bytes);
	exchange_kept(late, (size_t)a->bytes);
	a->x = late;
}

static void shift_rows(struct cairn_send_recv_args *a)
{
	if (a->from >= 0 && a->bytes > 512)
		memmove((char *)a->out + 512, a->out, (size_t)a->bytes - 512);
}

PASSED(rows_of_old_chunk, receive_elsewhere, NULL)
PASSED(chunk_late, NULL, take_one_before)
PASSED(last_rows_lost, keep_old_rows, restore_second_half)
PASSED(layers_skipped, send_what_came, note_arrived)
PASSED(sent_too_late, send_one_before, NULL)
PASSED(rows_shifted, NULL, shift_rows)

/* ---- drawn tokens ---- */

/* Changes the tokens of the last stage, which a stage has just received. */
static void (*change)(char *last, const struct cairn_all_to_all_args *a);

static int gather(const struct cairn_all_to_all_args *a, void *stream)
{
	CAIRN_TRY(right.all_to_all(a, stream));
	change((char *)a->out + 2 * a->out_block, a);
	return 0;
}

#define SHARED(name, change_tokens) \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		BEGIN(m, impl); \
		change = change_tokens; \
		impl->all_to_all = gather; \
	}

static void take_first_stage(char *last, const struct cairn_all_to_all_args *a)
{
	memcpy(last, a->out, (size_t)a->out_block);
}

static void lose_on_rank_1(char *last, const struct cairn_all_to_all_args *a)
{
	if (stage == 1)
		memset(last, 0, (size_t)a->out_block);
}

static void take_last_pass(char *last, const struct cairn_all_to_all_args *a)
{
	exchange_kept(last, (size_t)a->out_block);
}

SHARED(tokens_of_first_stage, take_first_stage)
SHARED(tokens_lost_on_rank_1, lose_on_rank_1)
SHARED(tokens_of_last_pass, take_last_pass)

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
	impl->qkv_append = NULL;	/* so that passes of few rows call it, too */
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
	impl->qkv_append = NULL;	/* so that passes of few rows call it, too */
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
		{ "sent_too_late", sent_too_late }, { "rows_shifted", rows_shifted },
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
