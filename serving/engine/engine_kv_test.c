// SPDX-License-Identifier: Apache-2.0
/*
 * engine_kv_test - where keys and values are stored makes no difference to the answers
 *
 * Covers prefix hits, shared prompts, preempted sequences, host memory and disk, with keys and values of 16
 * and of 8 bits. No page may leak.
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_naive_test.h"

/* A request with up to three answers, which are adjacent. */
struct job {
	struct cairn_request r;
	struct answer answers[3];
	int32_t prompt[NAIVE_LEN];
};

/* Makes a prompt of `shared` golden tokens followed by `own` random ones; sampled or greedy. */
static void make_job(struct cairn_test *t, const struct golden *g, struct job *j, int shared, int own,
		     int max_new)
{
	memset(j, 0, sizeof(*j));
	j->r = request(g, shared + own, max_new, &j->answers[0]);
	memcpy(j->prompt, g->tokens, (size_t)shared * sizeof(*j->prompt));
	for (int i = 0; i < own; i++)
		j->prompt[shared + i] = 3 + (int32_t)(cairn_rand(t) % 180);
	j->r.prompt = j->prompt;
	j->r.ignore_eos = 1;
	if (cairn_rand(t) & 1)
		j->r.sampling = (struct cairn_sampling){
			.temperature = 1, .top_p = 0.95f, .seed = cairn_rand(t),
		};
}

static void check_job(struct cairn_test *t, struct naive *n, struct job *j, const char *what)
{
	int num_seqs = j->r.num_seqs ? j->r.num_seqs : 1;
	int32_t want[MAX_NEW];

	for (int k = 0; k < num_seqs; k++) {
		int num = naive_answer(t, n, &j->r, k, want);

		EXPECT(t, j->answers[k].num_finished == 1);
		if (!EXPECT(t, j->answers[k].num_ids == num &&
			       !memcmp(j->answers[k].ids, want, (size_t)num * sizeof(*want))))
			cairn_note(t, "%s: answer %d to %d tokens", what, k, j->r.num_prompt);
	}
}

/* Runs to the end and checks all invariants after each step. */
static void run_verified(struct cairn_test *t, struct cairn_engine *e)
{
	int busy = 1;

	while (busy) {
		if (!EXPECT(t, cairn_engine_step(e, &busy) == 0) || !EXPECT(t, cairn_engine_verify(e) == 0))
			return;
	}
}

/* Without requests, only the tree may refer to pages. */
static void nothing_left(struct cairn_test *t, struct cairn_engine *e)
{
	struct cairn_engine_stats st;

	cairn_engine_stats(e, &st);
	EXPECT(t, st.scheduler.num_running == 0 && st.scheduler.num_waiting == 0);
	EXPECT(t, st.scheduler.queued_tokens == 0);
	EXPECT(t, st.scheduler.device.num_seqs == 0 && st.scheduler.device.table_pages == 0);
	EXPECT(t, cairn_engine_verify(e) == 0);
}

struct setting {
	struct cairn_engine_options opt;
	int num_jobs, shared, own, max_new, num_seqs, keep;
	const char *what;
};

#define ENGINE	.max_context = 120, .decode = CAIRN_DECODE_UNFUSED
#define CROWD	ENGINE, .max_batch = 8, .max_rows = 17, .page_size = 4
#define PREFIX	ENGINE, .max_batch = 4, .max_rows = 32, .page_size = 4, .max_passes = 8
/* less memory than the admitted requests need */
#define SCARCE	ENGINE, .max_batch = 6, .max_rows = 32, .page_size = 4, .num_pages = 30, .expected_new = 1
#define SWAPPED	SCARCE, .host_pages = 60, .recompute_ns = 100, .swap_ns = 1

