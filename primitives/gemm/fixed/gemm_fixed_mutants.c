// SPDX-License-Identifier: Apache-2.0
/* gemm_fixed_mutants - wrong versions of gemm_fixed that the suite must catch */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "primitives/base/cut_off.h"
#include "primitives/base/nudge.h"
#include "primitives/gemm/fixed/gemm_fixed.h"

enum defect { TRANSPOSED, NO_BIAS, BIAS_SHIFTED, BIAS_OF_GATE, BIAS_AFTER, K_TAIL, COLUMN_TAIL, LAST_ROW,
	      SUMS_IN_DTYPE, GATE_ROUNDED, SWAPPED, INTERLEAVED, PACKED_A, PACKED_OUT, CUT_OFF, NAN_IS_0,
	      UP_OF_TILE, SECOND_GROUP, STAGE_TWICE, GATE_TAIL, TANH };

static double through(int dtype, double x)
{
	uint64_t box = 0;

	cairn_store(&box, dtype, 0, x);
	return cairn_load(&box, dtype, 0);
}

/* Returns the sum of row i of a and row j of b, without bias. */
static double sum_of(const struct cairn_gemm_fixed_args *g, enum defect d, int64_t i, int64_t j)
{
	int64_t k = g->k, step = d == PACKED_A ? k : cairn_gemm_fixed_a_stride(g);
	int64_t end = d == K_TAIL && k > 64 ? k / 64 * 64 : k;
	double sum = 0;

	for (int64_t l = 0; l < end; l++) {
		/* the ring's fifth stage still holds the first one */
		int64_t at = d == STAGE_TWICE && k > 256 && l / 64 == 4 ? l - 256 : l;
		double x = cairn_load(g->a, g->dtype, i * step + at);
		double y = cairn_load(g->b, g->dtype, d == TRANSPOSED ? at * g->n + j : j * k + at);

		if (d == NAN_IS_0 && (isnan(x) || isnan(y)))
			continue;
		sum += x * y;
		if (d == SUMS_IN_DTYPE && l % 16 == 15)
			sum = through(g->dtype, sum);
	}
	return sum;
}

static double bias_of(const struct cairn_gemm_fixed_args *g, enum defect d, int64_t j)
{
	if (!g->bias || d == NO_BIAS)
		return 0;
	if (d == BIAS_SHIFTED)
		j = (j + 1) % g->n;
	if (d == BIAS_OF_GATE && j >= cairn_gemm_fixed_width(g))
		j -= cairn_gemm_fixed_width(g);
	return cairn_load(g->bias, g->dtype, j);
}

static double silu(double g)
{
	return g == -INFINITY ? 0 : g / (1 + exp(-g));
}

/* Returns silu(gate) * up with the rows of b that the defect takes. */
static double gated(const struct cairn_gemm_fixed_args *g, enum defect d, int64_t i, int64_t j)
{
	int64_t half = g->n / 2, at = d == INTERLEAVED ? 2 * j : j;
	/* tiles of 256: up's rows begin a tile's half behind gate's */
	int64_t other = d == INTERLEAVED ? 2 * j + 1 : d == UP_OF_TILE && j + 128 < g->n ? j + 128 : half + j;
	double gate = sum_of(g, d, i, at), up = sum_of(g, d, i, other);

	if (d == BIAS_AFTER && g->bias)
		return silu(gate) * up + bias_of(g, d, j);
	gate += bias_of(g, d, at);
	up += bias_of(g, d, other);
	if (d == SWAPPED)
		return silu(up) * gate;
	if (d == GATE_ROUNDED)
		gate = through(g->dtype, gate);
	if (d == TANH)	/* tanh.approx has 11 bits */
		return gate * 0.5 * (1 + through(CAIRN_F16, tanh(gate / 2))) * up;
	return silu(gate) * up;
}

