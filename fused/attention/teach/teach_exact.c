// SPDX-License-Identifier: Apache-2.0
/*
 * teach_exact - attention and its gradients by their definition, in double, and bounds for fp32
 *
 * E = 2^-23, twice the error of one fp32 operation, which also covers products of errors. A sum of k terms,
 * in any order, has an error of at most k E times the sum of magnitudes. T, the number of times that a row is
 * rescaled, is at most n.
 *
 *   S      d products and a scale: s = E (d + 2) sm_scale sum |q k|
 *   P      exp of a difference: s, E |S - m|, and the roundings of exp and of T rescales; the exponents of
 *          the rescales add up to at most |S - m|. The relative error before normalisation is
 *          r = s + 2E |S - m| + 2E, and after it p = r + R: R = sum P r + E (5n + 16) is the error of l, of
 *          T rescales and of L.
 *   lse    R + E (|m| + |lse|)
 *   O      sum P Z |v| p, and R |O|
 *   dP     E (d + 2) sum |dO v|
 *   D      as rowsum(dO o O), sum |dO| bound(O) + E (d + 2) sum |dO O|; as rowsum(P o dP),
 *          sum P (p |dP| + bound(dP)) + E (n + 2) sum P |dP|; the bound is the sum of both
 *   dS     e = P (p |dP - D| + bound(dP) + bound(D) + 2E (|dP| + |D|))
 *   dQ     sm_scale (sum e |k| + E (2n + 2) sum |dS k|), as dQ also passes through HBM; dK alike
 *   dV     sum P Z |dO| (p + E (n + 2))
 *
 * Below 2^-126 an fp32 number loses bits and then becomes 0. Each element of P and of dS, and each product of
 * one, may be off by TINY, which is 2^10 times 2^-126, to allow for up to 2^10 rescales.
 */
#include "fused/attention/teach/attn_teach.h"

#include <math.h>
#include <stdlib.h>

#include "fused/attention/teach/teach_chip.h"

#define E	0x1p-23
#define TINY	0x1p-116

/* The inputs on the host, and the work space of one row: [n]. */
struct row {
	const float *Q, *K, *V, *dO;
	double *S, *p, *P, *Z;
	double R, m;
};

static double *doubles(int64_t count)
{
	double *x = calloc((size_t)count, sizeof(*x));

	if (!x)
		abort();
	return x;
}

static struct dot { double sum, magnitude; } dot(const float *a, const float *b, int d)
{
	struct dot s = { 0, 0 };

	for (int c = 0; c < d; c++) {
		s.sum += (double)a[c] * b[c];
		s.magnitude += fabs((double)a[c] * b[c]);
	}
	return s;
}

static void forward(const struct attention *a, struct row *w, struct teach_exact *e, int i)
{
	int n = a->n, d = a->d, keys = a->causal ? i + 1 : n;
	double l = 0;

	w->m = -INFINITY;
	for (int j = 0; j < keys; j++) {
		struct dot s = dot(w->Q + i * d, w->K + j * d, d);

		w->S[j] = a->sm_scale * s.sum;
		w->p[j] = E * (d + 2) * fabs(a->sm_scale) * s.magnitude;
		w->Z[j] = a->dropout ? dropout_factor(i, j, a->dropout, a->seed) : 1;
		w->m = fmax(w->m, w->S[j]);
	}
	for (int j = 0; j < keys; j++)
		l += exp(w->S[j] - w->m);
	e->lse[i] = w->m + log(l);
	w->R = E * (5 * n + 16);
	for (int j = 0; j < n; j++) {
		w->P[j] = j < keys ? exp(w->S[j] - e->lse[i]) : 0;
		w->p[j] += j < keys ? 2 * E * (w->m - w->S[j]) + 2 * E : 0;
		w->R += w->P[j] * w->p[j];
	}
	e->lse_bound[i] = w->R + E * (fabs(w->m) + fabs(e->lse[i]));
	for (int j = 0; j < keys; j++) {
		w->p[j] += w->R;
		for (int c = 0; c < d; c++) {
			e->O[i * d + c] += w->P[j] * w->Z[j] * w->V[j * d + c];
			e->O_bound[i * d + c] += (w->P[j] * w->p[j] + TINY) * w->Z[j] * fabs(w->V[j * d + c]);
		}
	}
	for (int c = 0; c < d; c++)
		e->O_bound[i * d + c] += w->R * fabs(e->O[i * d + c]);
}

