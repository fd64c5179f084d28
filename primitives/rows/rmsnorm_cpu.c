// SPDX-License-Identifier: Apache-2.0
/*
 * rmsnorm_cpu - norms rows in parallel, each in fp32
 *
 * A row is widened once into a buffer on the stack (at most 64 KiB), as are residual and weight. The squares
 * are summed in 8 lanes, so that gcc can vectorise without reordering the additions. Then the row is scaled,
 * written back and, with q, quantised as written. Without out it is written to the stack instead.
 */
#include <math.h>

#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"
#include "primitives/rows/quant_fp8w.h"
#include "primitives/rows/rmsnorm.h"

#define MAX_DIM	16384
#define LANES	8	/* divides every legal dim */

/* Normalises the row that begins at element `first`, and writes it to `out` from element `at` on. */
CAIRN_WIDE static void normalise(const struct cairn_rmsnorm_args *a, int64_t first, void *out, int64_t at)
{
	float r[MAX_DIM], v[MAX_DIM], part[LANES] = { 0 }, sum = 0, s;
	int32_t dim = a->dim;

	cairn_load_row(r, a->x, a->dtype, first, dim);
	if (a->residual) {
		cairn_load_row(v, a->residual, a->dtype, first, dim);
		for (int32_t j = 0; j < dim; j++)
			r[j] += v[j];
		cairn_store_row(a->residual, a->dtype, first, r, dim);
		cairn_load_row(r, a->residual, a->dtype, first, dim);	/* the rounded sum */
	}
	for (int32_t j = 0; j < dim; j += LANES)
		for (int k = 0; k < LANES; k++)
			part[k] += r[j + k] * r[j + k];
	for (int k = 0; k < LANES; k++)
		sum += part[k];
	s = 1 / sqrtf(sum / (float)dim + a->eps);
	cairn_load_row(v, a->weight, a->dtype, 0, dim);
	for (int32_t j = 0; j < dim; j++)
		r[j] = r[j] * s * (a->weight_offset + v[j]);
	cairn_store_row(out, a->dtype, at, r, dim);
}

static void normalise_and_quantise(const struct cairn_rmsnorm_args *a, int64_t i)
{
	uint16_t row[MAX_DIM];
	struct cairn_quant_fp8w_args quant = {
		.size = sizeof(quant), .b = a->q, .scale = a->q_scale, .w = row, .n = a->rows, .k = a->dim,
		.dtype = a->dtype, .scale_kind = a->q_kind,
	};

	normalise(a, i * a->dim, row, 0);
	if (a->out)
		memcpy((uint16_t *)a->out + i * a->dim, row, (size_t)a->dim * sizeof(*row));
	cairn_quant_fp8w_cpu_row(&quant, i);
}

int cairn_rmsnorm_cpu(const struct cairn_rmsnorm_args *args, void *stream)
{
	struct cairn_rmsnorm_args a;

	(void)stream;
	CAIRN_TRY(cairn_rmsnorm_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	#pragma omp parallel for schedule(static) if (a.rows > 1)
	for (int32_t i = 0; i < a.rows; i++)
		if (a.q)
			normalise_and_quantise(&a, i);
		else
			normalise(&a, (int64_t)i * a.dim, a.out, (int64_t)i * a.dim);
	return 0;
}
