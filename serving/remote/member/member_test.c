// SPDX-License-Identifier: Apache-2.0
/* member_test - what a member does for its lead between two epochs */
#include "conformance/harness.h"
#include "serving/remote/control/sodium_test.h"
#include "serving/remote/member/member_end_test.h"

/* A cache of some GiB takes longer to free than a member may be silent. */
static void beats(struct cairn_test *t)
{
	if (have_sodium(t) && !EXPECT(t, end_next(10000) == 0))
		cairn_note(t, "%s", cairn_last_error());
}

static const struct cairn_unit units[] = {
	{ "beats", beats },
};

const struct cairn_family cairn_member_family = {
	.stage = "serving", .name = "member", .units = units, .num_units = ARRAY_SIZE(units), .waits = 1,
};
