// SPDX-License-Identifier: Apache-2.0
/* stream_mutants - wrong versions of stream that the suite must catch */
#include "conformance/harness.h"
#include "primitives/machine/stream.h"

/* Leaves out the last block if it is short. */
static int last_block_skipped(const struct cairn_stream_args *a, void *stream)
{
	CAIRN_TRY(cairn_stream_ref(a, stream));
	if (a->op == CAIRN_STREAM_READ && a->bytes % CAIRN_STREAM_BLOCK)
		a->sum[a->bytes / CAIRN_STREAM_BLOCK] = 0;
	return 0;
}

static int sums_of_32_bits(const struct cairn_stream_args *a, void *stream)
{
	CAIRN_TRY(cairn_stream_ref(a, stream));
	for (int64_t b = 0; a->op == CAIRN_STREAM_READ && b < cairn_stream_num_blocks(a->bytes); b++)
		a->sum[b] &= 0xffffffffu;
	return 0;
}

static int copies_whole_blocks(const struct cairn_stream_args *a, void *stream)
{
	struct cairn_stream_args b = *a;

	CAIRN_TRY(cairn_stream_check(a));
	b.size = sizeof(b);
	if (b.op == CAIRN_STREAM_COPY && b.bytes > CAIRN_STREAM_BLOCK)
		b.bytes -= b.bytes % CAIRN_STREAM_BLOCK;
	return cairn_stream_ref(&b, stream);
}

static int seed_ignored(const struct cairn_stream_args *a, void *stream)
{
	struct cairn_stream_args b = *a;

	CAIRN_TRY(cairn_stream_check(a));
	b.size = sizeof(b);
	b.seed = 0;
	return cairn_stream_ref(&b, stream);
}

/* Past 2^32 bytes, reads from the beginning of src and writes to the beginning of dst. */
static int offset_32_bits(const struct cairn_stream_args *a, void *stream)
{
	const int64_t most = (int64_t)1 << 32;
	struct cairn_stream_args b = *a;

	b.size = sizeof(b);
	if (cairn_stream_check(a) || a->bytes <= most)
		return cairn_stream_ref(a, stream);
	b.bytes = most;
	CAIRN_TRY(cairn_stream_cpu(&b, stream));
	b.bytes = a->bytes - most;
	if (a->op == CAIRN_STREAM_READ)
		b.sum = a->sum + cairn_stream_num_blocks(most);
	return cairn_stream_cpu(&b, stream);
}

/* Writes the pattern instead of adding it. */
static int add_overwrites(const struct cairn_stream_args *a, void *stream)
{
	struct cairn_stream_args b = *a;

	CAIRN_TRY(cairn_stream_check(a));
	b.size = sizeof(b);
	if (b.op == CAIRN_STREAM_ADD)
		b.op = CAIRN_STREAM_WRITE;
	return cairn_stream_ref(&b, stream);
}

/* Adds the halves of a word apart, as an addition of 32 bits does, which loses the carry. */
static int add_of_32_bits(const struct cairn_stream_args *a, void *stream)
{
	uint64_t *dst = a->dst;

	CAIRN_TRY(cairn_stream_check(a));
	if (a->op != CAIRN_STREAM_ADD)
		return cairn_stream_ref(a, stream);
	for (int64_t i = 0; i < a->bytes / 8; i++) {
		uint64_t more = (a->seed + (uint64_t)i) * CAIRN_STREAM_MULT;
		uint32_t low = (uint32_t)dst[i] + (uint32_t)more;

		dst[i] = ((dst[i] >> 32) + (more >> 32)) << 32 | low;
	}
	return 0;
}

#define STREAM(name, fn, what)	{ "stream_" name, offsetof(struct cairn_impl, stream), (void *)fn, what }

const struct cairn_mutant cairn_stream_mutants[] = {
	STREAM("last_block", last_block_skipped, "the short last block is not read"),
	STREAM("sums_of_32_bits", sums_of_32_bits, "sums are truncated to 32 bits"),
	STREAM("whole_blocks", copies_whole_blocks, "a copy stops at the last whole block"),
	STREAM("offset_32_bits", offset_32_bits, "offsets are cut to 32 bits"),
	STREAM("add_overwrites", add_overwrites, "an addition forgets the old value"),
	STREAM("add_of_32_bits", add_of_32_bits, "the halves of a word are added apart"),
	STREAM("seed_ignored", seed_ignored, "the pattern does not depend on the seed"),
	{ 0 }
};
