// SPDX-License-Identifier: Apache-2.0
/* serve_score_test - log-probabilities of prompts, and answers that repeat their prompt */
#include <math.h>

#include "conformance/harness.h"
#include "conformance/tables/program.h"
#include "serving/serve/tests/serve_test.h"

#define PATH	"/v1/completions"
#define P	"\"prompt\":\"What is 55 - 8?\\n47\",\"temperature\":0"

static bool start(struct cairn_test *t, struct server *s)
{
	return start_chat(t, s) && EXPECT(t, wait_ready(s));
}

static double number(json_t *root, const char *path)
{
	const json_t *v = at_path(root, path);

	return json_is_number(v) ? json_number_value(v) : NAN;
}

static json_t *at_index(json_t *object, const char *name, size_t i)
{
	return json_array_get(json_object_get(object, name), i);
}

/*
 * Compares prompt_logprobs with logprobs. Both list the same tokens of the same request, with the same number
 * of likeliest tokens. ids: the prompt's ids.
 */
static void judge(struct cairn_test *t, json_t *list, json_t *logprobs, const json_t *ids, size_t top)
{
	EXPECT(t, json_array_size(list) == json_array_size(ids) && json_is_null(json_array_get(list, 0)));
	for (size_t i = 1; i < json_array_size(ids); i++) {
		json_t *one = json_array_get(list, i), *it, *likely;
		const char *text = json_string_value(at_index(logprobs, "tokens", i));
		double want = json_number_value(at_index(logprobs, "token_logprobs", i));
		const char *key, *first = NULL;
		size_t rank = 0, ranked = 0;
		char id[16];

		snprintf(id, sizeof(id), "%d", (int)json_integer_value(json_array_get(ids, i)));
		it = json_object_get(one, id);
		EXPECT(t, number(it, "logprob") == want);
		EXPECT(t, text && !strcmp(json_string_value(json_object_get(it, "decoded_token")), text));
		json_object_foreach(one, key, likely)
		{
			first = first ? first : key;
			rank += number(likely, "logprob") > want;
			ranked += json_integer_value(json_object_get(likely, "rank")) <= (int)top;
		}
		/* vLLM lists the prompt's token first */
		EXPECT(t, first && !strcmp(first, id) && ranked >= top);
		rank++;
		EXPECT(t, json_object_size(one) == top || json_object_size(one) == top + 1);
		if (json_object_size(one) == top)
			EXPECT(t, json_integer_value(json_object_get(it, "rank")) == (int)rank);
		else
			EXPECT(t, json_is_null(json_object_get(it, "rank")) ||
					  json_integer_value(json_object_get(it, "rank")) > (int)top);
	}
}

static json_t *ids_of(struct cairn_test *t, const struct server *s)
{
	json_t *root = answer_of(t, s, "/tokenize", "{\"prompt\":\"What is 55 - 8?\\n47\"}");
	json_t *ids = json_incref(json_object_get(root, "tokens"));

	json_decref(root);
	return ids;
}

