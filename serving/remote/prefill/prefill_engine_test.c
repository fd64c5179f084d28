// SPDX-License-Identifier: Apache-2.0
/*
 * prefill_engine_test - an engine with prefill workers gives the answers of one without, bit by bit
 *
 * The requests are of all kinds: prompts shorter and longer than the bound, shared prefixes, several answers,
 * beams, cancelled ones. The workers are threads of this process; one of them is lost again and again. With
 * table late, whose memory is a device's, they are processes, because the table has no threads; and so are
 * workers in stages, which have several.
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "conformance/harness.h"
#include "conformance/tables/program.h"
#include "serving/engine/engine_test.h"
#include "serving/remote/lead/lead.h"
#include "serving/remote/member/model_digest.h"
#include "serving/remote/prefill/prefill_worker.h"
#include "serving/remote/pull/run.h"

#define JOBS	16
#define ANSWERS	3
#define PROMPT	120
#define NEW	8
#define MOST	24		/* workers that a test may start */

struct crowd {
	int32_t prompts[JOBS][PROMPT];
	struct answer answers[JOBS][ANSWERS];
	int lose;			/* workers are lost */
};

struct helper {
	pthread_t thread;
	struct cairn_prefill_worker_options o;
};

/* The table is cpu's, but acts as a device's, and tcp as a transport of devices. */
static int acts_as_device;

static struct helpers {
	struct cairn_lead *lead;
	char join[32];
	struct helper list[MOST];
	int num;
	int stages;			/* --pp of each worker, a process per stage; 0: it has all layers */
	int kills;			/* the second stage is killed before the first prompt */
} helpers;

static void *help(void *arg)
{
	cairn_prefill_worker_run(&((struct helper *)arg)->o);
	return NULL;
}

static void add_helper(struct cairn_model *m)
{
	struct helper *h = &helpers.list[helpers.num];

	if (helpers.num == MOST)
		return;
	h->o = (struct cairn_prefill_worker_options){
		.member = { .join = helpers.join, .join_ms = 5000 }, .model = m,
	};
	helpers.num += !pthread_create(&h->thread, NULL, help, h);
}

/*
 * Opens a lead with two workers, or on a device one, in a process of its own. dir: the model's. transport:
 * that of a process; NULL: tcp. Returns 0 if there is none.
 */
static int open_helpers(struct cairn_test *t, struct cairn_model *m, const char *dir, const char *transport)
{
	static const char *options[9];		/* the lead reads them as long as it starts workers */
	static char path[PATH_MAX], model[PATH_MAX];
	const int starts = (on_device(m->impl) && !acts_as_device) || helpers.stages;
	struct cairn_lead_options o = {
		.prefill = starts ? 1 : 2, .table = m->impl->name, .beat_ms = 20000,
		.listen = starts ? NULL : "127.0.0.1:0", .impl = starts ? path : NULL,
		.model_options = options,
	};
	static char stages[8];
	int ret, n = 2;

	snprintf(path, sizeof(path), "%s", m->impl->name);
	snprintf(model, sizeof(model), "%s", dir);
	options[0] = "--model";
	options[1] = model;
	if (helpers.stages) {
		snprintf(stages, sizeof(stages), "%d", helpers.stages);
		options[n++] = "--pp";
		options[n++] = stages;
		options[n++] = "--pp-chunk";
		options[n++] = "8";
		/* the digests of stages must make that of the whole */
		EXPECT(t, !cairn_model_digest(m, &o.weights));
	}
	if (transport) {
		options[n++] = "--transport";
		options[n++] = transport;
	}
	options[n] = NULL;
	if (!strcmp(m->impl->name, "late") && !EXPECT(t, cairn_beside("late_plugin.so", path, sizeof(path))))
		return 0;
	ret = cairn_lead_create(&helpers.lead, &o);

	helpers.num = 0;
	if (ret == -EOPNOTSUPP)
		cairn_skip(t, "%s", cairn_last_error());
	else
		EXPECT(t, ret == 0);
	if (ret)
		return 0;
	if (starts)
		return 1;
	snprintf(helpers.join, sizeof(helpers.join), "127.0.0.1:%d", cairn_lead_port(helpers.lead));
	add_helper(m);
	add_helper(m);
	return 1;
}

