// SPDX-License-Identifier: Apache-2.0
/* all_to_all_mutants - wrong versions of all_to_all, one defect each */
#include <string.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "primitives/comm/all_to_all.h"
#include "primitives/comm/comm_host.h"

enum all_to_all_bend {
	all_to_all_bend_transposed, all_to_all_bend_own_skipped, all_to_all_bend_x_stride_ignored,
	all_to_all_bend_out_stride_ignored, all_to_all_bend_blocks_contiguous, all_to_all_bend_gather_only,
	all_to_all_bend_last_16_bytes_lost, all_to_all_bend_old_mailbox, all_to_all_bend_no_wait,
	all_to_all_bend_flag_before_payload, all_to_all_bend_first_round_again, all_to_all_bend_seven_ranks,
	all_to_all_bend_gaps_filled, all_to_all_bend_timeout_is_success, all_to_all_bend_many_rows_packed,
	all_to_all_bend_row_16_bits, all_to_all_bend_flag_before_last_row,
	all_to_all_bend_flag_before_last_block, all_to_all_bend_released_before_copy,
};
#define IS(defect)	(bend == all_to_all_bend_##defect)

static int64_t x_at(const struct cairn_all_to_all_args *a, enum all_to_all_bend bend, int32_t to, int32_t row)
{
	int64_t block = IS(blocks_contiguous) && a->x_block ? (int64_t)a->rows * a->row_bytes : a->x_block;

	if (IS(gather_only))
		block = 0;
	return to * block + row * (IS(x_stride_ignored) ? a->row_bytes : a->x_stride);
}

static void bent_send(const struct cairn_all_to_all_args *a, enum all_to_all_bend bend, int32_t first,
		      int32_t rows, char *mine)
{
	const int early = IS(flag_before_last_row) || IS(flag_before_last_block);

	if (IS(flag_before_payload)) {
		comm_host_post(&a->comm);
		usleep(300);
	}
	for (int32_t k = 0; k < a->comm.ranks; k++) {
		/* its own block first, the block of the rank below it last */
		int32_t r = IS(flag_before_last_block) ? (a->comm.rank + k) % a->comm.ranks : k;

		for (int32_t i = 0; i < rows; i++) {
			if (k == a->comm.ranks - 1 && i == (IS(flag_before_last_row) ? rows - 1 : 0) && early)
				comm_host_post(&a->comm);
			memcpy(mine + ((int64_t)r * rows + i) * a->row_bytes, (const char *)a->x +
			       x_at(a, bend, r, IS(first_round_again) ? i : first + i), (size_t)a->row_bytes);
		}
	}
	if (!IS(flag_before_payload) && !early)
		comm_host_post(&a->comm);
}

/* Posts in a further round that it has read mailbox 0, before it has, so that it is reused too early. */
static int release_early(const struct cairn_all_to_all_args *a)
{
	const void *mail;
	void *mine;

	CAIRN_TRY(comm_host_begin(&a->comm, "all_to_all", &mine));
	comm_host_post(&a->comm);
	for (int32_t r = 0; r < a->comm.ranks; r++)
		if (r != a->comm.rank)
			CAIRN_TRY(comm_host_await(&a->comm, r, "all_to_all", &mail));
	return 0;
}

static int bent_await(const struct cairn_all_to_all_args *a, enum all_to_all_bend bend, int32_t r,
		      const void **mail)
{
	struct comm_host *h = a->comm.handle;
	int ret = 0;

	*mail = comm_host_mail(h, r, h->number);
	if (r != h->rank && !IS(no_wait))
		ret = comm_host_await(&a->comm, r, "all_to_all", mail);
	if (IS(old_mailbox) && r != h->rank)
		*mail = comm_host_mail(h, r, h->number - 1);
	if (IS(timeout_is_success) && ret == -ETIMEDOUT) {
		atomic_store(&h->error, 0);
		return 0;
	}
	return ret;
}

static int bent_round(const struct cairn_all_to_all_args *a, enum all_to_all_bend bend, int32_t first,
		      int32_t rows)
{
	const int64_t out_stride = IS(out_stride_ignored) || (IS(many_rows_packed) && a->rows > 100) ?
				   a->row_bytes : a->out_stride;
	size_t bytes = (size_t)a->row_bytes - (IS(last_16_bytes_lost) && a->row_bytes > 64 ? 16 : 0);
	const void *mails[CAIRN_COMM_MAX_RANKS];
	char *mine;

	CAIRN_TRY(comm_host_begin(&a->comm, "all_to_all", (void **)&mine));
	if (IS(released_before_copy))
		mine = (char *)comm_host_mail(a->comm.handle, a->comm.rank, 0);
	bent_send(a, bend, first, rows, mine);
	for (int32_t r = 0; r < a->comm.ranks; r++)
		CAIRN_TRY(bent_await(a, bend, r, &mails[r]));
	if (IS(released_before_copy))
		CAIRN_TRY(release_early(a));
	for (int32_t r = 0; r < a->comm.ranks; r++) {
		char *out = (char *)a->out + (IS(transposed) ? (a->comm.ranks - 1 - r) : r) * a->out_block;
		const void *mail = IS(released_before_copy) ? comm_host_mail(a->comm.handle, r, 0) : mails[r];

		if ((IS(own_skipped) && r == a->comm.rank) || (IS(seven_ranks) && r == 7))
			continue;
		for (int32_t i = 0; i < rows; i++) {
			memcpy(out + (IS(row_16_bits) ? (first + i) & 0xffff : first + i) * out_stride,
			       (const char *)mail +
			       ((int64_t)a->comm.rank * rows + i) * a->row_bytes, bytes);
			if (IS(gaps_filled) && i + 1 < rows && out_stride == a->row_bytes + 16)
				memset(out + (first + i) * out_stride + a->row_bytes, 0, 16);
		}
	}
	return 0;
}

