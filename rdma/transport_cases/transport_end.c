// SPDX-License-Identifier: Apache-2.0
/*
 * transport_end BACKEND CASE [NAME=VALUE ...] - conformance cases of transport.h, both ends or one
 * transport_end mutants loop|tcp              - every mutant must fail a case
 * transport_end tcp_mutants                   - every mutant of the tcp back end must fail its case
 *
 * CASE: a name, or "all". Without rank= both ends run in this process, in two threads. With rank=N fd=A,B
 * this is one of two processes, connected by a socket pair that both inherit. Other names: device,
 * faults, seed, depth, gpu=N or gpu=N,M (for the two ends), memory=host|device, quick=1, big=BYTES;
 * tcp: detour=1, network=own.
 *
 * Prints one line per case: "ok NAME", "skipped NAME: why" or "FAILED NAME", preceded by notes. Exit
 * status: 0 all passed; 1 a failure; 77 all skipped; 2 usage error.
 */
#include "rdma/transport_cases/transport_end.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rdma/transport/transport_cuda.h"
#include "rdma/transport_cases/transport_detour.h"
#include "rdma/transport_cases/transport_device.h"
#include "rdma/transport/transport_impl.h"

#define MISSED	3		/* exit status of a child whose mutant passed all cases */

static int quiet;		/* for mutants, whose failures are expected */

int end_want(struct end *e, int ok, const char *what, const char *file, int line)
{
	if (e->skipped)
		return ok;
	if (!ok && e->failures++ < 8 && !quiet)
		printf("# rank %d: %s:%d: check failed: %s (last error: %s)\n", e->rank, file, line, what,
		       cairn_last_error());
	return ok;
}

int end_contains(struct end *e, const char *part, const char *file, int line)
{
	return end_want(e, strstr(cairn_last_error(), part) != NULL, part, file, line);
}

void end_skip(struct end *e, const char *why)
{
	if (!e->skipped++ && !e->rank && !quiet)
		printf("skipped %s: %s\n", e->name, why);
}

int end_has(struct end *e, uint32_t feature, const char *why)
{
	if (!(e->table->features & feature))
		end_skip(e, why);
	return (e->table->features & feature) != 0;
}

double end_now(void)
{
	return (double)transport_now() * 1e-9;
}

void end_nap(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&ts, NULL);
}

uint64_t end_random(struct end *e, uint64_t limit)
{
	return transport_random(&e->rng) % limit;
}

/* ---- outside the transport ---- */

static int move(int fd, void *p, size_t bytes, int out)
{
	while (bytes) {
		struct pollfd f = { .fd = fd, .events = out ? POLLOUT : POLLIN };
		ssize_t n;

		if (poll(&f, 1, 2 * WAIT_MS) <= 0)
			return -1;
		n = out ? send(fd, p, bytes, MSG_NOSIGNAL) : recv(fd, p, bytes, 0);
		if (n <= 0)
			return -1;
		p = (char *)p + n;
		bytes -= (size_t)n;
	}
	return 0;
}

int end_exchange(struct end *e, const void *mine, void *theirs, size_t bytes)
{
	if (move(e->sock, (void *)mine, bytes, 1) || move(e->sock, theirs, bytes, 0))
		return cairn_error(EPIPE, "the other end of the case has ended");
	return 0;
}

int end_barrier(struct end *e)
{
	char mine = 1, theirs;

	return end_exchange(e, &mine, &theirs, 1);
}

/* ---- memory ---- */

static int get_memory(struct end *e, uint64_t bytes)
{
	void *p;

	if (e->plan->memory == CAIRN_MEMORY_HOST) {
		CAIRN_TRY(transport_host_alloc(e->plan->gpu[e->rank], 2 * bytes, &p));
		e->host = p;
	} else {
#ifdef CONFIG_CUDA
		CAIRN_TRY(transport_device_alloc(e->plan->gpu[e->rank], 2 * bytes, &p));
		e->host = NULL;
#else
		return cairn_error(ENODEV, "memory: this build has no CUDA");
#endif
	}
	e->buf = p;
	e->bytes = bytes;
	return 0;
}

static void give_memory(struct end *e)
{
	if (e->host)
		transport_host_free(e->plan->gpu[e->rank], e->host, 0);
#ifdef CONFIG_CUDA
	else if (e->buf)
		transport_device_free(e->plan->gpu[e->rank], e->buf);
#endif
	e->buf = e->host = NULL;
}

static void copy(struct end *e, void *to, const void *from, uint64_t bytes)
{
	if (e->host)
		memcpy(to, from, bytes);
#ifdef CONFIG_CUDA
	else if (bytes)
		WANT(e, !transport_device_copy(e->plan->gpu[e->rank], to, from, bytes));
#endif
}

