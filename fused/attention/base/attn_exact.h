/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_exact - the attention of one row of one head over a list of keys, in double, with a bound for the
 * error of any implementation
 */
#ifndef CAIRN_ATTN_EXACT_H
#define CAIRN_ATTN_EXACT_H

#include <stdint.h>

#define ATTN_MAX_DIM	256

/*
 * Where a key and its value begin. The scales are 1 unless K and V have 8 bits. The slacks, vectors of dtype,
 * say by how much each element of K and V may differ from the given one; NULL: not at all.
 */
struct attn_key {
	const void *k, *v;
	float k_scale, v_scale;
	const void *k_slack, *v_slack;
};

struct attn_numerics {
	int32_t dtype, kv_fp8;		/* kv_fp8: K and V are e4m3, else of dtype */
	int32_t qk_dim, v_dim;
	float sm_scale, softcap;
	int32_t merges;		/* how often results for some of the keys may be rounded and merged */
};

struct attn_exact_row {
	double *s, *d;			/* [max_keys] logits and bounds of their errors */
	struct attn_key *keys;		/* [max_keys] for the caller */
	double o[ATTN_MAX_DIM], bound[ATTN_MAX_DIM];
	double lse, lse_bound;
};

/*
 * The references judge only some rows of a large case: all rows of one with 4096 keys and 32 heads would take
 * minutes. Given the number of products in q.k, returns 0 to judge all rows, or n to judge one row in n.
 */
static inline uint32_t attn_exact_step(double products)
{
	return products <= 0x1p30 ? 0 : (uint32_t)(products * 0x1p-30) + 1;
}

/* Allocates a row as one block, which the caller frees with free(). Returns NULL if there is no memory. */
struct attn_exact_row *attn_exact_row_new(int max_keys);
/* Sets o, lse and their bounds to those of the row of q at q_row, which sees all n keys. */
void attn_exact_row(const struct attn_numerics *a, const void *q_row, const struct attn_key *keys, int n,
		    struct attn_exact_row *r);

#endif