static int bent(const struct cairn_gemm_fixed_args *g, enum defect d)
{
	int64_t width = cairn_gemm_fixed_width(g);
	int64_t step = d == PACKED_OUT ? width : cairn_gemm_fixed_out_stride(g);
	int silu_mul = g->epilogue == CAIRN_GEMM_FIXED_SILU_MUL;
	int64_t end_m = d == LAST_ROW && g->m % 64 == 1 && g->m > 1 ? g->m - 1 : g->m;
	int64_t end_n = d == COLUMN_TAIL ? width / 8 * 8 :
			d == GATE_TAIL && silu_mul ? width / 16 * 16 : width;

	CAIRN_TRY(cairn_gemm_fixed_check(g));
	for (int64_t i = 0; i < end_m; i++)
		for (int64_t j = 0; j < end_n; j++) {
			int64_t from = d == SECOND_GROUP && i % 128 >= 64 && g->sms == 1 ? i - 64 : i;
			double v = silu_mul ? gated(g, d, from, j) : sum_of(g, d, from, j) + bias_of(g, d, j);

			cairn_store(g->out, g->out_dtype, i * step + j,
				    d == CUT_OFF ? cut_off(g->out_dtype, v) : v);
		}
	return 0;
}

#define BENT(name, defect) \
static int name(const struct cairn_gemm_fixed_args *g, void *stream) { (void)stream; return bent(g, defect); }
BENT(transposed, TRANSPOSED)
BENT(no_bias, NO_BIAS)
BENT(bias_shifted, BIAS_SHIFTED)
BENT(bias_of_gate, BIAS_OF_GATE)
BENT(bias_after, BIAS_AFTER)
BENT(k_tail, K_TAIL)
BENT(column_tail, COLUMN_TAIL)
BENT(last_row, LAST_ROW)
BENT(sums_in_dtype, SUMS_IN_DTYPE)
BENT(gate_rounded, GATE_ROUNDED)
BENT(swapped, SWAPPED)
BENT(interleaved, INTERLEAVED)
BENT(packed_a, PACKED_A)
BENT(packed_out, PACKED_OUT)
BENT(cut, CUT_OFF)
BENT(nan_is_0, NAN_IS_0)
BENT(up_of_tile, UP_OF_TILE)
BENT(second_group, SECOND_GROUP)
BENT(stage_twice, STAGE_TWICE)
BENT(gate_tail, GATE_TAIL)
BENT(tanh_approx, TANH)

static int gap_written(const struct cairn_gemm_fixed_args *g, void *stream)
{
	int64_t width = cairn_gemm_fixed_width(g);

	CAIRN_TRY(cairn_gemm_fixed_ref(g, stream));
	if (cairn_gemm_fixed_out_stride(g) > width)
		cairn_store(g->out, g->out_dtype, width, 0);
	return 0;
}

static int past_the_end(const struct cairn_gemm_fixed_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_fixed_ref(g, stream));
	cairn_store(g->out, g->out_dtype, g->m * cairn_gemm_fixed_out_stride(g), 0);
	return 0;
}

static int stale(const struct cairn_gemm_fixed_args *g, void *stream)
{
	static int calls;

	CAIRN_TRY(cairn_gemm_fixed_check(g));
	return calls++ & 1 ? 0 : cairn_gemm_fixed_ref(g, stream);
}

/* The sum of column 0 of the last row is grouped in another way in some calls. */
static int regrouped(const struct cairn_gemm_fixed_args *g, void *stream, int in_this_call)
{
	CAIRN_TRY(cairn_gemm_fixed_ref(g, stream));
	if (in_this_call && g->out_dtype == CAIRN_F32)
		nudge((float *)g->out + (g->m - 1) * cairn_gemm_fixed_out_stride(g),
		      cairn_gemm_fixed_width(g));
	return 0;
}

static int split_by_sms(const struct cairn_gemm_fixed_args *g, void *stream)
{
	return regrouped(g, stream, g->sms > 90);
}

static int split_by_m(const struct cairn_gemm_fixed_args *g, void *stream)
{
	return regrouped(g, stream, g->m <= 16);
}

static int split_by_stride(const struct cairn_gemm_fixed_args *g, void *stream)
{
	return regrouped(g, stream, g->a_stride > g->k);
}

