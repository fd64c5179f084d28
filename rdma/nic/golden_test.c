// SPDX-License-Identifier: Apache-2.0
/* golden_test - runs golden.c on the NIC model: a million requests, and the defects it must detect */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"

/* Returns the exit status, 0 if golden ran. `out` receives its output. */
static int golden(struct cairn_test *t, long number, uint64_t seed, char *out, size_t len)
{
	char count[32], start[32];
	char *argv[] = { "golden", count, start, NULL };
	int status;

	snprintf(count, sizeof(count), "%ld", number);
	snprintf(start, sizeof(start), "%llu", (unsigned long long)seed);
	status = cairn_spawn_beside("golden", "cairn_nic.so", argv, out, len);
	if (status == -1001)
		cairn_skip(t, "golden or cairn_nic.so was not built (needs libibverbs-dev)");
	else if (status == 127)
		cairn_skip(t, "no libibverbs or libmlx5 here: %.150s", out);
	else if (!EXPECT(t, status == 0))
		cairn_note(t, "golden %s %s: status %d\n%.3500s", count, start, status, out);
	return status;
}

/* Expects the number that `format` reads to be above zero; otherwise the run would prove too little. */
static void must_be_counted(struct cairn_test *t, const char *out, const char *format)
{
	const char *line = out;
	long n = 0;

	for (; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (sscanf(line, format, &n) == 1 && n > 0)
			return;
	if (!EXPECT(t, n > 0))
		cairn_note(t, "%s", format);
}

static void million(struct cairn_test *t)
{
	int caught = 0, mutants = 0;
	char out[16384], *line;

	if (golden(t, 1000000, 1, out, sizeof(out)))
		return;
	cairn_note(t, "%.*s", (int)strlen(out) - 1, out);
	EXPECT_CONTAINS(t, out, "golden: 1000000 work requests: 0 differ; the model saw 0 rules broken");
	line = strstr(out, "wqe mutants: ");
	if (EXPECT(t, line && sscanf(line, "wqe mutants: %d of %d caught", &caught, &mutants) == 2))
		EXPECT(t, caught == mutants && mutants >= 12);
	must_be_counted(t, out, "golden: seed %*u: %*u blocks, %ld wraps");
	must_be_counted(t, out, "golden: seed %*u: %*u blocks, %*u wraps of the 16-bit index, "
			"%*u of a ring of %*u blocks, %ld entries across");
	must_be_counted(t, out, "golden: %*d doorbell records, %ld doorbells");
	must_be_counted(t, out, "golden: %*d doorbell records, %*d doorbells, %ld BlueFlame");
	must_be_counted(t, out, "golden: %*d doorbell records, %*d doorbells, %*d BlueFlame copies, "
			"%ld completions");
}

static void other_seeds(struct cairn_test *t)
{
	char out[16384];

	for (int i = 0; i < 3; i++) {
		if (golden(t, 70000, cairn_rand(t) >> 32, out, sizeof(out)))
			return;
		EXPECT_CONTAINS(t, out, "golden: 70000 work requests: 0 differ");
	}
}

static const struct cairn_unit units[] = {
	{ "million", million },
	{ "other_seeds", other_seeds },
};

const struct cairn_family cairn_golden_family = {
	.stage = "rdma", .name = "golden", .units = units, .num_units = ARRAY_SIZE(units),
};
