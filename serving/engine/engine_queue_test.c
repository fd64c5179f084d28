// SPDX-License-Identifier: Apache-2.0
/*
 * engine_queue_test - limits of the queue, submission from callbacks, destruction with work in flight, and
 * answers that another engine has begun
 */
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

enum { SEEDS = 3, BEGUN = 24 };

/* An answer that another engine has begun: the prompt, and its first `given` tokens. */
struct begun {
	int32_t ids[64];
	struct cairn_request r;
	struct answer a;
};

static void sample_all(struct cairn_request *r)
{
	static const struct cairn_logit_bias bias = { 7, 1.5f };

	r->ignore_eos = 1;
	r->sampling = (struct cairn_sampling){
		.temperature = 1, .top_p = 1, .seed = 77, .repetition_penalty = 1.3f,
		.presence_penalty = 0.6f, .frequency_penalty = 0.4f, .min_new_tokens = 9, .bias = &bias,
		.num_bias = 1, .num_logprobs = 1,
	};
}

static void go_on(struct begun *b, const struct fixture *f, const struct answer *whole, int32_t index,
		  int32_t given)
{
	b->r = request(&f->g, 17, BEGUN - given, &b->a);
	sample_all(&b->r);
	memcpy(b->ids, f->g.tokens, 17 * sizeof(*b->ids));
	memcpy(b->ids + 17, whole[index].ids, (size_t)given * sizeof(*b->ids));
	b->r.prompt = b->ids;
	b->r.num_prompt = 17 + given;
	b->r.num_given = given;
	b->r.sampling.seed = cairn_answer_seed(77, index);
}

/* Returns whether the answer has the tokens that were still to come. */
static int is_rest(struct cairn_test *t, struct fixture *f, struct begun *b, const struct answer *whole,
		   int32_t given)
{
	EXPECT(t, cairn_engine_submit(f->e, &b->r) == 0 && cairn_engine_run(f->e) == 0);
	return b->a.num_ids == BEGUN - given && !memcmp(b->a.ids, whole->ids + given,
							(size_t)b->a.num_ids * sizeof(*b->a.ids));
}

/*
 * An engine that continues an answer begun by another one gives the same tokens, with penalties, biases and
 * min_new_tokens, and whichever of several answers it is. If num_given, the seed or max_new_tokens of the
 * request is wrong, its tokens differ.
 */
static void goes_on(struct cairn_test *t)
{
	struct cairn_engine_options opt = small;
	struct answer whole[SEEDS];
	struct cairn_request r;
	struct fixture f;
	struct begun b;

	opt.decode = CAIRN_DECODE_UNFUSED;	/* the same bits for rows of prompts and of answers */
	if (open_engine(t, &f, &opt))
		return;
	r = request(&f.g, 17, BEGUN, whole);
	memset(whole, 0, sizeof(whole));
	sample_all(&r);
	r.num_seqs = SEEDS;
	EXPECT(t, cairn_engine_submit(f.e, &r) == 0 && cairn_engine_run(f.e) == 0);
	for (int i = 0; i < SEEDS; i++) {
		for (int32_t given = 1 + 2 * i; given < BEGUN; given += 6) {
			go_on(&b, &f, whole, i, given);
			if (!EXPECT(t, is_rest(t, &f, &b, &whole[i], given)))
				cairn_note(t, "answer %d, %d tokens given: %d", i, given, b.a.num_ids);
		}
	}
	for (int wrong = 0; wrong < 4; wrong++) {
		go_on(&b, &f, whole, 1, 10);
		if (wrong == 0)
			b.r.num_given = 0;		/* draws are numbered from 0 */
		if (wrong == 1)
			b.r.num_given = 9;		/* one of the tokens counts as prompt */
		if (wrong == 2)
			b.r.sampling.seed = 77;		/* that of another answer */
		if (wrong == 3)
			b.r.max_new_tokens = BEGUN;
		EXPECT(t, !is_rest(t, &f, &b, &whole[1], 10));
	}
	go_on(&b, &f, whole, 0, 3);
	b.r.num_given = b.r.num_prompt;
	EXPECT(t, cairn_engine_submit(f.e, &b.r) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "num_given: is 20");
	b.r.num_given = 3;
	b.r.num_seqs = 2;
	EXPECT(t, cairn_engine_submit(f.e, &b.r) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "num_given: does not go with num_seqs");
	close_engine(t, &f);
}

static const struct cairn_unit units[] = {
	{ "goes_on", goes_on },
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
