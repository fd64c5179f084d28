// SPDX-License-Identifier: Apache-2.0
/*
 * copies - copies between host and device, with the words checked at both ends; and the latency of a launch
 *
 * Words go to the device, from one buffer there to another, and back. After each of the first two copies the
 * device sums its blocks of 4 KiB (stream), and the host knows these sums, so that a wrong byte is the fault
 * of one copy. The host itself compares what comes back. Without the operation stream only that is compared.
 * Then words go both ways at the same time.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/rates.h"
#include "conformance/validate/validate.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

#define BYTES		((int64_t)64 << 20)
#define HOST_BYTES	((int64_t)4 << 20)

enum leg { TO_DEVICE, ON_DEVICE, TO_HOST, BOTH_WAYS, NUM_LEGS };

static const char *const leg_names[] = { "to the device", "on the device", "to the host" };

struct copies {
	struct validate_device *d;
	json_t *row;
	int64_t bytes;
	void *host, *back, *a, *b;	/* a and b on the device */
	void *stream;			/* of the way back, while d->stream has the way there */
	uint64_t *device_sum, *sum;	/* of blocks; NULL: the table does not sum */
	struct validate_series gbps[NUM_LEGS];
};

static void close_copies(struct copies *c)
{
	struct cairn_impl *impl = &c->d->impl;

	if (c->device_sum)
		impl->mem_free(c->device_sum);
	if (c->b)
		impl->mem_free(c->b);
	if (c->a)
		impl->mem_free(c->a);
	if (c->stream)
		impl->stream_destroy(c->stream);
	if (c->back)
		impl->host_free(c->back);
	if (c->host)
		impl->host_free(c->host);
	free(c->sum);
}

static int open_copies(struct copies *c, struct validate_device *d)
{
	size_t bytes, sums;

	memset(c, 0, sizeof(*c));
	c->d = d;
	c->bytes = d->on_host ? HOST_BYTES : BYTES;
	bytes = (size_t)c->bytes;
	sums = (size_t)cairn_stream_num_blocks(c->bytes) * 8;
	if (!d->impl.host_alloc(&c->host, bytes) && !d->impl.host_alloc(&c->back, bytes) &&
	    !d->impl.stream_create(&c->stream) && !d->impl.mem_alloc(&c->a, bytes) &&
	    !d->impl.mem_alloc(&c->b, bytes)) {
		if (!d->impl.stream)
			return 0;
		c->sum = malloc(sums);
		if (c->sum && !d->impl.mem_alloc((void **)&c->device_sum, sums))
			return 0;
	}
	close_copies(c);
	return -ENOMEM;
}

static uint64_t word_of(uint64_t seed, int64_t i)
{
	return (seed + (uint64_t)i) * CAIRN_STREAM_MULT;
}

static int copy(struct copies *c, enum leg leg)
{
	void *const from[] = { c->host, c->a, c->b }, *const to[] = { c->a, c->b, c->host };
	static const int kind[] = { CAIRN_COPY_TO_DEVICE, CAIRN_COPY_ON_DEVICE, CAIRN_COPY_TO_HOST };
	double begun = cairn_now();

	CAIRN_TRY(c->d->impl.mem_copy(to[leg], from[leg], (size_t)c->bytes, kind[leg], c->d->stream));
	CAIRN_TRY(c->d->impl.stream_sync(c->d->stream));
	validate_series_add(&c->gbps[leg], (double)c->bytes * 1e-9 / (cairn_now() - begun));
	return validate_sync(c->d);
}

/* Compares the blocks of a buffer on the device with what was copied there. */
static int check_blocks(struct copies *c, const void *buffer, uint64_t seed, enum leg leg)
{
	int64_t blocks = cairn_stream_num_blocks(c->bytes);
	struct cairn_stream_args a = { .size = sizeof(a), .sum = c->device_sum, .src = buffer,
		.bytes = c->bytes, .op = CAIRN_STREAM_READ };

	if (!c->device_sum)
		return 0;
	CAIRN_TRY(c->d->impl.stream(&a, c->d->stream));
	CAIRN_TRY(c->d->impl.mem_copy(c->sum, c->device_sum, (size_t)blocks * 8, CAIRN_COPY_TO_HOST,
				      c->d->stream));
	CAIRN_TRY(validate_sync(c->d));
	for (int64_t b = 0; b < blocks; b++)
		if (c->sum[b] != validate_block_sum(seed, b)) {
			validate_finding(c->row, VALIDATE_FAIL, NULL,
					 "a copy %s: the block at byte %lld is wrong there", leg_names[leg],
					 (long long)(b * CAIRN_STREAM_BLOCK));
			break;
		}
	return 0;
}

static void check_words(struct copies *c, const uint64_t *host, uint64_t seed)
{

	for (int64_t i = 0; i < c->bytes / 8; i++)
		if (host[i] != word_of(seed, i)) {
			validate_finding(c->row, VALIDATE_FAIL, NULL,
					 "a copy %s: bits %016llx of the word at byte %lld are wrong",
					 leg_names[TO_HOST], (unsigned long long)(host[i] ^ word_of(seed, i)),
					 (long long)(8 * i));
			return;
		}
}

