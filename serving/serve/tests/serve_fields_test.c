// SPDX-License-Identifier: Apache-2.0
/* serve_fields_test - members of a request that change its tokens, and sharing of cached prefixes */
#include <math.h>

#include "conformance/harness.h"
#include "conformance/tables/program.h"
#include "serving/serve/tests/serve_test.h"

#define PATH	"/v1/completions"
#define P	"{\"prompt\":\"What is 55 - 8?\\n\",\"temperature\":0,\"max_tokens\":8"

static bool start(struct cairn_test *t, struct server *s)
{
	return start_server(t, s,
			    (const char *const[]){ "--impl", "cpu", "--batch", "16", "--quiet", NULL }) &&
	       EXPECT(t, wait_ready(s));
}

/* Returns whether the answer is 200. If not, the table must lack the operation and the error must name the
 * field. */
static bool served(struct cairn_test *t, const struct server *s, const char *body, struct reply *r)
{
	int status = post(s, PATH, body, r);

	if (status == 400 && says(r, "error.code", "unsupported_value")) {
		cairn_note(t, "%.200s", r->body);
		return false;
	}
	if (!EXPECT(t, status == 200))
		cairn_note(t, "%s: %.300s", body, r->text);
	return status == 200;
}

static double float_at(const struct reply *r, const char *path)
{
	json_t *root = json_of(r), *v = at_path(root, path);
	double x = json_is_number(v) ? json_number_value(v) : NAN;

	json_decref(root);
	return x;
}

static size_t length_at(const struct reply *r, const char *path)
{
	json_t *root = json_of(r), *v = at_path(root, path);
	size_t n = json_is_array(v) ? json_array_size(v) : json_object_size(v);

	json_decref(root);
	return n;
}

static void logprobs(struct cairn_test *t)
{
	static struct reply r;
	struct server s;
	double first;
	int events = 0;

	if (start(t, &s) && served(t, &s, P ",\"logprobs\":3}", &r)) {
		size_t num = length_at(&r, "choices.0.logprobs.tokens");

		EXPECT(t, says(&r, "choices.0.text", "47") && num == 2);
		EXPECT(t, says(&r, "choices.0.logprobs.tokens.0", "4") &&
				  number_at(&r, "choices.0.logprobs.text_offset.1") == 1);
		EXPECT(t, length_at(&r, "choices.0.logprobs.top_logprobs.0") == 3);
		first = float_at(&r, "choices.0.logprobs.token_logprobs.0");
		EXPECT(t, first <= 0 && first > -1);
		EXPECT(t, float_at(&r, "choices.0.logprobs.top_logprobs.0.4") == first);
		/* streamed: each event carries its token's log-probability, with the same numbers */
		EXPECT(t, post(&s, PATH, P ",\"logprobs\":3,\"stream\":true}", &r) == 200);
		for (char *p = r.body; (p = strstr(p, "\"token_logprobs\":[")); p += 10)
			events += p[18] != ']';
		EXPECT(t, events == 2);
		/* sampled: the drawn token is reported even if it is not among the likeliest */
		EXPECT(t, post(&s, PATH,
			       "{\"prompt\":\"a\",\"temperature\":2,\"ignore_eos\":true,\"max_tokens\":30,"
			       "\"seed\":7,\"logprobs\":0}",
			       &r) == 200);
		EXPECT(t, length_at(&r, "choices.0.logprobs.token_logprobs") == 30 &&
				  !length_at(&r, "choices.0.logprobs.top_logprobs.7"));
	}
	stop_server(&s);
}

