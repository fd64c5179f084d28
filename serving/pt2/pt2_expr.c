// SPDX-License-Identifier: Apache-2.0
/* pt2_expr - parses and evaluates symbolic sizes (pt2_expr.h) */
#include "serving/pt2/pt2_expr.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

#define MAX_DEPTH	512	/* operands of a sum, which are grouped from the left, count as well */
#define MAX_TERMS	(1 << 24)	/* of a program */

enum op { INTEGER, SYMBOL, ADD, MUL, POW, MAX, MIN, FLOOR_DIV, EXACT_DIV, MOD };

/* INTEGER: a is the value; SYMBOL: a is the symbol; the others have the operands a and b. */
struct cairn_pt2_term {
	enum op op;
	int32_t depth;
	int64_t a, b;
};

struct parser {
	struct cairn_pt2_exprs *e;
	const char *at;
	int depth;
};

void cairn_pt2_exprs_free(struct cairn_pt2_exprs *e)
{
	free(e->terms);
	*e = (struct cairn_pt2_exprs){ .num_terms = 0 };
}

static int32_t add(struct cairn_pt2_exprs *e, enum op op, int64_t a, int64_t b)
{
	int32_t depth = 1;

	if (e->num_terms == e->room) {
		int32_t room = e->room ? 2 * e->room : 256;
		struct cairn_pt2_term *terms;

		if (room > MAX_TERMS)
			return cairn_error(EINVAL, "the program has more than %d terms in its sizes",
					   MAX_TERMS);
		terms = realloc(e->terms, (size_t)room * sizeof(*terms));
		if (!terms)
			return cairn_error(ENOMEM, "pt2: no memory");
		e->terms = terms;
		e->room = room;
	}
	if (op > SYMBOL)
		depth += e->terms[a].depth > e->terms[b].depth ? e->terms[a].depth : e->terms[b].depth;
	if (depth > MAX_DEPTH)
		return cairn_error(EINVAL, "its size is nested more than %d deep", MAX_DEPTH);
	e->terms[e->num_terms] = (struct cairn_pt2_term){ op, depth, a, b };
	return e->num_terms++;
}

int32_t cairn_pt2_expr_int(struct cairn_pt2_exprs *e, int64_t value)
{
	return add(e, INTEGER, value, 0);
}

int32_t cairn_pt2_symbol(struct cairn_pt2_exprs *e, const char *name)
{
	struct cairn_pt2_symbol *s;

	for (int32_t i = 0; i < e->num_symbols; i++)
		if (!strcmp(e->symbols[i].name, name))
			return i;
	if (strlen(name) >= sizeof(s->name))
		return cairn_error(EINVAL, "symbol %s has a name of more than %zu bytes", CAIRN_QUOTED(name),
				   sizeof(s->name) - 1);
	if (e->num_symbols == CAIRN_PT2_SYMBOLS)
		return cairn_error(EINVAL, "has more than %d symbols", CAIRN_PT2_SYMBOLS);
	s = &e->symbols[e->num_symbols];
	*s = (struct cairn_pt2_symbol){ .most = INT64_MAX };
	strcpy(s->name, name);
	return e->num_symbols++;
}

int32_t cairn_pt2_expr_symbol(const struct cairn_pt2_exprs *e, int32_t expr)
{
	return e->terms[expr].op == SYMBOL ? (int32_t)e->terms[expr].a : -1;
}

static void skip(struct parser *p)
{
	while (*p->at == ' ')
		p->at++;
}

static int take(struct parser *p, char c)
{
	skip(p);
	if (*p->at != c)
		return 0;
	p->at++;
	return 1;
}

/* Reads a word of letters, digits and underscores. Returns its length; 0: there is none that fits. */
static size_t word(struct parser *p, char *to, size_t room)
{
	size_t n = 0;

	skip(p);
	while (isalnum((unsigned char)p->at[n]) || p->at[n] == '_')
		n++;
	if (n >= room)
		return 0;
	memcpy(to, p->at, n);
	to[n] = 0;
	p->at += n;
	return n;
}

static int32_t malformed(const struct parser *p)
{
	return cairn_error(EINVAL, "its size is malformed at %s", CAIRN_QUOTED(p->at));
}