/* One round trip; the first copy that is wrong ends it. */
static int round_trip(struct copies *c, uint64_t seed)
{
	uint64_t *host = c->host;

	for (int64_t i = 0; i < c->bytes / 8; i++)
		host[i] = word_of(seed, i);
	CAIRN_TRY(copy(c, TO_DEVICE));
	CAIRN_TRY(check_blocks(c, c->a, seed, TO_DEVICE));
	if (validate_verdict_of(c->row) == VALIDATE_FAIL)
		return 0;
	CAIRN_TRY(copy(c, ON_DEVICE));
	CAIRN_TRY(check_blocks(c, c->b, seed, ON_DEVICE));
	if (validate_verdict_of(c->row) == VALIDATE_FAIL)
		return 0;
	memset(host, 0, (size_t)c->bytes);
	CAIRN_TRY(copy(c, TO_HOST));
	check_words(c, c->host, seed);
	return 0;
}

/* Words go to the device while those of the round trip come back from it. */
static int both_ways(struct copies *c, uint64_t seed)
{
	struct cairn_impl *impl = &c->d->impl;
	size_t bytes = (size_t)c->bytes;
	uint64_t *host = c->host;
	double begun;

	for (int64_t i = 0; i < c->bytes / 8; i++)
		host[i] = word_of(~seed, i);
	memset(c->back, 0, bytes);
	begun = cairn_now();
	CAIRN_TRY(impl->mem_copy(c->a, c->host, bytes, CAIRN_COPY_TO_DEVICE, c->d->stream));
	CAIRN_TRY(impl->mem_copy(c->back, c->b, bytes, CAIRN_COPY_TO_HOST, c->stream));
	CAIRN_TRY(impl->stream_sync(c->stream));
	CAIRN_TRY(impl->stream_sync(c->d->stream));
	validate_series_add(&c->gbps[BOTH_WAYS], 2e-9 * (double)c->bytes / (cairn_now() - begun));
	CAIRN_TRY(check_blocks(c, c->a, ~seed, TO_DEVICE));
	check_words(c, c->back, seed);
	return 0;
}

int validate_copies(struct validate_device *d, const struct validate_test *t, double seconds)
{
	static const char *const figures[NUM_LEGS] = { "to_device_gbps", "on_device_gbps", "to_host_gbps",
		"both_ways_gbps" };
	double end = cairn_now() + seconds, median[NUM_LEGS] = { 0 };
	struct copies c;
	int n = 0, ret = 0;

	if (open_copies(&c, d))
		return validate_not_run(d, t, "the device gives no buffers for copies");
	c.row = validate_row(t->name, t->required);
	for (; !ret && (n < 2 || cairn_now() < end) && validate_verdict_of(c.row) == VALIDATE_PASS; n++) {
		uint64_t seed = (uint64_t)d->opt->seed + ((uint64_t)n << 32);

		ret = round_trip(&c, seed);
		if (!ret && validate_verdict_of(c.row) == VALIDATE_PASS)
			ret = both_ways(&c, seed);
	}
	for (int leg = 0; leg < NUM_LEGS; leg++) {
		validate_figure(d, c.row, figures[leg], c.gbps[leg].v, c.gbps[leg].num);
		if (c.gbps[leg].num)
			median[leg] = validate_median(c.gbps[leg].v, c.gbps[leg].num);
	}
	close_copies(&c);
	if (ret) {
		json_decref(c.row);
		return ret;
	}
	validate_set(c.row, validate_verdict_of(c.row), "%d times %lld MiB; to the device %.1f, on it %.0f, "
		     "back %.1f, both ways %.1f GB/s", n, (long long)(c.bytes >> 20), median[TO_DEVICE],
		     median[ON_DEVICE], median[TO_HOST], median[BOTH_WAYS]);
	return validate_report(d, c.row);
}

/* ---- launches ---- */

int validate_launches(struct validate_device *d, const struct validate_test *t, double seconds)
{
	double end = cairn_now() + seconds;
	struct validate_series us = { .num = 0 };
	uint64_t *memory;
	json_t *row;
	int ret = 0;

	if (!d->impl.stream)
		return validate_not_run(d, t, "the table has no operation stream");
	if (d->impl.mem_alloc((void **)&memory, 2 * CAIRN_STREAM_BLOCK))
		return validate_not_run(d, t, "the device gives no memory");
	for (int n = 0; !ret && (n < 32 || cairn_now() < end); n++) {
		struct cairn_stream_args a = { .size = sizeof(a), .dst = memory, .bytes = CAIRN_STREAM_BLOCK,
			.op = CAIRN_STREAM_WRITE };
		double begun = cairn_now();

		ret = d->impl.stream(&a, d->stream);
		ret = ret ? ret : d->impl.stream_sync(d->stream);
		/* the first launch loads the code */
		if (n)
			validate_series_add(&us, 1e6 * (cairn_now() - begun));
		ret = ret ? ret : validate_sync(d);
	}
	d->impl.mem_free(memory);
	CAIRN_TRY(ret);
	row = validate_row(t->name, t->required);
	validate_figure(d, row, "us", us.v, us.num);
	validate_set(row, VALIDATE_PASS, "%.1f us from a launch to its end, median of %d",
		     validate_median(us.v, us.num), us.calls);
	return validate_report(d, row);
}
