// SPDX-License-Identifier: Apache-2.0
/* bench_serve_load_test - percentiles, lengths, arrivals and bodies of the load generator */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/api/api_request.h"
#include "serving/bench/bench_serve.h"

/* Reference: the p-th percentile, interpolated linearly, found by counting instead of sorting. */
static double by_counting(const double *v, size_t n, int p)
{
	double at = p * (double)(n - 1) / 100, got[2] = { 0, 0 };
	size_t rank = (size_t)floor(at);

	for (size_t k = 0; k < 2; k++) {
		for (size_t i = 0; i < n; i++) {
			size_t less = 0, equal = 0, want = rank + k < n ? rank + k : n - 1;

			for (size_t j = 0; j < n; j++) {
				less += v[j] < v[i];
				equal += v[j] == v[i];
			}
			if (less <= want && want < less + equal)
				got[k] = v[i];
		}
	}
	return got[0] + (at - (double)rank) * (got[1] - got[0]);
}

static void percentiles(struct cairn_test *t)
{
	static const size_t sizes[] = { 1, 2, 3, 10, 99, 100, 101, 257 };
	struct bench_summary s;

	bench_summarise(NULL, 0, &s);
	EXPECT(t, s.n == 0 && s.mean == 0 && s.p99 == 0);
	for (size_t k = 0; k < ARRAY_SIZE(sizes); k++) {
		size_t n = sizes[k];
		double v[257], sorted[257], sum = 0;

		for (size_t i = 0; i < n; i++)
			sum += v[i] = (double)(cairn_rand(t) % 64); /* many equal values */
		memcpy(sorted, v, sizeof(v));
		bench_summarise(sorted, n, &s);
		EXPECT(t, s.n == n && s.mean == sum / (double)n);
		EXPECT(t, fabs(s.p50 - by_counting(v, n, 50)) < 1e-9 &&
				  fabs(s.p90 - by_counting(v, n, 90)) < 1e-9);
		EXPECT(t, fabs(s.p95 - by_counting(v, n, 95)) < 1e-9 &&
				  fabs(s.p99 - by_counting(v, n, 99)) < 1e-9);
		EXPECT(t, s.min == by_counting(v, n, 0) && s.max == by_counting(v, n, 100));
	}
}

static struct bench_load a_load(int64_t num)
{
	return (struct bench_load) {
		.num = num, .input_len = 20, .output_len = 30, .vocab = 256, .seed = 5, .model = "m"
	};
}

/* Checks Poisson arrivals: mean and variance of the gaps, and variance of the counts per second. */
static void arrivals(struct cairn_test *t)
{
	struct bench_load load = a_load(40000);
	struct bench_request *r;
	double sum = 0, square = 0, counts[800] = { 0 }, var = 0;
	int n = 0;

	load.rate = 50;
	if (!EXPECT(t, !bench_load_plan(&load, &r)))
		return;
	EXPECT(t, r[0].due_ns == 0);
	for (int i = 1; i < load.num; i++) {
		double gap = (double)(r[i].due_ns - r[i - 1].due_ns) * 1e-9;

		n += gap < 0;
		sum += gap;
		square += gap * gap;
		if (r[i].due_ns / 1000000000 < 780)
			counts[r[i].due_ns / 1000000000]++;
	}
	sum /= (double)load.num;
	square = square / (double)load.num - sum * sum;
	EXPECT(t, !n && fabs(sum * 50 - 1) < 0.02 && fabs(square * 2500 - 1) < 0.05);
	for (int i = 0; i < 780; i++)
		var += (counts[i] - 50) * (counts[i] - 50) / 780;
	EXPECT(t, fabs(var / 50 - 1) < 0.2);
	cairn_note(t, "gap: mean %.5f s, variance %.6f; variance of the counts %.1f", sum, square, var);
	free(r);
}

