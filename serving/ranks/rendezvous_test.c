// SPDX-License-Identifier: Apache-2.0
/*
 * rendezvous_test - ranks of several started programs: how they find each other, and what is refused
 *
 * The programs run on this machine, over a loopback address. Node 1 is started first; rank 0 need not listen
 * yet.
 */
#include "conformance/harness.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "conformance/suite/spawn.h"
#include "serving/model/model_test.h"
#include "serving/ranks/rendezvous.h"
#include "serving/remote/control/sodium.h"

#define OUT	8192

/* ---- variables and messages ---- */

static const char *const *variables;	/* name, value, ..., NULL */

static char *get_variable(const char *name)
{
	for (const char *const *v = variables; *v; v += 2)
		if (!strcmp(*v, name))
			return (char *)v[1];
	return NULL;
}

static void environment(struct cairn_test *t)
{
	static const struct {
		const char *variables[9];
		int nodes, node;	/* nodes 0: refused */
	} cases[] = {
		{ { "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "3", "SLURM_NTASKS", "9",
		    "SLURM_PROCID", "8" }, 4, 3 },
		{ { "PMI_SIZE", "2", "PMI_RANK", "0" }, 2, 0 },
		{ { "SLURM_NTASKS", "3", "PMIX_RANK", "2", "SLURM_PROCID", "1" }, 3, 2 },
		{ { "SLURM_NTASKS", "3", "SLURM_PROCID", "1" }, 3, 1 },
		{ { "LWS_GROUP_SIZE", "8", "LWS_WORKER_INDEX", "7" }, 8, 7 },
		{ { "SLURM_NTASKS", "3" }, 0, 0 },
		{ { "PMI_SIZE", "2", "PMI_RANK", "2" }, 0, 0 },
		{ { "PMI_SIZE", "two", "PMI_RANK", "0" }, 0, 0 },
		{ { "PMI_SIZE", "2", "PMI_RANK", "-1" }, 0, 0 },
		{ { NULL }, 0, 0 },
	};
	struct cairn_rendezvous r;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		variables = cases[i].variables;
		r = (struct cairn_rendezvous){ .node = -1 };
		if (!cases[i].nodes) {
			EXPECT(t, cairn_rendezvous_from_env(&r, get_variable) == -EINVAL);
			EXPECT_CONTAINS(t, cairn_last_error(), *variables ? ": " : "--rendezvous: needs");
			continue;
		}
		EXPECT(t, cairn_rendezvous_from_env(&r, get_variable) == 0);
		EXPECT(t, r.nodes == cases[i].nodes && r.node == cases[i].node);
	}
	variables = cases[0].variables;		/* options come first */
	r = (struct cairn_rendezvous){ .nodes = 2, .node = 1 };
	EXPECT(t, cairn_rendezvous_from_env(&r, get_variable) == 0 && r.nodes == 2 && r.node == 1);
}

static void join_messages(struct cairn_test *t)
{
	const struct cairn_join mine = { CAIRN_JOIN_VERSION, 0, 4, 2, "0123abcd" };
	struct cairn_join j;
	int32_t rank;

#define REFUSED(text, change) do { \
		struct cairn_channel_message m = { 1, &j, sizeof(j) }; \
		j = mine; \
		j.rank = 3; \
		change; \
		EXPECT(t, cairn_join_check(&m, &mine, &rank) == -EINVAL); \
		EXPECT_CONTAINS(t, cairn_last_error(), text); \
	} while (0)
	j = mine;
	j.rank = 3;
	EXPECT(t, !cairn_join_check(&(struct cairn_channel_message){ 1, &j, sizeof(j) }, &mine, &rank));
	EXPECT(t, rank == 3);
	REFUSED("of kind 2", m.kind = 2);
	REFUSED("bytes", m.num_bytes = sizeof(j) - 1);
	REFUSED("version 9", j.version = 9);
	REFUSED("rank 4: is not in 1..3", j.rank = 4);
	REFUSED("rank 0: is not", j.rank = 0);
	REFUSED("rank 3: is another build, 0123abce", j.build[7] = 'e');
	REFUSED("no digest", j.build[2] = '\n');
	REFUSED("version", memset(j.build, 'a', sizeof(j.build)));
	REFUSED("rank 3: has --tp 8 and 2 nodes, rank 0 has 4 and 2", j.ranks = 8);
	REFUSED("rank 3: has --tp 4 and 4 nodes", j.nodes = 4);
#undef REFUSED
}

/* ---- programs ---- */

/* A free port, and what else both programs get. */
struct pair {
	char address[32], key[PATH_MAX], other_key[PATH_MAX];
	int listener;			/* keeps the port reserved until it is used; -1: none */
};

