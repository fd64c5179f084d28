// SPDX-License-Identifier: Apache-2.0
/*
 * disagg_pull_test - measures prompts that a prefill worker computes: rows of `cairn bench`
 *
 *   cuda_tcp, cuda_nvlink, cuda_nvlink_b32
 *	llama31-8b with random weights, bf16; the worker is a process on the next GPU. b32: others are 32
 *	first_ms	from submitting a prompt of 8192 tokens to its first token, if the server computes it
 *	pulled_ms	the same, if the worker computes it and the server pulls its keys and values
 *	exposed_pct	what pulling adds: (pulled_ms - first_ms) / first_ms
 *	alone_p99_ms	the time between two tokens of 16 requests that decode beside nothing else, with
 *			about 1024 tokens each: the 99th of 100
 *	beside_p99_ms	the same while such prompts follow one another at the worker; slower_pct. pulls: of
 *			these prompts, those that were pulled
 *	cached_p99_ms	the same beside as many such prompts of which all but the last page is cached, so that
 *			nothing is pulled: what computing their last rows costs the others
 *	The first two are medians of 5 prompts.
 *
 * The unit `small` makes the same measurement with a tiny model on the host, where figures say nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/harness.h"
#include "primitives/base/error.h"
#include "rdma/transport/transport.h"
#include "serving/base/clock.h"
#include "serving/bench/load_test.h"
#include "serving/engine/engine_test.h"
#include "serving/remote/lead/lead.h"

enum { TRIALS = 5, MOST_TRIALS = 100, MOST_OTHERS = 32, MOST_SAMPLES = 1 << 15, MOST_PROMPT = 8192 };

#define JOIN_MS	60000

struct sizes {
	int32_t prompt, others, context, new_tokens;	/* others: requests that decode; theirs */
	int32_t rows, page;
};

/* A request whose tokens are timed. */
struct timed {
	int64_t last;			/* when its last token came, or it was submitted */
	int64_t first_ns;		/* from there to the first token; 0: none has come */
	struct samples *samples;	/* of the times between tokens; NULL: none are taken */
};

struct samples {
	double ms[MOST_SAMPLES];
	int num;
};

struct setting {
	struct cairn_model *m;
	struct cairn_engine *e;
	const struct sizes *sizes;
	int32_t *prompt;
	int32_t *cached;		/* a prompt that is in the cache, for the next ones; or NULL */
	uint64_t num_requests;
};

static int take_time(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct timed *r = ctx;
	const int64_t now = cairn_clock_ns();

	(void)index;
	(void)token;
	if (r->first_ns && r->samples && r->samples->num < MOST_SAMPLES)
		r->samples->ms[r->samples->num++] = (double)(now - r->last) * 1e-6;
	if (!r->first_ns)
		r->first_ns = now - r->last;
	r->last = now;
	return 0;
}

/*
 * Submits a request with a new random prompt. If s->cached is set, a prompt of full length repeats it
 * except for the last page.
 */
static int submit(struct cairn_test *t, struct setting *s, struct timed *r, int32_t tokens,
		  int32_t new_tokens)
{
	struct cairn_request req = {
		.id = ++s->num_requests, .prompt = s->prompt, .num_prompt = tokens,
		.max_new_tokens = new_tokens, .ignore_eos = 1, .sampling = { .top_p = 1 },
		.on_token = take_time, .ctx = r,
	};
	int32_t *to = s->prompt, first = 0;

	if (tokens == s->sizes->prompt && s->cached) {
		req.prompt = to = s->cached;
		first = tokens - s->sizes->page;
	}
	for (int32_t i = first; i < tokens; i++)
		to[i] = (int32_t)(cairn_rand(t) % (uint64_t)s->m->config.vocab_size);
	r->first_ns = 0;
	r->last = cairn_clock_ns();
	return cairn_engine_submit(s->e, &req);
}

