// SPDX-License-Identifier: Apache-2.0
/* ranks_follow - a rank other than 0: carries out plans with its own worker and tiers */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serving/ranks/ranks_impl.h"

#define NOTICE_MS	5000	/* for rank 0 to notice that this rank has failed, before it is killed */

struct follower {
	struct cairn_tp *tp;
	struct cairn_worker *worker;
	struct cairn_tiers *tiers;
	struct cairn_model *model, *context;
	const struct cairn_nano_plans *plans;	/* of nano-batches; NULL: none */
	struct cairn_plan_limits limits;
	struct cairn_plan plan;
	int stripes;			/* the worker copies pages, the tiers do not */
	struct cairn_worker_taps taps;	/* without a matrix, which rank 0 has */
	unsigned char *bytes;		/* [room], of the plan */
	size_t room;
};

/* ---- plans ---- */

static int add_lists(struct follower *f, const struct cairn_plan_lists *l)
{
	int32_t bias_at = -1, forbidden_at = -1;

	CAIRN_TRY(cairn_worker_add_lists(f->worker, l->bias, l->num_bias, l->forbidden, l->num_forbidden,
					 &bias_at, &forbidden_at));
	if (bias_at != l->bias_at || forbidden_at != l->forbidden_at)
		return cairn_error(EIO, "lists are at %d and %d, those of rank 0 at %d and %d", bias_at,
				   forbidden_at, l->bias_at, l->forbidden_at);
	return 0;
}

static int carry_out(struct follower *f, const struct cairn_plan_item *item)
{
	switch (item->kind) {
	case CAIRN_PLAN_LISTS:
		return add_lists(f, &item->lists);
	case CAIRN_PLAN_UNLIST:
		cairn_worker_remove_lists(f->worker, item->lists.bias_at, item->lists.num_bias,
					  item->lists.forbidden_at, item->lists.num_forbidden);
		return 0;
	case CAIRN_PLAN_PART:
		cairn_worker_add(f->worker, &item->part);
		return f->tp->watch ? f->tp->watch->part(f->tp->watch->ctx, &item->part) : 0;
	default:
		cairn_worker_add_draw(f->worker, item->row, &item->part);
		return 0;
	}
}

static int carry_out_pass(struct follower *f, int32_t first_part)
{
	struct cairn_plan *p = &f->plan;

	if (cairn_worker_in_flight(f->worker) == CAIRN_WORKER_FLIGHTS)
		return cairn_error(EINVAL, "rank 0 launched more passes than it collected");
	f->tp->passes++;
	cairn_worker_begin(f->worker);
	for (int32_t i = first_part; i < p->num_items; i++)
		CAIRN_TRY(carry_out(f, &p->items[i]));
	if (cairn_tiers_by_layer(f->tiers))
		cairn_worker_on_layer(f->worker, cairn_tiers_layer, f->tiers);
	if (f->tp->watch)
		cairn_worker_on_chunk(f->worker, f->tp->watch->chunk, f->tp->watch->ctx);
	f->limits.num_drawn = p->num_draws;
	return cairn_worker_launch(f->worker);
}

static int copy_pages(struct follower *f)
{
	for (int32_t i = 0; i < f->plan.num_moves; i++) {
		if (f->plan.moves[i].kind != CAIRN_MOVE_COPY)
			return cairn_error(EINVAL, "rank 0: moves pages of stripes between tiers");
		CAIRN_TRY(cairn_worker_copy_page(f->worker, f->plan.moves[i].page, f->plan.moves[i].to));
	}
	return 0;
}

/* Does what engine_step.c does with the plan of a step. */
static int carry_out_plan(struct follower *f, size_t len)
{
	struct cairn_plan *p = &f->plan;
	struct cairn_step_plan step;
	int32_t i = 0;

	f->limits.number = ++f->tp->plans;
	CAIRN_TRY(cairn_plan_read(p, f->bytes, len, &f->limits));
	for (; i < p->num_items && p->items[i].kind != CAIRN_PLAN_PART; i++)
		CAIRN_TRY(carry_out(f, &p->items[i]));
	if (!p->num_moves && !p->num_parts)
		return 0;
	step = (struct cairn_step_plan){ .moves = p->moves, .num_moves_before = p->num_moves_before,
					 .num_moves = p->num_moves, .num_items = p->num_parts };
	CAIRN_TRY(f->stripes ? copy_pages(f) : cairn_tiers_before(f->tiers, &step));
	if (p->num_parts)
		CAIRN_TRY(carry_out_pass(f, i));
	return f->stripes ? 0 : cairn_tiers_after(f->tiers, &step);
}

