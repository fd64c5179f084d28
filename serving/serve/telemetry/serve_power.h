/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_power - reads the power and energy of the worker's card once a second
 *
 * A query of the driver may take milliseconds, and for ever if the driver hangs. A thread of the worker makes
 * them, so that neither the engine nor the front waits.
 */
#ifndef CAIRN_SERVE_POWER_H
#define CAIRN_SERVE_POWER_H

#include <stdint.h>

#include "conformance/abi.h"

struct cairn_serve_power;

/*
 * Call on the thread that has started the table. Returns NULL if the table has no card. If the card cannot be
 * read, one line on standard error gives the reason.
 */
struct cairn_serve_power *cairn_serve_power_start(const struct cairn_impl *impl);
/*
 * Returns whether there are new figures: the energy since the driver was loaded, in mJ, and the power in mW,
 * 0 if it is unknown. Does not block.
 */
int cairn_serve_power_take(struct cairn_serve_power *p, int64_t *energy_mj, int32_t *power_mw);
void cairn_serve_power_stop(struct cairn_serve_power *p);	/* NULL is fine */

#endif
