// SPDX-License-Identifier: Apache-2.0
/* grammar_fault_test - constraints that are refused, a process that dies or hangs, and wrong libraries */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serving/grammar/grammar_test.h"

static void is_refused(struct cairn_test *t, struct bench *b, enum cairn_constraint_kind kind,
		       const char *text, size_t num_bytes, const char *why)
{
	struct cairn_constraint c = { kind, text, num_bytes, NULL, 0 };
	enum cairn_grammar_state state;
	uint64_t id;

	if (cairn_grammar_open(b->g, &c, 1, &id)) {
		EXPECT_CONTAINS(t, cairn_last_error(), why);
		return;
	}
	state = wait_state(b, id);
	if (!EXPECT(t, state == CAIRN_GRAMMAR_REFUSED))
		cairn_note(t, "%.60s", text);
	EXPECT_CONTAINS(t, cairn_last_error(), why);
	EXPECT(t, !strpbrk(cairn_last_error(), "\r\n"));
	cairn_grammar_close(b->g, id);
}

/* Constraints that never end, contradict themselves, are huge or malformed are refused, and harm nothing. */
static void hostile(struct cairn_test *t)
{
	static const struct { enum cairn_constraint_kind kind; const char *text, *why; } bad[] = {
		{ CAIRN_CONSTRAINT_JSON, "{\"$ref\":\"#\"}", "json: no text satisfies it" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":\"string\",\"minLength\":5,\"maxLength\":2}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"not\":{}}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"$ref\":\"http://example.com/x\"}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":\"object\",\"dependentSchemas\":{\"a\":{}}}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"x-guidance\":{\"lenient\":true},\"not\":{}}", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":", "json: is no JSON" },
		{ CAIRN_CONSTRAINT_JSON, "[1]", "json: a schema must be an object" },
		{ CAIRN_CONSTRAINT_JSON, "false", "json:" },
		{ CAIRN_CONSTRAINT_JSON, "{\"type\":\"object\",\"type\":\"string\"}", "json:" },
		{ CAIRN_CONSTRAINT_REGEX, "(((", "regex:" },
		{ CAIRN_CONSTRAINT_REGEX, "", "regex: is empty" },
		{ CAIRN_CONSTRAINT_REGEX, "(?=a)b", "regex:" },
		{ CAIRN_CONSTRAINT_CHOICE, "[]", "choice:" },
		{ CAIRN_CONSTRAINT_CHOICE, "[1]", "choice:" },
		{ CAIRN_CONSTRAINT_CHOICE, "[\"\"]", "choice:" },
		{ CAIRN_CONSTRAINT_LARK, "start: x", "grammar:" },
		{ CAIRN_CONSTRAINT_LARK, "start: start", "grammar:" },
	};
	struct bench b;
	int pid;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_JSON, "{}", NULL, 1));
	pid = cairn_grammar_pid(b.g);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		is_refused(t, &b, bad[i].kind, bad[i].text, strlen(bad[i].text), bad[i].why);
	is_refused(t, &b, CAIRN_CONSTRAINT_REGEX, "a\0b", 3, "NUL");
	for (int i = 0; i < 4; i++) {		/* brackets without end, as far as there is room */
		const char *const opens[] = { "[", "{\"items\":", "(", "start: (" };
		const enum cairn_constraint_kind kinds[] = { CAIRN_CONSTRAINT_JSON, CAIRN_CONSTRAINT_JSON,
							     CAIRN_CONSTRAINT_REGEX, CAIRN_CONSTRAINT_LARK };
		char *text = malloc(CAIRN_GRAMMAR_MAX_TEXT + 1);
		size_t n = strlen(opens[i]);

		for (size_t k = 0; k < CAIRN_GRAMMAR_MAX_TEXT; k++)
			text[k] = k < n || i < 2 ? opens[i][k % n] : '(';
		is_refused(t, &b, kinds[i], text, CAIRN_GRAMMAR_MAX_TEXT, ":");
		is_refused(t, &b, kinds[i], text, CAIRN_GRAMMAR_MAX_TEXT + 1, "65537 bytes");
		free(text);
	}
	/* large, but sound */
	EXPECT(t, take_text(&b, &(struct walk){ .id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX,
		"(a{1,9999}){1,9999}", NULL, 1) }, "aaaaaaaa"));
	EXPECT(t, cairn_grammar_pid(b.g) == pid);
	EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_JSON, "{}", NULL, 1));
	stop_bench(&b);
}

/* The second constraint of a text is not compiled again; the cache forgets what it has no room for. */
static void cache(struct cairn_test *t)
{
	struct cairn_grammar_stats s;
	struct bench b;
	uint64_t one, two;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	one = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1);
	two = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1);
	EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_CHOICE, "[\"x\"]", NULL, 1));
	cairn_grammar_stats(b.g, &s);
	EXPECT(t, one && two && one != two && s.compiled == 2 && s.cache_hits == 1 && !s.refused);
	EXPECT(t, take_text(&b, &(struct walk){ .id = one }, "ab"));
	cairn_grammar_close(b.g, one);
	EXPECT(t, take_text(&b, &(struct walk){ .id = two }, "ba"));
	stop_bench(&b);
#ifndef CAIRN_SANITIZED			/* its allocator does not say how much is in use */
	if (!start_bench(t, &b, (struct cairn_grammar_options){ .cache_bytes = 1 }))
		return;
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 3; i++)
			EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, &"aaa"[i], NULL, 1));
	cairn_grammar_stats(b.g, &s);
	EXPECT(t, s.compiled == 6 && !s.cache_hits);
	stop_bench(&b);
