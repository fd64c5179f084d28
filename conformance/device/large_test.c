// SPDX-License-Identifier: Apache-2.0
/* large_test - blocks are reused, never shared, and memory of malloc() can be freed as they are */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/device/large.h"

#define MIB	((size_t)1 << 20)
#define BLOCKS	300		/* more than large.c has entries for */

static void reuses_a_block(struct cairn_test *t)
{
	char *a = cairn_large_alloc(40 * MIB), *b, *c;

	if (!EXPECT(t, a) || !EXPECT(t, (uintptr_t)a % (2 * MIB) == 0))
		return;
	memset(a, 1, 40 * MIB);
	cairn_large_free(a);
	b = cairn_large_alloc(36 * MIB);
	c = cairn_large_alloc(36 * MIB);
	if (!EXPECT(t, b && c))
		return;
	EXPECT(t, b + 36 * MIB <= c || c + 36 * MIB <= b);
	memset(b, 2, 36 * MIB);
	memset(c, 3, 36 * MIB);
	EXPECT(t, b[0] == 2 && b[36 * MIB - 1] == 2 && c[0] == 3 && c[36 * MIB - 1] == 3);
	cairn_large_free(b);
	cairn_large_free(c);
	cairn_large_free(NULL);
	cairn_large_free(malloc(100));
}

/* Only the first byte of each block is touched, so that they take no memory. */
static void has_many_blocks(struct cairn_test *t)
{
	static char *p[BLOCKS];

	for (int i = 0; i < BLOCKS; i++) {
		p[i] = cairn_large_alloc(2 * MIB);
		if (!EXPECT(t, p[i]))
			return;
		*(int *)p[i] = i;
	}
	for (int i = 0; i < BLOCKS; i++)
		EXPECT(t, *(int *)p[i] == i);
	for (int i = 0; i < BLOCKS; i++)
		cairn_large_free(p[i]);
}

static const struct cairn_unit units[] = {
	{ "reuses_a_block", reuses_a_block },
	{ "has_many_blocks", has_many_blocks },
};

const struct cairn_family cairn_large_family = {
	.stage = "conformance", .name = "large", .units = units, .num_units = ARRAY_SIZE(units),
};
