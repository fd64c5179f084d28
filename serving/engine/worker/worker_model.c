// SPDX-License-Identifier: Apache-2.0
/*
 * worker_model - passes of a lane that a model worker of another process computes
 *
 * Here a pass is built as any other, because the attention workers must be told of it. Its parts and draws
 * are also recorded in a plan (plan.h), which the model worker carries out with a worker of its own. The pass
 * is under way until the result has come. This process takes turns for its own lanes meanwhile.
 */
#include <errno.h>
#include <string.h>

#include "serving/base/clock.h"
#include "serving/engine/worker/worker_impl.h"
#include "serving/remote/attention/attn_epoch.h"

#define LOOK_MS		20	/* while there is nothing else to do */

static int ignore_lists(void *ctx, const struct cairn_logit_bias *bias, int32_t num_bias,
			const int32_t *forbidden, int32_t num_forbidden, int32_t bias_at,
			int32_t forbidden_at)
{
	(void)ctx, (void)bias, (void)num_bias, (void)forbidden, (void)num_forbidden, (void)bias_at;
	(void)forbidden_at;
	return 0;	/* requests with lists are not in such lanes */
}

static void ignore_unlist(void *ctx, int32_t bias_at, int32_t num_bias, int32_t forbidden_at,
			  int32_t num_forbidden)
{
	(void)ctx, (void)bias_at, (void)num_bias, (void)forbidden_at, (void)num_forbidden;
}

static void add(void *ctx, const struct cairn_worker_part *part)
{
	struct cairn_worker *w = ctx;

	if (!w->batch.batch)
		cairn_plan_begin(&w->plan, w->model_passes + 1);
	cairn_plan_put_part(&w->plan, part);
}

static void add_draw(void *ctx, int32_t row, const struct cairn_worker_part *part)
{
	cairn_plan_put_draw(&((struct cairn_worker *)ctx)->plan, row, part);
}

static int ignore_launch(void *ctx)
{
	(void)ctx;
	return 0;
}

static int ignore_collect(void *ctx, const struct cairn_worker_result *result)
{
	(void)ctx, (void)result;
	return 0;
}

void worker_model_create(struct cairn_worker *w)
{
	w->remote = w->opt.first->remote;
	w->model_tap = (struct cairn_worker_tap){ w, ignore_lists, ignore_unlist, add, add_draw,
						  ignore_launch, ignore_collect };
	w->opt.tap = &w->model_tap;
}

int worker_model_launch(struct cairn_worker *w)
{
	w->flight->draws_all = 0;	/* the model worker leaves unwanted draws out */
	worker_sliced_take_copies(w);
	CAIRN_TRY(cairn_plan_finish(&w->plan));
	CAIRN_TRY(worker_sliced_begin(w));
	CAIRN_TRY(cairn_attn_remote_run(w->remote, w->opt.model, w->plan.bytes, w->plan.len));
	w->model_passes++;
	w->launched_ns = cairn_clock_ns();
	w->slices_left = 1;
	w->last = w->flight;
	w->num_flights++;
	w->stats.sliced_passes++;
	return 0;
}

/* Copies what was drawn, which has been checked, to where the passes of this process put it. */
static void take_result(struct cairn_worker *w, const struct cairn_attn_result *r)
{
	struct flight *f = &w->flights[w->first_flight];
	const size_t num = (size_t)(f->num_tokens + f->num_scored), batch = (size_t)w->opt.max_batch;
	const size_t k = (size_t)r->k;
	const char *at = (const char *)(r + 1);

	memcpy(f->tokens, at, (size_t)f->num_tokens * sizeof(*f->tokens));
	at += (size_t)f->num_tokens * sizeof(*f->tokens);
	memcpy(f->logprobs, at, num * sizeof(float));
	memcpy(f->logprobs + batch * sizeof(float), at + num * sizeof(float), num * k * sizeof(int32_t));
	memcpy(f->logprobs + batch * (sizeof(float) + k * sizeof(int32_t)),
	       at + num * (sizeof(float) + k * sizeof(int32_t)), num * k * sizeof(float));
	f->k = r->k;
}

/* Returns whether this process has a pass of its own to go on with. */
static int is_busy(const struct cairn_worker *first)
{
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++)
		if (first->group[i] && !first->group[i]->opt.model && first->group[i]->slices_left)
			return 1;
	return 0;
}

int worker_model_turn(struct cairn_worker *w, int *under_way)
{
	const int64_t most = (int64_t)CAIRN_EPOCH_LAYER_MS * (w->model->config.num_hidden_layers + 1);
	const struct flight *f = &w->flights[w->first_flight];
	const struct cairn_attn_wants wants = {
		.num_tokens = f->num_tokens, .num_scored = f->num_scored, .vocab = w->vocab, .rows = f->rows,
		.wanted = f->host.wanted, .late = f->host.wanted_late,
	};
	const struct cairn_attn_result *r;
	int ret = cairn_attn_remote_result(w->remote, w->opt.model, is_busy(w->opt.first) ? 0 : LOOK_MS,
					   &wants, &r);

	*under_way = ret == -ETIMEDOUT;
	if (*under_way)
		return cairn_clock_ns() - w->launched_ns < most * 1000000 ? 0 :
		       cairn_attn_remote_overdue(w->remote, w->opt.model);
	CAIRN_TRY(ret);
	w->slices_left = 0;
	take_result(w, r);
	return 0;
}