static void treated(struct cairn_test *t)
{
	static const char *const ends[] = { "\"min_p\":1", "\"min_p\":0.99999999999", "\"top_p\":1e-300",
					    "\"min_p\":1e-300,\"top_k\":1" };
	static struct reply r;
	struct server s;
	char body[256];

	if (start(t, &s)) {
		if (served(t, &s, P ",\"logit_bias\":{\"75\":100},\"ignore_eos\":true}", &r))
			EXPECT(t, says(&r, "choices.0.text", "llllllll"));
		if (served(t, &s,
			   P ",\"logit_bias\":{\"75\":100},\"frequency_penalty\":2,\"ignore_eos\":true,"
			     "\"presence_penalty\":2,\"repetition_penalty\":10}",
			   &r))
			EXPECT(t, says(&r, "choices.0.finish_reason", "length"));
		if (served(t, &s, P ",\"min_tokens\":5}", &r))
			EXPECT(t, number_at(&r, "usage.completion_tokens") >= 5);
		/* values at the ends of their ranges, which rounding to float may exceed: greedy tokens */
		for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
			snprintf(body, sizeof(body),
				 "{\"prompt\":\"What is 55 - 8?\\n\",\"max_tokens\":8,\"temperature\":1,%s}",
				 ends[i]);
			if (served(t, &s, body, &r))
				EXPECT(t, says(&r, "choices.0.text", "47"));
		}
		EXPECT(t, post(&s, PATH, P "}", &r) == 200 && says(&r, "choices.0.text", "47") &&
				  says(&r, "choices.0.finish_reason", "stop") &&
				  number_at(&r, "usage.completion_tokens") == 3);
		/* the response reports the stop token that ended the answer */
		EXPECT(t,
		       post(&s, "/tokenize", "{\"prompt\":\"7\",\"add_special_tokens\":false}", &r) == 200);
		{
			long long id = number_at(&r, "tokens.0");

			snprintf(body, sizeof(body), P ",\"stop_token_ids\":[%lld]}", id);
			EXPECT(t, post(&s, PATH, body, &r) == 200 && says(&r, "choices.0.text", "4"));
			EXPECT(t, number_at(&r, "choices.0.stop_reason") == id);
		}
		if (served(t, &s,
			   "{\"prompt\":\"What is 55 - "
			   "8?\\n\",\"max_tokens\":8,\"n\":4,\"use_beam_search\":true}",
			   &r)) {
			EXPECT(t, says(&r, "choices.0.text", "47") && length_at(&r, "choices") == 4);
			EXPECT(t, !says(&r, "choices.1.text", "47"));
		}
		/* the widest beam; the worker survives it */
		if (served(t, &s,
			   "{\"prompt\":[52,428,185],\"max_tokens\":118,\"n\":16,\"use_beam_search\":true,"
			   "\"ignore_eos\":true}",
			   &r))
			EXPECT(t, number_at(&r, "usage.completion_tokens") == 16 * 118);
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
		EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == 0);
	}
	stop_server(&s);
}

/* The token that ends an answer counts as one of its tokens, both in usage and in the metrics. */
static void counted(struct cairn_test *t)
{
	static struct reply r;
	struct server s;
	long long tokens = 0;

	if (start(t, &s)) {
		for (int i = 0; i < 4; i++) {
			/* in the last request the first token is the stop token, so the text is empty */
			EXPECT(t, post(&s, PATH, i < 3 ? P "}" : P ",\"logit_bias\":{\"511\":100}}",
				       &r) == 200);
			EXPECT(t, says(&r, "choices.0.text", i < 3 ? "47" : ""));
			tokens += number_at(&r, "usage.completion_tokens");
		}
		EXPECT(t, tokens == 3 * 3 + 1);
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
		EXPECT(t, metric_of(&s, "vllm:generation_tokens_total", "") == (double)tokens);
		EXPECT(t, metric_of(&s, "vllm:request_generation_tokens_sum", "") == (double)tokens);
		EXPECT(t, metric_of(&s, "vllm:time_to_first_token_seconds_count", "") == 4);
		EXPECT(t, metric_of(&s, "vllm:inter_token_latency_seconds_count", "") == 6);
		EXPECT(t, metric_of(&s, "vllm:time_per_output_token_seconds_count", "") == 3);
		EXPECT(t, metric_of(&s, "vllm:request_inference_time_seconds_count", "") == 4);
	}
	stop_server(&s);
}

/* Requests with different salts never share cached prefixes. */
static void salted(struct cairn_test *t)
{
#define LONG                                                                                               \
	"{\"prompt\":\"It was a long way to the town, and longer still on the way back, in the rain.\","   \
	"\"max_tokens\":2,\"cache_salt\":"
	static const struct {
		const char *salt;
		bool hits;
	} rows[] = {
		{ "null", false }, { "null", true },  { "\"a\"", false },  { "\"b\"", false },
		{ "\"a\"", true }, { "\"b\"", true }, { "\"ab\"", false }, { "null", true },
	};
	static struct reply r;
	struct server s;
	char body[512];

	if (start(t, &s)) {
		for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
			long long cached;

			snprintf(body, sizeof(body), LONG "%s}", rows[i].salt);
			EXPECT(t, post(&s, PATH, body, &r) == 200);
			cached = number_at(&r, "usage.prompt_tokens_details.cached_tokens");
			if (!EXPECT(t, rows[i].hits ? cached >= 16 : !cached))
				cairn_note(t, "%zu: %s: %lld", i, rows[i].salt, cached);
		}
		EXPECT(t, WAIT_FOR(metric_of(&s, "vllm:prefix_cache_hits_total", "") >= 64, 5000));
	}
	stop_server(&s);
}

