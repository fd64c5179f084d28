// SPDX-License-Identifier: Apache-2.0
/* attn_plan_mutants - wrong planners of attn_bsr that the cases must catch; attn_bsr_test.c has the cases */
#include <errno.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/bsr/attn_bsr.h"

/* Sorts the first list of each part in place, in the caller's array. */
static int attn_plan_sorts_lists(const struct cairn_attn_bsr_args *a, void *stream)
{
	(void)stream;
	for (int i = 0; i < a->num_parts; i++) {
		int32_t *ids = (int32_t *)(uintptr_t)a->part[i].blk_indices;
		int32_t first = a->part[i].blk_indptr[0];
		int32_t end = a->part[i].rows ? a->part[i].blk_indptr[1] : 0;

		for (int32_t k = first + 1; k < end; k++) {
			int32_t id = ids[k], at = k;

			for (; at > first && ids[at - 1] > id; at--)
				ids[at] = ids[at - 1];
			ids[at] = id;
		}
	}
	return cairn_attn_bsr_check(a);
}

static int attn_plan_fails_for_parts(const struct cairn_attn_bsr_args *a, void *stream)
{
	(void)stream;
	return a->num_parts > 1 ? -EINVAL : cairn_attn_bsr_check(a);
}

static int attn_plan_refuses_no_lse(const struct cairn_attn_bsr_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_attn_bsr_check(a));
	return a->lse ? 0 : -EINVAL;
}

static int attn_plan_writes_out(const struct cairn_attn_bsr_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_attn_bsr_check(a));
	if (a->nnz_qo)
		memset(a->out, 0, 2);
	return 0;
}

const struct cairn_mutant cairn_attn_plan_mutants[] = {
	{ "attn_plan_sorts_lists", offsetof(struct cairn_impl, attn_plan), (void *)attn_plan_sorts_lists,
	  "the plan sorts a list where the caller wrote it" },
	{ "attn_plan_fails_for_parts", offsetof(struct cairn_impl, attn_plan),
	  (void *)attn_plan_fails_for_parts, "a call of several parts is refused" },
	{ "attn_plan_refuses_no_lse", offsetof(struct cairn_impl, attn_plan),
	  (void *)attn_plan_refuses_no_lse, "a call without lse is refused" },
	{ "attn_plan_writes_out", offsetof(struct cairn_impl, attn_plan), (void *)attn_plan_writes_out,
	  "the plan clears the first element of out" },
	{ 0 }
};
