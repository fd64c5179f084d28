/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pattern - Oniguruma's semantics on PCRE2
 *
 * The family tokenizer_oracle compares real tokenizers with the library on random texts. This test covers
 * the known differences of the two engines one by one, and the constructs that are rejected.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/tokenizer/pattern.h"

/* spans: the expected pieces of the text, matches in [], non-matches as they are; "!": an error. */
static const struct {
	const char *regex, *text, *spans;
} meanings[] = {
	{ "a", "banana", "b[a]n[a]n[a]" },
	{ "a|an", "ban", "b[a]n" },			/* the first alternative, not the longest */
	{ "", "", "!" },				/* rejected */
	{ "b*", "abba", "[]a[bb]a[]" },
	{ "x*", "aä", "[]a[]ä[]" },			/* empty matches advance by characters, not bytes */
	{ "(?=b)", "abab", "a[]ba[]b" },
	/* \s is the property White_Space: U+0085 but not U+180E */
	{ "\\s", "a\u180eb\xc2\x85" "c\u3000d", "a\u180eb[\xc2\x85]c[\u3000]d" },
	{ "\\S+", "a\u180eb c", "[a\u180eb] [c]" },
	{ "[^\\S]", "a b", "a[ ]b" },
	{ "[\\s\\d]+", "a 1\t٣b", "a[ 1\t٣]b" },
	/* \w includes marks and letter numbers, but other numbers only of Latin-1 and outside a class */
	{ "\\w+", "e\u0301Ⅷ_²⁴ⓐ", "[e\u0301Ⅷ_²]⁴[ⓐ]" },
	{ "[\\w]+", "e\u0301Ⅷ_²⁴ⓐ", "[e\u0301Ⅷ_]²⁴[ⓐ]" },
	{ "\\W", "a²⁴b", "a²[⁴]b" },
	{ "\\D+", "1a٣", "1[a]٣" },
	/* Ruby: \h is a hexadecimal digit, \v one character */
	{ "\\h+", "xfF0 g", "x[fF0] g" },
	{ "\\v", "a\vb\nc", "a[\v]b\nc" },
	/* ^ and $ match at every line; (?m) lets the dot match a newline */
	{ "^a", "a\na", "[a]\n[a]" },
	{ "a$", "a\na\n", "[a]\n[a]\n" },
	{ "\\Aa", "a\na", "[a]\na" },
	{ "a.b", "a\nb", "a\nb" },
	{ "(?m:a.b)", "a\nb", "[a\nb]" },
	{ "(?i)straSSe|ß", "STRASSE", "[STRASSE]" },
	{ "(?i:'s)", "'S'ſ", "['S]['ſ]" },
	/* intervals */
	{ "a{,2}b", "aaab", "a[aab]" },
	{ "a{2,3}", "aaaaa", "[aaa][aa]" },
	{ "a{2,}?", "aaaaa", "[aa][aa]a" },
	{ "a{x", "a{x", "[a{x]" },
	{ "a++a|b", "aaab", "aaa[b]" },
	/* classes */
	{ "[]a]", "]b", "[]]b" },
	{ "[a\\-z]", "a-mz", "[a][-]m[z]" },
	{ "[\\p{L}-]+", "a-b c", "[a-b] [c]" },
	{ "[^\\p{^Lu}]", "aB", "a[B]" },
	{ "\\u0041\\x{42}\\x43", "ABC", "[ABC]" },
	{ "[一-龥]+", "a模型b", "a[模型]b" },
	/* Script, not Script_Extensions: U+30FB and U+3001 belong to several scripts */
	{ "\\p{Han}+", "模・型、", "[模]・[型]、" },
	{ "\\p{^Han}", "模x", "模[x]" },
	/* Unicode 15 and 16 */
	{ "\\p{L}", "\U0001e030\ua7cb\U000323af", "[\U0001e030][\ua7cb][\U000323af]" },
	{ "\\P{L}", "\U00031350x²", "\U00031350x[²]" },
	{ "[^\\p{L}\\p{N}]", "\U0001fae9\U00010d40", "[\U0001fae9]\U00010d40" },
	{ "\\p{Lu}", "\ua7cb\ua7cd", "[\ua7cb]\ua7cd" },
};

/* Returns the result of cairn_pattern_spans() in the notation of the table. */
static char *shown(const struct cairn_pattern *p, const char *text)
{
	struct cairn_spans spans = { 0 };
	char *out = calloc(1, strlen(text) * 4 + 16), *at = out;

	if (out && !cairn_pattern_spans(p, text, strlen(text), &spans)) {
		for (size_t i = 0; i < spans.num; i++) {
			size_t n = spans.v[i].end - spans.v[i].begin;

			if (spans.v[i].match)
				*at++ = '[';
			memcpy(at, text + spans.v[i].begin, n);
			at += n;
			if (spans.v[i].match)
				*at++ = ']';
		}
	}
	cairn_spans_free(&spans);
	return out;
}

