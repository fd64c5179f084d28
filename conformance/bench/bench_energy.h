/* SPDX-License-Identifier: Apache-2.0 */
/* bench_energy - repeats a row's calls until their power is known */
#ifndef CAIRN_BENCH_ENERGY_H
#define CAIRN_BENCH_ENERGY_H

#include "conformance/abi.h"
#include "conformance/tables/energy.h"

struct cairn_repeat {
	const struct cairn_impl *impl;
	void *stream;
	int (*launch)(void *arg);	/* enqueues some calls on stream */
	void *arg;
	double launch_ns;		/* about how long these calls take */
};

/*
 * Keeps the device busy with launches until card's energy counter has a window of CAIRN_ENERGY_NS. *ns is the
 * mean time of a launch during the window; if NVML fails, e says why and *ns is 0. Returns 0, or the error of
 * a launch.
 */
int cairn_repeat_energy(const struct cairn_repeat *r, struct cairn_nvml *card, struct cairn_energy *e,
			double *ns);

#endif
