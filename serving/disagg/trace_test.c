// SPDX-License-Identifier: Apache-2.0
/* trace_test - both formats are read, and bad lines are refused by file and line */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/disagg/trace.h"

static int parse(struct cairn_trace **out, const char *text, int32_t most)
{
	char *copy = strdup(text);
	int ret = cairn_trace_parse(out, copy, strlen(copy), "trace", most);

	free(copy);
	return ret;
}

#define AZURE		"TIMESTAMP,ContextTokens,GeneratedTokens\n"
#define MOONCAKE(in, out)	"{\"timestamp\": 0, \"input_length\": " in ", \"output_length\": " out \
				", \"hash_ids\": [0, 1]}\n"

static void formats(struct cairn_test *t)
{
	struct cairn_trace *a = NULL;

	if (EXPECT(t, !parse(&a, AZURE "2023-11-16 18:15:46.6805900,374,44\r\n"
			     "2023-11-16 18:15:50.9951690,396,109", 10)))
		EXPECT(t, a->num_requests == 2 && a->requests[0].prompt == 374 &&
			  a->requests[1].answer == 109);
	if (a)
		EXPECT(t, a->mean_prompt == 385 && a->mean_answer == 76.5 && a->longest == 505 &&
			  a->longest_answer == 109);
	cairn_trace_free(a);
	a = NULL;
	if (EXPECT(t, !parse(&a, MOONCAKE("6758", "500") MOONCAKE("7322", "490") MOONCAKE("1", "1"), 2)))
		EXPECT(t, a->num_requests == 2 && a->requests[1].prompt == 7322 &&
			  a->requests[1].answer == 490);
	cairn_trace_free(a);
}

static void bad_lines(struct cairn_test *t)
{
	static const struct { const char *text, *want; } bad[] = {
		{ "", "trace: has no request" },
		{ AZURE, "trace: has no request" },
		{ "a,b,c\n", "trace:1: the header is not that of an Azure trace" },
		{ AZURE "t,1,2\nt,x,2\n", "trace:3: ContextTokens: not a whole number from 1" },
		{ AZURE "t,1,2,3\n", "trace:2: GeneratedTokens" },
		{ AZURE "t,1,0\n", "trace:2: GeneratedTokens" },
		{ AZURE "t,99999999999999999999,1\n", "trace:2: ContextTokens" },
		{ AZURE "t,-1,1\n", "trace:2: ContextTokens" },
		{ AZURE "1\n", "trace:2: TIMESTAMP: missing" },
		{ AZURE "\n", "trace:2: TIMESTAMP: missing" },
		{ AZURE "t,1\n", "trace:2: ContextTokens" },
		{ MOONCAKE("5", "1") MOONCAKE("0", "1"), "trace:2: input_length" },
		{ MOONCAKE("5", "\"1\""), "trace:1: output_length" },
		{ "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n", "trace:1: hash_ids" },
		{ "{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}\n", "trace:1: timestamp" },
		{ MOONCAKE("5", "1") "x\n", "trace:2" },
	};
	struct cairn_trace *a = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		EXPECT(t, parse(&a, bad[i].text, 10) == -EINVAL && !a);
		EXPECT_CONTAINS(t, cairn_last_error(), bad[i].want);
	}
	EXPECT(t, cairn_trace_read(&a, "/nonexistent/trace", 1) < 0);
	EXPECT_CONTAINS(t, cairn_last_error(), "/nonexistent/trace");
}

static void nul_byte(struct cairn_test *t)
{
	char text[] = AZURE "t,1,2\0,3\n";
	struct cairn_trace *a = NULL;

	EXPECT(t, cairn_trace_parse(&a, text, sizeof(text) - 1, "trace", 10) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "trace:2: has a NUL byte");
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = { UNIT(formats), UNIT(bad_lines), UNIT(nul_byte) };

const struct cairn_family cairn_disagg_trace_family = {
	.stage = "serving",
	.name = "disagg_trace",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
