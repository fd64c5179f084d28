// SPDX-License-Identifier: Apache-2.0
/* scheduler_test - checks rows, draws and moves of plans, one phase of a request at a time */
#include "conformance/harness.h"

#include "serving/scheduler/scheduler_sim_test.h"

static struct cairn_scheduler_options small(void)
{
	return (struct cairn_scheduler_options) {
		.dense_rows = 8,
		.max_seqs = 4,
		.max_context = 64,
		.page_size = 4,
		.num_pages = 32,
		.grain = 4,
		.max_queued = 4,
		.max_passes = 2,
		.expected_new = 4,
	};
}

/* prompt: one token per letter */
static int submit(struct cairn_scheduler *s, uint64_t id, const char *prompt, int32_t max_new,
		  int32_t num_seqs)
{
	struct cairn_scheduler_request r = { .id = id, .max_new_tokens = max_new, .num_seqs = num_seqs };
	int32_t tokens[64];

	for (r.num_prompt = 0; prompt[r.num_prompt]; r.num_prompt++)
		tokens[r.num_prompt] = prompt[r.num_prompt];
	r.prompt = tokens;
	r.keep = id >= 1000;
	return cairn_scheduler_submit(s, &r);
}

static struct cairn_scheduler *create(struct cairn_test *t, const struct cairn_scheduler_options *o)
{
	struct cairn_scheduler *s = NULL;

	EXPECT(t, cairn_scheduler_create(&s, o) == 0);
	return s;
}

/* If report is set, reports token 7 for all draws of the oldest unreported plan. Then forms the next plan. */
static const struct cairn_step_plan *next(struct cairn_test *t, struct cairn_scheduler *s, int report)
{
	static const int32_t tokens[64] = { 7, 7, 7, 7, 7, 7, 7, 7 };
	const struct cairn_step_plan *p = NULL;

	if (report)
		EXPECT(t, cairn_scheduler_report(s, tokens, NULL) == 0);
	EXPECT(t, cairn_scheduler_plan(s, 0, &p) == 0);
	EXPECT(t, cairn_scheduler_verify(s) == 0);
	return p;
}

static int item_is(const struct cairn_step_plan *p, int32_t i, uint64_t request, int32_t first, int32_t rows,
		   int draws)
{
	return i < p->num_items && p->items[i].request == request && p->items[i].first == first &&
		p->items[i].num_rows == rows && (p->items[i].draw >= 0) == draws;
}

static void options_are_checked(struct cairn_test *t)
{
	struct cairn_scheduler_options o;
	struct cairn_scheduler *s = NULL;

#define BAD(field, value) (o = small(), o.field = (value), cairn_scheduler_create(&s, &o) == -EINVAL && !s)
	EXPECT(t, BAD(max_seqs, 0) && BAD(max_seqs, 9) && BAD(dense_rows, 1 << 30) && BAD(page_size, 0));
	EXPECT(t, BAD(num_pages, 0) && BAD(host_pages, -1) && BAD(disk_pages, 1) && BAD(max_context, 1));
	EXPECT(t, BAD(grain, 2) && BAD(ahead, 2) && BAD(max_chunk, -1) && BAD(max_passes, -1) &&
			  BAD(window, -1) && BAD(swap_ns, -1));
#undef BAD
	EXPECT(t, cairn_scheduler_create(NULL, &o) == -EINVAL && cairn_scheduler_create(&s, NULL) == -EINVAL);
	cairn_scheduler_destroy(NULL);
}

