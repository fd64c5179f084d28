/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw - cases drawn at random from what a family supports
 *
 * Written cases and covering arrays (pairs.h) combine what their author thought of, and two features at a
 * time. A defect that needs three sizes or flags at once, such as the last tile of one row with many columns
 * and a bias, escapes them. A family therefore also describes its shapes as a list of axes: the members of
 * its shape struct, each with a range or a list of values. This module draws shapes from the list: sizes are
 * mostly near the ends of tiles, and everything is combined with everything.
 *
 *	static const struct cairn_draw_axis axes[] = {
 *		CAIRN_DRAW_SIZE(struct shape, rows, 1, 5000, 1),
 *		CAIRN_DRAW_ONE_OF(struct shape, dtype, CAIRN_F32, CAIRN_F16, CAIRN_BF16),
 *		CAIRN_DRAW_ONE_OF(struct shape, flags, 0, RESIDUAL),
 *	};
 *	static const struct cairn_draw draws = { .shape_bytes = sizeof(struct shape), .axes = axes,
 *		.num_axes = ARRAY_SIZE(axes), .allowed = allowed, .many = 600 };
 *
 * The family's functions find the shape of case index >= num_cases by cairn_draw_shape(). A drawn case is a
 * function of its number alone, so its name repeats it: drawn_<number>_<sizes>. The numbers of a run follow
 * from its seed. A drawn case has one of the kinds that describe() allows for its shape.
 */
#ifndef CAIRN_DRAW_H
#define CAIRN_DRAW_H

#include <stddef.h>
#include <stdint.h>

struct cairn_family;
struct cairn_case;

struct cairn_draw_axis {
	const char *name;
	size_t at, bytes;		/* the member's place in the shape */
	int is_real;			/* the member is a float or a double */
	int64_t lo, hi, step;		/* a size: a multiple of step; step 0: one of the values */
	const double *values;		/* integers are or-ed to what earlier axes have set */
	int num_values;
};

#define CAIRN_DRAW_MEMBER(type, member) \
	.name = #member, .at = offsetof(type, member), .bytes = sizeof(((type *)0)->member), \
	.is_real = _Generic(((type *)0)->member, float: 1, double: 1, default: 0)
#define CAIRN_DRAW_SIZE(type, member, least, most, multiple) \
	{ CAIRN_DRAW_MEMBER(type, member), .lo = (least), .hi = (most), .step = (multiple) }
/* One of the values; a value that is listed twice is drawn twice as often. */
#define CAIRN_DRAW_ONE_OF(type, member, ...) \
	{ CAIRN_DRAW_MEMBER(type, member), .values = (const double[]){ __VA_ARGS__ }, \
	  .num_values = (int)(sizeof((const double[]){ __VA_ARGS__ }) / sizeof(double)) }

struct cairn_draw {
	size_t shape_bytes;
	const struct cairn_draw_axis *axes;
	int num_axes;
	/*
	 * Completes a shape whose members have been drawn. Returns 0 if the operation does not support it, or
	 * if it costs too much; one axis is then drawn again. room multiplies what a shape may cost: it is 1,
	 * but 8 in one of `roomy` cases (0: 16), so that several sizes can be large. NULL: all are good.
	 */
	int (*allowed)(void *shape, int room);
	int roomy;
	/* numbers of drawn cases: in a run of the built-in tables (0: 2), and in one with a plug-in */
	int few, many;
};

/* Sets *shape to the shape of case `number`: zero except for what the axes set, completed by allowed(). */
void cairn_draw_shape(const struct cairn_draw *d, int number, void *shape);
/* Returns the number of the first drawn case of a run; the other cases have the numbers after it. */
int cairn_draw_first(uint64_t seed);
/* Returns the number of the drawn case that this glob names, or -1. */
int cairn_draw_named(const char *glob);
/* Describes drawn case `number` of f: calls describe(), then names the case and chooses one of its kinds. */
void cairn_draw_describe(const struct cairn_family *f, int number, struct cairn_case *c);

#endif
