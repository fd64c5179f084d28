// SPDX-License-Identifier: Apache-2.0
/* generate_test - runs the commands generate and eval as a user would */
#include <sys/stat.h>

#include "conformance/harness.h"

#include "conformance/suite/fake_card_test.h"
#include "serving/grammar/grammar.h"
#include "serving/base/json.h"
#include "serving/cli/command.h"
#include "serving/plan/plan_engine.h"
#include "serving/template/chat_template.h"
#include "serving/model/model_graph.h"
#include "serving/model/model_test.h"

#define MAX_ARGS	16

/* Runs `cairn ARGS` and returns its exit status; out: [16 KiB], its output. */
static int cairn(char *out, const char *const *args)
{
	char *argv[MAX_ARGS + 2] = { "cairn" };

	for (int i = 0; i < MAX_ARGS && args[i]; i++)
		argv[i + 1] = (char *)args[i];
	return cairn_spawn(argv, out, 16384);
}

#define CAIRN(out, ...) cairn(out, (const char *const[MAX_ARGS + 1]){ __VA_ARGS__, NULL })

/* Returns the argument of --impl for a table, or NULL if the table is not available. */
static const char *open_named(struct cairn_test *t, const char *table, struct cairn_impl *impl)
{
	static char path[PATH_MAX];

	if (open_table(t, table, impl))
		return NULL;
	return strcmp(table, "late") ? table : cairn_beside("late_plugin.so", path, PATH_MAX) ? path : NULL;
}

static void eval(struct cairn_test *t, const char *table, const char *limit, const char *min_accuracy)
{
	struct cairn_impl impl;
	char out[16384];

	table = open_named(t, table, &impl);
	if (!table)
		return;
	if (!EXPECT(t, CAIRN(out, "eval", "--impl", table, "--limit", limit, "--min-accuracy",
			     min_accuracy) == 0))
		cairn_note(t, "%s", out);
	EXPECT_CONTAINS(t, out, "arith");
	EXPECT_CONTAINS(t, out, "all");
}

static void eval_ref(struct cairn_test *t)
{
	eval(t, "ref", "10", "90");
}

static void eval_cpu(struct cairn_test *t)
{
	eval(t, "cpu", "100", "95");
}

static void eval_cuda(struct cairn_test *t)
{
	eval(t, "cuda", "400", "95");
}

/* With 8-bit keys and values the embedded model gives as many right answers as with 16 bits. */
static void eval_kv_fp8(struct cairn_test *t)
{
	char out[16384];

	EXPECT(t, CAIRN(out, "eval", "--impl", "cpu", "--limit", "100", "--kv", "fp8", "--min-accuracy",
			"95") == 0);
	EXPECT_CONTAINS(t, out, "KV in 8 bits");
	EXPECT(t, CAIRN(out, "eval", "--impl", "cpu", "--kv", "int8") == 2);
	EXPECT_CONTAINS(t, out, "--kv: 'int8' is none of plain, fp8");
}

static void eval_late(struct cairn_test *t)
{
	eval(t, "late", "10", "90");
}

static void answers(struct cairn_test *t, const char *table)
{
	struct cairn_impl impl;
	char out[16384];

	table = open_named(t, table, &impl);
	if (!table)
		return;
	EXPECT(t, CAIRN(out, "generate", "--impl", table, "--prompt", "What is 55 - 8?\n") == 0);
	EXPECT_CONTAINS(t, out, "\n47\n");
	EXPECT_CONTAINS(t, out, "loaded in");
	EXPECT(t, CAIRN(out, "generate", "--impl", table, "--prompt", "What is 55 - 8?\n", "--decode",
			"unfused") == 0);
	EXPECT_CONTAINS(t, out, "\n47\n");
	EXPECT(t, !strstr(out, "fused)"));
	EXPECT(t, CAIRN(out, "generate", "--impl", table, "--prompt", "What is 55 - 8?\n", "--kv",
			"fp8") == 0);
	EXPECT_CONTAINS(t, out, "\n47\n");
	EXPECT_CONTAINS(t, out, "KV in 8 bits with scale 1");
	EXPECT(t, !strstr(out, "fused)"));
	for (int i = 0; impl.decode_step && i < 2; i++) {
		EXPECT(t, CAIRN(out, "generate", "--impl", table, "--prompt", "What is 55 - 8?\n", "--decode",
				i ? "graph" : "persistent") == 0);
		EXPECT_CONTAINS(t, out, "\n47\n");
		EXPECT_CONTAINS(t, out, ", fused)");
	}
}