static const struct setting settings[] = {
	{ .opt = { CROWD }, .num_jobs = 12, .own = 30, .max_new = 12, .num_seqs = 1, .what = "chunks" },
	{ .opt = { CROWD, .in_turn = 1 }, .num_jobs = 8, .own = 30, .max_new = 12, .num_seqs = 1,
	  .what = "in turn" },
	{ .opt = { ENGINE, .max_batch = 12, .max_rows = 64, .max_passes = 9 }, .num_jobs = 16, .shared = 30,
	  .own = 20, .max_new = 12, .num_seqs = 1, .what = "more than 8" },
	{ .opt = { PREFIX }, .num_jobs = 10, .shared = 37, .own = 9, .max_new = 10, .num_seqs = 1,
	  .what = "prefix" },
	{ .opt = { PREFIX, .cache_grain = 1 }, .num_jobs = 10, .shared = 37, .own = 9, .max_new = 10,
	  .num_seqs = 1, .what = "prefix to the token" },
	{ .opt = { PREFIX, .cache_grain = -1 }, .num_jobs = 6, .shared = 37, .own = 9, .max_new = 10,
	  .num_seqs = 1, .what = "no cache" },
	{ .opt = { ENGINE, .max_batch = 6, .max_rows = 32, .page_size = 4 }, .num_jobs = 6, .shared = 10,
	  .own = 12, .max_new = 12, .num_seqs = 3, .what = "three answers" },
	{ .opt = { SCARCE }, .num_jobs = 8, .own = 20, .max_new = 24, .num_seqs = 1, .what = "recompute" },
	{ .opt = { SCARCE }, .num_jobs = 5, .own = 16, .max_new = 24, .num_seqs = 2,
	  .what = "recompute of two answers" },
	{ .opt = { SWAPPED }, .num_jobs = 8, .own = 20, .max_new = 24, .num_seqs = 1, .what = "swap" },
	{ .opt = { SWAPPED }, .num_jobs = 8, .own = 20, .max_new = 24, .num_seqs = 1, .keep = 1,
	  .what = "swap and keep" },
	{ .opt = { SCARCE, .host_pages = 24, .disk_pages = 80 }, .num_jobs = 10, .shared = 8, .own = 20,
	  .max_new = 20, .num_seqs = 1, .keep = 1, .what = "disk" },
};

static void one_setting(struct cairn_test *t, const char *table, const struct setting *s,
			struct cairn_model *m, struct naive *n, const struct golden *g)
{
	int by_layer = m->impl->stream_wait != NULL, shares_a_page = 0;
	struct job *jobs = calloc((size_t)s->num_jobs, sizeof(*jobs));
	struct cairn_engine_options opt = s->opt;
	int page = opt.page_size ? opt.page_size : 16, whole = s->shared / page * page;
	struct cairn_engine_stats st;
	struct cairn_engine *e;

	opt.disk_dir = cairn_tmpdir(t);
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		goto out;
	for (int i = 0; i < s->num_jobs; i++) {
		make_job(t, g, &jobs[i], s->shared, 1 + (int)(cairn_rand(t) % (uint64_t)s->own), s->max_new);
		jobs[i].r.num_seqs = i % 2 ? s->num_seqs : 1;
		/* each answer computes the row of the prompt's last token itself */
		shares_a_page |= jobs[i].r.num_seqs > 1 && (jobs[i].r.num_prompt - 1) % page;
		jobs[i].r.keep = s->keep;
		EXPECT(t, cairn_engine_submit(e, &jobs[i].r) == 0);
	}
	run_verified(t, e);
	nothing_left(t, e);
	cairn_engine_stats(e, &st);
	for (int i = 0; i < s->num_jobs && is_ref(table); i++)
		check_job(t, n, &jobs[i], s->what);
	for (int i = 0; i < s->num_jobs; i++)
		EXPECT(t, jobs[i].answers[0].num_ids == s->max_new && jobs[i].answers[0].cached >= 0);
	/* Check that the situation under test has occurred. */
	if (s->shared >= 30)
		EXPECT(t,
		       (st.scheduler.hit_tokens >= whole * (s->num_jobs - 1)) == (s->opt.cache_grain >= 0));
	if (shares_a_page && !s->opt.num_pages)	/* scarce memory: one may be preempted before it writes */
		EXPECT(t, st.scheduler.moves[CAIRN_MOVE_COPY] > 0);
	if (!strncmp(s->what, "recompute", 9))
		EXPECT(t, st.scheduler.recomputed > 0 && st.scheduler.swapped == 0);
	if (!strncmp(s->what, "swap", 4))
		EXPECT(t, st.scheduler.swapped > 0 && st.scheduler.moves[CAIRN_MOVE_IN] > 0);
	if (s->keep)
		EXPECT(t, st.scheduler.moves[CAIRN_MOVE_OFFLOAD] > 0);
	EXPECT(t, st.layer_offloads == (by_layer ? st.scheduler.moves[CAIRN_MOVE_OFFLOAD] : 0));
	if (s->opt.disk_pages)
		EXPECT(t, st.scheduler.moves[CAIRN_MOVE_SPILL] > 0);
	cairn_engine_destroy(e);
out:
	free(jobs);
}