/* Draws and scored rows together are at most max_seqs. Waiting requests keep half of the spare ones. */
static void scored_prompts(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	struct cairn_scheduler *s = create(t, &o);
	struct cairn_scheduler_request r = { .id = 1, .num_prompt = 20, .max_new_tokens = 2, .scored = 1 };
	const struct cairn_step_plan *p;
	int32_t tokens[20];

	for (int32_t i = 0; i < 20; i++)
		tokens[i] = i;
	r.prompt = tokens;
	EXPECT(t, cairn_scheduler_submit(s, &r) == 0);
	p = next(t, s, 0);
	EXPECT(t, p->num_items == 1 && item_is(p, 0, 1, 0, 4, 0));
	/* a prompt that is not scored is admitted too, and its rows are not limited */
	EXPECT(t, submit(s, 2, "abcdef", 2, 1) == 0);
	p = next(t, s, 1);
	EXPECT(t, p->num_items == 2 && item_is(p, 0, 1, 4, 2, 0) && item_is(p, 1, 2, 0, 6, 1));
	p = next(t, s, 1);
	EXPECT(t, p->num_items == 2 && item_is(p, 0, 2, 6, 1, 1) && item_is(p, 1, 1, 6, 3, 0));
	while (p->num_items)
		p = next(t, s, 1);
	cairn_scheduler_destroy(s);
}

static void requests_are_checked(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	struct cairn_scheduler *s;

	o.num_pages = 8;
	o.max_queued_tokens = 12;
	s = create(t, &o);
	EXPECT(t, submit(s, 1, "", 1, 1) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "prompt: is empty");
	EXPECT(t, submit(s, 1, "a", 0, 1) == -EINVAL && submit(s, 1, "a", 1, 5) == -EINVAL &&
			  submit(s, 1, "a", 1, -1) == -EINVAL);
	EXPECT(t, submit(s, 1, "abcd", 29, 1) == -EINVAL);	/* 33 tokens, but the pool has 32 */
	EXPECT_CONTAINS(t, cairn_last_error(), "exceed the context of 32");
	EXPECT(t, submit(s, 1, "abcdefgh", 24, 1) == 0 && submit(s, 1, "a", 1, 1) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "request 1 already exists");
	EXPECT(t, submit(s, 2, "abcde", 1, 1) == -EAGAIN);	/* the queue would hold 13 tokens */
	EXPECT(t,
	       submit(s, 2, "a", 1, 1) == 0 && submit(s, 3, "a", 1, 1) == 0 && submit(s, 4, "a", 1, 1) == 0);
	EXPECT(t, submit(s, 5, "a", 1, 1) == -EAGAIN);		/* the queue holds four requests */
	EXPECT_CONTAINS(t, cairn_last_error(), "the queue is full: 4 requests");
	EXPECT(t, cairn_scheduler_cancel(s, 9) == -ENOENT && cairn_scheduler_stop(s, 1, 1) == -ENOENT);
	EXPECT(t,
	       cairn_scheduler_report(s, NULL, NULL) == -EINVAL && cairn_scheduler_fetched(s, 1) == -ENOENT);
	EXPECT(t, cairn_scheduler_cancel(s, 1) == 0 && submit(s, 5, "abcdefgh", 1, 1) == 0);
	cairn_scheduler_destroy(s);
}

/* Two prompts of 11 and 9 tokens in steps of 8 rows are cut between any two tokens; decodes come first. */
static void prompts_fill_the_step(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	struct cairn_scheduler *s = create(t, &o);
	const struct cairn_step_plan *p;

	EXPECT(t, submit(s, 1, "abcdefghijk", 4, 1) == 0 && submit(s, 2, "ABCDEFGHI", 4, 1) == 0);
	p = next(t, s, 0);
	EXPECT(t, p->num_rows == 8 && p->num_items == 1 && item_is(p, 0, 1, 0, 8, 0) && p->ids[7] == 'h');
	p = next(t, s, 1);
	EXPECT(t, p->num_rows == 8 && item_is(p, 0, 1, 8, 3, 1) && item_is(p, 1, 2, 0, 5, 0) &&
			  p->num_decodes == 0);
	p = next(t, s, 1);
	EXPECT(t, p->num_decodes == 1 && item_is(p, 0, 1, 11, 1, 1) && item_is(p, 1, 2, 5, 4, 1));
	EXPECT(t, p->ids[0] == 7 && p->items[0].follows == -1 && p->ids[p->items[1].ids_at] == 'F');
	p = next(t, s, 1);
	EXPECT(t, p->num_decodes == 2 && p->num_rows == 2 && p->num_draws == 2);
	cairn_scheduler_destroy(s);
}