void end_write(struct end *e, uint64_t at, const void *from, uint64_t bytes)
{
	copy(e, e->buf + at, from, bytes);
}

void end_read(struct end *e, uint64_t at, void *to, uint64_t bytes)
{
	copy(e, to, e->buf + at, bytes);
}

/* Returns the memory at `at` if it is host memory, else a temporary buffer; done_with() releases either. */
static uint8_t *room(struct end *e, uint64_t at, uint64_t bytes)
{
	uint8_t *p = e->host ? e->host + at : malloc(bytes);

	if (!p)
		abort();
	return p;
}

static void done_with(struct end *e, uint64_t at, uint8_t *p, uint64_t bytes, int write)
{
	if (e->host)
		return;
	if (write)
		end_write(e, at, p, bytes);
	free(p);
}

void end_set(struct end *e, uint64_t at, int byte, uint64_t bytes)
{
	uint8_t *p = room(e, at, bytes);

	memset(p, byte, bytes);
	done_with(e, at, p, bytes, 1);
}

void end_fill(struct end *e, uint64_t at, uint64_t bytes, uint64_t seed)
{
	uint8_t *p = room(e, at, bytes);
	uint64_t i, n, w;

	for (i = 0; i < bytes; i += 8) {
		w = device_word(seed, i);
		n = bytes - i < 8 ? bytes - i : 8;
		memcpy(p + i, &w, n);
	}
	done_with(e, at, p, bytes, 1);
}

int end_check(struct end *e, uint64_t at, uint64_t bytes, uint64_t seed)
{
	uint8_t *p = room(e, at - GUARD, bytes + 2 * GUARD), *q = p + GUARD;
	uint64_t i, n, w;
	int ok = 1;

	if (!e->host)
		end_read(e, at - GUARD, p, bytes + 2 * GUARD);
	for (i = 0; i < bytes && ok; i += 8) {
		w = device_word(seed, i);
		n = bytes - i < 8 ? bytes - i : 8;
		ok = !memcmp(q + i, &w, n);
	}
	if (!ok && !quiet)
		printf("# rank %d: payload of %llu bytes is wrong at bytes %llu..+8\n", e->rank,
		       (unsigned long long)bytes, (unsigned long long)i - 8);
	for (i = 0; i < GUARD && ok; i++)
		ok = q[-1 - (int64_t)i] == 0xee && q[bytes + i] == 0xee;
	done_with(e, at, p, bytes, 0);
	return ok;
}

/* ---- the transport ---- */

int end_connect(struct end *e)
{
	struct cairn_blob mine, theirs;
	int i;

	for (i = 0; i < NUM_CHANNELS; i++) {
		CAIRN_TRY(e->table->channel_address(e->c[i], &mine));
		CAIRN_TRY(end_exchange(e, &mine, &theirs, sizeof(mine)));
		if (e->plan->detour && !strcmp(theirs.kind, "tcp"))
			CAIRN_TRY(detour(e, &theirs, DETOUR_SPLIT, 0));
		CAIRN_TRY(e->table->channel_connect(e->c[i], &theirs, WAIT_MS));
	}
	return end_barrier(e);
}

int end_open(struct end *e, uint64_t bytes)
{
	struct cairn_transport_options o = {
		.size = sizeof(o), .device = e->plan->device, .faults = e->plan->faults,
		.seed = e->plan->seed,
		.depth = e->plan->depth, .gpu = e->plan->gpu[e->rank],
	};
	struct cairn_blob mine, theirs;
	int i, ret;

	CAIRN_TRY(get_memory(e, bytes));
	end_set(e, 0, 0xee, 2 * bytes);
	ret = e->table->open(&o, &e->t);
	if (ret == -ENODEV)
		end_skip(e, cairn_last_error());
	CAIRN_TRY(ret);
	CAIRN_TRY(e->table->region_register(e->t, e->buf, 2 * bytes, e->plan->memory, &e->region));
	for (i = 0; i < NUM_CHANNELS; i++)
		CAIRN_TRY(e->table->channel_create(e->t, &e->c[i]));
	CAIRN_TRY(e->table->region_key(e->region, &mine));
	CAIRN_TRY(end_exchange(e, &mine, &theirs, sizeof(mine)));
	CAIRN_TRY(e->table->remote_import(e->t, &theirs, &e->remote));
	return end_connect(e);
}

void end_close(struct end *e)
{
	char byte;

	e->table->close(e->t);
	e->t = NULL;
	detour_end(e);
	/* Free the memory only after the other end has ended, because its puts may still write to it. */
	shutdown(e->sock, SHUT_WR);
	while (!move(e->sock, &byte, 1, 0))
		;
	give_memory(e);
}

