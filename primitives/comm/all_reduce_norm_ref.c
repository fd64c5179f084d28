// SPDX-License-Identifier: Apache-2.0
/*
 * all_reduce_norm_ref - the reference, in double, and the bound
 *
 * Let u32 = 2^-24. The sum of m terms (the ranks' x, and the residual) takes m - 1 additions in fp32, each
 * with an error of at most u32 times the magnitudes so far: (m - 1) u32 sum |terms| in all. This error is 0
 * if all terms are multiples of 2^g and their magnitudes add up to at most 2^(24+g). With one addition, and
 * in the exact case, t is the correctly rounded sum (rmsnorm_ref.c says why) and has no error at all.
 * Otherwise rounding to dtype adds half the distance between its numbers there.
 *
 * out = t * s * w' with s = 1 / sqrt(mean + eps). An error b[j] of each t[j] moves the mean by at most
 * d = (2 sum |t| b + sum b^2) / dim, and so s to a value between those at mean - d and mean + d. The products
 * carry both errors on; the rest of the bound is that of rmsnorm.
 */
#include "primitives/comm/all_reduce_norm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/rows.h"
#include "primitives/comm/comm_host.h"

static double round_to(int dtype, double v)
{
	uint64_t bits = 0;	/* wide enough for any dtype */

	cairn_store(&bits, dtype, 0, v);
	return cairn_load(&bits, dtype, 0);
}

/* The sum of an element's terms, and how far an fp32 sum of them may be from it. */
struct sum {
	double value, magnitude;
	int terms, grid;	/* grid: the lowest bit of any term */
};

static void add_term(struct sum *s, double term)
{
	s->value += term;
	s->magnitude += fabs(term);
	s->terms++;
	if (term != 0 && isfinite(term) && cairn_low_bit(term) < s->grid)
		s->grid = cairn_low_bit(term);
}

/* Returns t of an element, and sets *bound to its error. */
static double rounded_sum(const struct sum *s, int dtype, double *bound)
{
	int exact = s->terms <= 2 || s->magnitude == 0 ||
		    (s->grid >= -149 && s->magnitude <= ldexp(1, 24 + s->grid));

	*bound = 0;
	if (exact || !isfinite(s->value))
		return round_to(dtype, s->value);
	*bound = (s->terms - 1) * 0x1p-24 * s->magnitude;
	*bound += cairn_rounding(dtype, fabs(s->value) + *bound);
	return s->value;
}

struct row {
	double *t, *bound;	/* [dim] */
	double s, ds;		/* 1 / sqrt(mean + eps), and its error */
	int32_t squares;	/* that are not 0, whose sum is rounded */
};

static double inverse_root(double mean, double eps)
{
	return 1 / sqrt(fmax(mean, 0) + eps);
}

/* Computes t and s of a row. residual still holds its old value. */
static void sum_row(const struct cairn_all_reduce_norm_args *const *all, int32_t i, struct row *row)
{
	const struct cairn_all_reduce_norm_args *a = all[0];
	double squares = 0, moved = 0, lower, upper;
	int tame = 1;

	row->squares = 0;
	for (int32_t j = 0; j < a->dim; j++) {
		int64_t k = (int64_t)i * a->dim + j;
		struct sum s = { .grid = 1000 };

		for (int32_t r = 0; r < a->comm.ranks; r++)
			add_term(&s, cairn_load(all[r]->x, a->dtype, k));
		if (a->residual)
			add_term(&s, cairn_load(a->residual, a->dtype, k));
		row->t[j] = rounded_sum(&s, a->dtype, &row->bound[j]);
		tame &= isfinite(row->t[j]);
		squares += row->t[j] * row->t[j];
		row->squares += row->t[j] != 0 || row->bound[j] != 0;
		moved += (2 * fabs(row->t[j]) + row->bound[j]) * row->bound[j];
	}
	squares /= a->dim;
	moved /= a->dim;
	row->s = 1 / sqrt(squares + (double)a->eps);
	lower = inverse_root(squares + moved, (double)a->eps);
	upper = inverse_root(squares - moved, (double)a->eps);
	row->ds = tame ? fmax(row->s - lower, upper - row->s) : 0;
}

