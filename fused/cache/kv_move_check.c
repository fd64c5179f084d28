// SPDX-License-Identifier: Apache-2.0
/* kv_move - argument checks shared by all of our tables */
#include "fused/cache/kv_move.h"

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

int cairn_kv_move_check(const struct cairn_kv_move_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "kv_move"));
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
	if ((int64_t)a->num_moves * a->num_layers > INT32_MAX / (a->v_offset ? 2 : 1))
		return cairn_error(EOPNOTSUPP, "kv_move: num_moves: %d times %d layers%s exceeds 2^31 - 1",
				   a->num_moves, a->num_layers, a->v_offset ? " times 2" : "");
	if (a->num_moves == 0)
		return 0;
	if (!a->from || !a->to || (a->num_pages && !a->base) || (a->num_slots && !a->slots))
		return cairn_error(EINVAL, "kv_move: from, to, base, slots: must not be null");
	if (((uintptr_t)a->base | (uintptr_t)a->slots) & 15)
		return cairn_error(EINVAL, "kv_move: base, slots: must be 16-byte aligned");
	return 0;
}
