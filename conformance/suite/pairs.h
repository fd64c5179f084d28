/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pairs - cases for every two features: a covering array of strength 2
 *
 * A family lists its features as factors with numbered levels, such as dtype (3), bias (2), stride (2). The
 * rows of the array choose a level for each factor, so that any two levels of any two factors occur together
 * in some row. To find every defect that needs two features at once takes about as many rows as the two
 * largest factors have pairs of levels, not as many as the product of all factors.
 *
 * The rows are a function of the factors alone and are the same in every build: cases are named after the
 * number of a row, or after its levels. The algorithm in pairs.c and the factors of a published family
 * therefore never change. A family that gains a feature gets a second array.
 *
 *	static struct cairn_pairs pairs = { .num_factors = 3, .levels = { 3, 2, 2 } };
 *	#define NUM_PAIRS 6		// struct cairn_family needs a constant; see cairn_pairs_check()
 *
 *	const int8_t *level = cairn_pairs_row(&pairs, i);	// level[0] is the dtype of row i
 */
#ifndef CAIRN_PAIRS_H
#define CAIRN_PAIRS_H

#include <stdint.h>

#define CAIRN_PAIRS_FACTORS	24
#define CAIRN_PAIRS_LEVELS	16
#define CAIRN_PAIRS_ROWS	192

struct cairn_test;

struct cairn_pairs {
	int num_factors;
	int8_t levels[CAIRN_PAIRS_FACTORS];	/* numbers of levels */
	/*
	 * Returns whether these levels must not be combined; -1 is a level that is not chosen yet. If a set
	 * of levels is allowed, every subset of it must be allowed. NULL: nothing is forbidden. Two levels
	 * that no allowed row contains need not occur together.
	 */
	int (*forbidden)(const int8_t *level);

	/* private: the rows, made at the first use */
	int num_rows;
	int8_t rows[CAIRN_PAIRS_ROWS][CAIRN_PAIRS_FACTORS];
};

/* Returns the number of rows. */
int cairn_pairs_count(struct cairn_pairs *p);
/* Returns the levels of row i, or aborts if there is no such row. */
const int8_t *cairn_pairs_row(struct cairn_pairs *p, int i);
/*
 * Body of a unit: expects that there are num rows, that none is forbidden, and that they contain any two
 * levels that some allowed row could contain.
 */
void cairn_pairs_check(struct cairn_test *t, struct cairn_pairs *p, int num);

#endif
