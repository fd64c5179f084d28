// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_ranks_mutants - defects of what ranks add to a decode step
 *
 * The mutants are one plain step, made of the reference's parts, with a switch for each defect. It exchanges
 * the sums and the logits of one request at a time. decode_step has mutants of its own for all else.
 *
 * There is no mutant that sums in another order on each rank: its x differs between ranks by less than the
 * tolerance, and logits are gathered, so all ranks still have the same ones.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "fused/cluster_attn/block_attn_ref.h"
#include "fused/decode_step/decode_step_parts.h"
#include "fused/decode_step/ranks/decode_step_ranks_parts.h"
#include "primitives/base/args.h"
#include "primitives/base/nudge.h"
#include "primitives/comm/comm_host.h"
#include "primitives/draw/argmax.h"
#include "primitives/draw/sample.h"

#define OP		"decode_step_ranks"
#define MAX_BATCH	8

#define DEFECTS(D) \
	D(last_rank_lost_at_the_tail, "of three or more ranks, the last one's last 8 sums are left out") \
	D(eighth_rank_lost, "sums at most seven ranks") \
	D(own_twice, "adds its own sums twice") \
	D(sums_in_dtype, "rounds each rank's sums to dtype before the exchange") \
	D(rounded_before_residual, "rounds the sum of the ranks to dtype before it adds x") \
	D(residual_n_times, "adds x once for each rank") \
	D(bias_n_times, "adds b_o once for each rank") \
	D(bias_missing, "adds b_o on no rank") \
	D(bias_on_rank_0_alone, "rank 0 adds b_o after the exchange, so that the others miss it") \
	D(attention_not_exchanged, "adds the attention of its own heads alone") \
	D(mlp_not_exchanged, "adds the MLP of its own columns alone") \
	D(last_layer_not_exchanged, "does not exchange the sums of the last layer's MLP") \
	D(attention_of_rank_0, "adds the attention of rank 0 for each rank") \
	D(logits_of_others_missing, "writes the logits of its own rows alone") \
	D(logits_of_last_rank_missing, "of three or more ranks, the last one's logits are not written") \
	D(logits_in_reverse_order, "places the logits of the ranks in reverse order") \
	D(logits_interleaved, "logit i is that of row i / n of rank i % n") \
	D(logits_own_first, "places its own logits first") \
	D(last_logits_of_share_missing, "does not write the last 8 logits of each rank but the last") \
	D(logits_past_a_mailbox, "logits of a rank past the first 32768 are 0") \
	D(logits_in_dtype, "rounds logits to dtype before the exchange") \
	D(token_of_own_share, "chooses the token among its own logits") \
	D(token_within_share, "returns the token's row in its rank's share") \
	D(token_on_rank_0_alone, "writes tokens on rank 0 alone") \
	D(drawn_by_rank, "each rank draws tokens with a seed of its own") \
	D(lm_head_is_whole, "reads rows of lm_head as if it were that of the whole model") \
	D(any_rank, "uses the handle's rank and ranks instead of checking the arguments'") \
	D(size_ignored, "accepts an argument struct that is too small") \
	D(bias_taken_on_any_rank, "accepts b_o on other ranks than rank 0") \
	D(vocab_of_any_size, "accepts a vocab that the ranks cannot share") \
	D(ranks_differ, "the last rank's logits differ in the last bit") \
	D(not_repeatable, "every other call differs in the last bit of a logit") \
	D(no_wait, "reads the others' sums without waiting for them") \
	D(flag_before_payload, "posts its sums before they are written") \
	D(one_mailbox, "uses one mailbox for all rounds") \
	D(last_rank_not_awaited, "does not wait for the last rank") \
	D(timeout_is_success, "a wait that times out ends the call with success") \
	D(other_error, "returns -EIO where a wait fails") \
	D(nothing, "returns success without doing anything")

#define ENUM(name, what)	RANKS_##name,
enum defect { DEFECTS(ENUM) };

struct state {
	const struct cairn_decode_step_args *a;
	struct cairn_comm comm;
	enum defect d;
	struct block_row x, n, g, k, v, logits;
	float *own;			/* what this rank sends */
	const void *mail[CAIRN_COMM_MAX_RANKS];
	int layer;
};
#define IS(defect)	(s->d == RANKS_##defect)

static struct block_row new_row(int64_t n)
{
	double *p = calloc(2 * (size_t)n, sizeof(*p));

	if (!p)
		abort();
	return (struct block_row){ p, p + n };	/* values() drops err */
}

static struct block_row values(struct block_row r)
{
	return (struct block_row){ r.val, NULL };
}

/* ---- messages ---- */