static void close_helpers(void)
{
	cairn_lead_destroy(helpers.lead);
	for (int i = 0; i < helpers.num; i++)
		pthread_join(helpers.list[i].thread, NULL);
}

static struct cairn_request job(struct crowd *c, int i)
{
	const struct golden none = { 0 };
	struct cairn_request r = request(&none, PROMPT - 11 * (i % 8), NEW, c->answers[i]);

	r.id = 100 + (uint64_t)i;
	r.prompt = c->prompts[i];
	r.ignore_eos = 1;
	r.sampling.num_logprobs = i % 8 == 4 ? 0 : 5;
	r.sampling.seed = (uint64_t)i;
	r.sampling.temperature = i % 3 ? 1 : 0;
	if (i % 8 == 1)
		r.num_seqs = ANSWERS;
	if (i % 8 == 4) {
		r.beam_width = ANSWERS;
		r.num_seqs = 2;
		r.sampling.temperature = 0;
	}
	if (i % 8 == 5)
		r.salt.lo = (uint64_t)i;
	for (int k = 0; k < ANSWERS; k++)
		memset(&c->answers[i][k], 0, sizeof(c->answers[i][k]));
	return r;
}

static void lose_one(struct cairn_model *m, int number)
{
	add_helper(m);
	cairn_error(EIO, "by the test");
	cairn_lead_report(helpers.lead, 1 + number % 2);
}

/* Kills the one child process of the worker. */
static void kill_stage(struct cairn_test *t)
{
	const int worker = cairn_lead_pid(helpers.lead, 1);
	char path[64];
	int pid = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", worker, worker);
	f = fopen(path, "r");
	if (EXPECT(t, f != NULL)) {
		EXPECT(t, fscanf(f, "%d", &pid) == 1 && !kill(pid, SIGKILL));
		fclose(f);
	}
}

static void await_workers(struct cairn_test *t, struct cairn_engine *e,
			  const struct cairn_engine_options *opt, struct cairn_engine_stats *stats)
{
	for (int i = 0; i < 20000 && opt->prefill; i++) {
		cairn_engine_stats(e, stats);
		if (stats->pull.workers == cairn_lead_prefill(opt->prefill))
			break;
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	}
	EXPECT(t, !opt->prefill || stats->pull.workers == cairn_lead_prefill(opt->prefill));
}

