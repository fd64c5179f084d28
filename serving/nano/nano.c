// SPDX-License-Identifier: Apache-2.0
/* nano - runs a pass as nano-batches (nano.h) */
#include "serving/nano/nano_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/model/forward/forward_impl.h"

#define ROW_ALIGNMENT	16		/* that operations ask of pointers to activations */

_Static_assert(CAIRN_NANO_LANES <= FORWARD_LANES && CAIRN_NANO_BATCHES < FORWARD_SPLITS &&
	       CAIRN_NANO_LANES == CAIRN_BUFFER_LANES, "serving/model has no room for all lanes");

/* ---- creation ---- */

/* Each nano-batch's rows of an activation must be aligned as operations ask of their arguments. */
static int check_rows(const struct cairn_model *m)
{
	for (int32_t v = 0; v < m->graph->num_values; v++) {
		const struct cairn_graph_value *x = &m->graph->values[v];
		size_t bytes = (size_t)m->dims[x->shape.width] * cairn_dtype_bytes(m->dtype);

		if (x->kind == CAIRN_VALUE_ACTIVATION && x->shape.rows == CAIRN_ROWS_TOKENS &&
		    bytes % ROW_ALIGNMENT)
			return cairn_error(EOPNOTSUPP, "nano: rows of '%s' have %zu bytes, no multiple of %d",
					   x->name, bytes, ROW_ALIGNMENT);
	}
	return 0;
}

/* Places the activations, and grows the scratch if they need more memory. */
static int place(struct cairn_nano *n)
{
	struct cairn_scratch *s = n->scratch;
	const struct nano_schedule *c = &n->schedule;
	struct cairn_pass_sizes sizes = forward_sizes(s->model, s->max_rows, s->max_logits), row = sizes;
	size_t bytes;
	void *more;

	row.num_tokens = 1;
	CAIRN_TRY(cairn_buffers_place_lives(&n->shared, s->model->graph, &sizes, c->lives, 1, c->shared));
	CAIRN_TRY(cairn_buffers_place_lives(&n->split, s->model->graph, &row, c->split_lives, c->num_batches,
					    c->split));
	bytes = (size_t)(n->shared.bytes + n->split.bytes * s->max_rows);
	if (bytes <= s->bytes)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(s->model->impl, mem_alloc, &more, bytes));
	s->model->impl->mem_free(s->base);
	s->base = more;
	s->bytes = bytes;
	return 0;
}

static int create_stream(const struct cairn_impl *impl, const struct cairn_nano_lane *lane, void **stream)
{
	if (!lane->sms && !lane->priority)
		return CAIRN_TABLE(impl, stream_create, stream);
	if (!impl->stream_create_part)
		return cairn_error(EOPNOTSUPP, "nano: %s: the table has no stream_create_part", impl->name);
	return CAIRN_TABLE(impl, stream_create_part, stream, lane->sms, lane->priority);
}

static int create_streams(struct cairn_nano *n)
{
	const struct cairn_impl *impl = n->scratch->model->impl;

	for (int32_t l = 1; l < n->plan.num_lanes; l++) {
		CAIRN_TRY(create_stream(impl, &n->plan.lanes[l], &n->streams[l]));
		CAIRN_TRY(CAIRN_TABLE(impl, event_create, &n->joined[l]));
	}
	CAIRN_TRY(CAIRN_TABLE(impl, event_create, &n->forked));
	n->events = calloc((size_t)n->schedule.num_events + 1, sizeof(*n->events));
	if (!n->events)
		return cairn_error(ENOMEM, "nano: no memory");
	for (int32_t i = 0; i < n->schedule.num_events; i++)
		CAIRN_TRY(CAIRN_TABLE(impl, event_create, &n->events[i]));
	return 0;
}

int cairn_nano_create(struct cairn_nano **out, struct cairn_scratch *s, const struct cairn_nano_plan *plan)
{
	const struct cairn_impl *impl = s->model->impl;
	struct cairn_nano *n;
	int ret;

	if (!impl->stream_wait)
		return cairn_error(EOPNOTSUPP, "nano: %s: the table has no stream_wait", impl->name);
	if (s->model->context_ranks > 1)
		return cairn_error(EOPNOTSUPP, "nano: the model's ranks share the rows of a pass");
	CAIRN_TRY(check_rows(s->model));
	n = calloc(1, sizeof(*n));
	if (!n)
		return cairn_error(ENOMEM, "nano: no memory");
	n->scratch = s;
	ret = nano_schedule_create(&n->schedule, s->model->graph, plan);
	if (!ret) {
		n->plan = *plan;
		n->plan.places = NULL;
		n->plan.num_places = 0;
		ret = create_streams(n);
	}
	if (!ret)
		ret = place(n);
	if (ret)
		cairn_nano_destroy(n);
	else
		*out = n;
	return ret;
}

