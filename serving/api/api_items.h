/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_items - writes answers of /v1/responses: a list of items, whole or as events
 *
 *   stream      created, in_progress; for each item output_item.added, deltas, done; at last completed,
 *               incomplete or failed, with the whole response
 *   otherwise   the whole response alone
 *
 * Both are made by the same calls, so items have the same ids in both. The caller sends and empties `out`
 * after each call; the memory of a stream is the text of the answer and the events that are not sent yet.
 */
#ifndef CAIRN_API_ITEMS_H
#define CAIRN_API_ITEMS_H

#include "serving/api/api_response.h"

enum cairn_api_item {
	CAIRN_API_NO_ITEM,
	CAIRN_API_REASONING_ITEM,
	CAIRN_API_MESSAGE_ITEM,
	CAIRN_API_CALL_ITEM
};

struct cairn_api_items {
	struct cairn_api_out out;		  /* to be sent */
	struct cairn_api_out head, tail;	  /* constant members of the response */
	struct cairn_api_out done;		  /* items that are complete */
	struct cairn_api_out text, name, call_id; /* of the open item */
	enum cairn_api_item open;
	bool stream, cut; /* cut: the open item is not complete */
	char id[CAIRN_API_ID_LEN];
	int index; /* of the open item, or of the next */
	int64_t sequence;
};

/* id: that of the answer, "resp_..."; with a stream, writes its first events. */
void cairn_api_items_begin(struct cairn_api_items *it, const struct cairn_api_request *request,
			   const char *id, int64_t created);
void cairn_api_items_free(struct cairn_api_items *it);
/* Adds text, reasoning or one call of a choice, as a chunk has them. */
void cairn_api_items_add(struct cairn_api_items *it, const struct cairn_api_choice *part);
void cairn_api_items_end(struct cairn_api_items *it, enum cairn_api_finish finish,
			 const struct cairn_api_usage *usage);
bool cairn_api_items_failed(const struct cairn_api_items *it); /* no memory */

#endif
