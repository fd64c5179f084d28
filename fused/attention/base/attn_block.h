/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_block - the steps of online softmax on the CPU, in fp32, for a few rows and a block of keys
 */
#ifndef CAIRN_ATTN_BLOCK_H
#define CAIRN_ATTN_BLOCK_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "fused/attention/base/attn_exact.h"

#define ATTN_BLOCK_ROWS		16
#define ATTN_BLOCK_KEYS		32
#define ATTN_PART_KEYS		512	/* keys of a state that is merged; a multiple of ATTN_BLOCK_KEYS */

/* Softmax state of up to ATTN_BLOCK_ROWS rows over some of their keys; O is not yet divided by l. */
struct attn_state {
	float m[ATTN_BLOCK_ROWS], l[ATTN_BLOCK_ROWS];
	float o[ATTN_BLOCK_ROWS][ATTN_MAX_DIM];
};

static inline void attn_state_clear(struct attn_state *p, int rows, int dim)
{
	for (int r = 0; r < rows; r++) {
		p->m[r] = -INFINITY;
		p->l[r] = 0;
		memset(p->o[r], 0, sizeof(float) * (size_t)dim);
	}
}

/* Widens f16 or bf16 without a branch, so that loops vectorise; NaN and infinity are preserved. */
static inline float attn_widen(uint16_t h, int dtype)
{
	uint32_t bits = (uint32_t)h << 16;
	float f, scaled;

	if (dtype == CAIRN_F16) {
		bits = (uint32_t)(h & 0x7fff) << 13;
		memcpy(&scaled, &bits, sizeof(scaled));
		scaled *= 0x1p112f;	/* corrects the exponent's bias; makes subnormals normal */
		memcpy(&bits, &scaled, sizeof(bits));
		bits = ((h & 0x7c00) == 0x7c00 ? bits | 0x7f800000 : bits) | (uint32_t)(h & 0x8000) << 16;
	}
	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline void attn_widen_row(float *dst, const void *row, int dim, int dtype)
{
	const uint16_t *src = row;

	if (dtype == CAIRN_F16)
		for (int c = 0; c < dim; c++)
			dst[c] = attn_widen(src[c], CAIRN_F16);
	else
		for (int c = 0; c < dim; c++)
			dst[c] = attn_widen(src[c], CAIRN_BF16);
}

/* Computes the logits of one row against a block of keys. */
static inline void attn_row_logits(float *s, const float *q, float (*kt)[ATTN_BLOCK_KEYS], int dim)
{
	float acc[ATTN_BLOCK_KEYS] = { 0 };

	for (int c = 0; c < dim; c++)
		for (int j = 0; j < ATTN_BLOCK_KEYS; j++)
			acc[j] += q[c] * kt[c][j];
	memcpy(s, acc, sizeof(acc));
}

/* Adds n logits of row r and their V to the state. */
static inline void attn_row_update(struct attn_state *p, int r, float *s, int n, float (*v)[ATTN_MAX_DIM],
				   int dim, float scale)
{
	float m = p->m[r], keep;

	for (int j = 0; j < n; j++)
		m = s[j] > m ? s[j] : m;
	keep = expf((p->m[r] - m) * scale);	/* 0 if m was -INFINITY */
	p->m[r] = m;
	p->l[r] *= keep;
	if (keep != 1)
		for (int c = 0; c < dim; c++)
			p->o[r][c] *= keep;
	for (int j = 0; j < n; j++) {
		float w = expf((s[j] - m) * scale);

		p->l[r] += w;
		for (int c = 0; c < dim; c++)
			p->o[r][c] += w * v[j][c];
	}
}

/* Merges row r of the next part into *p. A part in which the row sees no key changes nothing. */
static inline void attn_state_merge(struct attn_state *p, const struct attn_state *next, int r, int dim,
				    float scale)
{
	float m = fmaxf(p->m[r], next->m[r]), weight, other;

	if (next->m[r] == -INFINITY && next->l[r] == 0)
		return;
	if (p->m[r] == -INFINITY && p->l[r] == 0) {
		p->m[r] = next->m[r];
		p->l[r] = next->l[r];
		memcpy(p->o[r], next->o[r], sizeof(float) * (size_t)dim);
		return;
	}
	weight = expf((p->m[r] - m) * scale);
	other = expf((next->m[r] - m) * scale);
	p->m[r] = m;
	p->l[r] = weight * p->l[r] + other * next->l[r];
	for (int c = 0; c < dim; c++)
		p->o[r][c] = weight * p->o[r][c] + other * next->o[r][c];
}

#endif
