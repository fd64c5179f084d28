// SPDX-License-Identifier: Apache-2.0
/* model_epoch - the passes of a model worker of its own process (model_epoch.h) */
#include "serving/remote/models/model_epoch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/engine/worker/worker.h"
#include "serving/engine/worker/plan.h"
#include "serving/remote/attention/attn_remote.h"
#include "serving/remote/models/model_blob.h"
#include "serving/remote/remote_fault.h"

/*
 * When an attention worker is lost, its connections may end before the lead has noticed the loss and ended
 * the epoch. An error of a connection counts as this worker's own only if the epoch has not ended within
 * this time.
 */
#define LEAD_MS		2000

struct cairn_model_epoch {
	struct cairn_epoch_life life;	/* its lock protects pass and bytes */
	struct cairn_model *model;
	struct cairn_control_assign a;
	char address[64];
	struct cairn_attn_remote *remote;
	struct cairn_worker *worker;
	struct cairn_plan plan;
	struct cairn_plan_limits limits;
	struct cairn_attn_result *result;	/* [cairn_attn_result_bytes()] */
	uint64_t pass, last_pass;	/* pass: that is to be run; 0: none */
	unsigned char *bytes;		/* of its plan */
	size_t num_bytes;
};

/* ---- the thread ---- */

static int prepare(struct cairn_model_epoch *e)
{
	const struct cairn_control_assign *a = &e->a;
	struct cairn_worker_options o = {
		.max_batch = a->max_batch, .max_rows = a->max_rows, .max_context = a->max_context,
		.num_pages = a->num_pages, .page_size = a->page_size, .repeatable = a->repeatable != 0,
		.attends_all = !a->previous, .lane = (int32_t)a->lane,
	};
	struct cairn_model_blob mine = { 0 };

	CAIRN_TRY(cairn_attn_remote_follow(&e->remote, e->model, a, e->address, &e->life.stop));
	o.remote = e->remote;
	CAIRN_TRY(cairn_worker_create(&e->worker, e->model, &o));
	e->limits = (struct cairn_plan_limits){
		.max_batch = a->max_batch, .max_rows = a->max_rows, .max_context = a->max_context,
		.num_pages = a->num_pages, .page_size = a->page_size, .vocab = e->model->config.vocab_size,
	};
	e->result = calloc(1, cairn_attn_result_bytes(a->max_batch, CAIRN_LOGPROBS_MAX));
	if (!e->result)
		return cairn_error(ENOMEM, "no memory for results");
	CAIRN_TRY(cairn_attn_remote_blob(e->remote, &mine));
	CAIRN_TRY(cairn_epoch_introduce(&e->life, &mine));
	CAIRN_TRY(cairn_attn_remote_connect(e->remote, (const struct cairn_model_blob *)(const void *)
					    e->life.theirs));
	cairn_epoch_connected(&e->life);
	return 0;
}

/* Waits for a pass. Returns 0 if the epoch ends. */
static uint64_t next_pass(struct cairn_model_epoch *e)
{
	uint64_t pass;

	pthread_mutex_lock(&e->life.lock);
	while (!e->pass && !atomic_load(&e->life.stop))
		pthread_cond_wait(&e->life.changed, &e->life.lock);
	pass = atomic_load(&e->life.stop) ? 0 : e->pass;
	pthread_mutex_unlock(&e->life.lock);
	return pass;
}

static int compute(struct cairn_model_epoch *e, uint64_t pass, struct cairn_worker_result *result)
{
	struct cairn_plan *p = &e->plan;

	e->limits.number = pass;
	CAIRN_TRY(cairn_plan_read(p, e->bytes, e->num_bytes, &e->limits));
	if (!p->num_parts || p->num_moves)
		return cairn_error(EINVAL, "the lead sends a pass with %d parts and %d moves", p->num_parts,
				   p->num_moves);
	cairn_worker_begin(e->worker);
	for (int32_t i = 0; i < p->num_items; i++) {
		const struct cairn_plan_item *item = &p->items[i];

		if (item->kind == CAIRN_PLAN_PART)
			cairn_worker_add(e->worker, &item->part);
		else if (item->kind == CAIRN_PLAN_DRAW)
			cairn_worker_add_draw(e->worker, item->row, &item->part);
		else
			return cairn_error(EINVAL, "the lead sends a record of kind %d", (int)item->kind);
	}
	CAIRN_TRY(cairn_worker_launch(e->worker));
	return cairn_worker_collect(e->worker, result);
}

