// SPDX-License-Identifier: Apache-2.0
/* line_fit - least squares with the weights 1 / time^2, which makes the errors relative */
#include "serving/base/line_fit.h"

void cairn_line_fit_add(struct cairn_line_fit *fit, double x, double time)
{
	double weight = 1 / (time * time);

	fit->num++;
	fit->w += weight;
	fit->x += weight * x;
	fit->y += weight * time;
	fit->xx += weight * x * x;
	fit->xy += weight * x * time;
}

bool cairn_line_fit_get(const struct cairn_line_fit *fit, struct cairn_fit_line *line)
{
	double spread = fit->w * fit->xx - fit->x * fit->x;
	double slope, base;

	if (fit->num < 2 || !(spread > 1e-12 * fit->w * fit->xx))
		return false;
	slope = (fit->w * fit->xy - fit->x * fit->y) / spread;
	base = (fit->y - slope * fit->x) / fit->w;
	if (base < 0) {
		base = 0;
		slope = fit->xy / fit->xx;
	}
	*line = (struct cairn_fit_line){ base, slope };
	return slope > 0;
}
