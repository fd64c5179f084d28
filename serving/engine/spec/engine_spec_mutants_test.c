// SPDX-License-Identifier: Apache-2.0
/*
 * engine_spec_mutants_test - operations that treat drafted rows wrongly change an answer
 *
 * Mutants of the scheduler, which follows the draws through a tree, are in serving/kv.
 */
#include <stdlib.h>
#include <string.h>

#include "serving/engine/spec/engine_spec_test.h"

static const struct cairn_impl *right_impl;

/* Gives a row the offset of the row before it if both have one seed, or one more than is right. */
static int sample_at(const struct cairn_sample_args *args, void *stream, int twice)
{
	struct cairn_sample_args other = *args;
	uint64_t offsets[256];

	memcpy(offsets, args->offset, (size_t)args->rows * sizeof(*offsets));
	for (int32_t i = 1; i < args->rows; i++) {
		if (args->seed[i] == args->seed[i - 1])
			offsets[i] = twice ? args->offset[i - 1] : args->offset[i] + 1;
	}
	other.offset = offsets;
	return right_impl->sample(&other, stream);
}

static int one_draw_at_two_depths(const struct cairn_sample_args *args, void *stream)
{
	return sample_at(args, stream, 1);
}

static int next_draw_drawn(const struct cairn_sample_args *args, void *stream)
{
	return sample_at(args, stream, 0);
}

/* Two consecutive positions in one pass become equal. */
static int at_one_position(const struct cairn_rope_args *args, void *stream)
{
	struct cairn_rope_args other = *args;
	int32_t positions[256];

	memcpy(positions, args->positions, (size_t)args->nnz * sizeof(*positions));
	for (int32_t i = 1; i < args->nnz; i++)
		positions[i] -= args->positions[i] == args->positions[i - 1] + 1;
	other.positions = positions;
	return right_impl->rope(&other, stream);
}

/* Appends only the first of the few rows of a pass with drafts, at the place of the last. */
static int one_row_appended(const struct cairn_kv_append_args *args, void *stream)
{
	static const int32_t one[] = { 0, 1 };
	struct cairn_kv_append_args other = *args;

	if (args->kv.batch == 1 && args->nnz_qo <= 8)
		other.qo_indptr = one;
	return right_impl->kv_append(&other, stream);
}

static int log_of_the_row_before(const struct cairn_logprobs_args *args, void *stream)
{
	int ret = right_impl->logprobs(args, stream);

	for (int32_t i = args->rows - 1; i > 0; i--)
		args->chosen[i] = args->chosen[i - 1];
	return ret;
}

static int forbidden_in_one_row(const struct cairn_penalize_args *args, void *stream)
{
	struct cairn_penalize_args other = *args;
	int32_t num[256];

	for (int32_t i = 0; i < args->rows; i++)
		num[i] = args->num_forbidden && !i ? args->num_forbidden[0] : 0;
	if (args->num_forbidden)
		other.num_forbidden = num;
	return right_impl->penalize(&other, stream);
}

static int forks_are_empty(const struct cairn_token_counts_args *args, void *stream)
{
	struct cairn_token_counts_args other = *args;
	int32_t from[256];

	for (int32_t i = 0; i < args->num_copies; i++)
		from[i] = -1;
	other.copy_from = from;
	return right_impl->token_counts(&other, stream);
}

static int drafts_not_counted(const struct cairn_token_counts_args *args, void *stream)
{
	struct cairn_token_counts_args other = *args;

	if (args->num_copies && args->copy_from[0] >= 0)
		other.num_tokens = other.num_segments = 0;
	return right_impl->token_counts(&other, stream);
}

/* ---- the same for trees ---- */

