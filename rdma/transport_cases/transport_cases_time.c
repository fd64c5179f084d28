// SPDX-License-Identifier: Apache-2.0
/*
 * transport_cases_time.c - ping-pong of the host's puts, for `cairn bench`: prints "time BYTES MIN MEDIAN
 * P95", in ns, for each size
 *
 * Times are one way: half a round trip, averaged over a batch of rounds. The first and the last word of each
 * payload hold the number of the round and are checked.
 */
#include "rdma/transport_cases/transport_end.h"

#include <stdio.h>
#include <stdlib.h>

#define LONGEST	(1u << 20)
#define BATCHES	15

static int stamp_is(struct end *e, uint64_t bytes, uint64_t i)
{
	uint64_t first, last;

	end_read(e, e->bytes, &first, 8);
	end_read(e, e->bytes + bytes - 8, &last, 8);
	return first == (bytes > 8 ? i : ~i) && last == ~i;
}

static int send(struct end *e, uint64_t bytes, uint32_t slot, uint64_t i, int stamped)
{
	uint64_t not_i = ~i;

	if (stamped) {
		end_write(e, 0, &i, 8);
		end_write(e, bytes - 8, &not_i, 8);
	}
	return end_put(e, 0, 0, 0, bytes, slot, i);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void pingpong(struct end *e)
{
	uint64_t bytes, i = 0, r, rounds;
	double v[BATCHES], begin;
	int k;

	NEED(e, !end_open(e, LONGEST));
	for (bytes = 8; bytes <= LONGEST; bytes *= bytes * 8 > LONGEST && bytes < LONGEST ? 4 : 8) {
		rounds = bytes < 65536 ? 50 : 5;
		for (k = -1; k < BATCHES; k++) {
			begin = end_now();
			for (r = 0; r < rounds; r++) {
				/* copies to and from device memory would take longer than the put */
				int stamped = e->host || (k < 0 && !r);

				i++;
				if (!e->rank)
					NEED(e, !send(e, bytes, 0, i, stamped));
				NEED(e, !end_wait(e, 0, (uint32_t)!e->rank, i));
				NEED(e, !stamped || stamp_is(e, bytes, i));
				if (e->rank)
					NEED(e, !send(e, bytes, 1, i, stamped));
			}
			if (k >= 0)
				v[k] = (end_now() - begin) * 1e9 / (double)rounds / 2;
		}
		qsort(v, BATCHES, sizeof(v[0]), compare);
		if (!e->rank)
			printf("time %llu %.0f %.0f %.0f\n", (unsigned long long)bytes, v[0], v[BATCHES / 2],
			       v[BATCHES * 95 / 100]);
	}
}

const struct end_case transport_time_cases[] = {
	{ "pingpong", pingpong }, { NULL, NULL },
};
