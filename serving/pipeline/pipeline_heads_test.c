// SPDX-License-Identifier: Apache-2.0
/*
 * pipeline_heads_test - EAGLE-3 and MTP heads draft for the stages of a pipeline as for one process
 *
 * Wrong hidden states would change no answer, only the drafts, so all likely tokens that a head gives are
 * compared, too. A prompt has several chunks, and each stage has one or two layers: states come from within a
 * stage and from its beginning.
 */
#include "conformance/harness.h"
#include "serving/engine/spec/eagle_head.h"
#include "serving/engine/spec/mtp_head.h"
#include "serving/ranks/ranks_model_test.h"

struct drafting {
	enum cairn_speculate method;
	const char *head;		/* a golden one of the embedded model; NULL: of the golden model */
	int stages;			/* 1: one process */
};

struct drafted {
	int32_t tokens[NEW];
	int num;
	int64_t drafts, accepted;
	uint64_t likely;		/* a hash of the tokens that the head found likely */
};

static struct cairn_impl right;		/* the table of a rank before it was changed */
static int rank;			/* of this process */
static uint64_t likely;
static struct golden golden;		/* the model that has a layer for MTP */
static char kept[1 << 16], other[1 << 16];	/* states of the pass before */

static void write_dir(const struct drafting *s, char *dir, size_t len)
{
	if (s->head)
		snprintf(dir, len, "%.2000s/serving/embedded", cairn_data_dir());
	else
		snprintf(dir, len, "%.2000s", golden.dir);
}

static int note_likely(const struct cairn_logprobs_args *a, void *stream)
{
	CAIRN_TRY(right.logprobs(a, stream));
	for (int32_t i = 0; i < a->rows * a->k; i++)
		likely = (likely ^ (uint64_t)a->top_ids[i]) * 0x100000001b3u;
	return 0;
}

static int take_drafted(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct drafted *d = ctx;

	(void)index;
	if (d->num < NEW)
		d->tokens[d->num++] = token->id;
	return 0;
}

static int draft(struct cairn_model *m, struct cairn_tp *tp, const struct drafting *s, struct drafted *to)
{
	static int32_t prompt[2 * NUM];
	struct cairn_engine_options eo = {
		.max_batch = 2, .max_rows = 64, .max_context = 96, .page_size = 2, .chunk_rows = 16,
		.decode = CAIRN_DECODE_UNFUSED, .tap = tp ? cairn_tp_tap(tp) : NULL,
		.speculation = { .method = s->method, .num_tokens = 3, .always = 1 },
	};
	const struct cairn_request req = {
		.prompt = prompt, .num_prompt = 2 * NUM, .max_new_tokens = NEW, .ignore_eos = 1,
		.sampling = { .top_p = 1 }, .on_token = take_drafted, .ctx = to,
	};
	struct cairn_engine_stats stats = { 0 };
	struct cairn_draft_head *head = NULL;
	struct cairn_engine *e = NULL;
	char dir[PATH_MAX];
	int ret;

	write_prompt(prompt);
	write_prompt(prompt + NUM);
	write_dir(s, dir, sizeof(dir));
	if (s->head)
		snprintf(dir, sizeof(dir), "%.2000s/serving/golden/%s", cairn_data_dir(), s->head);
	ret = (s->head ? cairn_eagle_head_load : cairn_mtp_head_load)(&head, m, dir);
	eo.speculation.head = head;
	likely = 0xcbf29ce484222325u;
	if (!ret)
		ret = cairn_engine_create(&e, m, &eo);
	if (!ret)
		ret = cairn_engine_submit(e, &req);
	if (!ret)
		ret = cairn_engine_run(e);
	if (!ret)
		cairn_engine_stats(e, &stats);
	cairn_engine_destroy(e);
	cairn_draft_head_free(head);
	to->drafts = stats.speculation.draft_tokens;
	to->accepted = stats.speculation.accepted_tokens;
	to->likely = likely;
	return ret;
}

static int open_stage(struct cairn_impl *impl, struct cairn_model **m, struct cairn_tp *tp,
		      const struct drafting *s, alter_fn alter)
{
	char dir[PATH_MAX];

	write_dir(s, dir, sizeof(dir));
	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	CAIRN_TRY(cairn_impl_open("cpu", impl));
	CAIRN_TRY(cairn_impl_start(impl, 0));
	if (tp)
		CAIRN_TRY(cairn_tp_table(tp, impl, ""));
	rank = tp ? cairn_tp_rank(tp) : 0;
	right = *impl;
	impl->logprobs = note_likely;
	CAIRN_TRY(tp ? cairn_model_load_stage(m, impl, dir, rank, s->stages, CAIRN_WEIGHTS_PLAIN,
					      CAIRN_KV_PLAIN, NULL, NULL) :
		  cairn_model_load(m, impl, dir, NULL, NULL));
	if (alter)
		alter(*m, impl);
	return 0;
}

