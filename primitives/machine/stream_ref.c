// SPDX-License-Identifier: Apache-2.0
/* stream_ref - the reference: applies the definitions of stream.h to one 64-bit word after another */
#include "primitives/machine/stream.h"

#include "primitives/base/error.h"

int cairn_stream_ref(const struct cairn_stream_args *a, void *stream)
{
	const uint64_t *src = a->src;
	uint64_t *dst = a->dst;

	(void)stream;
	CAIRN_TRY(cairn_stream_check(a));
	if (a->op == CAIRN_STREAM_READ)
		for (int64_t b = 0; b < cairn_stream_num_blocks(a->bytes); b++)
			a->sum[b] = 0;
	for (int64_t i = 0; i < a->bytes / 8; i++) {
		if (a->op == CAIRN_STREAM_READ)
			a->sum[i * 8 / CAIRN_STREAM_BLOCK] += src[i];
		else if (a->op == CAIRN_STREAM_WRITE)
			dst[i] = (a->seed + (uint64_t)i) * CAIRN_STREAM_MULT;
		else if (a->op == CAIRN_STREAM_ADD)
			dst[i] += (a->seed + (uint64_t)i) * CAIRN_STREAM_MULT;
		else
			dst[i] = src[i];
	}
	return 0;
}
