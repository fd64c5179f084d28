// SPDX-License-Identifier: Apache-2.0
/*
 * serve_goes_on_test - answers whose worker is killed are those of the undisturbed server
 *
 * Each request runs undisturbed, and again while its worker is killed after some tokens: several sampled
 * answers with penalties, a stop string and log-probabilities, a beam search, the log-probabilities of a
 * prompt; with and without a stream. Texts, log-probabilities and usage must be equal.
 */
#include "conformance/harness.h"
#include "serving/serve/tests/serve_kill_test.h"

enum { TEXT = 1 << 16 };

static const struct {
	int may_stream;
	const char *body;
} requests[] = {
	{ 1, "\"prompt\":\"What is\",\"n\":3,\"seed\":5,\"temperature\":1,\"presence_penalty\":0.5,"
	     "\"repetition_penalty\":1.2,\"logprobs\":2,\"max_tokens\":300,\"min_tokens\":40,"
	     "\"stop\":[\"qzq\"]" },
	{ 1, "\"prompt\":[\"What is 7 + 8?\",\"a\"],\"seed\":9,\"temperature\":1,\"max_tokens\":100,"
	     "\"ignore_eos\":true,\"frequency_penalty\":0.3" },
	{ 0, "\"prompt\":\"What is 55 - 8?\",\"n\":2,\"use_beam_search\":true,\"max_tokens\":60,"
	     "\"ignore_eos\":true" },
	{ 0, "\"prompt\":\"What is 5 + 8?\",\"prompt_logprobs\":1,\"temperature\":0,\"max_tokens\":200,"
	     "\"ignore_eos\":true" },
};

/* Joins what the events of a stream say about each choice, since their bounds depend on time. */
static void join_events(const char *body, json_t *to)
{
	for (const char *at = body; (at = strstr(at, "data: {")); at++) {
		json_t *event = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
		json_t *choices = json_object_get(event, "choices"), *c;
		size_t i;

		json_array_foreach(choices, i, c) {
			const char *text = json_string_value(json_object_get(c, "text"));
			json_t *probs = json_object_get(json_object_get(c, "logprobs"), "token_logprobs"), *p;
			char key[32], joined[TEXT];
			size_t k;

			snprintf(key, sizeof(key), "%lld", json_integer_value(json_object_get(c, "index")));
			snprintf(joined, sizeof(joined), "%s%s",
				 json_object_get(to, key) ? json_string_value(json_object_get(to, key)) : "",
				 text ? text : "");
			json_object_set_new(to, key, json_string(joined));
			strcat(key, " probs");
			if (!json_object_get(to, key))
				json_object_set_new(to, key, json_array());
			json_array_foreach(probs, k, p)
				json_array_append(json_object_get(to, key), p);
			if (json_is_string(json_object_get(c, "finish_reason"))) {
				strcat(key, " end");
				json_object_set(to, key, json_object_get(c, "finish_reason"));
			}
		}
		json_decref(event);
	}
	json_object_set_new(to, "done", json_boolean(strstr(body, "[DONE]") != NULL));
}

/* Returns what of the answer does not depend on time, a new reference. */
static json_t *essence(const struct reply *r, int stream)
{
	json_t *all = json_object(), *root = stream ? NULL : json_of(r);

	if (stream)
		join_events(r->body, all);
	json_object_set(all, "choices", json_object_get(root, "choices"));
	json_object_set(all, "usage", json_object_get(root, "usage"));
	json_decref(root);
	return all;
}

/* Asks, and kills the worker once the request has some tokens more. Returns the answer's essence. */
static json_t *ask_killing(struct cairn_test *t, const struct server *s, const char *body, int stream,
			   int kills)
{
	static struct reply r;
	char text[1024];
	double before;
	int fd, status;

	/* metrics follow answers: those of the request before would look like the beginning of this one */
	EXPECT(t, WAIT_FOR(is_quiet(s), 30000));
	before = metric_of(s, "vllm:generation_tokens_total", "");
	snprintf(text, sizeof(text), "{%s%s}", body, stream ? ",\"stream\":true" : "");
	fd = ask_stream(s, "/v1/completions", text);
	for (int i = 0; i < kills; i++) {
		const int pid = worker_of(s);

		/* tokens of beams count only at the end; a request that was not taken yet would be refused */
		EXPECT(t, WAIT_FOR(metric_of(s, "vllm:generation_tokens_total", "") > before + 5 + 20 * i ||
				   (strstr(body, "beam") &&
				    metric_of(s, "vllm:num_requests_running", "") > 0), 30000));
		kill(pid, SIGKILL);
		EXPECT(t, WAIT_FOR(worker_of(s) != pid, 30000));
	}
	status = read_reply_of(fd, &r, 60000, true);
	close(fd);
	if (!EXPECT(t, status == 200))
		cairn_note(t, "%s: %.300s", text, r.text);
	return essence(&r, stream);
}

static void same_answers(struct cairn_test *t)
{
	struct server s;

	if (!start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--batch", "8", "--quiet",
							"--decode", "unfused", "--resume-limit", "100",
							NULL }) ||
	    !EXPECT(t, wait_ready(&s)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(requests); i++) {
		for (int stream = 0; stream <= requests[i].may_stream; stream++) {
			json_t *want = ask_killing(t, &s, requests[i].body, stream, 0);
			json_t *got = ask_killing(t, &s, requests[i].body, stream, 1 + (i == 0));

			if (!EXPECT(t, json_equal(want, got))) {
				char *a = json_dumps(want, 0), *b = json_dumps(got, 0);

				cairn_note(t, "%s, stream %d: %.600s", requests[i].body, stream, a);
				cairn_note(t, "got %.600s", b);
				free(a);
				free(b);
			}
			json_decref(want);
			json_decref(got);
		}
	}
	EXPECT(t, WAIT_FOR(is_quiet(&s), 30000));
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "same_answers", same_answers },
};

const struct cairn_family cairn_serve_goes_on_family = {
	.stage = "serving", .name = "serve_goes_on", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};