/* Writes a plan for decoding passes of the embedded model, in the share of one of `ranks` ranks. */
static int write_plan(struct cairn_test *t, int ranks, const char *path)
{
	struct cairn_plan_file_entry entry = {
		.rows = 8, .decode_eighths = 8, .context = 16, .nanos = 2, .cuts = { 4 }, .decode = { 4, 4 },
		.sequential_ms = 3, .predicted_ms = 2, .measured_sequential_ms = 3, .measured_ms = 2,
	};
	struct cairn_plan_file file = { .ranks = ranks, .sms = 2, .entries = &entry, .num_entries = 1 };
	struct cairn_device_info info = { .size = sizeof(info) };
	struct cairn_search_pipeline pipeline;
	struct cairn_model_config config;
	struct cairn_impl impl;
	char dir[PATH_MAX + 32];
	int32_t kv_shares;

	snprintf(dir, sizeof(dir), "%s/serving/embedded", cairn_data_dir());
	if (open_table(t, "cpu", &impl) || !EXPECT(t, impl.device_info(&info) == 0) ||
	    !EXPECT(t, cairn_model_config_load(dir, &config) == 0) ||
	    !EXPECT(t, ranks < 2 || cairn_model_share_config(&config, dir, ranks, 0, &kv_shares) == 0) ||
	    !EXPECT(t, cairn_search_pipeline(&pipeline, &config) == 0))
		return -1;
	snprintf(file.gpu, sizeof(file.gpu), "%s", info.name);
	snprintf(file.impl, sizeof(file.impl), ranks > 1 ? "cpu:tp%d" : "cpu", ranks);
	snprintf(file.kernels, sizeof(file.kernels), "%s", cairn_kernel_digest());
	memcpy(file.shape, pipeline.shape, sizeof(file.shape));
	for (int i = 0; i < 2 * pipeline.num_ops; i++) {
		struct cairn_plan_file_part *p = &entry.parts[entry.num_parts++];

		*p = (struct cairn_plan_file_part){ .nano = i % 2, .start = 0.1 * i, .r = 0.5,
						    .how = CAIRN_SEARCH_STREAMS, .sms = 2 };
		memcpy(p->op, pipeline.ops[i / 2].name, sizeof(p->op));
	}
	return EXPECT(t, cairn_plan_file_write(&file, path) == 0) ? 0 : -1;
}

/* A plan runs passes, of one rank and of two, and the answers stay the same. */
static void plan_taken(struct cairn_test *t)
{
	static const char *const ranks[] = { "1", "2" };
	char out[16384], path[PATH_MAX];

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/taken%d.json", cairn_tmpdir(t), i);
		if (write_plan(t, i + 1, path))
			return;
		EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "What is 55 - 8?\n", "--plan",
				path, "--batch", "8", "--decode", "unfused", "--tp", ranks[i],
				"--collective-timeout", "60") == 0);
		EXPECT_CONTAINS(t, out, "\n47\n");
		EXPECT_CONTAINS(t, out, " steps as nano-batches\n");
		if (!EXPECT(t, !strstr(out, "\n0 of ") && !strstr(out, "sequentially")))
			cairn_note(t, "%s", out);
	}
	/* two ranks refuse a plan of one by name, once, and run sequentially */
	snprintf(path, sizeof(path), "%s/taken0.json", cairn_tmpdir(t));
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "What is 55 - 8?\n", "--plan", path,
			"--tp", "2", "--collective-timeout", "60") == 0);
	EXPECT_CONTAINS(t, out, "taken0.json: ranks: the plan is for 1, not for 2; passes run sequentially");
	EXPECT(t, !strstr(strstr(out, "--plan: ") ? strstr(out, "--plan: ") + 1 : "", "--plan: "));
	EXPECT_CONTAINS(t, out, "\n47\n");
}

/* A plan that cannot be used is named once, and the answer is the same. */
static void plan_refused(struct cairn_test *t)
{
	char out[16384], path[PATH_MAX];
	const char *said;

	cairn_tmpfile(t, path, sizeof(path), "plan.json", "{\"v\": 2", 7);
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "What is 55 - 8?\n", "--plan",
			path) == 0);
	EXPECT_CONTAINS(t, out, "\n47\n");
	said = strstr(out, "cairn generate: --plan: ");
	EXPECT(t, said && strstr(said, "plan.json") && strstr(said, "; passes run sequentially\n"));
	EXPECT(t, said && !strstr(said + 1, "cairn generate: --plan"));
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "What is 55 - 8?\n", "--plan",
			cairn_tmpdir(t)) == 0);
	EXPECT_CONTAINS(t, out, "_tp1.json");
	EXPECT_CONTAINS(t, out, "\n47\n");
	EXPECT(t, CAIRN(out, "serve", "--impl", "cpu", "--plan", path, "--repeatable") == 2);
	EXPECT_CONTAINS(t, out, "--plan: excludes --repeatable");
}

static void answers_ref(struct cairn_test *t)
{
	answers(t, "ref");
}

static void answers_cpu(struct cairn_test *t)
{
	answers(t, "cpu");
}

