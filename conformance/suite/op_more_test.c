// SPDX-License-Identifier: Apache-2.0
/* op_more_test - further calls of tables that have only a part of an operation */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/families.h"
#include "conformance/suite/op_case.h"
#include "conformance/tables/tables.h"
#include "fused/attention/paged/attn_paged.h"

static int attend_without_softcap(const struct cairn_attn_paged_args *a, void *stream)
{
	return a->softcap > 0 ? cairn_error(EOPNOTSUPP, "attn_paged: softcap: must be 0") :
	       cairn_attn_paged_cpu(a, stream);
}

/* Returns the number of the first case without softcap that is called by a plan, or -1. */
static int plain_case(const struct cairn_family *f)
{
	for (int i = 0; i < f->num_cases; i++) {
		struct cairn_op op;
		int good;

		if (cairn_op_open(&op, f, i, CAIRN_KIND_NORMAL, 1))
			return -1;
		good = cairn_op_is_cheap(f, &op) &&
		       ((const struct cairn_attn_paged_args *)op.args)->softcap == 0;
		cairn_op_close(&op);
		if (good)
			return i;
	}
	return -1;
}

/* A plan may be made by a call with softcap, but not for a table that has none. */
static void plan_without_softcap(struct cairn_test *t)
{
	const struct cairn_family *const *f = cairn_families();
	struct cairn_outcome *o = calloc(1, sizeof(*o));
	struct cairn_expected expected = { 0 };
	struct cairn_impl table;
	struct cairn_op op;
	int i;

	if (!EXPECT(t, !cairn_impl_open("cpu", &table))) {
		free(o);
		return;
	}
	table.attn_paged = attend_without_softcap;
	while (*f && strcmp((*f)->name, "attn_paged"))
		f++;
	i = *f ? plain_case(*f) : -1;
	if (EXPECT(t, o && i >= 0 && !cairn_op_open(&op, *f, i, CAIRN_KIND_NORMAL, 1))) {
		cairn_op_verify(*f, &op, &table, NULL, &expected, o);
		if (!EXPECT(t, o->verdict == CAIRN_PASS))
			cairn_note(t, "%s", o->text);
		cairn_expected_free(&expected);
		cairn_op_close(&op);
	}
	free(o);
}

static const struct cairn_unit units[] = {
	{ "plan_without_softcap", plan_without_softcap },
};

const struct cairn_family cairn_op_more_family = {
	.stage = "conformance", .name = "op_more", .units = units, .num_units = ARRAY_SIZE(units),
};
