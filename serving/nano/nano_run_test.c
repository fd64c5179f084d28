// SPDX-License-Identifier: Apache-2.0
/* nano_run_test - graphs, errors, hooks and workspaces of overlapped passes */
#include "conformance/harness.h"
#include "serving/nano/nano_test.h"

static const struct scene_request mixed[] = { { 1, 14 }, { 1, 33 }, { 12, 5 }, { 40, 7 } };
static const int32_t cut[] = { 34 };

static const struct cairn_nano_plan two_lanes = { .num_batches = 2, .num_lanes = 2 };

/* ---- graphs ---- */

/*
 * A decoding pass is captured once, and replayed with other lengths and pages: the results are those of the
 * pass without a graph. Arrays of other cuts than those of the capture must give other results.
 */
static void graphs_replay(struct cairn_test *t, const char *table)
{
	static const int32_t at[] = { 3 }, other[] = { 4 };
	struct scene_request r[8];
	struct cairn_nano *n = NULL;
	struct scene s;
	void *graph = NULL;

	if (open_scene(t, &s, table, "llama3_tiny"))
		goto out;
	for (int step = 0; step < 4; step++) {
		struct cairn_nano_cuts cuts;

		for (int i = 0; i < 8; i++)
			r[i] = (struct scene_request){ 1, (11 * i + 6 * step + 3) % 40 };
		if (run_scene(t, &s, r, 8))
			goto out;
		cuts = cuts_at(&s, 2, at);
		if (!n && !EXPECT(t, cairn_nano_create(&n, s.s, &two_lanes) == 0))
			goto out;
		/* on table cuda, sums may depend on the number of rows */
		EXPECT(t, strcmp(table, "cuda") ? run_nano(&s, n, &cuts) == 0 : run_nano(&s, n, &cuts) >= 0);
		expect_last(&s, &cuts);
		if (!graph && !EXPECT(t, capture_scene(&s, n, &cuts, &graph) == 0))
			goto out;
		EXPECT(t, replay_scene(&s, graph, &cuts) == 0);
		cuts = cuts_at(&s, 2, other);
		EXPECT(t, replay_scene(&s, graph, &cuts) > 0);
	}
out:
	if (graph)
		s.impl.graph_destroy(graph);
	cairn_nano_destroy(n);
	close_scene(&s);
}

static void graphs_late(struct cairn_test *t)
{
	graphs_replay(t, "late");
	graphs_replay(t, "late7");
}

static void graphs_cuda(struct cairn_test *t)
{
	graphs_replay(t, "cuda");
}

/* ---- errors ---- */

static struct cairn_impl plain;
static int calls_left;

static int attn_fails(const struct cairn_attn_paged_args *args, void *stream)
{
	return calls_left-- ? plain.attn_paged(args, stream) : cairn_error(EIO, "attn_paged: not today");
}

static int record_fails(void *event, void *stream)
{
	return calls_left-- ? plain.event_record(event, stream) : cairn_error(EIO, "event: not today");
}

/* After an error in the middle all lanes have joined: a capture can be ended, and the next pass is right. */
static void errors_join(struct cairn_test *t)
{
	struct cairn_nano *n = NULL;
	struct cairn_nano_pass pass;
	struct cairn_nano_cuts cuts;
	struct scene s;
	void *graph;

	if (open_scene(t, &s, "late", "llama3_tiny") || run_scene(t, &s, mixed, ARRAY_SIZE(mixed)) ||
	    !EXPECT(t, cairn_nano_create(&n, s.s, &two_lanes) == 0))
		goto out;
	cuts = cuts_at(&s, 2, cut);
	plain = s.impl;
	EXPECT(t, run_nano(&s, n, &cuts) == 0 && split_scene(&s, &cuts, &pass) == 0);
	for (int i = 0; i < 4; i++) {
		calls_left = i;
		s.impl.attn_paged = attn_fails;
		EXPECT(t, run_nano(&s, n, &cuts) == -EIO);
		EXPECT_CONTAINS(t, cairn_last_error(), "attn_paged: not today");
		calls_left = i;
		EXPECT(t, s.impl.graph_begin(s.stream) == 0);
		EXPECT(t, cairn_nano_forward(n, &s.kv, &pass, s.stream) == -EIO);
		s.impl.attn_paged = plain.attn_paged;
		if (EXPECT(t, s.impl.graph_end(s.stream, &graph) == 0))
			s.impl.graph_destroy(graph);
		calls_left = i;
		s.impl.event_record = record_fails;
		EXPECT(t, run_nano(&s, n, &cuts) == -EIO);
		EXPECT_CONTAINS(t, cairn_last_error(), "event: not today");
		s.impl.event_record = plain.event_record;
		EXPECT(t, run_nano(&s, n, &cuts) == 0);
	}
out:
	cairn_nano_destroy(n);
	close_scene(&s);
}

