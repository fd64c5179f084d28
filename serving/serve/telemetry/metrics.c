// SPDX-License-Identifier: Apache-2.0
/* metrics - defines all metrics, updates them without locks, and writes the text page */
#include "serving/serve/telemetry/metrics.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/utf8.h"

#define MAX_BUCKETS 32

enum kind { GAUGE, COUNTER, HISTOGRAM };

/* Upper bounds of buckets, ascending, terminated by 0; the last bucket, +Inf, is implied. */
static const double iteration_tokens[] = {
	1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 0
};
static const double first_token[] = { .001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,   .75, 1,
				      2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560, 0 };
/* vLLM's buckets begin at 10 ms, which is longer than this server takes per token */
static const double per_token[] = { .001, .0025, .005, .0075, .01, .025, .05, .075, .1, .15, .2, .3,
				    .4,   .5,    .75,  1,     2.5, 5,    7.5, 10,   20, 40,  80, 0 };
static const double latency[] = { .3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
				  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, 0 };
static const double params_n[] = { 1, 2, 5, 10, 20, 0 };
/* stands for 1, 2, 5, 10, 20, ... up to max_context, which cairn_metrics_new() computes */
static const double up_to_context[] = { 0 };

static const char *const finished[] = { "stop", "length", "abort", "error" };
static const char *const positions[] = { "0", "1", "2",  "3",  "4",  "5",  "6",  "7",
					 "8", "9", "10", "11", "12", "13", "14", "15" };
static const char *const refused[] = { "invalid", "auth", "queue", "unavailable" };

