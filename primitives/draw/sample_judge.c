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

int cairn_sample_judge(const struct cairn_sample_args *a, int32_t row, int32_t token, char *why,
		       size_t why_len)
{
	double total = 0, room = 0, before = 0, kept = 0, own = 0;
	int32_t lo, hi, rank = 0, min_lo = 0, min_hi = 0;
	struct sample_row r;
	int ok = 0;

	CAIRN_TRY(cairn_sample_open_row(a, row, &r));
	for (int32_t k = 0; k < r.n; k++) {
		total += r.t[k].weight;
		room += weight_error(&r, k);
		min_lo += r.t[k].weight - weight_error(&r, k) >= r.min_p;
		min_hi += r.t[k].weight + weight_error(&r, k) >= r.min_p;
	}
	room += (sqrt(a->vocab) + 16) * 0x1p-24 * total;
	lo = hi = r.n;
	if (r.top_p < 1) {
		lo = cairn_sample_prefix(&r, r.n, r.top_p * total - 2 * room);
		hi = cairn_sample_prefix(&r, r.n, r.top_p * total + 2 * room);
	}
	min_lo += min_lo == 0 && r.n > 0;	/* the most probable token is always kept */
	lo = lo < min_lo ? lo : min_lo;
	hi = hi < min_hi ? hi : min_hi;
	while (rank < r.n && r.t[rank].index != token)
		rank++;
	/* try the lengths in turn: each adds the next token to the sums */
	for (int32_t n = 0; n < hi && rank < r.n; n++) {
		kept += r.t[n].weight;
		own += n == rank ? r.t[n].weight : 0;
		before += r.t[n].index < token ? r.t[n].weight : 0;
		if (n + 1 >= lo && n >= rank)
			ok |= before - 2 * room <= r.u * kept && r.u * kept < before + own + 2 * room;
	}
	if (r.n == 0)
		ok = token == -1;
	if (!ok)
		snprintf(why, why_len,
			 "token %d is %s: %d of %d are kept (or %d), u %.9g, the reference draws %d",
			 token, rank < hi ? "not the drawn one" : "not kept", lo, a->vocab,
			 hi, r.u, cairn_sample_draw(a, &r));
	free(r.t);
	return !ok;
}
