// SPDX-License-Identifier: Apache-2.0
/* attention_cli_test - commands with workers: the same answer; options that do not go together */
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "serving/remote/control/sodium.h"
#include "serving/remote/lead/lead.h"

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
				     "--attention-workers", "2", "--attention-keys", keys[i], "--lanes",
				     i ? "2" : "auto") == 0))
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
	REFUSED(t, "--kv-journal: needs --attention-workers", "serve", "--kv-journal", "1");
	REFUSED(t, "--lanes: needs --attention-workers", "generate", "--lanes", "2");
	REFUSED(t, "--attention-workers: excludes --tp", "generate", "--attention-workers", "1", "--tp", "2");
	REFUSED(t, "--attention-workers: excludes --host-pages", "serve", "--attention-workers", "1",
		"--host-pages", "9");
	REFUSED(t, "--prefill-min: needs --prefill-workers", "serve", "--prefill-min", "9");
	REFUSED(t, "--prefill-workers: excludes --attention-workers", "serve", "--prefill-workers", "1",
		"--attention-workers", "1");
	REFUSED(t, "--prefill-workers: excludes --repeatable", "serve", "--prefill-workers", "1",
		"--repeatable");
	REFUSED(t, "--prefill-workers: excludes --prefix-cache off", "serve", "--prefill-workers", "1",
		"--prefix-cache", "off");
	REFUSED(t, "--secret-file: needs --workers-listen", "serve", "--prefill-workers", "1",
		"--secret-file", "x");
	REFUSED(t, "--join: is missing", "prefill-worker");
	REFUSED(t, "--shape: excludes --model", "prefill-worker", "--join", "127.0.0.1:1", "--shape", "x",
		"--model", "y");
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

/* A prefill worker with another model than the lead's is refused, and says what differs. */
static void other_model(struct cairn_test *t)
{
	struct cairn_lead_options o = {
		.prefill = 1, .table = "cpu", .listen = "127.0.0.1:0", .config = 1, .weights = 1,
	};
	struct cairn_lead *lead;
	char join[32];
	int ret = cairn_lead_create(&lead, &o);

	if (ret == -EOPNOTSUPP)
		return cairn_skip(t, "%s", cairn_last_error());
	if (!EXPECT(t, ret == 0))
		return;
	snprintf(join, sizeof(join), "127.0.0.1:%d", cairn_lead_port(lead));
	REFUSED(t, "cairn prefill-worker: the lead refuses this worker: another model: its configuration has "
		"the digest ", "prefill-worker", "--join", join);
	REFUSED(t, "another table: it runs ref, the lead cpu", "prefill-worker", "--join", join, "--impl",
		"ref");
	cairn_lead_destroy(lead);
	o.config = 0;
	if (!EXPECT(t, cairn_lead_create(&lead, &o) == 0))
		return;
	snprintf(join, sizeof(join), "127.0.0.1:%d", cairn_lead_port(lead));
	REFUSED(t, "other weights: theirs have the digest ", "prefill-worker", "--join", join);
	cairn_lead_destroy(lead);
}

static const struct cairn_unit units[] = {
	{ "same_answer", same_answer }, { "refused", refused }, { "other_model", other_model },
};

const struct cairn_family cairn_attention_cli_family = {
	.stage = "serving", .name = "attention_cli", .units = units, .num_units = ARRAY_SIZE(units),
};