static int by_ms(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int64_t num_pulled(const struct setting *s)
{
	struct cairn_engine_stats stats;

	cairn_engine_stats(s->e, &stats);
	return stats.pull.completed;
}

/*
 * Returns the median of the times to the first token, ms; 0: it failed. pulled: prompts that the server
 * computes because the worker has not cleared away the last ones yet do not count.
 */
static double first_ms(struct cairn_test *t, struct setting *s, int pulled)
{
	double ms[TRIALS];
	int num = -1;			/* the first one is a warm-up */

	for (int i = 0; num < TRIALS; i++) {
		const int64_t before = num_pulled(s);
		struct timed r = { 0 };

		if (!EXPECT(t, i < MOST_TRIALS) || !EXPECT(t, !submit(t, s, &r, s->sizes->prompt, 2)) ||
		    !EXPECT(t, !cairn_engine_run(s->e)))
			return 0;
		if (pulled && num_pulled(s) == before)
			continue;
		if (num >= 0)
			ms[num] = (double)r.first_ns * 1e-6;
		num++;
	}
	qsort(ms, TRIALS, sizeof(ms[0]), by_ms);
	return ms[TRIALS / 2];
}

/*
 * Lets the other requests decode. If prompts is not NULL, submits one prompt after another meanwhile, at
 * least every_ms apart, and counts them in *prompts. Returns the p99 of the time between two tokens of the
 * others in ms, measured once all of them decode; 0 if it failed.
 */
static double others_ms(struct cairn_test *t, struct setting *s, struct samples *samples, double every_ms,
			int *prompts)
{
	static struct timed others[MOST_OTHERS], prompt;
	const struct sizes *z = s->sizes;
	/* the last prompts would run beside fewer of the others */
	const int last = z->others * z->new_tokens * 3 / 4;
	int64_t next = 0;
	int busy = 1, begun = 0, ret = 0;

	samples->num = 0;
	for (int i = 0; i < z->others && !ret; i++) {
		others[i] = (struct timed){ 0 };
		ret = submit(t, s, &others[i], z->context, z->new_tokens);
	}
	prompt.first_ns = 1;
	while (!ret && busy) {
		ret = cairn_engine_step(s->e, &busy);
		if (!begun) {
			begun = 1;
			for (int i = 0; i < z->others; i++)
				begun &= others[i].first_ns != 0;
			for (int i = 0; begun && i < z->others; i++)
				others[i].samples = samples;
		}
		if (!ret && begun && prompts && prompt.first_ns && samples->num < last &&
		    cairn_clock_ns() >= next) {
			next = cairn_clock_ns() + (int64_t)(every_ms * 1e6);
			ret = submit(t, s, &prompt, z->prompt, 1);	/* its only token */
			++*prompts;
			busy = 1;
		}
	}
	if (!EXPECT(t, !ret && samples->num > 100))
		return 0;
	qsort(samples->ms, (size_t)samples->num, sizeof(samples->ms[0]), by_ms);
	return samples->ms[samples->num * 99 / 100];
}

static int open_engine(struct setting *s, struct cairn_lead *lead)
{
	const struct sizes *z = s->sizes;
	const int32_t most = z->prompt + 16;
	const struct cairn_engine_options opt = {
		.max_context = most > z->context + z->new_tokens ? most : z->context + z->new_tokens,
		.max_batch = z->others + 2, .max_rows = z->rows, .page_size = z->page, .prefill = lead,
		.num_pages = (4 * most + z->others * (z->context + z->new_tokens + z->page)) / z->page,
		.max_passes = 4,
	};

	return cairn_engine_create(&s->e, s->m, &opt);
}

/* Waits until the worker takes prompts. */
static int await_worker(const struct setting *s)
{
	const int64_t end = cairn_clock_ns() + JOIN_MS * 1000000ll;
	struct cairn_engine_stats stats;

	do {
		nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
		cairn_engine_stats(s->e, &stats);
	} while (!stats.pull.workers && cairn_clock_ns() < end);
	return stats.pull.workers ? 0 : cairn_error(ETIMEDOUT, "no worker joins");
}

struct figures {
	double first, pulled, alone, beside, cached;	/* ms */
	int prompts, pulls;
};

/* Measures the others' tokens beside prompts that are nearly all cached, which come as often as pulls end. */
static double beside_cached_ms(struct cairn_test *t, struct setting *s, struct samples *samples,
			       double every_ms)
{
	static int32_t cached[MOST_PROMPT];
	struct timed r = { 0 };
	int prompts = 0;
	double ms;

	if (!EXPECT(t, !submit(t, s, &r, s->sizes->prompt, 1)) || !EXPECT(t, !cairn_engine_run(s->e)))
		return 0;
	memcpy(cached, s->prompt, sizeof(cached[0]) * (size_t)s->sizes->prompt);
	s->cached = cached;
	ms = others_ms(t, s, samples, every_ms, &prompts);
	s->cached = NULL;
	return ms;
}

/* option, value: what names the model to the worker. Returns whether all was measured. */
static int measure(struct cairn_test *t, struct setting *s, const char *option, const char *value,
		   const char *transport, struct figures *f)
{
	const char *options[] = { option, value, "--transport", transport, NULL };
	const int on_gpu = !(s->m->impl->flags & CAIRN_IMPL_HOST_MEM);
	const struct cairn_lead_options o = {
		.prefill = 1, .table = s->m->impl->name, .beat_ms = 20000, .join_ms = JOIN_MS,
		.model_options = options, .first_device = 1,
		.num_devices = on_gpu ? cairn_transport_gpus() : 0,
	};
	struct samples *samples = calloc(1, sizeof(*samples));
	struct cairn_engine_stats stats = { 0 };
	struct cairn_lead *lead = NULL;
	int64_t before;
	int ret;

	memset(f, 0, sizeof(*f));
	if (!EXPECT(t, samples && !open_engine(s, NULL)))
		goto out;
	f->first = first_ms(t, s, 0);
	f->alone = others_ms(t, s, samples, 0, NULL);
	cairn_engine_destroy(s->e);
	ret = cairn_lead_create(&lead, &o);
	if (ret == -EOPNOTSUPP) {
		cairn_skip(t, "%s", cairn_last_error());
		goto out;
	}
	if (!EXPECT(t, !ret) || !EXPECT(t, !open_engine(s, lead)))
		goto out;
	if (EXPECT(t, !await_worker(s))) {
		f->pulled = first_ms(t, s, 1);
		before = num_pulled(s);
		f->beside = others_ms(t, s, samples, 0, &f->prompts);
		cairn_engine_stats(s->e, &stats);
		f->pulls = (int)(stats.pull.completed - before);
		f->cached = beside_cached_ms(t, s, samples, f->pulled);
		EXPECT(t, f->pulls > 0 && !stats.pull.failed);
	}
	cairn_engine_destroy(s->e);
out:
	cairn_lead_destroy(lead);
	free(samples);
	return f->first > 0 && f->alone > 0 && f->pulled > 0 && f->beside > 0 && f->cached > 0;
}

static void cuda(struct cairn_test *t)
{
	static const struct { const char *name, *transport; int32_t others; } rows[] = {
		{ "cuda_tcp", "tcp", 16 }, { "cuda_nvlink", "nvlink", 16 },
		{ "cuda_nvlink_b32", "nvlink", 32 },
	};
	static int32_t prompt[MOST_PROMPT];
	struct sizes sizes = { .prompt = MOST_PROMPT, .context = 1024, .new_tokens = 800, .rows = 2048,
			       .page = 16 };
	struct setting s = { .sizes = &sizes, .prompt = prompt };
	struct cairn_impl impl;

	if (cairn_transport_gpus() < 2) {
		cairn_skip(t, "needs two CUDA devices");
		return;
	}
	if (load_open(t, "llama31-8b", &impl, &s.m))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct figures f;

		sizes.others = rows[i].others;
		if (!measure(t, &s, "--shape", "llama31-8b", rows[i].transport, &f))
			continue;
		cairn_row(t, rows[i].name, "cuda", "\"link\":\"%s\",\"prompt_tokens\":%d,\"first_ms\":%.2f,"
			  "\"pulled_ms\":%.2f,\"exposed_pct\":%.1f,\"others\":%d,\"prompts\":%d,"
			  "\"pulls\":%d,\"alone_p99_ms\":%.3f,\"beside_p99_ms\":%.3f,\"slower_pct\":%.1f,"
			  "\"cached_p99_ms\":%.3f",
			  rows[i].transport, sizes.prompt, f.first, f.pulled, 100 * (f.pulled / f.first - 1),
			  sizes.others, f.prompts, f.pulls, f.alone, f.beside,
			  100 * (f.beside / f.alone - 1), f.cached);
	}
	cairn_model_free(s.m);
}

static void small(struct cairn_test *t)
{
	static const struct sizes sizes = { .prompt = 96, .others = 2, .context = 16, .new_tokens = 100,
					    .rows = 24, .page = 4 };
	static int32_t prompt[96];
	struct setting s = { .sizes = &sizes, .prompt = prompt };
	struct cairn_impl impl;
	struct figures f;
	struct golden g;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &s.m))
		return;
	if (measure(t, &s, "--model", g.dir, "tcp", &f))
		EXPECT(t, f.pulls <= f.prompts);
	close_model(s.m, &g);
}

static const struct cairn_unit units[] = { { "small", small } };
static const struct cairn_unit measures[] = { { "cuda", cuda } };

const struct cairn_family cairn_disagg_pull_family = {
	.stage = "serving", .name = "disagg_pull", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures), .waits = 1,
};