static void answers_cuda(struct cairn_test *t)
{
	answers(t, "cuda");
}

static void answers_late(struct cairn_test *t)
{
	answers(t, "late");
}

static void prompt_file_and_record(struct cairn_test *t)
{
	char prompt[PATH_MAX], json[PATH_MAX], out[16384], line[2048] = "";
	FILE *f;

	cairn_tmpfile(t, prompt, sizeof(prompt), "prompt", "What is 55 - 8?\n", 16);
	snprintf(json, sizeof(json), "%s/record", cairn_tmpdir(t));
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt-file", prompt, "--repeat", "2",
			"--ignore-eos", "--max-new-tokens", "12", "--json", json) == 0);
	EXPECT_CONTAINS(t, out, "47");
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt-file", prompt, "--decode", "graph",
			"--ignore-eos",
			"--max-new-tokens", "12", "--json", json) == 0);
	f = fopen(json, "r");
	for (int i = 0; i < 4; i++) {
		if (!EXPECT(t, f && fgets(line, sizeof(line), f)))
			break;
		EXPECT_CONTAINS(t, line, i % 2 ? "\"op\":\"decode_step\",\"case\":\"embedded_b1_kv" :
				"\"op\":\"generate\",\"case\":\"embedded_b1_kv");
		EXPECT_CONTAINS(t, line, "\"ok\":true");
		EXPECT_CONTAINS(t, line, i < 2 ? "\"impl\":\"cpu\"" : "\"impl\":\"cpu:graph\"");
		EXPECT_CONTAINS(t, line, "\"stream_pct\":");
		EXPECT(t, (strstr(line, "\"new_tokens\":12,\"first_token_ns\":") != NULL) == (i % 2 == 0));
	}
	if (f)
		fclose(f);
}

/* Runs generate on a made-up card and reads the records of a run and of a step. Returns 0 without them. */
static int records_of_card(struct cairn_test *t, const char *options, json_t *rows[2])
{
	char plugin[PATH_MAX], json[PATH_MAX], out[16384];
	FILE *f;

	if (!fake_card(t, options, plugin, sizeof(plugin)))
		return 0;
	snprintf(json, sizeof(json), "%.200s/record", cairn_tmpdir(t));
	if (!EXPECT(t, CAIRN(out, "generate", "--impl", plugin, "--prompt-tokens", "64", "--ignore-eos",
			     "--batch", "2", "--max-new-tokens", "40", "--json", json) == 0))
		cairn_note(t, "%s", out);
	no_fake_card();
	f = fopen(json, "r");
	for (int i = 0; i < 2; i++)
		rows[i] = f ? json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
	if (f)
		fclose(f);
	if (EXPECT(t, rows[0] && rows[1]))
		return 1;
	json_decref(rows[0]);
	json_decref(rows[1]);
	return 0;
}

/*
 * Checks the energies of a run of 80 tokens and of one of its 39 steps; at constant power, energies are
 * proportional to times.
 */
static void energy_records(struct cairn_test *t)
{
	double watts[2], joules[2], mj[2];
	json_t *rows[2];

	if (!records_of_card(t, "watts=400 period=10 mhz=1300 capped=20", rows))
		return;
	for (int i = 0; i < 2; i++) {
		watts[i] = json_number_value(json_object_get(rows[i], "watts"));
		joules[i] = json_number_value(json_object_get(rows[i], "joules"));
		mj[i] = json_number_value(json_object_get(rows[i], "mj_per_token"));
		EXPECT(t, json_number_value(json_object_get(rows[i], "sm_mhz")) == 1300);
		EXPECT(t, fabs(json_number_value(json_object_get(rows[i], "capped_pct")) - 20) < 5);
		json_decref(rows[i]);
	}
	EXPECT(t, fabs(watts[0] - 400) < 60 && fabs(watts[1] - 400) < 120);
	EXPECT(t, fabs(mj[0] * 80 / 1e3 / joules[0] - 1) < 1e-3);
	EXPECT(t, fabs(mj[1] * 2 / 1e3 / joules[1] - 1) < 1e-3);
	EXPECT(t, joules[1] > 0 && joules[1] * 39 < joules[0] * 1.1);
}

static void no_energy_records(struct cairn_test *t)
{
	json_t *rows[2];

	if (!records_of_card(t, "find=4", rows))
		return;
	for (int i = 0; i < 2; i++) {
		EXPECT(t, !json_object_get(rows[i], "joules") && !json_object_get(rows[i], "mj_per_token"));
		EXPECT_CONTAINS(t, json_string_value(json_object_get(rows[i], "no_energy")),
				"card 0000:1b:00.0: NVML: nvmlDeviceGetHandleByPciBusId_v2: error 4");
		json_decref(rows[i]);
	}
}

