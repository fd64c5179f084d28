// SPDX-License-Identifier: Apache-2.0
/*
 * attn_epoch - a worker's memory, transport and thread of one epoch (attn_epoch.h)
 *
 * attn_local does the arithmetic. The same host memory serves the table and the transport. The weights of
 * latent attention are put into the model's memory before the first signal, which therefore implies them.
 *
 * Buffers: K and V have two, used in turn over all layers of all passes. The layer's parity cannot choose the
 * buffer: with an odd number of layers, the last one of a pass and the first one of the next would share a
 * buffer. The result of layer l tells the model worker that Q(l) has been read and K, V(l - 1) appended, so
 * K, V(l + 1) may come while K, V(l) waits. The result itself is overwritten only after Q(l + 1) has come,
 * because that shows that the model worker has read it.
 */
#include "serving/remote/attention/attn_epoch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/attention/lists.h"
#include "serving/remote/attention/relay.h"
#include "serving/remote/remote_fault.h"

struct plan {
	uint64_t pass;
	uint32_t num_bytes;
	int32_t *bytes;
};

struct cairn_attn_epoch {
	struct cairn_epoch_life life;	/* its lock protects plans and last_pass */
	struct cairn_control_assign a;
	struct cairn_share_sizes sizes;
	struct cairn_model model;
	struct cairn_kv_store kv;
	struct cairn_attn_local *local;
	void *stream;
	/* buffers: Q; K and V, twice; the result */
	char *q, *pages, *result;
	struct cairn_lists lists;
	struct cairn_relay relay;	/* of pages, with stripes */

	const struct cairn_transport_table *table;
	struct cairn_transport *t;
	struct cairn_channel *c;
	struct cairn_region *q_region, *kv_region, *result_region, *weights_region;
	struct cairn_remote *to;	/* the model worker's buffer for results */
	char address[64];
	void *scales;

	struct plan plans[CAIRN_EPOCH_PLANS];
	int num_plans;
	uint64_t last_pass;		/* queued */
	uint64_t layers;		/* completed, of all passes; the thread's */
};

/* ---- creation ---- */

static int make_buffer(struct cairn_attn_epoch *e, char **buffer, size_t bytes, struct cairn_region **r)
{
	*buffer = calloc(1, bytes);
	if (!*buffer)
		return cairn_error(ENOMEM, "no memory for a buffer of %zu bytes", bytes);
	return e->table->region_register(e->t, *buffer, bytes, CAIRN_MEMORY_HOST, r);
}

static int await_page(void *ctx, uint32_t slot, uint64_t number);

static int open_transport(struct cairn_attn_epoch *e, struct cairn_attn_blob *blob)
{
	const struct cairn_transport_options o = { .size = sizeof(o), .device = e->address, .gpu = -1 };

	e->table = cairn_transport_get((int)e->a.transport);
	if (!e->table || strcmp(e->table->name, "tcp"))
		return cairn_error(EOPNOTSUPP, "transport %u: only tcp carries host memory between processes",
				   e->a.transport);
	CAIRN_TRY(e->table->open(&o, &e->t));
	CAIRN_TRY(make_buffer(e, &e->q, e->sizes.q_bytes, &e->q_region));
	CAIRN_TRY(make_buffer(e, &e->pages, 2 * e->sizes.kv_bytes, &e->kv_region));
	CAIRN_TRY(make_buffer(e, &e->result, e->sizes.result_bytes, &e->result_region));
	CAIRN_TRY(e->table->channel_create(e->t, &e->c));
	CAIRN_TRY(e->table->channel_address(e->c, &blob->channel));
	CAIRN_TRY(e->table->region_key(e->q_region, &blob->q));
	CAIRN_TRY(e->table->region_key(e->kv_region, &blob->kv));
	if (e->model.bytes) {
		CAIRN_TRY(e->table->region_register(e->t, e->model.base, e->model.bytes, CAIRN_MEMORY_HOST,
						    &e->weights_region));
		CAIRN_TRY(e->table->region_key(e->weights_region, &blob->weights));
	}
	if (e->a.stripes == 1)
		return 0;
	e->relay = (struct cairn_relay){
		.table = e->table, .c = e->c, .bytes = e->sizes.page_bytes, .await = await_page, .ctx = e,
	};
	CAIRN_TRY(make_buffer(e, &e->relay.page, e->relay.bytes, &e->relay.region));
	return e->table->region_key(e->relay.region, &blob->page);
}

