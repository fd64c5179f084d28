// SPDX-License-Identifier: Apache-2.0
/*
 * transport_mutants.c - a back end with one defect each; every mutant must fail a case
 *
 * A mutant is the back end's table with one or more functions replaced. The replacements see both ends,
 * which run in this process. They keep their state in static variables, because only one mutant runs at a
 * time.
 */
#include <string.h>

#include "rdma/transport_cases/transport_end.h"
#include "rdma/transport/transport_impl.h"

static const struct cairn_transport_table *right_table;

#define RIGHT		right_table
#define MUTANT_PUT(name)							\
	static int name(struct cairn_channel *c, const struct cairn_put *put, uint32_t ms)

static int is_payload(const struct cairn_put *p)
{
	return p && p->bytes && p->local && p->remote;
}

MUTANT_PUT(signal_first)
{
	struct cairn_put p, s;

	if (!is_payload(put) || put->slot == CAIRN_NO_SIGNAL || RIGHT->channel_error(c))
		return RIGHT->put(c, put, ms);
	p = s = *put;
	p.slot = CAIRN_NO_SIGNAL;
	s.bytes = 0;
	CAIRN_TRY(RIGHT->put(c, &s, ms));
	return RIGHT->put(c, &p, ms);
}

MUTANT_PUT(last_byte_lost)
{
	struct cairn_put p;

	if (!is_payload(put) || put->bytes < 2)
		return RIGHT->put(c, put, ms);
	p = *put;
	p.bytes--;
	return RIGHT->put(c, &p, ms);
}

MUTANT_PUT(one_byte_more)
{
	struct cairn_put p = put ? *put : (struct cairn_put) { 0 };

	if (is_payload(put) && put->local_offset + put->bytes < put->local->bytes &&
	    put->remote_offset + put->bytes < put->remote->bytes)
		p.bytes++;
	return RIGHT->put(c, put ? &p : NULL, ms);
}

MUTANT_PUT(one_byte_off)
{
	struct cairn_put p;

	if (!is_payload(put) || put->remote_offset + put->bytes >= put->remote->bytes)
		return RIGHT->put(c, put, ms);
	p = *put;
	p.remote_offset++;
	return RIGHT->put(c, &p, ms);
}

MUTANT_PUT(source_off)
{
	struct cairn_put p;

	if (!is_payload(put) || put->local_offset < 16 || put->bytes < 4096)
		return RIGHT->put(c, put, ms);
	p = *put;
	p.local_offset -= 16;
	return RIGHT->put(c, &p, ms);
}

static int bent_value(struct cairn_channel *c, const struct cairn_put *put, uint32_t ms, int64_t by)
{
	struct cairn_put p;

	if (!put)
		return RIGHT->put(c, put, ms);
	p = *put;
	p.value += (uint64_t)by;
	return RIGHT->put(c, &p, ms);
}

MUTANT_PUT(value_high)
{
	return bent_value(c, put, ms, 1);
}

MUTANT_PUT(value_low)
{
	return bent_value(c, put, ms, -1);
}

MUTANT_PUT(value_32_bits)
{
	return bent_value(c, put, ms, put ? (int64_t)((uint64_t)(uint32_t)put->value - put->value) : 0);
}

MUTANT_PUT(word_lost)
{
	struct cairn_put p;

	if (!put)
		return RIGHT->put(c, put, ms);
	p = *put;
	p.word = 0;
	return RIGHT->put(c, &p, ms);
}

MUTANT_PUT(slot_zero)
{
	struct cairn_put p;

	if (!put || put->slot >= 64)
		return RIGHT->put(c, put, ms);
	p = *put;
	p.slot = 0;
	return RIGHT->put(c, &p, ms);
}

MUTANT_PUT(one_in_100_lost)
{
	static int count;
	struct cairn_put p;

	if (!is_payload(put) || put->slot == CAIRN_NO_SIGNAL || ++count % 100)
		return RIGHT->put(c, put, ms);
	p = *put;
	p.bytes = 0;
	return RIGHT->put(c, &p, ms);
}

