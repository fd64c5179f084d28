// SPDX-License-Identifier: Apache-2.0
/* engine_end_test - requests that are cancelled, stopped or expire */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/engine/engine_end_test.h"

/*
 * Cancels after k steps, for every k: while the request waits, with part of its prompt computed, while it
 * decodes and with tokens in flight. Later steps must compute no row of it, only rows of the other request.
 */
static void cancelled_at_any_time(struct cairn_test *t)
{
	for (int k = 0; k < 22; k++) {
		struct cairn_engine_stats before, after;
		struct answer a[2];
		struct cairn_request r;
		struct fixture f;
		int busy = 1, given;

		if (open_engine(t, &f, &small))
			return;
		submit_bystander(t, &f);
		r = request(&f.g, 60, 30, &a[0]);
		memset(&a[1], 0, sizeof(a[1]));
		r.num_seqs = 2;
		r.ignore_eos = 1;
		EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
		steps(t, &f, &a[0], 0, k);
		given = a[0].num_ids + a[1].num_ids;
		EXPECT(t, cairn_engine_cancel(f.e, r.id) == 0);
		EXPECT(t, cairn_engine_cancel(f.e, r.id) == -ENOENT);
		EXPECT(t, cairn_engine_stop(f.e, r.id, 0) == -ENOENT);
		EXPECT(t, a[0].num_finished == 0 && a[1].num_finished == 0);
		cairn_engine_stats(f.e, &before);
		EXPECT(t, cairn_engine_step(f.e, &busy) == 0);
		cairn_engine_stats(f.e, &after);
		/* only the bystander's rows: the cancelled sequences would add as many */
		EXPECT(t, after.scheduler.rows - before.scheduler.rows <= 16);
		EXPECT(t, after.scheduler.num_running <= 1);
		for (int i = 0; i < 2; i++)
			EXPECT(t, a[i].num_finished == 1 && a[i].why == CAIRN_FINISH_CANCELLED &&
				  a[i].end_token == -1);
		EXPECT(t, cairn_engine_run(f.e) == 0);
		EXPECT(t, a[0].num_ids + a[1].num_ids == given && a[0].num_finished + a[1].num_finished == 2);
		check_bystander(t, &f);
		close_engine(t, &f);
	}
}

static void cancelled_by_itself(struct cairn_test *t)
{
	struct cairn_request r;
	struct fixture f;
	struct answer a;

	if (open_engine(t, &f, &small))
		return;
	submit_bystander(t, &f);
	r = request(&f.g, 20, 30, &a);
	r.ignore_eos = 1;
	a.engine = f.e;
	a.cancel_at = 5;
	EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
	EXPECT(t, cairn_engine_run(f.e) == 0);
	EXPECT(t, a.num_ids == 5 && a.num_finished == 1 && a.why == CAIRN_FINISH_CANCELLED);
	check_bystander(t, &f);
	close_engine(t, &f);
}

/* A request whose end cancels another one. */
struct canceller {
	struct answer answer;		/* must be first: done() takes it as its context */
	int ret;			/* of cairn_engine_cancel() */
};

static void cancel_other(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	struct canceller *c = ctx;

	done(ctx, index, why, token);
	c->ret = cairn_engine_cancel(c->answer.engine, c->answer.id);
}

/*
 * A request and a beam search end in the same step, or within a few steps. on_finish of the former cancels
 * the latter, which must end in any case, and once.
 */
static void cancelled_by_another(struct cairn_test *t)
{
	struct cairn_engine_options opt = small;

	opt.in_turn = 1;
	for (int more = -3; more <= 3; more++) {
		struct cairn_request first, beams;
		struct canceller c = { .ret = 1 };
		struct answer a[2] = { 0 };
		struct fixture f;
		int busy = 1;

		if (open_engine(t, &f, &opt))
			return;
		first = request(&f.g, 12, 6, &c.answer);
		first.on_finish = cancel_other;
		beams = request(&f.g, 12, 6 + more, &a[0]);
		beams.beam_width = beams.num_seqs = 2;
		first.ignore_eos = beams.ignore_eos = 1;
		c.answer.engine = f.e;
		c.answer.id = beams.id;
		EXPECT(t, cairn_engine_submit(f.e, &first) == 0 && cairn_engine_submit(f.e, &beams) == 0);
		for (int i = 0; i < 60 && busy; i++)
			EXPECT(t, cairn_engine_step(f.e, &busy) == 0);
		EXPECT(t, !busy && c.answer.num_finished == 1);
		for (int i = 0; i < 2; i++)
			EXPECT(t, a[i].num_finished == 1 &&
				  a[i].why == (c.ret ? CAIRN_FINISH_LENGTH : CAIRN_FINISH_CANCELLED));
		EXPECT(t, c.ret == 0 || c.ret == -ENOENT);
		close_engine(t, &f);
	}
}

