/* SPDX-License-Identifier: Apache-2.0 */
/* attn_paged_shares - the decode kernel for many requests of uneven lengths (attn_paged_shares.cu) */
#ifndef CAIRN_ATTN_PAGED_SHARES_H
#define CAIRN_ATTN_PAGED_SHARES_H

#include "fused/attention/paged/attn_paged.h"

/* Where the arrays of a call are in its workspace. */
struct attn_shares_room {
	int32_t most;			/* shares, at most; 0: the call has none */
	size_t arrived, states;
};

/*
 * Lays out a call's arrays behind the first *bytes of the workspace, and adds their size. resident: CTAs of
 * half an SM that the device holds at once. Returns 0, with room->most 0 if there is no kernel for the call.
 */
int attn_shares_lay_out(const struct cairn_attn_paged_args *args, int32_t resident,
			struct attn_shares_room *room, size_t *bytes);
/* Prepares the workspace for calls of attn_shares_attend(): of this call, and of those that use its plan. */
int attn_shares_begin(const struct cairn_attn_paged_args *args, const struct attn_shares_room *room,
		      void *stream);
/* Attends to the requests of up to max_rows packed rows, at most ATTN_DECODE_TILE. */
int attn_shares_attend(const struct cairn_attn_paged_args *args, int32_t max_rows,
		       const struct attn_shares_room *room, void *stream);

#endif