static void eval_counts(struct cairn_test *t)
{
	static const char questions[] =
		"{\"task\": \"right\", \"prompt\": \"What is 55 - 8?\\n\", \"answer\": \" 47\"}\n"
		"{\"task\": \"wrong\", \"prompt\": \"What is 55 - 8?\\n\", \"answer\": \"4\"}\n"
		"{\"task\": \"wrong\", \"prompt\": \"What is 55 - 8?\\n\", \"answer\": \"470\"}\n";
	char path[PATH_MAX], out[16384];

	cairn_tmpfile(t, path, sizeof(path), "questions", questions, sizeof(questions) - 1);
	EXPECT(t, CAIRN(out, "eval", "--impl", "cpu", "--file", path, "--min-accuracy", "33") == 0);
	EXPECT_CONTAINS(t, out, "1 of     1 right");
	EXPECT_CONTAINS(t, out, "0 of     2 right");
	EXPECT_CONTAINS(t, out, "33.33%");
	EXPECT(t, CAIRN(out, "eval", "--impl", "cpu", "--file", path, "--min-accuracy", "34") == 1);
	EXPECT_CONTAINS(t, out, "--min-accuracy is 34");
}

/* Checks that a command fails with exit status 2 and one line that contains text. */
static void refused(struct cairn_test *t, const char *text, const char *const *args)
{
	char out[16384], *last;
	int lines = 0;

	if (!EXPECT(t, cairn(out, args) == 2))
		cairn_note(t, "%s: %.300s", text, out);
	EXPECT_CONTAINS(t, out, text);
	last = strstr(out, "loaded in");	/* skip the progress line of a model that loaded */
	for (const char *c = last ? strchr(last, '\n') + 1 : out; *c; c++)
		lines += *c == '\n';
	EXPECT(t, lines == 1);
}

#define REFUSED(t, text, ...) refused(t, text, (const char *const[MAX_ARGS + 1]){ __VA_ARGS__, NULL })