/* Sends prompt number i, of 64 tokens, and returns how many of its tokens were cached. */
static long long cached_of(struct cairn_test *t, const struct server *s, int i)
{
	static struct reply r;
	char body[1024];
	int n = snprintf(body, sizeof(body), "{\"max_tokens\":2,\"prompt\":[");

	for (int k = 0; k < 64; k++)
		n += snprintf(body + n, sizeof(body) - (size_t)n, "%s%d", k ? "," : "",
			      20 + (k * 7 + i * 11) % 90);
	snprintf(body + n, sizeof(body) - (size_t)n, "]}");
	EXPECT(t, post(s, PATH, body, &r) == 200);
	return number_at(&r, "usage.prompt_tokens_details.cached_tokens");
}

/* Repeats a prompt after its pages have been evicted from the device, and again after eviction from host
 * memory. */
static void kept(struct cairn_test *t)
{
#define FEW	"--impl", "cpu", "--quiet", "--batch", "1", "--max-context", "80", "--pages", "5"
	static const char *const tiers[][16] = {
		{ FEW, NULL }, { FEW, "--host-pages", "40", NULL },
		{ FEW, "--host-pages", "10", "--disk-pages", "60", "--disk-dir", ".", NULL },
	};
	struct server s;

	for (size_t i = 0; i < ARRAY_SIZE(tiers); i++) {
		if (start_server(t, &s, tiers[i]) && EXPECT(t, wait_ready(&s))) {
			for (int k = 0; k < 8; k++)
				EXPECT(t, cached_of(t, &s, k) == 0);
			EXPECT(t, (cached_of(t, &s, 0) >= 48) == (i > 0));
		}
		stop_server(&s);
	}
}

static bool is_null(const struct reply *r, const char *path)
{
	json_t *root = json_of(r);
	bool is = json_is_null(at_path(root, path));

	json_decref(root);
	return is;
}

/* Asks for log-probabilities of the prompt's tokens in the forms that lm-eval sends. */
static void echoed(struct cairn_test *t)
{
#define LP	"choices.0.logprobs."
	static const char *const bad[][2] = {
		{ "{\"prompt\":\"a\",\"max_tokens\":0,\"logprobs\":1}", "max_tokens" },
	};
	static struct reply r;
	struct server s;
	char body[1024], path[64];
	double answer[2];
	long long num;

	if (start(t, &s) && served(t, &s, P ",\"logprobs\":1,\"echo\":true}", &r)) {
		EXPECT(t, says(&r, "choices.0.text", "What is 55 - 8?\n47"));
		num = number_at(&r, "usage.prompt_tokens");
		EXPECT(t, number_at(&r, "usage.completion_tokens") == 3 &&
				  length_at(&r, LP "tokens") == (size_t)num + 2);
		EXPECT(t, is_null(&r, LP "token_logprobs.0") && is_null(&r, LP "top_logprobs.0"));
		snprintf(path, sizeof(path), LP "text_offset.%lld", num + 1);
		EXPECT(t, number_at(&r, path) == 17);
		for (int i = 0; i < 2; i++) {
			snprintf(path, sizeof(path), LP "token_logprobs.%lld", num + i);
			answer[i] = float_at(&r, path);
		}
		/* the answer's tokens have the same log-probabilities when sent as part of the prompt */
		for (int i = 0; i < 2; i++) {
			EXPECT(t, post(&s, PATH,
				       "{\"prompt\":\"What is 55 - 8?\\n47\",\"max_tokens\":0,\"echo\":true,"
				       "\"logprobs\":1}", &r) == 200);
			EXPECT(t, says(&r, "choices.0.text", "What is 55 - 8?\n47") &&
					  says(&r, "choices.0.finish_reason", "length") &&
					  number_at(&r, "usage.completion_tokens") == 0 &&
					  number_at(&r, "usage.prompt_tokens_details.cached_tokens") == 0);
			EXPECT(t, length_at(&r, LP "tokens") == (size_t)num + 2 &&
					  length_at(&r, LP "top_logprobs") == (size_t)num + 2);
			for (int k = 0; k < 2; k++) {
				snprintf(path, sizeof(path), LP "token_logprobs.%lld", num + k);
				EXPECT(t, fabs(float_at(&r, path) - answer[k]) < 0.05);
			}
			snprintf(path, sizeof(path), LP "top_logprobs.%lld.7", num + 1);
			EXPECT(t, fabs(float_at(&r, path) - answer[1]) < 0.05);
		}
		/* with ids, and an answer of one token that ends the text: it is listed after the prompt */
		EXPECT(t, post(&s, "/tokenize", "{\"prompt\":\"What is 55 - 8?\\n47\"}", &r) == 200);
		{
			json_t *root = json_of(&r);
			char *ids = json_dumps(json_object_get(root, "tokens"), JSON_COMPACT);

			snprintf(body, sizeof(body),
				 "{\"prompt\":[%s,[5]],\"max_tokens\":1,\"temperature\":0,"
				 "\"echo\":true,\"logprobs\":1}", ids ? ids : "");
			free(ids);
			json_decref(root);
		}
		EXPECT(t, post(&s, PATH, body, &r) == 200);
		EXPECT(t, length_at(&r, LP "token_logprobs") == (size_t)num + 3 &&
				  length_at(&r, "choices.1.logprobs.token_logprobs") == 2);
		snprintf(path, sizeof(path), LP "token_logprobs.%lld", num + 2);
		EXPECT(t, float_at(&r, path) <= 0);
		/* text alone, with two answers */
		EXPECT(t, post(&s, PATH, "{\"prompt\":\"What is 55 - 8?\\n\",\"echo\":true,\"max_tokens\":0,"
					 "\"n\":2}", &r) == 200);
		EXPECT(t, says(&r, "choices.1.text", "What is 55 - 8?\n") &&
				  is_null(&r, "choices.0.logprobs"));
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
			EXPECT(t, post(&s, PATH, bad[i][0], &r) == 400 && says(&r, "error.param", bad[i][1]));
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
		EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == 0);
	}
	stop_server(&s);
}

