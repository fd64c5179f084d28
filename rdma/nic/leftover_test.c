// SPDX-License-Identifier: Apache-2.0
/*
 * leftover_test.c - tests that use rdma leave no file and no process behind, not even those that kill a peer
 *
 * The program runs each family with its own directory for temporary files, and this process inherits orphans.
 * Afterwards the directory must be empty, and no orphan may run.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"

static int num_files(struct cairn_test *t, const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;
	int num = 0;

	while (dir && (e = readdir(dir)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) {
			cairn_note(t, "left: %s", e->d_name);
			num++;
		}
	if (dir)
		closedir(dir);
	return num;
}

/* Returns 1 if an orphan is still running, else 0. Orphans that have exited are reaped and do not count. */
static int num_orphans(struct cairn_test *t)
{
	siginfo_t info = { 0 };
	int num = 0;

	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	if (!waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || errno != ECHILD) {
		cairn_note(t, "an orphaned process is still running");
		num = 1;
	}
	return num;
}

static void leaves_nothing(struct cairn_test *t, char *const names[])
{
	char out[16384], *argv[16] = { "cairn", "check" };
	int status, n = 2;

	while (*names && n < 15)
		argv[n++] = *names++;
	EXPECT(t, !prctl(PR_SET_CHILD_SUBREAPER, 1));
	status = cairn_spawn_in(cairn_tmpdir(t), NULL, argv, out, sizeof(out));
	if (!EXPECT(t, status == 0))
		cairn_note(t, "status %d: %.3000s", status, out);
	EXPECT(t, num_files(t, cairn_tmpdir(t)) == 0);
	EXPECT(t, num_orphans(t) == 0);
	prctl(PR_SET_CHILD_SUBREAPER, 0);
}

static void model(struct cairn_test *t)
{
	leaves_nothing(t, (char *[]){ "rdma.nic.semantics_plain", "rdma.nic.key_revoked",
				      "rdma.nic.unknown_adversary", "rdma.nic.arming",
				      "rdma.golden.other_seeds", "rdma.card", NULL });
}

static void stock_programs(struct cairn_test *t)
{
	leaves_nothing(t, (char *[]){ "rdma.nic_stock.pingpong", "rdma.nic_stock.send_lat_events",
				      "rdma.nic_stock.peer_killed", NULL });
}

static void posters(struct cairn_test *t)
{
	leaves_nothing(t, (char *[]){ "rdma.fhbn", "rdma.fhbn_fault", "rdma.fhbn_verbs", NULL });
}

static void transports(struct cairn_test *t)
{
	leaves_nothing(t, (char *[]){ "rdma.transport_loop.words", "rdma.transport_verbs.peer_gone_*",
				      "rdma.transport_verbs.words", "serving.pull.verbs", NULL });
}

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(model), UNIT(stock_programs), UNIT(posters), UNIT(transports),
};

const struct cairn_family cairn_leftover_family = {
	.stage = "rdma", .name = "leftover", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 10,
};
