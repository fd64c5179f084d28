// SPDX-License-Identifier: Apache-2.0
/* links_judge - which links of a node are slower than their siblings (links.h) */
#include <math.h>
#include <stdlib.h>

#include "conformance/validate/links.h"
#include "conformance/validate/validate_fault.h"
#include "primitives/base/error.h"

#define KIND	0.5		/* share of the fastest rate from which on a link is of the fast kind */
enum { SLOW_KIND, FAST_KIND, NOT_MEASURED = -1 };

struct links {
	const double *gbps;
	int32_t rounds, n, num;		/* num: links that are measured */
	double *slowness;		/* [rounds, n * n] seconds for a gigabyte */
	double *rate;			/* [n * n] medians of gbps, and room for [rounds] */
	int32_t *kind;			/* [n * n] */
	struct validate_slow *slow;	/* [n * n] */
};

static void close_links(struct links *l)
{
	free(l->slowness);
	free(l->rate);
	free(l->kind);
	free(l->slow);
}

static int open_links(struct links *l)
{
	size_t n = (size_t)l->n * (size_t)l->n;

	l->slowness = malloc((size_t)l->rounds * n * sizeof(*l->slowness));
	l->rate = malloc((n + (size_t)l->rounds) * sizeof(*l->rate));
	l->kind = malloc(n * sizeof(*l->kind));
	l->slow = malloc(n * sizeof(*l->slow));
	if (l->slowness && l->rate && l->kind && l->slow)
		return 0;
	close_links(l);
	return cairn_error(ENOMEM, "no memory for the rates of %d links", (int)n);
}

/* Sets the rate of each link and its kind. */
static void sort_links(struct links *l)
{
	int32_t n = l->n * l->n;
	double fastest = 0, *scratch = l->rate + n;

	for (int32_t i = 0; i < n; i++) {
		int32_t have = 0;

		for (int32_t r = 0; r < l->rounds; r++) {
			double v = l->gbps[(size_t)r * n + i];

			l->slowness[(size_t)r * n + i] = v > 0 ? 1 / v : NAN;
			if (v > 0)
				scratch[have++] = v;
		}
		l->rate[i] = have ? validate_median(scratch, have) : NAN;
		l->num += have > 0;
		fastest = have && l->rate[i] > fastest ? l->rate[i] : fastest;
	}
	for (int32_t i = 0; i < n; i++)
		l->kind[i] = isnan(l->rate[i]) ? NOT_MEASURED :
			     l->rate[i] < KIND * fastest && !FAULT(ONE_KIND) ? SLOW_KIND : FAST_KIND;
}

static int32_t fast_links(const struct links *l, int32_t from)
{
	int32_t fast = 0;

	for (int32_t to = 0; to < l->n; to++)
		fast += l->kind[from * l->n + to] == FAST_KIND;
	return fast;
}

/* Returns how many fast links most devices have; the larger number, if there are two such. */
static int32_t usual_links(const struct links *l)
{
	int32_t usual = 0, most = 0;

	for (int32_t i = 0; i < l->n; i++) {
		int32_t mine = fast_links(l, i), equal = 0;

		for (int32_t k = 0; k < l->n; k++)
			equal += fast_links(l, k) == mine;
		if (equal > most || (equal == most && mine > usual)) {
			most = equal;
			usual = mine;
		}
	}
	return usual;
}

/* Writes the slow links of devices that have fewer fast links than most devices. Returns their number. */
static int32_t find_lacking(const struct links *l, struct validate_slow_link *out, int32_t most)
{
	int32_t usual = usual_links(l), num = 0;
	double fastest = 0;

	for (int32_t i = 0; i < l->n * l->n; i++)
		fastest = l->rate[i] > fastest ? l->rate[i] : fastest;
	for (int32_t i = 0; i < l->n * l->n && num < most; i++)
		if (l->kind[i] == SLOW_KIND && fast_links(l, i / l->n) < usual && !FAULT(LACKING_IGNORED))
			out[num++] = (struct validate_slow_link){ i / l->n, i % l->n,
				fastest / l->rate[i] - 1, l->num - 1, 1, 0 };
	return num;
}

