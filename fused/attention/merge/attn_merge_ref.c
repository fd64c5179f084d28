// SPDX-License-Identifier: Apache-2.0
/*
 * attn_merge_ref - the reference, in double, and its error bound
 *
 * Let u = 2^-24, d[s] = lse[s] - max, p[s] = w[s] / sum w, and n the number of states with weight. The
 * cut-off compares d as fp32 rounds it, so all implementations agree on the states that have weight.
 *
 *   w     exp(0) is exact. Otherwise d is off by u |d|, and d * log2(e) by 2u |d| more (the constant and the
 *         product); these are absolute errors of the exponent. exp or exp2 itself is off by 2 ulp, 4u.
 *         Rounded up, w has a relative error of e[s] = (4 |d[s]| + 8) u.
 *   sums  n products and n additions of w * o add (n + 1) u of sum p |o|. The sum of w has the error of its
 *         terms, sum p e, and n u for the additions; both are relative to the sum, and therefore to out.
 *   out   1 / sum w and the product with it add 3u |out|; one rounding to out_dtype adds u_out |out| or
 *         half a subnormal. Up to n + 1 fp32 products may be subnormal, which adds 2^-150 for each.
 *   lse   the logarithm turns the relative error of the sum into an absolute one; ln itself is off by 2 ulp,
 *         4u ln(sum w), and the addition of max rounds once, u |lse|; doubled, for second-order terms.
 *
 * A sink is a state with o 0: it adds to n, to the sum of w and to lse, and a term of 0 to out.
 *
 * The lse of an own key is x = sm_scale sum q k, with an absolute error L. Products of two 16-bit elements
 * are exact, unless they are subnormal; D = head_dim of them, added in any order, are off by D u / (1 - D u)
 * of sum |q k| and by D 2^-150, and the product with sm_scale by one rounding. tanh never widens this error;
 * with a softcap, the quotient, tanh and the product add 12u softcap (attn_exact.c). An implementation thus
 * merges other inputs than the exact ones:
 *
 *   out   changing the weight w of the own key by a factor within e^-L .. e^L moves out by at most
 *         p (e^L - 1) (|v| + |out|), for all L. The differences d[s] are off by up to L, and all p[s] by up
 *         to e^L; the errors above are taken for the larger ones.
 *   lse   moves by at most the smaller of L and p (e^L - 1); L itself, if only the own key has weight.
 *   cut   if d[s], which depends on L, is too near to the cut-off to be sure, the state may or may not have
 *         weight. It has none here, and the largest weight that it may have is an error, e[s] = 1.
 *
 * A state that alone has weight passes unchanged: the exact result is then its value rounded to out_dtype,
 * and the bounds are 0; that of the lse of an own key is L.
 */
#include "fused/attention/merge/attn_merge.h"

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define U	0x1p-24

#define TERMS	(CAIRN_ATTN_MERGE_STATES + 2)	/* with the own key and the sink */

/* One state of a row and head. */
struct state {
	double lse, error;	/* error: absolute, of the lse of an own key */
	const void *o;		/* NULL: 0 */
	int64_t at;		/* element at which o of the state begins */
	int is_own;
};

/* The states with weight of one row and head. */
struct terms {
	int n, bad;		/* bad: a used lse is NaN or +INFINITY */
	struct state state[TERMS];
	double p[TERMS];	/* w / sum w */
	double e[TERMS];	/* relative error of w; 1: the state may or may not have weight */
	double sum_error;	/* of sum w, relative */
	double grown, moved;	/* e^L; p (e^L - 1) of the own key */
	double lse, lse_bound;
};

/* Returns the state of the own key of a row and head. */
static struct state own_state(const struct cairn_attn_merge_args *a, int64_t row, int64_t head)
{
	const int64_t group = a->num_heads / a->num_kv_heads, dim = a->head_dim;
	const double scale = (double)a->sm_scale, cap = (double)a->softcap, depth = (double)dim * U;
	struct state s = { .o = a->v, .at = row * a->kv_stride + head / group * dim, .is_own = 1 };
	double sum = 0, size = 0;

