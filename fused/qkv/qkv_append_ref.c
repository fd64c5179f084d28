// SPDX-License-Identifier: Apache-2.0
/*
 * qkv_append_ref - exact results in double, and the error bound; the operation itself is in qkv_append_cpu.c
 *
 * A sum has the bound that gemm_ref.c derives, to which its rounding to dtype adds half an ulp. If the
 * numbers x and y of a pair err by at most E and E', their rotation with cosine c and sine s errs by at most
 * |c| E + |s| E' and |c| E' + |s| E. To this the rotation itself adds 8 * 2^-24 (|x| + E + |y| + E')
 * (rope_ref.c), and its rounding half an ulp. In pages of e4m3 a code is right if any number within these
 * bounds has it. Where they contain numbers of both signs, the element is not judged.
 */
#include "fused/qkv/qkv_append.h"

#include <stdlib.h>

#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/gemm/gemm_sum.h"

/* What the elements of a pair are part of: q, or K or V in the pages */
struct place {
	int side;		/* index in exact */
	int64_t at;		/* of the first of the pair; -1: not written */
	const float *scale;	/* of the codes; NULL: none */
};

static struct place place_of(const struct cairn_qkv_append_args *a, int32_t i, int32_t head, int32_t dim,
			     int64_t slot)
{
	const int32_t kv_head = head - a->num_qo_heads;
	const int is_v = kv_head >= a->num_kv_heads, nth = is_v ? kv_head - a->num_kv_heads : kv_head;
	const float *scales = is_v ? a->v_scale : a->k_scale;

	if (kv_head < 0)
		return (struct place){
			.at = i * cairn_qkv_append_q_stride(a) + (int64_t)head * a->head_dim + dim,
		};
	return (struct place){
		.side = 1 + is_v, .scale = scales ? &scales[nth] : NULL,
		.at = slot < 0 ? -1 : (slot * a->num_kv_heads + nth) * a->head_dim + dim,
	};
}

/* Returns x c - y s. */
static struct gemm_sum rotated(int dtype, struct gemm_sum x, struct gemm_sum y, double c, double s)
{
	struct gemm_sum r = { .val = x.val * c - y.val * s };

	if (isnan(x.val) || isnan(y.val))
		return (struct gemm_sum){ .val = NAN };
	r.undefined = x.undefined || y.undefined || isinf(x.val) || isinf(y.val);
	if (r.undefined)
		return r;
	r.error = fabs(c) * x.error + fabs(s) * y.error + 8 * 0x1p-150 +
		  8 * 0x1p-24 * (fabs(x.val) + x.error + fabs(y.val) + y.error);
	return gemm_sum_rounded(dtype, r);
}

static void judge_code(struct gemm_sum s, double scale, double *val, double *bound)
{
	const double low = (s.val - s.error) / scale, high = (s.val + s.error) / scale;
	const uint8_t from = cairn_float_to_e4m3((float)(low - 0x1p-23 * fabs(low)));
	const uint8_t to = cairn_float_to_e4m3((float)(high + 0x1p-23 * fabs(high)));

	*val = isnan(s.val) ? cairn_float_to_e4m3(NAN) : (from + to) / 2.0;
	*bound = isnan(s.val) ? 0 : (from ^ to) & 0x80 ? INFINITY : fabs((double)(to - from)) / 2;
}

static void judge(const struct cairn_qkv_append_args *a, const struct place *p, int64_t at, struct gemm_sum s,
		  struct cairn_exact *exact)
{
	double *val = &exact[p->side].val[at], *bound = &exact[p->side].bound[at];

	if (s.undefined) {
		*val = NAN;
		*bound = INFINITY;
	} else if (p->side && a->kv_fp8) {
		judge_code(s, p->scale ? (double)*p->scale : 1, val, bound);
	} else {
		*val = s.val;
		*bound = isfinite(s.val) ? s.error : 0;
	}
}