static void bad_options(struct cairn_test *t)
{
	char path[4097];

	REFUSED(t, "'x' is not an option", "generate", "x");
	REFUSED(t, "'x' is not an option", "eval", "x");
	REFUSED(t, "--shape", "generate", "--shape", "llama3-8b", "--prompt", "x");
	REFUSED(t, "llama32-1b", "generate", "--impl", "cpu", "--shape", "llama5");
	REFUSED(t, "give only one", "generate", "--prompt", "x", "--prompt-tokens", "5");
	REFUSED(t, "/no/such/file", "generate", "--impl", "cpu", "--prompt-file", "/no/such/file");
	REFUSED(t, "/no/such/dir", "generate", "--impl", "cpu", "--prompt", "x", "--json", "/no/such/dir/x");
	REFUSED(t, "--max-new-tokens", "generate", "--impl", "cpu", "--prompt", "x", "--max-new-tokens",
		"2048");
	REFUSED(t, "--top-k", "generate", "--top-k", "-1");
	REFUSED(t, "none of auto, graph, persistent, unfused", "generate", "--decode", "fast");
	REFUSED(t, "--decode: ''", "eval", "--decode", "");
	REFUSED(t, "none of auto, none", "generate", "--generation-config", "x");
	REFUSED(t, "--repetition-penalty", "generate", "--repetition-penalty", "0");
	REFUSED(t, "--min-p: '1'", "generate", "--min-p", "1");
	REFUSED(t, "--seed: '18446744073709551616'", "generate", "--seed", "18446744073709551616");
	REFUSED(t, "--min-accuracy", "eval", "--min-accuracy", "101");
	REFUSED(t, "/no/such/file", "eval", "--impl", "cpu", "--file", "/no/such/file");
	REFUSED(t, "a whole number from 0 to 9223372036854775807", "generate", "--seed", "-1");
	REFUSED(t, "generate: --model: is empty", "generate", "--impl", "cpu", "--model", "");
	memset(path, 'd', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	REFUSED(t, "generate: --model: has over 4095 bytes", "generate", "--impl", "cpu", "--model", path);
	/* the context of a shape is checked before the table is loaded and weights are made */
	REFUSED(t, "--max-new-tokens: 128 and a prompt of 131000 tokens exceed the 131072 positions",
		"generate", "--impl", "/no/such.so", "--shape", "llama32-1b", "--prompt-tokens", "131000");
	/* a trace is read before the server is asked for its models: nothing listens at port 1 */
	REFUSED(t, "bench serve: --trace: /nowhere/trace: No such file", "bench", "serve", "--url",
		"http://127.0.0.1:1", "--trace", "/nowhere/trace");
	REFUSED(t, "generate: --shape: 'x' is not one of", "generate", "--impl", "cpu", "--shape", "x");
	REFUSED(t, "graph: --shape: 'x' is not one of", "graph", "--shape", "x");
}

/* Options of the server: the error names the option as it is written, and is the last line. */
static void bad_serve_options(struct cairn_test *t)
{
#define SERVE	"serve", "--impl", "cpu", "--port", "0"
	static const struct { const char *args[12], *text; } rows[] = {
		{ { SERVE, "--allow-origin", "foo" }, "--allow-origin: 'foo' is not * or SCHEME" },
		{ { SERVE, "--host", "nonsense" }, "--host: 'nonsense' is not a numeric address" },
		{ { SERVE, "--pages", "1073741824" }, "--pages: 1073741824 pages of 16 tokens" },
		{ { SERVE, "--host-pages", "1", "--disk-pages", "1", "--disk-dir", "/no/such/dir" },
		  "--disk-dir: /no/such/dir: No such file" },
		{ { SERVE, "--repeatable", "--decode", "graph" }, "--decode: graph excludes --repeatable" },
		{ { SERVE, "--repeatable", "--prefix-cache", "token" },
		  "--prefix-cache: 1 does not go with repeatable" },
		{ { SERVE, "--speculative", "ngram", "--decode", "graph" },
		  "--decode: graph does not go with speculative" },
		{ { SERVE, "--speculative", "ngram", "--batch", "8", "--rows", "8" }, "--rows: is 8, must" },
		{ { SERVE, "--cp", "4", "--tp", "2" }, "--cp: is 4, but --tp is 2" },
		{ { SERVE, "--cp", "2", "--tp", "2", "--cp-exchange", "ring" },
		  "--cp-exchange: ring does not go with --tp, whose ranks have some KV heads each" },
		{ { SERVE, "--cp", "2", "--plan", "x" }, "--cp: excludes --plan" },
		{ { SERVE, "--cp", "9" }, "--cp: '9' is not a whole number from 1 to 8" },
		{ { SERVE, "--cp", "3", "--cp-exchange", "heads" },
		  "num_attention_heads: 4 is not divisible among 3 ranks" },
		{ { SERVE, "--cp", "2", "--cp-exchange", "rows" },
		  "--cp-exchange: 'rows' is none of auto, heads, ring, blocks" },
		{ { SERVE, "--cp", "2", "--cp-stripes" },
		  "--cp-stripes: is for ranks that would each hold" },
		{ { SERVE, "--cp-rows", "64" },
		  "--cp-exchange, --cp-rows, --cp-keys, --cp-stripes: need --cp" },
		{ { SERVE, "--shape", "x" }, "serve: --shape: 'x' is not one of" },
		{ { SERVE, "--model", "" }, "serve: --model: is empty" },
		{ { SERVE, "--impl", "nope" }, "--impl: 'nope' is none of" },
		{ { SERVE, "--chat-template", "/no/such/file" }, "--chat-template: /no/such/file: No such" },
		{ { SERVE, "--key-file", "/no/such/file" }, "--key-file: /no/such/file: No such file" },
	};
	char out[16384];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char *last;

		EXPECT(t, cairn(out, rows[i].args) == 2);
		last = strrchr(out, '\n');
		if (last)
			*last = 0;
		last = strrchr(out, '\n');
		EXPECT_CONTAINS(t, last ? last : out, rows[i].text);
		EXPECT_CONTAINS(t, last ? last : out, "cairn serve: ");
	}
}

/* --chat-template takes its special tokens from the checkpoint. If they cannot be read, nothing starts. */
static void bad_special_tokens(struct cairn_test *t)
{
	static const char *const files[] = { "config.json", "tokenizer.json" };
	char path[2 * PATH_MAX], target[2 * PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", cairn_tmpdir(t), files[i]);
		snprintf(target, sizeof(target), "%s/serving/embedded/%s", cairn_data_dir(), files[i]);
		EXPECT(t, symlink(target, path) == 0);
	}
	cairn_tmpfile(t, path, sizeof(path), "tokenizer_config.json", "{\"bos_token\":", 13);
	cairn_tmpfile(t, path, sizeof(path), "one.jinja", "{{ bos_token }}", 15);
	REFUSED(t, "tokenizer_config.json: line 1", SERVE, "--model", cairn_tmpdir(t), "--chat-template",
		path);
}

static int refuse_rmsnorm(const struct cairn_rmsnorm_args *args, void *stream)
{
	(void)args;
	(void)stream;
	return -EOPNOTSUPP;
}

/* A shape has no config.json that an error could name. */
static void refused_shape(struct cairn_test *t)
{
	struct cairn_session s;

	if (!EXPECT(t, cairn_session_start(&s, "cpu", 0) == 0))
		return;
	s.impl.rmsnorm = refuse_rmsnorm;
	EXPECT(t, cairn_session_shape(&s, "llama32-1b", 1) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "--shape llama32-1b: ");
	EXPECT(t, !strstr(cairn_last_error(), "config.json"));
	cairn_session_close(&s);
}

