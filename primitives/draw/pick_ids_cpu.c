// SPDX-License-Identifier: Apache-2.0
/* pick_ids_cpu - one loop on one thread; for a few thousand ids, a parallel region does not pay off */
#include "primitives/base/error.h"
#include "primitives/draw/pick_ids.h"

int cairn_pick_ids_cpu(const struct cairn_pick_ids_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_pick_ids_check(a));
	for (int32_t i = 0; i < a->rows; i++) {
		int32_t from = a->from[i], id = a->host_ids ? a->host_ids[i] : -1;

		if (from >= 0)
			id = from < a->num_drawn ? a->drawn[from] : -1;
		a->ids[i] = id;
	}
	return 0;
}
