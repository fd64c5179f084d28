// SPDX-License-Identifier: Apache-2.0
/*
 * batch_rows_test - checks that a request's result does not depend bitwise on the rest of the batch
 *
 * For cases of four families, the test runs the operation, replaces every row of x but one (decode_step:
 * every id but one), runs it again, and compares the result's row of the unchanged request bit by bit.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/op_case.h"
#include "conformance/tables/tables.h"
#include "fused/cluster_attn/cluster_attn.h"
#include "fused/latent/cluster_mla.h"
#include "fused/decode_step/decode_step.h"
#include "fused/moe/moe.h"

extern const struct cairn_family cairn_cluster_attn_family, cairn_cluster_mla_family, cairn_moe_family,
	cairn_decode_step_family;

struct rows {
	const struct cairn_family *family;
	size_t in, out, batch, kv;	/* offsets in the arguments; kv 0: every request has a result */
};

#define ROWS(op, i, o, b, ...) { \
	.family = &cairn_##op##_family, .in = offsetof(struct cairn_##op##_args, i), \
	.out = offsetof(struct cairn_##op##_args, o), .batch = offsetof(struct cairn_##op##_args, b), \
	__VA_ARGS__ }
#define PAGED(op, i, o) ROWS(op, i, o, kv.batch, .kv = offsetof(struct cairn_##op##_args, kv))

static const struct rows attn_rows = PAGED(cluster_attn, x, out);
static const struct rows mla_rows = PAGED(cluster_mla, x, out);
static const struct rows moe_rows = ROWS(moe, x, out, batch);
static const struct rows step_rows = PAGED(decode_step, ids, logits);

/* Returns the index of the buffer of the argument at offset `field`, which may alias another argument. */
static int buffer_of(const struct cairn_op *op, size_t field)
{
	for (int i = 0; i < op->num_alias; i++)
		if (op->alias[i].field == field)
			field = op->alias[i].same_as;
	for (int i = 0; i < op->num_bufs; i++)
		if (op->bufs[i].field == field)
			return i;
	return -1;
}

static int has_key(const struct rows *r, const struct cairn_op *op, int b)
{
	return !r->kv || cairn_kv_len((const void *)((const char *)op->args + r->kv), b) > 0;
}

/* Runs the operation and copies row `row` of the result, of `bytes` bytes, to `to`. */
static int row_of(const struct rows *r, const struct cairn_op *op, const struct cairn_impl *impl,
		  void *stream, int row, size_t bytes, void *to)
{
	struct cairn_side side;
	int ret;

	CAIRN_TRY(cairn_side_open(&side, r->family, op, impl, stream));
	ret = cairn_side_call(&side, r->family);
	if (!ret)
		ret = impl->mem_copy(to, side.base[buffer_of(op, r->out)] + CAIRN_CANARY + row * bytes, bytes,
				     CAIRN_COPY_TO_HOST, stream);
	if (!ret)
		ret = impl->stream_sync(stream);
	cairn_side_close(&side, op);
	return ret;
}

/* Replaces every row of x, or every id, except row `keep`. */
static void change_others(struct cairn_op *op, struct cairn_buf *in, int batch, int keep)
{
	int64_t n = in->count / batch;
	size_t bytes = in->bytes / (size_t)batch;

	for (int b = 0; b < batch; b++) {
		char *row = (char *)in->base + CAIRN_CANARY + b * bytes;
		int32_t id;

		if (b == keep)
			continue;
		if (in->dtype != CAIRN_I32) {
			cairn_fill(op, row, in->dtype, n, 0.5);
			continue;
		}
		memcpy(&id, row, sizeof(id));
		id ^= 1;			/* vocabularies are multiples of 8 */
		memcpy(row, &id, sizeof(id));
	}
}

static void one_case(struct cairn_test *t, const struct rows *r, const struct cairn_impl *impl,
		     void *stream, int index, const char *name, int *compared)
{
	struct cairn_op op;
	int batch, keep, in, out, ret;
	char *before, *after;
	size_t bytes;

	if (!EXPECT(t, cairn_op_open(&op, r->family, index, CAIRN_KIND_NORMAL, cairn_rand(t)) == 0))
		return;
	batch = *(const int32_t *)((const char *)op.args + r->batch);
	in = buffer_of(&op, r->in);
	out = buffer_of(&op, r->out);
	keep = batch ? (int)(cairn_rand(t) % (uint64_t)batch) : 0;
	if (batch < 2 || !has_key(r, &op, keep) || !EXPECT(t, in >= 0 && out >= 0)) {
		cairn_op_close(&op);
		return;
	}
	bytes = op.bufs[out].bytes / (size_t)batch;
	before = malloc(bytes);
	after = malloc(bytes);
	ret = row_of(r, &op, impl, stream, keep, bytes, before);
	if (ret != -EOPNOTSUPP) {
		change_others(&op, &op.bufs[in], batch, keep);
		if (!ret)
			ret = row_of(r, &op, impl, stream, keep, bytes, after);
		if (!EXPECT(t, ret == 0))
			cairn_note(t, "%s: %s", name, cairn_impl_error(impl));
		else if (!EXPECT(t, !memcmp(before, after, bytes)))
			cairn_note(t, "%s: row %d of %d", name, keep, batch);
		++*compared;
	}
	free(after);
	free(before);
	cairn_op_close(&op);
}

/* Tests every `step`th case of a family on the table. */
static void cases(struct cairn_test *t, const struct rows *r, const char *table, int step)
{
	struct cairn_impl impl;
	int compared = 0;
	void *stream;

	if (cairn_impl_open(table, &impl) || cairn_impl_start(&impl, 0)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	if (!EXPECT(t, impl.stream_create(&stream) == 0))
		return;
	for (int i = 0; i < r->family->num_cases; i += step) {
		struct cairn_case c = { .kinds = 0 };

		r->family->describe(i, &c);
		if (!c.device_only)
			one_case(t, r, &impl, stream, i, c.name, &compared);
	}
	EXPECT(t, compared >= 10);
	impl.stream_destroy(stream);
}

#define UNIT(op, table, step) \
	static void op##_##table(struct cairn_test *t) \
	{ \
		cases(t, &op##_rows, #table, step); \
	}
UNIT(attn, cpu, 3)
UNIT(attn, cuda, 1)
UNIT(mla, cpu, 3)
UNIT(mla, cuda, 1)
UNIT(moe, cpu, 3)
UNIT(moe, cuda, 1)
UNIT(step, cpu, 3)
UNIT(step, cuda, 1)

static const struct cairn_unit units[] = {
	{ "cluster_attn_cpu", attn_cpu }, { "cluster_attn_cuda", attn_cuda },
	{ "cluster_mla_cpu", mla_cpu }, { "cluster_mla_cuda", mla_cuda },
	{ "moe_cpu", moe_cpu }, { "moe_cuda", moe_cuda },
	{ "decode_step_cpu", step_cpu }, { "decode_step_cuda", step_cuda },
};

const struct cairn_family cairn_batch_rows_family = {
	.stage = "fused", .name = "batch_rows", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 14,
};