static void meaning(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(meanings); i++) {
		const char *regex = meanings[i].regex;
		struct cairn_pattern *p = NULL;
		char *got;
		int ret = cairn_pattern_compile(regex, strlen(regex), "here", &p);

		if (!EXPECT(t, !ret == !!strcmp(meanings[i].spans, "!")))
			cairn_note(t, "%s: %s", regex, cairn_last_error());
		if (!p)
			continue;
		got = shown(p, meanings[i].text);
		if (!EXPECT(t, got && !strcmp(got, meanings[i].spans)))
			cairn_note(t, "%s: \"%s\", not \"%s\"", regex, got, meanings[i].spans);
		free(got);
		cairn_pattern_free(p);
	}
}

static void refused(struct cairn_test *t)
{
	static const struct {
		const char *regex;
		int err;
	} cases[] = {
		{ "[a[b]]", EOPNOTSUPP }, { "[[:alpha:]]", EOPNOTSUPP }, { "[a&&b]", EOPNOTSUPP },
		  { "\\bx", EOPNOTSUPP },
		{ "\\K", EOPNOTSUPP }, { "\\X", EOPNOTSUPP }, { "(a)\\1", EOPNOTSUPP },
		  { "(?<n>a)\\k<n>", EOPNOTSUPP },
		{ "(?<n>a)", EOPNOTSUPP }, { "(?(1)a)", EOPNOTSUPP }, { "(?#x)", EOPNOTSUPP },
		  { "(?x: a)", EOPNOTSUPP },
		{ "a(?i)b", EOPNOTSUPP }, { "(*UTF)a", EOPNOTSUPP }, { "a{2}+", EOPNOTSUPP },
		  { "a{2}?", EOPNOTSUPP },
		{ "a**", EOPNOTSUPP }, { "*a", EOPNOTSUPP }, { "\\p{Alpha}", EINVAL }, { "\\pL",
		  EOPNOTSUPP }, { "\\xe4", EOPNOTSUPP },
		{ "[\\D]", EOPNOTSUPP }, { "\\p{L", EINVAL }, { "\\", EINVAL }, { "[", EINVAL },
		  { "[]", EINVAL }, { "(", EINVAL },
		{ ")", EINVAL }, { "[b-a]", EINVAL }, { "\\x{110000}", EINVAL }, { "\\ud800",
		  EINVAL }, { "\\u12", EINVAL },
		{ "(?<=a+)b", EINVAL }, { "[a-\\d]", EINVAL }, { "a{70000}", EINVAL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct cairn_pattern *p = NULL;
		int ret = cairn_pattern_compile(cases[i].regex, strlen(cases[i].regex), "here", &p);

		if (!EXPECT(t, ret == -cases[i].err && !p) ||
		    !EXPECT(t, !strncmp(cairn_last_error(), "here: ", 6)))
			cairn_note(t, "%s: %d, \"%s\"", cases[i].regex, ret, cairn_last_error());
		cairn_pattern_free(p);
	}
}

/* A pattern that backtracks exponentially fails after its budget of steps. */
static void gives_up(struct cairn_test *t)
{
	static const char regex[] = "(?:a|a)*(?:a|a)*(?:b|c)";
	struct cairn_spans spans = { 0 };
	struct cairn_pattern *p = NULL;
	char text[64];

	memset(text, 'a', sizeof(text));
	if (!EXPECT(t,
		    !cairn_pattern_compile(regex, sizeof(regex) - 1, "pre_tokenizer.pattern", &p)))
		return;
	EXPECT(t, cairn_pattern_spans(p, text, sizeof(text), &spans) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(),
			"pre_tokenizer.pattern: gave up on the text: match limit exceeded");
	cairn_spans_free(&spans);
	cairn_pattern_free(p);
}

static void literal(struct cairn_test *t)
{
	struct cairn_pattern *p = NULL;
	char *got;

	EXPECT(t, cairn_pattern_literal("", 0, "here", &p) == -EINVAL && !p);
	if (!EXPECT(t, !cairn_pattern_literal(".*", 2, "here", &p)))
		return;
	got = shown(p, "a.*.*b.");
	EXPECT(t, got && !strcmp(got, "a[.*][.*]b."));
	free(got);
	cairn_pattern_free(p);
}

static const struct cairn_unit units[] = {
	{ "meaning", meaning }, { "refused", refused }, { "gives_up", gives_up }, { "literal",
	  literal },
};

const struct cairn_family cairn_pattern_family = {
	.stage = "serving", .name = "pattern", .units = units, .num_units = ARRAY_SIZE(units),
};
