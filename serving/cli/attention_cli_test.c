// SPDX-License-Identifier: Apache-2.0
/* attention_cli_test - commands with workers: the same answer; options that do not go together */
#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "serving/cli/command.h"
#include "serving/remote/control/sodium.h"
#include "serving/remote/lead/lead.h"

#define MAX_ARGS	16

/* Returns the exit status; out: standard output and error. */
static int cairn(char *out, const char *const *args)
{
	char *argv[MAX_ARGS + 2] = { "cairn" };

	for (int i = 0; i < MAX_ARGS && args[i]; i++)
		argv[i + 1] = (char *)args[i];
	return cairn_spawn(argv, out, 16384);
}

#define CAIRN(out, ...)	cairn(out, (const char *const[]){ __VA_ARGS__, NULL })

#define REFUSED(t, says, ...) do {						\
	char out_[16384];							\
	EXPECT(t, CAIRN(out_, __VA_ARGS__) == 2);				\
	EXPECT_CONTAINS(t, out_, says);						\
} while (0)

/* The command fails with a line that says this. */
#define FAILED(t, says, ...) do {						\
	char out_[16384];							\
	int status_ = CAIRN(out_, __VA_ARGS__);					\
	EXPECT(t, status_ == 1 || status_ == 2);				\
	EXPECT_CONTAINS(t, out_, says);						\
	EXPECT_CONTAINS(t, out_, "Address already in use");			\
} while (0)

/* Greedy answers of the embedded model, whose logits decide by far, are those of a run without workers. */
static void same_answer(struct cairn_test *t)
{
	static const char *const keys[] = { "previous", "all" };
	const struct sodium *s;
	char out[16384];

	if (sodium_load(&s))
		return cairn_skip(t, "%s", cairn_last_error());
	for (int i = 0; i < 2; i++) {
		if (!EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "What is 55 - 8?",
				     "--attention-workers", "2", "--attention-keys", keys[i], "--lanes",
				     i ? "2" : "auto") == 0))
			cairn_note(t, "%s", out);
		EXPECT_CONTAINS(t, out, " 47\n");
		EXPECT_CONTAINS(t, out, "2 KV heads on 2 attention workers");
	}
}

