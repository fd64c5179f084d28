// SPDX-License-Identifier: Apache-2.0
/*
 * draw - draws shapes at random, and names them
 *
 * A size is drawn in one of five ways: the least one, a small one, one from a logarithmic scale, one from the
 * whole range, or, in half of all draws, one at the end of a tile: a few times a power of two, or one step
 * less or more. Logarithmic scales let sizes of all magnitudes occur together. In a short range, such as the
 * number of ranks, most draws give every number the same chance.
 *
 * If the family does not allow a shape, mostly because it costs too much, one axis at random is drawn again.
 * Drawing all of them again would leave few shapes in which several sizes are large.
 */
#include "conformance/suite/draw.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/suite/random.h"

#define TRIES	100000
#define SHORT	20
#define FRESH	200	/* tries after which all axes are drawn again */
#define MAX_AXES 64

static int64_t below(uint64_t *state, int64_t n)
{
	return (int64_t)(cairn_random_next(state) % (uint64_t)n);
}

/* Returns a number from 1 to most, on a logarithmic scale. */
static int64_t logarithmic(uint64_t *state, int64_t most)
{
	double u = (double)below(state, 1 << 20) / (1 << 20);

	return (int64_t)exp(u * log((double)most + 1));
}

/* Returns a multiple of step in [lo, hi]. */
static int64_t draw_size(uint64_t *state, int64_t lo, int64_t hi, int64_t step)
{
	int64_t most = hi / step, n, tile;

	switch (most <= SHORT && below(state, 4) ? 3 : below(state, 8)) {
	case 0:
		n = 0;
		break;
	case 1:
		n = 1 + below(state, 20);
		break;
	case 2:
		n = logarithmic(state, most);
		break;
	case 3:
		n = below(state, most + 1);
		break;
	default:
		tile = 1;
		while (tile < 8 || (2 * tile <= most && below(state, 5)))
			tile *= 2;
		n = tile * (below(state, 4) ? 1 + below(state, 3) : logarithmic(state, most / tile + 1));
		/* a tile of so many elements may have fewer steps */
		if (step > 1 && tile % step == 0 && below(state, 2))
			n /= step;
		n += (int64_t[]){ 0, 1, 1, -1 }[below(state, 4)];
	}
	n = n > most ? most - below(state, 2) : n;
	return n * step < lo ? (lo + step - 1) / step * step : n * step;
}

static double draw_value(uint64_t *state, const struct cairn_draw_axis *x)
{
	return x->step ? (double)draw_size(state, x->lo, x->hi, x->step) :
	       x->values[below(state, x->num_values)];
}

static void store(const struct cairn_draw_axis *x, void *shape, double v)
{
	char *p = (char *)shape + x->at;

	if (x->is_real && x->bytes == sizeof(float))
		*(float *)p = (float)v;
	else if (x->is_real)
		*(double *)p = v;
	else if (x->bytes == 8)
		*(int64_t *)p |= (int64_t)v;
	else if (x->bytes == 4)
		*(uint32_t *)p |= (uint32_t)(int64_t)v;
	else
		*p = (char)(*p | (char)v);
}

static double load(const struct cairn_draw_axis *x, const void *shape)
{
	const char *p = (const char *)shape + x->at;

	if (x->is_real)
		return x->bytes == sizeof(float) ? (double)*(const float *)p : *(const double *)p;
	return x->bytes == 8 ? (double)*(const int64_t *)p : x->bytes == 4 ? *(const int32_t *)p : *p;
}

void cairn_draw_shape(const struct cairn_draw *d, int number, void *shape)
{
	uint64_t state = (uint64_t)number * 0xd1342543de82ef95u;
	double values[MAX_AXES];

	if (d->num_axes > MAX_AXES)
		abort();	/* a mistake in a test */
	for (int tries = 0; tries < TRIES; tries++) {
		int again = (int)below(&state, d->num_axes);

		for (int i = 0; i < d->num_axes; i++)
			if (tries % FRESH == 0 || i == again)
				values[i] = draw_value(&state, &d->axes[i]);
		memset(shape, 0, d->shape_bytes);
		for (int i = 0; i < d->num_axes; i++)
			store(&d->axes[i], shape, values[i]);
		if (!d->allowed || d->allowed(shape, number % (d->roomy ? d->roomy : 16) == 5 ? 8 : 1))
			return;
	}
	abort();	/* a mistake in a test: hardly any shape is allowed */
}

int cairn_draw_first(uint64_t seed)
{
	return (int)(cairn_random_next(&seed) >> 38);
}

int cairn_draw_named(const char *glob)
{
	const char *at = strstr(glob, ".drawn_");
	int number = -1;

	return at && isdigit((unsigned char)at[7]) && sscanf(at + 7, "%9d", &number) == 1 ? number : -1;
}

/* Appends a word and a number, in the letters of a case's name: "s.head_dim" 64 is "_head_dim64". */
static void add_member(char *name, size_t len, const char *member, double v)
{
	size_t n = strlen(name);
	char text[64];

	snprintf(text, sizeof(text), "_%s%.12g", strrchr(member, '.') ? strrchr(member, '.') + 1 : member, v);
	for (const char *p = text; *p && n + 1 < len; p++)
		name[n++] = isalnum((unsigned char)*p) ? (char)tolower(*p) : *p == '-' ? 'm' : '_';
	name[n] = 0;
}

void cairn_draw_describe(const struct cairn_family *f, int number, struct cairn_case *c)
{
	/* wrong elements show in any kind, and the values of EXACT and NORMAL most surely */
	static const int likely[CAIRN_NUM_KINDS] = { 4, 3, 1, 2 };
	uint64_t state = (uint64_t)number;
	unsigned kinds;
	int64_t sum = 0;
	void *shape = calloc(1, f->draw->shape_bytes);

	if (!shape)
		abort();
	f->describe(f->num_cases + number, c);
	cairn_draw_shape(f->draw, number, shape);
	snprintf(c->name, sizeof(c->name), "drawn_%d", number);
	for (int i = 0; i < f->draw->num_axes; i++) {
		const struct cairn_draw_axis *x = &f->draw->axes[i];
		int again = 0;

		for (int k = 0; k < i; k++)
			again |= f->draw->axes[k].at == x->at;
		if (!again && load(x, shape) != 0)
			add_member(c->name, sizeof(c->name), x->name, load(x, shape));
	}
	free(shape);
	kinds = c->kinds ? c->kinds : CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	for (int k = 0; k < CAIRN_NUM_KINDS; k++)
		sum += kinds & CAIRN_KIND_BIT(k) ? likely[k] : 0;
	sum = below(&state, sum);
	for (int k = 0; k < CAIRN_NUM_KINDS; k++) {
		if (!(kinds & CAIRN_KIND_BIT(k)))
			continue;
		sum -= likely[k];
		if (sum < 0) {
			c->kinds = CAIRN_KIND_BIT(k);
			break;
		}
	}
	c->bench = c->device_only = 0;
}
