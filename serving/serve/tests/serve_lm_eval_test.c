// SPDX-License-Identifier: Apache-2.0
/*
 * serve_lm_eval_test - sends the requests of lm-evaluation-harness (local-completions and
 * local-chat-completions) and checks what the harness reads from the answers
 */
#include <math.h>

#include "conformance/harness.h"
#include "conformance/tables/program.h"
#include "serving/serve/tests/serve_test.h"

#define SCORE	"\"temperature\": 0, \"max_tokens\": 1, \"logprobs\": 1, \"seed\": 1234, \"echo\": true}"
#define DRAW	"\"max_tokens\": 8, \"temperature\": 0, \"seed\": 1234, \"stop\": "
#define STOPS	"[\"Question:\", \"</s>\", \"<|im_end|>\"]"
#define MORE	"[\"\\nclass\", \"\\ndef\", \"\\n#\", \"\\nif\", \"\\nprint\", \"7\", \"<|endoftext|>\"]"

/* The embedded model's question, continued by the right number and by a wrong one. */
static const char *const texts[] = { "What is 55 - 8?\\n47", "What is 55 - 8?\\n48" };

/* Sums the numbers from position ctx on, except the last, as lm-eval does. *greedy: each is the largest of
 * its position. */
static double sum_up(json_t *choice, size_t ctx, bool *greedy)
{
	json_t *numbers = at_path(choice, "logprobs.token_logprobs");
	json_t *tops = at_path(choice, "logprobs.top_logprobs");
	double sum = 0;

	*greedy = true;
	for (size_t i = ctx; i + 1 < json_array_size(numbers); i++) {
		double mine = json_number_value(json_array_get(numbers, i)), most = -INFINITY;
		const char *key;
		json_t *one;

		json_object_foreach(json_array_get(tops, i), key, one) most =
			fmax(most, json_number_value(one));
		*greedy &= mine == most;
		sum += mine;
	}
	return sum;
}

/* Asks as lm-eval does, with an empty key. Returns the answer's JSON, a new reference. */
static json_t *ask_as_lm_eval(struct cairn_test *t, const struct server *s, const char *path,
			      const char *body)
{
	static const char head[] = "Accept: */*\r\nAccept-Encoding: gzip, deflate\r\n"
				   "Authorization: Bearer \r\nUser-Agent: Python/3.12 aiohttp/3.11.11\r\n";
	static struct reply r;
	char text[4096];

	if (EXPECT(t, talk(s, text, format_request(text, sizeof(text), "POST", path, head, body), &r) == 200))
		return json_of(&r);
	cairn_note(t, "%s: %.300s", body, r.text);
	return NULL;
}

/* Returns the JSON of both texts' token ids; *ctx: tokens before the number, whose two digits are tokens. */
static char *ids_of_texts(struct cairn_test *t, const struct server *s, size_t *ctx)
{
	json_t *prompts = json_array(), *root;
	char body[128], *text;

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		snprintf(body, sizeof(body), "{\"prompt\":\"%s\"}", texts[i]);
		root = answer_of(t, s, "/tokenize", body);
		json_array_append(prompts, json_object_get(root, "tokens"));
		json_decref(root);
	}
	*ctx = json_array_size(json_array_get(prompts, 0)) - 2;
	text = json_dumps(prompts, 0);
	json_decref(prompts);
	return text;
}

static void judge(struct cairn_test *t, json_t *root, size_t num, size_t ctx)
{
	static const char *const lists[] = { "logprobs.tokens", "logprobs.token_logprobs",
					     "logprobs.top_logprobs" };

	EXPECT(t, json_array_size(json_object_get(root, "choices")) == num);
	for (size_t i = 0; i < num; i++) {
		json_t *c = json_array_get(json_object_get(root, "choices"), i);
		bool greedy;
		double sum = sum_up(c, ctx, &greedy);

		EXPECT(t, json_integer_value(json_object_get(c, "index")) == (int)i);
		/* max_tokens is always one more than the prompt has, even if that token ends the answer */
		for (size_t k = 0; k < ARRAY_SIZE(lists); k++)
			EXPECT(t, json_array_size(at_path(c, lists[k])) == ctx + 3);
		/* the model is sure of its answer */
		EXPECT(t, greedy == !i && (i ? sum < -1 : sum <= 0 && sum > -0.5));
	}
}

static void loglikelihood(struct cairn_test *t)
{
	struct server s;
	char body[2048], *ids;
	json_t *root;
	size_t ctx;

	if (start_chat(t, &s) && EXPECT(t, wait_ready(&s))) {
		ids = ids_of_texts(t, &s, &ctx);
		for (int form = 0; form < 3; form++) {
			int n = snprintf(body, sizeof(body), "{\"model\": \"embedded\", \"prompt\": ");

			if (form == 0)
				n += snprintf(body + n, sizeof(body) - (size_t)n, "%s", ids);
			else if (form == 1)
				n += snprintf(body + n, sizeof(body) - (size_t)n, "[\"%s\", \"%s\"]",
					      texts[0], texts[1]);
			else
				n += snprintf(body + n, sizeof(body) - (size_t)n, "\"%s\"", texts[0]);
			snprintf(body + n, sizeof(body) - (size_t)n, ", " SCORE);
			root = ask_as_lm_eval(t, &s, "/v1/completions", body);
			judge(t, root, form < 2 ? 2 : 1, ctx);
			json_decref(root);
		}
		free(ids);
	}
	stop_server(&s);
}

/* Some tasks have more stop strings than OpenAI's API takes. Each message carries the type of its content. */
static void generate_until(struct cairn_test *t)
{
#define TWO	"[\"What is 55 - 8?\\n\", \"What is 9 + 9?\\n\"]"
#define CHAT	"[{\"role\": \"user\", \"content\": \"What is 55 - 8?\\n\", \"type\": \"text\"}]"
	static const char *const rows[][4] = {
		{ "/v1/completions", "{\"model\": \"embedded\", \"prompt\": " TWO ", " DRAW STOPS "}",
		  "choices.0.text", "47" },
		{ "/v1/completions", "{\"model\": \"embedded\", \"prompt\": " TWO ", " DRAW MORE "}",
		  "choices.0.text", "4" },
		{ "/v1/completions", "{\"model\": \"embedded\", \"prompt\": " TWO ", " DRAW "[]}",
		  "choices.1.text", "18" },
		{ "/v1/chat/completions", "{\"model\": \"embedded\", \"messages\": " CHAT ", " DRAW STOPS "}",
		  "choices.0.message.content", NULL },
	};
	struct server s;

	if (start_chat(t, &s) && EXPECT(t, wait_ready(&s))) {
		for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
			json_t *root = ask_as_lm_eval(t, &s, rows[i][0], rows[i][1]);
			const char *text = json_string_value(at_path(root, rows[i][2]));

			if (!EXPECT(t, text && (!rows[i][3] || !strcmp(text, rows[i][3]))))
				cairn_note(t, "%zu: %s", i, text ? text : "no text");
			json_decref(root);
		}
	}
	stop_server(&s);
}

static const struct cairn_unit units[] = {
	{ "loglikelihood", loglikelihood }, { "generate_until", generate_until },
};

const struct cairn_family cairn_serve_lm_eval_family = {
	.stage = "serving", .name = "serve_lm_eval", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 120,
	.waits = 1,
};