static int make_share(struct cairn_attn_epoch *e)
{
	const struct cairn_impl *impl = e->model.impl;
	const struct cairn_control_assign *a = &e->a;
	const int32_t pages = cairn_stripe_pages(a->num_pages, a->stripe, a->stripes);

	if (!(impl->flags & CAIRN_IMPL_HOST_MEM))
		return cairn_error(EOPNOTSUPP, "%s: attention workers need a table with host memory so far",
				   impl->name);
	CAIRN_TRY(cairn_share_model(&e->model, impl, a, e->scales));
	CAIRN_TRY(cairn_kv_store_create(&e->kv, &e->model, pages, a->page_size));
	/* what no pass has written must be numbers, as rows of padding may read it */
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &e->stream));
	CAIRN_TRY(CAIRN_TABLE(impl, mem_set, e->kv.base, 0, (size_t)a->num_layers * e->kv.layer_bytes,
			      e->stream));
	CAIRN_TRY(cairn_attn_local_create(&e->local, &e->model, &e->kv, a->max_rows, a->previous));
	return cairn_lists_create(&e->lists, a);
}

/* ---- a pass ---- */

/* Waits for a signal of a pass under way, looking at times whether to stop. */
static int await(struct cairn_attn_epoch *e, uint32_t slot, uint64_t number)
{
	const int64_t until = cairn_clock_ns() + CAIRN_EPOCH_LAYER_MS * 1000000ll;
	int ret;

	if (FAULT(NO_ACQUIRE) && slot == CAIRN_SLOT_Q)
		return 0;
	do {
		ret = e->table->wait(e->c, slot, number, CAIRN_EPOCH_LOOK_MS, NULL);
		if (ret != -ETIMEDOUT)
			return ret;
	} while (!atomic_load(&e->life.stop) && cairn_clock_ns() < until);
	return atomic_load(&e->life.stop) ? -ECANCELED : ret;
}

static int await_page(void *ctx, uint32_t slot, uint64_t number)
{
	return await(ctx, slot, number);
}

/* One side of a page of one layer. */
static char *page_at(const struct cairn_attn_epoch *e, int32_t layer, int side, int32_t page)
{
	return e->kv.base + (size_t)layer * e->kv.layer_bytes + (size_t)side * e->kv.v_offset +
	       (size_t)(page / e->a.stripes) * (e->sizes.page_bytes / (size_t)e->sizes.sides);
}

/* Copies a page of one layer; NULL: the buffer for other stripes, instead of a page. */
static int copy_page(struct cairn_attn_epoch *e, int32_t layer, const int32_t *from, const int32_t *to)
{
	const struct cairn_impl *impl = e->model.impl;
	const size_t bytes = e->sizes.page_bytes / (size_t)e->sizes.sides;

	for (int side = 0; side < e->sizes.sides; side++) {
		char *buffer = e->relay.page + (size_t)side * bytes;

		CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, to ? page_at(e, layer, side, *to) : buffer,
				      from ? page_at(e, layer, side, *from) : buffer, bytes,
				      from && to ? CAIRN_COPY_ON_DEVICE : from ? CAIRN_COPY_TO_HOST :
				      CAIRN_COPY_TO_DEVICE, e->stream));
	}
	return from && to ? 0 : CAIRN_TABLE(impl, stream_sync, e->stream);
}

/* Carries out the part that this worker has in a move of a page. */
static int move_page(struct cairn_attn_epoch *e, int32_t layer, const int32_t *move)
{
	const int gives = move[0] % e->a.stripes == e->a.stripe;
	const int takes = move[1] % e->a.stripes == e->a.stripe;

	if (gives && takes)
		return copy_page(e, layer, &move[0], &move[1]);
	if (gives) {
		CAIRN_TRY(copy_page(e, layer, &move[0], NULL));
		return cairn_relay_give(&e->relay);
	}
	if (!takes)
		return 0;
	if (FAULT(PAGE_OF_BEFORE))
		CAIRN_TRY(copy_page(e, layer, NULL, &move[1]));
	CAIRN_TRY(cairn_relay_take(&e->relay));
	if (!FAULT(PAGE_OF_BEFORE))
		CAIRN_TRY(copy_page(e, layer, NULL, &move[1]));
	return cairn_relay_taken(&e->relay);
}

/* Moves the pages of one layer. */
static int move_pages(struct cairn_attn_epoch *e, const struct cairn_remote_pass *p, int32_t layer)
{
	for (int32_t i = 0; i < p->num_moves && !FAULT(NO_MOVES); i++)
		CAIRN_TRY(move_page(e, layer, p->moves[i]));
	return 0;
}