/* Symbol('s27', positive=True, integer=True): the assumptions do not matter. */
static int32_t parse_symbol(struct parser *p)
{
	char name[64], assumption[64];
	int32_t symbol;

	if (!take(p, '\'') || !word(p, name, sizeof(name)) || !take(p, '\''))
		return malformed(p);
	while (take(p, ','))
		if (!word(p, assumption, sizeof(assumption)) || !take(p, '=') ||
		    !word(p, assumption, sizeof(assumption)))
			return malformed(p);
	if (!take(p, ')'))
		return malformed(p);
	symbol = cairn_pt2_symbol(p->e, name);
	return symbol < 0 ? symbol : add(p->e, SYMBOL, symbol, 0);
}

static int32_t parse_integer(struct parser *p)
{
	char *end;
	long long value;

	errno = 0;
	value = strtoll(p->at, &end, 10);
	if (end == p->at || errno)
		return malformed(p);
	p->at = end;
	return take(p, ')') ? add(p->e, INTEGER, value, 0) : malformed(p);
}

static int32_t parse(struct parser *p);

/* Operands of a function until its parenthesis; more than two are grouped from the left. */
static int32_t parse_operands(struct parser *p, enum op op)
{
	int32_t left = parse(p), right, num = 1;

	if (left < 0)
		return left;
	for (; take(p, ','); num++) {
		char key[32];
		const char *before = p->at;

		/* evaluate=False */
		if (word(p, key, sizeof(key)) && take(p, '=')) {
			if (!word(p, key, sizeof(key)))
				return malformed(p);
			num--;
			continue;
		}
		p->at = before;
		right = parse(p);
		if (right < 0)
			return right;
		if (num > 1 && op != ADD && op != MUL && op != MAX && op != MIN)
			return malformed(p);
		left = add(p->e, op, left, right);
		if (left < 0)
			return left;
	}
	if (num < 2 && op != ADD && op != MUL && op != MAX && op != MIN)
		return malformed(p);
	return take(p, ')') ? left : malformed(p);
}

static int32_t parse_function(struct parser *p)
{
	static const struct { const char *name; enum op op; } functions[] = {
		{ "Add", ADD }, { "Mul", MUL }, { "Pow", POW }, { "Max", MAX }, { "Min", MIN },
		{ "FloorDiv", FLOOR_DIV }, { "CleanDiv", EXACT_DIV }, { "IntTrueDiv", EXACT_DIV },
		{ "Mod", MOD }, { "PythonMod", MOD },
	};
	char name[64];

	if (!word(p, name, sizeof(name)))
		return malformed(p);
	if (!take(p, '(')) {
		int32_t symbol = cairn_pt2_symbol(p->e, name);

		return symbol < 0 ? symbol : add(p->e, SYMBOL, symbol, 0);
	}
	if (!strcmp(name, "Integer"))
		return parse_integer(p);
	if (!strcmp(name, "Symbol"))
		return parse_symbol(p);
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (!strcmp(name, functions[i].name))
			return parse_operands(p, functions[i].op);
	return cairn_error(EINVAL, "its size has the unknown function %s", CAIRN_QUOTED(name));
}

/* A number, a function, a symbol by its name alone, or a sum in parentheses. */
static int32_t parse_primary(struct parser *p)
{
	int32_t expr;
	char *end;

	skip(p);
	if (isdigit((unsigned char)*p->at)) {
		long long value;

		errno = 0;
		value = strtoll(p->at, &end, 10);
		if (errno)
			return malformed(p);
		p->at = end;
		return add(p->e, INTEGER, value, 0);
	}
	if (!take(p, '('))
		return parse_function(p);
	expr = parse(p);
	return expr < 0 || take(p, ')') ? expr : malformed(p);
}