static int answer(struct cairn_model_epoch *e, uint64_t pass, const struct cairn_worker_result *w)
{
	const size_t num = (size_t)(w->num_tokens + w->num_scored), k = (size_t)w->k;
	struct cairn_attn_result *r = e->result;
	char *at = (char *)(r + 1);

	*r = (struct cairn_attn_result){ .pass = pass, .num_tokens = w->num_tokens,
					 .num_scored = w->num_scored, .k = w->k };
	memcpy(at, w->tokens, (size_t)w->num_tokens * sizeof(*w->tokens));
	at += (size_t)w->num_tokens * sizeof(*w->tokens);
	memcpy(at, w->logprob, num * sizeof(float));
	at += num * sizeof(float);
	memcpy(at, w->top, num * k * sizeof(*w->top));
	at += num * k * sizeof(*w->top);
	memcpy(at, w->top_logprob, num * k * sizeof(float));
	at += num * k * sizeof(float);
	pthread_mutex_lock(&e->life.lock);
	e->pass = 0;
	free(e->bytes);
	e->bytes = NULL;
	pthread_mutex_unlock(&e->life.lock);
	cairn_epoch_passed(&e->life);
	return cairn_attn_remote_answer(e->remote, r, (size_t)(at - (char *)r));
}

static int run_pass(struct cairn_model_epoch *e, uint64_t pass)
{
	struct cairn_worker_result result;

	CAIRN_TRY(compute(e, pass, &result));
	return answer(e, pass, &result);
}

/* Waits until the lead has ended the epoch, or has had time for it. */
static void await_end(struct cairn_model_epoch *e)
{
	const int64_t then = cairn_clock_ns() + LEAD_MS * 1000000ll;

	while (!atomic_load(&e->life.stop) && cairn_clock_ns() < then)
		nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
}

static void *run(void *arg)
{
	struct cairn_model_epoch *e = arg;
	char why[CAIRN_CONTROL_TEXT];
	int ret = prepare(e);
	uint64_t pass;

	while (!ret && (pass = next_pass(e)))
		ret = run_pass(e, pass);
	if (ret == -ECONNRESET || ret == -ETIMEDOUT) {
		snprintf(why, sizeof(why), "%s", cairn_last_error());
		await_end(e);
		ret = atomic_load(&e->life.stop) ? -ECANCELED : cairn_error(EIO, "%s", why);
	}
	cairn_epoch_ended(&e->life, ret);
	return NULL;
}

/* ---- the main thread ---- */

int cairn_model_epoch_create(struct cairn_model_epoch **out, struct cairn_model *model,
			     const struct cairn_control_assign *assign, const char *address)
{
	struct cairn_model_epoch *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return cairn_error(ENOMEM, "no memory for an epoch");
	e->model = model;
	e->a = *assign;
	snprintf(e->address, sizeof(e->address), "%s", address);
	ret = cairn_epoch_begin(&e->life, sizeof(struct cairn_model_blob), run, e);
	if (ret)
		cairn_model_epoch_destroy(e);
	else
		*out = e;
	return ret;
}

struct cairn_epoch_life *cairn_model_epoch_life(struct cairn_model_epoch *e)
{
	return &e->life;
}

int cairn_model_epoch_run(struct cairn_model_epoch *e, const struct cairn_control_run *head,
			  const void *bytes)
{
	int ret = 0;

	pthread_mutex_lock(&e->life.lock);
	if (e->pass || head->pass != e->last_pass + 1)
		ret = cairn_error(EINVAL, "the lead sends pass %llu after %llu, %s",
				  (unsigned long long)head->pass, (unsigned long long)e->last_pass,
				  e->pass ? "one too many" : "out of order");
	else if (!(e->bytes = malloc(head->num_bytes + 1)))
		ret = cairn_error(ENOMEM, "no memory for a pass");
	if (!ret) {
		memcpy(e->bytes, bytes, head->num_bytes);
		e->num_bytes = head->num_bytes;
		e->pass = e->last_pass = head->pass;
		pthread_cond_broadcast(&e->life.changed);
	}
	pthread_mutex_unlock(&e->life.lock);
	return ret;
}

void cairn_model_epoch_destroy(struct cairn_model_epoch *e)
{
	if (!e)
		return;
	cairn_epoch_destroy(&e->life);
	cairn_worker_destroy(e->worker);
	cairn_attn_remote_destroy(e->remote);
	cairn_plan_free(&e->plan);
	free(e->result);
	free(e->bytes);
	free(e);
}
