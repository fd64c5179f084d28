// SPDX-License-Identifier: Apache-2.0
/*
 * memory - writes patterns to device memory and to the L2, and reads them back
 *
 * Patterns are halves and walking bits, words that tell their address, and such words after atomic additions.
 * The words and their inverses are read back only after some seconds. stream sums blocks of 4 KiB. The sum of
 * a block of a known pattern has a closed form, so the host compares sums and names the bad block; the block
 * itself then tells the words and bits.
 */
#include <string.h>
#include <unistd.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/rates.h"
#include "conformance/validate/validate.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

enum { MAX_CHUNKS = 256, MAX_NAMED = 8, WORDS = CAIRN_STREAM_BLOCK / 8 };
#define CHUNK_BYTES	((int64_t)1 << 30)
#define HOST_BYTES	((int64_t)4 << 20)
#define HOLD_SHARE	(5.0 / 15)	/* share of the test's time, for each of two waits; 5 s in a turn */
#define ADD_SEED	0x5bd1e995ull

struct memory {
	struct validate_device *d;
	json_t *row;
	char *chunks[MAX_CHUNKS];
	int num_chunks, named;
	int64_t chunk_bytes;
	uint64_t *device_sum, *sum;	/* of the blocks of a chunk */
	struct validate_series gbps;	/* of the reads */
};

static void close_memory(struct memory *m)
{
	for (int i = 0; i < m->num_chunks; i++)
		m->d->impl.mem_free(m->chunks[i]);
	if (m->device_sum)
		m->d->impl.mem_free(m->device_sum);
	if (m->sum)
		m->d->impl.host_free(m->sum);
}

/* Takes chunks until `most` bytes, or until the device has no more. */
static int open_memory(struct memory *m, struct validate_device *d, json_t *row, int64_t chunk, int64_t most)
{
	size_t sums = (size_t)cairn_stream_num_blocks(chunk) * 8;

	memset(m, 0, sizeof(*m));
	m->d = d;
	m->row = row;
	m->chunk_bytes = chunk;
	if (d->impl.host_alloc((void **)&m->sum, sums) ||
	    d->impl.mem_alloc((void **)&m->device_sum, sums)) {
		close_memory(m);
		return cairn_error(ENOMEM, "no memory for the sums of %lld bytes", (long long)chunk);
	}
	while (m->num_chunks < MAX_CHUNKS && (m->num_chunks + 1) * chunk <= most &&
	       !d->impl.mem_alloc((void **)&m->chunks[m->num_chunks], (size_t)chunk))
		m->num_chunks++;
	if (m->num_chunks)
		return 0;
	close_memory(m);
	return cairn_error(ENOMEM, "the device gives no buffer of %lld bytes", (long long)chunk);
}

/*
 * Patterns of one repeated byte: half of the bits set, none, all, then a walking one and a walking zero. In
 * the other patterns every word differs: stream writes them from a seed (ADDRESS) or from its complement
 * (INVERSE), or adds a second sequence to the first (ADDED).
 */
static const uint8_t byte_patterns[] = {
	0x55, 0xaa, 0x00, 0xff, 0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80,
	0xfe, 0xfd, 0xfb, 0xf7, 0xef, 0xdf, 0xbf, 0x7f
};
enum { ADDRESS, INVERSE, ADDED, BYTES, NUM_PATTERNS = BYTES + sizeof(byte_patterns) };

static void name_of(int pattern, char name[16])
{
	static const char *const names[BYTES] = { "address", "inverse", "atomic" };

	if (pattern < BYTES)
		snprintf(name, 16, "%s", names[pattern]);
	else
		snprintf(name, 16, "0x%02x", byte_patterns[pattern - BYTES]);
}

static uint64_t seed_of(const struct memory *m, int pattern, int chunk)
{
	uint64_t seed = (uint64_t)m->d->opt->seed + ((uint64_t)chunk << 40);

	return pattern == INVERSE ? ~seed : seed;
}

static uint64_t word_of(const struct memory *m, int pattern, int chunk, int64_t i)
{
	uint64_t seed = seed_of(m, pattern, chunk);

	if (pattern >= BYTES)
		return byte_patterns[pattern - BYTES] * 0x0101010101010101ull;
	if (pattern == ADDED)
		return (seed + ADD_SEED + 2 * (uint64_t)i) * CAIRN_STREAM_MULT;
	return (seed + (uint64_t)i) * CAIRN_STREAM_MULT;
}

