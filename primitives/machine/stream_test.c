// SPDX-License-Identifier: Apache-2.0
/*
 * stream_test - cases of stream.h, and the bench rows whose bandwidth is the ceiling for all other families
 *
 * All data are random 64-bit words and are compared for equality. Sizes lie around one block and around a
 * CTA's share, or are multiples of neither. A block that is skipped, read twice or added to its neighbour's
 * sum changes that sum by a random number.
 */
#include <stdio.h>

#include "conformance/harness.h"

#define FIELD(f)	offsetof(struct cairn_stream_args, f)
#define WORDS		(CAIRN_STREAM_BLOCK / 8)	/* words of a block */
#define FAR_BLOCKS	((1 << 20) + 8)			/* blocks of a case with offsets beyond 2^32 bytes */
#define FAR_BYTES	((int64_t)FAR_BLOCKS * CAIRN_STREAM_BLOCK)

static const struct {
	const char *name;
	int op;			/* enum cairn_stream_op */
	int64_t bytes;
	int bench, device_only;
} cases[] = {
	/* name, op, bytes, bench, device_only */
	{ "read_2m", CAIRN_STREAM_READ, 2 << 20, 1, 0 },
	{ "read_8m", CAIRN_STREAM_READ, 8 << 20, 1, 0 },
	{ "read_32m", CAIRN_STREAM_READ, 32 << 20, 1, 0 },
	{ "read_128m", CAIRN_STREAM_READ, 128 << 20, 1, 0 },
	{ "read_1g", CAIRN_STREAM_READ, 1 << 30, 1, 1 },
	{ "write_32m", CAIRN_STREAM_WRITE, 32 << 20, 1, 0 },
	{ "write_1g", CAIRN_STREAM_WRITE, 1 << 30, 1, 1 },
	{ "copy_32m", CAIRN_STREAM_COPY, 32 << 20, 1, 0 },
	{ "copy_1g", CAIRN_STREAM_COPY, 1 << 30, 1, 1 },
	{ "read_16b", CAIRN_STREAM_READ, 16, 0, 0 },
	{ "read_block_less_16", CAIRN_STREAM_READ, 4096 - 16, 0, 0 },
	{ "read_block", CAIRN_STREAM_READ, 4096, 0, 0 },
	{ "read_block_and_16", CAIRN_STREAM_READ, 4096 + 16, 0, 0 },
	{ "read_odd", CAIRN_STREAM_READ, 777 * 4096 + 528, 0, 0 },
	{ "read_3m_less_16", CAIRN_STREAM_READ, (3 << 20) - 16, 0, 0 },
	{ "write_16b", CAIRN_STREAM_WRITE, 16, 0, 0 },
	{ "write_block_and_16", CAIRN_STREAM_WRITE, 4096 + 16, 0, 0 },
	{ "write_odd", CAIRN_STREAM_WRITE, 777 * 4096 + 528, 0, 0 },
	{ "copy_16b", CAIRN_STREAM_COPY, 16, 0, 0 },
	{ "copy_block_and_16", CAIRN_STREAM_COPY, 4096 + 16, 0, 0 },
	{ "copy_odd", CAIRN_STREAM_COPY, 777 * 4096 + 528, 0, 0 },
	{ "add_16b", CAIRN_STREAM_ADD, 16, 0, 0 },
	{ "add_odd", CAIRN_STREAM_ADD, 777 * 4096 + 528, 0, 0 },
	{ "read_past_4g", CAIRN_STREAM_READ, FAR_BYTES, 0, 0 },
	{ "write_past_4g", CAIRN_STREAM_WRITE, FAR_BYTES, 0, 0 },
	{ "copy_past_4g", CAIRN_STREAM_COPY, FAR_BYTES, 0, 0 },
};

static void describe(int i, struct cairn_case *c)
{
	snprintf(c->name, sizeof(c->name), "%s", cases[i].name);
	c->bench = cases[i].bench;
	c->device_only = cases[i].device_only;
	c->far = cases[i].bytes == FAR_BYTES;
	c->ceiling = c->bench && cases[i].op == CAIRN_STREAM_READ && cases[i].bytes >= 128 << 20;
	c->bytes = (double)cases[i].bytes * (cases[i].op == CAIRN_STREAM_COPY ? 2 : 1);
}

static uint64_t next_word(uint64_t x)
{
	return (x ^ (x >> 29)) * CAIRN_STREAM_MULT + 1;
}