MUTANT_PUT(no_signal_alone)
{
	if (put && !put->bytes && put->slot < 64 && c)
		return RIGHT->channel_error(c);
	return RIGHT->put(c, put, ms);
}

MUTANT_PUT(no_bounds_check)
{
	if (!c || !is_payload(put) || RIGHT->channel_error(c) || !atomic_load(&c->connected) ||
	    put->local_offset > put->local->bytes || put->bytes > put->local->bytes - put->local_offset)
		return RIGHT->put(c, put, ms);
	return c->t->ops->put(c, put, transport_now() + ms * 1000000ull);
}

MUTANT_PUT(wrong_channel)
{
	return RIGHT->put(c && c->number == 1 && c->next ? c->next : c, put, ms);
}

MUTANT_PUT(put_swallows)
{
	int ret = RIGHT->put(c, put, ms);

	return ret == -EINVAL ? ret : 0;
}

static int flush_early(struct cairn_channel *c, uint32_t ms)
{
	(void)ms;
	return c ? RIGHT->channel_error(c) : RIGHT->flush(c, 0);
}

static int flush_swallows(struct cairn_channel *c, uint32_t ms)
{
	int ret = RIGHT->flush(c, ms);

	return ret == -EINVAL ? ret : 0;
}

static int error_none(struct cairn_channel *c)
{
	(void)c;
	return 0;
}

#define MUTANT_WAIT(name)							\
	static int name(struct cairn_channel *c, uint32_t slot, uint64_t value, uint32_t ms,	\
			struct cairn_signal *found)

MUTANT_WAIT(wait_early)
{
	int ret = RIGHT->wait(c, slot, value - 1, ms, found);

	return ret;
}

MUTANT_WAIT(wait_returns_late)
{
	return RIGHT->wait(c, slot, value, ms && ms < 100 ? 1500 : ms, found);
}

MUTANT_WAIT(wait_gives_up)
{
	int ret = RIGHT->wait(c, slot, value, ms > 100 && ms < 4000 ? ms : ms / 2, found);

	return ret;
}

MUTANT_WAIT(wait_equal)
{
	struct cairn_signal s;
	int ret = RIGHT->wait(c, slot, value, ms, &s);

	if (!ret && s.value != value)
		return cairn_error(ETIMEDOUT, "waited for exactly this value");
	if (!ret && found)
		*found = s;
	return ret;
}

MUTANT_WAIT(wait_unsigned)
{
	struct cairn_signal s;
	int ret = RIGHT->wait(c, slot, value, ms, &s);

	if (!ret && s.value < value)
		return cairn_error(ETIMEDOUT, "the value is less when compared unsigned");
	if (!ret && found)
		*found = s;
	return ret;
}

MUTANT_WAIT(gone_is_late)
{
	int ret = RIGHT->wait(c, slot, value, ms, found);

	return ret == -ECONNRESET ? -ETIMEDOUT : ret;
}

/* For reset_stale: the last signals seen in each slot, with which waits still end after a reset. */
static struct {
	struct cairn_channel *c;
	struct cairn_signal s[64];
} seen[8];

static struct cairn_signal *seen_of(struct cairn_channel *c, uint32_t slot)
{
	int i;

	for (i = 0; i < 7 && seen[i].c && seen[i].c != c; i++)
		;
	if (seen[i].c != c)
		memset(&seen[i], 0, sizeof(seen[i]));
	seen[i].c = c;
	return &seen[i].s[slot];
}

MUTANT_WAIT(reset_stale)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct cairn_signal s;
	int ret;

	if (!c || slot >= 64)
		return RIGHT->wait(c, slot, value, ms, found);
	pthread_mutex_lock(&lock);
	s = *seen_of(c, slot);
	pthread_mutex_unlock(&lock);
	if (s.value && (int64_t)(s.value - value) >= 0)
		return 0;
	ret = RIGHT->wait(c, slot, value, ms, &s);
	if (ret)
		return ret;
	pthread_mutex_lock(&lock);
	*seen_of(c, slot) = s;
	pthread_mutex_unlock(&lock);
	if (found)
		*found = s;
	return 0;
}

