// SPDX-License-Identifier: Apache-2.0
/* metrics_test - reads every page with a strict parser of the text format, then checks the metrics by name */
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/serve/telemetry/metrics.h"

#define MAX_LABELS 4

struct sample {
	char name[96];
	char label[MAX_LABELS][32], value[MAX_LABELS][128];
	int num_labels;
	double v;
};

static int name_char(int c, int first)
{
	return isalpha(c) || c == '_' || c == ':' || (!first && isdigit(c));
}

/* Reads one name at *s and advances *s. Returns 0 if there is none or it is too long. */
static int take_name(const char **s, char *to, size_t len)
{
	size_t n = 0;

	while (name_char((unsigned char)**s, n == 0) && n < len - 1)
		to[n++] = *(*s)++;
	to[n] = 0;
	return n > 0;
}

/* Parses name{a="b",...} number strictly: one blank, and only the escapes \\ \" \n. */
static int take_sample(const char *s, struct sample *out)
{
	char *end;

	memset(out, 0, sizeof(*out));
	if (!take_name(&s, out->name, sizeof(out->name)) || *s++ != '{')
		return 0;
	while (*s != '}') {
		size_t n = 0;
		int i = out->num_labels++;

		if (i == MAX_LABELS || (i && *s++ != ',') || !take_name(&s, out->label[i], 32) ||
		    *s++ != '=' || *s++ != '"')
			return 0;
		while (*s && *s != '"' && n < 127) {
			char c = *s++;

			if (c == '\n')
				return 0;
			if (c == '\\') {
				c = *s++;
				if (c != '\\' && c != '"' && c != 'n')
					return 0;
				c = c == 'n' ? '\n' : c;
			}
			out->value[i][n++] = c;
		}
		if (*s++ != '"')
			return 0;
	}
	if (*++s != ' ' || s[1] == ' ' || !s[1])
		return 0;
	out->v = strtod(s + 1, &end);
	return *end == 0;
}

static const char *label(const struct sample *s, const char *name)
{
	for (int i = 0; i < s->num_labels; i++)
		if (!strcmp(s->label[i], name))
			return s->value[i];
	return "";
}

/*
 * Reads the page line by line: HELP, TYPE, then only samples of that family. Buckets must ascend in bound and
 * count, and the last, +Inf, must equal the count. Returns the number of samples, or -1 at the first bad
 * line. If want is not NULL, sets *value to the last sample of that name whose labels contain `with`.
 */
static int read_page(struct cairn_test *t, const char *text, const char *want, const char *with,
		     double *value)
{
	char *copy = strdup(text), family[96] = "", type[16] = "", seen[96];
	double bound = 0, count = 0, total = 0;
	int num = 0, helped = 0;
	struct sample s;

	for (char *line = copy, *end; *line; line = end + 1) {
		end = strchr(line, '\n');
		if (!end)
			goto bad;
		*end = 0;
		if (!strncmp(line, "# HELP ", 7)) {
			helped = sscanf(line, "# HELP %95s %95s", family, seen) == 2;
			bound = -INFINITY;
			count = 0;
			continue;
		}
		if (*line == '#') {
			if (!helped || sscanf(line, "# TYPE %95s %15s", seen, type) != 2 ||
			    strcmp(seen, family))
				goto bad;
			continue;
		}
		if (!take_sample(line, &s) || strncmp(s.name, family, strlen(family)) || !type[0])
			goto bad;
		num++;
		if (!strcmp(type, "counter") &&
		    (strlen(family) < 6 || strcmp(family + strlen(family) - 6, "_total") || s.v < 0))
			goto bad;
		if (strcmp(type, "histogram")) {
			if (strcmp(s.name, family))
				goto bad;
		} else if (strstr(s.name, "_bucket")) {
			double b = strtod(label(&s, "le"), NULL);

			if (!(b > bound) || s.v < count)
				goto bad;
			bound = b;
			total = count = s.v;
		} else if (strstr(s.name, "_count")) {
			if (!isinf(bound) || s.v != total)
				goto bad;
		} else if (!strstr(s.name, "_sum")) {
			goto bad;
		}
		if (want && !strcmp(s.name, want) && strstr(line, with))
			*value = s.v;
		continue;
	bad:
		cairn_note(t, "bad line: %s", line);
		num = -1;
		break;
	}
	free(copy);
	return num;
}

