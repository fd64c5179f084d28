// SPDX-License-Identifier: Apache-2.0
/* fhbn_trace_test.c - the poster's order of stores in the interleavings of many seeds; defective posters,
 * all of which must be caught; and the order of stores as seen when a store to the register page traps */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "conformance/harness.h"
#include "rdma/fhbn/fhbn_trace.h"

static void right(struct cairn_test *t, int threads, uint32_t with)
{
	static const uint64_t firsts[] = { 0, 65530, (1 << 24) - 6, (1ull << 32) - 9, 12345678901 };
	struct fhbn_trace *s = malloc(sizeof(*s));
	uint64_t steps = 0;
	int runs = 0;

	if (!EXPECT(t, s != NULL))
		return;
	for (uint32_t mode = 0; mode < 2 * CAIRN_FHBN_QUIET; mode++) {
		if ((mode & CAIRN_FHBN_SHARED) != with)
			continue;
		for (uint64_t seed = 0; seed < 40; seed++) {
			const struct fhbn_trace_setup setup = {
				.seed = seed * 131 + mode, .first = firsts[seed % ARRAY_SIZE(firsts)],
				.mode = mode, .threads = threads, .puts = 12, .fails_at = -1,
			};

			EXPECT(t, !fhbn_trace_run(s, &setup));
			if (!EXPECT(t, !s->broken[0]))
				cairn_note(t, "mode %#x seed %d: %s", mode, (int)setup.seed, s->broken);
			steps += s->steps;
			runs++;
		}
	}
	cairn_note(t, "%d runs, %llu accesses", runs, (unsigned long long)steps);
	free(s);
}

static void one_poster(struct cairn_test *t)
{
	right(t, 1, 0);
}

static void several_posters(struct cairn_test *t)
{
	right(t, 2, CAIRN_FHBN_SHARED);
	right(t, 4, CAIRN_FHBN_SHARED);
}

/* A request fails: every poster must end and return that same first failure. */
static void failure(struct cairn_test *t)
{
	struct fhbn_trace *s = malloc(sizeof(*s));

	if (!EXPECT(t, s != NULL))
		return;
	for (uint64_t seed = 0; seed < 200; seed++) {
		const struct fhbn_trace_setup setup = {
			.seed = seed, .mode = seed & 1 ? CAIRN_FHBN_SHARED : 0, .threads = seed & 1 ? 3 : 1,
			.puts = 12, .fails_at = (int64_t)(seed % 20),
		};

		EXPECT(t, !fhbn_trace_run(s, &setup));
		if (!EXPECT(t, !s->broken[0]))
			cairn_note(t, "seed %d: %s", (int)seed, s->broken);
	}
	free(s);
}

/* Each defect must be caught within SEEDS seeds; most are by the first. */
static void defects(struct cairn_test *t)
{
	enum { SEEDS = 200 };
	struct fhbn_trace *s = malloc(sizeof(*s));
	int caught = 0;

	for (int i = 0; s && i < fhbn_num_defects; i++) {
		const struct fhbn_defect *d = &fhbn_defects[i];
		uint64_t seed;

		for (seed = 0; seed < SEEDS; seed++) {
			const struct fhbn_trace_setup setup = {
				.seed = seed, .first = 65530, .mode = d->mode, .threads = d->threads,
				.puts = 40, .fails_at = -1, .defect = d,
			};

			EXPECT(t, !fhbn_trace_run(s, &setup));
			if (s->broken[0])
				break;
		}
		if (EXPECT(t, seed < SEEDS))
			caught++;
		cairn_note(t, "%s %s, seed %d: %s", seed < SEEDS ? "caught" : "MISSED", d->name, (int)seed,
			   s->broken);
	}
	EXPECT(t, caught >= 25);
	cairn_note(t, "fhbn defects: %d of %d caught", caught, fhbn_num_defects);
	free(s);
}

#if defined(__x86_64__)

enum { PAGE = 4096, TRAP_FLAG = 0x100, POSTS = 15, BLOCKS = 32 };

