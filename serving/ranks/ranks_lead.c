// SPDX-License-Identifier: Apache-2.0
/*
 * ranks_lead - what rank 0 tells the other ranks
 *
 * Records are collected in a plan, which is sent when a pass is launched, when pages move without a pass, and
 * when many lists of requests have come and gone without a pass.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serving/ranks/ranks_impl.h"

#define MANY_BYTES	(64 << 10)

static int tap_create(void *ctx, const struct cairn_worker_options *w, const struct cairn_tiers_options *t)
{
	struct options o = {
		.plans = w->nano ? w->nano->digest : 0,
		.context_keys = w->context_keys, .max_batch = w->max_batch, .max_rows = w->max_rows,
		.max_context = w->max_context, .num_pages = w->num_pages, .page_size = w->page_size,
		.repeatable = w->repeatable, .no_graphs = w->no_graphs, .chunk_rows = w->chunk_rows,
		.context_rows = w->context_rows, .host_pages = t->host_pages, .disk_pages = t->disk_pages,
		.stripes = w->stripes, .decode = (int32_t)w->decode, .taps = w->taps != NULL,
	};
	const char *dir = t->disk_dir ? t->disk_dir : "";
	struct cairn_tp *tp = ctx;
	int ret;

	for (int k = 0; k < CAIRN_MAX_TAPS && w->taps; k++)
		o.tap_layers[k] = w->taps->layers[k];
	if (strlen(dir) >= sizeof(o.disk_dir))
		return cairn_error(EINVAL, "disk_dir: is longer than %zu bytes", sizeof(o.disk_dir) - 1);
	memcpy(o.disk_dir, dir, strlen(dir));
	ret = tp_send_to_all(tp, OPTIONS, &o, sizeof(o));
	for (int32_t r = 1; r < tp->ranks && !ret; r++)
		ret = tp_receive(tp, r, READY, NULL, 0, CAIRN_TP_START_S * 1000);
	return tp_explain(tp, ret, 0, "start");
}

/* Returns the plan that is being built. */
static struct cairn_plan_out *plan_of(struct cairn_tp *tp)
{
	if (!tp->in_plan)
		cairn_plan_begin(&tp->plan, tp->plans + 1);
	tp->in_plan = 1;
	return &tp->plan;
}

static int send_plan(struct cairn_tp *tp)
{
	tp->in_plan = 0;
	tp->plans++;
	CAIRN_TRY(cairn_plan_finish(&tp->plan));
	return tp_explain(tp, tp_send_to_all(tp, PLAN, tp->plan.bytes, tp->plan.len), tp->passes, "plan");
}

static int tap_lists(void *ctx, const struct cairn_logit_bias *bias, int32_t num_bias,
		     const int32_t *forbidden, int32_t num_forbidden, int32_t bias_at, int32_t forbidden_at)
{
	const struct cairn_plan_lists l = { bias, forbidden, num_bias, num_forbidden, bias_at, forbidden_at };
	struct cairn_tp *tp = ctx;

	cairn_plan_put_lists(plan_of(tp), CAIRN_PLAN_LISTS, &l);
	return tp->plan.len > MANY_BYTES ? send_plan(tp) : 0;
}

static void tap_unlist(void *ctx, int32_t bias_at, int32_t num_bias, int32_t forbidden_at,
		       int32_t num_forbidden)
{
	const struct cairn_plan_lists l = { NULL, NULL, num_bias, num_forbidden, bias_at, forbidden_at };

	cairn_plan_put_lists(plan_of(ctx), CAIRN_PLAN_UNLIST, &l);
}

static void tap_moves(void *ctx, const struct cairn_move *moves, int32_t num_before, int32_t num)
{
	cairn_plan_put_moves(plan_of(ctx), moves, num_before, num);
}

static void tap_add(void *ctx, const struct cairn_worker_part *part)
{
	struct cairn_tp *tp = ctx;

	cairn_plan_put_part(plan_of(tp), part);
}

static void tap_add_draw(void *ctx, int32_t row, const struct cairn_worker_part *part)
{
	cairn_plan_put_draw(plan_of(ctx), row, part);
}

static int tap_launch(void *ctx)
{
	struct cairn_tp *tp = ctx;

	tp->passes++;
	return send_plan(tp);
}

static int compare(struct cairn_tp *tp, int32_t r, const struct cairn_worker_result *result)
{
	const size_t bytes = (size_t)result->num_tokens * sizeof(*result->tokens);
	struct { struct drawn d; int32_t tokens[]; } *theirs = malloc(sizeof(struct drawn) + bytes);
	int ret = theirs ? tp_receive(tp, r, TOKENS, theirs, sizeof(struct drawn) + bytes, tp->timeout_ms) :
		  cairn_error(ENOMEM, "ranks: no memory");

	if (!ret && (theirs->d.pass != tp->collected || theirs->d.num != result->num_tokens))
		ret = cairn_error(EIO, "rank %d: sent %d tokens of pass %llu, want %d of pass %llu", r,
				  theirs->d.num, (unsigned long long)theirs->d.pass, result->num_tokens,
				  (unsigned long long)tp->collected);
	for (int32_t i = 0; i < result->num_tokens && !ret; i++)
		if (theirs->tokens[i] != result->tokens[i])
			ret = cairn_error(EIO, "rank %d drew %d, rank 0 drew %d", r, theirs->tokens[i],
					  result->tokens[i]);
	free(theirs);
	return ret;
}

static int tap_collect(void *ctx, const struct cairn_worker_result *result)
{
	struct cairn_tp *tp = ctx;
	int ret;

	tp->collected++;
	CAIRN_TRY(tp_check_comm(tp));
	ret = tp_send_to_all(tp, COLLECT, NULL, 0);
	for (int32_t r = 1; r < tp->ranks && !ret; r++)
		ret = compare(tp, r, result);
	return tp_explain(tp, ret, tp->collected, "collect");
}

const struct cairn_engine_tap *cairn_tp_tap(struct cairn_tp *tp)
{
	tp->tap = (struct cairn_engine_tap){
		.worker = { tp, tap_lists, tap_unlist, tap_add, tap_add_draw, tap_launch, tap_collect },
		.create = tap_create, .moves = tap_moves,
	};
	return &tp->tap;
}

int cairn_tp_beat(struct cairn_tp *tp)
{
	int ret = tp_send_to_all(tp, BEAT, NULL, 0);

	for (int32_t r = 1; r < tp->ranks && !ret; r++)
		ret = tp_receive(tp, r, BEAT, NULL, 0, tp->timeout_ms);
	return tp_explain(tp, ret, 0, "beat");
}
