// SPDX-License-Identifier: Apache-2.0
#include "conformance/suite/place.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PERIOD	4096

static void __attribute__((format(printf, 3, 4))) add(char *text, size_t len, const char *fmt, ...)
{
	size_t n = strlen(text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text + n, len - n, fmt, ap);
	va_end(ap);
}

void cairn_place_name(struct cairn_buf *b, const char *expression)
{
	const char *word = expression, *c;
	size_t n;

	for (c = expression; *c; c++)
		if (*c == '(' || *c == ',' || *c == ' ')
			word = c + 1;
	n = strcspn(word, ")");
	if (n >= sizeof(b->name))
		n = sizeof(b->name) - 1;
	memcpy(b->name, word, n);
	b->name[n] = 0;
}

/* Returns the buffer that was declared for a field. */
static struct cairn_buf *find(struct cairn_op *op, size_t field)
{
	for (int i = 0; i < op->num_bufs; i++)
		if (op->bufs[i].field == field)
			return &op->bufs[i];
	abort();	/* a mistake in a test, not in its inputs */
}

void cairn_name(struct cairn_op *op, size_t field, const char *name)
{
	cairn_place_name(find(op, field), name);
}

/* Sorts the dimensions by decreasing stride, as coordinates() requires. */
static void sort(struct cairn_buf *b)
{
	for (int d = 1; d < b->num_dims; d++)
		for (int k = d; k > 0 && b->dims[k].stride > b->dims[k - 1].stride; k--) {
			struct cairn_buf_dim dim = b->dims[k];

			b->dims[k] = b->dims[k - 1];
			b->dims[k - 1] = dim;
		}
}

void cairn_set_shape(struct cairn_op *op, size_t field, const struct cairn_axis *dims)
{
	struct cairn_buf *b = find(op, field);
	int64_t inner = 1;

	for (b->num_dims = 0; dims[b->num_dims].name; b->num_dims++)
		if (b->num_dims == CAIRN_MAX_DIMS)
			abort();	/* a mistake in a test */
	for (int d = b->num_dims - 1; d >= 0; d--) {
		b->dims[d] = (struct cairn_buf_dim){ dims[d].name, dims[d].count, inner };
		inner *= dims[d].count ? dims[d].count : 1;
	}
	sort(b);
}

void cairn_stride(struct cairn_op *op, size_t field, const char *dim, int64_t stride)
{
	struct cairn_buf *b = find(op, field);

	for (int d = 0; d < b->num_dims; d++)
		if (stride > 0 && !strcmp(b->dims[d].name, dim))
			b->dims[d].stride = stride;
	sort(b);
}

/* Copies the dimensions of b and returns their number; a buffer without a shape has one dimension. */
static int dims_of(const struct cairn_buf *b, struct cairn_buf_dim *dims)
{
	memcpy(dims, b->dims, sizeof(b->dims));
	if (!b->num_dims)
		dims[0] = (struct cairn_buf_dim){ "element", b->count, 1 };
	return b->num_dims ? b->num_dims : 1;
}

/* Sets the coordinates of element i. Returns 0 if it lies in a gap. */
static int coordinates(const struct cairn_buf_dim *dims, int num, int64_t i, int64_t *at)
{
	for (int d = 0; d < num; d++) {
		at[d] = i / dims[d].stride;
		i %= dims[d].stride;
		if (at[d] >= dims[d].count)
			return 0;
	}
	return i == 0;
}

void cairn_place_element(const struct cairn_buf *b, int64_t i, char *text, size_t len)
{
	struct cairn_buf_dim dims[CAIRN_MAX_DIMS];
	int64_t at[CAIRN_MAX_DIMS];
	int num = dims_of(b, dims);

	snprintf(text, len, "%s[", b->name);
	if (!coordinates(dims, num, i, at)) {
		add(text, len, "element %lld, in a gap of the stride]", (long long)i);
		return;
	}
	for (int d = 0; d < num; d++)
		add(text, len, "%s%s %lld", d ? ", " : "", dims[d].name, (long long)at[d]);
	add(text, len, "]");
}

/* Returns the smallest period of hit[n] that is at most n / 2, or 0 if there is none. */
static int64_t period_of(const uint8_t *hit, int64_t n)
{
	for (int64_t p = 2; p <= n / 2 && p <= MAX_PERIOD; p++)
		if (!memcmp(hit, hit + p, (size_t)(n - p)))
			return p;
	return 0;
}