static void prompt_logprobs(struct cairn_test *t)
{
	static const char *const bodies[] = {
		"{" P ",\"echo\":true,\"logprobs\":4,\"prompt_logprobs\":4,\"max_tokens\":0}",
		"{" P ",\"echo\":true,\"logprobs\":4,\"prompt_logprobs\":4,\"max_tokens\":2,\"n\":2}",
		"{" P ",\"echo\":true,\"logprobs\":4,\"prompt_logprobs\":4,\"max_completion_tokens\":0}",
	};
	struct server s;
	json_t *root, *ids;

	if (start(t, &s)) {
		ids = ids_of(t, &s);
		/* the prompt is not cached, then cached, then shared by two answers */
		json_decref(answer_of(t, &s, PATH, "{" P ",\"max_tokens\":3}"));
		for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
			root = answer_of(t, &s, PATH, bodies[i]);
			for (int k = 0; k < 1 + (i == 1); k++) {
				json_t *c = json_array_get(json_object_get(root, "choices"), (size_t)k);

				judge(t, json_object_get(c, "prompt_logprobs"),
				      json_object_get(c, "logprobs"), ids, 4);
			}
			json_decref(root);
		}
		/* prompt_logprobs and logprobs may ask for different numbers of tokens */
		root = answer_of(t, &s, PATH,
			   "{" P ",\"echo\":true,\"logprobs\":3,\"prompt_logprobs\":0,\"max_tokens\":1}");
		EXPECT(t, json_object_size(at_path(root, "choices.0.prompt_logprobs.3")) == 1 &&
				  json_object_size(at_path(root, "choices.0.logprobs.top_logprobs.3")) == 3);
		json_decref(root);
		root = answer_of(t, &s, PATH,
				 "{\"prompt\":[[5],[5,6,7]],\"prompt_logprobs\":20,\"max_tokens\":1}");
		EXPECT(t, json_array_size(at_path(root, "choices.0.prompt_logprobs")) == 1 &&
				  json_object_size(at_path(root, "choices.1.prompt_logprobs.2")) >= 20 &&
				  json_is_null(at_path(root, "choices.1.logprobs")));
		json_decref(root);
		root = answer_of(t, &s, "/v1/chat/completions",
				 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
				 "\"prompt_logprobs\":1,\"max_tokens\":1}");
		EXPECT(t, !at_path(root, "choices.0.prompt_logprobs") &&
				  json_array_size(json_object_get(root, "prompt_logprobs")) ==
					  (size_t)json_integer_value(at_path(root, "usage.prompt_tokens")));
		json_decref(root);
		json_decref(ids);
		EXPECT(t, WAIT_FOR(is_quiet(&s), 30000) &&
				  metric_of(&s, "cairn:worker_restarts_total", "") == 0);
	}
	stop_server(&s);
}

/* Returns a body of 128 prompts of 100 tokens with n 2. */
static const char *long_body(const char *members)
{
	static char body[1 << 16];
	size_t n = (size_t)snprintf(body, sizeof(body), "{\"n\":2,\"max_tokens\":1,%s,\"prompt\":[", members);

	for (int i = 0; i < 128; i++) {
		for (int k = 0; k < 100; k++)
			n += (size_t)snprintf(body + n, sizeof(body) - n, "%s%d",
					      k ? "," : i ? "],[" : "[", 5 + k % 7);
	}
	snprintf(body + n, sizeof(body) - n, "]]}");
	return body;
}

static void refused(struct cairn_test *t)
{
	static const char *const bad[][2] = {
		{ "{" P ",\"prompt_logprobs\":1,\"stream\":true}", "prompt_logprobs" },
		{ "{" P ",\"prompt_logprobs\":-1}", "prompt_logprobs" },
		{ "{" P ",\"prompt_logprobs\":1,\"use_beam_search\":true}", "prompt_logprobs" },
		{ "{" P ",\"echo\":true,\"logprobs\":0,\"use_beam_search\":true,\"n\":2}", "logprobs" },
	};
	static struct reply r;
	struct server s;

	if (start(t, &s)) {
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
			EXPECT(t, post(&s, PATH, bad[i][0], &r) == 400 && says(&r, "error.param", bad[i][1]));
		/* the answer's size is bounded */
		EXPECT(t, post(&s, PATH, long_body("\"prompt_logprobs\":10"), &r) == 400 &&
				  says(&r, "error.param", "prompt_logprobs"));
		EXPECT(t, is_quiet(&s));
	}
	stop_server(&s);
}

/* The events of one choice of a stream, joined. */
struct joined {
	char text[1024];
	double logprobs[64];
	size_t num_logprobs, num_tops;
	bool ended;
};