static int run_all(struct cairn_test *t, struct crowd *c, struct cairn_model *m,
		   const struct cairn_engine_options *opt, struct cairn_engine_stats *stats)
{
	struct cairn_engine *e;
	int busy = 1, next = 0, losses = 0, ret = cairn_engine_create(&e, m, opt);

	if (!EXPECT(t, ret == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return ret;
	}
	await_workers(t, e, opt, stats);
	if (opt->prefill && helpers.kills)
		kill_stage(t);
	for (int step = 0; !ret && (busy || next < JOBS); step++) {
		for (; next < JOBS && 2 * next <= step + 3; next++) {
			struct cairn_request r = job(c, next);

			EXPECT(t, cairn_engine_submit(e, &r) == 0);
			if (next % 8 == 6)
				EXPECT(t, cairn_engine_cancel(e, r.id) == 0);
			if (c->lose && next % 5 == 4)
				lose_one(m, losses++);
		}
		ret = cairn_engine_step(e, &busy);
	}
	if (!EXPECT(t, ret == 0 && cairn_engine_verify(e) == 0))
		cairn_note(t, "%s", cairn_last_error());
	cairn_engine_stats(e, stats);
	cairn_engine_destroy(e);
	return ret;
}

/*
 * On a GPU a row's bits depend on the pass that it is part of, and the worker's passes are not those of the
 * engine. The first token's log-probability is then nearly the same, unless another token was drawn, which
 * happens where rounding decides.
 */
#define CLOSE	0.05

static void compare_nearly(struct cairn_test *t, const struct crowd *want, const struct crowd *got)
{
	int same = 0, all = 0;

	for (int i = 0; i < JOBS; i++) {
		for (int k = 0; k < ANSWERS && i % 8 != 4 && i % 8 != 6; k++) {
			const struct answer *a = &want->answers[i][k], *b = &got->answers[i][k];

			if (!EXPECT(t, a->num_ids == b->num_ids))
				cairn_note(t, "job %d, answer %d", i, k);
			all += a->num_ids > 0;
			if (!a->num_ids || a->ids[0] != b->ids[0])
				continue;
			same++;
			if (!EXPECT(t, fabs((double)a->logprob[0] - (double)b->logprob[0]) < CLOSE))
				cairn_note(t, "job %d, answer %d: %g, not %g", i, k, (double)b->logprob[0],
					   (double)a->logprob[0]);
		}
	}
	EXPECT(t, all > 0 && same >= all * 9 / 10);
}

static void compare(struct cairn_test *t, const struct crowd *want, const struct crowd *got)
{
	for (int i = 0; i < JOBS; i++) {
		for (int k = 0; k < ANSWERS && i % 8 != 6; k++) {
			const struct answer *a = &want->answers[i][k], *b = &got->answers[i][k];

			if (!EXPECT(t, a->num_ids == b->num_ids && !memcmp(a->ids, b->ids, sizeof(a->ids)) &&
				    !memcmp(a->logprob, b->logprob, sizeof(a->logprob))))
				cairn_note(t, "job %d, answer %d", i, k);
		}
	}
}

static void make_prompts(struct cairn_test *t, struct crowd *c)
{
	for (int i = 0; i < JOBS; i++)
		for (int k = 0; k < PROMPT; k++)	/* some share a prefix */
			c->prompts[i][k] = k < i % 3 * 24 ? 3 + k : 3 + (int32_t)(cairn_rand(t) % 180);
}

/* "embedded" is a whole checkpoint, with a tokenizer, as processes need it. */
static int open_any(struct cairn_test *t, const char *table, const char *model, enum cairn_kv_form kv,
		    struct cairn_impl *impl, struct golden *g, struct cairn_model **m)
{
	if (strcmp(model, "embedded"))
		return open_model_as(t, table, model, kv, impl, g, m);
	*g = (struct golden){ 0 };
	snprintf(g->dir, sizeof(g->dir), "%.2000s/serving/embedded", cairn_data_dir());
	if (open_table(t, table, impl))
		return -1;
	return EXPECT(t, !cairn_model_load_as(m, impl, g->dir, CAIRN_WEIGHTS_PLAIN, kv, NULL, NULL)) ? 0 : -1;
}

/* lose: workers are lost; 1: by the test, again and again */
static void same_model(struct cairn_test *t, const char *table, const char *model, enum cairn_kv_form kv,
		       int pages, int lose, const char *transport)
{
	struct crowd *want = calloc(2, sizeof(*want)), *got = want + 1;
	struct cairn_engine_options opt = {
		.max_context = 160, .decode = CAIRN_DECODE_UNFUSED, .max_batch = 6, .page_size = 4,
		.max_rows = 24, .num_pages = 100, .expected_new = 4, .max_passes = 4,
	};
	struct cairn_engine_stats stats = { 0 };
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (!EXPECT(t, want != NULL) || open_any(t, table, model, kv, &impl, &g, &m))
		goto out;
	make_prompts(t, want);
	memcpy(got->prompts, want->prompts, sizeof(got->prompts));
	got->lose = lose == 1;
	opt.num_pages = pages;
	if (acts_as_device)
		impl.flags &= ~CAIRN_IMPL_HOST_MEM;
	if (!run_all(t, want, m, &opt, &stats) && open_helpers(t, m, g.dir, transport)) {
		opt.prefill = helpers.lead;
		run_all(t, got, m, &opt, &stats);
		close_helpers();
		if (strcmp(table, "cuda"))
			compare(t, want, got);
		else
			compare_nearly(t, want, got);
		/* on a busy machine every worker may be lost before it has sent a prompt */
		EXPECT(t, stats.pull.begun > 0);
		EXPECT(t, lose || (stats.pull.completed > 0 && stats.scheduler.imported_tokens > 0));
		EXPECT(t, !stats.pull.jobs && !stats.pull.checksum_errors);
		EXPECT(t, lose || !stats.pull.failed);
		EXPECT(t, !helpers.kills || stats.pull.failed > 0);
		EXPECT(t, stats.pull.begun == stats.pull.completed + stats.pull.failed + stats.pull.dropped);
		cairn_note(t, "%s, %s: %lld prompts pulled, %lld tokens imported, %lld computed here after "
			   "all", table, model, (long long)stats.pull.completed,
			   (long long)stats.scheduler.imported_tokens, (long long)stats.pulls_recomputed);
	}
	if (strcmp(model, "embedded"))
		close_golden(&g);
	cairn_model_free(m);
out:
	free(want);
}

#ifdef CAIRN_SANITIZED
static const int is_slow = 1;
#else
static const int is_slow;
#endif

static void same_answers(struct cairn_test *t)
{
	same_model(t, "cpu", "llama3_tiny", CAIRN_KV_PLAIN, 200, 0, NULL);
	if (is_slow)
		return;
	same_model(t, "cpu", "llama3_tiny", CAIRN_KV_FP8, 200, 0, NULL);
	same_model(t, "cpu", "mistral_tiny", CAIRN_KV_PLAIN, 100, 0, NULL);	/* windows; pages are short */
	same_model(t, "cpu", "gemma2_tiny", CAIRN_KV_PLAIN, 200, 0, NULL);		/* 3 layers */
}

/* The worker copies layers from its device's memory; the pages that come go to the device's memory here. */
static void same_on_device(struct cairn_test *t)
{
	same_model(t, "late", "embedded", CAIRN_KV_PLAIN, 200, 0, NULL);
}

/* Runs one request to its end. */
static void run_one(struct cairn_test *t, struct cairn_engine *e, const struct cairn_request *r)
{
	int busy = 1, ret = cairn_engine_submit(e, r);

	while (!ret && busy)
		ret = cairn_engine_step(e, &busy);
	if (!EXPECT(t, ret == 0 && cairn_engine_verify(e) == 0))
		cairn_note(t, "%s", cairn_last_error());
}

/*
 * A short prompt ends, and its pages are still being copied to host memory behind its pass. A longer one is
 * pulled into them. The short one is then loaded from host memory, and must have its own keys.
 */
static void moves_come_first(struct cairn_test *t)
{
	static struct crowd c;
	struct cairn_engine_options opt = {
		.max_context = 160, .decode = CAIRN_DECODE_UNFUSED, .max_batch = 6, .page_size = 4,
		.max_rows = 128, .num_pages = 34, .host_pages = 64, .prefill_min = 100,
	};
	const struct golden none = { 0 };
	struct cairn_request shorter, longer;
	struct cairn_engine_stats stats = { 0 };
	struct cairn_engine *e = NULL;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_any(t, "late", "embedded", CAIRN_KV_PLAIN, &impl, &g, &m))
		return;
	if (!open_helpers(t, m, g.dir, NULL))
		goto out;
	memset(&c, 0, sizeof(c));
	make_prompts(t, &c);
	opt.prefill = helpers.lead;
	if (EXPECT(t, cairn_engine_create(&e, m, &opt) == 0)) {
		await_workers(t, e, &opt, &stats);
		for (int i = 0; i < 2; i++) {
			shorter = request(&none, 90, 1, c.answers[i]);
			shorter.id = 1 + (uint64_t)i;
			shorter.prompt = c.prompts[0];
			shorter.ignore_eos = shorter.keep = 1;
			shorter.sampling.num_logprobs = 5;
			run_one(t, e, &shorter);
			if (i)
				break;
			longer = request(&none, PROMPT, 1, c.answers[2]);
			longer.id = 9;
			longer.prompt = c.prompts[1];
			longer.ignore_eos = 1;
			run_one(t, e, &longer);
			cairn_engine_stats(e, &stats);
			EXPECT(t, stats.pull.completed == 1 && stats.scheduler.evicted_pages > 0);
		}
		cairn_engine_stats(e, &stats);
		EXPECT(t, stats.scheduler.moves[CAIRN_MOVE_IN] > 0);
		EXPECT(t, c.answers[0]->ids[0] == c.answers[1]->ids[0] &&
				  c.answers[0]->logprob[0] == c.answers[1]->logprob[0]);
		cairn_engine_destroy(e);
	}
	close_helpers();
out:
	cairn_model_free(m);
}