static uint64_t block_sum(const struct memory *m, int pattern, int chunk, int64_t block)
{
	if (pattern >= BYTES)
		return word_of(m, pattern, chunk, 0) * WORDS;
	return validate_block_sum(seed_of(m, pattern, chunk), block) +
	       (pattern == ADDED ? validate_block_sum(ADD_SEED, block) : 0);
}

static int write_chunk(struct memory *m, int pattern, int chunk)
{
	struct cairn_stream_args a = { .size = sizeof(a), .dst = m->chunks[chunk], .bytes = m->chunk_bytes,
		.seed = seed_of(m, pattern, chunk), .op = CAIRN_STREAM_WRITE };

	if (pattern >= BYTES)
		return m->d->impl.mem_set(m->chunks[chunk], byte_patterns[pattern - BYTES],
					  (size_t)m->chunk_bytes, m->d->stream);
	CAIRN_TRY(m->d->impl.stream(&a, m->d->stream));
	if (pattern != ADDED)
		return 0;
	a.op = CAIRN_STREAM_ADD;
	a.seed = ADD_SEED;
	return m->d->impl.stream(&a, m->d->stream);
}

/* Returns whether the table has the atomic ADD, which plug-ins of old versions lack. */
static int has_add(struct memory *m)
{
	struct cairn_stream_args a = { .size = sizeof(a), .dst = m->device_sum, .bytes = 16,
		.op = CAIRN_STREAM_ADD };
	int ret = m->d->impl.stream(&a, m->d->stream);

	return ret != -EINVAL && ret != -EOPNOTSUPP;
}

/* Names the first wrong word of a block. */
static int name_block(struct memory *m, int pattern, int chunk, int64_t block)
{
	uint64_t words[WORDS];
	char name[16];
	int64_t at = block * CAIRN_STREAM_BLOCK;
	int wrong = -1;

	name_of(pattern, name);
	if (m->named++ >= MAX_NAMED)
		return 0;
	CAIRN_TRY(m->d->impl.mem_copy(words, m->chunks[chunk] + at, sizeof(words), CAIRN_COPY_TO_HOST,
				      m->d->stream));
	CAIRN_TRY(validate_sync(m->d));
	for (int i = WORDS - 1; i >= 0; i--)
		if (words[i] != word_of(m, pattern, chunk, block * WORDS + i))
			wrong = i;
	if (wrong < 0)
		validate_finding(m->row, VALIDATE_FAIL, NULL,
				 "buffer %d, block at byte %lld: the sum was wrong once; "
				 "read again, all words are right", chunk, (long long)at);
	else
		validate_finding(m->row, VALIDATE_FAIL, NULL,
				 "buffer %d, byte %lld: bits %016llx of the word are "
				 "wrong, pattern %s", chunk, (long long)(at + 8 * wrong),
				 (unsigned long long)(words[wrong] ^
						      word_of(m, pattern, chunk,
							      block * WORDS + wrong)), name);
	return 0;
}

static int read_chunk(struct memory *m, int pattern, int chunk)
{
	int64_t blocks = cairn_stream_num_blocks(m->chunk_bytes);
	struct cairn_stream_args a = { .size = sizeof(a), .sum = m->device_sum, .src = m->chunks[chunk],
		.bytes = m->chunk_bytes, .op = CAIRN_STREAM_READ };
	/* in every pattern, the sums of consecutive blocks differ by a constant */
	uint64_t want = block_sum(m, pattern, chunk, 0), step = block_sum(m, pattern, chunk, 1) - want;
	double begun;

	CAIRN_TRY(validate_sync(m->d));
	begun = cairn_now();
	CAIRN_TRY(m->d->impl.stream(&a, m->d->stream));
	CAIRN_TRY(validate_sync(m->d));
	validate_series_add(&m->gbps, (double)m->chunk_bytes * 1e-9 / (cairn_now() - begun));
	CAIRN_TRY(m->d->impl.mem_copy(m->sum, m->device_sum, (size_t)blocks * 8, CAIRN_COPY_TO_HOST,
				      m->d->stream));
	CAIRN_TRY(validate_sync(m->d));
	for (int64_t b = 0; b < blocks; b++, want += step)
		if (m->sum[b] != want)
			CAIRN_TRY(name_block(m, pattern, chunk, b));
	return 0;
}

