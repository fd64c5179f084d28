// SPDX-License-Identifier: Apache-2.0
/* attention_cli_test - commands with attention workers: the same answer; options that do not go together */
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "serving/remote/control/sodium.h"

#define MAX_ARGS	16

/* Returns the exit status; out: standard output and error. */
static int cairn(char *out, const char *const *args)
{
	char *argv[MAX_ARGS + 2] = { "cairn" };

	for (int i = 0; i < MAX_ARGS && args[i]; i++)
		argv[i + 1] = (char *)args[i];
	return cairn_spawn(argv, out, 16384);
}

#define CAIRN(out, ...)	cairn(out, (const char *const[]){ __VA_ARGS__, NULL })

#define REFUSED(t, says, ...) do {						\
	char out_[16384];							\
	EXPECT(t, CAIRN(out_, __VA_ARGS__) == 2);				\
	EXPECT_CONTAINS(t, out_, says);						\
} while (0)

/* Greedy answers of the embedded model, whose logits decide by far, are those of a run without workers. */
static void same_answer(struct cairn_test *t)
{
	static const char *const keys[] = { "previous", "all" };
	const struct sodium *s;
	char out[16384];

	if (sodium_load(&s))
		return cairn_skip(t, "%s", cairn_last_error());
	for (int i = 0; i < 2; i++) {
		if (!EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "What is 55 - 8?",
				     "--attention-workers", "2", "--attention-keys", keys[i]) == 0))
			cairn_note(t, "%s", out);
		EXPECT_CONTAINS(t, out, " 47\n");
		EXPECT_CONTAINS(t, out, "2 KV heads on 2 attention workers");
	}
}

static void refused(struct cairn_test *t)
{
	const struct sodium *s;

	REFUSED(t, "--workers-listen: needs --attention-workers", "serve", "--workers-listen", "[::1]:0");
	REFUSED(t, "--secret-file: needs --workers-listen", "generate", "--attention-workers", "1",
		"--secret-file", "x");
	REFUSED(t, "--attention-workers: excludes --tp", "generate", "--attention-workers", "1", "--tp", "2");
	REFUSED(t, "--attention-workers: excludes --host-pages", "serve", "--attention-workers", "1",
		"--host-pages", "9");
	REFUSED(t, "--join: is missing", "attention-worker");
	REFUSED(t, "'host:1' is no address", "attention-worker", "--join", "host:1");
	REFUSED(t, "--transport: 'nvlink' carries no host memory", "attention-worker", "--join",
		"127.0.0.1:1", "--transport", "nvlink");
	if (sodium_load(&s))
		return;
	REFUSED(t, "3 are more than the model's 2 num_key_value_heads", "generate", "--impl", "cpu",
		"--prompt", "a", "--attention-workers", "3");
	REFUSED(t, "--speculative: needs attention workers that attend to all keys", "generate", "--impl",
		"cpu", "--prompt", "a", "--attention-workers", "1", "--speculative", "ngram");
	REFUSED(t, "--workers-listen: 0.0.0.0:0 can be reached from other machines", "generate", "--impl",
		"cpu", "--prompt", "a", "--attention-workers", "1", "--workers-listen", "0.0.0.0:0");
}

static const struct cairn_unit units[] = {
	{ "same_answer", same_answer }, { "refused", refused },
};

const struct cairn_family cairn_attention_cli_family = {
	.stage = "serving", .name = "attention_cli", .units = units, .num_units = ARRAY_SIZE(units),
};
