/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_events - publishes which pages the prefix cache has, in vLLM's wire format, for routers that send a
 * request to the replica with the longest prefix of it
 *
 * A PUB socket sends messages of three frames: the topic, a number of 8 bytes (the highest first), and a
 * batch in MessagePack. There is a batch for each step of the engine that changed the cache:
 *
 *   [time, [event, ...], 0]         seconds since 1970; the 0 is the data-parallel rank
 *   {"type": "BlockStored", "block_hashes": [h, ...], "parent_block_hash": h or nil, "token_ids": [...],
 *    "block_size": tokens, "lora_id": nil, "medium": "GPU", "lora_name": nil, "group_idx": 0,
 *    "kv_cache_spec_kind": "full_attention"}
 *   {"type": "BlockRemoved", "block_hashes": [h, ...], "medium": "GPU", "group_idx": 0}
 *   {"type": "AllBlocksCleared"}    the first batch, number 0: a worker starts with an empty cache
 *
 * (vLLM has sent events as maps since its pull request 42892; before, they were arrays.) The hash of a block
 * is the first 8 bytes of the SHA-256 of its parent's hash and its tokens. Prefixes with a cache_salt are not
 * published.
 *
 * Numbers are consecutive, so a subscriber sees which batches it has missed. It may ask the ROUTER socket for
 * them, if there is one, with the frames (empty, first number). The answer is a message (empty, number,
 * batch) for each batch that is still kept, then one with the number -1 and an empty batch.
 *
 * The listener and cairn_kv_events_flush() run on the engine's thread. They never wait: a thread of this
 * module owns the sockets. If it falls behind by CAIRN_KV_EVENTS_BATCHES batches or CAIRN_KV_EVENTS_BYTES,
 * batches are dropped and counted, and their numbers are missing. Up to the same limits, sent batches are
 * kept for replays. A subscriber that reads too slowly loses batches in its own queue, which only it can see.
 */
#ifndef CAIRN_KV_EVENTS_H
#define CAIRN_KV_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "serving/kv/prefix_tree.h"

#define CAIRN_KV_EVENTS_BATCHES	10000
#define CAIRN_KV_EVENTS_BYTES	((size_t)64 << 20)
#define CAIRN_KV_EVENTS_ADDRESS	256	/* bytes of an address or a topic, including the NUL */

struct cairn_kv_events_options {
	const char *address;	/* "tcp://HOST:PORT"; PORT may be *, for any */
	const char *replay;	/* the same for the ROUTER socket; NULL: none */
	const char *topic;	/* NULL: empty */
	int32_t page_size;
};

struct cairn_kv_events;

/*
 * Binds the sockets and starts the thread. Errors, whose text names the field: -EINVAL: not such an address;
 * -EIO: it cannot be bound; -EOPNOTSUPP: no libzmq. -ENOMEM.
 */
int cairn_kv_events_open(struct cairn_kv_events **out, const struct cairn_kv_events_options *options);
void cairn_kv_events_close(struct cairn_kv_events *e);	/* NULL is legal; what waits is sent first */

/* Returns whether an address is one of this machine alone. */
bool cairn_kv_events_is_local(const char *address);
/* The addresses that are bound, with the real port; replay: "" without one. */
const char *cairn_kv_events_address(const struct cairn_kv_events *e);
const char *cairn_kv_events_replay(const struct cairn_kv_events *e);

/* For the engine's options; valid until close. */
const struct cairn_prefix_listener *cairn_kv_events_listener(struct cairn_kv_events *e);
/* Publishes the events since the last call as one batch. Call after each step. */
void cairn_kv_events_flush(struct cairn_kv_events *e);

/* Events that were handed over to be sent, and that were dropped. */
struct cairn_kv_events_stats {
	int64_t published, lost;
};
void cairn_kv_events_stats(const struct cairn_kv_events *e, struct cairn_kv_events_stats *stats);

#endif
