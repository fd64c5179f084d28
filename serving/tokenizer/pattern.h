/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pattern - runs the regular expressions of tokenizer.json
 *
 * These files are written for Oniguruma with Ruby syntax; this module runs them on PCRE2. The two agree on
 * most of what tokenizers use. Where they differ, the pattern is translated:
 *
 *   Oniguruma                                      becomes in PCRE2
 *   \s, \S: the property White_Space               the list of its characters (PCRE2 adds U+180E)
 *   \w, \d, \h: Unicode words, Nd, hex digits      classes (PCRE2: other words; \h is a blank)
 *   \p{L} and other categories, of Unicode 16      \p{L} and characters added after PCRE2's Unicode 14
 *   \p{Han}: Script=Han                            \p{sc:Han} (10.40 on: Script_Extensions)
 *   ^ and $ at every line; (?m): dot matches all   multi-line on; (?s)
 *   \v is U+000B; \uHHHH; {,n}                     \x{b}; \x{HHHH}; {0,n}
 *
 * Rejected with -EOPNOTSUPP and an error that names the construct, rather than run with another meaning:
 * nested classes and && in classes, POSIX brackets, \b \B \X \K, back references, named groups,
 * conditionals, callouts, {n,m}+ (Ruby: a repeat of a repeat), options in mid-pattern, properties other
 * than general categories and scripts.
 *
 * Differences that remain: (?i) folds character by character, while Oniguruma also lets "ss" match U+00DF.
 * \p{C}, \p{Cn}, \p{Mn}, \p{Mc} and \P{...} inside a class follow the Unicode version of the installed PCRE2.
 *
 * Time:    a match has a budget of backtracking steps and of memory; a pattern that exceeds it on a text
 *          fails with -EINVAL for that text. Uses PCRE2's JIT if the machine has it.
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

/* A reusable result. Initialise with { 0 }, release with cairn_spans_free(). */
struct cairn_spans {
	struct cairn_span *v;
	size_t num, cap;
	void *scratch;
};

/* where is copied: error messages begin with it. */
int cairn_pattern_compile(const char *regex, size_t len, const char *where,
			  struct cairn_pattern **out);
/* Makes a pattern that matches exactly these bytes (1 or more). */
int cairn_pattern_literal(const char *bytes, size_t len, const char *where,
			  struct cairn_pattern **out);
/* Returns the PCRE2 form of a regex, NUL-terminated, for tests and debugging. The caller frees *out. */
int cairn_pattern_translate(const char *regex, size_t len, const char *where, char **out,
			    size_t *out_len);
void cairn_pattern_free(struct cairn_pattern *p);	/* p may be NULL */

/*
 * Cuts text, well-formed UTF-8, into matches and the stretches between them: adjacent spans in order from 0
 * to len; matches are leftmost first and do not overlap. Empty matches are included, except directly
 * after another match. An empty text without a match gives one empty non-match.
 */
int cairn_pattern_spans(const struct cairn_pattern *p, const char *text, size_t len,
			struct cairn_spans *spans);
int cairn_spans_add(struct cairn_spans *spans, size_t begin, size_t end, bool match);
void cairn_spans_free(struct cairn_spans *spans);

#endif
