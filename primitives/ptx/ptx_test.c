// SPDX-License-Identifier: Apache-2.0
/* ptx_test - a DEBUG build must report a kernel that hangs, and only the kernel's own family may fail */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "primitives/ptx/ptx_hang.h"

/* Environment variable that the test sets for the process it starts, which then hangs */
#define HANG	"CAIRN_TEST_HANG"

#if defined(CONFIG_CUDA) && defined(CAIRN_DEBUG)
static void hang_is_named(struct cairn_test *t)
{
	const char *other = "primitives.embedding.rows1_dim8_vocab1_bf16.normal";
	char *argv[] = { "cairn", "check", "--impl", "cuda", "primitives.ptx.hang_is_named",
		(char *)other, NULL };
	char *alone[] = { "cairn", "check", "--impl", "cuda", (char *)other, NULL };
	char out[16384];

	if (getenv(HANG)) {
		EXPECT(t, cairn_ptx_hang() == 0);
		return;
	}
	cairn_spawn(alone, out, sizeof(out));
	if (!strstr(out, "\n1 passed")) {
		cairn_skip(t, "no CUDA device");
		return;
	}
	if (CAIRN_DEBUG > 10) {
		cairn_skip(t, "the time-out of this build is %d s: use DEBUG=1", 2 * CAIRN_DEBUG);
		return;
	}
	setenv(HANG, "1", 1);
	EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 1);
	unsetenv(HANG);
	EXPECT_CONTAINS(t, out, "mbarrier (address, parity)");
	EXPECT_CONTAINS(t, out, "waited in vain");
	EXPECT_CONTAINS(t, out, "block: [0,0,0]");
	EXPECT_CONTAINS(t, out, "primitives.embedding # 1 passed, 0 failed");
}
#else
static void hang_is_named(struct cairn_test *t)
{
	cairn_skip(t, "needs a build with CUDA and DEBUG=1");
}
#endif

static const struct cairn_unit units[] = {
	{ "hang_is_named", hang_is_named },
};

const struct cairn_family cairn_ptx_family = {
	.stage = "primitives", .name = "ptx", .units = units, .num_units = ARRAY_SIZE(units),
};