static void fits(struct cairn_test *t)
{
	static const struct {
		const char *name;
		double prompt, answer;
	} all[] = { { "sharegpt", 161, 338 }, { "alpaca", 19, 58 } };

	for (size_t k = 0; k < ARRAY_SIZE(all); k++) {
		struct bench_load load = a_load(50000);
		struct bench_request *r;
		double prompt = 0, answer = 0;
		int bad = 0;

		load.lengths = all[k].name;
		if (!EXPECT(t, !bench_load_plan(&load, &r)))
			return;
		for (int i = 0; i < load.num; i++) {
			prompt += r[i].prompt_tokens / (double)load.num;
			answer += r[i].max_tokens / (double)load.num;
			bad += r[i].prompt_tokens < 1 || r[i].max_tokens < 1 || r[i].max_tokens > 1024;
		}
		/* slightly below the nominal means, because the tail beyond 1024 is clamped */
		EXPECT(t, !bad && prompt < all[k].prompt && prompt > 0.9 * all[k].prompt);
		EXPECT(t, answer < all[k].answer && answer > 0.85 * all[k].answer);
		cairn_note(t, "%s: %.1f and %.1f", all[k].name, prompt, answer);
		free(r);
	}
}

static void traces(struct cairn_test *t)
{
	static const struct {
		const char *text;
		int ret, num, prompts[3], answers[3];
		const char *says;
	} rows[] = {
		/* text, ret, num, prompts, answers, says (part of the error) */
		{ "5 6\n7\t8\n", 0, 3, { 5, 7, 5 }, { 6, 8, 6 }, NULL },
		{ "# made up\n\n5,6\n7, 8\n9,10\n11,12\n", 0, 3, { 5, 7, 9 }, { 6, 8, 10 }, NULL },
		{ "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
		  "2023-11-16 18:17:04.0319600,3180,8\r\n",
		  0,
		  3,
		  { 4808, 3180, 4808 },
		  { 10, 8, 10 },
		  NULL },
		{ "output_len;x;input_len\n6;0;5\n", 0, 3, { 5, 5, 5 }, { 6, 6, 6 }, NULL },
		{ "5 6\n7\n", -EINVAL, 3, { 0 }, { 0 }, "line 2" },
		{ "5 0\n", -EINVAL, 3, { 0 }, { 0 }, "line 1" },
		{ "5 -6\n", -EINVAL, 3, { 0 }, { 0 }, "line 1" },
		{ "5 6x\n", -EINVAL, 3, { 0 }, { 0 }, "line 1" },
		{ "5 99999999999\n", -EINVAL, 3, { 0 }, { 0 }, "line 1" },
		{ "# nothing\n", -EINVAL, 3, { 0 }, { 0 }, "no lengths" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct bench_load load = a_load(rows[i].num);
		struct bench_request *r = NULL;
		char path[4096];

		cairn_tmpfile(t, path, sizeof(path), "trace", rows[i].text, strlen(rows[i].text));
		load.trace = path;
		if (!EXPECT(t, bench_load_plan(&load, &r) == rows[i].ret))
			cairn_note(t, "%s: %s", rows[i].text, cairn_last_error());
		if (rows[i].says)
			EXPECT_CONTAINS(t, cairn_last_error(), rows[i].says);
		for (int k = 0; r && k < rows[i].num; k++)
			EXPECT(t, r[k].prompt_tokens == rows[i].prompts[k] &&
					  r[k].max_tokens == rows[i].answers[k]);
		free(r);
	}
}

static void cut_lengths(struct cairn_test *t)
{
	struct bench_load load = a_load(1);
	struct bench_request *r;

	load.shared_prefix = 40;
	load.max_len = 64;
	if (EXPECT(t, !bench_load_plan(&load, &r)))
		EXPECT(t, r[0].prompt_tokens == 34 && r[0].max_tokens == 30);
	free(r);
	load.output_len = 1000;
	if (EXPECT(t, !bench_load_plan(&load, &r)))
		EXPECT(t, r[0].prompt_tokens == 1 && r[0].max_tokens == 63);
	free(r);
}

/* The server's own parser accepts the bodies and reads the planned values from them. */
static void bodies(struct cairn_test *t)
{
	static const char *const models[] = { "m" };
	const struct cairn_api_limits limits = { .vocab_size = 256,
						 .max_context = 4096,
						 .models = models,
						 .num_models = 1,
						 .has_template = true };
	int32_t first[3][50];

	for (size_t i = 0; i < 3; i++) {
		struct bench_load load = a_load(3);
		struct bench_request req = { .prompt_tokens = 50, .max_tokens = 30 };
		struct cairn_api_request got;
		struct cairn_api_error error;
		char *body;
		size_t n;

		load.shared_prefix = 35;
		load.count_tokens = i == 1;
		load.respect_eos = i == 2;
		if (!EXPECT(t, !bench_load_body(&load, &req, i, &body, &n)) ||
		    !EXPECT(t,
			    !cairn_api_request_parse(CAIRN_API_COMPLETION, body, n, &limits, &got, &error)))
			return;
		EXPECT(t, got.num_prompts == 1 && got.prompts[0].num_ids == 50 && got.max_tokens == 30);
		EXPECT(t,
		       got.stream && got.include_usage && got.ignore_eos == (i != 2) && got.temperature == 0);
		EXPECT(t, got.has_seed && got.logprobs == (i == 1 ? 0 : -1));
		memcpy(first[i], got.prompts[0].ids, sizeof(first[i]));
		EXPECT(t, !memcmp(first[i], first[0], 35 * sizeof(int32_t)));
		EXPECT(t, !i || memcmp(first[i], first[0], sizeof(first[i])));
		cairn_api_request_free(&got);
		free(body);
		load.chat = true;
		EXPECT(t, !bench_load_body(&load, &req, i, &body, &n));
		if (EXPECT(t, !cairn_api_request_parse(CAIRN_API_CHAT, body, n, &limits, &got, &error))) {
			EXPECT(t, got.max_tokens == 30 && json_array_size(got.messages) == 1);
			cairn_api_request_free(&got);
		}
		free(body);
	}
}

static void targets(struct cairn_test *t)
{
	static const struct {
		const char *url, *host, *base;
	} rows[] = {
		{ "http://127.0.0.1:8000", "127.0.0.1:8000", "" },
		{ "http://127.0.0.1:8000/v1/", "127.0.0.1:8000", "" },
		{ "http://[::1]:80/a/v1", "[::1]:80", "/a" },
		{ "http://10.0.0.1", "10.0.0.1", "" },
		{ "https://127.0.0.1", NULL, NULL },
		{ "http://localhost:80", NULL, NULL },
		{ "http://", NULL, NULL },
		{ "http://127.0.0.1:99999", NULL, NULL },
		{ "http://127.0.0.1:80x", NULL, NULL },
		{ "http://127.0.0.1:", NULL, NULL },
		{ "http://127.0.0.1/a b", NULL, NULL },
		{ "http://[::1", NULL, NULL },
		{ "http://1.2.3.4.5", NULL, NULL },
		{ "127.0.0.1:80", NULL, NULL },
		{ "http://127.0.0.1:80\r\nX: y", NULL, NULL },
		{ "http://127.0.0.1/\r\n", NULL, NULL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct bench_target got;
		int ret = bench_target_parse(rows[i].url, &got);

		if (!EXPECT(t, rows[i].host ? !ret && !strcmp(got.host, rows[i].host) &&
						      !strcmp(got.base, rows[i].base)
					    : ret == -EINVAL))
			cairn_note(t, "%s: %d %s", rows[i].url, ret, cairn_last_error());
	}
}

static const struct cairn_unit units[] = {
	{ "percentiles", percentiles }, { "arrivals", arrivals },       { "fits", fits },
	{ "traces", traces },           { "cut_lengths", cut_lengths }, { "bodies", bodies },
	{ "targets", targets },
};

const struct cairn_family cairn_bench_serve_load_family = {
	.stage = "serving",
	.name = "bench_serve_load",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