/* Only some blocks are judged; all others are idle. */
static void setup_far(struct cairn_op *op, int what, uint64_t x)
{
	uint64_t *src;
	int32_t block;

	if (what == CAIRN_STREAM_READ) {
		cairn_out_rows(op, FIELD(sum), CAIRN_I64, FAR_BLOCKS, 1);
	} else {
		cairn_out_rows(op, FIELD(dst), CAIRN_I64, FAR_BLOCKS, WORDS);
		cairn_shape(op, FIELD(dst), { "block", FAR_BLOCKS }, { "word", WORDS });
	}
	if (what == CAIRN_STREAM_WRITE)
		return;
	src = cairn_in_rows(op, FIELD(src), CAIRN_I64, FAR_BLOCKS, WORDS, 0);
	for (int i = 0; (block = cairn_far_row(FAR_BLOCKS, i)) >= 0; i++)
		for (int k = 0; k < WORDS; k++)
			src[(int64_t)block * WORDS + k] = x = next_word(x);
}

/* Returns word i of dst before an ADD. */
static uint64_t before_add(const struct cairn_stream_args *a, int64_t i)
{
	return next_word(a->seed + 3 * (uint64_t)i);
}

static void setup(struct cairn_op *op)
{
	struct cairn_stream_args *a = op->args;
	uint64_t *src, x = cairn_op_rand(op);

	a->op = cases[op->case_index].op;
	a->bytes = cases[op->case_index].bytes;
	a->seed = x;
	if (a->bytes == FAR_BYTES) {
		setup_far(op, a->op, x);
		return;
	}
	if (a->op == CAIRN_STREAM_READ) {
		int64_t blocks = cairn_stream_num_blocks(a->bytes);

		cairn_out(op, FIELD(sum), CAIRN_I64, blocks);
		cairn_shape(op, FIELD(sum), { "block", blocks });
	} else if (a->op == CAIRN_STREAM_ADD) {
		uint64_t *dst = cairn_inout(op, FIELD(dst), CAIRN_I64, a->bytes / 8);

		for (int64_t i = 0; i < a->bytes / 8; i++)
			dst[i] = before_add(a, i);
		cairn_shape(op, FIELD(dst), { "word", a->bytes / 8 });
		return;
	} else {
		cairn_out(op, FIELD(dst), CAIRN_I64, a->bytes / 8);
		cairn_shape(op, FIELD(dst), { "word", a->bytes / 8 });
	}
	if (a->op == CAIRN_STREAM_WRITE)
		return;
	src = cairn_in(op, FIELD(src), CAIRN_I64, a->bytes / 8);
	for (int64_t i = 0; i < a->bytes / 8; i++)
		src[i] = x = next_word(x);
}

struct moved {
	const struct cairn_stream_args *want, *got;
};

/* Judges word i of dst, or the sum of block i. */
static int is_bad(const void *arg, int64_t i, char *why, size_t why_len)
{
	const struct moved *m = arg;
	const struct cairn_stream_args *want = m->want;
	const uint64_t *src = want->src;
	uint64_t expect = 0, value;

	if (want->op == CAIRN_STREAM_READ) {
		int64_t end = (i + 1) * WORDS;

		end = end > want->bytes / 8 ? want->bytes / 8 : end;
		for (int64_t k = i * WORDS; k < end; k++)
			expect += src[k];
		value = m->got->sum[i];
	} else {
		expect = want->op == CAIRN_STREAM_COPY ? src[i] :
			 (want->seed + (uint64_t)i) * CAIRN_STREAM_MULT;
		if (want->op == CAIRN_STREAM_ADD)
			expect += before_add(want, i);
		value = ((const uint64_t *)m->got->dst)[i];
	}
	if (why)
		snprintf(why, why_len, "got %016llx, want %016llx", (unsigned long long)value,
			 (unsigned long long)expect);
	return value != expect;
}

static int judge(const struct cairn_op *op, const void *got, char *why, size_t why_len)
{
	const struct moved m = { op->args, got };

	size_t field = m.want->op == CAIRN_STREAM_READ ? FIELD(sum) :
		       FIELD(dst);

	return cairn_judge_each(op, field, is_bad, &m, why, why_len);
}

/* Case 0 is a READ. */
static const char *reject(void *args, int i, int *want)
{
	struct cairn_stream_args *a = args;

	*want = -EINVAL;
	switch (i) {
	case 0:
		a->op = 4;
		return "op_4";
	case 1:
		a->bytes = 0;
		return "bytes_0";
	case 2:
		a->bytes -= 8;
		return "bytes_not_16";
	case 3:
		a->sum = NULL;
		return "sum_null";
	case 4:
		a->src = NULL;
		return "src_null";
	case 5:
		a->op = CAIRN_STREAM_WRITE;
		return "dst_null";
	case 6:
		a->size = 8;
		return "old_struct";
	}
	return NULL;
}

const struct cairn_family cairn_stream_family = {
	.stage = "primitives",
	.name = "stream",
	.op = offsetof(struct cairn_impl, stream),
	.args_size = sizeof(struct cairn_stream_args),
	.num_cases = ARRAY_SIZE(cases),
	.describe = describe,
	.setup = setup,
	.judge = judge,
	.reject = reject,
	.cost_s = 4,
};