/* Attends, and sends the result. */
static int answer(struct cairn_attn_epoch *e, const struct cairn_attn_link *link, int32_t layer, int32_t rows,
		  uint64_t number)
{
	const size_t o = (size_t)rows * e->sizes.o, lse = (size_t)rows * e->sizes.lse;
	const struct cairn_put put = {
		.local = e->result_region, .remote = e->to, .bytes = o + lse, .value = number,
		.slot = CAIRN_SLOT_RESULT,
	};
	float *lse_at = e->a.previous ? (float *)(void *)(e->result + o) : NULL;

	FAULT_NAP(2);
	CAIRN_TRY(link->receive(link->ctx, layer, e->result, lse_at, e->stream));
	CAIRN_TRY(CAIRN_TABLE(e->model.impl, stream_sync, e->stream));
	return e->table->put(e->c, &put, CAIRN_EPOCH_CONNECT_MS);
}

static int take_kv(struct cairn_attn_epoch *e, const struct cairn_attn_link *link,
		   struct cairn_attn_rows *rows, uint64_t number)
{
	char *k = e->pages + cairn_share_buffer(e->layers, rows->layer) * e->sizes.kv_bytes;

	CAIRN_TRY(await(e, CAIRN_SLOT_KV, number));
	FAULT_NAP(1);
	if (FAULT(ONE_KV_BUFFER) || FAULT(PARITY_OF_LAYER))	/* is overtaken by the next layer */
		e->table->wait(e->c, CAIRN_SLOT_KV, number + 1, 200, NULL);
	rows->k = k;
	rows->v = e->sizes.sides > 1 ? k + (size_t)e->lists.num_new * e->sizes.k : NULL;
	if (FAULT(NEVER_APPENDS))
		return 0;
	CAIRN_TRY(link->send_kv(link->ctx, rows, e->stream));
	return CAIRN_TABLE(e->model.impl, stream_sync, e->stream);
}

static int run_layer(struct cairn_attn_epoch *e, const struct cairn_remote_pass *p, int32_t layer,
		     uint64_t pass)
{
	const struct cairn_attn_link *link = cairn_attn_local_link(e->local);
	const uint64_t number = cairn_share_number(e->a.epoch, pass, layer);
	const uint64_t answered = FAULT(NUMBER_OF_PASS_BEFORE) ?
				  cairn_share_number(e->a.epoch, pass - 1, layer) : number;
	struct cairn_attn_rows rows = {
		.layer = layer, .num_rows = p->num_rows,
		.window = FAULT(WINDOW_IGNORED) ? 0 : cairn_layer_window(&e->model.config, layer),
		.q = e->q, .q_stride = e->model.dims[CAIRN_D_Q], .kv_stride = e->model.dims[CAIRN_D_KV],
	};

	CAIRN_TRY(await(e, CAIRN_SLOT_Q, number));
	if (!FAULT(MOVES_LATE))
		CAIRN_TRY(move_pages(e, p, layer));
	CAIRN_TRY(link->send_q(link->ctx, &rows, e->stream));
	if (!e->a.previous)
		CAIRN_TRY(take_kv(e, link, &rows, number));
	CAIRN_TRY(answer(e, link, layer, p->num_rows, answered));
	if (e->a.previous)
		CAIRN_TRY(take_kv(e, link, &rows, number));
	if (FAULT(MOVES_LATE))
		CAIRN_TRY(move_pages(e, p, layer));
	e->layers++;
	return 0;
}

static int run_pass(struct cairn_attn_epoch *e, const struct plan *plan)
{
	const struct cairn_remote_limits limits = cairn_share_limits(&e->a);
	struct cairn_attn_past past;
	struct cairn_remote_pass p;
	struct cairn_batch b;
	int moved;

	CAIRN_TRY(cairn_remote_pass_read(&p, plan->bytes, plan->num_bytes, &limits));
	cairn_lists_make(&e->lists, &p, &b, &past);
	CAIRN_TRY(cairn_attn_local_begin(e->local, &b, e->a.previous ? &past : NULL, e->stream, &moved));
	for (int32_t layer = 0; layer < e->a.num_layers; layer++)
		CAIRN_TRY(run_layer(e, &p, layer, plan->pass));
	return 0;
}

/* ---- the thread ---- */

/* Takes the next plan. Returns 0 if the epoch ends. */
static int next_plan(struct cairn_attn_epoch *e, struct plan *plan)
{
	int any;

	pthread_mutex_lock(&e->life.lock);
	while (!e->num_plans && !atomic_load(&e->life.stop))
		pthread_cond_wait(&e->life.changed, &e->life.lock);
	any = e->num_plans && !atomic_load(&e->life.stop);
	if (any) {
		*plan = e->plans[0];
		e->num_plans--;
		memmove(e->plans, e->plans + 1, (size_t)e->num_plans * sizeof(*plan));
	}
	pthread_mutex_unlock(&e->life.lock);
	return any;
}