static void bad_questions(struct cairn_test *t)
{
	static const struct { const char *line, *text; } rows[] = {
		{ "", "has no question" },
		{ "{\"task\": \"a\", \"prompt\": \"x\"", "questions:1" },
		{ "{\"task\": \"a\", \"prompt\": \"x\"}", "answer" },
		{ "{\"task\": \"a\", \"prompt\": 5, \"answer\": \"x\"}", "prompt" },
		{ "{\"task\": \"a\\nb\", \"prompt\": \"x\", \"answer\": \"x\"}", "task" },
	};
	char path[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		cairn_tmpfile(t, path, sizeof(path), "questions", rows[i].line, strlen(rows[i].line));
		REFUSED(t, rows[i].text, "eval", "--impl", "cpu", "--file", path);
	}
}

/* Copies of the embedded model with one damaged file. */
static void bad_models(struct cairn_test *t)
{
	static const char *const files[] = { "config.json", "tokenizer.json", "model.safetensors" };
	static const struct { const char *file, *content, *text; } rows[] = {
		{ "config.json", "{", "config.json" },
		{ "config.json", "{\"model_type\": \"llama\"}", "config.json: " },
		{ "config.json", NULL, "config.json" },
		{ "tokenizer.json", "{\"version\": \"1.0\"}", "tokenizer.json: model" },
		{ "tokenizer.json", NULL, "tokenizer.json" },
		{ "model.safetensors", "\377\377\377\377\377\377\377\377{}", "model.safetensors" },
		{ "model.safetensors", "", "model.safetensors" },
		{ "model.safetensors", NULL, "model.safetensors" },
	};
	char path[2 * PATH_MAX], target[2 * PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(files); k++) {
			snprintf(path, sizeof(path), "%s/%s", cairn_tmpdir(t), files[k]);
			unlink(path);
			snprintf(target, sizeof(target), "%s/serving/embedded/%s", cairn_data_dir(),
				 files[k]);
			if (strcmp(files[k], rows[i].file))
				EXPECT(t, symlink(target, path) == 0);
			else if (rows[i].content)
				cairn_tmpfile(t, path, sizeof(path), files[k], rows[i].content,
					      strlen(rows[i].content));
		}
		REFUSED(t, rows[i].text, "generate", "--impl", "cpu", "--model", cairn_tmpdir(t), "--prompt",
			"x");
	}
}

/* Copies the text between the lines about loading and the line of figures. */
static const char *answer_of(const char *out, char *text, size_t len)
{
	const char *begin = strstr(out, "generation_config.json: "), *end = strstr(out, "\nprompt of ");

	begin = begin ? begin : strstr(out, "loaded in ");
	begin = begin ? strchr(begin, '\n') : NULL;
	snprintf(text, len, "%.*s", begin && end ? (int)(end - begin) : 0, begin ? begin : "");
	return text;
}

/* generation_config.json has the defaults of the sampling options. */
static void model_defaults(struct cairn_test *t)
{
	static const char *const files[] = { "config.json", "tokenizer.json", "model.safetensors" };
	static const char generation[] = "{\"temperature\": 2.0, \"top_p\": 0.999}";
	char path[2 * PATH_MAX], target[2 * PATH_MAX], out[16384];
	char greedy[1024], sampled[1024];

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", cairn_tmpdir(t), files[i]);
		snprintf(target, sizeof(target), "%s/serving/embedded/%s", cairn_data_dir(), files[i]);
		EXPECT(t, symlink(target, path) == 0);
	}
	cairn_tmpfile(t, path, sizeof(path), "generation_config.json", generation, sizeof(generation) - 1);
#define ASK	"generate", "--impl", "cpu", "--model", cairn_tmpdir(t), "--prompt", "a", "--ignore-eos", \
		"--max-new-tokens", "24"
	EXPECT(t, CAIRN(out, ASK) == 0);
	EXPECT_CONTAINS(t, out, "generation_config.json: temperature 2, top_p 0.999\n");
	answer_of(out, sampled, sizeof(sampled));
	EXPECT(t, CAIRN(out, ASK, "--temperature", "0") == 0);
	answer_of(out, greedy, sizeof(greedy));
	EXPECT(t, *greedy && strcmp(greedy, sampled));
	EXPECT(t, CAIRN(out, ASK, "--generation-config", "none", "--temperature", "2", "--top-p", "0.999") ==
			  0);
	EXPECT(t, !strcmp(answer_of(out, greedy, sizeof(greedy)), sampled));
	EXPECT(t, CAIRN(out, ASK, "--temperature", "0") == 0);
	answer_of(out, greedy, sizeof(greedy));
	EXPECT(t, CAIRN(out, ASK, "--generation-config", "none") == 0);
	EXPECT(t, !strstr(out, "generation_config.json") &&
			  !strcmp(answer_of(out, sampled, sizeof(sampled)), greedy));
	/* measurements do not use these defaults */
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--model", cairn_tmpdir(t), "--prompt-tokens", "4",
			"--max-new-tokens", "4") == 0);
	EXPECT(t, !strstr(out, "generation_config.json"));
	cairn_tmpfile(t, path, sizeof(path), "generation_config.json", "{\"top_p\": 2}", 12);
	REFUSED(t, "generation_config.json: top_p: must be a number above 0", ASK);
}