static void send(struct state *s, int64_t n, void *mine)
{
	if (IS(one_mailbox))
		mine = comm_host_mail(s->comm.handle, s->comm.rank, 0);
	if (IS(flag_before_payload)) {
		comm_host_post(&s->comm);
		usleep(300);
	}
	memcpy(mine, s->own, (size_t)n * sizeof(float));
	if (!IS(flag_before_payload))
		comm_host_post(&s->comm);
	if (IS(one_mailbox) && s->comm.rank == 0)
		usleep(300);
	s->mail[s->comm.rank] = mine;
}

static int await(struct state *s, int32_t r)
{
	struct comm_host *h = s->comm.handle;
	int ret;

	s->mail[r] = comm_host_mail(h, r, h->number);
	if (IS(no_wait) || (IS(last_rank_not_awaited) && r == s->comm.ranks - 1))
		return 0;
	ret = comm_host_await(&s->comm, r, OP, &s->mail[r]);
	if (IS(one_mailbox))
		s->mail[r] = comm_host_mail(h, r, 0);
	if (IS(timeout_is_success) && ret == -ETIMEDOUT) {
		atomic_store(&h->error, 0);
		return 0;
	}
	return IS(other_error) && ret ? -EIO : ret;
}

/* Sends the first n numbers of s->own, and sets s->mail to those of all ranks. */
static int exchange(struct state *s, int64_t n)
{
	void *mine;

	CAIRN_TRY(comm_host_begin(&s->comm, OP, &mine));
	send(s, n, mine);
	for (int32_t r = 0; r < s->comm.ranks; r++)
		if (r != s->comm.rank)
			CAIRN_TRY(await(s, r));
	return 0;
}

/* ---- sums ---- */

/* Returns the sum of all ranks' element i. */
static float sum_of(const struct state *s, int i, int is_mlp)
{
	int32_t n = s->comm.ranks;
	float sum = 0;

	if ((IS(attention_not_exchanged) && !is_mlp) || (IS(mlp_not_exchanged) && is_mlp) ||
	    (IS(last_layer_not_exchanged) && is_mlp && s->layer == s->a->num_layers - 1))
		return s->own[i];
	for (int32_t k = 0; k < n; k++) {
		int32_t r = IS(attention_of_rank_0) && !is_mlp ? 0 : k;
		float p = ((const float *)s->mail[r])[i];

		if (IS(sums_in_dtype))
			p = (float)block_rounded(p, s->a->dtype);
		if (IS(own_twice) && r == s->comm.rank && n > 1)
			p *= 2;
		if ((IS(last_rank_lost_at_the_tail) && n > 2 && k == n - 1 && i >= s->a->hidden - 8) ||
		    (IS(eighth_rank_lost) && k == 7))
			continue;
		sum = k ? sum + p : p;
	}
	return IS(rounded_before_residual) ? (float)block_rounded(sum, s->a->dtype) : sum;
}

/* Adds the sums of all ranks to x. */
static int add(struct state *s, int is_mlp)
{
	const void *bias = s->comm.rank ? NULL : decode_step_weight(s->a, s->a->b_o, s->layer);
	double times = IS(residual_n_times) ? s->comm.ranks : 1;

	CAIRN_TRY(exchange(s, s->a->hidden));
	for (int i = 0; i < s->a->hidden; i++) {
		double sum = sum_of(s, i, is_mlp);

		if (IS(bias_on_rank_0_alone) && !is_mlp && bias)
			sum += cairn_load(bias, s->a->dtype, i);
		s->x.val[i] = block_rounded(times * s->x.val[i] + sum, s->a->dtype);
	}
	return 0;
}

static int attention(struct state *s, int b)
{
	const struct cairn_decode_step_args *a = s->a;
	struct cairn_cluster_attn_args c = decode_step_attn(a, s->layer);
	int64_t row = decode_step_k_row(a), at = cairn_kv_slot(&a->kv, b, cairn_kv_len(&a->kv, b) - 1) * row;
	const void *bias = c.b_o;

	if (IS(bias_missing) || IS(bias_on_rank_0_alone))
		c.b_o = NULL;
	if (cairn_block_attn_unrounded(&c, b, s->x, values(s->n), values(s->k), values(s->v)))
		abort();
	for (int64_t i = 0; i < row; i++) {
		cairn_store(c.kv.k_pages, a->dtype, at + i, s->k.val[i]);
		cairn_store(c.kv.v_pages, a->dtype, at + i, s->v.val[i]);
	}
	for (int i = 0; i < a->hidden; i++) {
		s->own[i] = (float)(s->n.val[i] - s->x.val[i]);
		if (IS(bias_n_times) && bias)
			s->own[i] += (float)((s->comm.ranks - 1) * cairn_load(bias, a->dtype, i));
	}
	return add(s, 0);
}