static void refusals(struct cairn_test *t)
{
	static const struct cairn_nano_plan three = { .num_batches = 3, .num_lanes = 2 };
	struct cairn_nano *n = NULL;
	struct cairn_nano_cuts cuts;
	struct scene s;

	if (open_scene(t, &s, "cpu", "llama3_tiny") || run_scene(t, &s, mixed, ARRAY_SIZE(mixed)))
		goto out;
	cuts = cuts_at(&s, 2, cut);
	EXPECT(t, cairn_nano_create(&n, s.s, &three) == 0);
	EXPECT(t, run_nano(&s, n, &cuts) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "num_batches");
	cairn_nano_destroy(n);
	n = NULL;
	s.impl.stream_wait = NULL;
	EXPECT(t, cairn_nano_create(&n, s.s, &three) == -EOPNOTSUPP && !n);
	EXPECT_CONTAINS(t, cairn_last_error(), "stream_wait");
	cuts.row[2]++;
	EXPECT(t, split_scene(&s, &cuts, &(struct cairn_nano_pass){ 0 }) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "cuts: end at row 55 of 54");
out:
	close_scene(&s);
}

/* ---- hooks ---- */

struct hook {
	struct scene *s;
	char *copy;			/* [kv_bytes], in the table's memory */
	int32_t next;
	int wrong;
};

/* Copies the layer's cache. */
static int copy_layer(void *ctx, int32_t layer, void *stream)
{
	struct hook *h = ctx;
	size_t at = h->s->kv.layer_bytes * (size_t)layer;

	h->wrong += layer != h->next++;
	return h->s->impl.mem_copy(h->copy + at, h->s->kv.base + at, h->s->kv.layer_bytes,
				   CAIRN_COPY_ON_DEVICE, stream);
}

static int fail_layer(void *ctx, int32_t layer, void *stream)
{
	(void)ctx;
	(void)stream;
	return layer ? cairn_error(EIO, "hook: not today") : 0;
}

static void give_hook(struct scene *s, struct cairn_nano_pass *pass)
{
	pass->whole.on_layer = s->batch.on_layer;
	pass->whole.on_layer_ctx = s->batch.on_layer_ctx;
}

static const void *join;

static int wait_unless_join(void *stream, void *event)
{
	return event == join ? 0 : plain.stream_wait(stream, event);
}

/*
 * The hook sees the whole cache of its layer, in every order of lanes, but not if the lane of the second
 * nano-batch does not join the stream before it.
 */