static void refused(struct cairn_test *t)
{
	const struct sodium *s;

	REFUSED(t, "--workers-listen: needs --attention-workers", "serve", "--workers-listen", "[::1]:0");
	REFUSED(t, "--secret-file: needs --workers-listen", "generate", "--attention-workers", "1",
		"--secret-file", "x");
	REFUSED(t, "--kv-journal: needs --attention-workers", "serve", "--kv-journal", "1");
	REFUSED(t, "--lanes: needs --attention-workers", "generate", "--lanes", "2");
	REFUSED(t, "--attention-workers: excludes --tp", "generate", "--attention-workers", "1", "--tp", "2");
	REFUSED(t, "--attention-workers: excludes --host-pages", "serve", "--attention-workers", "1",
		"--host-pages", "9");
	REFUSED(t, "--prefill-min: needs --prefill-workers", "serve", "--prefill-min", "9");
	REFUSED(t, "--prefill-workers: excludes --attention-workers", "serve", "--prefill-workers", "1",
		"--attention-workers", "1");
	REFUSED(t, "--prefill-workers: excludes --repeatable", "serve", "--prefill-workers", "1",
		"--repeatable");
	REFUSED(t, "--prefill-workers: excludes --prefix-cache off", "serve", "--prefill-workers", "1",
		"--prefix-cache", "off");
	REFUSED(t, "--secret-file: needs --workers-listen", "serve", "--prefill-workers", "1",
		"--secret-file", "x");
	REFUSED(t, "--model-workers: more than 1 exclude --kv-journal", "serve", "--attention-workers", "2",
		"--model-workers", "2", "--kv-journal", "1");
	REFUSED(t, "--lanes: 2 are too few for 3 --model-workers", "serve", "--attention-workers", "2",
		"--model-workers", "3", "--lanes", "2");
	REFUSED(t, "--join: is missing", "model-worker");
	REFUSED(t, "--model-workers: needs --attention-workers", "generate", "--model-workers", "1");
	REFUSED(t, "--join: is missing", "prefill-worker");
	REFUSED(t, "--shape: excludes --model", "prefill-worker", "--join", "127.0.0.1:1", "--shape", "x",
		"--model", "y");
	REFUSED(t, "--transport: 'nvlink' carries no host memory", "prefill-worker", "--join",
		"127.0.0.1:1", "--transport", "nvlink");
	REFUSED(t, "--transport: attention workers have tcp and nvlink, not 'fhbn'", "attention-worker",
		"--join", "127.0.0.1:1", "--transport", "fhbn");
	REFUSED(t, "--join: is missing", "attention-worker");
	REFUSED(t, "'host:1' is no address", "attention-worker", "--join", "host:1");
	REFUSED(t, "--transport: table cpu needs tcp, not 'nvlink'", "attention-worker", "--join",
		"127.0.0.1:1", "--transport", "nvlink");
	setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
	REFUSED(t, "--device: 2: CUDA_VISIBLE_DEVICES is '0,1'", "attention-worker", "--join", "127.0.0.1:1",
		"--device", "2");
	REFUSED(t, "--device: 2: CUDA_VISIBLE_DEVICES is '0,1'", "prefill-worker", "--join", "127.0.0.1:1",
		"--device", "2");
	unsetenv("CUDA_VISIBLE_DEVICES");
	if (sodium_load(&s))
		return;
	REFUSED(t, "--attention-keys: all: needs at most as many attention workers as the model's 2 ",
		"generate", "--impl", "cpu", "--prompt", "a", "--attention-workers", "3", "--attention-keys",
		"all");
	REFUSED(t, "--speculative: needs attention workers that attend to all keys", "generate", "--impl",
		"cpu", "--prompt", "a", "--attention-workers", "1", "--speculative", "ngram");
	REFUSED(t, "--workers-listen: 0.0.0.0:0 can be reached from other machines", "generate", "--impl",
		"cpu", "--prompt", "a", "--attention-workers", "1", "--workers-listen", "0.0.0.0:0");
}

/* A prefill worker with another model than the lead's is refused, and says what differs. */
static void other_model(struct cairn_test *t)
{
	struct cairn_lead_options o = {
		.prefill = 1, .table = "cpu", .listen = "127.0.0.1:0", .config = 1, .weights = 1,
	};
	struct cairn_lead *lead;
	char join[32], secret[PATH_MAX];
	int ret = cairn_lead_create(&lead, &o);

	if (ret == -EOPNOTSUPP)
		return cairn_skip(t, "%s", cairn_last_error());
	if (!EXPECT(t, ret == 0))
		return;
	snprintf(join, sizeof(join), "127.0.0.1:%d", cairn_lead_port(lead));
	REFUSED(t, "cairn prefill-worker: the lead refuses this worker: another model: its configuration has "
		"the digest ", "prefill-worker", "--join", join);
	REFUSED(t, "another table: it runs ref, the lead cpu", "prefill-worker", "--join", join, "--impl",
		"ref");
	cairn_tmpfile(t, secret, sizeof(secret), "secret", "a secret of 24 bytes....", 24);
	EXPECT(t, chmod(secret, 0600) == 0);
	REFUSED(t, "not from the peer: another secret, or", "prefill-worker", "--join", join, "--secret-file",
		secret);
	/* both commands that listen find the port in use */
	FAILED(t, "--workers-listen: 127.0.0.1:", "generate", "--impl", "cpu", "--prompt", "a",
	       "--attention-workers", "1", "--workers-listen", join);
	FAILED(t, "--workers-listen: 127.0.0.1:", "serve", "--impl", "cpu", "--port", "0",
	       "--prefill-workers", "1", "--workers-listen", join);
	cairn_lead_destroy(lead);
	o.config = 0;
	if (!EXPECT(t, cairn_lead_create(&lead, &o) == 0))
		return;
	snprintf(join, sizeof(join), "127.0.0.1:%d", cairn_lead_port(lead));
	REFUSED(t, "other weights: theirs have the digest ", "prefill-worker", "--join", join);
	cairn_lead_destroy(lead);
}

