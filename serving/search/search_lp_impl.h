/* SPDX-License-Identifier: Apache-2.0 */
/* search_lp_impl - the form in which search_lp.c keeps a program, for search_cbc.c */
#ifndef CAIRN_SEARCH_LP_IMPL_H
#define CAIRN_SEARCH_LP_IMPL_H

#include "serving/search/search_lp.h"

#define CAIRN_LP_NAME	32

struct cairn_lp_col {
	char name[CAIRN_LP_NAME];
	double lo, hi, cost, start;
	bool integer, has_start;
};

struct cairn_lp_row {
	char name[CAIRN_LP_NAME];
	double rhs;
	int32_t first_term;
	char sense;
};

struct cairn_lp_term {
	int32_t col;
	double coef;
};

struct cairn_lp {
	struct cairn_lp_col *cols;
	struct cairn_lp_row *rows;
	struct cairn_lp_term *terms;
	int32_t num_cols, num_rows, num_terms;
	int error;
};

#endif