static int open_pair(struct cairn_test *t, struct pair *p)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(a);
	const struct sodium *s;
	char secret[32];

	if (sodium_load(&s)) {
		cairn_skip(t, "%s", cairn_last_error());
		return -1;
	}
	for (int i = 0; i < 2; i++) {
		memset(secret, 'a' + i, sizeof(secret));
		cairn_tmpfile(t, i ? p->other_key : p->key, PATH_MAX, i ? "other_key" : "key", secret,
			      sizeof(secret));
		chmod(i ? p->other_key : p->key, 0600);
	}
	p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (!EXPECT(t, !bind(p->listener, (struct sockaddr *)&a, len) && !listen(p->listener, 1) &&
		       !getsockname(p->listener, (struct sockaddr *)&a, &len)))
		return -1;
	snprintf(p->address, sizeof(p->address), "127.0.0.1:%d", ntohs(a.sin_port));
	return 0;
}

/* The arguments of a node. more: further ones, up to a NULL. */
static void arguments(const struct pair *p, const char *node, const char *key, const char *const *more,
		      char *argv[32])
{
	const char *const all[] = { "cairn", "generate", "--impl", "cpu", "--prompt", "What is 55 - 8?\n",
				    "--rendezvous", p->address, "--nodes", "2", "--node-rank", node,
				    "--rendezvous-timeout", "20", "--collective-timeout", "60" };
	int n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		argv[n++] = (char *)all[i];
	if (key) {
		argv[n++] = (char *)"--rendezvous-key-file";
		argv[n++] = (char *)key;
	}
	while (*more)
		argv[n++] = (char *)*more++;
	argv[n] = NULL;
}

/* Starts node 1 in the background; its output goes to a file. */
static pid_t start_node(struct cairn_test *t, const struct pair *p, const char *key, const char *const *more,
			char *path)
{
	char *argv[32];
	pid_t pid;

	cairn_tmpfile(t, path, PATH_MAX, "node1", "", 0);
	arguments(p, "1", key, more, argv);
	pid = fork();
	if (!pid) {
		int fd = open(path, O_WRONLY | O_APPEND);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(fd, 1);
		dup2(fd, 2);
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	return pid;
}

/* Runs both nodes with these keys and arguments. Their outputs and exit statuses are returned. */
static void run_pair(struct cairn_test *t, struct pair *p, const char *const keys[2],
		     const char *const *const more[2], char out[2][OUT], int status[2])
{
	char path[PATH_MAX], *argv[32];
	pid_t node;
	FILE *f;

	close(p->listener);
	node = start_node(t, p, keys[1], more[1], path);
	arguments(p, "0", keys[0], more[0], argv);
	status[0] = cairn_spawn(argv, out[0], OUT);
	EXPECT(t, waitpid(node, &status[1], 0) == node);
	status[1] = WIFEXITED(status[1]) ? WEXITSTATUS(status[1]) : -1;
	f = fopen(path, "r");
	out[1][f ? fread(out[1], 1, OUT - 1, f) : 0] = 0;
	if (f)
		fclose(f);
}

/* Two nodes of two ranks each; the embedded model has two KV heads, so that two ranks share each. */
static void two_nodes(struct cairn_test *t)
{
	static const char *const more[] = { "--tp", "4", "--repetition-penalty", "1.01", NULL };
	char out[2][OUT];
	int status[2];

	for (int with_key = 0; with_key < 2; with_key++) {
		struct pair p;
		const char *const keys[2] = { with_key ? p.key : NULL, with_key ? p.key : NULL };

		if (open_pair(t, &p))
			return;
		run_pair(t, &p, keys, (const char *const *const[2]){ more, more }, out, status);
		if (!EXPECT(t, status[0] == 0 && status[1] == 0))
			cairn_note(t, "%d, %s\n%d, %s", status[0], out[0], status[1], out[1]);
		EXPECT_CONTAINS(t, out[0], "47\n");
		EXPECT(t, !strstr(out[1], "47"));	/* only rank 0 prints the answer */
	}
}

/* How the second node differs from the first, and the errors of both. */
static void refused(struct cairn_test *t)
{
	static const char *const two[] = { "--tp", "2", "--rendezvous-timeout", "3", NULL };
	static const char *const four[] = { "--tp", "4", "--rendezvous-timeout", "3", NULL };
	char dir[PATH_MAX], out[2][OUT];
	const char *const model[] = { "--tp", "2", "--model", dir, NULL };
	static const char *const fp8[] = { "--tp", "2", "--weights", "fp8", NULL };
	const char *const key = "key", *const other = "other";
	const struct {
		const char *keys[2];
		const char *const *more;
		const char *says[2];
	} cases[] = {
		{ { NULL, NULL }, four, { "has --tp 4 and 2 nodes, rank 0 has 2", "rendezvous: rank 0 at" } },
		{ { NULL, NULL }, model, { "rank 1 has another model than", "rank 1 has another model" } },
		{ { NULL, NULL }, fp8, { "/fp8/plain/tp', not '", "rank 1 has another model" } },
		{ { key, other }, two, { "rank 1 has not come to", "rendezvous: rank 0 at 127.0.0.1" } },
		{ { key, NULL }, two, { "a peer was refused: chann", "rendezvous: rank 0 at 127.0.0.1" } },
	};

	snprintf(dir, sizeof(dir), "%s/serving/golden/llama3_tiny", cairn_data_dir());
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *keys[2];
		struct pair p;
		int status[2];

		if (open_pair(t, &p))
			return;
		for (int k = 0; k < 2; k++)
			keys[k] = cases[i].keys[k] == key ? p.key : cases[i].keys[k] ? p.other_key : NULL;
		run_pair(t, &p, keys, (const char *const *const[2]){ two, cases[i].more }, out, status);
		for (int k = 0; k < 2; k++) {
			EXPECT(t, status[k] > 0);
			EXPECT_CONTAINS(t, out[k], cases[i].says[k]);
			if (cases[i].more != four)	/* a node of two ranks may have a line of each */
				EXPECT(t, strchr(out[k], '\n') == out[k] + strlen(out[k]) - 1);
		}
	}
}