void cairn_nano_destroy(struct cairn_nano *n)
{
	const struct cairn_impl *impl;

	if (!n)
		return;
	impl = n->scratch->model->impl;
	for (int32_t l = 1; l < CAIRN_NANO_LANES; l++) {
		if (n->joined[l])
			impl->event_destroy(n->joined[l]);
		if (n->streams[l])
			impl->stream_destroy(n->streams[l]);
	}
	for (int32_t i = 0; n->events && i < n->schedule.num_events; i++)
		if (n->events[i])
			impl->event_destroy(n->events[i]);
	if (n->forked)
		impl->event_destroy(n->forked);
	free(n->events);
	cairn_buffers_free(&n->shared);
	cairn_buffers_free(&n->split);
	nano_schedule_free(&n->schedule);
	free(n);
}

const struct cairn_nano_plan *cairn_nano_plan_of(const struct cairn_nano *n)
{
	return &n->plan;
}

/* ---- a pass ---- */

/* walks[0] is that of all rows, walks[1 + i] that of nano-batch i: the numbers of splits. */
static void begin_walks(const struct cairn_nano *n, struct walk *walks, const struct cairn_kv_store *kv,
			const struct cairn_nano_pass *pass)
{
	for (int32_t i = 0; i <= pass->num_batches; i++)
		walks[i] = (struct walk){
			.m = n->scratch->model, .g = n->scratch->model->graph, .s = n->scratch,
			.buffers = &n->shared, .kv = kv, .split = i, .b = &pass->whole,
		};
	for (int32_t i = 0; i < pass->num_batches; i++) {
		struct walk *w = &walks[1 + i];

		w->b = &pass->batch[i];
		w->first_row = pass->first_row[i];
		w->own = &n->split;
		w->own_at = n->shared.bytes + n->split.bytes * w->first_row;
	}
}

static int check_pass(const struct cairn_nano *n, const struct cairn_nano_pass *pass)
{
	int32_t row = 0;

	CAIRN_TRY(forward_check_batch(n->scratch, &pass->whole));
	if (pass->num_batches != n->plan.num_batches)
		return cairn_error(EINVAL, "nano: num_batches is %d, of a plan with %d", pass->num_batches,
				   n->plan.num_batches);
	for (int32_t i = 0; i < pass->num_batches; i++) {
		if (pass->first_row[i] != row || pass->batch[i].num_rows < 1)
			return cairn_error(EINVAL, "nano: batch[%d] has %d rows from row %d on, not from %d",
					   i, pass->batch[i].num_rows, pass->first_row[i], row);
		row += pass->batch[i].num_rows;
	}
	return row == pass->whole.num_rows ? 0 :
	       cairn_error(EINVAL, "nano: batch: %d rows of %d", row, pass->whole.num_rows);
}

int cairn_nano_reserve(struct cairn_nano *n, const struct cairn_kv_store *kv,
		       const struct cairn_nano_pass *pass, void *stream, int *moved)
{
	struct cairn_scratch *s = n->scratch;
	size_t lane[CAIRN_NANO_LANES] = { 0 };
	struct walk walks[1 + CAIRN_NANO_BATCHES];

	CAIRN_TRY(check_pass(n, pass));
	begin_walks(n, walks, kv, pass);
	for (int32_t i = 0; i < n->schedule.num_steps; i++) {
		const struct nano_step *step = &n->schedule.steps[i];
		const struct cairn_graph_op *op = &s->model->graph->ops[step->op];
		struct walk *w = &walks[1 + step->batch];

		if (forward_may_skip_query(s->model, op) ||
		    (op->block == CAIRN_BLOCK_HEAD && !pass->whole.num_logits))
			continue;
		w->asking = 1;
		w->lane = step->lane;
		w->workspace_bytes = lane[step->lane];
		CAIRN_TRY(forward_run_op(w, op));
		lane[step->lane] = w->workspace_bytes;
	}
	for (int32_t l = 0; l < n->plan.num_lanes; l++)
		CAIRN_TRY(forward_reserve(s->model->impl, &s->lane[l], lane[l], stream, moved));
	for (int32_t i = 0; i <= pass->num_batches; i++)
		CAIRN_TRY(forward_reserve(s->model->impl, &s->attn[i], walks[i].attn_bytes, stream, moved));
	return forward_reserve(s->model->impl, &s->moe, walks[0].moe_bytes, stream, moved);
}