	for (int64_t c = 0; c < dim; c++) {
		double x = cairn_load(a->q, a->dtype, row * a->q_stride + head * dim + c) *
			   cairn_load(a->k, a->dtype, s.at + c);

		sum += x;
		size += fabs(x);
	}
	s.lse = scale * sum;
	if (isfinite(sum)) {
		s.error = scale * (depth / (1 - depth) * size + (double)dim * 0x1p-150);
		s.error += U * (fabs(s.lse) + s.error) + 0x1p-150;
	}
	if (cap > 0) {
		s.lse = cap * tanh(s.lse / cap);
		s.error += 12 * U * cap;
	}
	return s;
}

/* Sets the states of a row and head: the used ones, the own key, the sink. Returns how many there are. */
static int list_states(const struct cairn_attn_merge_args *a, int64_t row, int64_t head, struct state *states)
{
	int used = a->num_states, n = 0;

	if (a->counts)
		used = a->counts[row] < 0 ? 0 : a->counts[row] < used ? a->counts[row] : used;
	for (int s = 0; s < used; s++)
		states[n++] = (struct state){
			.lse = (double)a->lse[s * a->lse_stride + row * a->num_heads + head], .o = a->o,
			.at = s * a->state_stride + row * a->row_stride + head * a->head_stride,
		};
	if (a->q)
		states[n++] = own_state(a, row, head);
	if (a->sink)
		states[n++] = (struct state){ .lse = (double)a->sink[head] };
	return n;
}

/* The largest lse of a row and head. */
struct largest {
	double exact, others;		/* others: without the own key */
	double lo, hi;			/* what an implementation may find */
};

static struct largest largest_of(const struct state *states, int n)
{
	struct largest m = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };

	for (int s = 0; s < n; s++) {
		m.exact = fmax(m.exact, states[s].lse);
		m.others = fmax(m.others, states[s].is_own ? -INFINITY : states[s].lse);
		m.lo = fmax(m.lo, states[s].lse - states[s].error);
		m.hi = fmax(m.hi, states[s].lse + states[s].error);
	}
	return m;
}

/*
 * Returns whether a state of this lse has weight. are_floats: lse and max are fp32 numbers, so the result is
 * exact. Otherwise rounding is assumed to be in favour of the state (sign is 1) or against it (sign is -1).
 */
static int keeps(double lse, double max, int are_floats, int sign)
{
	if (are_floats)
		return (float)lse - (float)max >= CAIRN_ATTN_MERGE_CUTOFF;
	return lse >= max || (lse - max) * (1 - 2 * U * sign) >= (double)CAIRN_ATTN_MERGE_CUTOFF;
}

/*
 * Returns whether a state has weight; -1: that depends on the errors. A state that has none beside the others
 * has none beside a larger own key either, because rounding is monotonic.
 */
static int has_weight(const struct state *s, const struct largest *m)
{
	int low, high;

	if (s->lse == -INFINITY)
		return 0;
	if (s->is_own) {
		low = keeps(s->lse - s->error, m->others, 0, -1);
		high = keeps(s->lse + s->error, m->others, 0, 1);
	} else {
		low = keeps(s->lse, m->hi, m->hi == m->others, -1);
		high = keeps(s->lse, m->lo, m->lo == m->others, 1) && keeps(s->lse, m->others, 1, 1);
	}
	return low ? 1 : high ? -1 : 0;
}

