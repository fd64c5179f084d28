/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_teach_runs_test - code that the tests of attn_teach share: closed forms of the traffic, and runs
 *
 * A run is a forward and a backward pass of one algorithm. It is right if every result is within its bound of
 * the definition in double (teach_exact.c), and if the elements loaded, stored and allocated are exactly
 * those of the tables in the headers of the algorithms.
 */
#ifndef CAIRN_ATTN_TEACH_RUNS_TEST_H
#define CAIRN_ATTN_TEACH_RUNS_TEST_H

#include <math.h>
#include <string.h>

#include "conformance/harness.h"
#include "fused/attention/teach/attn_teach.h"
#include "fused/attention/teach/teach_chip.h"

/* attn_teach_claims_test.c */
void teach_accesses_grow_as_theorem_2_says(struct cairn_test *t);
void teach_memory_is_linear_in_n(struct cairn_test *t);
void teach_causal_skipping_halves_the_traffic(struct cairn_test *t);
void teach_blocks_fit_the_chip(struct cairn_test *t);
void teach_too_little_sram_fails(struct cairn_test *t);
void teach_gpt2_setting(struct cairn_test *t);
void teach_traffic(struct cairn_test *t);		/* a measure */

/* ---- the closed forms ---- */

struct traffic {
	int64_t loads, stores, hbm;
};

/* A problem's sizes; 64 bits, because products of them are counts. */
struct shape {
	int64_t n, d, M;
	int causal;
};