/* Where attention takes one query row per request (max_chunk 1), each sequence runs one row a step. */
static void chunks_are_limited(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	const struct cairn_step_plan *p;
	struct cairn_scheduler *s;

	o.max_chunk = 1;
	s = create(t, &o);
	EXPECT(t, submit(s, 1, "abc", 4, 1) == 0 && submit(s, 2, "ABC", 4, 1) == 0);
	for (int32_t k = 0; k < 5; k++) {
		p = next(t, s, k > 0);
		EXPECT(t,
		       p->num_rows == 2 && item_is(p, 0, 1, k, 1, k >= 2) && item_is(p, 1, 2, k, 1, k >= 2));
	}
	cairn_scheduler_destroy(s);
}

/* A plan ahead names the draw of its token; a second one is refused; max_new_tokens is not exceeded. */
static void one_step_ahead(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	const struct cairn_step_plan *p;
	const struct cairn_sched_event *ev;
	struct cairn_scheduler_stats st;
	struct cairn_scheduler *s;
	static const int32_t token = 7;
	static const uint8_t stop = 1;
	int32_t num;

	o.ahead = 1;
	s = create(t, &o);
	EXPECT(t, submit(s, 1, "abc", 3, 1) == 0);
	p = next(t, s, 0);
	EXPECT(t, item_is(p, 0, 1, 0, 3, 1));
	p = next(t, s, 0);
	EXPECT(t, item_is(p, 0, 1, 3, 1, 1) && p->items[0].follows == 0 && p->ids[0] == -1);
	EXPECT(t, cairn_scheduler_plan(s, 0, &p) == -EBUSY);
	p = next(t, s, 1);
	EXPECT(t, item_is(p, 0, 1, 4, 1, 1) && p->items[0].follows == 0);
	p = next(t, s, 1);
	EXPECT(t, p->num_items == 0);			/* all three tokens are drawn */
	EXPECT(t, cairn_scheduler_report(s, &token, &stop) == 0);
	ev = cairn_scheduler_events(s, &num);
	EXPECT(t, num == 3 && ev[0].what == CAIRN_SCHED_TOKEN && ev[2].what == CAIRN_SCHED_STOP &&
			  ev[2].token == 7);

	/* when an end is noticed late, the token in flight is dropped and the page is free again */
	EXPECT(t, submit(s, 2, "xyz", 9, 1) == 0);
	next(t, s, 0);
	next(t, s, 0);
	EXPECT(t, cairn_scheduler_report(s, &token, &stop) == 0 && cairn_scheduler_verify(s) == 0);
	EXPECT(t, cairn_scheduler_report(s, &token, NULL) == 0);
	cairn_scheduler_stats(s, &st);
	EXPECT(t, st.dropped_draws == 1 && st.num_running == 0 && st.device.table_pages == 0);
	ev = cairn_scheduler_events(s, &num);
	EXPECT(t, num == 1 && ev[0].request == 2 && ev[0].what == CAIRN_SCHED_STOP);
	cairn_scheduler_destroy(s);
}

/*
 * For three answers, the prompt without its last token is computed once, and the page in which it ends is
 * copied twice.
 */
static void answers_share_the_prompt(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	struct cairn_scheduler *s = create(t, &o);
	const struct cairn_sched_event *ev;
	const struct cairn_step_plan *p;
	struct cairn_scheduler_stats st;
	int32_t num;

	EXPECT(t, submit(s, 1, "abcdef", 2, 3) == 0);
	p = next(t, s, 0);
	EXPECT(t, item_is(p, 0, 1, 0, 5, 0));
	p = next(t, s, 1);
	EXPECT(t, p->num_items == 3 && item_is(p, 0, 1, 5, 1, 1) && item_is(p, 2, 1, 5, 1, 1) &&
			  p->items[2].index == 2);
	EXPECT(t, p->num_moves == 2 && p->moves[0].kind == CAIRN_MOVE_COPY &&
			  p->moves[0].page == p->moves[1].page);
	cairn_scheduler_stats(s, &st);
	EXPECT(t, st.device.table_pages == 4 && st.device.table_entries == 6);
	EXPECT(t, cairn_scheduler_cancel(s, 1) == 0 && cairn_scheduler_verify(s) == 0);
	ev = cairn_scheduler_events(s, &num);
	EXPECT(t, num == 3 && ev[0].what == CAIRN_SCHED_CANCELLED &&
			  ev[0].index + ev[1].index + ev[2].index == 3);

	/* a request that is cancelled before it was forked still reports three ends */
	EXPECT(t, submit(s, 2, "ABCDEFGHIJKL", 2, 3) == 0);
	next(t, s, 1);
	EXPECT(t, cairn_scheduler_cancel(s, 2) == 0);
	cairn_scheduler_events(s, &num);
	EXPECT(t, num == 3);
	cairn_scheduler_destroy(s);
}