/* The error names a tensor that is missing or whose shape contradicts config.json. */
static void bad_weights(struct cairn_test *t)
{
	static const struct { const char *name, *from, *to, *text; } rows[] = {
		{ "deepseek_tiny", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 2",
		  "\"model.layers.1.mlp.gate_proj.weight\" is missing" },
		{ "deepseek_tiny", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4",
		  "\"model.layers.3.input_layernorm.weight\" is missing" },
		{ "deepseek_tiny", "\"n_shared_experts\": 2", "\"n_shared_experts\": 3",
		  "\"model.layers.1.mlp.shared_experts.gate_proj.weight\": shape: "
		  "is [128, 128], must be [192, 128]" },
		{ "deepseek_q_tiny", "\"q_lora_rank\": 64", "\"q_lora_rank\": 128",
		  "\"model.layers.0.self_attn.q_a_proj.weight\": shape: is [64, 128], must be [128, 128]" },
		{ "qwen2_tiny", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 7",
		  "\"model.layers.0.self_attn.k_proj.weight\": shape: is [64, 448], must be [448, 448]" },
		/* the checkpoint has no biases */
		{ "llama2_tiny", "\"LlamaForCausalLM\"", "\"Qwen2ForCausalLM\"",
		  "\"model.layers.0.self_attn.q_proj.bias\" is missing" },
	};
	char dir[PATH_MAX], path[2 * PATH_MAX], target[2 * PATH_MAX];
	struct golden g;

	snprintf(path, sizeof(path), "%s/tokenizer.json", cairn_tmpdir(t));
	snprintf(target, sizeof(target), "%s/serving/embedded/tokenizer.json", cairn_data_dir());
	EXPECT(t, symlink(target, path) == 0);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (open_golden(t, &g, rows[i].name))
			return;
		if (!altered_checkpoint(t, g.dir, rows[i].from, rows[i].to, dir) &&
		    (strcmp(rows[i].name, "llama2_tiny") ||
		     !altered_config(t, dir, "\"model_type\": \"llama\"", "\"model_type\": \"qwen2\"")))
			REFUSED(t, rows[i].text, "generate", "--impl", "cpu", "--model", dir,
				"--prompt", "x");
		close_golden(&g);
	}
}

/* Writes a copy of the embedded model whose tensor `name` is NaN to the test's directory. */
static int poisoned_model(struct cairn_test *t, const char *name)
{
	static const char *const files[] = { "config.json", "tokenizer.json" };
	char path[2 * PATH_MAX], target[2 * PATH_MAX], *bytes;
	const struct cairn_tensor *tensor;
	struct cairn_safetensors *st = NULL;
	size_t n;

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", cairn_tmpdir(t), files[i]);
		snprintf(target, sizeof(target), "%s/serving/embedded/%s", cairn_data_dir(), files[i]);
		unlink(path);
		if (!EXPECT(t, symlink(target, path) == 0))
			return -1;
	}
	snprintf(path, sizeof(path), "%s/serving/embedded/model.safetensors", cairn_data_dir());
	if (!EXPECT(t, cairn_read_file(path, 1 << 26, &bytes, &n) == 0))
		return -1;
	if (EXPECT(t, cairn_safetensors_open_mem(bytes, n, "copy", &st) == 0)) {
		tensor = cairn_safetensors_find(st, name);
		if (EXPECT(t, tensor != NULL))	/* all bits of a bf16 set: NaN */
			memset(bytes + ((const char *)tensor->data - bytes), 0xff, tensor->num_bytes);
		cairn_tmpfile(t, path, sizeof(path), "model.safetensors", bytes, n);
	}
	cairn_safetensors_close(st);
	free(bytes);
	return 0;
}