/* Runs node 0, or 1, alone. */
static void alone(struct cairn_test *t, const struct pair *p, const char *node, const char *key,
		  const char *says)
{
	static const char *const more[] = { "--tp", "2", "--rendezvous-timeout", "1", NULL };
	char out[OUT], *argv[32];

	arguments(p, node, key, more, argv);
	EXPECT(t, cairn_spawn(argv, out, OUT) == 2);
	EXPECT_CONTAINS(t, out, says);
	EXPECT(t, strchr(out, '\n') == out + strlen(out) - 1);
}

static void bad_input(struct cairn_test *t)
{
	char says[128], out[OUT];
	struct pair p;

	if (open_pair(t, &p))
		return;
	snprintf(says, sizeof(says), "--rendezvous: %s: Address already in use", p.address);
	alone(t, &p, "0", NULL, says);
	close(p.listener);
	alone(t, &p, "0", NULL, "rendezvous: rank 1 has not come to 127.0.0.1");
	alone(t, &p, "1", NULL, "rendezvous: rank 0 is not at 127.0.0.1");
	alone(t, &p, "2", NULL, "--node-rank: is 2, must be 0 to 1");
	alone(t, &p, "0", "/nonexistent", "--rendezvous-key-file: /nonexistent: No such file");
	chmod(p.key, 0644);
	alone(t, &p, "0", p.key, "--rendezvous-key-file: ");
	snprintf(p.address, sizeof(p.address), "localhost");
	alone(t, &p, "0", NULL, "--rendezvous: 'localhost' is not HOST:PORT");
	snprintf(p.address, sizeof(p.address), ":5000");
	alone(t, &p, "0", NULL, "--rendezvous: ':5000' has no host");
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "generate", "--tp", "2", "--nodes", "2", NULL }, out,
			      OUT) == 2);
	EXPECT_CONTAINS(t, out, "need --rendezvous");
	EXPECT(t, cairn_spawn((char *[]){ "cairn", "generate", "--tp", "3", "--rendezvous", "127.0.0.1:9",
					  "--nodes", "2", "--node-rank", "1", NULL }, out, OUT) == 2);
	EXPECT_CONTAINS(t, out, "--nodes: 3 ranks are not divisible among 2 nodes");
}

/* A stranger that connects first, silent or not, does not keep any rank from joining. */
static void strangers(struct cairn_test *t)
{
	static const char *const more[] = { "--tp", "2", NULL };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	char path[PATH_MAX], out[OUT], *argv[32];
	int fd[2] = { -1, -1 }, status = -1;
	pid_t node, stranger;
	struct pair p;

	if (open_pair(t, &p))
		return;
	a.sin_port = htons((uint16_t)atoi(strchr(p.address, ':') + 1));
	close(p.listener);
	stranger = fork();
	if (!stranger) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; i < 2; i++) {
			do {
				usleep(2000);
				close(fd[i]);
				fd[i] = socket(AF_INET, SOCK_STREAM, 0);
			} while (connect(fd[i], (struct sockaddr *)&a, sizeof(a)));
		}
		if (write(fd[1], "GET / HTTP/1.1\r\n\r\n", 18) == 18)
			pause();
		_exit(0);
	}
	node = fork();
	if (!node) {		/* comes later than the stranger, most likely */
		usleep(300000);
		_exit(waitpid(start_node(t, &p, p.key, more, path), &status, 0) > 0 && WIFEXITED(status) ?
		      WEXITSTATUS(status) : 1);
	}
	arguments(&p, "0", p.key, more, argv);
	if (!EXPECT(t, cairn_spawn(argv, out, OUT) == 0))
		cairn_note(t, "%s", out);
	EXPECT_CONTAINS(t, out, "47\n");
	EXPECT(t, waitpid(node, &status, 0) == node && WIFEXITED(status) && !WEXITSTATUS(status));
	kill(stranger, SIGKILL);
	waitpid(stranger, NULL, 0);
}

static const struct cairn_unit units[] = {
	{ "environment", environment }, { "join_messages", join_messages }, { "two_nodes", two_nodes },
	{ "refused", refused }, { "bad_input", bad_input }, { "strangers", strangers },
};

const struct cairn_family cairn_rendezvous_family = {
	.stage = "serving", .name = "rendezvous",
	.units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 15, .waits = 1,
};
