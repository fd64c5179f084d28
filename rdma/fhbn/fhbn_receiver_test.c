// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_receiver_test.c - Cairn's poster and a receiver on unmodified libibverbs (fhbn_receiver.c), on the NIC
 * model
 *
 * Runs each doorbell dialect and each fault of the adversary. No rule may be broken, and the model must have
 * seen the dialect that was requested.
 */
#include "conformance/harness.h"
#include "rdma/nic/nic_child.h"

/* Returns whether the program is there. */
static int run(struct cairn_test *t, const char *words, const char *adversary, const char *dialect)
{
	char text[4096];
	struct child c;

	if (missing(t, "fhbn_receiver"))
		return 0;
	start(t, &c, words, adversary, "out");
	if (!EXPECT(t, finish(t, &c) == 0))
		cairn_note(t, "status %d", c.status);
	EXPECT_CONTAINS(t, text_of(c.out, text, sizeof(text)), "all as posted");
	EXPECT(t, reported(t, dialect) > 0 && reported(t, dialect) == reported(t, "doorbells"));
	EXPECT(t, reported(t, "rules") == 0);
	return 1;
}

/* The ring's 16-bit index wraps. */
static void doorbell_of_index(struct cairn_test *t)
{
	if (run(t, "fhbn_receiver 45000", NULL, "doorbell_index"))
		EXPECT(t, reported(t, "requests") > 65536);
}

static void doorbell_of_request(struct cairn_test *t)
{
	run(t, "fhbn_receiver 3000 0x4", NULL, "doorbell_wqe");
}

static void blueflame(struct cairn_test *t)
{
	if (run(t, "fhbn_receiver 3000 0x8", NULL, "doorbell_wqe"))
		EXPECT(t, reported(t, "blueflame") > 0);
}

static void late(struct cairn_test *t)
{
	run(t, "fhbn_receiver 2000", "fetch_us=100,completion_us=100", "doorbell_index");
}

static void in_pieces(struct cairn_test *t)
{
	run(t, "fhbn_receiver 2000", "pieces=16,piece_us=20", "doorbell_index");
}

static void lost_doorbells(struct cairn_test *t)
{
	run(t, "fhbn_receiver 2000", "drop=30,fetch_us=20", "doorbell_index");
}

/* The poster detects the failure and reports it by name. The receiver must not report success. */
static void key_revoked(struct cairn_test *t)
{
	char text[4096];
	struct child c;

	if (missing(t, "fhbn_receiver"))
		return;
	start(t, &c, "fhbn_receiver 2000", "revoke=50", "out");
	EXPECT(t, finish(t, &c) == 1);
	EXPECT_CONTAINS(t, text_of(c.out, text, sizeof(text)), "remote access error");
	EXPECT_CONTAINS(t, text, "WRONG");
}

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(doorbell_of_index), UNIT(doorbell_of_request), UNIT(blueflame), UNIT(late), UNIT(in_pieces),
	UNIT(lost_doorbells), UNIT(key_revoked),
};

const struct cairn_family cairn_fhbn_receiver_family = {
	.stage = "rdma", .name = "fhbn_receiver", .units = units, .num_units = ARRAY_SIZE(units),
};