static void everywhere(struct cairn_test *t, const char *table, enum cairn_kv_form kv)
{
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;

	if (open_model_as(t, table, "llama2_tiny", kv, &impl, &g, &m))
		return;
	if (!naive_open_as(t, &n, g.dir, kv)) {
		for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
			one_setting(t, table, &settings[i], m, &n, &g);
	}
	/* The same with offload after the pass instead of by layer; then with plain
	 * copies, for a table without kv_move. */
	impl.stream_wait = NULL;
	for (size_t i = ARRAY_SIZE(settings) - 2; i < ARRAY_SIZE(settings); i++)
		one_setting(t, table, &settings[i], m, &n, &g);
	impl.kv_move = NULL;
	impl.pick_ids = NULL;
	for (size_t i = ARRAY_SIZE(settings) - 6; i < ARRAY_SIZE(settings); i++)
		one_setting(t, table, &settings[i], m, &n, &g);
	naive_close(&n);
	close_model(m, &g);
}

/*
 * A conversation: the second prompt is the first one, its answer and some more tokens. Its prefix is on the
 * device; or in host memory, after other requests have taken the device pages; or on disk, after they have
 * taken the host pages as well. The second prompt is submitted twice at once, so that the second copy finds
 * pages that the first is still fetching from the disk.
 */
static void conversation(struct cairn_test *t, const char *table, enum cairn_kv_form kv)
{
	struct cairn_engine_options opt = {
		ENGINE, .max_batch = 2, .max_rows = 32, .page_size = 4, .num_pages = 30, .host_pages = 48,
		.disk_pages = 200, .disk_dir = cairn_tmpdir(t), .max_passes = 4,
	};
	static const int others[] = { 0, 1, 4 };
	struct job *talk = calloc(1, sizeof(*talk)), *other = calloc(1, sizeof(*other));
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;

	if (open_model_as(t, table, "llama2_tiny", kv, &impl, &g, &m))
		goto out;
	if (naive_open_as(t, &n, g.dir, kv))
		goto out_model;
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		struct cairn_engine_stats before, st;
		struct cairn_engine *e;
		int len, whole;

		if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
			break;
		make_job(t, &g, talk, 21, 12, 10);
		talk->r.keep = 1;
		EXPECT(t, cairn_engine_submit(e, &talk->r) == 0);
		run_verified(t, e);
		EXPECT(t, talk->answers[0].num_ids == 10);
		for (int k = 0; k < others[i]; k++) {
			make_job(t, &g, other, 0, 90, 20);
			other->r.keep = 1;
			EXPECT(t, cairn_engine_submit(e, &other->r) == 0);
			run_verified(t, e);
		}
		cairn_engine_stats(e, &before);
		len = 33 + 10;
		memcpy(talk->prompt + 33, talk->answers[0].ids, 10 * sizeof(*talk->prompt));
		for (int k = 0; k < 5; k++)
			talk->prompt[len++] = 7 + k;
		talk->r.num_prompt = len;
		talk->r.ctx = memset(talk->answers, 0, sizeof(talk->answers));
		make_job(t, &g, other, 0, len, 10);
		memcpy(other->prompt, talk->prompt, (size_t)len * sizeof(*talk->prompt));
		EXPECT(t, cairn_engine_submit(e, &talk->r) == 0 && cairn_engine_submit(e, &other->r) == 0);
		run_verified(t, e);
		nothing_left(t, e);
		if (is_ref(table)) {
			check_job(t, &n, talk, "conversation");
			check_job(t, &n, other, "conversation, again");
		}
		cairn_engine_stats(e, &st);
		whole = (33 + 10 - 1) / 4 * 4;	/* the last token drawn was never computed */
		if (!EXPECT(t, talk->answers[0].cached >= whole))
			cairn_note(t, "%d others: %d tokens found", others[i], talk->answers[0].cached);
		EXPECT(t, (st.scheduler.loaded_tokens > before.scheduler.loaded_tokens) == (others[i] > 0));
		EXPECT(t, (st.scheduler.moves[CAIRN_MOVE_FETCH] > 0) == (others[i] > 1));
		cairn_engine_destroy(e);
	}
