/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_brute_test - finds the shortest period by trying everything, without linear programs
 *
 * For a fixed set of durations it tries for each pair of parts that must not run at the same time each order
 * that is possible, in any layers. A period suffices if no cycle of waits is longer than it; the shortest one
 * is found by halving an interval.
 */
#ifndef CAIRN_SEARCH_BRUTE_TEST_H
#define CAIRN_SEARCH_BRUTE_TEST_H

#include "serving/search/search_problem.h"

/*
 * Stage 1: tries all sizes, all numbers of decoding rows that are multiples of decode_step, and all orders.
 * Returns the shortest period in ms.
 */
double search_brute_stage1(const struct cairn_search_problem *problem, int nanos, int decode_step);
/*
 * Stage 2: with the sizes and decoding rows of the schedule, tries all levels and all orders, but keeps the
 * order in which the parts of the first part's kind start within a period that begins with the first part.
 */
double search_brute_stage2(const struct cairn_search_problem *problem, int nanos,
			 const struct cairn_search_schedule *stage1);

#endif