/* Makes a copy of the embedded model with this generation_config.json. */
static const char *model_with(struct cairn_test *t, const char *generation)
{
	static const char *const files[] = { "config.json", "tokenizer.json", "model.safetensors" };
	char path[PATH_MAX], target[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%.2000s/%s", cairn_tmpdir(t), files[i]);
		snprintf(target, sizeof(target), "%.2000s/serving/embedded/%s", cairn_data_dir(), files[i]);
		EXPECT(t, symlink(target, path) == 0);
	}
	cairn_tmpfile(t, path, sizeof(path), "generation_config.json", generation, strlen(generation));
	return cairn_tmpdir(t);
}

static char *text_of(const struct reply *r)
{
	json_t *root = json_of(r);
	const char *text = json_string_value(at_path(root, "choices.0.text"));
	char *copy = strdup(text ? text : "");

	json_decref(root);
	return copy;
}

/* Requests that set no temperature take that of generation_config.json, unless it is switched off. */
static void model_defaults(struct cairn_test *t)
{
#define LONE	"{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":24,\"seed\":7"
	static const char *const bodies[] = {
		LONE "}", LONE ",\"temperature\":0}", LONE ",\"temperature\":2,\"top_k\":0}",
		LONE ",\"temperature\":1,\"top_k\":0}",
	};
	const char *dir = model_with(t, "{\"do_sample\": false, \"temperature\": 2.0, \"top_k\": 1}");
	static struct reply r;
	static char log[65536];
	struct server s;

	for (int off = 0; off < 2; off++) {
		char *text[ARRAY_SIZE(bodies)] = { NULL };

		if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", "--model", dir,
							       "--generation-config", off ? "none" : "auto",
							       NULL }) &&
		    EXPECT(t, wait_ready(&s))) {
			for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
				EXPECT(t, post(&s, PATH, bodies[i], &r) == 200);
				text[i] = text_of(&r);
			}
			/* the file's top_k 1 makes it greedy; without the file, temperature is OpenAI's 1 */
			EXPECT(t, !strcmp(text[0], text[off ? 3 : 1]) && strcmp(text[1], text[2]) &&
					  strcmp(text[1], text[3]));
			log_of(&s, log, sizeof(log));
			EXPECT(t, (strstr(log, "generation_config.json: defaults of requests: temperature 2, "
					       "top_k 1\n") != NULL) == !off);
		}
		for (size_t i = 0; i < ARRAY_SIZE(bodies); i++)
			free(text[i]);
		stop_server(&s);
	}
}

static const struct cairn_unit units[] = {
	{ "logprobs", logprobs }, { "treated", treated }, { "counted", counted },
	{ "salted", salted },
	{ "kept", kept },
	{ "model_defaults", model_defaults }, { "echoed", echoed },
};

const struct cairn_family cairn_serve_fields_family = {
	.stage = "serving", .name = "serve_fields", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 120,
	.waits = 1,
};
