// SPDX-License-Identifier: Apache-2.0
/*
 * bias - the mean signed error of an output; and the size of its errors (below)
 *
 * Bounds are sums of worst cases, so an implementation that truncates an intermediate result, instead of
 * rounding it to nearest, stays within them. Its errors all have one sign, though. For kind NORMAL, the
 * errors of f16 and bf16 outputs are measured in ulps of the exact value, once relative to the exact value's
 * sign (positive: away from zero) and once unchanged (positive: upwards). Both means must satisfy
 *
 *	|mean| <= 1/8 + 6 standard errors
 *
 * Rounding to nearest gives errors uniform in half an ulp, and rounded intermediates add errors
 * that are symmetric about 0; a truncated intermediate shifts a product by 0.3 to 0.7 ulp. An implementation
 * that adds in another order, rounds twice (fp32, then dtype) or truncates fp32 sums, as tensor cores do
 * (below 2^-23 of the largest term, for each 16 terms), shifts the mean by 2^-11 ulp (bf16) to 2^-5 ulp (f16,
 * 4096 terms), which 1/8 allows.
 *
 * The standard error is estimated from the sample. Elements are not independent: those of a row share the
 * errors of its intermediates. Neighbours are therefore combined into groups of equal length, three times:
 * into 64, 32 and 16 groups. The group sums of each division give an estimate of the variance of the mean,
 * and the largest estimate is used. With fewer than MIN_ELEMENTS elements a group would be shorter than a row
 * of a head; such outputs are not judged. Over three seeds of the families of primitives and fused, the
 * largest mean of our tables was 0.044 ulp, and no mean exceeded a fifth of its limit; truncating P in
 * attn_paged gives about 0.5 ulp.
 *
 * Rows may also be equal, as those that see the same single key are. The errors of an output with few
 * distinct values are too few to have a mean near 0; such outputs are not judged either. Whether values
 * repeat is estimated from a sample.
 *
 * Errors are clamped to CLAMP ulps, so that a few elements with cancellation (whose ulp is tiny) do not hide
 * the others. Clamping keeps symmetric errors symmetric. Values near the subnormals are left out.
 */
#include <math.h>
#include <stdlib.h>

#include "conformance/suite/op_case.h"

#define MIN_ELEMENTS	4096
#define GROUPS		64
#define MIN_GROUPS	12		/* of 16: with fewer, the variance itself is uncertain */
#define CLAMP		4.0
#define SAMPLE		1024

/* Sums over the judged elements of a group. */
struct group {
	double n, signed_sum, plain_sum;
};

/* Returns the size of an ulp of v. */
static double spacing(int dtype, double v)
{
	int exponent;

	frexp(v, &exponent);
	return ldexp(1, exponent - (dtype == CAIRN_F32 ? 24 : dtype == CAIRN_F16 ? 11 : 8));
}

/* Returns the size of an ulp of v, or 0 if v is too small to count. */
static double ulp_of(int dtype, double v)
{
	return fabs(v) >= (dtype == CAIRN_F16 ? 0x1p-10 : 0x1p-100) ? spacing(dtype, v) : 0;
}

static struct group sum_up(int dtype, int64_t first, int64_t end, const void *got,
			   const struct cairn_exact *exact)
{
	struct group g = { 0 };

	for (int64_t i = first; i < end; i++) {
		double bound = exact->bound[i], val, ulp, error;

		if (!(bound > 0) || !isfinite(bound))	/* a NaN bound: val is not set */
			continue;
		val = exact->val[i];
		ulp = isfinite(val) ? ulp_of(dtype, val) : 0;
		error = ulp > 0 ? (cairn_load(got, dtype, i) - val) / ulp : NAN;
		if (!isfinite(error))
			continue;
		error = fmin(fmax(error, -CLAMP), CLAMP);
		g.n++;
		g.plain_sum += error;
		g.signed_sum += val < 0 ? -error : error;
	}
	return g;
}

/* Returns the standard error of the mean of one of the sums. Each `join` neighbours form one group. */
static double standard_error(const struct group *groups, int join, int is_signed, double mean, double n)
{
	double variance = 0;
	int used = 0;

	for (int k = 0; k < GROUPS; k += join) {
		double members = 0, sum = 0;

		for (int i = k; i < k + join; i++) {
			members += groups[i].n;
			sum += is_signed ? groups[i].signed_sum : groups[i].plain_sum;
		}
		used += members > 0;
		variance += pow(sum - mean * members, 2);
	}
	return used >= MIN_GROUPS ? sqrt(variance * used / (used - 1)) / n : INFINITY;
}