static void hooks_join(struct cairn_test *t)
{
	struct cairn_nano *n = NULL;
	struct cairn_nano_cuts cuts;
	struct scene s;
	struct hook h = { .s = &s };
	void *p = NULL;

	if (open_scene(t, &s, "late", "gemma2_tiny") || run_scene(t, &s, mixed, ARRAY_SIZE(mixed)) ||
	    !EXPECT(t, s.impl.mem_alloc(&p, s.kv_bytes) == 0) ||
	    !EXPECT(t, cairn_nano_create(&n, s.s, &two_lanes) == 0))
		goto out;
	h.copy = p;
	cuts = cuts_at(&s, 2, cut);
	s.batch.on_layer = copy_layer;
	s.batch.on_layer_ctx = &h;
	s.spoil = give_hook;
	for (s.first_lane = 0; s.first_lane < 2; s.first_lane++) {
		h.next = 0;
		EXPECT(t, s.impl.mem_set(h.copy, 0xff, s.kv_bytes, s.stream) == 0);
		EXPECT(t, run_nano(&s, n, &cuts) == 0);
		EXPECT(t, h.next == s.m->config.num_hidden_layers && !h.wrong);
		EXPECT(t, scene_copy(&s, s.now, h.copy, s.kv_bytes, CAIRN_COPY_TO_HOST) == 0);
		EXPECT(t, !memcmp(s.now, s.after, s.kv_bytes));
	}
	s.first_lane = h.next = 0;
	plain = s.impl;
	join = n->joined[1];
	s.impl.stream_wait = wait_unless_join;
	EXPECT(t, s.impl.mem_set(h.copy, 0xff, s.kv_bytes, s.stream) == 0);
	EXPECT(t, run_nano(&s, n, &cuts) == 0);		/* the logits need all lanes */
	EXPECT(t, scene_copy(&s, s.now, h.copy, s.kv_bytes, CAIRN_COPY_TO_HOST) == 0);
	EXPECT(t, memcmp(s.now, s.after, s.kv_bytes));
	s.impl.stream_wait = plain.stream_wait;
	s.batch.on_layer = fail_layer;
	EXPECT(t, run_nano(&s, n, &cuts) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "hook: not today");
	s.batch.on_layer = NULL;
	EXPECT(t, run_nano(&s, n, &cuts) == 0);
out:
	if (p)
		s.impl.mem_free(p);
	cairn_nano_destroy(n);
	close_scene(&s);
}

/* ---- workspaces ---- */

static struct {
	const void *workspace, *stream;
} used[32];
static int num_used, num_short, num_shared, num_strange;

/* A workspace belongs to one stream. */
static void look(const void *workspace, size_t have, size_t want, const void *stream)
{
	int i = 0;

	num_short += !workspace || have < want;
	while (i < num_used && used[i].workspace != workspace)
		i++;
	if (i < num_used)
		num_shared += used[i].stream != stream;
	else if (num_used < (int)ARRAY_SIZE(used)) {
		used[num_used].workspace = workspace;
		used[num_used++].stream = stream;
	}
}

static int ask_gemm(const struct cairn_gemm_args *args, size_t *bytes)
{
	*bytes = (size_t)args->n * 24 + 4096 / (size_t)args->m;
	return 0;
}

static int gemm_in_workspace(const struct cairn_gemm_args *args, void *stream)
{
	size_t bytes;

	ask_gemm(args, &bytes);
	look(args->workspace, args->workspace_bytes, bytes, stream);
	return plain.gemm(args, stream);
}

static int ask_attn(const struct cairn_attn_paged_args *args, size_t *bytes)
{
	*bytes = (size_t)args->nnz_qo * 4096;
	return 0;
}

static int attn_plan(const struct cairn_attn_bsr_args *args, void *stream)
{
	(void)args;
	(void)stream;
	return 0;
}

/* A planned call must have the lists of the last call that made a plan in this workspace. */
static int attn_in_workspace(const struct cairn_attn_paged_args *args, void *stream)
{
	static struct cairn_attn_paged_args makers[8];
	int i = 0;

	num_short += !args->workspace || args->workspace_bytes < (size_t)args->nnz_qo * 4096;
	while (i < 7 && makers[i].workspace && makers[i].workspace != args->workspace)
		i++;
	if (args->planned)
		num_strange += args->qo_indptr != makers[i].qo_indptr || args->window != makers[i].window;
	else
		makers[i] = *args;
	return plain.attn_paged(args, stream);
}

/* Streams of table cpu are all the same; these are not. */
static int other_stream(void **stream)
{
	static char streams[64];
	static int num;

	*stream = &streams[num++ % 64];
	return 0;
}

static void keep_stream(void *stream)
{
	(void)stream;
}

