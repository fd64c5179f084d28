// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_ranks_cpu - decode_step_cpu.c, and what the ranks exchange in it
 *
 * Each rank posts its partial sums, or its logits, and reads those of all others. Every rank adds the sums in
 * the same order, so that all have the same bits from there on.
 */
#include "fused/decode_step/ranks/decode_step_ranks_parts.h"

#include <string.h>

#include "fused/decode_step/decode_step_cpu.h"
#include "primitives/base/error.h"
#include "primitives/comm/comm_host.h"

#define OP	"decode_step_ranks"

/* Sends `bytes` bytes and sets mail[r] to those of rank r. */
static int exchange(const struct cairn_comm *comm, const void *data, size_t bytes, const void **mail)
{
	void *mine;

	CAIRN_TRY(comm_host_begin(comm, OP, &mine));
	memcpy(mine, data, bytes);
	comm_host_post(comm);
	for (int32_t r = 0; r < comm->ranks; r++)
		if (r == comm->rank)
			mail[r] = mine;
		else
			CAIRN_TRY(comm_host_await(comm, r, OP, &mail[r]));
	return 0;
}

int step_cpu_sum(const struct cairn_decode_step_args *a, const struct cairn_comm *comm, float *sums)
{
	const void *mail[CAIRN_COMM_MAX_RANKS];
	size_t count = (size_t)a->kv.batch * (size_t)a->hidden;	/* at most 32768, far less than a mailbox */

	CAIRN_TRY(exchange(comm, sums, count * sizeof(*sums), mail));
	memcpy(sums, mail[0], count * sizeof(*sums));
	for (int32_t r = 1; r < comm->ranks; r++)
		for (size_t i = 0; i < count; i++)
			sums[i] += ((const float *)mail[r])[i];
	return 0;
}

/* Writes elements first .. first + count - 1 of rank r's share to their places among all logits. */
static void place(const struct cairn_decode_step_args *a, int32_t ranks, int32_t r, const float *from,
		  size_t first, size_t count)
{
	size_t share = (size_t)(a->vocab / ranks);

	for (size_t i = first, n; i < first + count; i += n) {
		float *row = a->logits + i / share * (size_t)a->vocab + (size_t)r * share;

		n = share - i % share;
		n = n < first + count - i ? n : first + count - i;
		memcpy(row + i % share, from + (i - first), n * sizeof(*from));
	}
}

int step_cpu_gather(const struct cairn_decode_step_args *a, const struct cairn_comm *comm, const float *share)
{
	const void *mail[CAIRN_COMM_MAX_RANKS];
	size_t total = (size_t)a->kv.batch * (size_t)(a->vocab / comm->ranks);
	size_t most = COMM_HOST_MAIL / sizeof(*share);

	for (size_t first = 0; first < total; first += most) {
		size_t count = total - first < most ? total - first : most;

		CAIRN_TRY(exchange(comm, share + first, count * sizeof(*share), mail));
		for (int32_t r = 0; r < comm->ranks; r++)
			place(a, comm->ranks, r, mail[r], first, count);
	}
	return 0;
}

int cairn_decode_step_ranks_cpu_workspace(const struct cairn_decode_step_ranks_args *a, size_t *bytes)
{
	struct cairn_decode_step_args step;

	CAIRN_TRY(cairn_decode_step_ranks_check_shape(a));
	step = decode_step_ranks_step(a);
	*bytes = step_cpu_bytes(&step, &a->comm);
	return 0;
}

int cairn_decode_step_ranks_cpu(const struct cairn_decode_step_ranks_args *a, void *stream)
{
	struct cairn_decode_step_args step;

	(void)stream;
	CAIRN_TRY(cairn_decode_step_ranks_check(a));
	CAIRN_TRY(comm_host_check(&a->comm, OP));	/* before anything is written */
	step = decode_step_ranks_step(a);
	return step_cpu_run(&step, &a->comm, OP);
}