static const struct {
	enum kind kind;
	const char *name, *help;
	const char *label;
	const char *const *values;
	const double *bounds;
	int num_values;
	int milli;    /* a counter that is kept in thousandths */
	int optional; /* absent while it is 0, or while the counter `with` is 0 */
	enum cairn_metric with;
} table[CAIRN_NUM_METRICS] = {
	[CAIRN_NUM_REQUESTS_RUNNING] = { .name = "vllm:num_requests_running",
					 .help = "Requests in the running batch." },
	[CAIRN_NUM_REQUESTS_WAITING] = { .name = "vllm:num_requests_waiting",
					 .help = "Requests waiting to be processed." },
	[CAIRN_KV_CACHE_USAGE] = { .name = "vllm:kv_cache_usage_perc", .help = "KV cache usage; 1 is full." },
	[CAIRN_TOKENS_QUEUED] = { .name = "cairn:tokens_queued",
				  .help = "Prompt tokens of waiting requests." },
	[CAIRN_GPU_POWER] = { .name = "cairn:gpu_power_watts", .optional = 1,
			      .help = "Power of the worker's GPU, mean of about a second." },
	[CAIRN_PREFILL_WORKERS] = { .name = "cairn:prefill_workers", .optional = 1,
				    .help = "Prefill workers that take prompts." },
	[CAIRN_PREFIX_CACHE_QUERIES] = { COUNTER, "vllm:prefix_cache_queries",
					 "Tokens looked up in the prefix cache.", NULL, NULL, NULL },
	[CAIRN_PREFIX_CACHE_HITS] = { COUNTER, "vllm:prefix_cache_hits",
				   "Tokens found in the prefix cache and its tiers.",
				      NULL, NULL, NULL },
	[CAIRN_NUM_PREEMPTIONS] = { COUNTER, "vllm:num_preemptions", "Preemptions by the scheduler.", NULL,
				    NULL, NULL },
	[CAIRN_PROMPT_TOKENS] = { COUNTER, "vllm:prompt_tokens", "Prefill tokens processed.", NULL, NULL,
				  NULL },
	[CAIRN_GENERATION_TOKENS] = { COUNTER, "vllm:generation_tokens", "Tokens generated.", NULL, NULL,
				      NULL },
	[CAIRN_WORKER_RESTARTS] = { COUNTER, "cairn:worker_restarts", "Restarts of the worker process.", NULL,
				    NULL, NULL },
	[CAIRN_LOG_LINES_LOST] = { COUNTER, "cairn:log_lines_lost",
				   "Lines dropped because standard error was not read.", NULL, NULL, NULL },
	[CAIRN_GPU_ENERGY] = { COUNTER, "cairn:gpu_energy_joules", "Energy used by the worker's GPU.",
			       .milli = 1, .optional = 1 },
	[CAIRN_REQUEST_SUCCESS] = { COUNTER, "vllm:request_success", "Finished requests.", "finished_reason",
				    finished, NULL, CAIRN_NUM_FINISHED },
	[CAIRN_REQUESTS_REFUSED] = { COUNTER, "cairn:requests_refused", "Requests answered with 4xx or 503.",
				     "reason", refused, NULL, CAIRN_NUM_REFUSED },
	[CAIRN_SPEC_DRAFTS] = { COUNTER, "vllm:spec_decode_num_drafts",
				"Steps of answers that had drafted tokens.", .optional = 1 },
	[CAIRN_SPEC_DRAFT_TOKENS] = { COUNTER, "vllm:spec_decode_num_draft_tokens", "Drafted tokens.",
				      .optional = 1, .with = CAIRN_SPEC_DRAFTS },
	[CAIRN_SPEC_ACCEPTED] = { COUNTER, "vllm:spec_decode_num_accepted_tokens",
				  "Drafted tokens that were drawn.", .optional = 1,
				  .with = CAIRN_SPEC_DRAFTS },
	[CAIRN_SPEC_ACCEPTED_PER_POS] = { COUNTER, "vllm:spec_decode_num_accepted_tokens_per_pos",
					  "Drafted tokens that were drawn, by place among the drafts.",
					  "position", positions, NULL, CAIRN_NUM_SPEC_POSITIONS,
					  .optional = 1, .with = CAIRN_SPEC_DRAFTS },
	[CAIRN_CONSTRAINTS_COMPILED] = { COUNTER, "cairn:constraints_compiled",
					 "Constraints of requests that were compiled.", .optional = 1 },
	[CAIRN_CONSTRAINT_CACHE_HITS] = { COUNTER, "cairn:constraint_cache_hits",
				       "Constraints that were compiled already.", .optional = 1,
				       .with = CAIRN_CONSTRAINTS_COMPILED },
	[CAIRN_CONSTRAINTS_REFUSED] = { COUNTER, "cairn:constraints_refused",
				    "Constraints that could not be compiled.", .optional = 1 },
	[CAIRN_GRAMMAR_RESTARTS] = { COUNTER, "cairn:grammar_restarts", "Restarts of the grammar process.",
				     .optional = 1, .with = CAIRN_CONSTRAINTS_COMPILED },
	[CAIRN_MASKS_COMPUTED] = { COUNTER, "cairn:masks", "Masks computed for draws.", .optional = 1,
				  .with = CAIRN_CONSTRAINTS_COMPILED },
	[CAIRN_MASK_TIME] = { COUNTER, "cairn:mask_seconds",
				      "Time that the engine waited for masks.", .milli = 1, .optional = 1,
				      .with = CAIRN_CONSTRAINTS_COMPILED },
	[CAIRN_KV_EVENTS_PUBLISHED] = { COUNTER, "cairn:kv_events_published",
					"Events of the KV cache handed to the publisher.", .optional = 1 },
	[CAIRN_KV_EVENTS_LOST] = { COUNTER, "cairn:kv_events_lost",
				   "Events of the KV cache dropped because the publisher was behind.",
				   .optional = 1, .with = CAIRN_KV_EVENTS_PUBLISHED },
	[CAIRN_PULLED_PROMPTS] = { COUNTER, "cairn:pulled_prompts",
				   "Prompts whose keys and values a prefill worker has sent whole.",
				   .optional = 1 },
	[CAIRN_PULLED_PAGES] = { COUNTER, "cairn:pulled_pages", "KV pages pulled from prefill workers.",
				 .optional = 1, .with = CAIRN_PULLED_PROMPTS },
	[CAIRN_PULLED_BYTES] = { COUNTER, "cairn:pulled_bytes", "Bytes pulled from prefill workers.",
				 .optional = 1, .with = CAIRN_PULLED_PROMPTS },
	[CAIRN_PULL_CHECKSUM_ERRORS] = { COUNTER, "cairn:pull_checksum_errors",
					 "Runs of pages with a wrong checksum; their prompts were computed "
					 "here.", .optional = 1, .with = CAIRN_PULLED_PROMPTS },
	[CAIRN_PULLS_RECOMPUTED] = { COUNTER, "cairn:pulls_recomputed",
				     "Prompts that were to be pulled and were computed here.",
				     .optional = 1 },
#define SECONDS(n, h, b)                                                                                     \
	{                                                                                                    \
		HISTOGRAM, "vllm:" n "_seconds", "Histogram of " h " in seconds.", NULL, NULL, b             \
	}
#define TOKENS(n, h, b)                                                                                      \
	{                                                                                                    \
		HISTOGRAM, "vllm:" n, "Histogram of " h ".", NULL, NULL, b                                   \
	}
	[CAIRN_ITERATION_TOKENS] =
		TOKENS("iteration_tokens_total", "tokens of an engine step", iteration_tokens),
	[CAIRN_TIME_TO_FIRST_TOKEN] = SECONDS("time_to_first_token", "time to first token", first_token),
	[CAIRN_INTER_TOKEN_LATENCY] = SECONDS("inter_token_latency", "time between tokens", per_token),
	[CAIRN_TIME_PER_OUTPUT_TOKEN] =
		SECONDS("time_per_output_token", "mean time for an output token of a request", per_token),
	[CAIRN_E2E_LATENCY] = SECONDS("e2e_request_latency", "latency of requests", latency),
	[CAIRN_QUEUE_TIME] = SECONDS("request_queue_time", "time in the phase WAITING", latency),
	[CAIRN_PREFILL_TIME] = SECONDS("request_prefill_time", "time in the phase PREFILL", latency),
	[CAIRN_DECODE_TIME] = SECONDS("request_decode_time", "time in the phase DECODE", latency),
	[CAIRN_INFERENCE_TIME] = SECONDS("request_inference_time", "time in the phase RUNNING", latency),
	[CAIRN_REQUEST_PROMPT_TOKENS] =
		TOKENS("request_prompt_tokens", "prompt tokens of requests", up_to_context),
	[CAIRN_REQUEST_GENERATION_TOKENS] =
		TOKENS("request_generation_tokens", "generated tokens of requests", up_to_context),
	[CAIRN_REQUEST_PARAMS_N] = TOKENS("request_params_n", "parameter n of requests", params_n),
	[CAIRN_REQUEST_PARAMS_MAX_TOKENS] =
		TOKENS("request_params_max_tokens", "parameter max_tokens of requests", up_to_context),
};