int end_put(struct end *e, int channel, uint64_t from, uint64_t to, uint64_t bytes, uint32_t slot,
	    uint64_t value)
{
	struct cairn_put p = {
		.local = bytes ? e->region : NULL, .local_offset = from,
		.remote = bytes ? e->remote : NULL, .remote_offset = e->bytes + to,
		.bytes = bytes, .value = value, .slot = slot,
	};

	return e->table->put(e->c[channel], &p, WAIT_MS);
}

int end_signal(struct end *e, int channel, uint32_t slot, uint64_t value, uint64_t word)
{
	struct cairn_put p = { .value = value, .word = word, .slot = slot };

	return e->table->put(e->c[channel], &p, WAIT_MS);
}

int end_wait(struct end *e, int channel, uint32_t slot, uint64_t value)
{
	return e->table->wait(e->c[channel], slot, value, e->plan->wait_ms, NULL);
}

/* ---- running ---- */

static const struct end_case *const all_cases[] = {
	transport_cases, transport_trouble_cases, transport_tcp_cases, transport_stream_cases,
#ifdef CONFIG_CUDA
	transport_device_cases,
#endif
	transport_time_cases,		/* run by name only; must be last */
};

/* Flushes, so that the last puts have arrived before this end closes. Failures after the end of the case
 * are ignored. */
static void part(struct end *e)
{
	int i;

	for (i = 0; i < NUM_CHANNELS && e->t && !e->failures && !e->skipped; i++)
		e->table->flush(e->c[i], WAIT_MS);
	if (e->t && !e->failures)
		end_barrier(e);
}

static void *run_end(void *arg)
{
	struct end *e = arg;
	const struct end_case *c = NULL;
	size_t i;

	for (i = 0; i < sizeof(all_cases) / sizeof(all_cases[0]); i++)
		for (c = all_cases[i]; c->name; c++)
			if (!strcmp(c->name, e->name)) {
				cairn_clear_error();
				c->run(e);
				part(e);
				end_close(e);
				return NULL;
			}
	e->failures = 1;
	printf("# no case %s\n", e->name);
	return NULL;
}

static void prepare(struct end *e, const struct plan *plan, const char *name, int rank, int sock)
{
	const char *s;

	*e = (struct end) { .plan = plan, .table = plan->table, .name = name, .rank = rank, .sock = sock };
	e->rng = plan->seed;
	for (s = name; *s; s++)
		e->rng = (e->rng ^ (uint8_t)*s) * 0x100000001b3u;
}

/* Returns 0: ok; 1: failed; 77: skipped. */
static int verdict(const struct end *e, int failures, int skipped)
{
	if (quiet)
		return failures ? 1 : skipped ? 77 : 0;
	if (failures)
		printf("FAILED %s\n", e->name);
	else if (!skipped)
		printf("ok %s\n", e->name);
	fflush(stdout);
	return failures ? 1 : skipped ? 77 : 0;
}

/* Sets the pace for its case, before any thread of the case runs; removes it afterwards. */
static void set_pace(const char *name, int on)
{
	static const char *const variables[] = { "CAIRN_TCP_PACE", "CAIRN_NVLINK_PACE" };

	for (int i = 0; i < 2 && !strcmp(name, END_PACED); i++)
		if (on)
			setenv(variables[i], END_PACE, 1);
		else
			unsetenv(variables[i]);
}

static int run_both(const struct plan *plan, const char *name)
{
	struct end ends[2];
	pthread_t thread;
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return 1;
	prepare(&ends[0], plan, name, 0, fds[0]);
	prepare(&ends[1], plan, name, 1, fds[1]);
	set_pace(name, 1);
	if (pthread_create(&thread, NULL, run_end, &ends[1]))
		return 1;
	run_end(&ends[0]);
	pthread_join(thread, NULL);
	set_pace(name, 0);
	close(fds[0]);
	close(fds[1]);
	return verdict(&ends[0], ends[0].failures + ends[1].failures, ends[0].skipped);
}

static int run_one(const struct plan *plan, const char *name, int rank, int sock)
{
	struct end e;

	prepare(&e, plan, name, rank, sock);
	set_pace(name, 1);
	run_end(&e);
	return verdict(&e, e.failures, e.skipped);
}

/* Runs the first kinds of cases in order, or the case named; returns the first that fails, or NULL. */
static const char *caught_by(const struct plan *plan, const char *only)
{
	size_t i;

	for (i = 0; i < (only ? sizeof(all_cases) / sizeof(all_cases[0]) : 3); i++) {
		const struct end_case *c;

		for (c = all_cases[i]; c->name; c++)
			if ((!only || !strcmp(c->name, only)) && run_both(plan, c->name) == 1)
				return c->name;
	}
	return NULL;
}

/* Returns 1 if a case fails, and prints its name. The mutant runs in a child, because it may write where it
 * must not. Some races hardly ever show without delays. */
