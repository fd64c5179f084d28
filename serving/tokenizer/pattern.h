/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pattern - the regular expressions of tokenizer.json
 *
 * Those files are written for Oniguruma with its Ruby syntax; this runs them on PCRE2. The two
 * agree on most of what tokenizers use, and where they do not the pattern is translated, not hoped
 * about:
 *
 *   Oniguruma                                      becomes in PCRE2
 *   \s, \S: the property White_Space               the list of its characters (PCRE2 adds U+180E)
 *   \w, \d, \h: Unicode words, Nd, hex digits      classes (PCRE2: other words; \h is a blank)
 *   \p{L} and other categories, of Unicode 16      \p{L} and what came after PCRE2's Unicode 14
 *   \p{Han}: Script=Han                            \p{sc:Han} (10.40 on: Script_Extensions)
 *   ^ and $ at every line; (?m): dot is all        multi-line on; (?s)
 *   \v is U+000B; \uHHHH; {,n}                     \x{b}; \x{HHHH}; {0,n}
 *
 * Refused with -EOPNOTSUPP, naming the construct, rather than run with another meaning: nested
 * classes and && in classes, POSIX brackets, \b \B \X \K, back references, named groups,
 * conditionals, callouts, {n,m}+ (Ruby: a repeat of a repeat), options in mid-pattern, other
 * properties than general categories and scripts.
 *
 * (?i) folds character by character: Oniguruma also lets "ss" match U+00DF.
 * \p{C}, \p{Cn}, \p{Mn}, \p{Mc} and \P{...} inside a class keep the Unicode version of the PCRE2 at
 * hand.
 *
 * Time:    a match has a budget of backtracking steps and of memory; a pattern that exceeds it on
 *          some text gives -EINVAL for that text. With PCRE2's JIT where the machine has it.
 * Threads: a compiled pattern is read-only and may be shared.
 */
#ifndef CAIRN_PATTERN_H
#define CAIRN_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

struct cairn_pattern;

struct cairn_span {
	size_t begin, end;	/* bytes */
	bool match;
};

/* A reusable result. Start with { 0 }; cairn_spans_free() at the end. */
struct cairn_spans {
	struct cairn_span *v;
	size_t num, cap;
	void *scratch;
};

/* where: what messages begin with, copied. */
int cairn_pattern_compile(const char *regex, size_t len, const char *where,
			  struct cairn_pattern **out);
/* Exactly these bytes (1 or more), no expression. */
int cairn_pattern_literal(const char *bytes, size_t len, const char *where,
			  struct cairn_pattern **out);
/* The PCRE2 form of a regex, NUL-terminated, for the curious. The caller frees *out. */
int cairn_pattern_translate(const char *regex, size_t len, const char *where, char **out,
			    size_t *out_len);
void cairn_pattern_free(struct cairn_pattern *p);	/* NULL is fine */

/*
 * Cuts text, well-formed UTF-8, into matches and what lies between: spans that touch, in order,
 * from 0 to len, leftmost first, not overlapping. Empty matches are there too, except right behind
 * another match. One empty non-match for an empty text.
 */
int cairn_pattern_spans(const struct cairn_pattern *p, const char *text, size_t len,
			struct cairn_spans *spans);
int cairn_spans_add(struct cairn_spans *spans, size_t begin, size_t end, bool match);
void cairn_spans_free(struct cairn_spans *spans);

#endif