/* Ends three answers: one by on_token, one by cairn_engine_stop() from on_token, and one (the last or the
 * first) before its sequence is forked. */
static void one_answer_stopped(struct cairn_test *t)
{
	struct cairn_request r;
	struct answer a[3];
	struct fixture f;

	if (open_engine(t, &f, &small))
		return;
	for (int early = 0; early < 4; early++) {
		int last = early == 1 ? 0 : 12, first = early < 2 ? 4 : 0;

		submit_bystander(t, &f);
		r = request(&f.g, 50, 12, &a[0]);
		memset(&a[1], 0, 2 * sizeof(*a));
		r.num_seqs = 3;
		r.ignore_eos = 1;
		r.salt.lo = (uint64_t)early;
		a[0].stop_at = 4;
		a[1].engine = f.e;
		a[1].id = r.id;
		a[1].end_at = 6;
		EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
		steps(t, &f, &a[0], early == 3 ? -1 : 0, 0);	/* part of the prompt is computed */
		if (early) {
			EXPECT(t, cairn_engine_stop(f.e, r.id, early == 1 ? 2 : 0) == 0);
			EXPECT(t, cairn_engine_stop(f.e, r.id, early == 1 ? 2 : 0) == -ENOENT);
		}
		EXPECT(t, cairn_engine_stop(f.e, r.id, 3) == -ENOENT);
		EXPECT(t, cairn_engine_stop(f.e, r.id + 1, 0) == -ENOENT);
		EXPECT(t, cairn_engine_run(f.e) == 0);
		EXPECT(t, a[0].num_ids == first && a[0].why == CAIRN_FINISH_STOP && a[0].end_token == -1);
		EXPECT(t, a[1].num_ids == 6 && a[1].why == CAIRN_FINISH_STOP && a[1].end_token == -1);
		EXPECT(t, a[2].num_ids == last);
		EXPECT(t, a[2].why == (last ? CAIRN_FINISH_LENGTH : CAIRN_FINISH_STOP));
		for (int i = 0; i < 3; i++)
			EXPECT(t, a[i].num_finished == 1);
		check_bystander(t, &f);
	}
	close_engine(t, &f);
}

static void stop_ids(struct cairn_test *t)
{
	struct cairn_request r;
	struct fixture f;
	struct answer a;
	int first = 0;		/* where the stop id first occurs in the greedy answer */

	if (open_engine(t, &f, &small))
		return;
	r = request(&f.g, f.g.num_tokens, f.g.num_greedy, &a);
	r.ignore_eos = 1;	/* has no effect on stop_ids */
	r.stop_ids = &f.g.greedy[7];
	r.num_stop_ids = 1;
	EXPECT(t, cairn_engine_submit(f.e, &r) == 0 && cairn_engine_run(f.e) == 0);
	while (f.g.greedy[first] != f.g.greedy[7])
		first++;
	EXPECT(t, a.num_ids == first && a.why == CAIRN_FINISH_STOP && a.end_token == f.g.greedy[7]);
	close_engine(t, &f);
}

static void expired(struct cairn_test *t)
{
	struct answer waiting, decoding, late;
	struct cairn_request r;
	struct fixture f;
	int64_t start;

	if (open_engine(t, &f, &small))
		return;
	submit_bystander(t, &f);
	r = request(&f.g, 30, 20, &waiting);
	r.deadline_ns = 1;	/* long ago */
	EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
	r = request(&f.g, 25, 90, &decoding);
	r.ignore_eos = 1;
	start = cairn_clock_ns();
	r.deadline_ns = start + 5000000;
	EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
	r = request(&f.g, 30, 20, &late);
	r.ignore_eos = 1;
	r.deadline_ns = start + 600000000000;
	EXPECT(t, cairn_engine_submit(f.e, &r) == 0);
	steps(t, &f, &decoding, 1, 0);
	while (cairn_clock_ns() < start + 5000000)
		;
	EXPECT(t, cairn_engine_run(f.e) == 0);
	EXPECT(t, waiting.num_ids == 0 && waiting.why == CAIRN_FINISH_EXPIRED && waiting.num_finished == 1);
	EXPECT(t,
	       decoding.num_finished == 1 && decoding.why == CAIRN_FINISH_EXPIRED && decoding.num_ids < 90);
	EXPECT(t, late.num_ids == 20 && late.why == CAIRN_FINISH_LENGTH);
	check_bystander(t, &f);
	close_engine(t, &f);
}

static const struct cairn_unit units[] = {
	{ "cancelled_at_any_time", cancelled_at_any_time },
	{ "cancelled_by_itself", cancelled_by_itself },
	{ "cancelled_by_another", cancelled_by_another },
	{ "one_answer_stopped", one_answer_stopped },
	{ "stop_ids", stop_ids },
	{ "expired", expired },
};

const struct cairn_family cairn_engine_end_family = {
	.stage = "serving",
	.name = "engine_end",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