static int caught(struct plan plan, const char *what, const char *only)
{
	const char *by;
	int status = 0;
	pid_t pid;

	printf("%-20s %s: ", plan.table->name, what);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		by = caught_by(&plan, only);
		plan.faults = "delay_us=20,pieces=3";
		plan.detour = 1;
		by = by ? by : caught_by(&plan, only);
		printf("%s\n", by ? by : "MISSED");
		fflush(stdout);
		_exit(by ? 0 : MISSED);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 0;
	if (WIFSIGNALED(status))
		printf("signal %d\n", WTERMSIG(status));
	return WIFSIGNALED(status) || WEXITSTATUS(status) != MISSED;	/* a sanitizer has its own status */
}

/* own: the mutants of the back end's own code instead of those of its table. */
static int run_mutants(const char *backend, int own)
{
	struct plan plan = {
		.gpu = { -1, -1 }, .quick = 1, .wait_ms = WAIT_MS, .seed = 1, .big = 1 << 16,
	};
	const struct cairn_transport_table *right = cairn_transport_find(backend);
	const char *what, *by = NULL, *wrong;
	int i, num = 0;

	if (!right)
		return 2;
	quiet = 1;
	plan.table = right;
	wrong = caught_by(&plan, NULL);
	if (wrong)
		printf("WRONG: the correct back end fails %s\n", wrong);
	plan.wait_ms = 1000;
	for (i = 0; (plan.table = own ? transport_tcp_mutant(i, &what, &by) :
		     transport_mutant(right, i, &what, &by)); i++)
		num += caught(plan, what, by);
	printf("transport mutants: %d of %d caught, %d right ones blamed\n", num, i, !!wrong);
	return num != i || wrong;
}

static int parse(struct plan *p, const char *arg, int *rank, int fds[2])
{
	const char *v = strchr(arg, '=') ? strchr(arg, '=') + 1 : "";
	size_t n = strcspn(arg, "=");

#define IS(name) (n == strlen(name) && !strncmp(arg, name, n))
	if (IS("device"))
		p->device = v;
	else if (IS("faults"))
		p->faults = v;
	else if (IS("seed"))
		p->seed = strtoull(v, NULL, 0);
	else if (IS("depth"))
		p->depth = (uint32_t)atoi(v);
	else if (IS("quick"))
		p->quick = atoi(v);
	else if (IS("big"))
		p->big = strtoull(v, NULL, 0);
	else if (IS("detour"))
		p->detour = atoi(v);
	else if (IS("network"))		/* before any thread is created, as CLONE_NEWUSER demands */
		p->own_network = !unshare(CLONE_NEWUSER | CLONE_NEWNET);
	else if (IS("rank"))
		*rank = atoi(v);
	else if (IS("memory"))
		p->memory = !strcmp(v, "device") ? CAIRN_MEMORY_DEVICE : CAIRN_MEMORY_HOST;
	else if (IS("gpu") && sscanf(v, "%d,%d", &p->gpu[0], &p->gpu[1]) == 1)
		p->gpu[1] = p->gpu[0];
	else if (IS("fd"))
		return sscanf(v, "%d,%d", &fds[0], &fds[1]) != 2;
	else
		return !IS("gpu");
	return 0;
#undef IS
}

int main(int argc, char **argv)
{
	struct plan plan = { .gpu = { -1, -1 }, .wait_ms = WAIT_MS, .seed = 1, .big = 4 << 20 };
	int fds[2] = { -1, -1 }, rank = -1, i, worst = 77, ret;
	size_t k;

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	if (argc == 3 && !strcmp(argv[1], "mutants"))
		return run_mutants(argv[2], 0);
	if (argc == 2 && !strcmp(argv[1], "tcp_mutants"))
		return run_mutants("tcp", 1);
	if (argc < 3)
		return 2;
	for (i = 3; i < argc; i++)
		if (parse(&plan, argv[i], &rank, fds))
			return 2;
	plan.processes = rank >= 0;
	plan.table = cairn_transport_find(argv[1]);
	if (!plan.table) {
		printf("skipped %s: no back end %s in this build\n", argv[2], argv[1]);
		return 77;
	}
	if (plan.processes) {
		close(fds[!rank]);	/* so that this end detects the other end's death */
		return run_one(&plan, argv[2], rank, fds[rank]);
	}
	if (strcmp(argv[2], "all"))
		return run_both(&plan, argv[2]);
	for (k = 0; k < sizeof(all_cases) / sizeof(all_cases[0]) - 1; k++)
		for (const struct end_case *c = all_cases[k]; c->name; c++) {
			ret = run_both(&plan, c->name);
			worst = ret == 1 || worst == 1 ? 1 : ret < worst ? ret : worst;
		}
	return worst;
}