/* mutant: lane 1 has the workspace of lane 0, or nano-batches share one for attention. */
static int judge_workspaces(struct cairn_test *t, struct scene *s, int mutant)
{
	struct cairn_nano_cuts cuts = cuts_at(s, 2, cut);
	struct cairn_nano *n = NULL;
	struct room lane = s->s->lane[1], attn = s->s->attn[2];
	int bad;

	num_used = num_short = num_shared = num_strange = 0;
	if (!EXPECT(t, cairn_nano_create(&n, s->s, &two_lanes) == 0))
		return -1;
	/* sizes of a mutant are beyond all demands, so that nothing is allocated for it */
	if (mutant == 1)
		s->s->lane[1] = (struct room){ s->s->lane[0].at, SIZE_MAX / 2 };
	if (mutant == 2)
		s->s->attn[2] = (struct room){ s->s->attn[1].at, SIZE_MAX / 2 };
	EXPECT(t, run_nano(s, n, &cuts) == 0);
	bad = num_short + num_shared + num_strange;
	if (mutant == 1)
		s->s->lane[1] = lane;
	if (mutant == 2)
		s->s->attn[2] = attn;
	cairn_nano_destroy(n);
	return bad;
}

/* Each lane has a workspace, each nano-batch one for attention, and all have the size that was asked for. */
static void workspaces(struct cairn_test *t)
{
	struct scene s;

	if (open_scene(t, &s, "cpu", "llama3_tiny"))
		goto out;
	plain = s.impl;
	s.impl.gemm_workspace = ask_gemm;
	s.impl.attn_paged_workspace = ask_attn;
	s.impl.gemm = gemm_in_workspace;
	s.impl.attn_paged = attn_in_workspace;
	s.impl.attn_plan = attn_plan;
	s.impl.stream_create = other_stream;
	s.impl.stream_destroy = keep_stream;
	if (run_scene(t, &s, mixed, ARRAY_SIZE(mixed)))
		goto out;
	EXPECT(t, judge_workspaces(t, &s, 0) == 0);
	EXPECT(t, judge_workspaces(t, &s, 1) > 0);
	EXPECT(t, judge_workspaces(t, &s, 2) > 0);
	EXPECT(t, judge_workspaces(t, &s, 0) == 0);
out:
	close_scene(&s);
}

/* Plans of one scratch take turns with each other and with sequential passes. */
static void plans_take_turns(struct cairn_test *t)
{
	static const struct cairn_nano_plan plans[] = {
		{ .num_batches = 1, .num_lanes = 1 }, { .num_batches = 3, .num_lanes = 3 },
		{ .num_batches = 4, .num_lanes = 2, .rows = { 1, 2, 3, 4 }, .decodes = { 0, 1, 0, 1 } },
	};
	struct cairn_nano *n[3] = { NULL };
	struct cairn_nano_cuts cuts;
	struct scene s;

	if (open_scene(t, &s, "late3", "mixtral_tiny"))
		goto out;
	for (int i = 0; i < 3; i++)
		if (!EXPECT(t, cairn_nano_create(&n[i], s.s, &plans[i]) == 0))
			goto out;
	for (int i = 0; i < 6; i++) {
		if (i % 2 == 0 && run_scene(t, &s, mixed, ARRAY_SIZE(mixed)))
			goto out;
		EXPECT(t, cairn_nano_plan_of(n[i % 3])->num_batches == plans[i % 3].num_batches);
		EXPECT(t, cairn_nano_cut(&cuts, cairn_nano_plan_of(n[i % 3]), s.host.qo_indptr, s.batch.batch,
					 s.batch.num_rows, s.num_decodes) == 0);
		EXPECT(t, run_nano(&s, n[i % 3], &cuts) == 0);
	}
out:
	for (int i = 0; i < 3; i++)
		cairn_nano_destroy(n[i]);
	close_scene(&s);
}

static const struct cairn_unit units[] = {
	{ "graphs_late", graphs_late },
	{ "graphs_cuda", graphs_cuda },
	{ "errors_join", errors_join },
	{ "refusals", refusals },
	{ "hooks_join", hooks_join },
	{ "workspaces", workspaces },
	{ "plans_take_turns", plans_take_turns },
};

const struct cairn_family cairn_nano_run_family = {
	.stage = "serving",
	.name = "nano_run",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
