// SPDX-License-Identifier: Apache-2.0
/* pick_ids_ref - the reference; a copy has no rounding error, so every bound is 0 */
#include "primitives/draw/pick_ids.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int32_t pick(const struct cairn_pick_ids_args *a, int32_t i)
{
	int32_t from = a->from[i];

	if (from >= a->num_drawn)
		return -1;
	if (from >= 0)
		return a->drawn[from];
	return a->host_ids ? a->host_ids[i] : -1;
}

int cairn_pick_ids_exact(const struct cairn_pick_ids_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_pick_ids_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		exact->val[i] = pick(a, i);
		exact->bound[i] = 0;
	}
	return 0;
}

int cairn_pick_ids_ref(const struct cairn_pick_ids_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_pick_ids_check(a));
	for (int32_t i = 0; i < a->rows; i++)
		a->ids[i] = pick(a, i);
	return 0;
}