/* Changes the bits of the only tree of a call: line i has bit k. */
static int with_bits(const struct cairn_attn_bsr_args *args, void *stream,
		     int (*sees)(int i, int k, int saw))
{
	struct cairn_attn_bsr_args other = *args;
	int rows = args->num_parts > 1 ? args->part[1].blk_indptr[1] : 0, line = (rows + 7) / 8;
	uint8_t mask[CAIRN_TREE_ROWS * CAIRN_TREE_ROWS / 8] = { 0 };

	for (int i = 0; i < rows; i++) {
		for (int k = 0; k < rows; k++) {
			int saw = args->part[1].mask[i * line + k / 8] >> k % 8 & 1;

			mask[i * line + k / 8] |= (uint8_t)(sees(i, k, saw) << k % 8);
		}
	}
	other.part[1].mask = mask;
	return right_impl->attn_bsr(&other, stream);
}

static int not_later(int i, int k, int saw)
{
	(void)saw;
	return k <= i;
}

static int siblings_seen(const struct cairn_attn_bsr_args *args, void *stream)
{
	return with_bits(args, stream, not_later);
}

static int all_but_root(int i, int k, int saw)
{
	return saw && (k || !i);
}

static int root_unseen(const struct cairn_attn_bsr_args *args, void *stream)
{
	return with_bits(args, stream, all_but_root);
}

static int all_but_itself(int i, int k, int saw)
{
	return saw && (k != i || !i);
}

static int itself_unseen(const struct cairn_attn_bsr_args *args, void *stream)
{
	return with_bits(args, stream, all_but_itself);
}

/* The context ends one key too early. */
static int last_key_unseen(const struct cairn_attn_bsr_args *args, void *stream)
{
	struct cairn_attn_bsr_args other = *args;
	int32_t last = args->num_parts > 1 ? args->part[0].last_len[0] : 0;

	last -= last > 1;
	if (last)
		other.part[0].last_len = &last;
	return right_impl->attn_bsr(&other, stream);
}

/* A pass that has one tree and nothing else: positions that repeat or fall. */
static int is_tree(const int32_t *positions, int32_t num)
{
	for (int32_t i = 1; i < num; i++) {
		if (positions[i] && positions[i] <= positions[i - 1])
			return 1;
	}
	return 0;
}

static int position_is_row(const struct cairn_rope_args *args, void *stream)
{
	struct cairn_rope_args other = *args;
	int32_t positions[256];

	for (int32_t i = 0; i < args->nnz; i++)
		positions[i] = args->positions[0] + i;
	if (is_tree(args->positions, args->nnz))
		other.positions = positions;
	return right_impl->rope(&other, stream);
}

static int draw_is_row(const struct cairn_sample_args *args, void *stream)
{
	struct cairn_sample_args other = *args;
	uint64_t offsets[256];

	for (int32_t i = 0; i < args->rows; i++)
		offsets[i] = args->offset[0] + (uint64_t)i;
	other.offset = offsets;
	return right_impl->sample(&other, stream);
}

static int rows_stay(const struct cairn_kv_move_args *args, void *stream)
{
	(void)args, (void)stream;
	return 0;
}

/* What a device may do: writes a row before another move has read it. */
static int moves_overlap(const struct cairn_kv_move_args *args, void *stream)
{
	struct cairn_kv_move_args last = *args;

	if (args->to[0] < 0)	/* to staging: straight to the end of the other list instead */
		last.to = args->to + 2 * args->num_moves;
	last.num_moves = 1;
	last.from += args->num_moves;
	last.to += args->num_moves;
	for (int32_t i = 0; args->to[0] < 0 && i < args->num_moves; i++) {
		last.from--;
		last.to--;
		CAIRN_TRY(right_impl->kv_move(&last, stream));
	}
	return 0;
}

/* The counters of a drafted row begin with those of the row before it instead of its answer's. */
static int counts_of_siblings(const struct cairn_token_counts_args *args, void *stream)
{
	struct cairn_token_counts_args other = *args;
	int32_t from[256];

	for (int32_t i = 0; i < args->num_copies; i++)
		from[i] = i && args->copy_from[i] >= 0 ? args->copy_to[i - 1] : args->copy_from[i];
	other.copy_from = from;
	for (int32_t i = 0; i < args->num_copies; i++) {
		struct cairn_token_counts_args one = other;

		one.copy_to += i;
		one.copy_from = from + i;
		one.num_copies = 1;
		one.num_segments = one.num_tokens = 0;
		CAIRN_TRY(right_impl->token_counts(&one, stream));
		if (args->num_segments) {
			one = other;
			one.num_copies = 0;
			one.slots += i;
			one.indptr += i;
			one.num_segments = 1;
			CAIRN_TRY(right_impl->token_counts(&one, stream));
		}
	}
	return 0;
}

