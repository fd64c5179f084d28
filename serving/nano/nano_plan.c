// SPDX-License-Identifier: Apache-2.0
/* nano_plan - checks plans of nano-batches (nano_plan.h) */
#include "serving/nano/nano_plan.h"

#include "primitives/base/error.h"

#define REFUSE(fmt, ...)	cairn_error(EINVAL, "nano_plan: " fmt, __VA_ARGS__)

int cairn_nano_plan_check(const struct cairn_nano_plan *p)
{
	int32_t rows = 0, decodes = 0;

	if (p->num_batches < 1 || p->num_batches > CAIRN_NANO_BATCHES)
		return REFUSE("num_batches is %d, not 1 to %d", p->num_batches, CAIRN_NANO_BATCHES);
	if (p->num_lanes < 1 || p->num_lanes > CAIRN_NANO_LANES)
		return REFUSE("num_lanes is %d, not 1 to %d", p->num_lanes, CAIRN_NANO_LANES);
	for (int32_t i = 0; i < p->num_lanes; i++) {
		if (p->lanes[i].priority < 0 || p->lanes[i].priority > 1)
			return REFUSE("lanes[%d].priority is %d, not 0 or 1", i, p->lanes[i].priority);
		if (!i && (p->lanes[i].sms || p->lanes[i].priority))
			return REFUSE("lanes[%d] is the stream of the pass, and no part of the device", i);
	}
	if (p->least_rows < 0)
		return REFUSE("least_rows is %d, not >= 0", p->least_rows);
	for (int32_t i = 0; i < p->num_batches; i++) {
		if (p->rows[i] < 0 || p->rows[i] > 1 << 20)
			return REFUSE("rows[%d] is %d, not 0 to %d", i, p->rows[i], 1 << 20);
		if (p->decodes[i] < 0 || p->decodes[i] > 1 << 20)
			return REFUSE("decodes[%d] is %d, not 0 to %d", i, p->decodes[i], 1 << 20);
		rows += p->rows[i] > 0;
		decodes += p->decodes[i];
	}
	if (rows && rows < p->num_batches)
		return REFUSE("rows: %d of %d shares are 0", p->num_batches - rows, p->num_batches);
	if (decodes && !rows)
		return REFUSE("rows: decodes has %d shares, rows none", p->num_batches);
	return 0;
}