/* Without libsodium no worker could join, so a command that waits for workers ends at once. */
static void without_libsodium(struct cairn_test *t)
{
	static const char *const names[] = { "libsodium.so.23", "libsodium.so.26", "libsodium.so" };
	const char *before = getenv("LD_LIBRARY_PATH");
	char path[PATH_MAX], out[16384];

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		cairn_tmpfile(t, path, sizeof(path), names[i], "not a library", 13);
	before = before ? strdup(before) : NULL;
	setenv("LD_LIBRARY_PATH", cairn_tmpdir(t), 1);
	EXPECT(t, CAIRN(out, "generate", "--impl", "cpu", "--prompt", "a", "--attention-workers", "1",
			"--workers-listen", "127.0.0.1:0") != 0);
	EXPECT_CONTAINS(t, out, "libsodium is not installed");
	if (before)
		setenv("LD_LIBRARY_PATH", before, 1);
	else
		unsetenv("LD_LIBRARY_PATH");
	free((void *)(uintptr_t)before);
}

/* ---- processes that mpirun or srun starts with one command line ---- */

/* Returns a port that is free now. */
static int free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int fd = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(a);
	int bad = fd < 0 || bind(fd, (struct sockaddr *)&a, len) ||
		  getsockname(fd, (struct sockaddr *)&a, &len);

	if (fd >= 0)
		close(fd);
	return bad ? 0 : ntohs(a.sin_port);
}

/* Starts `cairn` as one of 4 ranks; its output goes to a file. */
static pid_t start_rank(const char *launcher, int rank, const char *output, char *const argv[])
{
	char number[12], size[32], variable[32];
	pid_t pid;

	snprintf(number, sizeof(number), "%d", rank);
	snprintf(size, sizeof(size), "%s", *launcher == 'S' ? "SLURM_NTASKS" : "OMPI_COMM_WORLD_SIZE");
	snprintf(variable, sizeof(variable), "%s", *launcher == 'S' ? "SLURM_PROCID" :
		 "OMPI_COMM_WORLD_RANK");
	pid = fork();
	if (pid)
		return pid;
	if (!freopen(output, "w", stdout) || dup2(1, 2) < 0)
		_exit(126);
	setenv(size, "4", 1);
	setenv(variable, number, 1);
	alarm(100);
	execv("/proc/self/exe", argv);
	_exit(127);
}

static void read_output(const char *path, char *text, size_t len)
{
	FILE *f = fopen(path, "r");
	const size_t n = f ? fread(text, 1, len - 1, f) : 0;

	text[n] = 0;
	if (f)
		fclose(f);
}

/*
 * A spare that tries to join only after rank 0 has ended finds nobody and fails. So rank 0 starts later than
 * the others, and answers so often that it runs longer than the interval between two attempts to join.
 */
#define SPARE_US	300000
#define REPEAT		"100"