#define MUTANT(op, fn)	{ #fn, offsetof(struct cairn_impl, op), (void *)fn }

struct mutant {
	const char *name;
	size_t op;
	void *fn;
};

static const struct mutant mutants[] = {
	MUTANT(sample, one_draw_at_two_depths), MUTANT(sample, next_draw_drawn),
	MUTANT(rope, at_one_position), MUTANT(kv_append, one_row_appended),
	MUTANT(logprobs, log_of_the_row_before), MUTANT(penalize, forbidden_in_one_row),
	MUTANT(token_counts, forks_are_empty), MUTANT(token_counts, drafts_not_counted),
};

static const struct mutant tree_mutants[] = {
	MUTANT(attn_bsr, siblings_seen), MUTANT(attn_bsr, root_unseen), MUTANT(attn_bsr, itself_unseen),
	MUTANT(attn_bsr, last_key_unseen), MUTANT(rope, position_is_row), MUTANT(sample, draw_is_row),
	MUTANT(kv_move, rows_stay), MUTANT(kv_move, moves_overlap), MUTANT(token_counts, counts_of_siblings),
	MUTANT(token_counts, forks_are_empty), MUTANT(token_counts, drafts_not_counted),
};

static void noticed(struct cairn_test *t, const struct mutant *list, size_t num, int32_t branches)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct cairn_impl impl, whole;
	struct golden g;
	int same;

	if (!EXPECT(t, c) || open_model(t, "cpu", "llama3_tiny", &impl, &g, &c->m)) {
		free(c);
		return;
	}
	impl.qkv_append = NULL;		/* so that passes of few rows call rope and kv_append */
	whole = impl;
	right_impl = &whole;
	c->seed = cairn_rand(t);
	c->opt = (struct cairn_engine_options){
		.max_batch = 1, .max_rows = 64, .max_context = PROMPT + NEW, .decode = CAIRN_DECODE_UNFUSED,
	};
	crowd_make_single(c, 24);
	c->jobs[0].r.num_stop_ids = 2;
	c->right = branches ? 0.8 : 1;
	c->branches = branches;
	c->depth = branches ? 8 : c->depth;
	crowd_run(t, c, 0);
	crowd_run(t, c, 1);
	crowd_compare(t, c);
	EXPECT(t, c->jobs[0].want[0].num_ids >= 12 && c->accepted >= 8);
	for (size_t i = 0; i < num; i++) {
		impl = whole;
		memcpy((char *)&impl + list[i].op, &list[i].fn, sizeof(list[i].fn));
		c->may_fail = 1;
		same = 1;
		for (int k = 0; k < (branches ? 10 : 1) && same; k++) {		/* other trees each time */
			crowd_run(t, c, 1);
			same = crowd_same(&c->jobs[0].want[0], &c->jobs[0].got[0]);
		}
		if (!EXPECT(t, !same))
			cairn_note(t, "%s", list[i].name);
	}
	impl = whole;
	close_model(c->m, &g);
	free(c);
}

static void chains(struct cairn_test *t)
{
	noticed(t, mutants, ARRAY_SIZE(mutants), 0);
}

static void trees(struct cairn_test *t)
{
	noticed(t, tree_mutants, ARRAY_SIZE(tree_mutants), 3);
}

static const struct cairn_unit units[] = {
	{ "chains", chains }, { "trees", trees },
};

const struct cairn_family cairn_engine_spec_mutants_family = {
	.stage = "serving",
	.name = "engine_spec_mutants",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
