// SPDX-License-Identifier: Apache-2.0
/*
 * attn_teach_test - the algorithms of the FlashAttention papers against the definition of attention
 *
 * It checks results, gradients and traffic of every algorithm. Then it plants faults, which leave out an
 * operation or move it by a row, and the same checks must reject each such run.
 */
#include <math.h>
#include <string.h>

#include "fused/attention/teach/attn_teach_runs_test.h"

static void run_shape(struct cairn_test *t, struct shape s, float dropout, float sm_scale, double logits,
		      double *worst)
{
	struct problem p = new_problem(s, dropout, 0);
	struct teach_exact *e;

	p.a.sm_scale = sm_scale;
	fill(t, &p, logits);
	e = teach_exact_new(&p.a);
	for (int k = 0; k < NUM_ALGORITHMS; k++) {
		const struct algorithm *g = &algorithms[k];
		struct problem q = copy_problem(&p);
		const char *wrong;

		if ((g->has_options || (!s.causal && sm_scale == 1)) && (g->has_dropout || !dropout)) {
			wrong = refuse(g, &q, e, worst);
			if (!EXPECT(t, !wrong))
				cairn_note(t, "%s, n %lld, d %lld, M %lld%s: %s", g->name, (long long)s.n,
					   (long long)s.d, (long long)s.M, s.causal ? ", causal" : "", wrong);
		}
		chip_free(q.chip);
	}
	teach_exact_free(e);
	chip_free(p.chip);
}

/* Results and traffic, with and without a mask, dropout and large logits, which overflow exp() in fp32. */
static void passes_equal_the_definition(struct cairn_test *t)
{
	double worst = 0;

	for (size_t k = 0; k < ARRAY_SIZE(shapes); k++) {
		for (int causal = 0; causal < 2; causal++) {
			struct shape s = shapes[k];

			s.causal = causal;
			run_shape(t, s, 0, 1, 1, &worst);
			run_shape(t, s, 0, 0.25f, 1, &worst);
			run_shape(t, s, 0, 1, 12, &worst);
			run_shape(t, s, 0.25f, 0.5f, 1, &worst);
		}
	}
	cairn_note(t, "largest error: %.2f of its bound", worst);
}

/* ---- gradients ---- */

static double loss(const struct attention *a)
{
	struct teach_exact *e = teach_exact_new(a);
	double sum = 0;

	for (int i = 0; i < a->n * a->d; i++)
		sum += hbm_host(a->dO)[i] * e->O[i];
	teach_exact_free(e);
	return sum;
}

/*
 * Compares the definition's backward pass with the gradient of sum(dO o O), computed by differences of the
 * definition's forward pass: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h, with an error of f''''' h^4 / 30.
 */
static void gradients_equal_finite_differences(struct cairn_test *t)
{
	for (int k = 0; k < 4; k++) {
		struct problem p = new_problem((struct shape){ 7, 3, 100, k & 1 }, k & 2 ? 0.3f : 0, 0);
		const double h = 0x1p-8;
		struct teach_exact *e;

		p.a.sm_scale = 0.5;
		fill(t, &p, 1);
		e = teach_exact_new(&p.a);
		for (int which = 0; which < 3; which++) {
			float *x = hbm_host(which == 0 ? p.a.Q : which == 1 ? p.a.K : p.a.V);
			const double *want = which == 0 ? e->dQ : which == 1 ? e->dK : e->dV;

			for (int i = 0; i < p.a.n * p.a.d; i++) {
				float old = x[i];
				double f[5], slope;

				for (int step = 0; step < 5; step++) {
					x[i] = old + (float)((step - 2) * h);
					f[step] = loss(&p.a);
				}
				x[i] = old;
				slope = (8 * (f[3] - f[1]) - (f[4] - f[0])) / (12 * h);
				EXPECT(t, fabs(slope - want[i]) <= 1e-6);
			}
		}
		teach_exact_free(e);
		chip_free(p.chip);
	}
}

/*
 * Two changes of the inputs leave O unchanged, so the loss has no slope along them.
 *   Replacing Q by x Q and K by K / x leaves S = Q K^T: sum dQ o Q - sum dK o K = 0. (Both sums are
 *   sum dS o S.)
 *   K + 1 c^T adds q.c to a whole row of S: the sum of the rows of dK is 0. (Each row of dS sums to 0.)
 */
