/* SPDX-License-Identifier: Apache-2.0 */
/* line_fit - fits a line to measured times, weighted so that small and large times count alike */
#ifndef CAIRN_LINE_FIT_H
#define CAIRN_LINE_FIT_H

#include <stdbool.h>
#include <stdint.h>

/* Sums over points (x, time); zeroed: none. */
struct cairn_line_fit {
	double w, x, y, xx, xy;
	int32_t num;
};

struct cairn_fit_line {
	double base, slope;
};

void cairn_line_fit_add(struct cairn_line_fit *fit, double x, double time);	/* time > 0 */
/*
 * Finds the line with the least squared relative errors; if its base were below 0, the line through 0.
 * Returns false if there are fewer than two different x, or if the time does not grow with x.
 */
bool cairn_line_fit_get(const struct cairn_line_fit *fit, struct cairn_fit_line *line);

#endif