static double value_of(struct cairn_test *t, const struct cairn_metrics *m, const char *name,
		       const char *with)
{
	double v = NAN;
	char *text = NULL;
	size_t n = 0;

	if (EXPECT(t, !cairn_metrics_text(m, &text, &n) && strlen(text) == n))
		EXPECT(t, read_page(t, text, name, with, &v) > 100);
	free(text);
	return v;
}

static void page(struct cairn_test *t)
{
	static const double seconds[] = { .0004, .001, .3, 3000, NAN, -1 };
	struct cairn_metrics *m = NULL;

	if (!EXPECT(t, !cairn_metrics_new("a\\b\"c\nd\xff", "0", 8192, &m)))
		return;
	EXPECT(t, value_of(t, m, "vllm:num_requests_running",
			   "model_name=\"a\\\\b\\\"c\\nd\xef\xbf\xbd\",engine=\"0\"") == 0);
	cairn_metric_set(m, CAIRN_KV_CACHE_USAGE, 0.625);
	cairn_metric_set(m, CAIRN_NUM_REQUESTS_WAITING, 7);
	cairn_metric_add(m, CAIRN_REQUEST_SUCCESS, CAIRN_FINISHED_LENGTH, 3);
	cairn_metric_add(m, CAIRN_GENERATION_TOKENS, 0, 1ull << 53);
	cairn_metric_add(m, CAIRN_GENERATION_TOKENS, 0, 1);
	for (size_t i = 0; i < ARRAY_SIZE(seconds); i++)
		cairn_metric_observe(m, CAIRN_TIME_TO_FIRST_TOKEN, seconds[i]);
	cairn_metric_observe(m, CAIRN_REQUEST_PROMPT_TOKENS, 5000);
	cairn_metric_observe(m, CAIRN_REQUEST_PROMPT_TOKENS, 5001);
	EXPECT(t, value_of(t, m, "vllm:kv_cache_usage_perc", "") == 0.625);
	EXPECT(t, value_of(t, m, "vllm:num_requests_waiting", "") == 7);
	EXPECT(t, value_of(t, m, "vllm:request_success_total", "finished_reason=\"length\"") == 3);
	EXPECT(t, value_of(t, m, "vllm:request_success_total", "finished_reason=\"stop\"") == 0);
	EXPECT(t, value_of(t, m, "vllm:time_to_first_token_seconds_bucket", "le=\"0.001\"") == 4);
	EXPECT(t, value_of(t, m, "vllm:time_to_first_token_seconds_bucket", "le=\"0.25\"") == 4);
	EXPECT(t, value_of(t, m, "vllm:time_to_first_token_seconds_bucket", "le=\"0.5\"") == 5);
	EXPECT(t, value_of(t, m, "vllm:time_to_first_token_seconds_count", "") == 6);
	EXPECT(t, fabs(value_of(t, m, "vllm:time_to_first_token_seconds_sum", "") - 3000.3014) < 1e-9);
	EXPECT(t, value_of(t, m, "vllm:request_prompt_tokens_bucket", "le=\"5000.0\"") == 1);
	EXPECT(t, isnan(value_of(t, m, "vllm:request_prompt_tokens_bucket", "le=\"10000.0\"")));
	EXPECT(t, cairn_metric_count(m, CAIRN_GENERATION_TOKENS, 0) == (1ull << 53) + 1);
	cairn_metrics_free(m);
	EXPECT(t, !cairn_metrics_new("m", "0", INT32_MAX, &m) &&
			  !isnan(value_of(t, m, "vllm:request_params_max_tokens_bucket",
					  "le=\"2000000000.0\"")));
	cairn_metrics_free(m);
}