struct cairn_metrics {
	char *labels;                       /* model_name="...",engine="..." */
	double context_bounds[MAX_BUCKETS]; /* terminated by 0 */
	_Atomic int32_t block_size, num_blocks; /* num_blocks 0: not known yet */
	_Atomic bool prefix_caching;
	const char *_Atomic cache_dtype;
	struct {
		_Atomic uint64_t counts[MAX_BUCKETS]; /* by bucket, or by label of a counter */
		_Atomic double value;                 /* gauge, or sum of a histogram */
	} v[CAIRN_NUM_METRICS];
};

struct page {
	char *s;
	size_t len, cap;
	int ret;
};

static void put(struct page *p, const char *s, size_t n)
{
	char *grown;

	if (p->ret)
		return;
	if (p->cap - p->len <= n) {
		grown = realloc(p->s, 2 * p->cap + n + 1);
		if (!grown) {
			p->ret = cairn_error(ENOMEM, "metrics: no memory");
			return;
		}
		p->s = grown;
		p->cap = 2 * p->cap + n + 1;
	}
	memcpy(p->s + p->len, s, n);
	p->len += n;
	p->s[p->len] = 0;
}

__attribute__((format(printf, 2, 3))) static void print(struct page *p, const char *fmt, ...)
{
	char buf[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(buf, sizeof(buf), fmt, ap);
	va_end(ap);
	put(p, buf, strlen(buf));
}

/* Writes a label. Backslash, quote and newline are escaped; malformed UTF-8 becomes U+FFFD. */
static void put_label(struct page *p, const char *name, const char *value)
{
	size_t n = strlen(value);

	print(p, "%s=\"", name);
	for (size_t i = 0; i < n;) {
		int truncated, len;
		uint32_t cp;

		len = cairn_utf8_next(value + i, n - i, &cp, &truncated);
		if (len < 0)
			put(p, CAIRN_UTF8_REPLACEMENT, 3);
		else if (cp == '\n')
			put(p, "\\n", 2);
		else if (cp == '"' || cp == '\\')
			put(p, (const char[]) { '\\', (char)cp }, 2);
		else
			put(p, value + i, (size_t)len);
		i += (size_t)abs(len);
	}
	put(p, "\"", 1);
}

int cairn_metrics_new(const char *model_name, const char *engine, int32_t max_context,
		      struct cairn_metrics **out)
{
	static const double steps[] = { 1, 2, 5 };
	struct cairn_metrics *m = calloc(1, sizeof(*m));
	struct page labels = { 0 };
	double decade = 1;
	int n = 0;

	if (!m)
		return cairn_error(ENOMEM, "metrics: no memory");
	put_label(&labels, "model_name", model_name);
	put(&labels, ",", 1);
	put_label(&labels, "engine", engine);
	if (labels.ret) {
		free(labels.s);
		free(m);
		return labels.ret;
	}
	m->labels = labels.s;
	/* there are 29 bounds below 2^31 */
	for (; decade * steps[n % 3] <= max_context; n++) {
		m->context_bounds[n] = decade * steps[n % 3];
		decade *= n % 3 == 2 ? 10 : 1;
	}
	*out = m;
	return 0;
}

void cairn_metrics_free(struct cairn_metrics *m)
{
	if (!m)
		return;
	free(m->labels);
	free(m);
}

void cairn_metric_add(struct cairn_metrics *m, enum cairn_metric which, int label, uint64_t by)
{
	atomic_fetch_add_explicit(&m->v[which].counts[label], by, memory_order_relaxed);
}

void cairn_metric_set(struct cairn_metrics *m, enum cairn_metric which, double value)
{
	atomic_store_explicit(&m->v[which].value, value, memory_order_relaxed);
}

static const double *bounds_of(const struct cairn_metrics *m, enum cairn_metric which)
{
	return table[which].bounds == up_to_context ? m->context_bounds : table[which].bounds;
}

void cairn_metric_observe(struct cairn_metrics *m, enum cairn_metric which, double value)
{
	const double *bounds = bounds_of(m, which);
	double sum = atomic_load_explicit(&m->v[which].value, memory_order_relaxed);
	int i = 0;

	if (!(value > 0))
		value = 0;
	while (bounds[i] > 0 && value > bounds[i])
		i++;
	atomic_fetch_add_explicit(&m->v[which].counts[i], 1, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&m->v[which].value, &sum, sum + value,
						      memory_order_relaxed, memory_order_relaxed))
		;
}

