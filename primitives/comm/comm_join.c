// SPDX-License-Identifier: Apache-2.0
#include "primitives/comm/comm_join.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "primitives/base/error.h"

/* A random number of this process. A forked child has its parent's, but another pid. */
static uint64_t process_key(void)
{
	static _Atomic uint64_t key;
	uint64_t none = 0, fresh = 0;

	if (!atomic_load(&key) && getrandom(&fresh, sizeof(fresh), 0) == sizeof(fresh))
		atomic_compare_exchange_strong(&key, &none, fresh | 1);
	return atomic_load(&key);
}

void comm_greet(struct comm_hello *mine, const struct cairn_comm_args *a, int table)
{
	*mine = (struct comm_hello){ .pid = getpid(), .ranks = a->ranks, .table = table,
				     .process = process_key(), .heap_bytes = a->heap_bytes };
}

int comm_check_hello(const struct comm_hello *theirs, int32_t r, const struct comm_hello *mine)
{
	if (theirs->status)
		return cairn_error(-theirs->status, "comm_open: rank %d failed: %s", r,
				   strerror(-theirs->status));
	if (theirs->table != mine->table || theirs->ranks != mine->ranks ||
	    theirs->heap_bytes != mine->heap_bytes)
		return cairn_error(EINVAL, "comm_open: rank %d has table %d, ranks %d, heap_bytes %llu; this "
				   "rank has %d, %d, %llu", r, theirs->table, theirs->ranks,
				   (unsigned long long)theirs->heap_bytes, mine->table, mine->ranks,
				   (unsigned long long)mine->heap_bytes);
	return 0;
}

int comm_same_process(const struct comm_hello *a, const struct comm_hello *b)
{
	return a->pid == b->pid && a->process == b->process;
}

int comm_agree(const struct cairn_comm_args *a, int status)
{
	int32_t mine = status, all[CAIRN_COMM_MAX_RANKS];
	int ret = a->exchange(a->arg, &mine, all, sizeof(mine));

	if (status || ret)
		return status ? status : ret;
	for (int32_t r = 0; r < a->ranks; r++)
		if (all[r])
			return cairn_error(-all[r], "comm_open: rank %d failed: %s", r, strerror(-all[r]));
	return 0;
}