/* Adds row i to the gradients; after forward() of this row. */
static void backward(const struct attention *a, struct row *w, struct teach_exact *e, int i)
{
	int n = a->n, d = a->d, keys = a->causal ? i + 1 : n;
	double tau = a->sm_scale, D = 0, D_bound = 0;

	for (int j = 0; j < keys; j++) {
		struct dot dP = dot(w->dO + i * d, w->V + j * d, d);
		double P = w->P[j], Z = w->Z[j];

		D += P * Z * dP.sum;
		D_bound += P * Z * ((w->p[j] + E * (n + 2)) * fabs(dP.sum) + E * (d + 2) * dP.magnitude);
	}
	for (int c = 0; c < d; c++)
		D_bound += fabs(w->dO[i * d + c]) *
			   (e->O_bound[i * d + c] + E * (d + 2) * fabs(e->O[i * d + c]));
	for (int j = 0; j < keys; j++) {
		struct dot dO_v = dot(w->dO + i * d, w->V + j * d, d);
		double P = w->P[j], PZ = P * w->Z[j], dP = dO_v.sum * w->Z[j], dS = P * (dP - D);
		double dP_bound = E * (d + 2) * dO_v.magnitude * w->Z[j];
		double bound = P * (w->p[j] * fabs(dP - D) + dP_bound + D_bound);

		bound += 2 * E * P * (fabs(dP) + fabs(D)) + E * (2 * n + 2) * fabs(dS);
		bound += TINY * (1 + fabs(dP) + fabs(D));
		for (int c = 0; c < d; c++) {
			e->dQ[i * d + c] += tau * dS * w->K[j * d + c];
			e->dK[j * d + c] += tau * dS * w->Q[i * d + c];
			e->dV[j * d + c] += PZ * w->dO[i * d + c];
			e->dQ_bound[i * d + c] += fabs(tau) * bound * fabs(w->K[j * d + c]) + TINY;
			e->dK_bound[j * d + c] += fabs(tau) * bound * fabs(w->Q[i * d + c]) + TINY;
			e->dV_bound[j * d + c] += PZ * fabs(w->dO[i * d + c]) * (w->p[j] + E * (n + 2)) +
						  TINY * (1 + fabs(w->dO[i * d + c]));
		}
	}
}

struct teach_exact *teach_exact_new(const struct attention *a)
{
	int n = a->n, nd = n * a->d;
	struct teach_exact *e = calloc(1, sizeof(*e));
	double **results[] = { &e->O, &e->dQ, &e->dK, &e->dV,
			       &e->O_bound, &e->dQ_bound, &e->dK_bound, &e->dV_bound };
	struct row w = {
		hbm_host(a->Q), hbm_host(a->K), hbm_host(a->V), hbm_host(a->dO),
		doubles(n), doubles(n), doubles(n), doubles(n), 0, 0,
	};

	if (!e)
		abort();
	for (size_t k = 0; k < sizeof(results) / sizeof(*results); k++)
		*results[k] = doubles(nd);
	e->lse = doubles(n);
	e->lse_bound = doubles(n);
	for (int i = 0; i < n; i++) {
		forward(a, &w, e, i);
		backward(a, &w, e, i);
	}
	free(w.S);
	free(w.p);
	free(w.P);
	free(w.Z);
	return e;
}

void teach_exact_free(struct teach_exact *e)
{
	double *all[] = { e->O, e->dQ, e->dK, e->dV, e->O_bound, e->dQ_bound, e->dK_bound, e->dV_bound,
			  e->lse, e->lse_bound };

	for (size_t k = 0; k < sizeof(all) / sizeof(*all); k++)
		free(all[k]);
	free(e);
}
