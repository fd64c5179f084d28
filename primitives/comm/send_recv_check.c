// SPDX-License-Identifier: Apache-2.0
/* send_recv - argument checks shared by all of our tables */
#include "primitives/comm/send_recv.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

int cairn_send_recv_check(const struct cairn_send_recv_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "send_recv"));
	CAIRN_TRY(cairn_comm_check(&a->comm, "send_recv"));
	if (a->bytes < 0)
		return cairn_error(EINVAL, "send_recv: bytes: %lld: must be >= 0", (long long)a->bytes);
	if (a->bytes % 16 || a->bytes > (int64_t)1 << 40)
		return cairn_error(EOPNOTSUPP, "send_recv: bytes: %lld is not a multiple of 16 up to 2^40",
				   (long long)a->bytes);
	if (a->to < -1 || a->to >= a->comm.ranks || a->from < -1 || a->from >= a->comm.ranks)
		return cairn_error(EINVAL, "send_recv: to %d, from %d: must be -1 or a rank", a->to, a->from);
	if ((a->to == a->comm.rank) != (a->from == a->comm.rank))
		return cairn_error(EINVAL, "send_recv: to %d, from %d: both or neither are this rank", a->to,
				   a->from);
	if (a->bytes == 0)
		return 0;
	if ((a->from >= 0 && !a->out) || (a->to >= 0 && !a->x))
		return cairn_error(EINVAL, "send_recv: out, x: must not be null");
	if ((a->from >= 0 && ((uintptr_t)a->out & 15)) || (a->to >= 0 && ((uintptr_t)a->x & 15)))
		return cairn_error(EINVAL, "send_recv: out, x: must be 16-byte aligned");
	return 0;
}
