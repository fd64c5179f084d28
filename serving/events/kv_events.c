// SPDX-License-Identifier: Apache-2.0
/* kv_events - turns changes of the prefix tree into batches of events (kv_events.h) */
#include "serving/events/kv_events.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <sha2.h>

#include "primitives/base/error.h"
#include "serving/events/kv_events_fault.h"
#include "serving/events/kv_events_impl.h"

/* The hash of a page, given that of the page before it; never 0, which stands for the start of a prompt. */
static uint64_t hash_page(uint64_t before, const int32_t *tokens, int32_t num)
{
	uint8_t digest[SHA256_DIGEST_LENGTH];
	uint64_t h = 0;
	SHA2_CTX ctx;

	SHA256Init(&ctx);
	if (!FAULT(HASH_OF_PAGE))
		SHA256Update(&ctx, (const uint8_t *)&before, sizeof(before));
	SHA256Update(&ctx, (const uint8_t *)tokens, (size_t)num * sizeof(*tokens));
	SHA256Final(digest, &ctx);
	for (int i = 0; i < 8; i++)
		h = h << 8 | digest[i];
	return h ? h : 1;
}

static uint64_t hash_run(void *ctx, uint64_t before, const int32_t *tokens, int64_t num_tokens)
{
	const struct cairn_kv_events *e = ctx;

	for (int64_t i = 0; i < num_tokens; i += e->page_size)
		before = hash_page(before, tokens + i, e->page_size);
	return before;
}

static void put_hashes(struct cairn_kv_events *e, uint64_t before, const int32_t *tokens, int64_t num_tokens)
{
	msgpack_string(&e->events, "block_hashes");
	msgpack_array(&e->events, (uint32_t)(num_tokens / e->page_size));
	for (int64_t i = 0; i < num_tokens; i += e->page_size) {
		before = hash_page(before, tokens + i, e->page_size);
		msgpack_uint(&e->events, before);
	}
}

static void put_text(struct msgpack *p, const char *key, const char *value)
{
	msgpack_string(p, key);
	if (value)
		msgpack_string(p, value);
	else
		msgpack_nil(p);
}

static void put_count(struct msgpack *p, const char *key, uint64_t value)
{
	msgpack_string(p, key);
	msgpack_uint(p, value);
}

/* Begins an event. Once a batch is larger than what may wait, it will be dropped: nothing is added to it. */
static bool begin(struct cairn_kv_events *e, uint32_t members, const char *type)
{
	e->num_events++;
	e->events.failed |= e->events.len > CAIRN_KV_EVENTS_BYTES;
	if (e->events.failed)
		return false;
	msgpack_map(&e->events, members);
	put_text(&e->events, "type", type);
	return true;
}

static void on_stored(void *ctx, uint64_t before, const int32_t *tokens, int64_t num_tokens)
{
	struct cairn_kv_events *e = ctx;
	struct msgpack *p = &e->events;

	if (!begin(e, 10, "BlockStored"))
		return;
	put_hashes(e, before, tokens, num_tokens);
	msgpack_string(p, "parent_block_hash");
	if (before && !FAULT(PARENT_NIL))
		msgpack_uint(p, before);
	else
		msgpack_nil(p);
	msgpack_string(p, "token_ids");
	msgpack_array(p, (uint32_t)num_tokens);
	for (int64_t i = 0; i < num_tokens; i++)
		msgpack_uint(p, (uint32_t)tokens[i]);
	put_count(p, "block_size", (uint64_t)e->page_size);
	put_text(p, "lora_id", NULL);
	put_text(p, "medium", "GPU");
	put_text(p, "lora_name", NULL);
	put_count(p, "group_idx", 0);
	put_text(p, "kv_cache_spec_kind", "full_attention");
}

static void on_removed(void *ctx, uint64_t before, const int32_t *tokens, int64_t num_tokens)
{
	struct cairn_kv_events *e = ctx;

	if (!begin(e, 4, "BlockRemoved"))
		return;
	if (FAULT(REMOVED_LAST)) {
		before = hash_run(e, before, tokens, num_tokens - e->page_size);
		tokens += num_tokens - e->page_size;
		num_tokens = e->page_size;
	}
	put_hashes(e, before, tokens, num_tokens);
	put_text(&e->events, "medium", "GPU");
	put_count(&e->events, "group_idx", 0);
}

