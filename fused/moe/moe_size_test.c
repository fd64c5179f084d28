// SPDX-License-Identifier: Apache-2.0
/*
 * moe_size_test - callers whose argument struct ends before the later members (moe.h)
 *
 * Such a call must give the same bits as one whose later members are 0, and must read nothing after the
 * struct. A struct that ends within the later members must be refused.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/guard.h"
#include "conformance/suite/op_case.h"
#include "conformance/tables/tables.h"
#include "fused/moe/moe_test.h"

extern const struct cairn_family cairn_moe_family;

struct call {
	struct cairn_impl impl;
	struct cairn_op op;
	struct cairn_side side;
	void *stream;
	const char *out;		/* in the table's memory */
	size_t bytes;
};

static int case_of(const char *name)
{
	for (int i = 0; i < cairn_moe_family.num_cases; i++) {
		struct cairn_case c = { .kinds = 0 };

		cairn_moe_family.describe(i, &c);
		if (!strcmp(c.name, name))
			return i;
	}
	return -1;
}

/*
 * Runs the case with a struct of `size` bytes, which ends at an inaccessible page; got receives out. -EFAULT:
 * the operation has read past the struct.
 */
static int run(struct call *c, size_t size, char *got)
{
	struct cairn_guard g = { 0 };
	int ret, stray;

	CAIRN_TRY(c->impl.mem_set((char *)c->out, 0x5a, c->bytes, c->stream));
	CAIRN_TRY(cairn_guard_open(&g, size, sizeof(size)));
	memcpy(g.data, c->side.args, size);
	memcpy(g.data, &size, sizeof(size));
	ret = c->impl.moe((const struct cairn_moe_args *)g.data, c->stream);
	stray = g.stray[0].at || g.stray[1].at;
	cairn_guard_close(&g);
	if (stray)
		return -EFAULT;
	CAIRN_TRY(c->impl.mem_copy(got, c->out, c->bytes, CAIRN_COPY_TO_HOST, c->stream));
	CAIRN_TRY(c->impl.stream_sync(c->stream));
	return ret;
}

static void compare(struct cairn_test *t, struct call *c)
{
	const size_t within = CAIRN_MOE_FIRST_BYTES + sizeof(void *);
	char *now = malloc(c->bytes), *old = malloc(c->bytes);

	if (!EXPECT(t, now && old) ||
	    !EXPECT(t, run(c, sizeof(struct cairn_moe_args), now) == 0) ||
	    !EXPECT(t, run(c, CAIRN_MOE_FIRST_BYTES, old) == 0))
		goto out;
	EXPECT(t, !memcmp(now, old, c->bytes));
	EXPECT(t, run(c, CAIRN_MOE_SECOND_BYTES, old) == 0 && !memcmp(now, old, c->bytes));
	EXPECT(t, run(c, CAIRN_MOE_THIRD_BYTES, old) == 0 && !memcmp(now, old, c->bytes));
	EXPECT(t, run(c, CAIRN_MOE_FOURTH_BYTES, old) == 0 && !memcmp(now, old, c->bytes));
	for (size_t i = 0; i < c->bytes; i++)
		if (now[i] != 0x5a)
			goto written;
	EXPECT(t, !"out was not written");
written:
	EXPECT(t, run(c, within, old) == -EINVAL);
	EXPECT(t, run(c, CAIRN_MOE_THIRD_BYTES + sizeof(void *), old) == -EINVAL);
	EXPECT(t, run(c, CAIRN_MOE_FIRST_BYTES - 1, old) == -EINVAL);
out:
	free(now);
	free(old);
}

static void older_callers(struct cairn_test *t, const char *table, const char *name)
{
	struct call c = { .bytes = 0 };
	int has_op, has_side = 0;

	if (cairn_impl_open(table, &c.impl) || cairn_impl_start(&c.impl, 0)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	has_op = !cairn_op_open(&c.op, &cairn_moe_family, case_of(name), CAIRN_KIND_NORMAL, cairn_rand(t));
	if (!EXPECT(t, has_op) || !EXPECT(t, c.impl.stream_create(&c.stream) == 0))
		goto out;
	has_side = !cairn_side_open(&c.side, &cairn_moe_family, &c.op, &c.impl, c.stream);
	if (!EXPECT(t, has_side) || !EXPECT(t, c.impl.stream_sync(c.stream) == 0))
		goto out;
	for (int i = 0; i < c.op.num_bufs; i++) {
		if (c.op.bufs[i].field != MOE_FIELD(out))
			continue;
		c.out = (const char *)c.side.base[i] + CAIRN_CANARY;
		c.bytes = c.op.bufs[i].bytes;
	}
	if (EXPECT(t, c.bytes > 0))
		compare(t, &c);
out:
	if (has_side)
		cairn_side_close(&c.side, &c.op);
	if (c.stream)
		c.impl.stream_destroy(c.stream);
	if (has_op)
		cairn_op_close(&c.op);
}

#define ON(table) \
	static void few_##table(struct cairn_test *t) { older_callers(t, #table, "mixtral_like"); } \
	static void many_##table(struct cairn_test *t) { older_callers(t, #table, "rows_9"); }
ON(ref)
ON(cpu)
ON(cuda)

static const struct cairn_unit units[] = {
	{ "few_ref", few_ref }, { "many_ref", many_ref }, { "few_cpu", few_cpu }, { "many_cpu", many_cpu },
	{ "few_cuda", few_cuda }, { "many_cuda", many_cuda },
};

const struct cairn_family cairn_moe_size_family = {
	.stage = "fused", .name = "moe_size", .units = units, .num_units = ARRAY_SIZE(units),
};