uint64_t cairn_metric_count(const struct cairn_metrics *m, enum cairn_metric which, int label)
{
	return atomic_load_explicit(&m->v[which].counts[label], memory_order_relaxed);
}

double cairn_metric_gauge(const struct cairn_metrics *m, enum cairn_metric which)
{
	return atomic_load_explicit(&m->v[which].value, memory_order_relaxed);
}

static void put_number(struct page *p, double v)
{
	if (isnan(v))
		print(p, " NaN\n");
	else if (isinf(v))
		print(p, " %sInf\n", v < 0 ? "-" : "+");
	else
		print(p, " %.17g\n", v);
}

static void put_histogram(struct page *p, const struct cairn_metrics *m, enum cairn_metric which)
{
	const char *name = table[which].name;
	const double *bounds = bounds_of(m, which);
	uint64_t count = 0;

	for (int i = 0;; i++) {
		count += cairn_metric_count(m, which, i);
		print(p, "%s_bucket{le=\"", name);
		if (bounds[i] > 0)
			print(p, "%.15g%s", bounds[i], bounds[i] == floor(bounds[i]) ? ".0" : "");
		else
			print(p, "+Inf");
		put(p, "\",", 2);
		put(p, m->labels, strlen(m->labels));
		print(p, "} %llu\n", (unsigned long long)count);
		if (!(bounds[i] > 0))
			break;
	}
	print(p, "%s_sum{", name);
	put(p, m->labels, strlen(m->labels));
	put(p, "}", 1);
	put_number(p, cairn_metric_gauge(m, which));
	print(p, "%s_count{", name);
	put(p, m->labels, strlen(m->labels));
	print(p, "} %llu\n", (unsigned long long)count);
}