out_model:
	naive_close(&n);
	close_model(m, &g);
out:
	free(talk);
	free(other);
}

/* Requests with different salts do not find each other's prefixes. */
static void salts(struct cairn_test *t)
{
	struct cairn_engine_options opt = { ENGINE, .max_batch = 2, .page_size = 4 };
	struct cairn_request r;
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	struct answer a[4];

	if (open_model(t, "cpu", "llama2_tiny", &impl, &g, &m))
		return;
	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		for (int i = 0; i < 4; i++) {
			r = request(&g, 40, 4, &a[i]);
			r.salt.lo = i & 1;
			EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
			EXPECT(t, a[i].num_ids == 4 && !memcmp(a[i].ids, a[0].ids, sizeof(a[i].ids)));
		}
		EXPECT(t, a[0].cached == 0 && a[1].cached == 0);
		EXPECT(t, a[2].cached == 39 && a[3].cached == 39);
		cairn_engine_destroy(e);
	}
	close_model(m, &g);
}

static void bad_tiers(struct cairn_test *t)
{
	static const struct { struct cairn_engine_options opt; const char *text; } rows[] = {
		{ { ENGINE, .max_batch = 1, .disk_pages = 4 }, "disk tier needs a host tier" },
		{ { ENGINE, .max_batch = 1, .host_pages = 4, .disk_pages = 4, .disk_dir = "/no/such/dir" },
		  "disk_dir: /no/such/dir" },
		{ { ENGINE, .max_batch = 1, .host_pages = -1 }, "host_pages: -1" },
		{ { ENGINE, .max_batch = 1, .cache_grain = 3 }, "grain: is 3" },
	};
	struct cairn_engine *e = NULL;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "cpu", "llama2_tiny", &impl, &g, &m))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		EXPECT(t, cairn_engine_create(&e, m, &rows[i].opt) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].text);
	}
	EXPECT(t, e == NULL);
	close_model(m, &g);
}

#define TABLE(table) \
	static void everywhere_##table(struct cairn_test *t) { everywhere(t, #table, CAIRN_KV_PLAIN); } \
	static void conversation_##table(struct cairn_test *t) { conversation(t, #table, CAIRN_KV_PLAIN); } \
	static void everywhere_fp8_##table(struct cairn_test *t) { everywhere(t, #table, CAIRN_KV_FP8); } \
	static void conversation_fp8_##table(struct cairn_test *t) { conversation(t, #table, CAIRN_KV_FP8); }
TABLE(ref)
TABLE(cpu)
TABLE(cuda)
TABLE(late)
TABLE(late_ref)
TABLE(late_ref1)
#define UNITS(table) \
	{ "everywhere_" #table, everywhere_##table }, { "conversation_" #table, conversation_##table }, \
	{ "everywhere_fp8_" #table, everywhere_fp8_##table }, \
	{ "conversation_fp8_" #table, conversation_fp8_##table }

static const struct cairn_unit units[] = {
	UNITS(ref), UNITS(cpu), UNITS(cuda), UNITS(late), UNITS(late_ref), UNITS(late_ref1),
	{ "salts", salts },
	{ "bad_tiers", bad_tiers },
};

const struct cairn_family cairn_engine_kv_family = {
	.stage = "serving",
	.name = "engine_kv",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 62,
};
