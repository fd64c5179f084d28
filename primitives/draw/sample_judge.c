// SPDX-License-Identifier: Apache-2.0
/*
 * sample_judge - decides whether the contract allows a drawn token
 *
 * Errors that an fp32 implementation may make, with u32 = 2^-24:
 *   - a weight w = exp(z), z = (logit - max) / temperature: three roundings of z, one more for a change of
 *     base, and a table or polynomial of 4 ulp: relative (6 |z| + 8) u32; absolute 2^-40, by contract;
 *   - a sum of n <= vocab weights, taken in blocks of about sqrt(vocab) or finer, as in any parallel sum:
 *     relative (sqrt(vocab) + 16) u32.
 * Let E be the sum of both errors over the summed tokens. Tokens are ordered by logit, without error, so the
 * kept set is always a prefix of that order, and only its length n is uncertain:
 *   - top_p: the running sum and the total that it is compared with each err by at most E, as if top_p were
 *     changed by up to 2 E / total: lengths n_lo .. n_hi;
 *   - min_p: compares a weight with min_p times the largest, which is exactly 1: each has its own error.
 * The drawn token passes if, for one such n, u times the total lies within 2 E of the token's interval in the
 * running sum by index.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "primitives/base/error.h"
#include "primitives/draw/sample_ref.h"

static double weight_error(const struct sample_row *r, int32_t k)
{
	double z = r->temperature == 0 ? 0 : ((double)r->t[k].logit - (double)r->t[0].logit) / r->temperature;

	return (6 * fmin(-z, 200) + 8) * 0x1p-24 * r->t[k].weight + 0x1p-40;
}

/* The kept tokens of a row: the first n in order of falling probability, for an n from lo to hi. */
struct kept {
	int32_t lo, hi;
	double room;		/* the error of a sum over the row */
};

static void find_kept(const struct cairn_sample_args *a, const struct sample_row *r, struct kept *out)
{
	int32_t min_lo = 0, min_hi = 0, lo = r->n, hi = r->n;
	double total = 0, room = 0;

	for (int32_t k = 0; k < r->n; k++) {
		total += r->t[k].weight;
		room += weight_error(r, k);
		min_lo += r->t[k].weight - weight_error(r, k) >= r->min_p;
		min_hi += r->t[k].weight + weight_error(r, k) >= r->min_p;
	}
	room += (sqrt(a->vocab) + 16) * 0x1p-24 * total;
	if (r->top_p < 1) {
		lo = cairn_sample_prefix(r, r->n, r->top_p * total - 2 * room);
		hi = cairn_sample_prefix(r, r->n, r->top_p * total + 2 * room);
	}
	min_lo += min_lo == 0 && r->n > 0;	/* the most probable token is always kept */
	*out = (struct kept){ lo < min_lo ? lo : min_lo, hi < min_hi ? hi : min_hi, room };
}

/* The place of a token in the order of falling probability; r->n if it is not there. */
static int32_t rank_of(const struct sample_row *r, int32_t token)
{
	int32_t rank = 0;

	while (rank < r->n && r->t[rank].index != token)
		rank++;
	return rank;
}

/* Returns whether u gives the token of this rank for one of the lengths. */
static int is_drawn(const struct sample_row *r, const struct kept *k, int32_t rank)
{
	double before = 0, kept = 0, own = 0, room = 2 * k->room;
	int ok = 0;

	/* try the lengths in turn: each adds the next token to the sums */
	for (int32_t n = 0; n < k->hi && rank < r->n; n++) {
		kept += r->t[n].weight;
		own += n == rank ? r->t[n].weight : 0;
		before += r->t[n].index < r->t[rank].index ? r->t[n].weight : 0;
		if (n + 1 >= k->lo && n >= rank)
			ok |= before - room <= r->u * kept && r->u * kept < before + own + room;
	}
	return ok;
}

int cairn_sample_judge(const struct cairn_sample_args *a, int32_t row, int32_t token, char *why,
		       size_t why_len)
{
	struct sample_row r;
	struct kept kept;
	int32_t rank;
	int ok;

	CAIRN_TRY(cairn_sample_open_row(a, row, &r));
	find_kept(a, &r, &kept);
	rank = rank_of(&r, token);
	ok = is_drawn(&r, &kept, rank);
	if (r.n == 0)
		ok = token == -1;
	if (!ok)
		snprintf(why, why_len,
			 "token %d is %s: %d of %d are kept (or %d), u %.9g, the reference draws %d",
			 token, rank < kept.hi ? "not the drawn one" : "not kept", kept.lo, a->vocab,
			 kept.hi, r.u, cairn_sample_draw(a, &r));
	free(r.t);
	return !ok;
}

int cairn_sample_judge_kept(const struct cairn_sample_args *a, int32_t row, int32_t token, char *why,
			    size_t why_len)
{
	struct sample_row r;
	struct kept kept;
	int ok;

	CAIRN_TRY(cairn_sample_open_row(a, row, &r));
	find_kept(a, &r, &kept);
	ok = r.n == 0 ? token == -1 : rank_of(&r, token) < kept.hi;
	if (!ok)
		snprintf(why, why_len, "token %d is not kept: %d of %d are (or %d)", token, kept.lo, a->vocab,
			 kept.hi);
	free(r.t);
	return !ok;
}
