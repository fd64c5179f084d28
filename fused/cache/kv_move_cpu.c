// SPDX-License-Identifier: Apache-2.0
/* kv_move_cpu - runs one memcpy for each layer and side of a move, distributed over threads */
#include "fused/cache/kv_move.h"

#include <string.h>

#include "primitives/base/error.h"

int cairn_kv_move_cpu(const struct cairn_kv_move_args *a, void *stream)
{
	int sides = a && a->v_offset ? 2 : 1;
	int64_t parts;

	(void)stream;
	CAIRN_TRY(cairn_kv_move_check(a));
	parts = (int64_t)a->num_moves * a->num_layers * sides;
	#pragma omp parallel for schedule(static) if (parts * a->page_bytes > 1 << 20)
	for (int64_t k = 0; k < parts; k++) {
		int32_t move = (int32_t)(k / sides / a->num_layers);
		int32_t layer = (int32_t)(k / sides % a->num_layers);
		int32_t place[2] = { a->from[move], a->to[move] };
		char *at[2];

		if (place[0] == place[1])
			continue;
		for (int j = 0; j < 2; j++) {
			if (place[j] >= 0)
				at[j] = (char *)a->base + layer * a->layer_bytes + k % sides * a->v_offset +
					place[j] * a->page_bytes;
			else
				at[j] = (char *)a->slots + (~(int64_t)place[j] * a->num_layers * sides +
							    layer * sides + k % sides) * a->page_bytes;
		}
		memcpy(at[1], at[0], (size_t)a->page_bytes);
	}
	return 0;
}