#endif
}

/* A killed process loses what was open; it is started anew and serves later constraints. */
static void killed(struct cairn_test *t)
{
	struct cairn_grammar_stats s;
	struct bench b;
	struct walk w = { 0 };
	uint64_t next;
	int pid;

	if (!start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	for (int how = 0; how < 3; how++) {	/* noticed by a step, by a poll, and by a time limit */
		w = (struct walk){ .id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1) };
		EXPECT(t, take_text(&b, &w, "ab"));
		pid = cairn_grammar_pid(b.g);
		if (!EXPECT(t, pid > 0))	/* to kill -1 would end every process */
			break;
		if (how < 2)
			EXPECT(t, !kill(pid, SIGKILL));
		for (int i = 0; how == 1 && i < 1000 && cairn_grammar_pid(b.g) == pid; i++) {
			usleep(10000);
			cairn_grammar_poll(b.g);
		}
		if (how == 2) {
			stop_bench(&b);
			if (!start_bench(t, &b, (struct cairn_grammar_options){ .step_ms = 1 }))
				return;
			w.id = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1);
			w.draw = w.num_pending = 0;
			pid = cairn_grammar_pid(b.g);
			if (!EXPECT(t, pid > 0))
				break;
			EXPECT(t, !kill(pid, SIGSTOP));
			/* its threads stop one by one */
			EXPECT(t, waitpid(pid, NULL, WUNTRACED) == pid);
		}
		EXPECT(t, !next_mask(&b, &w));
		EXPECT(t, cairn_grammar_state(b.g, w.id) == CAIRN_GRAMMAR_LOST);
		EXPECT_CONTAINS(t, cairn_last_error(), "has failed");
		cairn_grammar_close(b.g, w.id);
		cairn_grammar_poll(b.g);
		next = open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "[ab]+", NULL, 1);
		EXPECT(t, next && next != w.id && cairn_grammar_pid(b.g) != pid);
		cairn_grammar_stats(b.g, &s);
		EXPECT(t, s.restarts == (how == 2 ? 1 : how + 1));
		cairn_grammar_close(b.g, next);
	}
	stop_bench(&b);
}

/* A constraint that takes too long is refused; the process continues until all compilers are stuck. */
static void takes_too_long(struct cairn_test *t)
{
	struct cairn_grammar_stats s;
	struct bench b;
	size_t n = 0;
	char *text = malloc(CAIRN_GRAMMAR_MAX_TEXT + 1);

	if (!start_bench(t, &b, (struct cairn_grammar_options){ .compile_ms = 1 })) {
		free(text);
		return;
	}
	n += (size_t)sprintf(text, "{\"enum\":[0");
	for (int i = 0; n < CAIRN_GRAMMAR_MAX_TEXT - 40; i++)
		n += (size_t)sprintf(text + n, ",\"%x\"", i * 7919);
	n += (size_t)sprintf(text + n, "]}");
	is_refused(t, &b, CAIRN_CONSTRAINT_JSON, text, n, "json: takes longer than 1 ms to compile");
	cairn_grammar_stats(b.g, &s);
	EXPECT(t, s.refused == 1);
	stop_bench(&b);
	free(text);
}

/* Without the library, or with one of another version, the error says what to type. */
static void other_libraries(struct cairn_test *t)
{
	char dir[4096], path[4200];
	static const int32_t eos[] = { EOS };
	struct cairn_grammar_options o = { .model_dir = dir, .vocab_size = VOCAB, .eos = eos, .num_eos = 1,
					   .max_masks = 1 };
	struct cairn_constraint c = { CAIRN_CONSTRAINT_JSON, "{}", 2, NULL, 0 };
	struct bench b = { 0 };
	uint64_t id;
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);

	snprintf(dir, sizeof(dir), "%s/serving/embedded", cairn_srcdir());
	setenv("CAIRN_LLGUIDANCE", "/nowhere/libllguidance.so", 1);
	EXPECT(t, cairn_grammar_create(&b.g, &o) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "/nowhere/libllguidance.so: No such file");
	path[n > 0 ? n : 0] = 0;
	strcpy(strrchr(path, '/') + 1, "other_llguidance.so");
	setenv("CAIRN_LLGUIDANCE", path, 1);
	if (!EXPECT(t, !cairn_grammar_create(&b.g, &o)))
		return;
	for (int i = 0; i < 2; i++) {		/* before and after the process has said so */
		EXPECT(t, !cairn_grammar_open(b.g, &c, 1, &id));
		EXPECT(t, wait_state(&b, id) == CAIRN_GRAMMAR_REFUSED);
		EXPECT_CONTAINS(t, cairn_last_error(), "is llguidance@1.9.10 derivre@0.4.0, this");
		EXPECT_CONTAINS(t, cairn_last_error(), "tools/setup.sh grammar");
		cairn_grammar_close(b.g, id);
	}
	cairn_grammar_destroy(b.g);
	o.num_eos = 0;
	EXPECT(t, cairn_grammar_create(&b.g, &o) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "end-of-sequence");
}

static const struct cairn_unit units[] = {
	{ "hostile", hostile }, { "cache", cache }, { "killed", killed },
	{ "takes_too_long", takes_too_long }, { "other_libraries", other_libraries },
};

const struct cairn_family cairn_grammar_fault_family = {
	.stage = "serving", .name = "grammar_fault", .units = units, .num_units = ARRAY_SIZE(units),
};