/* Compares the only two links with each other, by the scatter of their ratio. */
static int32_t compare_two(const struct links *l, struct validate_slow_link *out)
{
	int32_t n = l->n * l->n, first = 0, second, rounds = 0, flagged = 0, thirds = 0;
	double *ratio = l->rate + n, middle, mad, spread[VALIDATE_WINDOWS];

	while (isnan(l->rate[first]))
		first++;
	for (second = first + 1; isnan(l->rate[second]); second++)
		;
	/* the first of the two is the slower one from here on */
	if (l->rate[first] > l->rate[second]) {
		int32_t swap = first;

		first = second;
		second = swap;
	}
	for (int32_t r = 0; r < l->rounds && rounds < VALIDATE_WINDOWS; r++) {
		double x = l->gbps[(size_t)r * n + second] / l->gbps[(size_t)r * n + first] - 1;

		if (isnan(x))
			continue;
		if (x > VALIDATE_WORSE) {
			flagged++;
			thirds |= 1 << 3 * r / l->rounds;
		}
		ratio[rounds++] = x;
	}
	if (flagged < VALIDATE_MIN_ROUNDS || (thirds != 7 && !FAULT(TWO_TOGETHER)))
		return 0;
	middle = validate_median(ratio, rounds);
	for (int32_t r = 0; r < rounds; r++)
		spread[r] = fabs(ratio[r] - middle);
	mad = validate_median(spread, rounds);
	if (!(middle > VALIDATE_WORSE) || (!(middle > VALIDATE_Z * 1.4826 * mad) && !FAULT(TWO_SCATTER)))
		return 0;
	out[0] = (struct validate_slow_link){ first / l->n, first % l->n, middle, 1, 0, 1 };
	return 1;
}

static int32_t find_slow(struct links *l, struct validate_slow_link *out, int32_t most)
{
	int32_t num = 0, measured, found;

	found = validate_slow(l->slowness, l->rounds, l->n * l->n, FAULT(ONE_KIND) ? NULL : l->kind, l->slow,
			      l->n * l->n, &measured);
	for (int32_t i = 0; i < found && num < most; i++) {
		int32_t at = l->slow[i].index, peers = -1, kind = l->kind[at];

		for (int32_t k = 0; k < l->n * l->n; k++)
			peers += l->kind[k] == kind;
		if (FAULT(LINK_NAMES_SWAPPED))
			at = at % l->n * l->n + at / l->n;
		out[num++] = (struct validate_slow_link){ at / l->n, at % l->n, l->slow[i].worse, peers, 0,
							kind == FAST_KIND };
	}
	return found < 0 ? found : num;
}

int32_t validate_slow_links(const double *gbps, int32_t rounds, int32_t n, struct validate_slow_link *out,
			    int32_t most)
{
	struct links l = { .gbps = gbps, .rounds = rounds, .n = n };
	int32_t num, more = 0;

	CAIRN_TRY(open_links(&l));
	sort_links(&l);
	num = find_lacking(&l, out, most);
	/* two links of one kind are compared; of different kinds, find_lacking() has named one */
	if (l.num == 2 && !num && most)
		more = compare_two(&l, out);
	else if (l.num >= VALIDATE_MIN_PEERS)
		more = find_slow(&l, out + num, most - num);
	close_links(&l);
	return more < 0 ? more : num + more;
}

enum validate_verdict validate_link_verdict(const struct validate_slow_link *l, int nvlink)
{
	if (!nvlink && !FAULT(ANY_LINK_FAILS))
		return VALIDATE_WARN;
	if (l->lacking)
		return VALIDATE_FAIL;
	/* a defect of 5% is measured with some error */
	return l->fast && l->worse >= VALIDATE_MUCH_WORSE - 0.005 ? VALIDATE_FAIL : VALIDATE_WARN;
}

enum validate_verdict validate_down_verdict(int others, int nvlink)
{
	return others || (nvlink && !FAULT(DOWN_ALONE_PASSES)) ? VALIDATE_FAIL : VALIDATE_NOT_RUN;
}
