/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal - a second copy of all keys and values, in host memory of the model worker
 *
 * It holds the rows as they were sent to the attention workers, in the place of their pages. When a worker
 * is lost, the rows of all pages are sent again to the workers of the next epoch (attn_restore.c). Their
 * caches then have the same bits, because appending is a function of the rows.
 *
 *   begin, rows of each layer, commit   a pass of a lane; its rows enter the journal as a whole
 *   drop                                the pass has not ended and will begin again: forgets its rows
 *
 * A pass is recorded in a buffer of its own, by copies on its stream. Its rows go to their pages only after
 * the pass has ended, because a lost pass must not replace rows that the passes before it may need. With a
 * table of a device, the buffers are in its memory, and kv_append writes the rows to the pages in pinned host
 * memory, on a stream of the journal; the host only notes which rows are there. With host memory, a thread
 * that makes no call of the table moves the rows. So a pass waits for neither, unless the writing is a whole
 * pass behind. If K and V of a row lie side by side, as in a sliced pass, and the rows have no gaps between
 * them, a layer is one copy; otherwise there are one or two copies for each row. Passes enter the journal in
 * the order of their commits, which must be that of their plans.
 *
 * A lane's passes use its two buffers in turn, so the copies of a pass can be captured, and replayed for
 * those with the same buffer. All rows of a call are copied, and padding is left out of the pages.
 *
 * Memory: num_pages pages of all layers and heads, and two buffers of max_rows rows for each lane; with host
 * memory, in large pages if the system has them. Errors: -EINVAL, naming kv_journal, if all that is more
 * than max_bytes, but for buffers on a device; -ENOMEM; the table's. One thread makes all calls.
 */
#ifndef CAIRN_REMOTE_JOURNAL_H
#define CAIRN_REMOTE_JOURNAL_H

#include "serving/model/model.h"
#include "serving/remote/attention/pass.h"
#include "serving/slices/attn_link.h"

struct cairn_journal;

struct cairn_journal_stats {
	int64_t bytes, passes;		/* recorded */
	int64_t record_ns;		/* time of the passes to enqueue copies, and to wait for a buffer */
	int64_t write_ns;		/* of the thread, or of the host for moves of pages */
};

int cairn_journal_create(struct cairn_journal **out, const struct cairn_model *model,
			 const struct cairn_remote_limits *limits, int64_t max_bytes);
void cairn_journal_destroy(struct cairn_journal *j);	/* NULL is legal */
int cairn_journal_begin(struct cairn_journal *j, int32_t lane, const struct cairn_remote_pass *p);
/* Returns which of its two buffers the lane's next pass will use. */
int cairn_journal_side(const struct cairn_journal *j, int32_t lane);
/* Records K and V of the pass's rows in a layer, in the table's memory, by copies on the stream. */
int cairn_journal_rows(struct cairn_journal *j, int32_t lane, const struct cairn_attn_rows *rows,
		       void *stream);
int cairn_journal_commit(struct cairn_journal *j, int32_t lane, void *stream);
void cairn_journal_drop(struct cairn_journal *j, int32_t lane);
int cairn_journal_drain(struct cairn_journal *j);	/* waits until all commits are in their pages */
/* After drain: how many rows of a page are known; where K (side 0) and V (1) of them are in a layer. */
int32_t cairn_journal_fill(const struct cairn_journal *j, int32_t page);
const char *cairn_journal_page(const struct cairn_journal *j, int32_t layer, int side, int32_t page);
void cairn_journal_stats(struct cairn_journal *j, struct cairn_journal_stats *stats);

#endif