/* A single column past whole tiles is left to another loop. */
static int split_by_tail(const struct cairn_gemm_fixed_args *g, void *stream)
{
	return regrouped(g, stream, g->n % 32 == 1);
}

/* Few columns leave SMs idle, so the call splits its sums. */
static int split_by_n(const struct cairn_gemm_fixed_args *g, void *stream)
{
	return regrouped(g, stream, g->n <= 40);
}

/* Many columns take another kernel. */
static int split_above_4096(const struct cairn_gemm_fixed_args *g, void *stream)
{
	return regrouped(g, stream, g->n > 4096);
}

static int split_above_32768(const struct cairn_gemm_fixed_args *g, void *stream)
{
	return regrouped(g, stream, g->n > 32768);
}

/* A row 0 of large magnitude makes the call take another kernel. */
static int split_by_row_0(const struct cairn_gemm_fixed_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_fixed_check(g));
	return regrouped(g, stream, cairn_load(g->a, g->dtype, 0) > 0.5 && g->m > 1);
}

/* Each call merges its partial sums in the order in which they arrive. */
static int merged_by_arrival(const struct cairn_gemm_fixed_args *g, void *stream)
{
	static int calls;

	return regrouped(g, stream, calls++ % 3 == 2);
}

/* A counter of tiles that is not reset: from the second call on, the last tile is missing. */
static int counter_kept(const struct cairn_gemm_fixed_args *g, void *stream)
{
	struct cairn_gemm_fixed_args most = *g;
	static int calls;

	if (calls++ == 0 || g->m <= 128)
		return cairn_gemm_fixed_ref(g, stream);
	most.size = sizeof(most);
	most.m = (g->m - 1) / 128 * 128;
	return cairn_gemm_fixed_ref(&most, stream);
}

/* Refuses more SMs than the device has, which mean all of them. */
static int sms_above_132(const struct cairn_gemm_fixed_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_fixed_check(g));
	return g->sms > 132 ? cairn_error(EINVAL, "gemm_fixed: sms") : cairn_gemm_fixed_ref(g, stream);
}

/* The byte offset of a row of a, or of b if a has one row, has only 32 bits. */
static int offset_32_bits(const struct cairn_gemm_fixed_args *g, void *stream)
{
	int64_t row = (int64_t)g->k * 2, rows = g->m > 1 ? g->m : g->n, out = 2 * (g->m > 1 ? g->n : 1);
	struct cairn_gemm_fixed_args one = *g;

	one.size = sizeof(one);
	if (cairn_gemm_fixed_check(g) || (rows - 1) * row <= UINT32_MAX)
		return cairn_gemm_fixed_ref(g, stream);
	for (int64_t i = 0; i < rows; i++) {
		one.out = (char *)g->out + i * out;
		if (g->m > 1)
			one.a = (const char *)g->a + (uint32_t)(i * row);
		else
			one.b = (const char *)g->b + (uint32_t)(i * row);
		one.n = g->m > 1 ? g->n : 1;
		one.m = 1;
		CAIRN_TRY(cairn_gemm_fixed_cpu(&one, stream));
	}
	return 0;
}

#define FIXED(name, fn, what) \
	{ "gemm_fixed_" name, offsetof(struct cairn_impl, gemm_fixed), (void *)fn, what }

/* A tile of 64 x 16 has 63 rows and one column, and with gaps lacks its last element. */
static int gemm_fixed_corner_with_gaps(const struct cairn_gemm_fixed_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_fixed_ref(a, stream));
	if (a->out_stride && a->m % 64 == 63 && a->n % 16 == 1 && !a->epilogue)
		cairn_store(a->out, a->out_dtype, ((int64_t)a->m - 1) * a->out_stride + a->n - 1, 0);
	return 0;
}

