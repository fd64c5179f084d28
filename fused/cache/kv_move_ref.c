// SPDX-License-Identifier: Apache-2.0
/* kv_move_ref - the reference: one memcpy for each layer and side of a move */
#include "fused/cache/kv_move.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

/* Returns the byte offset in base or slots at which one layer and side of a place begins. */
static int64_t part(const struct cairn_kv_move_args *a, int32_t place, int32_t layer, int32_t side)
{
	if (place >= 0)
		return layer * a->layer_bytes + side * a->v_offset + place * a->page_bytes;
	return (((int64_t)~place * a->num_layers + layer) * (a->v_offset ? 2 : 1) + side) * a->page_bytes;
}

int cairn_kv_move_ref(const struct cairn_kv_move_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_kv_move_check(a));
	for (int32_t i = 0; i < a->num_moves; i++) {
		int32_t from = a->from[i], to = a->to[i];

		for (int32_t l = 0; from != to && l < a->num_layers; l++)
			for (int32_t side = 0; side < (a->v_offset ? 2 : 1); side++)
				memcpy((char *)(to < 0 ? a->slots : a->base) + part(a, to, l, side),
				       (char *)(from < 0 ? a->slots : a->base) + part(a, from, l, side),
				       (size_t)a->page_bytes);
	}
	return 0;
}

int cairn_kv_move_exact(const struct cairn_kv_move_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_kv_move_check(a));
	for (int32_t i = 0; i < a->num_moves; i++) {
		int32_t from = a->from[i], to = a->to[i];

		for (int32_t l = 0; from != to && l < a->num_layers; l++)
			for (int32_t side = 0; side < (a->v_offset ? 2 : 1); side++) {
				const int32_t *src = from < 0 ? a->slots : a->base;
				struct cairn_exact *e = &exact[to < 0];
				int64_t at = part(a, to, l, side) / 4, src_at = part(a, from, l, side) / 4;

				for (int64_t k = 0; k < a->page_bytes / 4; k++) {
					e->val[at + k] = src[src_at + k];
					e->bound[at + k] = 0;
				}
			}
	}
	return 0;
}
