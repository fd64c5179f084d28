// SPDX-License-Identifier: Apache-2.0
/*
 * nic_test.c - runs the semantics test, the adversary's cases and the mutants on the NIC model
 *
 * Each program is started with the library preloaded; libibverbs and libmlx5 are the system's own. The tests
 * check the exit status, the output and the model's report: work was done and, except by the mutants, no rule
 * was broken.
 */
#include <glob.h>

#include "conformance/harness.h"
#include "rdma/nic/nic_child.h"
#include "rdma/nic/nic_measure.h"

/* Returns whether the model's own directory still exists after its process has ended. */
static int left_behind(struct cairn_test *t)
{
	char pattern[1024];
	glob_t found;
	int ret = glob(path_of(t, "cairn_nic.*", pattern, sizeof(pattern)), 0, NULL, &found);

	if (!ret)
		globfree(&found);
	return ret != GLOB_NOMATCH;
}

/* The semantics test's output under an adversary (or none) must equal the file exactly. */
static void semantics(struct cairn_test *t, const char *adversary)
{
	char path[4096], want[8192], got[8192];
	struct child c;

	if (missing(t, "nic_semantics"))
		return;
	start(t, &c, "nic_semantics", adversary, "out");
	if (!EXPECT(t, finish(t, &c) == 0))
		cairn_note(t, "status %d", c.status);
	snprintf(path, sizeof(path), "%s/rdma/nic/nic_semantics.txt", cairn_srcdir());
	EXPECT(t, text_of(path, want, sizeof(want))[0] != 0);
	EXPECT(t, strcmp(text_of(c.out, got, sizeof(got)), want) == 0);
	EXPECT(t, !left_behind(t));
	EXPECT(t, reported(t, "requests") > 400);
	EXPECT(t, reported(t, "rules") == 0);
}

static void semantics_plain(struct cairn_test *t)
{
	semantics(t, NULL);
}

static void semantics_late(struct cairn_test *t)
{
	semantics(t, "fetch_us=100,completion_us=100,read_us=200");
}

static void semantics_in_pieces(struct cairn_test *t)
{
	semantics(t, "pieces=16,piece_us=20,read_us=200");
}

static void semantics_lost_doorbells(struct cairn_test *t)
{
	semantics(t, "drop=30,drop_bf=50,fetch_us=20");
}

/* The application must see a failure that the adversary causes, and nothing may hang. */
static void ends_with(struct cairn_test *t, const char *adversary, const char *counter)
{
	char text[8192];
	struct child c;

	if (missing(t, "nic_semantics"))
		return;
	start(t, &c, "nic_semantics", adversary, "out");
	EXPECT(t, finish(t, &c) == 1);
	EXPECT_CONTAINS(t, text_of(c.out, text, sizeof(text)), " 0 torn");
	EXPECT(t, !strstr(text, "chains 200"));
	EXPECT(t, !counter || reported(t, counter) > 0);
	EXPECT(t, reported(t, "rules") == 0);
}

static void key_revoked(struct cairn_test *t)
{
	ends_with(t, "revoke=50", "errors");
}

static void queue_overrun(struct cairn_test *t)
{
	ends_with(t, "overrun=50", NULL);
}

static void unknown_adversary(struct cairn_test *t)
{
	char path[1024], text[1024];
	struct child c;

	if (missing(t, "nic_semantics"))
		return;
	start(t, &c, "nic_semantics", "no_such_trouble=1", "out");
	EXPECT(t, finish(t, &c) == 77);
	text_of(path_of(t, "report", path, sizeof(path)), text, sizeof(text));
	EXPECT_CONTAINS(t, text, "\"event\":\"error\"");
}

static void mutants(struct cairn_test *t, const char *words, const char *adversary, const char *verdict)
{
	char text[8192], *line, *save;
	struct child c;

	if (missing(t, "nic_mutants"))
		return;
	start(t, &c, words, adversary, "out");
	EXPECT(t, finish(t, &c) == 0);
	EXPECT_CONTAINS(t, text_of(c.out, text, sizeof(text)), verdict);
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (!strncmp(line, "nic mutants", 11) || !strncmp(line, "MISSED", 6) ||
		    !strncmp(line, "WRONG", 5))
			cairn_note(t, "%s", line);
}

static void mutants_plain(struct cairn_test *t)
{
	mutants(t, "nic_mutants", NULL, "nic mutants: 31 of 31 caught, 0 right producers blamed");
}

/* A READ takes far longer than anything else, so that unfenced WRITEs overtake it on a busy machine too. */
static void mutants_late(struct cairn_test *t)
{
	mutants(t, "nic_mutants trouble", "fetch_us=300,completion_us=300,read_us=20000,pieces=8,piece_us=50",
		"nic mutants: 9 of 9 caught, 0 right producers blamed");
}

static void mutants_collapsed(struct cairn_test *t)
{
	mutants(t, "nic_mutants collapsed", "collapse=1",
		"nic mutants: 1 of 1 caught, 0 right producers blamed");
}

static void arming(struct cairn_test *t)
{
	char text[8192];
	struct child c;

	if (missing(t, "nic_arming"))
		return;
	start(t, &c, "nic_arming", NULL, "out");
	EXPECT(t, finish(t, &c) == 0);
	EXPECT_CONTAINS(t, text_of(c.out, text, sizeof(text)),
			"arming mutants: 7 of 7 caught, 0 of 2 right consumers blamed");
	cairn_note(t, "%.*s", (int)strcspn(text, "\n"), text);
}

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(semantics_plain), UNIT(semantics_late), UNIT(semantics_in_pieces),
	UNIT(semantics_lost_doorbells),
	UNIT(key_revoked), UNIT(queue_overrun), UNIT(unknown_adversary),
	UNIT(mutants_plain), UNIT(mutants_late), UNIT(mutants_collapsed), UNIT(arming),
};

const struct cairn_family cairn_nic_family = {
	.stage = "rdma", .name = "nic", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = nic_measures, .num_measures = NIC_NUM_MEASURES,
	.cost_s = 32, .waits = 1,
};
