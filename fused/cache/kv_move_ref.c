// SPDX-License-Identifier: Apache-2.0
/* kv_move_ref - the reference: where a place's parts lie, and a copy */
#include "fused/cache/kv_move.h"

#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_kv_move_check(const struct cairn_kv_move_args *a)
{
	if (!a || a->size < sizeof(*a))
		return cairn_error(EINVAL, "kv_move: args: null or too short");
	if (a->num_moves < 0 || a->num_layers < 1 || a->num_pages < 0 || a->num_slots < 0 || a->max_ctas < 0)
		return cairn_error(EINVAL,
				   "kv_move: num_moves %d, num_layers %d, num_pages %d, num_slots %d, "
				   "max_ctas %d: must be >= 0, >= 1, >= 0, >= 0, >= 0", a->num_moves,
				   a->num_layers, a->num_pages, a->num_slots, a->max_ctas);
	if (a->page_bytes < 1 || a->layer_bytes < 0 || a->v_offset < 0)
		return cairn_error(EINVAL,
				   "kv_move: page_bytes %lld, layer_bytes %lld, v_offset %lld: must be "
				   ">= 1, >= 0, >= 0", (long long)a->page_bytes, (long long)a->layer_bytes,
				   (long long)a->v_offset);
	if (a->page_bytes % 16 || a->layer_bytes % 16 || a->v_offset % 16)
		return cairn_error(EOPNOTSUPP,
				   "kv_move: page_bytes %lld, layer_bytes %lld, v_offset %lld: must "
				   "be multiples of 16", (long long)a->page_bytes, (long long)a->layer_bytes,
				   (long long)a->v_offset);
	if ((int64_t)a->num_moves * a->num_layers > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "kv_move: num_moves: %d of %d layers are too many",
				   a->num_moves,
				   a->num_layers);
	if (a->num_moves == 0)
		return 0;
	if (!a->from || !a->to || (a->num_pages && !a->base) || (a->num_slots && !a->slots))
		return cairn_error(EINVAL, "kv_move: from, to, base, slots: must not be null");
	if (((uintptr_t)a->base | (uintptr_t)a->slots) & 15)
		return cairn_error(EINVAL, "kv_move: base, slots: must be 16-byte aligned");
	return 0;
}

/* Byte at which a part of a place begins, in base or in slots. */
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
