// SPDX-License-Identifier: Apache-2.0
/* advise_test - tests the advice and the command, with traces that have the means of the public ones */
#include <limits.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "serving/disagg/disagg_test.h"
#include "serving/disagg/figures.h"

static void advice(struct cairn_test *t)
{
	const char *why = advice_follows_prices();

	if (why)
		cairn_note(t, "%s: %s", why, cairn_last_error());
	EXPECT(t, !why);
}

/* LA-3's formula on rates that make it a quotient, and LA-11's balance on lengths known by heart. */
static void figures(struct cairn_test *t)
{
	struct cairn_trace_request requests[64];
	struct cairn_trace trace = { .requests = requests, .num_requests = 64 };
	struct cairn_disagg_gpu gpu = plain_gpu;
	struct cairn_disagg_model m = { .graph = NULL };
	struct cairn_disagg_balance b;
	double us, bytes = (2 + 2 / 4.0) * 2 * 4096 * 300 * 32;

	if (!EXPECT(t, !open_8b(&m)))
		return;
	us = 32 * cairn_disagg_slice_us(&m, &gpu, 1, 300) +
	     32 * cairn_disagg_attn_us(&m, &gpu, 1, 300, 300 * 1024) +
	     cairn_disagg_head_us(&m, &gpu, 1, 300);
	EXPECT(t, is_near(cairn_disagg_bandwidth(&m, &gpu, &gpu, 300, 1024, 0.2, 0),
			  bytes / (0.2 * us) * 1e-3));
	EXPECT(t, is_near(cairn_disagg_bandwidth(&m, &gpu, &gpu, 300, 1024, 0.2, 2),
			  bytes / (0.2 * us - 128) * 1e-3));
	EXPECT(t, isinf(cairn_disagg_bandwidth(&m, &gpu, &gpu, 300, 1024, 0.2, 1000)));
	for (int i = 0; i < 64; i++)	/* every fourth is three times as long */
		requests[i] = (struct cairn_trace_request){ i % 4 ? 100 : 300, 1 };
	cairn_disagg_balance(&trace, &m, 4, 64, &b);
	EXPECT(t, fabs(b.in_turn - 4 * 300.5 / 602) < 1e-9 && b.heads == 1 && b.batches == 1);
	EXPECT(t, b.least_loaded < 1.1);
	cairn_disagg_balance(&trace, &m, 3, 64, &b);
	EXPECT(t, is_near(b.heads, 9.0 / 8));
	cairn_disagg_model_close(&m);
}

static void write_trace(struct cairn_test *t, const char *path, int mooncake, int prompt, int answer, int num)
{
	FILE *f = fopen(path, "w");
	uint64_t rng = 11;

	if (!EXPECT(t, f != NULL))
		return;
	if (!mooncake)
		fprintf(f, "TIMESTAMP,ContextTokens,GeneratedTokens\n");
	for (int i = 0; i < num; i++) {
		int p = (int)draw(&rng, prompt / 2, prompt * 3 / 2), a = (int)draw(&rng, 1, 2 * answer - 1);

		if (mooncake)
			fprintf(f, "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, "
				"\"hash_ids\": []}\n", i, p, a);
		else
			fprintf(f, "2023-11-16 18:15:46.6805900,%d,%d\n", p, a);
	}
	fclose(f);
}

#define RATES(gbps, tflops) "{\"products\":{\"base_us\":2,\"gbps\":" gbps "}," \
	"\"light\":{\"base_us\":1,\"gbps\":3000}," \
	"\"attention\":{\"base_us\":5,\"gbps\":" gbps "},\"tflops\":" tflops "}"

/* An H100 and a GPU with more memory and less arithmetic for less than half the price. */
static const char two_kinds[] =
	"{\"gpus\":{\"fast\":{\"dollars_per_hour\":11,\"memory_gb\":80,\"costs\":" RATES("3000", "700") "},"
	"\"wide\":{\"dollars_per_hour\":4.6,\"memory_gb\":96,\"costs\":" RATES("3600", "140") "}},"
	"\"link\":{\"latency_us\":2,\"gbps\":45}}";
static const char one_kind[] =
	"{\"gpus\":{\"fast\":{\"dollars_per_hour\":11,\"memory_gb\":141,\"costs\":" RATES("4500", "700") "}},"
	"\"link\":{\"latency_us\":20,\"gbps\":45}}";

