// SPDX-License-Identifier: Apache-2.0
/* serve_lora_test - adapters that requests choose by the name of the model */
#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "conformance/tables/program.h"
#include "serving/lora/lora_test.h"
#include "serving/serve/tests/serve_test.h"

#define PATH	"/v1/completions"
#define ASK(model)	"{\"prompt\":\"What is 55 - 8?\\n\",\"temperature\":0,\"max_tokens\":8," \
			"\"ignore_eos\":true,\"model\":" model "}"
#define LAYERS	5

static const struct adapter_spec specs[2] = {
	{ "first", 8, 16, 0, 0x7f, 0x1f, 0.1f }, { "second/v2", 4, 8, 0, 0x05, 0x1f, 0.3f },
};

/* Writes "NAME=DIR" of an adapter for the embedded model. */
static void option_of(struct cairn_test *t, const struct cairn_safetensors *st, int i, char *to, size_t len)
{
	struct adapter_spec s = specs[i];
	char dir[PATH_MAX];

	s.name = i ? "second" : "first";
	write_adapter(t, &s, st, LAYERS, dir);
	snprintf(to, len, "%s=%s", specs[i].name, dir);
}

/* Returns the text of an answer by this model, to be freed; NULL: there is none. */
static char *text_by(struct cairn_test *t, const struct server *s, const char *body, const char *name)
{
	json_t *root = answer_of(t, s, PATH, body);
	const char *text = json_string_value(at_path(root, "choices.0.text"));
	const char *model = json_string_value(at_path(root, "model"));
	char *copy = text ? strdup(text) : NULL;

	EXPECT(t, model && !strcmp(model, name));
	json_decref(root);
	return copy;
}

static void by_name(struct cairn_test *t)
{
	static const char *const bodies[] = { ASK("\"embedded\""), ASK("\"first\""), ASK("\"second/v2\"") };
	static const char *const names[] = { "embedded", "first", "second/v2" };
	struct cairn_safetensors *st = NULL;
	static struct reply r;
	char options[2][PATH_MAX + 128], path[PATH_MAX], *texts[3] = { NULL };
	struct server s;

	snprintf(path, sizeof(path), "%s/serving/embedded", cairn_data_dir());
	if (!EXPECT(t, cairn_safetensors_open(path, &st) == 0))
		return;
	for (int i = 0; i < 2; i++)
		option_of(t, st, i, options[i], sizeof(options[i]));
	cairn_safetensors_close(st);
	if (!start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--batch", "8", "--quiet", "--lora",
							options[0], "--lora", options[1], NULL }) ||
	    !EXPECT(t, wait_ready(&s)))
		return;
	for (int k = 0; k < 6; k++) {
		char *text = text_by(t, &s, bodies[k % 3], names[k % 3]);

		if (k < 3)
			texts[k] = text;
		/* the second time the prompt's keys come from the cache, and the answer is the same */
		EXPECT(t, text && texts[k % 3] && !strcmp(text, texts[k % 3]));
		if (k >= 3)
			free(text);
	}
	EXPECT(t, texts[0] && texts[1] && texts[2] && strcmp(texts[0], texts[1]) &&
		  strcmp(texts[0], texts[2]) && strcmp(texts[1], texts[2]));
	EXPECT(t, get(&s, "/v1/models", &r) == 200 && says(&r, "data.0.id", "embedded") &&
		  says(&r, "data.1.id", "first") && says(&r, "data.2.id", "second/v2"));
	EXPECT(t, get(&s, "/v1/models/second/v2", &r) == 200 && says(&r, "id", "second/v2"));
	EXPECT(t, get(&s, "/v1/models/third", &r) == 404);
	EXPECT(t, post(&s, PATH, ASK("\"third\""), &r) == 404 && says(&r, "error.code", "model_not_found"));
	for (int k = 0; k < 3; k++)
		free(texts[k]);
	stop_server(&s);
}

/* Options that are refused before the server listens. */
static void refused(struct cairn_test *t)
{
	static const struct { const char *command, *args[3], *text; } rows[] = {
		{ "serve", { "first" }, "--lora: 'first' is not NAME=DIR" },
		{ "serve", { "=dir" }, "--lora: '=dir' is not NAME=DIR" },
		{ "serve", { "first=" }, "--lora: 'first=' is not NAME=DIR" },
		{ "serve", { "a=/none", "--lora", "a=/other" }, "--lora: two adapters have the name 'a'" },
		{ "serve", { "a=/none", "--tp", "2" }, "--lora: excludes --tp" },
		{ "serve", { "embedded=/none" }, "--lora: 'embedded' is the name of the model" },
		{ "generate", { "a=/none", "--lora", "b=/none" }, "--lora: one prompt takes one adapter" },
		{ "generate", { "a=/none", "--attention-workers", "1" },
		  "--lora: excludes --attention-workers" },
		{ "generate", { "a=/none", "--prompt", "x" }, "--lora: /none/adapter_config.json: " },
	};
	static char out[16384];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char *argv[] = { "cairn", (char *)rows[i].command, "--impl", "cpu", "--lora",
				 (char *)rows[i].args[0], (char *)rows[i].args[1],
				 (char *)rows[i].args[2], NULL };

		EXPECT(t, cairn_spawn(argv, out, sizeof(out)) != 0);
		EXPECT_CONTAINS(t, out, rows[i].text);
	}
}

static const struct cairn_unit units[] = {
	{ "by_name", by_name }, { "refused", refused },
};

const struct cairn_family cairn_serve_lora_family = {
	.stage = "serving", .name = "serve_lora", .units = units, .num_units = ARRAY_SIZE(units),
};