static int bent_all_to_all(const struct cairn_all_to_all_args *a, enum all_to_all_bend bend)
{
	int32_t most;

	CAIRN_TRY(cairn_all_to_all_check(a));
	most = (int32_t)(COMM_HOST_MAIL / ((size_t)a->row_bytes * (size_t)a->comm.ranks));
	for (int32_t first = 0; first < a->rows; first += most)
		CAIRN_TRY(bent_round(a, bend, first, a->rows - first < most ? a->rows - first : most));
	return 0;
}

BENT(all_to_all, transposed)
BENT(all_to_all, own_skipped)
BENT(all_to_all, x_stride_ignored)
BENT(all_to_all, out_stride_ignored)
BENT(all_to_all, blocks_contiguous)
BENT(all_to_all, gather_only)
BENT(all_to_all, last_16_bytes_lost)
BENT(all_to_all, old_mailbox)
BENT(all_to_all, no_wait)
BENT(all_to_all, flag_before_payload)
BENT(all_to_all, first_round_again)
BENT(all_to_all, seven_ranks)
BENT(all_to_all, gaps_filled)
BENT(all_to_all, many_rows_packed)
BENT(all_to_all, row_16_bits)
BENT(all_to_all, flag_before_last_row)
BENT(all_to_all, flag_before_last_block)
BENT(all_to_all, released_before_copy)
BENT(all_to_all, timeout_is_success)

/* Among more than four ranks, the last of more than 16 rows from the last rank is lost. */
static int all_to_all_last_row_of_many_ranks(const struct cairn_all_to_all_args *a, void *stream)
{
	CAIRN_TRY(cairn_all_to_all_ref(a, stream));
	if (a->rows > 16 && a->comm.ranks > 4)
		memset((char *)a->out + (a->comm.ranks - 1) * a->out_block + (a->rows - 1) * a->out_stride, 0,
		       (size_t)a->row_bytes);
	return 0;
}

/* Rows of 240 bytes behind whole 256 lose their last 16. */
static int all_to_all_bytes_240(const struct cairn_all_to_all_args *a, void *stream)
{
	CAIRN_TRY(cairn_all_to_all_ref(a, stream));
	if (a->row_bytes % 256 == 240 && a->rows)
		memset((char *)a->out + a->row_bytes - 16, 0, 16);
	return 0;
}

const struct cairn_mutant cairn_all_to_all_mutants[] = {
	MUTANT(all_to_all, transposed, "stores the blocks of the ranks in reverse order"),
	MUTANT(all_to_all, own_skipped, "does not copy its own block"),
	MUTANT(all_to_all, x_stride_ignored, "takes rows of x to be contiguous"),
	MUTANT(all_to_all, out_stride_ignored, "takes rows of out to be contiguous"),
	MUTANT(all_to_all, blocks_contiguous, "takes blocks of x to be contiguous"),
	MUTANT(all_to_all, gather_only, "sends its first block to all ranks"),
	MUTANT(all_to_all, last_16_bytes_lost, "loses the last 16 bytes of rows of more than 64"),
	MUTANT(all_to_all, old_mailbox, "reads the mailbox of the call before"),
	MUTANT(all_to_all, no_wait, "does not wait for messages"),
	MUTANT(all_to_all, flag_before_payload, "posts a message before it is written"),
	MUTANT(all_to_all, flag_before_last_row, "posts a message before its last row is written"),
	MUTANT(all_to_all, flag_before_last_block,
	       "posts a message before the block of the rank below is written"),
	MUTANT(all_to_all, released_before_copy, "lets mailboxes be overwritten before it has read them"),
	MUTANT(all_to_all, first_round_again, "sends the first rows again in later rounds"),
	MUTANT(all_to_all, seven_ranks, "gathers from at most seven ranks"),
	MUTANT(all_to_all, gaps_filled, "writes into the gaps between the rows of out"),
	MUTANT(all_to_all, many_rows_packed, "ignores out_stride above 100 rows"),
	MUTANT(all_to_all, row_16_bits, "cuts the number of a row of out to 16 bits"),
	MUTANT(all_to_all, timeout_is_success, "ends without an error if a rank does not come"),
	{ "all_to_all_last_row_of_many_ranks", offsetof(struct cairn_impl, all_to_all),
	  (void *)all_to_all_last_row_of_many_ranks,
	  "among more than four ranks, the last row of the last block is lost" },
	{ "all_to_all_bytes_240", offsetof(struct cairn_impl, all_to_all), (void *)all_to_all_bytes_240,
	  "rows that are 16 bytes short of whole 256 lose the last 16" },
	{ 0 }
};