static inline int64_t quotient_up(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static inline int64_t smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline struct traffic standard_forward(struct shape s)
{
	int64_t nd = s.n * s.d, nn = s.n * s.n, T = quotient_up(s.n, s.M / (4 * s.d));

	return (struct traffic){ 2 * nn + (1 + 2 * T) * nd, 2 * nn + nd, 2 * nn };
}

static inline struct traffic standard_backward(struct shape s)
{
	int64_t nd = s.n * s.d, nn = s.n * s.n, T = quotient_up(s.n, s.M / (4 * s.d));

	return (struct traffic){ 5 * nn + (1 + 4 * T) * nd, 2 * nn + 3 * nd, 2 * nn };
}

static inline struct traffic flash1_forward(struct shape s)
{
	int64_t n = s.n, nd = n * s.d, Tc = quotient_up(n, s.M / (4 * s.d));

	return (struct traffic){ 2 * nd + Tc * (2 * nd + 2 * n), (1 + Tc) * (nd + 2 * n), 2 * n };
}

static inline struct traffic flash1_backward(struct shape s)
{
	int64_t n = s.n, nd = n * s.d, Tc = quotient_up(n, s.M / (8 * s.d));

	return (struct traffic){ 2 * nd + Tc * (4 * nd + 2 * n), (5 + Tc) * nd, 0 };
}

static inline struct traffic flash2_forward(struct shape s)
{
	int64_t n = s.n, nd = n * s.d, Br = s.M / (4 * s.d), Bc = smaller(Br, s.d), Tr = quotient_up(n, Br);
	int64_t keys = 0;

	for (int64_t i = 0; i < Tr; i++)
		keys += s.causal ? smaller(n, Bc * quotient_up(smaller(n, (i + 1) * Br), Bc)) : n;
	return (struct traffic){ nd + 2 * s.d * keys, nd + n, n };
}

static inline struct traffic flash2_backward(struct shape s)
{
	int64_t n = s.n, nd = n * s.d, Bc = s.M / (8 * s.d), Br = smaller(Bc, s.d), Tc = quotient_up(n, Bc);
	int64_t rows = 0;

	for (int64_t j = 0; j < Tc; j++)
		rows += n - (s.causal ? Br * (j * Bc / Br) : 0);
	return (struct traffic){ 4 * nd + (3 * s.d + 2) * rows, 3 * nd + n + s.d * rows, n };
}

/* ---- runs ---- */

static const struct algorithm {
	const char *name;
	int (*run[2])(struct chip *chip, struct attention *a);		/* forward, backward */
	struct traffic (*traffic[2])(struct shape s);
	int has_options, has_dropout;				/* a scale and a causal mask; dropout */
} algorithms[] = {
	{ "standard", { teach_standard_forward, teach_standard_backward },
	  { standard_forward, standard_backward }, 1, 0 },
	{ "flash1_simple", { teach_flash1_simple, teach_flash1_backward },
	  { flash1_forward, flash1_backward }, 0, 0 },
	{ "flash1", { teach_flash1_forward, teach_flash1_backward },
	  { flash1_forward, flash1_backward }, 1, 1 },
	{ "flash2", { teach_flash2_forward, teach_flash2_backward },
	  { flash2_forward, flash2_backward }, 1, 0 },
};

enum { STANDARD, FLASH1_SIMPLE, FLASH1, FLASH2, NUM_ALGORITHMS };

struct problem {
	struct chip *chip;
	struct attention a;
};

static inline struct problem new_problem(struct shape s, float dropout, int count_only)
{
	struct problem p = { .chip = chip_new(s.M) };
	struct hbm **all[] = { &p.a.Q, &p.a.K, &p.a.V, &p.a.dO, &p.a.O, &p.a.dQ, &p.a.dK, &p.a.dV };

	if (count_only)
		chip_count_only(p.chip);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		*all[i] = hbm_new(p.chip, (int)s.n, (int)s.d);
	p.a.n = (int)s.n;
	p.a.d = (int)s.d;
	p.a.causal = s.causal;
	p.a.sm_scale = 1;
	p.a.dropout = dropout;
	p.a.seed = 7;
	return p;
}

/* Fills the inputs with normal values on a grid of 2^-10, on which a test can step exactly. */
static inline void fill(struct cairn_test *t, struct problem *p, double logits)
{
	struct hbm *in[] = { p->a.Q, p->a.K, p->a.V, p->a.dO };

	for (size_t k = 0; k < ARRAY_SIZE(in); k++) {
		for (int i = 0; i < p->a.n * p->a.d; i++) {
			double x = -6;

			for (int u = 0; u < 12; u++)
				x += (double)(cairn_rand(t) >> 11) * 0x1p-53;
			hbm_host(in[k])[i] = (float)(rint((k < 2 ? logits * x : x) * 0x1p10) * 0x1p-10);
		}
	}
}

static inline struct problem copy_problem(const struct problem *p)
{
	struct shape s = { p->a.n, p->a.d, chip_size(p->chip), p->a.causal };
	struct problem q = new_problem(s, p->a.dropout, 0);
	struct hbm *from[] = { p->a.Q, p->a.K, p->a.V, p->a.dO }, *to[] = { q.a.Q, q.a.K, q.a.V, q.a.dO };

	q.a.sm_scale = p->a.sm_scale;
	for (size_t k = 0; k < ARRAY_SIZE(from); k++)
		memcpy(hbm_host(to[k]), hbm_host(from[k]), sizeof(float) * (size_t)(q.a.n * q.a.d));
	return q;
}

/* Runs one pass; returns what it moved and allocated. */
static inline struct traffic run_pass(const struct algorithm *g, int pass, struct problem *p, int *ret)
{
	struct chip_counts before = chip_counts(p->chip), after;

	*ret = g->run[pass](p->chip, &p->a);
	after = chip_counts(p->chip);
	return (struct traffic){ after.loads - before.loads, after.stores - before.stores,
				 after.hbm - before.hbm };
}

static inline int same_traffic(struct traffic a, struct traffic b)
{
	return a.loads == b.loads && a.stores == b.stores && a.hbm == b.hbm;
}

static inline int within(struct hbm *got, const double *want, const double *bound, int count, double *worst)
{
	for (int i = 0; i < count; i++) {
		double err = fabs(hbm_host(got)[i] - want[i]);

		if (!(err <= bound[i]))
			return 0;
		*worst = bound[i] > 0 ? fmax(*worst, err / bound[i]) : *worst;
	}
	return 1;
}

/* Checks the statistics of the rows: L, or m + log(l). Standard attention keeps none. */
static inline int right_lse(const struct attention *a, const struct teach_exact *e)
{
	for (int i = 0; i < a->n; i++) {
		double lse = a->L ? hbm_host(a->L)[i] :
			     a->l ? hbm_host(a->m)[i] + log(hbm_host(a->l)[i]) : e->lse[i];

		if (!(fabs(lse - e->lse[i]) <= e->lse_bound[i]))
			return 0;
	}
	return 1;
}

/*
 * Runs both passes. Returns NULL if everything is right, else what is wrong. worst: the largest error /
 * bound.
 */
static inline const char *refuse(const struct algorithm *g, struct problem *p, const struct teach_exact *e,
			  double *worst)
{
	static const char *const wrong_traffic[2] = { "traffic of the forward pass",
						      "traffic of the backward pass" };
	struct shape s = { p->a.n, p->a.d, chip_size(p->chip), p->a.causal };
	int nd = p->a.n * p->a.d, ret;

	for (int pass = 0; pass < 2; pass++) {
		struct traffic moved = run_pass(g, pass, p, &ret);

		if (ret)
			return cairn_last_error();
		if (!same_traffic(moved, g->traffic[pass](s)))
			return wrong_traffic[pass];
	}
	return !within(p->a.O, e->O, e->O_bound, nd, worst) ? "O" :
	       !right_lse(&p->a, e) ? "statistics" :
	       !within(p->a.dQ, e->dQ, e->dQ_bound, nd, worst) ? "dQ" :
	       !within(p->a.dK, e->dK, e->dK_bound, nd, worst) ? "dK" :
	       !within(p->a.dV, e->dV, e->dV_bound, nd, worst) ? "dV" : NULL;
}

/* n: a multiple of the blocks, not one, one block. M: 8d (the smallest blocks), not a multiple, large. */
static const struct shape shapes[] = {
	{ 16, 4, 128, 0 }, { 17, 4, 128, 0 }, { 64, 8, 512, 0 }, { 61, 8, 700, 0 }, { 1, 4, 64, 0 },
	{ 9, 5, 40, 0 }, { 48, 16, 1024, 0 }, { 50, 3, 400, 0 }, { 33, 7, 4000, 0 }, { 100, 16, 3000, 0 },
};

#endif
