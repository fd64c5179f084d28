// SPDX-License-Identifier: Apache-2.0
/* bench_serve_stats - computes percentiles and throughput and prints the table and the record */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/bench/bench_serve.h"

const char *const bench_outcome_names[BENCH_NUM_OUTCOMES] = {
	"not sent", "ok",       "status",   "error in the stream", "no connection", "cut short", "no [DONE]",
	"no HTTP",  "no event", "no token", "tokens lost",         "timeout",
};
static const char *const keys[BENCH_NUM_OUTCOMES] = {
	"unsent",  "ok",       "status",    "event", "connect", "cut",
	"no_done", "bad_http", "bad_event", "empty", "lost",    "timeout",
};

int bench_sample(struct bench_samples *s, double v)
{
	if (s->n == s->cap) {
		size_t cap = s->cap ? 2 * s->cap : 4096;
		double *grown = realloc(s->v, cap * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "bench serve: no memory");
		s->v = grown;
		s->cap = cap;
	}
	s->v[s->n++] = v;
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double percentile(const double *sorted, size_t n, double p)
{
	double at = p * (double)(n - 1);
	size_t below = (size_t)at;

	if (below + 1 >= n)
		return sorted[n - 1];
	return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

void bench_summarise(double *v, size_t n, struct bench_summary *out)
{
	double sum = 0;

	memset(out, 0, sizeof(*out));
	if (!n)
		return;
	qsort(v, n, sizeof(*v), by_value);
	for (size_t i = 0; i < n; i++)
		sum += v[i];
	*out = (struct bench_summary) {
		.n = n,
		.mean = sum / (double)n,
		.min = v[0],
		.max = v[n - 1],
		.p50 = percentile(v, n, 0.5),
		.p90 = percentile(v, n, 0.9),
		.p95 = percentile(v, n, 0.95),
		.p99 = percentile(v, n, 0.99),
	};
}

static void count_failure(struct bench_report *r, const struct bench_request *q)
{
	int i = 0, most = (int)(sizeof(r->by_status) / sizeof(r->by_status[0]));

	r->by_outcome[q->outcome]++;
	if (q->outcome != BENCH_STATUS)
		return;
	while (i < r->num_status && r->by_status[i].status != q->status && i < most - 1)
		i++;
	if (i == r->num_status) {
		r->num_status++;
		r->by_status[i].status = q->status;
	}
	r->by_status[i].n++;
}

enum { TTFT, TTFT_SENT, TPOT, E2E, E2E_SENT, LATE, NUM_LISTS };

static int add_samples(struct bench_samples *lists, const struct bench_request *q)
{
	if (bench_sample(&lists[TTFT], (double)(q->first_ns - q->due_ns)) ||
	    bench_sample(&lists[TTFT_SENT], (double)(q->first_ns - q->sent_ns)) ||
	    bench_sample(&lists[E2E], (double)(q->end_ns - q->due_ns)) ||
	    bench_sample(&lists[E2E_SENT], (double)(q->end_ns - q->sent_ns)) ||
	    (q->output_tokens > 1 &&
	     bench_sample(&lists[TPOT], (double)(q->last_ns - q->first_ns) / (double)(q->output_tokens - 1))))
		return -ENOMEM;
	return 0;
}

int bench_report_make(struct bench_run *run, struct bench_report *out)
{
	struct bench_samples lists[NUM_LISTS] = { { NULL, 0, 0 } };
	struct bench_summary *to[NUM_LISTS];
	struct bench_report r = { .sent = 0 };
	int ret = 0;

	for (size_t i = 0; !ret && i < run->num; i++) {
		const struct bench_request *q = &run->reqs[i];

		if (q->outcome == BENCH_UNSENT) {
			r.by_outcome[BENCH_UNSENT]++;
			continue;
		}
		r.sent++;
		ret = bench_sample(&lists[LATE], (double)(q->sent_ns - q->due_ns));
		count_failure(&r, q);
		/* tokens of failed requests are not useful output */
		if (q->outcome != BENCH_OK)
			continue;
		r.ok++;
		r.uncounted += q->used_prompt < 0;
		r.prompt_tokens += q->used_prompt < 0 ? q->prompt_tokens : q->used_prompt;
		r.cached_tokens += q->used_cached > 0 ? q->used_cached : 0;
		r.output_tokens += q->output_tokens;
		if (!ret)
			ret = add_samples(lists, q);
	}
	to[TTFT] = &r.ttft;
	to[TTFT_SENT] = &r.ttft_sent;
	to[TPOT] = &r.tpot;
	to[E2E] = &r.e2e;
	to[E2E_SENT] = &r.e2e_sent;
	to[LATE] = &r.late;
	for (int i = 0; i < NUM_LISTS; i++) {
		bench_summarise(lists[i].v, lists[i].n, to[i]);
		free(lists[i].v);
	}
	bench_summarise(run->itl.v, run->itl.n, &r.itl);
	r.duration_ns = run->end_ns > 0 ? run->end_ns : 1;
	if (!ret)
		*out = r;
	return ret;
}

static void print_line(FILE *to, const char *name, const struct bench_summary *s)
{
	if (s->n)
		fprintf(to, "  %-30s %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, s->mean * 1e-6, s->p50 * 1e-6,
			s->p90 * 1e-6, s->p99 * 1e-6, s->max * 1e-6);
	else
		fprintf(to, "  %-30s %9s\n", name, "-");
}

static void print_failures(const struct bench_report *r, FILE *to)
{
	for (int i = 0; i < r->num_status; i++)
		fprintf(to, ", %zu status %d", r->by_status[i].n, r->by_status[i].status);
	for (int i = 0; i < BENCH_NUM_OUTCOMES; i++) {
		if (i > BENCH_STATUS && r->by_outcome[i])
			fprintf(to, ", %zu %s", r->by_outcome[i], bench_outcome_names[i]);
	}
}

void bench_report_print(const struct bench_run *run, const struct bench_report *r, FILE *to)
{
	double s = (double)r->duration_ns * 1e-9;

	fprintf(to, "requests      %zu sent, %zu ok", r->sent, r->ok);
	print_failures(r, to);
	fprintf(to, "\n");
	if (run->first_error[0])
		fprintf(to, "first failure %s\n", run->first_error);
	fprintf(to, "load          ");
	if (run->load->rate > 0)
		fprintf(to, "Poisson, %.3g requests/s", run->load->rate);
	else
		fprintf(to, "closed loop");
	if (run->concurrency)
		fprintf(to, ", concurrency %d", run->concurrency);
	fprintf(to, "; %d in flight at most, %llu connections\n", run->max_in_flight,
		(unsigned long long)run->connections);
	fprintf(to, "tokens        %lld of prompts", (long long)r->prompt_tokens);
	if (r->cached_tokens)
		fprintf(to, " (%lld from the cache)", (long long)r->cached_tokens);
	fprintf(to, ", %lld of answers%s\n", (long long)r->output_tokens,
		r->uncounted ? " (chunks where the server gave no usage)" : "");
	fprintf(to, "duration      %.2f s\n", s);
	fprintf(to, "throughput    %.3f requests/s, %.1f output tokens/s, %.1f tokens/s\n", (double)r->ok / s,
		(double)r->output_tokens / s, (double)(r->output_tokens + r->prompt_tokens) / s);
	fprintf(to, "\n  %-30s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p99", "max");
	print_line(to, "TTFT  from when it was due", &r->ttft);
	print_line(to, "      from when it was sent", &r->ttft_sent);
	print_line(to, "TPOT  after the first token", &r->tpot);
	print_line(to, "ITL   between two chunks", &r->itl);
	print_line(to, "end   from when it was due", &r->e2e);
	print_line(to, "      from when it was sent", &r->e2e_sent);
	print_line(to, "client: sent after due", &r->late);
	if (run->idle || run->stalled)
		fprintf(to,
			"\nplus %d idle connections (%llu closed by the server), %d stalled ones "
			"(%llu closed)\n",
			run->idle, (unsigned long long)run->idle_closed, run->stalled,
			(unsigned long long)run->stalled_closed);
}

static void put_summary(FILE *to, const char *name, const struct bench_summary *s)
{
	fprintf(to,
		",\"%s_mean_ns\":%.0f,\"%s_p50_ns\":%.0f,\"%s_p90_ns\":%.0f,\"%s_p99_ns\":%.0f,"
		"\"%s_max_ns\":%.0f",
		name, s->mean, name, s->p50, name, s->p90, name, s->p99, name, s->max);
}

void bench_report_members(const struct bench_run *run, const struct bench_report *r, FILE *to)
{
	double s = (double)r->duration_ns * 1e-9;

	/* the record's unprefixed keys are TPOT, as in records of `cairn generate` */
	fprintf(to, "\"n\":%zu,\"min_ns\":%.0f,\"median_ns\":%.0f,\"p95_ns\":%.0f", r->tpot.n, r->tpot.min,
		r->tpot.p50, r->tpot.p95);
	fprintf(to,
		",\"sent\":%zu,\"answered\":%zu,\"duration_ns\":%lld,\"rate\":%g,\"concurrency\":%d,"
		"\"max_in_flight\":%d,\"prompt_tokens\":%lld,\"cached_tokens\":%lld,\"output_tokens\":%lld",
		r->sent, r->ok, (long long)r->duration_ns, run->load->rate, run->concurrency,
		run->max_in_flight, (long long)r->prompt_tokens, (long long)r->cached_tokens,
		(long long)r->output_tokens);
	fprintf(to, ",\"requests_per_s\":%.4f,\"output_tokens_per_s\":%.2f,\"tokens_per_s\":%.2f",
		(double)r->ok / s, (double)r->output_tokens / s,
		(double)(r->output_tokens + r->prompt_tokens) / s);
	put_summary(to, "ttft", &r->ttft);
	put_summary(to, "ttft_sent", &r->ttft_sent);
	put_summary(to, "tpot", &r->tpot);
	put_summary(to, "itl", &r->itl);
	put_summary(to, "e2e", &r->e2e);
	put_summary(to, "e2e_sent", &r->e2e_sent);
	put_summary(to, "late", &r->late);
	for (int i = 0; i < BENCH_NUM_OUTCOMES; i++) {
		if (i > BENCH_OK && r->by_outcome[i])
			fprintf(to, ",\"failed_%s\":%zu", keys[i], r->by_outcome[i]);
	}
	for (int i = 0; i < r->num_status; i++)
		fprintf(to, ",\"status_%d\":%zu", r->by_status[i].status, r->by_status[i].n);
	if (run->idle || run->stalled)
		fprintf(to, ",\"idle\":%d,\"idle_closed\":%llu,\"stalled\":%d,\"stalled_closed\":%llu",
			run->idle, (unsigned long long)run->idle_closed, run->stalled,
			(unsigned long long)run->stalled_closed);
}