static void put_counter(struct page *p, const struct cairn_metrics *m, enum cairn_metric which)
{
	int num = table[which].label ? table[which].num_values : 1;

	/* of optional values the last ones may never occur */
	while (table[which].optional && num > 1 && !cairn_metric_count(m, which, num - 1))
		num--;
	for (int i = 0; i < num; i++) {
		unsigned long long count = cairn_metric_count(m, which, i);

		print(p, "%s_total{", table[which].name);
		if (table[which].label) {
			put_label(p, table[which].label, table[which].values[i]);
			put(p, ",", 1);
		}
		put(p, m->labels, strlen(m->labels));
		if (table[which].milli)
			print(p, "} %llu.%03llu\n", count / 1000, count % 1000);
		else
			print(p, "} %llu\n", count);
	}
}

static int is_absent(const struct cairn_metrics *m, enum cairn_metric which)
{
	enum cairn_metric by = table[which].with ? table[which].with : which;

	return table[which].optional && !(cairn_metric_gauge(m, by) > 0) && !cairn_metric_count(m, by, 0);
}

void cairn_metrics_set_cache(struct cairn_metrics *m, int32_t block_size, int32_t num_blocks,
			     bool prefix_caching, const char *dtype)
{
	atomic_store_explicit(&m->block_size, block_size, memory_order_relaxed);
	atomic_store_explicit(&m->prefix_caching, prefix_caching, memory_order_relaxed);
	atomic_store_explicit(&m->cache_dtype, dtype, memory_order_relaxed);
	atomic_store_explicit(&m->num_blocks, num_blocks, memory_order_release);
}

/* Writes the cache's configuration as labels, as vLLM does. Routers read block_size and num_gpu_blocks. */
static void put_cache(struct page *p, const struct cairn_metrics *m)
{
	int32_t blocks = atomic_load_explicit(&m->num_blocks, memory_order_acquire);

	if (!blocks)
		return;
	print(p, "# HELP vllm:cache_config_info Configuration of the KV cache.\n"
		 "# TYPE vllm:cache_config_info gauge\n");
	print(p, "vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\","
		 "num_gpu_blocks=\"%d\",",
	      atomic_load_explicit(&m->block_size, memory_order_relaxed),
	      atomic_load_explicit(&m->cache_dtype, memory_order_relaxed),
	      atomic_load_explicit(&m->prefix_caching, memory_order_relaxed) ? "True" : "False", blocks);
	put(p, m->labels, strlen(m->labels));
	print(p, "} 1\n");
}

int cairn_metrics_text(const struct cairn_metrics *m, char **text, size_t *num_bytes)
{
	static const char *const kinds[] = { "gauge", "counter", "histogram" };
	struct page p = { 0 };

	_Static_assert(CAIRN_NUM_SPEC_POSITIONS <= MAX_BUCKETS, "a counter has its values in counts[]");
	for (int i = 0; i < CAIRN_NUM_METRICS; i++) {
		const char *end = table[i].kind == COUNTER ? "_total" : "";

		if (is_absent(m, (enum cairn_metric)i))
			continue;
		print(&p, "# HELP %s%s %s\n", table[i].name, end, table[i].help);
		print(&p, "# TYPE %s%s %s\n", table[i].name, end, kinds[table[i].kind]);
		if (table[i].kind == COUNTER) {
			put_counter(&p, m, (enum cairn_metric)i);
		} else if (table[i].kind == HISTOGRAM) {
			put_histogram(&p, m, (enum cairn_metric)i);
		} else {
			print(&p, "%s{", table[i].name);
			put(&p, m->labels, strlen(m->labels));
			put(&p, "}", 1);
			put_number(&p, cairn_metric_gauge(m, (enum cairn_metric)i));
		}
	}
	put_cache(&p, m);
	if (p.ret) {
		free(p.s);
		return p.ret;
	}
	*text = p.s;
	*num_bytes = p.len;
	return 0;
}
