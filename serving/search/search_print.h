/* SPDX-License-Identifier: Apache-2.0 */
/* search_print - writes pipelines and results of a search as text */
#ifndef CAIRN_SEARCH_PRINT_H
#define CAIRN_SEARCH_PRINT_H

#include <stdio.h>

#include "serving/search/search.h"

/* Writes a line for each operation: what bounds it, its share of a sequential layer, and what it covers. */
void cairn_search_print_ops(const struct cairn_search_problem *problem, FILE *file);
/* Writes the times of each try, then the best schedule as a table and as a timeline of one period. */
void cairn_search_print_found(const struct cairn_search_problem *problem,
			      const struct cairn_search_found *found, FILE *file);

#endif