static int receive_plan(struct follower *f, size_t len)
{
	struct cairn_tp *tp = f->tp;

	if (len > CAIRN_PLAN_MAX)
		return cairn_error(EINVAL, "plan: length: %zu", len);
	if (len > f->room) {
		unsigned char *grown = realloc(f->bytes, len);

		if (!grown)
			return cairn_error(ENOMEM, "plan: no memory for %zu bytes", len);
		f->bytes = grown;
		f->room = len;
	}
	CAIRN_TRY(tp_receive_bytes(tp, 0, f->bytes, len, tp_deadline(tp->timeout_ms)));
	return carry_out_plan(f, len);
}

static int collect(struct follower *f)
{
	struct cairn_worker_result result;
	struct cairn_tp *tp = f->tp;
	struct { struct drawn d; int32_t tokens[]; } *mine;
	size_t bytes;
	int ret;

	if (!cairn_worker_in_flight(f->worker))
		return cairn_error(EINVAL, "rank 0 collected more passes than it launched");
	CAIRN_TRY(cairn_worker_collect(f->worker, &result));
	CAIRN_TRY(tp_check_comm(tp));
	CAIRN_TRY(cairn_tiers_collected(f->tiers));
	if (tp->watch)
		CAIRN_TRY(tp->watch->collected(tp->watch->ctx));
	bytes = (size_t)result.num_tokens * sizeof(*result.tokens);
	mine = malloc(sizeof(*mine) + bytes);
	if (!mine)
		return cairn_error(ENOMEM, "ranks: no memory");
	mine->d = (struct drawn){ .pass = ++tp->collected, .num = result.num_tokens };
	if (bytes)
		memcpy(mine->tokens, result.tokens, bytes);
	ret = tp_send(tp, 0, TOKENS, mine, sizeof(*mine) + bytes);
	free(mine);
	return ret;
}

/* ---- the rank ---- */

static void destroy(struct follower *f)
{
	if (f->worker)
		f->model->impl->stream_sync(cairn_worker_stream(f->worker));
	cairn_tiers_destroy(f->tiers);
	cairn_worker_destroy(f->worker);
	f->tiers = NULL;
	f->worker = NULL;
}

/* Sets wo->nano to the plans of rank 0, if it has any. */
static int take_plans(const struct options *o, const struct cairn_nano_plans *plans,
		      struct cairn_worker_options *wo)
{
	if (!o->plans)
		return 0;
	if (!plans)
		return cairn_error(EINVAL, "plans of nano-batches: rank 0 has some, this rank has none");
	if (plans->digest != o->plans)
		return cairn_error(EINVAL, "plans of nano-batches: rank 0 has %016llx, this rank %016llx",
				   (unsigned long long)o->plans, (unsigned long long)plans->digest);
	wo->nano = plans;
	return 0;
}

/* Creates the worker and the tiers that rank 0's options ask for. */
static int create(struct follower *f)
{
	struct cairn_worker_options wo = { 0 };
	struct cairn_tiers_options to = { 0 };
	struct options o;

	destroy(f);
	CAIRN_TRY(tp_receive_bytes(f->tp, 0, &o, sizeof(o), tp_deadline(f->tp->timeout_ms)));
	if (o.max_batch < 1 || o.max_rows < o.max_batch || o.max_context < 1 || o.num_pages < 1 ||
	    o.page_size < 1 || o.chunk_rows < 0 || o.context_rows < 0 || o.context_keys < 0 ||
	    o.host_pages < 0 || o.disk_pages < 0 || o.decode < CAIRN_DECODE_AUTO ||
	    o.decode > CAIRN_DECODE_UNFUSED || o.disk_dir[sizeof(o.disk_dir) - 1])
		return cairn_error(EINVAL, "rank 0: sent options that no worker has");
	wo.max_batch = o.max_batch;
	wo.max_rows = o.max_rows;
	wo.max_context = o.max_context;
	wo.num_pages = o.num_pages;
	wo.page_size = o.page_size;
	wo.chunk_rows = o.chunk_rows;
	wo.repeatable = o.repeatable != 0;
	wo.decode = (enum cairn_decode_path)o.decode;
	wo.no_graphs = o.no_graphs != 0;
	wo.context_rows = o.context_rows;
	wo.context = f->context;
	wo.context_keys = o.context_keys;
	wo.stripes = f->stripes = o.stripes != 0;
	memcpy(f->taps.layers, o.tap_layers, sizeof(f->taps.layers));
	wo.taps = o.taps ? &f->taps : NULL;
	CAIRN_TRY(take_plans(&o, f->plans, &wo));
	CAIRN_TRY(cairn_worker_create(&f->worker, f->model, &wo));
	to.host_pages = o.host_pages;
	to.disk_pages = o.disk_pages;
	to.disk_dir = o.disk_dir[0] ? o.disk_dir : NULL;
	CAIRN_TRY(cairn_tiers_create(&f->tiers, f->model, cairn_worker_kv(f->worker),
				     cairn_worker_stream(f->worker), &to));
	f->limits = (struct cairn_plan_limits){
		o.max_batch, o.max_rows, o.max_context, o.num_pages, o.page_size, f->model->config.vocab_size,
		o.host_pages, o.disk_pages, 0, 0,
	};
	if (f->tp->watch)
		CAIRN_TRY(f->tp->watch->created(f->tp->watch->ctx, f->worker, &wo));
	return tp_send(f->tp, 0, READY, NULL, 0);
}