/* State of the signal handlers, which run in the middle of a post. */
static struct {
	uint8_t *page;
	struct cairn_wqe_seg ring[4 * BLOCKS];
	uint32_t record;
	struct cairn_fhbn_state state;
	int stores, early, unformed;
} trap;

/*
 * Runs at a store to the register: by now the doorbell record and every announced request must be in memory.
 */
static void on_store(int sig, siginfo_t *info, void *context)
{
	ucontext_t *c = context;
	uint64_t end = trap.state.reserved;

	if ((uint8_t *)info->si_addr < trap.page || (uint8_t *)info->si_addr >= trap.page + PAGE) {
		signal(sig, SIG_DFL);
		return;
	}
	trap.stores++;
	trap.early += trap.record != cairn_wqe_dbrec(end);
	for (uint64_t i = 0; i < end; i++)
		trap.unformed += cairn_be32(trap.ring[i * 4].w[0]) >> 8 != i || !trap.ring[i * 4 + 2].w[0];
	mprotect(trap.page, PAGE, PROT_READ | PROT_WRITE);
	c->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;	/* repeat the store as a single step */
}

static void after_store(int sig, siginfo_t *info, void *context)
{
	ucontext_t *c = context;

	(void)sig;
	(void)info;
	mprotect(trap.page, PAGE, PROT_NONE);
	c->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

static void trapping_register(struct cairn_test *t)
{
	const struct sigaction segv = { .sa_sigaction = on_store, .sa_flags = SA_SIGINFO };
	const struct sigaction step = { .sa_sigaction = after_store, .sa_flags = SA_SIGINFO };
	struct sigaction old_segv, old_trap;

	trap.page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!EXPECT(t, trap.page != MAP_FAILED))
		return;
	sigaction(SIGSEGV, &segv, &old_segv);
	sigaction(SIGTRAP, &step, &old_trap);
	for (uint32_t mode = 0; mode < CAIRN_FHBN_QUIET; mode++) {
		struct cairn_cqe cq[BLOCKS];
		uint32_t cq_record = 0;
		const struct cairn_fhbn_qp q = {
			.sq = { trap.ring, BLOCKS, 0x77 }, .record = &trap.record,
			.reg = { (void *)trap.page, (void *)(trap.page + 256) }, .cq = cq,
			.cq_record = &cq_record, .state = &trap.state, .timeout_ns = 1000000,
			.num_cqes = BLOCKS, .mode = mode,
		};
		struct cairn_fhbn_request put = cairn_fhbn_write(0x1000, 7, 0x2000, 9, 64);

		memset(trap.ring, 0, sizeof(trap.ring));
		memset(cq, 0xff, sizeof(cq));
		memset(&trap.state, 0, sizeof(trap.state));
		trap.record = 0;
		trap.stores = trap.early = trap.unformed = 0;
		for (uint64_t i = 0; i < POSTS; i++)
			EXPECT(t, !cairn_fhbn_host_put_signal(&q, &put, 0x3000, 7, i + 1));
		EXPECT(t, trap.stores == (mode & CAIRN_FHBN_BLUEFLAME ? 8 * POSTS : POSTS));
		EXPECT(t, !trap.early && !trap.unformed);
	}
	sigaction(SIGSEGV, &old_segv, NULL);
	sigaction(SIGTRAP, &old_trap, NULL);
	munmap(trap.page, PAGE);
}

#else

static void trapping_register(struct cairn_test *t)
{
	cairn_skip(t, "needs the trap flag of x86-64 to step over a store");
}

#endif

#define UNIT(name) { #name, name }
static const struct cairn_unit units[] = {
	UNIT(one_poster), UNIT(several_posters), UNIT(failure), UNIT(defects), UNIT(trapping_register),
};

const struct cairn_family cairn_fhbn_trace_family = {
	.stage = "rdma", .name = "fhbn_trace", .units = units, .num_units = ARRAY_SIZE(units),
};