static void gradients_along_invariances_vanish(struct cairn_test *t)
{
	for (int k = 0; k < NUM_ALGORITHMS; k++) {
		int causal = algorithms[k].has_options;
		struct problem p = new_problem((struct shape){ 45, 8, 600, causal }, 0, 0);
		double scale = 0, scale_bound = 0;
		struct teach_exact *e;
		int ret;

		fill(t, &p, 1);
		e = teach_exact_new(&p.a);
		for (int pass = 0; pass < 2; pass++) {
			run_pass(&algorithms[k], pass, &p, &ret);
			EXPECT(t, !ret);
		}
		for (int c = 0; c < p.a.d; c++) {
			double shift = 0, shift_bound = 0;

			for (int at = c; at < p.a.n * p.a.d; at += p.a.d) {
				double q = hbm_host(p.a.Q)[at], key = hbm_host(p.a.K)[at];

				scale += hbm_host(p.a.dQ)[at] * q - hbm_host(p.a.dK)[at] * key;
				scale_bound += e->dQ_bound[at] * fabs(q) + e->dK_bound[at] * fabs(key);
				shift += hbm_host(p.a.dK)[at];
				shift_bound += e->dK_bound[at];
			}
			EXPECT(t, fabs(shift) <= shift_bound);
		}
		EXPECT(t, fabs(scale) <= scale_bound);
		teach_exact_free(e);
		chip_free(p.chip);
	}
}

/* ---- what must be refused ---- */

static int same_bits(struct problem *p, struct problem *q)
{
	struct hbm *x[] = { p->a.O, p->a.dQ, p->a.dK, p->a.dV }, *y[] = { q->a.O, q->a.dQ, q->a.dK, q->a.dV };
	int same = 1;

	for (size_t k = 0; k < ARRAY_SIZE(x); k++)
		same &= !memcmp(hbm_host(x[k]), hbm_host(y[k]), sizeof(float) * (size_t)(p->a.n * p->a.d));
	return same;
}

enum { INPUTS = 64 };

/*
 * Leaves out each operation of each algorithm in turn: every load, store, product, rescale, mask and sum.
 * Then moves each load, store and mask by one row. A run with such a fault must be refused, unless it gives
 * the same bits and the same traffic: a rescale by 1, a mask on a tile where nothing is masked, or a load
 * that only masked elements use.
 *
 * One fault shows only with special inputs: softmax does not depend on which maximum is subtracted, until
 * exp() of the difference overflows. So every second input has large logits, and it is enough if one input
 * makes the checks reject the run.
 */
static void every_operation_matters(struct cairn_test *t)
{
	for (int k = 0; k < NUM_ALGORITHMS; k++) {
		const struct algorithm *g = &algorithms[k];
		int refused[3] = { 0 }, equal[3] = { 0 }, operations = 0;
		struct problem p[INPUTS], good[INPUTS];
		struct teach_exact *e[INPUTS];
		double worst = 0;

		for (int i = 0; i < INPUTS; i++) {
			p[i] = new_problem((struct shape){ 14, 4, 128, g->has_options },
					   g->has_dropout ? 0.25f : 0, 0);
			fill(t, &p[i], i & 1 ? 30 : 1);
			e[i] = teach_exact_new(&p[i].a);
			good[i] = copy_problem(&p[i]);
			EXPECT(t, !refuse(g, &good[i], e[i], &worst));
			operations = (int)chip_operations(good[i].chip);
		}
		for (int at = 0; at < 2 * operations; at++) {
			int fault = at < operations ? FAULT_LEFT_OUT : FAULT_OFF_BY_ONE, wrong = 0, same = 0;

			for (int i = 0; i < INPUTS && !wrong && !same; i++) {
				struct problem q = copy_problem(&p[i]);

				chip_plant(q.chip, fault, at % operations);
				wrong = refuse(g, &q, e[i], &worst) != NULL;
				same = !i && same_bits(&q, &good[i]);
				chip_free(q.chip);
			}
			EXPECT(t, wrong || same);
			refused[fault] += wrong;
			equal[fault] += !wrong && same;
		}
		EXPECT(t, equal[FAULT_LEFT_OUT] <= operations / 5);
		cairn_note(t, "%s: %d operations; left out: %d refused, %d change no bit; off by one: %d "
			   "refused", g->name, operations, refused[FAULT_LEFT_OUT], equal[FAULT_LEFT_OUT],
			   refused[FAULT_OFF_BY_ONE]);
		for (int i = 0; i < INPUTS; i++) {
			teach_exact_free(e[i]);
			chip_free(good[i].chip);
			chip_free(p[i].chip);
		}
	}
}