static int prepare(struct cairn_attn_epoch *e)
{
	struct cairn_attn_blob mine = { 0 };
	const struct cairn_attn_blob *theirs;

	CAIRN_TRY(make_share(e));
	CAIRN_TRY(open_transport(e, &mine));
	CAIRN_TRY(cairn_epoch_introduce(&e->life, &mine));
	theirs = (const struct cairn_attn_blob *)(const void *)e->life.theirs;
	CAIRN_TRY(e->table->remote_import(e->t, &theirs->q, &e->to));
	if (e->relay.bytes)
		CAIRN_TRY(e->table->remote_import(e->t, &theirs->page, &e->relay.to));
	CAIRN_TRY(e->table->channel_connect(e->c, &theirs->channel, CAIRN_EPOCH_CONNECT_MS));
	cairn_epoch_connected(&e->life);
	return 0;
}

static void *run(void *arg)
{
	struct cairn_attn_epoch *e = arg;
	struct plan plan;
	int ret = prepare(e);

	while (!ret && next_plan(e, &plan)) {
		ret = run_pass(e, &plan);
		free(plan.bytes);
		if (!ret)
			cairn_epoch_passed(&e->life);
	}
	cairn_epoch_ended(&e->life, ret);
	return NULL;
}

/* ---- the main thread ---- */

int cairn_attn_epoch_create(struct cairn_attn_epoch **out, const struct cairn_impl *impl,
			    const struct cairn_control_assign *assign, const void *scales,
			    const char *address)
{
	struct cairn_attn_epoch *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return cairn_error(ENOMEM, "no memory");
	e->a = *assign;
	e->sizes = cairn_share_sizes(assign);
	e->model.impl = impl;
	snprintf(e->address, sizeof(e->address), "%s", address);
	e->scales = malloc(assign->num_bytes + 1);
	if (e->scales)
		memcpy(e->scales, scales, assign->num_bytes);
	ret = e->scales ? cairn_epoch_begin(&e->life, sizeof(struct cairn_attn_blob), run, e) :
	      cairn_error(ENOMEM, "no memory for scales");
	if (ret)
		cairn_attn_epoch_destroy(e);
	else
		*out = e;
	return ret;
}

struct cairn_epoch_life *cairn_attn_epoch_life(struct cairn_attn_epoch *e)
{
	return &e->life;
}

void cairn_attn_epoch_destroy(struct cairn_attn_epoch *e)
{
	if (!e)
		return;
	cairn_epoch_destroy(&e->life);
	if (e->t)
		e->table->close(e->t);
	for (int i = 0; i < e->num_plans; i++)
		free(e->plans[i].bytes);
	cairn_attn_local_destroy(e->local);
	if (e->stream)
		e->model.impl->stream_destroy(e->stream);
	if (e->kv.base)
		cairn_kv_store_destroy(&e->kv, &e->model);
	cairn_share_model_free(&e->model);
	free(e->scales);
	cairn_lists_free(&e->lists);
	free(e->relay.page);
	free(e->q);
	free(e->pages);
	free(e->result);
	free(e);
}

int cairn_attn_epoch_plan(struct cairn_attn_epoch *e, const struct cairn_control_plan *head,
			  const void *bytes)
{
	struct plan plan = { head->pass, head->num_bytes, malloc(head->num_bytes + 1) };
	int ret = 0;

	if (!plan.bytes)
		return cairn_error(ENOMEM, "no memory for a plan");
	memcpy(plan.bytes, bytes, head->num_bytes);
	pthread_mutex_lock(&e->life.lock);
	if (e->num_plans == CAIRN_EPOCH_PLANS)
		ret = cairn_error(EINVAL, "the lead sends plan %llu before its predecessors were carried out",
				  (unsigned long long)head->pass);
	else if (head->pass <= e->last_pass && !FAULT(PLAN_REPEATED))
		ret = cairn_error(EINVAL, "the lead sends plan %llu after %llu",
				  (unsigned long long)head->pass, (unsigned long long)e->last_pass);
	else
		e->plans[e->num_plans++] = plan;
	e->last_pass = ret ? e->last_pass : head->pass;
	pthread_cond_broadcast(&e->life.changed);
	pthread_mutex_unlock(&e->life.lock);
	if (ret)
		free(plan.bytes);
	return ret;
}