static void command(struct cairn_test *t)
{
	char trace[PATH_MAX], prices[PATH_MAX], json[PATH_MAX];
	static char out[1 << 18];
	const char *argv[] = { "cairn", "disagg-plan", "--trace", trace, "--prices", prices, "--shape",
			       "llama3-8b", "--max-gpus", "3", "--json", json, "--figures", NULL };
	FILE *f;

	snprintf(trace, sizeof(trace), "%s/azure.conv.csv", cairn_tmpdir(t));
	snprintf(prices, sizeof(prices), "%s/prices.json", cairn_tmpdir(t));
	snprintf(json, sizeof(json), "%s/rows.jsonl", cairn_tmpdir(t));
	write_trace(t, trace, 0, 1155, 211, 400);
	for (int i = 0; i < 2; i++) {
		f = fopen(prices, "w");
		if (!EXPECT(t, f != NULL))
			return;
		fputs(i ? one_kind : two_kinds, f);
		fclose(f);
		EXPECT(t, cairn_spawn((char *const *)argv, out, sizeof(out)) == 0);
		EXPECT_CONTAINS(t, out, "400 requests, mean prompt 11");
		EXPECT_CONTAINS(t, out, "weights 16.1 GB, KV 131.1 KB a token; simulated");
		/* equal GPUs that hold the model gain nothing over a slow link */
		EXPECT_CONTAINS(t, out, i ? "\ndo not: 1 x fast as one engine gives" : "tokens per dollar");
		EXPECT_CONTAINS(t, out, "the same GPUs as whole engines");
	}
	f = fopen(json, "r");
	if (!EXPECT(t, f != NULL))
		return;
	out[fread(out, 1, sizeof(out) - 1, f)] = 0;
	fclose(f);
	EXPECT_CONTAINS(t, out, "\"op\":\"disagg_sim\",\"impl\":\"simulated\",\"ok\":true,"
			"\"simulated\":true");
	EXPECT_CONTAINS(t, out, "\"case\":\"fig4_llama3_8b_b300_kv4096_fast_wide\"");
	EXPECT_CONTAINS(t, out, "\"case\":\"fig8_lanes8\",\"waited_ns\":0,\"idle_ns\":0,\"exact\":true");
	EXPECT_CONTAINS(t, out, "\"case\":\"fig9_azure_llama3_8b_b64_workers4\"");
}

static void command_errors(struct cairn_test *t)
{
	char trace[PATH_MAX], prices[PATH_MAX], out[4096];
	const struct { const char *args[9], *want; } bad[] = {
		{ { NULL }, "--prices is required" },
		{ { "--prices", prices, NULL }, "one of --model and --shape is required" },
		{ { "--prices", prices, "--shape", "llama9", NULL }, "--shape: 'llama9' is not one of" },
		{ { "--prices", prices, "--shape", "llama3-8b", "--figures", NULL },
		  "--figures: needs --json" },
		{ { "--prices", cairn_tmpdir(t), "--shape", "llama3-8b", NULL }, cairn_tmpdir(t) },
		{ { "--prices", trace, "--shape", "llama3-8b", NULL }, "mooncake.jsonl" },
		{ { "--prices", prices, "--shape", "llama3-8b", "--model-gpu", "tpu", NULL },
		  "prices.json has no \"tpu\"" },
		{ { "--prices", prices, "--shape", "llama3-8b", "--max-gpus", "2", "--model-workers", "2" },
		  "--max-gpus: is less than" },
		{ { "--prices", prices, "--shape", "gemma2-9b", NULL },
		  "attention windows are not simulated" },
	};
	FILE *f;

	snprintf(trace, sizeof(trace), "%s/mooncake.jsonl", cairn_tmpdir(t));
	snprintf(prices, sizeof(prices), "%s/prices.json", cairn_tmpdir(t));
	write_trace(t, trace, 1, 12035, 343, 10);
	f = fopen(prices, "w");
	if (!EXPECT(t, f != NULL))
		return;
	fputs(two_kinds, f);
	fclose(f);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		const char *argv[16] = { "cairn", "disagg-plan", "--trace", trace };

		memcpy(argv + 4, bad[i].args, sizeof(bad[i].args));
		EXPECT(t, cairn_spawn((char *const *)argv, out, sizeof(out)) > 0);
		EXPECT_CONTAINS(t, out, "cairn disagg-plan: ");
		EXPECT_CONTAINS(t, out, bad[i].want);
	}
}

/* A bound of the time between tokens that only smaller batches keep costs throughput. */
static void bound(struct cairn_test *t)
{
	struct cairn_trace *trace = some_trace(300, 1155, 100, 13);
	struct cairn_disagg_hardware hw = { .gpus = { plain_gpu }, .num_gpus = 1, .link = plain_link };
	struct cairn_disagg_limits limits = {
		.most_gpus = 2, .most_lanes = 2,
		.replay = { .page_size = 16, .most_rows = 256, .memory_share = 1 },
	};
	struct cairn_disagg_model m = { .graph = NULL };
	struct cairn_disagg_advice free_, tight;

	if (!EXPECT(t, !open_8b(&m)))
		return;
	if (EXPECT(t, !cairn_disagg_advise(&free_, trace, &m, &hw, &limits))) {
		limits.replay.tbt_ms = 8;
		EXPECT(t, !cairn_disagg_advise(&tight, trace, &m, &hw, &limits));
		EXPECT(t, free_.whole && free_.whole->result.p99_tbt_ms > 8);
		EXPECT(t, tight.whole && tight.whole->result.p99_tbt_ms <= 8);
		EXPECT(t, tight.whole->tokens_per_dollar < free_.whole->tokens_per_dollar);
		cairn_disagg_advice_free(&tight);
		cairn_disagg_advice_free(&free_);
	}
	cairn_trace_free(trace);
	cairn_disagg_model_close(&m);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(advice), UNIT(bound), UNIT(figures), UNIT(command), UNIT(command_errors),
};

const struct cairn_family cairn_disagg_advise_family = {
	.stage = "serving",
	.name = "disagg_advise",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
