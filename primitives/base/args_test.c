// SPDX-License-Identifier: Apache-2.0
/* args_test - tests argument structs that are longer or shorter than an operation knows */
#include "primitives/base/args.h"

#include <stdint.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/guard.h"

/* What an operation knows, and what newer callers pass. */
struct known {
	size_t size;
	int32_t a, b;
};

struct newer {
	size_t size;
	int32_t a, b, c[6];
};

static void longer(struct cairn_test *t)
{
	struct newer n = { .size = sizeof(n), .a = 1, .b = -1 };

	EXPECT(t, cairn_check_args(&n, sizeof(struct known), "turn") == 0);
	for (size_t i = sizeof(struct known); i < sizeof(n); i++) {
		((char *)&n)[i] = (char)0x80;
		EXPECT(t, cairn_check_args(&n, sizeof(struct known), "turn") == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), "struct cairn_turn_args: byte ");
		((char *)&n)[i] = 0;
	}
	n.c[5] = 1;
	EXPECT(t, cairn_check_args(&n, sizeof(struct known), "turn") == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "byte 36 of 40 is not 0, and only 16 bytes are known here");
	EXPECT(t, cairn_check_args(&n, sizeof(n), "turn") == 0);
}

static void refused_sizes(struct cairn_test *t)
{
	struct known k = { .size = sizeof(k) - 1 };

	EXPECT(t, cairn_check_args(NULL, sizeof(k), "turn") == -EINVAL);
	EXPECT(t, cairn_check_args(&k, sizeof(k), "turn") == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "args: size is 15, must be at least 16 and at most 4096");
	k.size = SIZE_MAX;		/* as if it were not set: nothing after the struct may be read */
	EXPECT(t, cairn_check_args(&k, sizeof(k), "turn") == -EINVAL);
	k.size = sizeof(k);
	EXPECT(t, cairn_check_args(&k, sizeof(k), "turn") == 0);
}

/* A copy has the caller's members, then zeros; nothing after the caller's struct is read. */
static void copies(struct cairn_test *t)
{
	struct newer n = { .size = sizeof(n), .a = 1, .b = 2, .c = { 3, 4, 5, 6, 7, 8 } }, copy;
	struct cairn_guard g = { 0 };
	struct known k;

	cairn_copy_args(&k, &n, sizeof(k));
	EXPECT(t, k.size == sizeof(k) && k.a == 1 && k.b == 2);
	if (!EXPECT(t, cairn_guard_open(&g, sizeof(k), 8) == 0))
		return;
	memcpy(g.data, &k, sizeof(k));
	memset(&copy, 0x5a, sizeof(copy));
	cairn_copy_args(&copy, g.data, sizeof(copy));
	EXPECT(t, copy.size == sizeof(copy) && copy.a == 1 && copy.b == 2);
	for (int i = 0; i < 6; i++)
		EXPECT(t, copy.c[i] == 0);
	EXPECT(t, cairn_check_args(g.data, sizeof(k), "turn") == 0);
	EXPECT(t, !g.stray[0].at && !g.stray[1].at);
	cairn_guard_close(&g);
}

static const struct cairn_unit units[] = {
	{ "longer", longer }, { "refused_sizes", refused_sizes }, { "copies", copies },
};

const struct cairn_family cairn_args_family = {
	.stage = "primitives",
	.name = "args",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
