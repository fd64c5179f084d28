// SPDX-License-Identifier: Apache-2.0
/* engine_queue_test - limits of the queue, submission from callbacks, and destruction with work in flight */
#include "conformance/harness.h"
#include "serving/engine/engine_end_test.h"

static void queue_is_bounded(struct cairn_test *t)
{
	struct cairn_engine_options opt = small;
	struct cairn_request r;
	struct answer a[4];
	struct fixture f;

	opt.max_queued = 2;
	opt.max_queued_tokens = 50;
	if (open_engine(t, &f, &opt))
		return;
	r = request(&f.g, 20, 4, &a[0]);
	EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
	EXPECT(t, cairn_engine_submit(f.e, &r) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "already exists");
	r = request(&f.g, 31, 4, &a[1]);
	EXPECT(t, cairn_engine_submit(f.e, &r) == -EAGAIN);
	EXPECT_CONTAINS(t, cairn_last_error(), "queue is full");
	r = request(&f.g, 30, 4, &a[2]);
	EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
	r = request(&f.g, 1, 4, &a[3]);
	EXPECT(t, cairn_engine_submit(f.e, &r) == -EAGAIN);
	EXPECT(t, cairn_engine_run(f.e) == 0);
	EXPECT(t, a[0].num_ids == 4 && a[2].num_ids == 4 && !a[1].num_finished && !a[3].num_finished);
	EXPECT(t, cairn_engine_cancel(f.e, r.id) == -ENOENT);
	close_engine(t, &f);
}

/* on_finish submits the next request with the same id. */
struct chain {
	struct cairn_engine *e;
	struct cairn_request r;
	int left, finished, failed;
};

static void next_of_chain(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	struct chain *c = ctx;

	(void)index;
	(void)token;
	c->finished += why == CAIRN_FINISH_LENGTH;
	c->failed |= c->left-- > 0 && cairn_engine_submit(c->e, &c->r);
}

static void submitted_by_callbacks(struct cairn_test *t)
{
	struct chain c = { .left = 6 };
	struct answer unused;
	struct fixture f;

	if (open_engine(t, &f, &small))
		return;
	submit_bystander(t, &f);
	c.e = f.e;
	c.r = request(&f.g, 17, 3, &unused);
	c.r.on_token = NULL;
	c.r.on_started = NULL;
	c.r.on_finish = next_of_chain;
	c.r.ctx = &c;
	EXPECT(t, cairn_engine_submit(f.e, &c.r) == 0);
	EXPECT(t, cairn_engine_run(f.e) == 0);
	EXPECT(t, c.finished == 7 && !c.failed);
	check_bystander(t, &f);
	close_engine(t, &f);
}

/* Destroying an engine at any time leaks nothing (checked by the sanitizers). */
static void destroyed_at_any_time(struct cairn_test *t)
{
	struct cairn_engine_options opt = small;

	opt.host_pages = 20;
	opt.disk_pages = 40;
	for (int k = 0; k < 14; k += 3) {
		struct cairn_request r;
		struct answer a[4];
		struct fixture f;

		if (open_engine(t, &f, &opt))
			return;
		submit_bystander(t, &f);
		memset(a, 0, sizeof(a));
		r = request(&f.g, 50, 12, &a[0]);
		r.num_seqs = 3;
		r.keep = 1;
		r.sampling.presence_penalty = 0.5f;
		r.sampling.repetition_penalty = 1.2f;
		r.sampling.min_new_tokens = 5;
		EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
		r = request(&f.g, 20, 12, &a[3]);
		r.beam_width = 2;
		EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
		steps(t, &f, &a[0], 0, k);
		cairn_engine_destroy(f.e);
		close_model(f.m, &f.g);
	}
}

static const struct cairn_unit units[] = {
	{ "queue_is_bounded", queue_is_bounded },
	{ "submitted_by_callbacks", submitted_by_callbacks },
	{ "destroyed_at_any_time", destroyed_at_any_time },
};

const struct cairn_family cairn_engine_queue_family = {
	.stage = "serving",
	.name = "engine_queue",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