/* Runs go from the worker's device memory to a ring in the server's, whose sums are the transport's. */
static void same_between_devices(struct cairn_test *t)
{
	acts_as_device = 1;
	cairn_run_as_device = "tcp";
	same_model(t, "cpu", "llama3_tiny", CAIRN_KV_PLAIN, 200, 0, NULL);
	same_model(t, "cpu", "llama3_tiny", CAIRN_KV_PLAIN, 60, 1, NULL);
	cairn_run_as_device = "";
	acts_as_device = 0;
}

/* One worker is two processes, and a prompt passes through them in chunks. */
static void same_in_stages(struct cairn_test *t)
{
	helpers.stages = 2;
	same_model(t, "cpu", "embedded", CAIRN_KV_PLAIN, 200, 0, NULL);
	helpers.kills = 1;
	same_model(t, "cpu", "embedded", CAIRN_KV_PLAIN, 200, 2, NULL);
	helpers.stages = helpers.kills = 0;
}

static void same_on_cuda(struct cairn_test *t)
{
	same_model(t, "cuda", "embedded", CAIRN_KV_PLAIN, 200, 0, NULL);
	same_model(t, "cuda", "embedded", CAIRN_KV_PLAIN, 200, 0, "nvlink");
}

static void with_losses(struct cairn_test *t)
{
	same_model(t, "cpu", "llama3_tiny", CAIRN_KV_PLAIN, 60, 1, NULL);
	if (!is_slow)
		same_model(t, "cpu", "llama3_tiny", CAIRN_KV_PLAIN, 200, 1, NULL);
}

static void refused(struct cairn_test *t)
{
	struct cairn_engine_options opt = { .max_context = 64, .max_batch = 2, .page_size = 4 };
	struct cairn_engine *e;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		return;
	opt.prefill = (struct cairn_lead *)&opt;	/* is not touched */
	opt.repeatable = 1;
	EXPECT(t, cairn_engine_create(&e, m, &opt) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "engine: repeatable: does not go with prefill_workers");
	opt.repeatable = 0;
	opt.cache_grain = -1;
	EXPECT(t, cairn_engine_create(&e, m, &opt) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "engine: cache_grain: prefill_workers need a prefix tree");
	close_model(m, &g);
}

static const struct cairn_unit units[] = {
	{ "same_answers", same_answers }, { "same_on_device", same_on_device },
	{ "moves_come_first", moves_come_first },
	{ "same_in_stages", same_in_stages }, { "same_between_devices", same_between_devices },
	{ "same_on_cuda", same_on_cuda }, { "with_losses", with_losses }, { "refused", refused },
};

const struct cairn_family cairn_prefill_engine_family = {
	.stage = "serving", .name = "prefill_engine", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 5, .waits = 1,
};