/* A new channel may have the address of a freed one. */
static int forget(struct cairn_transport *t, struct cairn_channel **c)
{
	int ret = RIGHT->channel_create(t, c), i;

	for (i = 0; i < 8 && !ret; i++)
		if (seen[i].c == *c)
			memset(seen[i].s, 0, sizeof(seen[i].s));
	return ret;
}

static int reset_keeps_error(struct cairn_channel *c)
{
	int err = c ? atomic_load(&c->error) : 0;

	CAIRN_TRY(RIGHT->channel_reset(c));
	if (err)
		transport_fail(c, err, "an old error");
	return 0;
}

/* Uses a blob's first bytes without checking the blob. */
static int import_unchecked(struct cairn_transport *t, const struct cairn_blob *key,
			    struct cairn_remote **remote)
{
	struct cairn_region r = { .t = t, .addr = (uint8_t *)&r, .bytes = 1 };
	struct cairn_blob right;
	int ret = RIGHT->remote_import(t, key, remote);

	if (ret && key && !strcmp(key->kind, RIGHT->name) && key->what == 2) {
		ret = RIGHT->region_register(t, &r, 1, CAIRN_MEMORY_HOST, (struct cairn_region **)&r.next);
		if (!ret && !RIGHT->region_key(r.next, &right))
			ret = RIGHT->remote_import(t, &right, remote);
		RIGHT->region_release(r.next);
	}
	return ret;
}

/* Puts and waits that are replayed. */
static int rows_of_capture(struct cairn_channel *c, const struct cairn_stream_put *put, void *stream)
{
	static struct cairn_stream_now now;
	struct cairn_stream_put p = *put;

	if (p.now) {
		now = *p.now;
		now.rows = ~0u;
		p.now = &now;
	}
	return RIGHT->stream_put(c, &p, stream);
}

static int number_of_capture(struct cairn_channel *c, const struct cairn_stream_put *put, void *stream)
{
	static struct cairn_stream_now now;
	struct cairn_stream_put p = *put;

	if (p.now) {
		now = *p.now;
		now.number = 0;
		p.now = &now;
	}
	return RIGHT->stream_put(c, &p, stream);
}

static int turn_unsaid(struct cairn_channel *c, const struct cairn_stream_wait *wait, void *stream)
{
	struct cairn_stream_wait w = *wait;

	if (w.now)
		w.ended = NULL;
	return RIGHT->stream_wait(c, &w, stream);
}

static int turn_not_awaited(struct cairn_channel *c, const struct cairn_stream_wait *wait, void *stream)
{
	struct cairn_stream_wait w = *wait;

	if (w.now)
		w.order = NULL;
	return RIGHT->stream_wait(c, &w, stream);
}

static int lock_not_taken(struct cairn_channel *c, const struct cairn_stream_wait *wait, void *stream)
{
	struct cairn_stream_wait w = *wait;

	w.lock = NULL;
	return RIGHT->stream_wait(c, &w, stream);
}

static int lock_kept(struct cairn_channel *c, const struct cairn_stream_put *put, void *stream)
{
	struct cairn_stream_put p = *put;

	p.unlock = NULL;
	return RIGHT->stream_put(c, &p, stream);
}