/* A backward pass that is told another scale, mask or seed than the forward pass is refused. */
static void other_arguments_backward_are_refused(struct cairn_test *t)
{
	for (int k = 0; k < NUM_ALGORITHMS; k++) {
		const struct algorithm *g = &algorithms[k];

		for (int what = 0; what < (g->has_dropout ? 4 : 3); what++) {
			struct problem p = new_problem((struct shape){ 14, 4, 128, 0 },
						       g->has_dropout ? 0.25f : 0, 0);
			struct teach_exact *e;
			double worst = 0;
			int ret[2], right;

			fill(t, &p, 1);
			e = teach_exact_new(&p.a);
			run_pass(g, 0, &p, &ret[0]);
			p.a.sm_scale = what == 1 ? 1.01f : 1;
			p.a.causal = what == 2 && k != STANDARD;	/* STANDARD keeps P, needs no mask */
			p.a.seed += what == 3;
			run_pass(g, 1, &p, &ret[1]);
			right = within(p.a.dQ, e->dQ, e->dQ_bound, p.a.n * p.a.d, &worst);
			EXPECT(t, !ret[0] && !ret[1]);
			EXPECT(t, right == (what == 0 || (what == 2 && k == STANDARD)));
			teach_exact_free(e);
			chip_free(p.chip);
		}
	}
}

static void options_that_a_paper_lacks_are_refused(struct cairn_test *t)
{
	struct problem p = new_problem((struct shape){ 16, 4, 128, 0 }, 0.5f, 1);

	EXPECT(t, teach_standard_forward(p.chip, &p.a) == -EOPNOTSUPP);
	EXPECT(t, teach_standard_backward(p.chip, &p.a) == -EOPNOTSUPP);
	EXPECT(t, teach_flash1_simple(p.chip, &p.a) == -EOPNOTSUPP);
	EXPECT(t, teach_flash2_forward(p.chip, &p.a) == -EOPNOTSUPP);
	EXPECT(t, teach_flash2_backward(p.chip, &p.a) == -EOPNOTSUPP);
	p.a.dropout = 0;
	p.a.causal = 1;
	EXPECT(t, teach_flash1_simple(p.chip, &p.a) == -EOPNOTSUPP);
	p.a.causal = 0;
	p.a.sm_scale = 0.5f;
	EXPECT(t, teach_flash1_simple(p.chip, &p.a) == -EOPNOTSUPP);
	chip_free(p.chip);
}

static void dropout_keeps_its_share(struct cairn_test *t)
{
	for (float p = 0.125f; p < 1; p += 0.25f) {
		int dropped = 0, same_seed = 0;

		for (int i = 0; i < 100; i++) {
			for (int j = 0; j < 100; j++) {
				float z = dropout_factor(i, j, p, 1);

				EXPECT(t, z == 0 || z == 1 / (1 - p));
				dropped += z == 0;
				same_seed += z == dropout_factor(i, j, p, 2);
			}
		}
		/* 10^4 draws: five standard deviations are at most 250 */
		EXPECT(t, fabs(dropped - 1e4 * p) <= 250);
		EXPECT(t, fabs(same_seed - 1e4 * (p * p + (1 - p) * (1 - p))) <= 250);
	}
}

static const struct cairn_unit units[] = {
	{ "passes_equal_the_definition", passes_equal_the_definition },
	{ "gradients_equal_finite_differences", gradients_equal_finite_differences },
	{ "gradients_along_invariances_vanish", gradients_along_invariances_vanish },
	{ "every_operation_matters", every_operation_matters },
	{ "other_arguments_backward_are_refused", other_arguments_backward_are_refused },
	{ "options_that_a_paper_lacks_are_refused", options_that_a_paper_lacks_are_refused },
	{ "dropout_keeps_its_share", dropout_keeps_its_share },
	{ "accesses_grow_as_theorem_2_says", teach_accesses_grow_as_theorem_2_says },
	{ "memory_is_linear_in_n", teach_memory_is_linear_in_n },
	{ "causal_skipping_halves_the_traffic", teach_causal_skipping_halves_the_traffic },
	{ "blocks_fit_the_chip", teach_blocks_fit_the_chip },
	{ "too_little_sram_fails", teach_too_little_sram_fails },
	{ "gpt2_setting", teach_gpt2_setting },
};

static const struct cairn_unit measures[] = {
	{ "traffic", teach_traffic },
};

const struct cairn_family cairn_attn_teach_family = {
	.stage = "fused", .name = "attn_teach", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
};
