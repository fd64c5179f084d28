// SPDX-License-Identifier: Apache-2.0
/* gemm_gated_mutants - wrong versions of gemm_gated that the suite must catch */
#include <math.h>

#include "conformance/harness.h"
#include "primitives/gemm/gated/gated_sum.h"
#include "primitives/gemm/gated/gemm_gated.h"

enum defect { SWAPPED, UP_OF_NEXT_ROW, INTERLEAVED, NO_BIAS_OF_UP, BIAS_OF_GATE, K_TAIL, N_TAIL, ROWS_LESS_1,
	      NO_ACTIVATION, GELU, NAN_IS_0, GATE_IN_E4M3, LAST_OF_9_ROWS };

static double sum_of(const struct cairn_gemm_gated_args *g, enum defect d, int64_t i, int64_t j)
{
	const int64_t end = d == K_TAIL && g->k > 64 ? g->k / 64 * 64 : g->k;
	double sum = 0, bias = 0;

	for (int64_t l = 0; l < end; l++) {
		double product = cairn_load(g->a, g->dtype, i * g->k + l) *
				 cairn_load(g->b, g->dtype, j * g->k + l);

		sum += d == NAN_IS_0 && isnan(product) ? 0 : product;
	}
	if (g->bias && !(d == NO_BIAS_OF_UP && j >= g->n))
		bias = cairn_load(g->bias, g->dtype, d == BIAS_OF_GATE ? j % g->n : j);
	return sum + bias;
}

static double act(enum defect d, double x)
{
	if (d == NO_ACTIVATION)
		return x;
	return d == GELU ? x / (1 + exp(-1.5957691216 * (x + 0.044715 * x * x * x))) : gated_silu(x);
}

static int64_t row_of_up(const struct cairn_gemm_gated_args *g, enum defect d, int64_t j)
{
	return d == UP_OF_NEXT_ROW ? g->n + (j + 1) % g->n : d == INTERLEAVED ? j / 8 * 16 + 8 + j % 8 :
	       g->n + j;
}

static double element(const struct cairn_gemm_gated_args *g, enum defect d, int64_t i, int64_t j)
{
	double gate = sum_of(g, d, i, d == INTERLEAVED ? j / 8 * 16 + j % 8 : j);
	double up = sum_of(g, d, i, row_of_up(g, d, j));

	if (d == GATE_IN_E4M3)
		gate = ldexp(rint(ldexp(gate, 3 - ilogb(gate))), ilogb(gate) - 3);
	return d == SWAPPED ? act(d, up) * gate : act(d, gate) * up;
}

static int bent(const struct cairn_gemm_gated_args *g, enum defect d)
{
	CAIRN_TRY(cairn_gemm_gated_check(g));
	for (int64_t i = 0; i < (d == ROWS_LESS_1 && g->m > 1 ? g->m - 1 : g->m); i++)
		for (int64_t j = 0; j < (d == N_TAIL && g->n > 16 ? g->n / 16 * 16 : g->n); j++)
			cairn_store(g->out, g->dtype, i * g->n + j,
				    d == LAST_OF_9_ROWS && g->m > 8 && i == g->m - 1 && j == g->n - 1 ? 0 :
				    element(g, d, i, j));
	return 0;
}

#define BENT(name, defect) \
static int name(const struct cairn_gemm_gated_args *g, void *stream) { (void)stream; return bent(g, defect); }
BENT(swapped, SWAPPED)
BENT(up_of_next_row, UP_OF_NEXT_ROW)
BENT(interleaved, INTERLEAVED)
BENT(no_bias_of_up, NO_BIAS_OF_UP)
BENT(bias_of_gate, BIAS_OF_GATE)
BENT(k_tail, K_TAIL)
BENT(n_tail, N_TAIL)
BENT(rows_less_1, ROWS_LESS_1)
BENT(no_activation, NO_ACTIVATION)
BENT(gelu, GELU)
BENT(nan_is_0, NAN_IS_0)
BENT(gate_in_e4m3, GATE_IN_E4M3)
BENT(last_of_9_rows, LAST_OF_9_ROWS)

static int past_the_end(const struct cairn_gemm_gated_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_gated_ref(g, stream));
	cairn_store(g->out, g->dtype, (int64_t)g->m * g->n, 0);
	return 0;
}

/* Every second call writes nothing, so that the previous call's output remains. */
static int stale_output(const struct cairn_gemm_gated_args *g, void *stream)
{
	static int calls;

	return calls++ & 1 ? 0 : cairn_gemm_gated_ref(g, stream);
}

/* Takes 49 rows, which the contract refuses. */
static int rows_unchecked(const struct cairn_gemm_gated_args *g, void *stream)
{
	return g && g->size >= sizeof(*g) && g->m == CAIRN_GEMM_GATED_M + 1 ? 0 :
	       cairn_gemm_gated_ref(g, stream);
}

#define MUTANT(name, fn, what) \
	{ "gemm_gated_" name, offsetof(struct cairn_impl, gemm_gated), (void *)fn, what }

const struct cairn_mutant cairn_gemm_gated_mutants[] = {
	MUTANT("swapped", swapped, "the activation is that of up"),
	MUTANT("up_of_next_row", up_of_next_row, "up is one row further"),
	MUTANT("interleaved", interleaved, "takes rows of gate and up to alternate by eights"),
	MUTANT("no_bias_of_up", no_bias_of_up, "up has no bias"),
	MUTANT("bias_of_gate", bias_of_gate, "up has the bias of gate"),
	MUTANT("k_tail", k_tail, "k is cut to a multiple of 64"),
	MUTANT("n_tail", n_tail, "the columns past a multiple of 16 are not written"),
	MUTANT("rows_less_1", rows_less_1, "the last row is not written"),
	MUTANT("no_activation", no_activation, "gate times up"),
	MUTANT("gelu", gelu, "the activation is gelu"),
	MUTANT("nan_is_0", nan_is_0, "a product with a NaN counts as 0"),
	MUTANT("gate_in_e4m3", gate_in_e4m3, "gate is rounded to four bits"),
	MUTANT("last_of_9_rows", last_of_9_rows, "above 8 rows, the last element is 0"),
	MUTANT("past_the_end", past_the_end, "writes an element behind out"),
	MUTANT("stale_output", stale_output, "every second call writes nothing"),
	MUTANT("rows_unchecked", rows_unchecked, "takes one row too many"),
	{ 0 }
};
