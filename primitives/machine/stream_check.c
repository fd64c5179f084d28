// SPDX-License-Identifier: Apache-2.0
/* stream - argument checks shared by all of our tables */
#include "primitives/machine/stream.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

int cairn_stream_check(const struct cairn_stream_args *a)
{
	int reads;

	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "stream"));
	reads = a->op == CAIRN_STREAM_READ || a->op == CAIRN_STREAM_COPY;
	if (a->op < CAIRN_STREAM_READ || a->op > CAIRN_STREAM_ADD)
		return cairn_error(EINVAL, "stream: op: %d is unknown", a->op);
	if (a->bytes < 16 || a->bytes % 16)
		return cairn_error(EINVAL, "stream: bytes: %lld is not a positive multiple of 16",
				   (long long)a->bytes);
	if ((reads && !a->src) || (a->op == CAIRN_STREAM_READ ? !a->sum : !a->dst))
		return cairn_error(EINVAL, "stream: dst, sum, src: null pointer");
	return 0;
}