static int is_biased(const struct group *groups, int is_signed, double n, struct cairn_bias *b)
{
	double error = 0;

	b->mean = 0;
	for (int k = 0; k < GROUPS; k++)
		b->mean += (is_signed ? groups[k].signed_sum : groups[k].plain_sum) / n;
	for (int join = 1; join <= 4; join *= 2)
		error = fmax(error, standard_error(groups, join, is_signed, b->mean, n));
	b->limit = 0.125 + 6 * error;
	b->is_signed = is_signed;
	return !(fabs(b->mean) <= b->limit);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Returns whether most of the judged elements of a sample have the value of another one of them. */
static int repeats(int dtype, int64_t count, const struct cairn_exact *exact)
{
	double values[SAMPLE];
	int num = 0, distinct = 0;

	for (uint64_t k = 1; k <= SAMPLE; k++) {
		int64_t i = (int64_t)((k * 0x9e3779b97f4a7c15u >> 16) % (uint64_t)count);
		double bound = exact->bound[i];

		if (bound > 0 && isfinite(bound) && isfinite(exact->val[i]) &&
		    ulp_of(dtype, exact->val[i]) > 0)
			values[num++] = exact->val[i];
	}
	qsort(values, (size_t)num, sizeof(*values), by_value);
	for (int k = 0; k < num; k++)
		distinct += k == 0 || values[k] != values[k - 1];
	return 2 * distinct < num;
}

int cairn_judge_bias(int dtype, int64_t count, const void *got, const struct cairn_exact *exact,
		     struct cairn_bias *b)
{
	struct group groups[GROUPS];
	double n = 0;

	if ((dtype != CAIRN_F16 && dtype != CAIRN_BF16) || count < MIN_ELEMENTS)
		return 0;
	#pragma omp parallel for schedule(static) reduction(+:n) if (count > 1 << 18)
	for (int k = 0; k < GROUPS; k++) {
		groups[k] = sum_up(dtype, count * k / GROUPS, count * (k + 1) / GROUPS, got, exact);
		n += groups[k].n;
	}
	if (n < MIN_ELEMENTS || repeats(dtype, count, exact))
		return 0;
	return is_biased(groups, 1, n, b) || is_biased(groups, 0, n, b);
}

/*
 * The size of rounding errors, and how much of them the elements of a row share
 *
 * A bound allows the sum of the worst cases of all roundings that a contract permits. In a long sum, an
 * implementation that rounds where it must not (accumulators in 16 bits between tiles, weights of a merge, a
 * normaliser) stays within it. The errors of permitted roundings are independent, though, and mostly cancel.
 * So a family marks cases in which many terms of similar size are added (cairn_case.roundings), and two
 * numbers are judged for each of their outputs (the second one only in f16 and bf16):
 *
 *   size    the sum of the squared errors, relative to that of rounding each exact value once, ulp^2 / 12.
 *           It is at most the number of roundings that the case names: one for the result, and about one for
 *           each rounding of all terms. In f32 these are the roundings of a sum, one for each of its terms,
 *           as no partial sum is larger in the mean than the result. A sum of k products of TF32 factors has
 *           2^27, but its largest error is within a bound of k roundings from k = 1000 on.
 *   common  the part of a row's errors that is proportional to the row: with errors e and exact values x,
 *           c = sum e x / sum x^2. The mean of c^2 over the rows, relative to that of rounding one factor of
 *           the row, u^2 / 6.5 (below). If n elements err independently, this is about (3 + roundings) / n; a
 *           rounded term of weight w adds w^2. A factor of a row that is rounded adds 1, and a rounded weight
 *           of a part that holds half of the row's sum adds 1/4. At most MOST_COMMON is good.
 *
 * Rounding x to nearest has a variance of ulp^2 / 12; ulp is 2u 2^e for x in [2^e, 2^(e+1)), over which x^2
 * is 2.16 4^e in the mean if the logarithm of x is uniform, so that the relative variance is u^2 / 6.5.
 */

#define MIN_ROWS	48	/* with fewer, the mean of c^2 varies too much */
#define MIN_ROW		32
#define MOST_COMMON	0.25

int cairn_judge_rounding(int dtype, int64_t rows, int64_t row, const void *got,
			 const struct cairn_exact *exact, double most, struct cairn_rounding *r)
{
	double errors = 0, one = 0, common = 0, u = cairn_dtype_roundoff(dtype);
	int64_t used = 0;

	*r = (struct cairn_rounding){ .most_size = most, .most_common = MOST_COMMON };
	if (!cairn_dtype_is_float(dtype) || row < MIN_ROW)
		return 0;
	for (int64_t i = 0; i < rows; i++) {
		double squares = 0, products = 0;

		for (int64_t k = i * row; k < (i + 1) * row; k++) {
			double bound = exact->bound[k], val, e;

			if (!(bound > 0) || !isfinite(bound) || !isfinite(exact->val[k]))
				continue;
			val = exact->val[k];
			e = cairn_load(got, dtype, k) - val;
			errors += e * e;
			one += pow(spacing(dtype, val), 2) / 12;
			squares += val * val;
			products += e * val;
		}
		used += squares > 0;
		common += squares > 0 ? pow(products / squares, 2) : 0;
	}
	if (used < MIN_ROWS)
		return 0;
	r->size = errors / one;
	if (dtype != CAIRN_F32)
		r->common = common / (double)used * 6.5 / (u * u);
	return !(r->size <= r->most_size) || !(r->common <= r->most_common);
}