/* The figures of a GPU are absent until they are known; energy has thousandths. */
static void gpu(struct cairn_test *t)
{
	struct cairn_metrics *m = NULL;

	if (!EXPECT(t, !cairn_metrics_new("m", "0", 4096, &m)))
		return;
	EXPECT(t, isnan(value_of(t, m, "cairn:gpu_power_watts", "")));
	EXPECT(t, isnan(value_of(t, m, "cairn:gpu_energy_joules_total", "")));
	cairn_metric_set(m, CAIRN_GPU_POWER, 612.5);
	EXPECT(t, value_of(t, m, "cairn:gpu_power_watts", "model_name=\"m\",engine=\"0\"") == 612.5);
	EXPECT(t, isnan(value_of(t, m, "cairn:gpu_energy_joules_total", "")));
	cairn_metric_add(m, CAIRN_GPU_ENERGY, 0, 7);
	EXPECT(t, value_of(t, m, "cairn:gpu_energy_joules_total", "") == 0.007);
	cairn_metric_add(m, CAIRN_GPU_ENERGY, 0, 1ull << 53);
	EXPECT(t, value_of(t, m, "cairn:gpu_energy_joules_total", "") == 9007199254740.999);
	cairn_metric_set(m, CAIRN_GPU_POWER, 0);
	EXPECT(t, isnan(value_of(t, m, "cairn:gpu_power_watts", "")));
	cairn_metrics_free(m);
}

/* The counters of speculation are absent without drafts, and have the places that occurred. */
static void speculation(struct cairn_test *t)
{
	struct cairn_metrics *m = NULL;

	if (!EXPECT(t, !cairn_metrics_new("m", "0", 4096, &m)))
		return;
	EXPECT(t, isnan(value_of(t, m, "vllm:spec_decode_num_drafts_total", "")));
	EXPECT(t, isnan(value_of(t, m, "vllm:spec_decode_num_accepted_tokens_total", "")));
	EXPECT(t, isnan(value_of(t, m, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "")));
	cairn_metric_add(m, CAIRN_SPEC_DRAFTS, 0, 3);
	cairn_metric_add(m, CAIRN_SPEC_DRAFT_TOKENS, 0, 12);
	EXPECT(t, value_of(t, m, "vllm:spec_decode_num_drafts_total", "model_name=\"m\"") == 3);
	EXPECT(t, value_of(t, m, "vllm:spec_decode_num_draft_tokens_total", "") == 12);
	EXPECT(t, value_of(t, m, "vllm:spec_decode_num_accepted_tokens_total", "") == 0);
	EXPECT(t, value_of(t, m, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
			   "position=\"0\"") == 0);
	cairn_metric_add(m, CAIRN_SPEC_ACCEPTED_PER_POS, 11, 5);
	EXPECT(t, value_of(t, m, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
			   "position=\"10\"") == 0);
	EXPECT(t, value_of(t, m, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
			   "position=\"11\"") == 5);
	EXPECT(t, isnan(value_of(t, m, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
				 "position=\"12\"")));
	cairn_metrics_free(m);
}

