// SPDX-License-Identifier: Apache-2.0
/* validate_links_test - `cairn validate` on several simulated devices: defects of the links between them */
#include "conformance/validate/validate_test.h"

/* Links that are slow, wrong, down or dead are named, between two devices and between four. */
static void finds_bad_links(struct cairn_test *t)
{
	static const struct defect defects[] = {
		{ "devices=4", "", "links", 0, "pass     links               3 of 3 peers, " },
		{ "devices=4 link_slow=50 link_from=2", "", "links", 1,
		  "fail: links: device 2 to device 1, together: 5.0% slower than the 11 others" },
		{ "devices=2 link_slow=50 link_from=1 link_to=0", "", "links", 1,
		  "fail: links: device 1 to device 0, alone: 5.0% slower than the way back" },
		{ "devices=2 link_slow=50", "links=0", "links", 0, "warn: links: device 0 to device 1, " },
		{ "devices=4 link_slow=5000 link_to=3", "", "links", 1, "slower than its siblings, " },
		{ "devices=4 link_byte=5000 link_to=2", "", "links", 1,
		  "fail: links: device 0 to device 2: the block at byte 4096 is wrong at the receiver" },
		{ "devices=2 link_byte=5000", "", "links", 1, "device 0 to device 1: the block at byte" },
		{ "devices=4 link_down=1", "", "links", 1, "device 1 to device 0: down: sim: cannot map" },
		{ "devices=2 link_down=1", "", "links", 1, "device 0 to device 1: down: sim: cannot map" },
		{ "devices=2 link_down=1", "links=0", "links", 3, "no device reaches the memory of " },
		{ "devices=4 link_lost=40 link_to=3", "", "links", 1,
		  "not run  links               ended early: device 0 has left the test" },
		{ "devices=1", "", "links", 3, "not run  links               one device has no peers" },
	};

	find(t, defects, ARRAY_SIZE(defects));
	setenv("CAIRN_TIMEOUT", "4", 1);
	find(t, &(struct defect){ "devices=2 link_hang=40", NULL, "links", 1, "TIMEOUT after 4 s" }, 1);
	unsetenv("CAIRN_TIMEOUT");
}

/* Sums through a library with NCCL's interface; without one --nccl is refused by name. */
static void sums_through_nccl(struct cairn_test *t)
{
	static const struct {
		const char *sim, *wrong;	/* wrong: the rank whose sums have a wrong bit */
		int status;
		const char *says;
	} tries[] = {
		{ "devices=3", "-1", 0, "pass     nccl " },
		{ "devices=3", "2", 1, "nccl: the block at byte 4096 of a sum of exact numbers is wrong" },
		{ "devices=2", "0", 1, "1 passed, 0 warned, 1 failed" },
	};
	static char out[65536];
	char library[4200];

	if (!cairn_beside("fake_nccl.so", library, sizeof(library))) {
		cairn_skip(t, "fake_nccl.so is not in the directory of this program");
		return;
	}
	setenv("CAIRN_NCCL", library, 1);
	for (size_t i = 0; i < ARRAY_SIZE(tries); i++) {
		setenv("CAIRN_FAKE_NCCL", tries[i].wrong, 1);
		EXPECT(t, validate(tries[i].sim, NULL, "nccl", "--nccl", out, sizeof(out)) ==
		       tries[i].status);
		EXPECT_CONTAINS(t, out, tries[i].says);
	}
	setenv("CAIRN_NCCL", "/nowhere/libnccl.so", 1);
	EXPECT(t, validate("devices=2", NULL, "links", "--nccl", out, sizeof(out)) == 2);
	EXPECT_CONTAINS(t, out, "--nccl: NCCL cannot be loaded: /nowhere/libnccl.so");
	unsetenv("CAIRN_NCCL");
	unsetenv("CAIRN_FAKE_NCCL");
}

static const struct cairn_unit units[] = {
	{ "finds_bad_links", finds_bad_links }, { "sums_through_nccl", sums_through_nccl },
};

const struct cairn_family cairn_validate_links_family = {
	.stage = "conformance", .name = "validate_links", .units = units, .num_units = ARRAY_SIZE(units),
};