static void join(struct cairn_test *t, const char *stream, int index, struct joined *j)
{
	*j = (struct joined){ .ended = false };
	for (const char *line = stream; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		json_t *root = strncmp(line, "data: {", 7) ? NULL :
			       json_loadb(line + 6, strcspn(line, "\n") - 6, 0, NULL), *lp, *one;
		size_t i;

		if (json_integer_value(at_path(root, "choices.0.index")) == index &&
		    at_path(root, "choices.0")) {
			EXPECT(t, !j->ended);
			strncat(j->text, json_string_value(at_path(root, "choices.0.text")),
				sizeof(j->text) - strlen(j->text) - 1);
			lp = at_path(root, "choices.0.logprobs");
			json_array_foreach(json_object_get(lp, "token_logprobs"), i, one)
			{
				if (j->num_logprobs < ARRAY_SIZE(j->logprobs))
					j->logprobs[j->num_logprobs++] =
						json_is_null(one) ? NAN : json_number_value(one);
			}
			j->num_tops += json_array_size(json_object_get(lp, "top_logprobs"));
			j->ended = json_is_string(at_path(root, "choices.0.finish_reason"));
		}
		json_decref(root);
	}
}

/* A stream with echo has the same text and the same numbers as the whole answer. */
static void echo_stream(struct cairn_test *t)
{
#define TWO                                                                                                \
	"{\"prompt\":[\"What is 55 - 8?\\n47\",\"a\"],\"temperature\":0,\"echo\":true,\"ignore_eos\":true"
	static const char *const members[] = {
		",\"max_tokens\":4", ",\"max_tokens\":4,\"logprobs\":2", ",\"max_tokens\":0,\"logprobs\":0",
		",\"max_tokens\":0",
	};
	static struct reply r;
	struct server s;
	struct joined j;
	char body[512], path[64];

	for (size_t i = 0; i < ARRAY_SIZE(members) && (i || start(t, &s)); i++) {
		json_t *whole;

		snprintf(body, sizeof(body), TWO "%s}", members[i]);
		whole = answer_of(t, &s, PATH, body);
		snprintf(body, sizeof(body), TWO "%s,\"stream\":true}", members[i]);
		EXPECT(t, post(&s, PATH, body, &r) == 200 && strstr(r.body, "data: [DONE]"));
		for (int k = 0; k < 2; k++) {
			const char *text;
			json_t *lp;

			join(t, r.body, k, &j);
			snprintf(path, sizeof(path), "choices.%d.text", k);
			text = json_string_value(at_path(whole, path));
			EXPECT(t, j.ended && text && !strcmp(j.text, text));
			snprintf(path, sizeof(path), "choices.%d.logprobs.token_logprobs", k);
			lp = at_path(whole, path);
			EXPECT(t, j.num_logprobs == json_array_size(lp) && j.num_logprobs == j.num_tops &&
					  (j.num_logprobs > 0) == (i == 1 || i == 2));
			for (size_t n = 0; n < j.num_logprobs; n++) {
				const json_t *want = json_array_get(lp, n);

				EXPECT(t, json_is_null(want) ? !n && isnan(j.logprobs[n]) :
					  j.logprobs[n] == json_number_value(want));
			}
		}
		json_decref(whole);
	}
	EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	stop_server(&s);
}

/* Every beam repeats the prompt. */
static void echo_beams(struct cairn_test *t)
{
#define BEAMS	"{\"prompt\":\"What is 55 - 8?\\n\",\"max_tokens\":8,\"n\":3,\"use_beam_search\":true"
	struct server s;
	json_t *plain, *echoed;

	if (start(t, &s)) {
		plain = answer_of(t, &s, PATH, BEAMS "}");
		echoed = answer_of(t, &s, PATH, BEAMS ",\"echo\":true}");
		for (int i = 0; i < 3; i++) {
			const char *a, *b;
			char path[64];

			snprintf(path, sizeof(path), "choices.%d.text", i);
			a = json_string_value(at_path(plain, path));
			b = json_string_value(at_path(echoed, path));
			EXPECT(t, a && b && !strncmp(b, "What is 55 - 8?\n", 16) && !strcmp(b + 16, a));
		}
		json_decref(plain);
		json_decref(echoed);
	}
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "prompt_logprobs", prompt_logprobs }, { "refused", refused },
	{ "echo_stream", echo_stream }, { "echo_beams", echo_beams },
};

const struct cairn_family cairn_serve_score_family = {
	.stage = "serving", .name = "serve_score", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 120,
	.waits = 1,
};