/* Every metric name that vLLM's dashboards use is present. */
static void names(struct cairn_test *t)
{
	static const char *const want[] = {
		"num_requests_running",
		"num_requests_waiting",
		"kv_cache_usage_perc",
		"prefix_cache_queries_total",
		"prefix_cache_hits_total",
		"num_preemptions_total",
		"prompt_tokens_total",
		"generation_tokens_total",
		"request_success_total",
		"iteration_tokens_total_count",
		"time_to_first_token_seconds_count",
		"time_per_output_token_seconds_count",
		"inter_token_latency_seconds_count",
		"e2e_request_latency_seconds_count",
		"request_queue_time_seconds_count",
		"request_prefill_time_seconds_count",
		"request_decode_time_seconds_count",
		"request_inference_time_seconds_count",
		"request_prompt_tokens_count",
		"request_generation_tokens_count",
		"request_params_n_count",
		"request_params_max_tokens_count",
	};
	struct cairn_metrics *m = NULL;
	char name[96];

	if (!EXPECT(t, !cairn_metrics_new("model", "0", 4096, &m)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
		snprintf(name, sizeof(name), "vllm:%s", want[i]);
		if (!EXPECT(t, value_of(t, m, name, "model_name=\"model\",engine=\"0\"") == 0))
			cairn_note(t, "%s", name);
	}
	cairn_metrics_free(m);
}

#define ROUNDS 20000

static void *hammer(void *arg)
{
	struct cairn_metrics *m = arg;

	for (int i = 0; i < ROUNDS; i++) {
		cairn_metric_observe(m, CAIRN_INTER_TOKEN_LATENCY, 0.25 * (i % 8));
		cairn_metric_add(m, CAIRN_PROMPT_TOKENS, 0, 2);
	}
	return NULL;
}

static void threads(struct cairn_test *t)
{
	struct cairn_metrics *m = NULL;
	pthread_t id[4];

	if (!EXPECT(t, !cairn_metrics_new("m", "0", 4096, &m)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(id); i++)
		EXPECT(t, !pthread_create(&id[i], NULL, hammer, m));
	for (int i = 0; i < 20; i++) /* pages are well-formed while other threads count */
		value_of(t, m, "vllm:prompt_tokens_total", "");
	for (size_t i = 0; i < ARRAY_SIZE(id); i++)
		pthread_join(id[i], NULL);
	EXPECT(t, value_of(t, m, "vllm:prompt_tokens_total", "") == 8.0 * ROUNDS);
	EXPECT(t, value_of(t, m, "vllm:inter_token_latency_seconds_count", "") == 4.0 * ROUNDS);
	/* the mean of 0, .25, ... 1.75; quarters add up exactly */
	EXPECT(t, value_of(t, m, "vllm:inter_token_latency_seconds_sum", "") == 4 * 0.875 * ROUNDS);
	cairn_metrics_free(m);
}

/* vllm:cache_config_info is there once the worker has said what its cache is. */
static void cache(struct cairn_test *t)
{
	struct cairn_metrics *m = NULL;
	char *text = NULL;
	size_t n;

	EXPECT(t, cairn_metrics_new("a \"model\"", "0", 64, &m) == 0);
	EXPECT(t, cairn_metrics_text(m, &text, &n) == 0 && !strstr(text, "cache_config_info"));
	free(text);
	cairn_metrics_set_cache(m, 64, 1000, true, "fp8");
	EXPECT(t, cairn_metrics_text(m, &text, &n) == 0);
	EXPECT_CONTAINS(t, text, "# TYPE vllm:cache_config_info gauge\n"
			"vllm:cache_config_info{block_size=\"64\",cache_dtype=\"fp8\","
			"enable_prefix_caching=\"True\",num_gpu_blocks=\"1000\","
			"model_name=\"a \\\"model\\\"\",engine=\"0\"} 1\n");
	EXPECT(t, !strstr(text, "kv_events"));
	free(text);
	cairn_metric_add(m, CAIRN_KV_EVENTS_PUBLISHED, 0, 3);
	EXPECT(t, cairn_metrics_text(m, &text, &n) == 0);
	EXPECT_CONTAINS(t, text, "cairn:kv_events_published_total{model_name=\"a \\\"model\\\"\","
			"engine=\"0\"} 3\n");
	EXPECT_CONTAINS(t, text, "cairn:kv_events_lost_total{model_name=\"a \\\"model\\\"\","
			"engine=\"0\"} 0\n");
	free(text);
	cairn_metrics_free(m);
}

static const struct cairn_unit units[] = {
	{ "page", page },
	{ "speculation", speculation }, { "gpu", gpu },
	{ "names", names },
	{ "cache", cache }, { "threads", threads },
};

const struct cairn_family cairn_metrics_family = {
	.stage = "serving",
	.name = "metrics",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