static void exact_row(const struct cairn_all_reduce_norm_args *a, int32_t i, const struct row *row,
		      struct cairn_exact *exact)
{
	for (int32_t j = 0; j < a->dim; j++) {
		int64_t k = (int64_t)i * a->dim + j;
		double w = (double)a->weight_offset + cairn_load(a->weight, a->dtype, j);
		double t = row->t[j], b = row->bound[j], val = t * row->s * w, error;

		error = (fabs(t) * row->ds + b * (row->s + row->ds)) * fabs(w);
		error += (16 + 0.5 * row->squares) * 0x1p-24 * (fabs(val) + error) + 0x1p-149 * fabs(w);
		exact[0].val[k] = val;
		exact[0].bound[k] = isfinite(val) ?
			error + cairn_rounding(a->dtype, fabs(val) + error) : 0;
		if (a->residual) {
			exact[1].val[k] = t;
			exact[1].bound[k] = b;
		}
	}
}

static int row_open(struct row *row, int32_t dim)
{
	row->t = malloc(2 * (size_t)dim * sizeof(double));
	row->bound = row->t + dim;
	return row->t ? 0 : cairn_error(ENOMEM, "all_reduce_norm: no memory");
}

int cairn_all_reduce_norm_exact(const struct cairn_all_reduce_norm_args *const *all,
				struct cairn_exact *exact)
{
	const struct cairn_all_reduce_norm_args *a = all[0];
	struct row row;

	for (int32_t r = 0; r < a->comm.ranks; r++)
		CAIRN_TRY(cairn_all_reduce_norm_check(all[r]));
	CAIRN_TRY(row_open(&row, a->dim));
	for (int32_t i = 0; i < a->rows; i++) {
		sum_row(all, i, &row);
		exact_row(a, i, &row, exact);
	}
	free(row.t);
	return 0;
}

/* The rows that one round has brought, as arguments of all ranks. */
static int store_rows(const struct cairn_all_reduce_norm_args *const *all)
{
	const struct cairn_all_reduce_norm_args *a = all[0];
	struct row row;

	CAIRN_TRY(row_open(&row, a->dim));
	for (int32_t i = 0; i < a->rows; i++) {
		sum_row(all, i, &row);
		for (int32_t j = 0; j < a->dim; j++) {
			int64_t k = (int64_t)i * a->dim + j;
			double w = (double)a->weight_offset + cairn_load(a->weight, a->dtype, j);
			double t = round_to(a->dtype, row.t[j]);

			if (a->residual)
				cairn_store(a->residual, a->dtype, k, t);
			cairn_store(a->out, a->dtype, k, t * row.s * w);
		}
	}
	free(row.t);
	return 0;
}

static int one_round(const struct cairn_all_reduce_norm_args *a, int32_t first, int32_t rows)
{
	const struct cairn_all_reduce_norm_args *all[CAIRN_COMM_MAX_RANKS];
	struct cairn_all_reduce_norm_args part[CAIRN_COMM_MAX_RANKS];
	size_t row = (size_t)a->dim * cairn_dtype_bytes(a->dtype), at = (size_t)first * row;
	void *mine;

	CAIRN_TRY(comm_host_begin(&a->comm, "all_reduce_norm", &mine));
	memcpy(mine, (const char *)a->x + at, (size_t)rows * row);
	comm_host_post(&a->comm);
	for (int32_t r = 0; r < a->comm.ranks; r++) {
		part[r] = (struct cairn_all_reduce_norm_args){ sizeof(part[r]), (char *)a->out + at,
			a->residual ? (char *)a->residual + at : NULL, mine, a->weight, a->comm, rows, a->dim,
			a->dtype, a->eps, a->weight_offset };
		all[r] = &part[r];
		if (r != a->comm.rank)
			CAIRN_TRY(comm_host_await(&a->comm, r, "all_reduce_norm", &part[r].x));
	}
	return store_rows(all);
}

int cairn_all_reduce_norm_ref(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	int32_t most;

	(void)stream;
	CAIRN_TRY(cairn_all_reduce_norm_check(a));
	most = (int32_t)(COMM_HOST_MAIL / ((size_t)a->dim * cairn_dtype_bytes(a->dtype)));
	for (int32_t first = 0; first < a->rows; first += most)
		CAIRN_TRY(one_round(a, first, a->rows - first < most ? a->rows - first : most));
	return 0;
}
