// SPDX-License-Identifier: Apache-2.0
/* turn_test - turns on a device are few, outlive the death of a process, and spare host tables */
#include "conformance/device/turn.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"

#define PROCESSES	9
#define TURNS		200

struct shared {
	pthread_mutex_t turn[CAIRN_TURNS];
	atomic_int inside, too_many, turns;
};

static const struct cairn_impl device = { .name = "device" };
static const struct cairn_impl host = { .name = "host", .flags = CAIRN_IMPL_HOST_MEM };

static struct shared *open_shared(void)
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t attr;

	if (s == MAP_FAILED)
		return NULL;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	for (int i = 0; i < CAIRN_TURNS; i++)
		pthread_mutex_init(&s->turn[i], &attr);
	pthread_mutexattr_destroy(&attr);
	return s;
}

/* Takes turns; the process of number `dies` is killed in its tenth one. */
static void take_turns(struct shared *s, int number, int dies)
{
	cairn_turn_share(s->turn, number, stdout);
	for (int i = 0; i < TURNS; i++) {
		cairn_turn_take(&device);
		cairn_turn_take(&device);	/* keeps its turn */
		atomic_fetch_add(&s->too_many, atomic_fetch_add(&s->inside, 1) >= CAIRN_TURNS);
		if (number == dies && i == 10) {
			atomic_fetch_sub(&s->inside, 1);
			raise(SIGKILL);
		}
		sched_yield();
		atomic_fetch_sub(&s->inside, 1);
		atomic_fetch_add(&s->turns, 1);
		cairn_turn_end();
	}
}

static void run(struct cairn_test *t, int dies)
{
	struct shared *s = open_shared();

	if (!EXPECT(t, s))
		return;
	for (int i = 0; i < PROCESSES; i++)
		if (fork() == 0) {
			take_turns(s, i, dies);
			_exit(0);
		}
	for (int i = 0; i < PROCESSES; i++)
		wait(NULL);
	EXPECT(t, atomic_load(&s->too_many) == 0);
	EXPECT(t, atomic_load(&s->turns) == (dies < 0 ? PROCESSES * TURNS : (PROCESSES - 1) * TURNS + 10));
	munmap(s, sizeof(*s));
}

static void limited(struct cairn_test *t)
{
	run(t, -1);
}

static void outlive_a_death(struct cairn_test *t)
{
	run(t, 2);
}

static void host_tables_do_not_wait(struct cairn_test *t)
{
	struct shared *s = open_shared();

	if (!EXPECT(t, s))
		return;
	for (int i = 0; i < CAIRN_TURNS; i++)
		pthread_mutex_lock(&s->turn[i]);
	if (fork() == 0) {
		alarm(20);
		cairn_turn_share(s->turn, 0, stdout);
		cairn_turn_take(&host);
		cairn_turn_end();
		atomic_fetch_add(&s->turns, 1);
		_exit(0);
	}
	wait(NULL);
	EXPECT(t, atomic_load(&s->turns) == 1);
	munmap(s, sizeof(*s));
}

/* A forked process has no turn to end, even if its parent has one. */
static void is_not_inherited(struct cairn_test *t)
{
	struct shared *s = open_shared();
	int status = 1;

	if (!EXPECT(t, s))
		return;
	cairn_turn_share(s->turn, 1, stdout);
	cairn_turn_take(&device);
	if (fork() == 0) {
		cairn_turn_share(NULL, 0, NULL);
		cairn_turn_end();
		cairn_turn_take(&device);
		_exit(0);
	}
	wait(&status);
	EXPECT(t, status == 0);
	EXPECT(t, pthread_mutex_trylock(&s->turn[1]) != 0);	/* still this process's */
	cairn_turn_end();
	cairn_turn_share(NULL, 0, NULL);
	munmap(s, sizeof(*s));
}

static const struct cairn_unit units[] = {
	{ "limited", limited },
	{ "outlive_a_death", outlive_a_death },
	{ "host_tables_do_not_wait", host_tables_do_not_wait },
	{ "is_not_inherited", is_not_inherited },
};

const struct cairn_family cairn_turn_family = {
	.stage = "conformance",
	.name = "turn",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