/* Returns the error that ends the run, or 0. */
static int run(struct cairn_test *t, const struct drafting *s, alter_fn alter, struct drafted *to)
{
	struct cairn_model *m = NULL;
	struct cairn_tp *tp = NULL;
	struct cairn_impl impl;
	int ret;

	memset(to, 0, sizeof(*to));
	if (s->stages > 1 && !EXPECT(t, cairn_tp_fork(&tp, s->stages, NULL, 60000) == 0))
		return 0;
	if (tp && cairn_tp_rank(tp)) {
		if (open_stage(&impl, &m, tp, s, alter) || cairn_tp_follow(tp, m, NULL, NULL))
			cairn_tp_fail(tp);
		_exit(0);
	}
	ret = open_stage(&impl, &m, tp, s, alter);
	if (!ret)
		ret = draft(m, tp, s, to);
	cairn_tp_close(tp);
	cairn_model_free(m);
	return ret;
}

static void same_drafts(struct cairn_test *t)
{
	static const struct drafting all[] = {
		{ CAIRN_SPECULATE_EAGLE3, "eagle3_embedded", 2 },
		{ CAIRN_SPECULATE_EAGLE3, "eagle3_embedded", 5 },
		{ CAIRN_SPECULATE_MTP, NULL, 2 },
	};

	if (open_golden(t, &golden, "deepseek_v3_tiny"))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		struct drafting one = all[i];
		struct drafted whole, staged;

		one.stages = 1;
		EXPECT(t, run(t, &one, NULL, &whole) == 0 && whole.num == NEW && whole.drafts > 0);
		if (!EXPECT(t, run(t, &all[i], NULL, &staged) == 0))
			cairn_note(t, "%s", cairn_last_error());
		if (!EXPECT(t, !memcmp(&whole, &staged, sizeof(whole))))
			cairn_note(t, "%s, %d stages: %d tokens, %lld of %lld drafts right, not %lld of %lld",
				   all[i].head ? all[i].head : "mtp", all[i].stages, staged.num,
				   (long long)staged.accepted, (long long)staged.drafts,
				   (long long)whole.accepted, (long long)whole.drafts);
	}
	close_golden(&golden);
}

/* ---- mutants ---- */

/*
 * Called on the first stage for what it has received from a later stage. Hidden states for a drafting head
 * are the only such messages.
 */
static void (*received)(const struct cairn_send_recv_args *a);

static int receive(const struct cairn_send_recv_args *a, void *stream)
{
	CAIRN_TRY(right.send_recv(a, stream));
	if (!rank && a->from > 0)
		received(a);
	return 0;
}

static void forget(const struct cairn_send_recv_args *a)
{
	memset(a->out, 0, (size_t)a->bytes);
}

static void forget_half(const struct cairn_send_recv_args *a)
{
	memset(a->out, 0, (size_t)a->bytes / 2);
}

static void take_earlier(const struct cairn_send_recv_args *a)
{
	const size_t bytes = (size_t)a->bytes < sizeof(kept) ? (size_t)a->bytes : sizeof(kept);

	memcpy(other, a->out, bytes);
	memcpy(a->out, kept, bytes);
	memcpy(kept, other, bytes);
}

#define RECEIVED(name, what) \
	static void name(struct cairn_model *m, struct cairn_impl *impl) \
	{ \
		(void)m; \
		received = what; \
		impl->send_recv = receive; \
	}

RECEIVED(states_lost, forget)
RECEIVED(half_lost, forget_half)
RECEIVED(states_of_pass_before, take_earlier)

/* Stages but the first one give the states of one layer later. */
static void one_layer_late(struct cairn_model *m, struct cairn_impl *impl)
{
	(void)impl;
	m->config.first_layer -= rank > 0;
}

static void mutants(struct cairn_test *t)
{
	static const struct drafting eagle = { CAIRN_SPECULATE_EAGLE3, "eagle3_embedded", 2 };
	static const struct drafting mtp = { CAIRN_SPECULATE_MTP, NULL, 2 };
	static const struct { const struct drafting *s; const char *name; alter_fn fn; } all[] = {
		{ &eagle, "states_lost", states_lost }, { &eagle, "half_lost", half_lost },
		{ &eagle, "states_of_pass_before", states_of_pass_before },
		{ &eagle, "one_layer_late", one_layer_late }, { &mtp, "states_lost", states_lost },
		{ &mtp, "states_of_pass_before", states_of_pass_before },
	};
	struct drafted whole, got;

	if (open_golden(t, &golden, "deepseek_v3_tiny"))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		struct drafting one = *all[i].s;

		one.stages = 1;
		EXPECT(t, run(t, &one, NULL, &whole) == 0);
		if (!EXPECT(t, run(t, all[i].s, all[i].fn, &got) || got.likely != whole.likely))
			cairn_note(t, "%s was not caught", all[i].name);
	}
	close_golden(&golden);
}

static const struct cairn_unit units[] = {
	{ "same_drafts", same_drafts }, { "mutants", mutants },
};

const struct cairn_family cairn_pipeline_heads_family = {
	.stage = "serving", .name = "pipeline_heads", .units = units, .num_units = ARRAY_SIZE(units),
};