/* If the whole prompt is in the tree, one row is computed, on a copy of the shared last page. */
static void full_hit_computes_one_row(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	struct cairn_scheduler *s = create(t, &o);
	const struct cairn_step_plan *p;
	struct cairn_scheduler_stats st;

	EXPECT(t, submit(s, 1, "abcdefgh", 1, 1) == 0);
	next(t, s, 0);
	EXPECT(t, submit(s, 2, "abcdefgh", 1, 1) == 0);
	p = next(t, s, 1);
	EXPECT(t, p->num_rows == 1 && item_is(p, 0, 2, 7, 1, 1) && p->ids[0] == 'h');
	EXPECT(t, p->num_moves == 1 && p->moves[0].kind == CAIRN_MOVE_COPY);
	cairn_scheduler_stats(s, &st);
	EXPECT(t, st.hit_tokens == 7 && st.prompt_tokens == 16);
	EXPECT(t, submit(s, 3, "abcdefgX", 1, 1) == 0);		/* differs in the second page */
	p = next(t, s, 1);
	EXPECT(t, item_is(p, 0, 3, 4, 4, 1) && p->num_moves == 0);
	cairn_scheduler_destroy(s);
}

/* The next plan has no row of a request cancelled in the queue, in its prompt, in decoding or in flight. */
static void cancel_in_every_phase(struct cairn_test *t)
{
	struct cairn_scheduler_options o = small();
	const struct cairn_step_plan *p;
	struct cairn_scheduler_stats st;
	struct cairn_scheduler *s;

	o.ahead = 1;
	o.grain = 0;
	for (int steps = 0; steps < 6; steps++) {
		int32_t num;

		s = create(t, &o);
		EXPECT(t, submit(s, 1, "abcdefghijklmnopq", 9, 2) == 0 && submit(s, 2, "A", 9, 1) == 0);
		for (int k = 0; k < steps; k++)
			next(t, s, k > 1);
		EXPECT(t, cairn_scheduler_cancel(s, 1) == 0 && cairn_scheduler_verify(s) == 0);
		EXPECT(t, cairn_scheduler_events(s, &num)[num - 1].what == CAIRN_SCHED_CANCELLED);
		p = next(t, s, steps > 1);
		for (int32_t i = 0; i < p->num_items; i++)
			EXPECT(t, p->items[i].request == 2);
		EXPECT(t, cairn_scheduler_cancel(s, 2) == 0);
		cairn_scheduler_stats(s, &st);
		EXPECT(t, st.device.free_pages == o.num_pages && st.num_running + st.num_waiting == 0);
		EXPECT(t, cairn_scheduler_cancel(s, 1) == -ENOENT);
		cairn_scheduler_destroy(s);
	}
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(scored_prompts),
	UNIT(options_are_checked),       UNIT(requests_are_checked),  UNIT(prompts_fill_the_step),
	UNIT(chunks_are_limited),        UNIT(one_step_ahead),        UNIT(answers_share_the_prompt),
	UNIT(full_hit_computes_one_row), UNIT(cancel_in_every_phase),
};
static const struct cairn_unit measures[] = {
	{ "plan", scheduler_plan_cost },
};

const struct cairn_family cairn_scheduler_family = {
	.stage = "serving",
	.name = "scheduler",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