/* -x, or x ** y. */
static int32_t parse_factor(struct parser *p)
{
	int32_t left, right;

	if (p->depth == MAX_DEPTH)
		return cairn_error(EINVAL, "its size is nested more than %d deep", MAX_DEPTH);
	p->depth++;
	if (take(p, '-')) {
		left = cairn_pt2_expr_int(p->e, -1);
		right = left < 0 ? left : parse_factor(p);
		left = right < 0 ? right : add(p->e, MUL, left, right);
	} else {
		left = parse_primary(p);
		skip(p);
		if (left >= 0 && !strncmp(p->at, "**", 2)) {
			p->at += 2;
			right = parse_factor(p);
			left = right < 0 ? right : add(p->e, POW, left, right);
		}
	}
	p->depth--;
	return left;
}

static int32_t parse_product(struct parser *p)
{
	int32_t left = parse_factor(p), right;

	while (left >= 0) {
		enum op op = MUL;

		skip(p);
		if (!strncmp(p->at, "//", 2)) {
			op = FLOOR_DIV;
			p->at += 2;
		} else if (*p->at == '*' || *p->at == '%') {
			op = *p->at++ == '*' ? MUL : MOD;
		} else {
			break;
		}
		right = parse_factor(p);
		left = right < 0 ? right : add(p->e, op, left, right);
	}
	return left;
}

static int32_t parse(struct parser *p)
{
	int32_t left = parse_product(p), right;

	while (left >= 0) {
		int plus = take(p, '+');

		if (!plus && !take(p, '-'))
			break;
		right = parse_product(p);
		if (right >= 0 && !plus) {
			int32_t minus = cairn_pt2_expr_int(p->e, -1);

			right = minus < 0 ? minus : add(p->e, MUL, minus, right);
		}
		left = right < 0 ? right : add(p->e, ADD, left, right);
	}
	return left;
}

int32_t cairn_pt2_expr_parse(struct cairn_pt2_exprs *e, const char *text)
{
	struct parser p = { .e = e, .at = text };
	int32_t expr = parse(&p);

	if (expr < 0)
		return expr;
	skip(&p);
	return *p.at ? malformed(&p) : expr;
}

/* ---- values ---- */

static int overflow(void)
{
	return cairn_error(EINVAL, "its size does not fit 64 bits");
}

static int power(int64_t base, int64_t exponent, int64_t *value)
{
	*value = 1;
	if (exponent < 0 || exponent > 62)
		return cairn_error(EINVAL, "its size has the exponent %lld", (long long)exponent);
	while (exponent--)
		if (__builtin_mul_overflow(*value, base, value))
			return overflow();
	return 0;
}

/* Division rounds down, and the remainder has the sign of the divisor, as in Python. */
static int divide(enum op op, int64_t a, int64_t b, int64_t *value)
{
	int64_t quotient, rest;

	if (!b || (b == -1 && a == INT64_MIN))
		return cairn_error(EINVAL, "its size has a quotient %lld / %lld", (long long)a, (long long)b);
	quotient = a / b;
	rest = a % b;
	if (rest && (rest < 0) != (b < 0)) {
		quotient--;
		rest += b;
	}
	if (op == EXACT_DIV && rest)
		return cairn_error(EINVAL, "its size has a quotient %lld / %lld", (long long)a, (long long)b);
	*value = op == MOD ? rest : quotient;
	return 0;
}

/* Terms are at most MAX_DEPTH deep. */
int cairn_pt2_expr_value(const struct cairn_pt2_exprs *e, int32_t expr, const int64_t *values,
			 int64_t *value)
{
	const struct cairn_pt2_term *t = &e->terms[expr];
	int64_t a = 0, b = 0;

	if (t->op == INTEGER || t->op == SYMBOL) {
		*value = t->op == INTEGER ? t->a : values[t->a];
		return 0;
	}
	CAIRN_TRY(cairn_pt2_expr_value(e, (int32_t)t->a, values, &a));
	CAIRN_TRY(cairn_pt2_expr_value(e, (int32_t)t->b, values, &b));
	switch (t->op) {
	case ADD:
		return __builtin_add_overflow(a, b, value) ? overflow() : 0;
	case MUL:
		return __builtin_mul_overflow(a, b, value) ? overflow() : 0;
	case POW:
		return power(a, b, value);
	case MAX:
		*value = a > b ? a : b;
		return 0;
	case MIN:
		*value = a < b ? a : b;
		return 0;
	default:
		return divide(t->op, a, b, value);
	}
}
