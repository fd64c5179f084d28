// SPDX-License-Identifier: Apache-2.0
/* pick_ids - argument checks shared by all of our tables */
#include "primitives/draw/pick_ids.h"

#include "primitives/base/args.h"
#include "primitives/base/error.h"

int cairn_pick_ids_check(const struct cairn_pick_ids_args *a)
{
	CAIRN_TRY(cairn_check_args(a, sizeof(*a), "pick_ids"));
	if (a->rows < 0 || a->num_drawn < 0)
		return cairn_error(EINVAL, "pick_ids: rows %d, num_drawn %d: must be >= 0", a->rows,
				   a->num_drawn);
	if (a->rows == 0)
		return 0;
	if (!a->ids || !a->from || (a->num_drawn && !a->drawn))
		return cairn_error(EINVAL, "pick_ids: ids, from, drawn: must not be null");
	return 0;
}