static const struct {
	const char *name, *what;
	const char *by;			/* the case that must catch it; NULL: any */
	struct cairn_transport_table with;
} mutants[] = {
	{ "rows_of_capture", "all rows of a replayed put are put", "stream_replays",
	  { .stream_put = rows_of_capture } },
	{ "number_of_capture", "a replayed put has its first number", "stream_replays",
	  { .stream_put = number_of_capture } },
	{ "turn_unsaid", "a wait does not say its turn", "stream_replays", { .stream_wait = turn_unsaid } },
	{ "turn_not_awaited", "a wait does not wait for the turn before", "stream_replays",
	  { .stream_wait = turn_not_awaited } },
	{ "lock_not_taken", "a wait does not take its lock", "stream_locks",
	  { .stream_wait = lock_not_taken } },
	{ "lock_kept", "a put does not give up its lock", "stream_locks", { .stream_put = lock_kept } },
	{ "signal_first", "signal before payload", NULL, { .put = signal_first } },
	{ "last_byte_lost", "the last byte is not sent", NULL, { .put = last_byte_lost } },
	{ "one_byte_more", "one byte too many is sent", NULL, { .put = one_byte_more } },
	{ "one_byte_off", "remote offset off by one", NULL, { .put = one_byte_off } },
	{ "source_off", "large payloads are read 16 bytes too early", NULL, { .put = source_off } },
	{ "value_high", "signal value one too high", NULL, { .put = value_high } },
	{ "value_low", "signal value one too low", NULL, { .put = value_low } },
	{ "value_32_bits", "signal value truncated to 32 bits", NULL, { .put = value_32_bits } },
	{ "word_lost", "the word is zero", NULL, { .put = word_lost } },
	{ "slot_zero", "all signals go to slot 0", NULL, { .put = slot_zero } },
	{ "one_in_100_lost", "every hundredth payload is lost", NULL, { .put = one_in_100_lost } },
	{ "no_signal_alone", "a put of zero bytes does nothing", NULL, { .put = no_signal_alone } },
	{ "no_bounds_check", "remote bounds are not checked at this end", NULL, { .put = no_bounds_check } },
	{ "wrong_channel", "the second channel's puts use the first channel", NULL,
	  { .put = wrong_channel } },
	{ "put_swallows", "put does not report errors", NULL,
	  { .put = put_swallows, .flush = flush_swallows } },
	{ "flush_early", "flush does not wait", NULL, { .flush = flush_early } },
	{ "flush_swallows", "flush does not report errors", NULL, { .flush = flush_swallows } },
	{ "error_none", "channel_error never reports an error", NULL, { .channel_error = error_none } },
	{ "wait_early", "wait ends one value early", NULL, { .wait = wait_early } },
	{ "wait_returns_late", "short time-outs last much too long", NULL, { .wait = wait_returns_late } },
	{ "wait_gives_up", "wait ends at half its time-out", NULL, { .wait = wait_gives_up } },
	{ "wait_equal", "wait requires exactly the value", NULL, { .wait = wait_equal } },
	{ "wait_unsigned", "values are compared without wrap", NULL, { .wait = wait_unsigned } },
	{ "gone_is_late", "a peer's death is reported as a time-out", NULL, { .wait = gone_is_late } },
	{ "reset_stale", "signals from before a reset count after it", NULL, { .wait = reset_stale,
	.channel_create = forget } },
	{ "reset_keeps_error", "an error outlives the reset", NULL, { .channel_reset = reset_keeps_error } },
	{ "import_unchecked", "damaged keys are accepted", NULL, { .remote_import = import_unchecked } },
};

const struct cairn_transport_table *transport_mutant(const struct cairn_transport_table *right, int i,
						     const char **what, const char **by)
{
	static struct cairn_transport_table table;

	if (i < 0 || i >= (int)(sizeof(mutants) / sizeof(mutants[0])))
		return NULL;
	memset(seen, 0, sizeof(seen));
	right_table = right;
	table = *RIGHT;
	table.name = mutants[i].name;
#define REPLACE(f)	if (mutants[i].with.f)		\
		table.f = mutants[i].with.f
	REPLACE(put);
	REPLACE(wait);
	REPLACE(flush);
	REPLACE(channel_error);
	REPLACE(channel_reset);
	REPLACE(channel_create);
	REPLACE(remote_import);
	REPLACE(stream_put);
	REPLACE(stream_wait);
	*what = mutants[i].what;
	*by = mutants[i].by;
	return &table;
}