/* Computes the weights of a row and head; a has its strides filled in. */
static void weigh(const struct cairn_attn_merge_args *a, int64_t row, int64_t head, struct terms *t)
{
	struct state states[TERMS];
	const int num = list_states(a, row, head, states);
	struct largest max;
	double sum = 0, own_error = 0;

	memset(t, 0, sizeof(*t));
	t->grown = 1;
	for (int s = 0; s < num; s++)
		t->bad |= !(states[s].lse < INFINITY);
	max = largest_of(states, num);
	t->lse = t->bad ? (double)NAN : -INFINITY;
	if (t->bad || max.exact == -INFINITY)
		return;
	for (int s = 0; s < num; s++) {
		const double d = states[s].lse - max.exact, error = states[s].error + (max.hi - max.lo);
		const double rounding = d == 0 && error == 0 ? 0 : (4 * (fabs(d) + error) + 8) * U;
		const int has = has_weight(&states[s], &max);

		if (!has)
			continue;
		t->state[t->n] = states[s];
		t->p[t->n] = has < 0 ? exp(d + error + 2 * rounding) : exp(d);
		t->e[t->n] = has < 0 ? 1 : fmin(rounding, 0.5);
		sum += has < 0 ? 0 : t->p[t->n];
		t->n++;
	}
	t->sum_error = t->n * U;
	for (int k = 0; k < t->n; k++) {
		t->p[k] /= sum;
		if (t->state[k].is_own) {
			own_error = t->state[k].error;
			t->moved = t->e[k] < 1 ? t->p[k] * expm1(own_error) : 0;
			t->grown = exp(own_error);
		}
	}
	for (int k = 0; k < t->n; k++)
		t->sum_error += t->grown * t->p[k] * t->e[k];
	t->lse = max.exact + log(sum);
	if (t->n == 1)
		t->lse_bound = own_error;
	else
		t->lse_bound = 2 * (t->sum_error + 4 * U * log(sum) + U * fabs(t->lse)) +
			       fmin(own_error, t->moved);
}

/* Computes element c of out, and its bound. */
static double merged(const struct cairn_attn_merge_args *a, const struct terms *t, int c, double *bound)
{
	double out = 0, terms = 0, magnitude = 0, doubtful = 0, own = 0, moved;
	int first = 1;

	*bound = 0;
	if (t->bad)
		return (double)NAN;
	for (int k = 0; k < t->n; k++) {
		double x = t->state[k].o ? cairn_load(t->state[k].o, a->dtype, t->state[k].at + c) : 0;

		if (t->e[k] < 1) {
			out = first ? t->p[k] * x : out + t->p[k] * x;
			first = 0;
		} else {
			doubtful += t->p[k] * fabs(x);
		}
		if (t->state[k].is_own)
			own = fabs(x);
		magnitude += t->p[k] * fabs(x);
		terms += t->p[k] * t->e[k] * fabs(x);
	}
	if (t->n <= 1) {
		uint64_t bits = 0;

		cairn_store(&bits, a->out_dtype, 0, out);
		return cairn_load(&bits, a->out_dtype, 0);
	}
	moved = t->moved > 0 ? t->moved * (own + fabs(out)) : 0;
	if (isfinite(out))
		*bound = t->grown * (terms + (t->n + 1) * U * magnitude) + (t->n + 1) * 0x1p-150 + moved +
			 (t->sum_error + 3 * U + cairn_dtype_roundoff(a->out_dtype)) *
			 (fabs(out) + moved + doubtful) + cairn_dtype_tiny(a->out_dtype);
	return out;
}

/* Sets exact[0] for out and [1] for lse_out, or, if exact is NULL, writes rounded results. */
static void all_rows(const struct cairn_attn_merge_args *args, struct cairn_exact *exact)
{
	const struct cairn_attn_merge_args a = cairn_attn_merge_strides(args);
	int64_t pairs = (int64_t)a.rows * a.num_heads;

	#pragma omp parallel for schedule(static)
	for (int64_t pair = 0; pair < pairs; pair++) {
		struct terms t;

		weigh(&a, pair / a.num_heads, pair % a.num_heads, &t);
		for (int c = 0; c < a.head_dim; c++) {
			double bound, out = merged(&a, &t, c, &bound);

			if (exact) {
				exact[0].val[pair * a.head_dim + c] = out;
				exact[0].bound[pair * a.head_dim + c] = bound;
			} else {
				cairn_store(a.out, a.out_dtype, pair * a.head_dim + c, out);
			}
		}
		if (a.lse_out && exact) {
			exact[1].val[pair] = t.lse;
			exact[1].bound[pair] = t.lse_bound;
		} else if (a.lse_out) {
			a.lse_out[pair] = (float)t.lse;
		}
	}
}

int cairn_attn_merge_ref(const struct cairn_attn_merge_args *a, void *stream)
{
	(void)stream;
	CAIRN_TRY(cairn_attn_merge_check(a));
	all_rows(a, NULL);
	return 0;
}

int cairn_attn_merge_exact(const struct cairn_attn_merge_args *a, struct cairn_exact *exact)
{
	CAIRN_TRY(cairn_attn_merge_check(a));
	all_rows(a, exact);
	return 0;
}
