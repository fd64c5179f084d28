// SPDX-License-Identifier: Apache-2.0
/* comm - argument checks shared by all of our tables */
#include "primitives/base/args.h"
#include "primitives/base/error.h"
#include "primitives/comm/comm.h"

static int check_ranks(int32_t rank, int32_t ranks, const char *name)
{
	if (ranks < 1 || rank < 0 || rank >= ranks)
		return cairn_error(EINVAL, "%s: rank %d of ranks %d: must be in 0 to ranks - 1", name, rank,
				   ranks);
	if (ranks > CAIRN_COMM_MAX_RANKS)
		return cairn_error(EOPNOTSUPP, "%s: ranks: %d, at most %d", name, ranks,
				   CAIRN_COMM_MAX_RANKS);
	return 0;
}

int cairn_comm_check_open(const struct cairn_comm_args *a, const struct cairn_comm *comm)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "comm_open"));
	if (!comm)
		return cairn_error(EINVAL, "comm_open: comm: must not be null");
	if (!a->exchange)
		return cairn_error(EINVAL, "comm_open: exchange: must not be null");
	if (a->timeout_ms < 0)
		return cairn_error(EINVAL, "comm_open: timeout_ms: %d: must be >= 0", a->timeout_ms);
	if (a->heap_bytes > (size_t)1 << 46)
		return cairn_error(EINVAL, "comm_open: heap_bytes: %zu: more than 2^46", a->heap_bytes);
	return check_ranks(a->rank, a->ranks, "comm_open");
}

int cairn_comm_check_ranks(const struct cairn_comm *comm, const char *name)
{
	return check_ranks(comm->rank, comm->ranks, name);
}

int cairn_comm_check(const struct cairn_comm *comm, const char *name)
{
	if (!comm || !comm->handle)
		return cairn_error(EINVAL, "%s: comm: no open communicator", name);
	return check_ranks(comm->rank, comm->ranks, name);
}