/* Says which indices of a dimension have a bad element; at least one index has none. */
static void describe(const struct cairn_buf_dim *dim, const uint8_t *hit, char *text, size_t len)
{
	int64_t first = -1, last = -1, num = 0, period, in_period = 0;
	const char *name = dim->name;

	for (int64_t i = 0; i < dim->count; i++) {
		if (!hit[i])
			continue;
		first = first < 0 ? i : first;
		last = i;
		num++;
	}
	period = period_of(hit, dim->count);
	for (int64_t i = 0; i < period; i++)
		in_period += hit[i];
	if (num == 1)
		add(text, len, "%s %lld", name, (long long)first);
	else if (last - first + 1 == num && last == dim->count - 1)
		add(text, len, "%ss %lld to %lld (the last %lld)", name, (long long)first, (long long)last,
		    (long long)num);
	else if (last - first + 1 == num && first == 0)
		add(text, len, "%ss 0 to %lld (the first %lld)", name, (long long)last, (long long)num);
	else if (last - first + 1 == num)
		add(text, len, "%ss %lld to %lld", name, (long long)first, (long long)last);
	else if (period == 2)
		add(text, len, "every second %s, from %s %lld", name, name, (long long)first);
	else if (period)
		add(text, len, "%lld of every %lld %ss, from %s %lld", (long long)in_period,
		    (long long)period, name, name, (long long)first);
	else
		add(text, len, "%lld of %lld %ss, %lld to %lld", (long long)num, (long long)dim->count, name,
		    (long long)first, (long long)last);
}

static void describe_all(const struct cairn_buf_dim *dims, int num, uint8_t *const *hit, int64_t bad,
			 char *text, size_t len)
{
	int restricted[CAIRN_MAX_DIMS], any = 0;
	int64_t box = 1;

	for (int d = 0; d < num; d++) {
		int64_t hits = 0;

		for (int64_t i = 0; i < dims[d].count; i++)
			hits += hit[d][i];
		restricted[d] = hits < dims[d].count;
		any |= restricted[d];
		box *= hits;
	}
	if (!any && box == bad) {
		add(text, len, "every element");
		return;
	}
	add(text, len, "%s ", !any ? "scattered over all" : box == bad ? "all of" : "all in");
	for (int d = 0, parts = 0; d < num; d++) {
		if (any && !restricted[d])
			continue;
		add(text, len, "%s", parts++ ? ", " : "");
		if (any)
			describe(&dims[d], hit[d], text, len);
		else
			add(text, len, "%ss", dims[d].name);
	}
}

int64_t cairn_place_pattern(const struct cairn_buf *b, int (*is_bad)(const void *arg, int64_t i),
			    const void *arg, char *text, size_t len)
{
	uint8_t *hit[CAIRN_MAX_DIMS] = { NULL };
	struct cairn_buf_dim dims[CAIRN_MAX_DIMS];
	int64_t at[CAIRN_MAX_DIMS], bad = 0, in_gaps = 0;
	int num = dims_of(b, dims), have = 1;
	struct cairn_range r;

	text[0] = 0;
	for (int d = 0; d < num; d++) {
		hit[d] = calloc((size_t)dims[d].count + 1, 1);
		have &= hit[d] != NULL;
	}
	for (int k = 0; cairn_buf_range(b, k, &r); k++)
		for (int64_t i = r.first; i < r.first + r.count; i++) {
			if (!is_bad(arg, i))
				continue;
			bad++;
			if (!coordinates(dims, num, i, at))
				in_gaps++;
			else
				for (int d = 0; have && d < num; d++)
					hit[d][at[d]] = 1;
		}
	if (have && bad > in_gaps)
		describe_all(dims, num, hit, bad - in_gaps, text, len);
	if (in_gaps)
		add(text, len, bad > in_gaps ? "; and %lld in gaps of the stride" :
		    "all %lld in gaps of the stride", (long long)in_gaps);
	for (int d = 0; d < num; d++)
		free(hit[d]);
	return bad;
}

struct bad {
	cairn_bad_fn fn;
	const void *arg;
};

static int is_bad_element(const void *arg, int64_t i)
{
	const struct bad *b = arg;

	return b->fn(b->arg, i, NULL, 0);
}

int cairn_judge_each(const struct cairn_op *op, size_t field, cairn_bad_fn is_bad, const void *arg, char *why,
		     size_t why_len)
{
	const struct cairn_buf *b = find((struct cairn_op *)(uintptr_t)op, field);
	const struct bad bad = { is_bad, arg };
	char place[128], what[192] = "", where[256];
	int64_t first = INT64_MAX, num;
	struct cairn_range r;

	for (int k = 0; cairn_buf_range(b, k, &r); k++) {
		#pragma omp parallel for schedule(static) reduction(min : first) if (r.count > 1 << 16)
		for (int64_t i = r.first; i < r.first + r.count; i++)
			if (i < first && is_bad(arg, i, NULL, 0))
				first = i;
	}
	if (first == INT64_MAX)
		return 0;
	cairn_place_element(b, first, place, sizeof(place));
	is_bad(arg, first, what, sizeof(what));
	num = cairn_place_pattern(b, is_bad_element, &bad, where, sizeof(where));
	snprintf(why, why_len, "%s: %s; %lld of %lld elements bad: %s", place, what, (long long)num,
		 (long long)b->count, where);
	return 1;
}