static void *lane_stream(const struct cairn_nano *n, int32_t lane, void *stream)
{
	return lane ? n->streams[lane] : stream;
}

/* Makes the lanes wait for the caller's stream; *num: how many lanes then have to join it. */
static int fork_lanes(const struct cairn_nano *n, void *stream, int32_t *num)
{
	const struct cairn_impl *impl = n->scratch->model->impl;

	*num = 1;
	CAIRN_TRY(CAIRN_TABLE(impl, event_record, n->forked, stream));
	for (; *num < n->plan.num_lanes; ++*num)
		CAIRN_TRY(CAIRN_TABLE(impl, stream_wait, n->streams[*num], n->forked));
	return 0;
}

/* Makes the caller's stream wait for the first num lanes: all of them, even if one fails. */
static int join_lanes(const struct cairn_nano *n, void *stream, int32_t num)
{
	const struct cairn_impl *impl = n->scratch->model->impl;
	int ret = 0;

	for (int32_t l = 1; l < num; l++) {
		int err = CAIRN_TABLE(impl, event_record, n->joined[l], n->streams[l]);

		if (!err)
			err = CAIRN_TABLE(impl, stream_wait, stream, n->joined[l]);
		ret = ret ? ret : err;
	}
	return ret;
}

static int run_step(const struct cairn_nano *n, const struct nano_step *step, struct walk *walks,
		    void *stream)
{
	const struct cairn_impl *impl = n->scratch->model->impl;
	struct walk *w = &walks[1 + step->batch];

	w->lane = step->lane;
	w->stream = lane_stream(n, step->lane, stream);
	for (int32_t i = 0; i < step->num_waits; i++)
		CAIRN_TRY(CAIRN_TABLE(impl, stream_wait, w->stream,
				      n->events[n->schedule.waits[step->first_wait + i]]));
	CAIRN_TRY(forward_run_op(w, &w->g->ops[step->op]));
	return step->event < 0 ? 0 : CAIRN_TABLE(impl, event_record, n->events[step->event], w->stream);
}

static int run_steps(const struct cairn_nano *n, const struct cairn_nano_pass *pass, struct walk *walks,
		     void *stream)
{
	const struct cairn_batch *b = &pass->whole;
	int32_t num;

	for (int32_t i = 0; i < n->schedule.num_steps; i++) {
		const struct nano_step *step = &n->schedule.steps[i];

		if (walks->g->ops[step->op].block == CAIRN_BLOCK_HEAD && !b->num_logits)
			break;
		CAIRN_TRY(run_step(n, step, walks, stream));
		if (step->ends_layer < 0 || !b->on_layer)
			continue;
		CAIRN_TRY(join_lanes(n, stream, n->plan.num_lanes));
		CAIRN_TRY(b->on_layer(b->on_layer_ctx, step->ends_layer, stream));
		CAIRN_TRY(fork_lanes(n, stream, &num));
	}
	return 0;
}

int cairn_nano_forward(struct cairn_nano *n, const struct cairn_kv_store *kv,
		       const struct cairn_nano_pass *pass, void *stream)
{
	struct walk walks[1 + CAIRN_NANO_BATCHES];
	char text[512];
	int32_t num;
	int ret;

	CAIRN_TRY(check_pass(n, pass));
	begin_walks(n, walks, kv, pass);
	walks[0].stream = stream;
	CAIRN_TRY(forward_zero_counters(&walks[0]));
	ret = fork_lanes(n, stream, &num);
	if (!ret)
		ret = run_steps(n, pass, walks, stream);
	if (!ret)
		return join_lanes(n, stream, num);
	snprintf(text, sizeof(text), "%s", cairn_last_error());
	join_lanes(n, stream, num);
	return cairn_error(-ret, "%s", text);	/* the first error, whatever the joins did */
}
