// SPDX-License-Identifier: Apache-2.0
/*
 * all_reduce_norm_cpu - each rank posts its rows, reads those of the others, and norms all rows itself
 *
 * The rows that fit a mailbox make a round. In a round, rows are independent and run in parallel. A row is
 * summed in fp32 in a buffer on the stack, as all rows are in rmsnorm_cpu.c, whose norm this repeats.
 */
#include <math.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"
#include "primitives/comm/all_reduce_norm.h"
#include "primitives/comm/comm_host.h"

#define MAX_DIM	16384
#define LANES	8	/* divides every legal dim */

static void store_normed(const struct cairn_all_reduce_norm_args *a, int64_t first, float *t, float *v)
{
	float part[LANES] = { 0 }, sum = 0, s;
	int32_t dim = a->dim;

	for (int32_t j = 0; j < dim; j += LANES)
		for (int k = 0; k < LANES; k++)
			part[k] += t[j + k] * t[j + k];
	for (int k = 0; k < LANES; k++)
		sum += part[k];
	s = 1 / sqrtf(sum / (float)dim + a->eps);
	cairn_load_row(v, a->weight, a->dtype, 0, dim);
	for (int32_t j = 0; j < dim; j++)
		t[j] = t[j] * s * (a->weight_offset + v[j]);
	cairn_store_row(a->out, a->dtype, first, t, dim);
}

/* mail[r]: the rows of rank r in this round; i: which of them to reduce; row: its place in the arrays */
CAIRN_WIDE static void reduce(const struct cairn_all_reduce_norm_args *a, const void *const *mail, int32_t i,
			      int32_t row)
{
	float t[MAX_DIM], v[MAX_DIM];
	int64_t first = (int64_t)row * a->dim;
	void *sum = a->residual ? a->residual : a->out;
	int32_t dim = a->dim;

	cairn_load_row(t, mail[0], a->dtype, (int64_t)i * dim, dim);
	for (int32_t r = 1; r < a->comm.ranks; r++) {
		cairn_load_row(v, mail[r], a->dtype, (int64_t)i * dim, dim);
		for (int32_t j = 0; j < dim; j++)
			t[j] += v[j];
	}
	if (a->residual) {
		cairn_load_row(v, a->residual, a->dtype, first, dim);
		for (int32_t j = 0; j < dim; j++)
			t[j] += v[j];
	}
	cairn_store_row(sum, a->dtype, first, t, dim);
	cairn_load_row(t, sum, a->dtype, first, dim);	/* the rounded sum */
	store_normed(a, first, t, v);
}

static int one_round(const struct cairn_all_reduce_norm_args *a, int32_t first, int32_t rows)
{
	const void *mail[CAIRN_COMM_MAX_RANKS];
	size_t row = (size_t)a->dim * cairn_dtype_bytes(a->dtype);
	void *mine;

	CAIRN_TRY(comm_host_begin(&a->comm, "all_reduce_norm", &mine));
	memcpy(mine, (const char *)a->x + (size_t)first * row, (size_t)rows * row);
	comm_host_post(&a->comm);
	for (int32_t r = 0; r < a->comm.ranks; r++)
		if (r == a->comm.rank)
			mail[r] = mine;
		else
			CAIRN_TRY(comm_host_await(&a->comm, r, "all_reduce_norm", &mail[r]));
	#pragma omp parallel for schedule(static) if (rows > 1)
	for (int32_t i = 0; i < rows; i++)
		reduce(a, mail, i, first + i);
	return 0;
}

int cairn_all_reduce_norm_cpu(const struct cairn_all_reduce_norm_args *a, void *stream)
{
	int32_t most;

	(void)stream;
	CAIRN_TRY(cairn_all_reduce_norm_check(a));
	most = (int32_t)(COMM_HOST_MAIL / ((size_t)a->dim * cairn_dtype_bytes(a->dtype)));
	for (int32_t first = 0; first < a->rows; first += most)
		CAIRN_TRY(one_round(a, first, a->rows - first < most ? a->rows - first : most));
	return 0;
}
