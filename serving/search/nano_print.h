/* SPDX-License-Identifier: Apache-2.0 */
/* nano_print - writes pipelines and results of a search as text */
#ifndef CAIRN_NANO_PRINT_H
#define CAIRN_NANO_PRINT_H

#include <stdio.h>

#include "serving/search/nano_search.h"

/* Writes a line for each operation: what bounds it, its share of a sequential layer, and what it covers. */
void cairn_nano_print_ops(const struct cairn_nano_problem *problem, FILE *file);
/* Writes the times of each try, then the best schedule as a table and as a timeline of one period. */
void cairn_nano_print_found(const struct cairn_nano_problem *problem, const struct cairn_nano_found *found,
			    FILE *file);

#endif