/* Waits for a frame, for as long as rank 0 is idle. If it ends or is stopped, the socket closes. */
static int next_frame(struct cairn_tp *tp, struct frame *frame)
{
	struct pollfd p = { .fd = tp->fd[0], .events = POLLIN };

	while (tp->rest[0].at == tp->rest[0].len && poll(&p, 1, -1) < 0)
		if (errno != EINTR)
			return cairn_error(errno, "ranks: poll: %s", strerror(errno));
	return tp_receive_frame(tp, 0, frame, tp_deadline(tp->timeout_ms));
}

static int take_leave(struct cairn_tp *tp)
{
	tp_stop_watcher(tp);
	return tp_send(tp, 0, END, NULL, 0);
}

static int refuse_frame(const struct frame *frame)
{
	return cairn_error(EINVAL, "rank 0: sent %u bytes of kind %u", frame->len, frame->kind);
}

static int follow(struct follower *f)
{
	struct frame frame;

	for (;;) {
		CAIRN_TRY(next_frame(f->tp, &frame));
		if (frame.kind == END && !frame.len)
			return take_leave(f->tp);
		if (frame.kind == OPTIONS && frame.len == sizeof(struct options))
			CAIRN_TRY(create(f));
		else if (frame.kind == PLAN && f->worker)
			CAIRN_TRY(receive_plan(f, frame.len));
		else if (frame.kind == COLLECT && !frame.len && f->worker)
			CAIRN_TRY(collect(f));
		else if (frame.kind == BEAT && !frame.len)
			CAIRN_TRY(tp_send(f->tp, 0, BEAT, NULL, 0));
		else
			return refuse_frame(&frame);
	}
}

int cairn_tp_wait(struct cairn_tp *tp)
{
	struct frame frame;

	CAIRN_TRY(next_frame(tp, &frame));
	return frame.kind == END && !frame.len ? take_leave(tp) : refuse_frame(&frame);
}

void cairn_tp_fail(struct cairn_tp *tp)
{
	struct pollfd p = { .fd = tp->fd[0], .events = POLLRDHUP };
	const pid_t lead = getppid();
	char why[TEXT];
	size_t len;

	tp->failed = 1;
	if (!tp->rank)
		return;
	snprintf(why, sizeof(why), "%s", cairn_last_error());
	len = strlen(why);
	if (!atomic_load(&tp->stopped)) {
		if (tp_send(tp, 0, FAILED, why, len))
			return;
		shutdown(tp->fd[0], SHUT_WR);		/* its watcher sees this */
		if (poll(&p, 1, NOTICE_MS))
			return;
	}
	if (!tp->first && getppid() == lead && tp_is_stopped(lead))
		kill(lead, SIGKILL);
}

void cairn_tp_set_watch(struct cairn_tp *tp, const struct cairn_tp_watch *watch)
{
	tp->watch = watch;
}

int cairn_tp_follow(struct cairn_tp *tp, struct cairn_model *model, struct cairn_model *context,
		    const struct cairn_nano_plans *plans)
{
	struct follower f = { .tp = tp, .model = model, .context = context, .plans = plans };
	int ret = follow(&f);

	destroy(&f);
	cairn_plan_free(&f.plan);
	free(f.bytes);
	return ret;
}
