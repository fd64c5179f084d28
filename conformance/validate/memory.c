// SPDX-License-Identifier: Apache-2.0
/*
 * memory - writes patterns to device memory and to the L2, and reads them back
 *
 * stream sums blocks of 4 KiB. The sum of a block of a known pattern has a closed form, so the host compares
 * sums and names the bad block; the block itself then tells the words and bits.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/rates.h"
#include "conformance/validate/validate.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

enum { MAX_CHUNKS = 256, MAX_NAMED = 8, WORDS = CAIRN_STREAM_BLOCK / 8 };
#define CHUNK_BYTES	((int64_t)1 << 30)
#define HOST_BYTES	((int64_t)4 << 20)

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
	free(m->sum);
}

/* Takes chunks until `most` bytes, or until the device has no more. */
static int open_memory(struct memory *m, struct validate_device *d, json_t *row, int64_t chunk, int64_t most)
{
	size_t sums = (size_t)cairn_stream_num_blocks(chunk) * 8;

	memset(m, 0, sizeof(*m));
	m->d = d;
	m->row = row;
	m->chunk_bytes = chunk;
	m->sum = malloc(sums);
	if (!m->sum || d->impl.mem_alloc((void **)&m->device_sum, sums)) {
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

/* Patterns: 0 to 3 repeat a byte, the others are those of stream's WRITE, which differ in each word. */
enum { NUM_PATTERNS = 6 };
static const int pattern_bytes[] = { 0x55, 0xaa, 0x00, 0xff };

static uint64_t seed_of(const struct memory *m, int pattern, int chunk)
{
	uint64_t seed = (uint64_t)m->d->opt->seed + ((uint64_t)chunk << 40);

	return pattern % 2 ? ~seed : seed;
}

static uint64_t word_of(const struct memory *m, int pattern, int chunk, int64_t i)
{
	if (pattern < 4)
		return (uint64_t)pattern_bytes[pattern] * 0x0101010101010101ull;
	return (seed_of(m, pattern, chunk) + (uint64_t)i) * CAIRN_STREAM_MULT;
}

static uint64_t block_sum(const struct memory *m, int pattern, int chunk, int64_t block)
{
	uint64_t first = seed_of(m, pattern, chunk) + (uint64_t)block * WORDS;

	if (pattern < 4)
		return word_of(m, pattern, chunk, 0) * WORDS;
	return (first * WORDS + (uint64_t)WORDS * (WORDS - 1) / 2) * CAIRN_STREAM_MULT;
}

static int write_chunk(struct memory *m, int pattern, int chunk)
{
	struct cairn_stream_args a = { .size = sizeof(a), .dst = m->chunks[chunk], .bytes = m->chunk_bytes,
		.seed = seed_of(m, pattern, chunk), .op = CAIRN_STREAM_WRITE };

	if (pattern < 4)
		return m->d->impl.mem_set(m->chunks[chunk], pattern_bytes[pattern], (size_t)m->chunk_bytes,
					  m->d->stream);
	return m->d->impl.stream(&a, m->d->stream);
}

/* Names the first wrong word of a block. */
static int name_block(struct memory *m, int pattern, int chunk, int64_t block)
{
	uint64_t words[WORDS];
	int64_t at = block * CAIRN_STREAM_BLOCK;
	int wrong = -1;

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
				 "wrong, pattern %d", chunk, (long long)(at + 8 * wrong),
				 (unsigned long long)(words[wrong] ^
						      word_of(m, pattern, chunk,
							      block * WORDS + wrong)), pattern);
	return 0;
}

static int read_chunk(struct memory *m, int pattern, int chunk)
{
	int64_t blocks = cairn_stream_num_blocks(m->chunk_bytes);
	struct cairn_stream_args a = { .size = sizeof(a), .sum = m->device_sum, .src = m->chunks[chunk],
		.bytes = m->chunk_bytes, .op = CAIRN_STREAM_READ };
	double begun;

	CAIRN_TRY(validate_sync(m->d));
	begun = cairn_now();
	CAIRN_TRY(m->d->impl.stream(&a, m->d->stream));
	CAIRN_TRY(validate_sync(m->d));
	validate_series_add(&m->gbps, (double)m->chunk_bytes * 1e-9 / (cairn_now() - begun));
	CAIRN_TRY(m->d->impl.mem_copy(m->sum, m->device_sum, (size_t)blocks * 8, CAIRN_COPY_TO_HOST,
				      m->d->stream));
	CAIRN_TRY(validate_sync(m->d));
	for (int64_t b = 0; b < blocks; b++)
		if (m->sum[b] != block_sum(m, pattern, chunk, b))
			CAIRN_TRY(name_block(m, pattern, chunk, b));
	return 0;
}

static int run_patterns(struct memory *m, double seconds, int *passes)
{
	double end = cairn_now() + seconds;

	for (int n = 0; n < NUM_PATTERNS || cairn_now() < end; n++) {
		for (int c = 0; c < m->num_chunks; c++)
			CAIRN_TRY(write_chunk(m, n % NUM_PATTERNS, c));
		for (int c = 0; c < m->num_chunks; c++)
			CAIRN_TRY(read_chunk(m, n % NUM_PATTERNS, c));
		++*passes;
	}
	return 0;
}

static int run_memory(struct validate_device *d, const struct validate_test *t, double seconds, int64_t chunk,
		      int64_t most)
{
	json_t *row = validate_row(t->name, t->required);
	struct memory m;
	int passes = 0, ret;

	if (open_memory(&m, d, row, chunk, most)) {
		json_decref(row);
		return validate_not_run(d, t, cairn_last_error());
	}
	ret = run_patterns(&m, seconds, &passes);
	if (m.named > MAX_NAMED)
		validate_finding(row, VALIDATE_FAIL, NULL, "%d further blocks are wrong",
				 m.named - MAX_NAMED);
	json_object_set_new(row, "bytes", json_integer(m.num_chunks * chunk));
	validate_figure(d, row, "gbps", m.gbps.v, m.gbps.num);
	json_object_set_new(row, "gbps", json_real(m.gbps.num ? validate_median(m.gbps.v, m.gbps.num) : 0));
	validate_set(row, validate_verdict_of(row), "%lld MiB, %d patterns, %.0f GB/s",
		     (long long)(m.num_chunks * chunk >> 20), passes,
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
	if (!d->impl.stream)
		return validate_not_run(d, t, "the table has no operation stream");
	if (d->on_host)
		return run_memory(d, t, seconds, HOST_BYTES, HOST_BYTES);
	return run_memory(d, t, seconds, CHUNK_BYTES, d->info.mem_bytes / 10 * 9);
}

int validate_cache(struct validate_device *d, const struct validate_test *t, double seconds)
{
	int64_t bytes = d->info.l2_bytes / 4 / CAIRN_STREAM_BLOCK * CAIRN_STREAM_BLOCK;

	if (!d->impl.stream)
		return validate_not_run(d, t, "the table has no operation stream");
	if (bytes <= 0)
		return validate_not_run(d, t, "the device does not tell the size of its L2");
	return run_memory(d, t, seconds, bytes < HOST_BYTES || !d->on_host ? bytes : HOST_BYTES / 4,
			  bytes < HOST_BYTES || !d->on_host ? bytes : HOST_BYTES / 4);
}