static int feed_forward(struct state *s)
{
	const struct cairn_decode_step_args *a = s->a;

	cairn_block_norm(values(s->n), s->x, decode_step_weight(a, a->mlp_norm, s->layer), a->hidden, a->eps,
			 a->dtype);
	cairn_block_project(values(s->g), s->n, decode_step_weight(a, a->w_gate_up, s->layer), NULL,
			    2 * (int64_t)a->intermediate, a->hidden, a->dtype);
	cairn_block_silu_mul(values(s->g), a->intermediate, a->dtype);
	cairn_block_project(values(s->n), s->g, decode_step_weight(a, a->w_down, s->layer), NULL, a->hidden,
			    a->intermediate, a->dtype);
	for (int i = 0; i < a->hidden; i++)
		s->own[i] = (float)s->n.val[i];
	return add(s, 1);
}

/* ---- logits ---- */

/* Returns where logit i of rank r goes, or -1. */
static int64_t place_of(const struct state *s, int32_t r, int64_t i)
{
	int32_t n = s->comm.ranks, at = r;
	int64_t share = s->a->vocab / n;

	if ((IS(logits_of_others_missing) && r != s->comm.rank) ||
	    (IS(logits_of_last_rank_missing) && n > 2 && r == n - 1) ||
	    (IS(last_logits_of_share_missing) && r < n - 1 && i >= share - 8))
		return -1;
	if (IS(logits_interleaved))
		return i * n + r;
	if (IS(logits_in_reverse_order))
		at = n - 1 - r;
	if (IS(logits_own_first))
		at = r == s->comm.rank ? 0 : r < s->comm.rank ? r + 1 : r;
	return at * share + i;
}

static int head(struct state *s, int b)
{
	const struct cairn_decode_step_args *a = s->a;
	int64_t share = a->vocab / s->comm.ranks;
	/* never past the rank's own rows */
	int64_t skip = IS(lm_head_is_whole) && s->comm.rank ? share / 2 : 0;

	cairn_block_norm(values(s->n), s->x, a->final_norm, a->hidden, a->eps, a->dtype);
	cairn_block_project(values(s->logits), s->n, (const uint16_t *)a->lm_head + skip * a->hidden, NULL,
			    share - skip, a->hidden, a->dtype);
	for (int64_t i = 0; i < share; i++)
		s->own[i] = (float)(IS(logits_in_dtype) ? block_rounded(s->logits.val[i], a->dtype) :
				    IS(logits_past_a_mailbox) && i >= 32768 ? 0 : s->logits.val[i]);
	CAIRN_TRY(exchange(s, share));
	for (int32_t r = 0; r < s->comm.ranks; r++)
		for (int64_t i = 0; i < share; i++) {
			int64_t at = place_of(s, r, i);

			if (at >= 0)
				a->logits[(int64_t)b * a->vocab + at] = ((const float *)s->mail[r])[i];
		}
	return 0;
}

/* Returns the token that defects of choice put in the place of `token`. */
static int32_t other_token(const struct state *s, int b, int32_t token)
{
	int32_t share = s->a->vocab / s->comm.ranks, first = s->comm.rank * share, best = first;
	const float *logits = s->a->logits + (int64_t)b * s->a->vocab;

	if (IS(token_within_share))
		return token % share;
	for (int32_t i = first; i < first + share && IS(token_of_own_share); i++)
		best = logits[i] > logits[best] ? i : best;
	return IS(token_of_own_share) ? best : token;
}

static void draw(const struct state *s)
{
	const struct cairn_decode_step_args *a = s->a;
	uint64_t seed[MAX_BATCH];
	struct cairn_argmax_args argmax = {
		.size = sizeof(argmax), .out = a->tokens, .logits = a->logits, .rows = a->kv.batch,
		.vocab = a->vocab, .dtype = CAIRN_F32,
	};
	struct cairn_sample_args sample = {
		.size = sizeof(sample), .out = a->tokens, .logits = a->logits, .temperature = a->temperature,
		.top_k = a->top_k, .top_p = a->top_p, .min_p = a->min_p, .seed = seed, .offset = a->offset,
		.rows = a->kv.batch, .vocab = a->vocab,
	};

	if (!a->tokens || (IS(token_on_rank_0_alone) && s->comm.rank))
		return;
	for (int b = 0; b < a->kv.batch && a->temperature; b++)
		seed[b] = a->seed[b] + (IS(drawn_by_rank) ? (uint64_t)s->comm.rank : 0);
	if (a->temperature)
		cairn_sample_ref(&sample, NULL);
	else
		cairn_argmax_ref(&argmax, NULL);
	for (int b = 0; b < a->kv.batch; b++)
		a->tokens[b] = other_token(s, b, a->tokens[b]);
}