/* Leaves the memory alone for a while; the driver's counters are sampled. */
static int hold(struct memory *m, double seconds)
{
	double end = cairn_now() + seconds;

	for (double left = seconds; left > 0; left = end - cairn_now()) {
		usleep((useconds_t)(1e6 * (left < 0.1 ? left : 0.1)));
		CAIRN_TRY(validate_sync(m->d));
	}
	return 0;
}

/*
 * The first pattern and its inverse are read only after hold_s, because cells that lose their charge need
 * time for it, and a bit that is lost shows in one of the two.
 */
static int run_patterns(struct memory *m, double seconds, double hold_s, int *passes)
{
	double end = cairn_now() + seconds;
	int adds = has_add(m);

	for (int n = 0; n < NUM_PATTERNS || cairn_now() < end; n++) {
		int pattern = n % NUM_PATTERNS;

		if (pattern == ADDED && !adds)
			continue;
		for (int c = 0; c < m->num_chunks; c++)
			CAIRN_TRY(write_chunk(m, pattern, c));
		CAIRN_TRY(validate_sync(m->d));
		if (n < BYTES && pattern != ADDED)
			CAIRN_TRY(hold(m, hold_s));
		for (int c = 0; c < m->num_chunks; c++)
			CAIRN_TRY(read_chunk(m, pattern, c));
		++*passes;
	}
	return 0;
}

static int run_memory(struct validate_device *d, const struct validate_test *t, double seconds,
		      double hold_s, int64_t chunk, int64_t most)
{
	json_t *row = validate_row(t->name, t->required);
	char held[48] = "";
	struct memory m;
	int passes = 0, ret;

	if (open_memory(&m, d, row, chunk, most)) {
		json_decref(row);
		return validate_not_run(d, t, cairn_last_error());
	}
	ret = run_patterns(&m, seconds, hold_s, &passes);
	if (m.named > MAX_NAMED)
		validate_finding(row, VALIDATE_FAIL, NULL, "%d further blocks are wrong",
				 m.named - MAX_NAMED);
	json_object_set_new(row, "bytes", json_integer(m.num_chunks * chunk));
	json_object_set_new(row, "operations", json_real((double)passes * (double)(m.num_chunks * chunk)));
	json_object_set_new(row, "counts", json_string("byte read back"));
	json_object_set_new(row, "held_s", json_real(hold_s));
	validate_figure(d, row, "gbps", m.gbps.v, m.gbps.num);
	json_object_set_new(row, "gbps", json_real(m.gbps.num ? validate_median(m.gbps.v, m.gbps.num) : 0));
	if (hold_s > 0)
		snprintf(held, sizeof(held), ", two of them after %.1f s", hold_s);
	validate_set(row, validate_verdict_of(row), "%lld MiB, %d patterns%s, %.0f GB/s",
		     (long long)(m.num_chunks * chunk >> 20), passes, held,
		     json_real_value(json_object_get(row, "gbps")));
	close_memory(&m);
	if (ret) {
		json_decref(row);
		return ret;
	}
	return validate_report(d, row);
}

int validate_memory(struct validate_device *d, const struct validate_test *t, double seconds)
{
	double hold_s = seconds * HOLD_SHARE;

	if (!d->impl.stream)
		return validate_not_run(d, t, "the table has no operation stream");
	if (d->on_host)
		return run_memory(d, t, seconds, hold_s, HOST_BYTES, HOST_BYTES);
	return run_memory(d, t, seconds, hold_s, CHUNK_BYTES, d->info.mem_bytes / 10 * 9);
}

int validate_cache(struct validate_device *d, const struct validate_test *t, double seconds)
{
	int64_t bytes = d->info.l2_bytes / 4 / CAIRN_STREAM_BLOCK * CAIRN_STREAM_BLOCK;

	if (!d->impl.stream)
		return validate_not_run(d, t, "the table has no operation stream");
	if (bytes <= 0)
		return validate_not_run(d, t, "the device does not tell the size of its L2");
	return run_memory(d, t, seconds, 0, bytes < HOST_BYTES || !d->on_host ? bytes : HOST_BYTES / 4,
			  bytes < HOST_BYTES || !d->on_host ? bytes : HOST_BYTES / 4);
}