/* Makes a batch of the events so far; NULL: no memory. */
static struct kv_batch *make_batch(struct cairn_kv_events *e)
{
	struct msgpack whole = { NULL, 0, 0, false };
	struct kv_batch *b = malloc(sizeof(*b));
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	msgpack_array(&whole, 3);
	msgpack_double(&whole, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
	msgpack_array(&whole, e->num_events);
	if (!e->events.failed)
		msgpack_bytes(&whole, e->events.data, e->events.len);
	msgpack_uint(&whole, 0);
	if (!b || whole.failed || e->events.failed) {
		free(whole.data);
		free(b);
		return NULL;
	}
	b->number = e->number;
	b->len = whole.len;
	b->data = whole.data;
	atomic_store(&b->refs, 1);	/* orders these before the release by a thread of libzmq */
	return b;
}

/* Queues a batch unless too much waits. Takes the reference. */
static bool queue(struct cairn_kv_events *e, struct kv_batch *b)
{
	bool fits;

	pthread_mutex_lock(&e->lock);
	fits = (e->end - e->sent < CAIRN_KV_EVENTS_BATCHES &&
		e->waiting_bytes + b->len <= CAIRN_KV_EVENTS_BYTES) || FAULT(ENDLESS_QUEUE);
	if (fits) {
		e->waiting_bytes += b->len;
		e->ring[e->end++ % KV_EVENTS_RING] = b;
	}
	pthread_mutex_unlock(&e->lock);
	if (!fits)
		cairn_kv_batch_release(b);
	return fits;
}

void cairn_kv_events_flush(struct cairn_kv_events *e)
{
	static const uint64_t one = 1;
	struct kv_batch *b;

	if (!e->num_events)
		return;
	b = make_batch(e);
	if (b && queue(e, b)) {
		ssize_t n = write(e->wake, &one, sizeof(one));	/* cannot block before 2^64 - 1 */

		(void)n;
		e->published += e->num_events;
	} else {
		e->lost += FAULT(LOST_UNCOUNTED) ? 0 : e->num_events;
		e->number -= FAULT(NUMBER_REUSED) ? 1 : 0;
	}
	e->number++;
	e->num_events = 0;
	e->events.len = 0;
	e->events.failed = false;
}

int cairn_kv_events_open(struct cairn_kv_events **out, const struct cairn_kv_events_options *o)
{
	struct cairn_kv_events *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return cairn_error(ENOMEM, "kv_events: no memory");
	e->page_size = o->page_size;
	e->wake = -1;
	e->listener = (struct cairn_prefix_listener){ e, hash_run, on_stored, on_removed };
	pthread_mutex_init(&e->lock, NULL);
	ret = cairn_kv_events_start(e, o);
	if (ret) {
		cairn_kv_events_close(e);
		return ret;
	}
	if (!FAULT(NOT_CLEARED))
		begin(e, 1, "AllBlocksCleared");
	cairn_kv_events_flush(e);
	*out = e;
	return 0;
}

void cairn_kv_events_close(struct cairn_kv_events *e)
{
	if (!e)
		return;
	cairn_kv_events_stop(e);
	for (uint64_t i = e->first; i < e->end; i++)
		cairn_kv_batch_release(e->ring[i % KV_EVENTS_RING]);
	pthread_mutex_destroy(&e->lock);
	free(e->events.data);
	free(e);
}

const struct cairn_prefix_listener *cairn_kv_events_listener(struct cairn_kv_events *e)
{
	return &e->listener;
}

const char *cairn_kv_events_address(const struct cairn_kv_events *e)
{
	return e->address;
}

const char *cairn_kv_events_replay(const struct cairn_kv_events *e)
{
	return e->replay;
}

void cairn_kv_events_stats(const struct cairn_kv_events *e, struct cairn_kv_events_stats *stats)
{
	*stats = (struct cairn_kv_events_stats){ e->published, e->lost };
}