/* ---- the step ---- */

static int request(struct state *s, int b)
{
	const struct cairn_decode_step_args *a = s->a;

	for (int i = 0; i < a->hidden; i++)
		s->x.val[i] = cairn_load(a->embed, a->dtype, (int64_t)a->ids[b] * a->hidden + i);
	for (s->layer = 0; s->layer < a->num_layers; s->layer++) {
		CAIRN_TRY(attention(s, b));
		CAIRN_TRY(feed_forward(s));
	}
	return head(s, b);
}

static int run(struct state *s)
{
	const struct cairn_decode_step_args *a = s->a;
	struct block_row *const rows[] = { &s->x, &s->n, &s->g, &s->k, &s->v, &s->logits };
	const int64_t kv = decode_step_k_row(a), share = a->vocab / s->comm.ranks;
	const int64_t sizes[] = { a->hidden, a->hidden, 2 * (int64_t)a->intermediate, kv, kv, share };
	int ret = 0;

	for (int i = 0; i < 6; i++)
		*rows[i] = new_row(sizes[i]);
	s->own = malloc(sizeof(float) * (size_t)(share > a->hidden ? share : a->hidden));
	if (!s->own)
		abort();
	for (int b = 0; b < a->kv.batch && !ret; b++)
		if (cairn_kv_len(&a->kv, b) > 0)
			ret = request(s, b);
	if (!ret && a->kv.batch)
		draw(s);
	for (int i = 0; i < 6; i++)
		free(rows[i]->val);
	free(s->own);
	return ret;
}

/* Makes the arguments pass the check that the defect lacks. */
static void pass_check(struct cairn_decode_step_ranks_args *a, enum defect d)
{
	const struct comm_host *h = a->comm.handle;

	if (d == RANKS_any_rank && h) {
		a->comm.rank = h->rank;
		a->comm.ranks = h->ranks;
	}
	if (d == RANKS_bias_taken_on_any_rank && a->comm.rank)
		a->step.b_o = NULL;
	if (d == RANKS_vocab_of_any_size && a->comm.ranks > 0)
		a->step.vocab -= a->step.vocab % (8 * a->comm.ranks);
}

static int step(const struct cairn_decode_step_ranks_args *args, enum defect d)
{
	static int calls;
	struct cairn_decode_step_ranks_args full;
	struct cairn_decode_step_args a;
	struct state s = { .a = &a, .d = d };

	if (d == RANKS_size_ignored && args->step.size < sizeof(full)) {
		full = *args;
		full.step.size = sizeof(full);
	} else {
		CAIRN_TRY(cairn_check_args(args, sizeof(full), OP));
		full = *args;
		full.step.size = sizeof(full);
	}
	pass_check(&full, d);
	CAIRN_TRY(cairn_decode_step_ranks_check(&full));
	CAIRN_TRY(comm_host_check(&full.comm, OP));
	if (d == RANKS_nothing)
		return 0;
	a = decode_step_ranks_step(&full);
	s.comm = full.comm;
	CAIRN_TRY(run(&s));
	if (d == RANKS_ranks_differ && a.kv.batch && s.comm.ranks > 1 && s.comm.rank == s.comm.ranks - 1)
		nudge(a.logits, a.vocab);
	if (d == RANKS_not_repeatable && a.kv.batch && calls++ % 2)
		*(uint32_t *)a.logits ^= 1;
	return 0;
}

#define DEFINE(name, what) \
	static int ranks_##name(const struct cairn_decode_step_ranks_args *a, void *stream) \
	{ \
		(void)stream; \
		return step(a, RANKS_##name); \
	}
DEFECTS(DEFINE)

#define LIST(name, what) \
	{ "decode_step_ranks_" #name, offsetof(struct cairn_impl, decode_step_ranks), (void *)ranks_##name, \
	  what },

/* The persistent form adds in another order. */
static int ranks_form_differs(const struct cairn_decode_step_ranks_args *a, void *stream)
{
	CAIRN_TRY(cairn_decode_step_ranks_cpu(a, stream));
	if (a->step.form == CAIRN_DECODE_STEP_PERSISTENT && a->step.kv.batch)
		nudge(a->step.logits, a->step.vocab);
	return 0;
}

const struct cairn_mutant cairn_decode_step_ranks_mutants[] = {
	DEFECTS(LIST)
	LIST(form_differs, "the persistent form adds in another order")
	{ 0 }
};
