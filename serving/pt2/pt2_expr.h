/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt2_expr - symbolic sizes of exported programs
 *
 * PyTorch writes a size as SymPy's srepr() prints it, and older versions as str() does:
 *
 *   Mul(Integer(32), Add(Symbol('s27', positive=True, integer=True), Integer(-1)))
 *   32*(s27 - 1)
 *
 * Read are Integer, Symbol, Add, Mul, Pow with an exponent of 0 to 62, Max, Min, and PyTorch's FloorDiv, Mod
 * and PythonMod, and CleanDiv and IntTrueDiv with an exact quotient. Any other function is refused by its
 * name. So are all operators but +, -, *, //, %, ** and parentheses.
 *
 * Errors: -EINVAL (the text has what is wrong, but not the value whose size it is), -ENOMEM.
 */
#ifndef CAIRN_PT2_EXPR_H
#define CAIRN_PT2_EXPR_H

#include <stdint.h>

#define CAIRN_PT2_SYMBOLS	64	/* of one program */

struct cairn_pt2_symbol {
	char name[32];
	int64_t least, most;		/* range; most INT64_MAX: no limit */
	int64_t hint;			/* its value in the example that was exported; 0: unknown */
};

struct cairn_pt2_term;

/* All expressions of a program; a size is the index of a term. */
struct cairn_pt2_exprs {
	struct cairn_pt2_symbol symbols[CAIRN_PT2_SYMBOLS];
	struct cairn_pt2_term *terms;
	int32_t num_symbols, num_terms, room;
};

void cairn_pt2_exprs_free(struct cairn_pt2_exprs *e);
/* Returns the index of a constant, or -errno. */
int32_t cairn_pt2_expr_int(struct cairn_pt2_exprs *e, int64_t value);
/* Parses an expression. Returns its index, or -errno. */
int32_t cairn_pt2_expr_parse(struct cairn_pt2_exprs *e, const char *text);
/* Returns the index of a symbol, which is added if it is new, or -errno. */
int32_t cairn_pt2_symbol(struct cairn_pt2_exprs *e, const char *name);
/* If the expression is one symbol alone, returns its index; else -1. */
int32_t cairn_pt2_expr_symbol(const struct cairn_pt2_exprs *e, int32_t expr);
/* values: of the symbols. -EINVAL: the result does not fit 64 bits, or a quotient is not defined. */
int cairn_pt2_expr_value(const struct cairn_pt2_exprs *e, int32_t expr, const int64_t *values,
			 int64_t *value);

#endif