/* Judges elements dim and dim + head_dim / 2 of a head of row i. x: its row of a; b: the two rows of b */
static void pair(const struct cairn_qkv_append_args *a, int32_t i, int32_t head, int32_t dim, int64_t slot,
		 const double *x, const double *b, struct cairn_exact *exact)
{
	const int32_t half = a->head_dim / 2;
	const struct place p = place_of(a, i, head, dim, slot);
	struct gemm_sum y[2];

	if (p.at < 0)
		return;
	for (int e = 0; e < 2; e++) {
		const int64_t column = (int64_t)head * a->head_dim + dim + e * half;
		const double bias = a->bias ? cairn_load(a->bias, a->dtype, column) : 0;

		y[e] = gemm_sum_of(a->dtype, a->k, x, b + e * (int64_t)a->k, bias);
		y[e] = gemm_sum_rounded(a->dtype, y[e]);
	}
	if (head < a->num_qo_heads + a->num_kv_heads) {
		const double angle = (double)((float)a->positions[i] * a->inv_freq[dim]);
		const double c = cos(angle), s = sin(angle);
		const struct gemm_sum first = rotated(a->dtype, y[0], y[1], c, s);

		y[1] = rotated(a->dtype, y[1], y[0], c, -s);
		y[0] = first;
	}
	judge(a, &p, p.at, y[0], exact);
	judge(a, &p, p.at + half, y[1], exact);
}

/* Sets the slot of each row, or -1. */
static void find_slots(const struct cairn_qkv_append_args *a, int64_t *slots)
{
	for (int32_t i = 0; i < a->m; i++)
		slots[i] = -1;
	for (int32_t b = 0; b < a->kv.batch; b++)
		for (int32_t i = a->qo_indptr[b]; i < a->qo_indptr[b + 1]; i++)
			slots[i] = cairn_kv_slot(&a->kv, b, cairn_kv_len(&a->kv, b) -
						 a->qo_indptr[b + 1] + i);
}

/* x: the widened rows of a */
static int walk(const struct cairn_qkv_append_args *a, const double *x, struct cairn_exact *exact)
{
	const int32_t half = a->head_dim / 2;
	const int64_t pairs = cairn_qkv_append_n(a) / 2;
	int64_t slots[CAIRN_QKV_APPEND_M];
	int no_memory = 0;

	find_slots(a, slots);
	#pragma omp parallel reduction(|:no_memory) if (a->m * pairs * a->k > 1 << 16)
	{
		double *b = malloc(sizeof(*b) * 2 * (size_t)a->k);

		no_memory |= !b;
		#pragma omp for
		for (int64_t j = 0; j < pairs; j++) {
			const int32_t head = (int32_t)(j / half), dim = (int32_t)(j % half);
			const int64_t row = (int64_t)head * a->head_dim + dim;

			if (!b)
				continue;
			cairn_widen(b, a->b, a->dtype, row * a->k, a->k);
			cairn_widen(b + a->k, a->b, a->dtype, (row + half) * a->k, a->k);
			for (int32_t i = 0; i < a->m; i++)
				pair(a, i, head, dim, slots[i], x + i * (int64_t)a->k, b, exact);
		}
		free(b);
	}
	return no_memory ? cairn_error(ENOMEM, "qkv_append: no memory for rows of %d", a->k) : 0;
}

int cairn_qkv_append_exact(const struct cairn_qkv_append_args *a, struct cairn_exact *exact)
{
	double *x;
	int ret;

	CAIRN_TRY(cairn_qkv_append_check(a));
	x = malloc(sizeof(*x) * (size_t)a->m * (size_t)a->k);
	if (!x)
		return cairn_error(ENOMEM, "qkv_append: no memory for %d rows of %d", a->m, a->k);
	cairn_widen(x, a->a, a->dtype, 0, (int64_t)a->m * a->k);
	ret = walk(a, x, exact);
	free(x);
	return ret;
}
