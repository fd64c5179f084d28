/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay - a page of one layer goes from the worker of a stripe to that of another, by way of the model worker
 *
 *   worker of `from`   PAGE --> model worker   PAGE --> worker of `to`
 *                                            <-- TAKEN   (has stored it)
 *             <-- TAKEN  (its buffer, and the model worker's, are free again)
 *
 * Copy-on-write copies a page to another one, whose number may be that of another stripe. All ends go
 * through the moves of a pass in the same order, so each knows whose turn it is. Each end of a channel has a
 * buffer of one page, which holds one page at a time; signals count the pages of the epoch.
 */
#ifndef CAIRN_REMOTE_RELAY_H
#define CAIRN_REMOTE_RELAY_H

#include "rdma/transport/transport.h"
#include "serving/remote/attention/share.h"

/* Signal slots, behind those of attn_epoch.h. */
enum { CAIRN_SLOT_PAGE = 8, CAIRN_SLOT_TAKEN };

struct cairn_relay {
	const struct cairn_transport_table *table;
	struct cairn_channel *c;
	char *page;			/* its buffer */
	size_t bytes;			/* of a page of one layer; 0: this worker has no stripe */
	struct cairn_region *region;
	struct cairn_remote *to;	/* the other end's buffer */
	uint64_t given, taken;		/* pages, in this epoch */
	/* waits for a signal of this channel; returns an error if the epoch ends */
	int (*await)(void *ctx, uint32_t slot, uint64_t number);
	void *ctx;
};

/* Gives the page in the buffer to the other end, and waits until it is taken. */
int cairn_relay_give(struct cairn_relay *r);
/* Waits for a page of the other end, which is then in the buffer. */
int cairn_relay_take(struct cairn_relay *r);
/* Says that the page is taken, so that the other end may send the next one. */
int cairn_relay_taken(struct cairn_relay *r);

#endif