/* The last row loses a long sum if it is alone past whole tiles of 16. */
static int gemm_fixed_long_sum_of_last_row(const struct cairn_gemm_fixed_args *a, void *stream)
{
	CAIRN_TRY(cairn_gemm_fixed_ref(a, stream));
	if (a->k > 512 && a->m > 16 && a->m % 16 == 1)
		cairn_store(a->out, a->out_dtype, (int64_t)(a->m - 1) * cairn_gemm_fixed_out_stride(a), 0);
	return 0;
}

const struct cairn_mutant cairn_gemm_fixed_mutants[] = {
	FIXED("transposed", transposed, "b is read as [k, n]"),
	FIXED("bias_ignored", no_bias, "bias is not added"),
	FIXED("bias_shifted", bias_shifted, "bias comes from the next column"),
	FIXED("bias_of_gate", bias_of_gate, "up gets the bias of gate"),
	FIXED("bias_after", bias_after, "the bias is added after the activation"),
	FIXED("k_tail", k_tail, "k is cut to a multiple of 64"),
	FIXED("column_tail", column_tail, "the columns past a multiple of 8 are not written"),
	FIXED("gate_tail", gate_tail, "with silu_mul, the columns past a multiple of 16 are not written"),
	FIXED("last_row", last_row, "a single row past a multiple of 64 is not written"),
	FIXED("sums_in_dtype", sums_in_dtype, "sums are rounded to dtype after each 16 products"),
	FIXED("gate_rounded", gate_rounded, "gate is rounded to dtype before the activation"),
	FIXED("swapped", swapped, "silu of up times gate"),
	FIXED("interleaved", interleaved, "rows of gate and up alternate"),
	FIXED("up_of_tile", up_of_tile, "rows of up are 128 rows behind those of gate"),
	FIXED("tanh", tanh_approx, "silu is computed by a tanh of 11 bits"),
	FIXED("packed_a", packed_a, "a_stride is ignored"),
	FIXED("packed_out", packed_out, "out_stride is ignored"),
	FIXED("gap_written", gap_written, "the gap behind a row of out is written"),
	FIXED("past_the_end", past_the_end, "one element is written past the end of out"),
	FIXED("cut_off", cut, "results are cut off instead of rounded"),
	FIXED("nan_is_0", nan_is_0, "a product with a NaN counts as 0"),
	FIXED("second_group", second_group, "with one SM, rows 64 to 127 of a tile are those before"),
	FIXED("stage_twice", stage_twice, "the fifth stage of the ring is read before it has arrived"),
	FIXED("stale_output", stale, "every second call writes nothing"),
	FIXED("split_by_sms", split_by_sms, "with more than 90 SMs, sums are split"),
	FIXED("split_by_m", split_by_m, "up to 16 rows, sums are split"),
	FIXED("split_by_stride", split_by_stride, "with gaps between the rows of a, sums are split"),
	FIXED("split_by_tail", split_by_tail, "with one column past a multiple of 32, sums are split"),
	FIXED("split_by_n", split_by_n, "up to 40 columns, sums are split"),
	FIXED("split_above_4096", split_above_4096, "above 4096 columns, sums are split"),
	FIXED("split_above_32768", split_above_32768, "above 32768 columns, sums are split"),
	FIXED("split_by_row_0", split_by_row_0, "what row 0 holds decides how sums are split"),
	FIXED("merged_by_arrival", merged_by_arrival, "partial sums are added in the order of arrival"),
	FIXED("counter_kept", counter_kept, "from the second call on, the last rows of tiles are missing"),
	FIXED("sms_above_132", sms_above_132, "refuses more than 132 SMs"),
	FIXED("offset_32_bits", offset_32_bits, "cuts the offset of a row of a or b to 32 bits"),
	{ "gemm_fixed_corner_with_gaps", offsetof(struct cairn_impl, gemm_fixed),
	  (void *)gemm_fixed_corner_with_gaps,
	  "with gaps, 63 rows and one column past whole tiles, the last element is 0" },
	{ "gemm_fixed_long_sum_of_last_row", offsetof(struct cairn_impl, gemm_fixed),
	  (void *)gemm_fixed_long_sum_of_last_row,
	  "sums longer than 512 are lost in a single row past whole tiles" },
	{ 0 }
};