/* NaN logits give an error of their own, which names the token where they occur. */
static void nan_logits(struct cairn_test *t)
{
	static const char *const tensors[] = {
		"model.norm.weight", "model.layers.2.self_attn.k_proj.weight",
		"model.layers.4.mlp.up_proj.weight",
	};
	static const char question[] = "{\"task\":\"a\",\"prompt\":\"x\",\"answer\":\"y\"}\n";
	char file[PATH_MAX], out[16384];

	cairn_tmpfile(t, file, sizeof(file), "questions", question, strlen(question));
	for (size_t i = 0; i < ARRAY_SIZE(tensors); i++) {
		if (poisoned_model(t, tensors[i]))
			return;
		for (int sampled = 0; sampled < 2; sampled++) {
			if (!EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--model", cairn_tmpdir(t),
					     "--prompt", "x", "--temperature", sampled ? "1" : "0") == 1))
				cairn_note(t, "%s: %s", tensors[i], out);
			EXPECT_CONTAINS(t, out, "cairn generate: the model's logits are not numbers (NaN) at "
					"token 1");
		}
		EXPECT(t, CAIRN(out, "eval", "--impl", "cpu", "--model", cairn_tmpdir(t), "--file",
				file) == 1);
		EXPECT_CONTAINS(t, out, "cairn eval: the model's logits are not numbers (NaN) at token 1 of "
				"the answer to \"x\"");
		EXPECT(t, !strstr(out, "0.00%"));
	}
}

/* A FIFO in place of any file of a checkpoint is refused; opening it must not wait for a writer. */
static void fifos(struct cairn_test *t)
{
	static const char *const files[] = {
		"config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
		"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
	};
	char path[2 * PATH_MAX], target[2 * PATH_MAX];
	struct cairn_chat_template *template = NULL;
	struct cairn_tokenizer *tokenizer = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(files); k++) {
			snprintf(path, sizeof(path), "%s/%s", cairn_tmpdir(t), files[k]);
			snprintf(target, sizeof(target), "%s/serving/embedded/%s", cairn_data_dir(),
				 files[k]);
			unlink(path);
			if (k == i)
				EXPECT(t, mkfifo(path, 0600) == 0);
			else if (!access(target, F_OK) && (i != 3 || k != 2))
				EXPECT(t, symlink(target, path) == 0);
		}
		if (i < 4)
			EXPECT(t, cairn_model_verify(cairn_tmpdir(t)) == -EINVAL);
		else if (i == 4)
			EXPECT(t, cairn_tokenizer_open(cairn_tmpdir(t), &tokenizer) == -EINVAL);
		else
			EXPECT(t, cairn_chat_template_load(cairn_tmpdir(t), NULL, &template) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), files[i]);
		EXPECT_CONTAINS(t, cairn_last_error(), ": not a regular file");
	}
}

/* --regex and --json-schema, with and without drafts; what they refuse. */
static void constrained(struct cairn_test *t)
{
	static const char schema[] = "{\"enum\":[{\"a\":[7]}]}";
	char out[16384], path[PATH_MAX];

	if (cairn_grammar_library()) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	cairn_tmpfile(t, path, sizeof(path), "schema.json", schema, sizeof(schema) - 1);
	for (int drafts = 0; drafts < 2; drafts++) {
		EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "a", "--regex", "(4[2] ){5}ox",
				"--batch", "2", "--repeat", "2", "--speculative",
				drafts ? "ngram" : "off") == 0);
		EXPECT_CONTAINS(t, out, "42 42 42 42 42 ox");
	}
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "a", "--json-schema", path) == 0);
	EXPECT_CONTAINS(t, out, "\"a\"");
	EXPECT_CONTAINS(t, out, "7");
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "a", "--regex", "((") == 1);
	EXPECT_CONTAINS(t, out, "cairn generate: regex: ");
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "a", "--json-schema", "/nowhere") == 2);
	EXPECT_CONTAINS(t, out, "--json-schema: /nowhere: ");
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--regex", "a", "--ignore-eos") == 2);
	EXPECT_CONTAINS(t, out, "--regex: excludes --shape, --ignore-eos, --tp, --cp and --attention-");
}

static const struct cairn_unit units[] = {
	{ "answers_ref", answers_ref },
	{ "plan_taken", plan_taken },
	{ "plan_refused", plan_refused },
	{ "answers_cpu", answers_cpu },
	{ "answers_cuda", answers_cuda },
	{ "eval_ref", eval_ref },
	{ "eval_cpu", eval_cpu },
	{ "eval_kv_fp8", eval_kv_fp8 },
	{ "eval_cuda", eval_cuda },
	{ "answers_late", answers_late },
	{ "eval_late", eval_late },
	{ "eval_counts", eval_counts },
	{ "prompt_file_and_record", prompt_file_and_record },
	{ "energy_records", energy_records },
	{ "no_energy_records", no_energy_records },
	{ "model_defaults", model_defaults },
	{ "constrained", constrained },
	{ "bad_options", bad_options },
	{ "bad_serve_options", bad_serve_options },
	{ "bad_special_tokens", bad_special_tokens },
	{ "refused_shape", refused_shape },
	{ "bad_questions", bad_questions },
	{ "bad_models", bad_models },
	{ "bad_weights", bad_weights },
	{ "nan_logits", nan_logits },
	{ "fifos", fifos },
};

const struct cairn_family cairn_generate_family = {
	.stage = "serving",
	.name = "generate",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 18,
};
