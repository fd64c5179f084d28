// SPDX-License-Identifier: Apache-2.0
/* search_lp - builds a mixed-integer linear program and writes it as an LP file */
#include "serving/search/search_lp.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/search/search_lp_impl.h"

int cairn_lp_create(struct cairn_lp **out)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : cairn_error(ENOMEM, "lp: out of memory");
}

void cairn_lp_destroy(struct cairn_lp *lp)
{
	if (!lp)
		return;
	free(lp->cols);
	free(lp->rows);
	free(lp->terms);
	free(lp);
}

/* Makes room for one more element of an array whose room is the next power of two. Returns whether it has. */
static int room(struct cairn_lp *lp, void *array, int32_t num, size_t bytes)
{
	void *bigger;

	if (lp->error)
		return 0;
	if (num & (num - 1))
		return 1;
	bigger = realloc(*(void **)array, (num ? (size_t)num * 2 : 1) * bytes);
	if (!bigger) {
		lp->error = cairn_error(ENOMEM, "lp: out of memory");
		return 0;
	}
	*(void **)array = bigger;
	return 1;
}

int32_t cairn_lp_col(struct cairn_lp *lp, double lo, double hi, bool integer, const char *name, ...)
{
	struct cairn_lp_col *c;
	va_list args;

	if (!room(lp, &lp->cols, lp->num_cols, sizeof(*lp->cols)))
		return lp->error;
	c = &lp->cols[lp->num_cols];
	memset(c, 0, sizeof(*c));
	va_start(args, name);
	vsnprintf(c->name, sizeof(c->name), name, args);
	va_end(args);
	c->lo = lo;
	c->hi = hi;
	c->integer = integer;
	return lp->num_cols++;
}

void cairn_lp_cost(struct cairn_lp *lp, int32_t col, double cost)
{
	if (!lp->error)
		lp->cols[col].cost = cost;
}

void cairn_lp_start(struct cairn_lp *lp, int32_t col, double value)
{
	if (lp->error)
		return;
	lp->cols[col].start = value;
	lp->cols[col].has_start = true;
}

void cairn_lp_row(struct cairn_lp *lp, char sense, double rhs, const char *name, ...)
{
	struct cairn_lp_row *r;
	va_list args;

	if (!room(lp, &lp->rows, lp->num_rows, sizeof(*lp->rows)))
		return;
	r = &lp->rows[lp->num_rows++];
	memset(r, 0, sizeof(*r));
	va_start(args, name);
	vsnprintf(r->name, sizeof(r->name), name, args);
	va_end(args);
	r->rhs = rhs;
	r->sense = sense;
	r->first_term = lp->num_terms;
}

void cairn_lp_term(struct cairn_lp *lp, int32_t col, double coef)
{
	if (lp->error)
		return;
	for (int32_t i = lp->rows[lp->num_rows - 1].first_term; i < lp->num_terms; i++)
		if (lp->terms[i].col == col) {
			lp->terms[i].coef += coef;
			return;
		}
	if (room(lp, &lp->terms, lp->num_terms, sizeof(*lp->terms)))
		lp->terms[lp->num_terms++] = (struct cairn_lp_term){ col, coef };
}

int32_t cairn_lp_num_cols(const struct cairn_lp *lp)
{
	return lp->num_cols;
}

int32_t cairn_lp_num_rows(const struct cairn_lp *lp)
{
	return lp->num_rows;
}

int32_t cairn_lp_num_integers(const struct cairn_lp *lp)
{
	int32_t num = 0;

	for (int32_t i = 0; i < lp->num_cols; i++)
		num += lp->cols[i].integer && lp->cols[i].lo < lp->cols[i].hi;
	return num;
}

/* Writes a term; readers of the format limit the length of a line, so four share one. */
static void write_term(const struct cairn_lp *lp, FILE *file, int at, int32_t col, double coef)
{
	fprintf(file, "%s %+.17g %s", at && at % 4 == 0 ? "\n  " : "", coef, lp->cols[col].name);
}

static void write_row(const struct cairn_lp *lp, FILE *file, int32_t row)
{
	const struct cairn_lp_row *r = &lp->rows[row];
	int32_t end = row + 1 < lp->num_rows ? r[1].first_term : lp->num_terms;

	fprintf(file, " %s:", r->name);
	for (int32_t i = r->first_term; i < end; i++)
		write_term(lp, file, i - r->first_term, lp->terms[i].col, lp->terms[i].coef);
	fprintf(file, " %s %.17g\n", r->sense == '<' ? "<=" : r->sense == '>' ? ">=" : "=", r->rhs);
}

void cairn_lp_write(const struct cairn_lp *lp, FILE *file)
{
	int at = 0;

	fprintf(file, "Minimize\n obj:");
	for (int32_t i = 0; i < lp->num_cols; i++)
		if (lp->cols[i].cost != 0)
			write_term(lp, file, at++, i, lp->cols[i].cost);
	fprintf(file, "\nSubject To\n");
	for (int32_t i = 0; i < lp->num_rows; i++)
		write_row(lp, file, i);
	fprintf(file, "Bounds\n");
	for (int32_t i = 0; i < lp->num_cols; i++)
		fprintf(file, " %.17g <= %s <= %.17g\n", lp->cols[i].lo, lp->cols[i].name, lp->cols[i].hi);
	fprintf(file, "Integers\n");
	for (int32_t i = 0; i < lp->num_cols; i++)
		if (lp->cols[i].integer)
			fprintf(file, " %s\n", lp->cols[i].name);
	fprintf(file, "End\n");
}
