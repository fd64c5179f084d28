// SPDX-License-Identifier: Apache-2.0
#include "conformance/device/turn.h"

#include <errno.h>
#include <time.h>

#define LONGEST_TURN_S	30

static pthread_mutex_t *shared;		/* NULL: this process shares no device */
static FILE *waits;
static int taken;

void cairn_turn_share(pthread_mutex_t *turn, FILE *out)
{
	shared = turn;
	waits = out;
	taken = 0;		/* a turn is its process's own: a forked process has none */
}

void cairn_turn_take(const struct cairn_impl *impl)
{
	static int hung;		/* a process has kept its turn for too long */
	int ret = ETIMEDOUT;

	if (!shared || taken || (impl->flags & CAIRN_IMPL_HOST_MEM))
		return;
	for (int s = 0; ret == ETIMEDOUT && s < LONGEST_TURN_S && !hung; s++) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		ret = pthread_mutex_timedlock(shared, &until);
		if (ret == ETIMEDOUT)
			fprintf(waits, "W\n");
	}
	if (hung)
		ret = pthread_mutex_trylock(shared);
	if (ret == EOWNERDEAD) {	/* the process that had its turn was killed */
		pthread_mutex_consistent(shared);
		ret = 0;
	}
	taken = !ret;
	hung = !taken;
}

void cairn_turn_end(void)
{
	if (taken)
		pthread_mutex_unlock(shared);
	taken = 0;
}