/* Rank 0 waits for ranks 1 and 2; rank 3 is a spare. All end with rank 0, and successfully. */
static void launched(struct cairn_test *t, const char *launcher, const char *option)
{
	char listen[32], path[512], out[16384];
	char *argv[] = { "cairn", "generate", "--impl", "cpu", "--prompt", "What is 55 - 8?", "--repeat",
			 REPEAT, (char *)option, "2", "--workers-listen", listen, NULL };
	pid_t pids[4];
	int status;

	snprintf(listen, sizeof(listen), "127.0.0.1:%d", free_port());
	for (int i = 3; i >= 0; i--) {
		if (i == 0)
			usleep(SPARE_US);
		snprintf(path, sizeof(path), "%.400s/rank%d", cairn_tmpdir(t), i);
		pids[i] = start_rank(launcher, i, path, argv);
	}
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%.400s/rank%d", cairn_tmpdir(t), i);
		if (!EXPECT(t, waitpid(pids[i], &status, 0) == pids[i] && status == 0))
			read_output(path, out, sizeof(out)), cairn_note(t, "rank %d: %s", i, out);
	}
	snprintf(path, sizeof(path), "%.400s/rank0", cairn_tmpdir(t));
	read_output(path, out, sizeof(out));
	EXPECT_CONTAINS(t, out, " 47\n");
	EXPECT_CONTAINS(t, out, "2 KV heads on 2 attention workers");
	for (int i = 1, named = 0; i < 4; i++) {	/* two of the ranks are the lead's workers */
		snprintf(path, sizeof(path), " %d", (int)pids[i]);
		named += strstr(out, path) != NULL;
		EXPECT(t, i < 3 || named == 2);
	}
}

static void started_together(struct cairn_test *t)
{
	const struct sodium *s;

	if (sodium_load(&s))
		return cairn_skip(t, "%s", cairn_last_error());
	launched(t, "Open MPI", "--attention-workers");
	launched(t, "Slurm", "--attention-workers");
	setenv("SLURM_NTASKS", "2", 1);
	setenv("SLURM_PROCID", "1", 1);
	REFUSED(t, "--attention-workers: with mpirun or srun, needs --workers-listen", "serve",
		"--attention-workers", "1");
	REFUSED(t, "--prefill-workers: with mpirun or srun, needs --workers-listen", "serve",
		"--prefill-workers", "1");
	REFUSED(t, "--workers-listen: the other ranks cannot join 127.0.0.1:0", "serve",
		"--prefill-workers", "1", "--workers-listen", "127.0.0.1:0");
	REFUSED(t, "--workers-listen: the other ranks cannot join 0.0.0.0:7", "generate",
		"--attention-workers", "1", "--workers-listen", "0.0.0.0:7");
	setenv("SLURM_PROCID", "2", 1);
	REFUSED(t, "SLURM_PROCID: is 2, SLURM_NTASKS is 2", "serve", "--prefill-workers", "1");
	unsetenv("SLURM_NTASKS");
	unsetenv("SLURM_PROCID");
}

/* Prefill workers of this host send from GPU to GPU if they can. */
static void transport(struct cairn_test *t)
{
	const struct cairn_attention_options here = { 0 }, elsewhere = { .listen = "127.0.0.1:0" };
	const struct cairn_prefill_options p = { .workers = 1, .stages = 1 }, none = { 0 };
	const struct cairn_prefill_options stages = { .workers = 1, .stages = 2 };
	struct cairn_impl impl = { .name = "cuda:unfused" };
	const char *name = cairn_prefill_transport(&impl, &here, &p, 1);

	EXPECT(t, name && !strcmp(name, "nvlink"));
	EXPECT(t, !cairn_prefill_transport(&impl, &here, &p, 0));
	EXPECT(t, !cairn_prefill_transport(&impl, &elsewhere, &p, 1));
	EXPECT(t, !cairn_prefill_transport(&impl, &here, &stages, 1));
	EXPECT(t, !cairn_prefill_transport(&impl, &here, &none, 1));
	EXPECT(t, !cairn_prefill_transport(&impl, &here, NULL, 1));
	impl.name = "late";
	EXPECT(t, !cairn_prefill_transport(&impl, &here, &p, 1));
}

static const struct cairn_unit units[] = {
	{ "transport", transport }, { "same_answer", same_answer }, { "refused", refused },
	{ "other_model", other_model }, { "without_libsodium", without_libsodium },
	{ "started_together", started_together },
};

const struct cairn_family cairn_attention_cli_family = {
	.stage = "serving", .name = "attention_cli", .units = units, .num_units = ARRAY_SIZE(units),
};
