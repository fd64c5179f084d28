/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_lp - mixed-integer linear programs: building, writing as an LP file, solving with the program cbc
 *
 * Minimises the sum of cost * column. Columns and rows are named as printf would print them; a name must be a
 * word of letters, digits and _ that does not begin with a digit or an e.
 *
 * Building functions remember the first failure, so a builder needs to check only the solver's answer.
 */
#ifndef CAIRN_SEARCH_LP_H
#define CAIRN_SEARCH_LP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct cairn_lp;

int cairn_lp_create(struct cairn_lp **out);
void cairn_lp_destroy(struct cairn_lp *lp);	/* NULL is legal */

/* Adds a column within [lo, hi], finite. Returns its index, or -errno. */
int32_t cairn_lp_col(struct cairn_lp *lp, double lo, double hi, bool integer, const char *name, ...)
	__attribute__((format(printf, 5, 6)));
void cairn_lp_cost(struct cairn_lp *lp, int32_t col, double cost);
/* Sets a column's value in the solution that the search starts from; integer columns are enough. */
void cairn_lp_start(struct cairn_lp *lp, int32_t col, double value);
/* Begins a row: the sum of its terms is at most ('<'), at least ('>') or equal to ('=') rhs. */
void cairn_lp_row(struct cairn_lp *lp, char sense, double rhs, const char *name, ...)
	__attribute__((format(printf, 4, 5)));
/* Adds coef * col to the last row. A column may occur several times. */
void cairn_lp_term(struct cairn_lp *lp, int32_t col, double coef);

int32_t cairn_lp_num_cols(const struct cairn_lp *lp);
int32_t cairn_lp_num_rows(const struct cairn_lp *lp);
int32_t cairn_lp_num_integers(const struct cairn_lp *lp);

/* Writes the program in CPLEX's LP format. */
void cairn_lp_write(const struct cairn_lp *lp, FILE *file);

struct cairn_lp_limits {
	double seconds;		/* elapsed */
	double gap;		/* relative: stop once (value - bound) / |value| is at most that */
	const char *dump;	/* also write the LP to this file; NULL: do not */
	double grace;		/* seconds until the child is killed once its time is up; 0: 10 */
};

struct cairn_lp_answer {
	double *values;		/* [columns], the caller frees it */
	double cost, bound;	/* of the solution; no solution costs less than bound */
	double seconds;
	bool optimal;		/* within the gap; else the time was up */
};

/*
 * Runs cbc ($CAIRN_CBC, else cbc in $PATH) as a child process, which is killed if it does not end in time.
 * Errors: -ENOENT (there is no cbc: the text says so), -EINVAL (no solution exists),
 * -ETIMEDOUT (none was found in time, or the child had to be killed), -EIO (cbc failed, or its answer is not
 * understood), -ENOMEM.
 */
int cairn_lp_solve(struct cairn_lp *lp, const struct cairn_lp_limits *limits, struct cairn_lp_answer *answer);

#endif
