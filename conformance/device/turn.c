// SPDX-License-Identifier: Apache-2.0
#include "conformance/device/turn.h"

#include <errno.h>
#include <time.h>

#define LONGEST_TURN_S	30

static pthread_mutex_t *shared;		/* NULL: this process shares no device */
static int own;				/* the turn for which it waits */
static FILE *waits;
static pthread_mutex_t *taken;		/* NULL: it has no turn */

void cairn_turn_share(pthread_mutex_t *turns, int number, FILE *out)
{
	shared = turns;
	own = number % CAIRN_TURNS;
	waits = out;
	taken = NULL;		/* a turn is its process's own: a forked process has none */
}

/* Takes over the result of locking a turn. Returns whether this process has it. */
static int has(pthread_mutex_t *turn, int ret)
{
	if (ret == EOWNERDEAD)		/* the process that had it was killed */
		ret = pthread_mutex_consistent(turn);
	if (!ret)
		taken = turn;
	return !ret;
}

void cairn_turn_take(const struct cairn_impl *impl)
{
	static int hung;		/* a process has kept its turn for too long */

	if (!shared || taken || (impl->flags & CAIRN_IMPL_HOST_MEM))
		return;
	for (int i = 0; i < CAIRN_TURNS; i++) {
		pthread_mutex_t *turn = &shared[(own + i) % CAIRN_TURNS];

		if (has(turn, pthread_mutex_trylock(turn)))
			return;
	}
	for (int s = 0; s < LONGEST_TURN_S && !hung; s++) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		if (has(&shared[own], pthread_mutex_timedlock(&shared[own], &until)))
			return;
		fprintf(waits, "W\n");
	}
	hung = 1;
}

void cairn_turn_end(void)
{
	if (taken)
		pthread_mutex_unlock(taken);
	taken = NULL;
}
