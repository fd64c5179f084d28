/* SPDX-License-Identifier: Apache-2.0 */
/*
 * normalize - normalizer steps, and the search for added tokens in a text
 *
 * Normal forms follow the `tokenizers` library, whose tables are older than utf8proc's: a code point in
 * inert_ranges (unicode_tables.h) is a barrier. It is copied unchanged, nothing is reordered or composed
 * across it, and the text between barriers is normalized separately.
 *
 * This file reorders combining marks by counting sort, because utf8proc uses an insertion sort: half a
 * megabyte of marks in descending order would take minutes.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "primitives/base/error.h"
#include "serving/tokenizer/tokenizer_impl.h"
#include "serving/tokenizer/unicode_tables.h"
#include "serving/base/utf8.h"

#define MAX_DECOMPOSITION	32	/* code points; the longest decomposition, of U+FDFA, has 18 */

int cairn_buf_reserve(struct buf *b, size_t n)
{
	size_t cap;
	char *grown;

	if (n >= SIZE_MAX / 4 - b->len)
		return cairn_error(ENOMEM, "no memory: the text is too long");
	if (b->len + n + 1 <= b->cap)
		return 0;
	cap = (b->len + n + 1) * 2;
	grown = realloc(b->s, cap);
	if (!grown)
		return cairn_error(ENOMEM, "no memory for %zu bytes of text", cap);
	b->s = grown;
	b->cap = cap;
	return 0;
}

int cairn_buf_add(struct buf *b, const char *s, size_t n)
{
	CAIRN_TRY(cairn_buf_reserve(b, n));
	if (n)
		memcpy(b->s + b->len, s, n);
	b->len += n;
	b->s[b->len] = 0;
	return 0;
}

void cairn_buf_free(struct buf *b)
{
	free(b->s);
}

int cairn_utf8_mend(const char *text, size_t len, struct buf *out)
{
	size_t done = 0, i = 0;
	uint32_t cp;
	int truncated;

	if (len == 0)
		return cairn_buf_add(out, "", 0);
	while (i < len) {
		int n = cairn_utf8_next(text + i, len - i, &cp, &truncated);

		if (n > 0) {
			i += (size_t)n;
			continue;
		}
		CAIRN_TRY(cairn_buf_add(out, text + done, i - done));
		CAIRN_TRY(cairn_buf_add(out, CAIRN_UTF8_REPLACEMENT, 3));
		i += (size_t)-n;
		done = i;
	}
	return cairn_buf_add(out, text + done, len - done);
}

bool cairn_is_white_space(uint32_t cp)
{
	if (cp < 0x80)
		return cp == ' ' || (cp >= 9 && cp <= 13);
	return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
	       cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static bool is_inert(uint32_t cp)
{
	size_t lo = 0, hi = sizeof(inert_ranges) / sizeof(*inert_ranges);

	if (cp < inert_ranges[0].first)
		return false;
	while (hi - lo > 1) {
		size_t mid = (lo + hi) / 2;

		if (inert_ranges[mid].first <= cp)
			lo = mid;
		else
			hi = mid;
	}
	return cp <= inert_ranges[lo].last;
}

struct points {
	utf8proc_int32_t *v;
	size_t num, cap;
};

static int points_reserve(struct points *p, size_t more)
{
	utf8proc_int32_t *grown;
	size_t cap;

	if (p->num + more <= p->cap)
		return 0;
	cap = (p->num + more) * 2;
	grown = realloc(p->v, cap * sizeof(*grown));
	if (!grown)
		return cairn_error(ENOMEM, "no memory for %zu characters", cap);
	p->v = grown;
	p->cap = cap;
	return 0;
}

static unsigned combining_class(utf8proc_int32_t cp)
{
	return cp < 0x300 ? 0 : (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* Stable sort of a run of n marks by combining class. spare has room for n code points. */
static void sort_marks(utf8proc_int32_t *v, size_t n, utf8proc_int32_t *spare)
{
	size_t at[257] = { 0 };

	for (size_t i = 0; i < n; i++)
		at[combining_class(v[i]) + 1]++;
	for (size_t i = 1; i < 257; i++)
		at[i] += at[i - 1];
	for (size_t i = 0; i < n; i++)
		spare[at[combining_class(v[i])]++] = v[i];
	memcpy(v, spare, n * sizeof(*v));
}

static int reorder(struct points *p)
{
	size_t n = p->num, i = 0;

	while (i < n) {
		size_t start = i;
		unsigned last = 0, c;
		bool sorted = true;

		for (; i < n && (c = combining_class(p->v[i])); i++) {
			sorted &= c >= last;
			last = c;
		}
		if (!sorted) {
			CAIRN_TRY(points_reserve(p, i - start));
			sort_marks(p->v + start, i - start, p->v + n);
		}
		if (i == start)
			i++;
	}
	return 0;
}

/* Reorders, composes and writes the decomposed code points collected so far, up to a barrier or the end. */
static int flush_points(struct points *p, bool compose, struct buf *out)
{
	utf8proc_ssize_t n;
	char utf8[4];

	if (p->num == 0)
		return 0;
	CAIRN_TRY(reorder(p));
	n = (utf8proc_ssize_t)p->num;
	if (compose)
		n = utf8proc_normalize_utf32(p->v, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
	for (utf8proc_ssize_t i = 0; i < n; i++)
		CAIRN_TRY(
			cairn_buf_add(out, utf8, (size_t)cairn_utf8_put((uint32_t)p->v[i], utf8)));
	p->num = 0;
	return 0;
}

static int normal_form(enum step_kind kind, const char *text, size_t len, struct buf *out)
{
	bool compose = kind == STEP_NFC || kind == STEP_NFKC;
	int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
	struct points p = { 0 };
	size_t i, n;
	int ret = 0;

	if (kind == STEP_NFKC || kind == STEP_NFKD)
		options |= UTF8PROC_COMPAT;
	for (i = 0; i < len && !((unsigned char)text[i] & 0x80); i++)
		;
	if (i == len)
		return cairn_buf_add(out, text, len);
	for (i = 0; i < len && !ret; i += n) {
		uint32_t cp = cairn_utf8_get(text + i);
		utf8proc_ssize_t got = 1;

		n = cairn_utf8_len(text + i);
		if (is_inert(cp)) {
			ret = flush_points(&p, compose, out);
			if (!ret)
				ret = cairn_buf_add(out, text + i, n);
			continue;
		}
		ret = points_reserve(&p, MAX_DECOMPOSITION);
		if (ret)
			break;
		if (cp < 0xa0)
			p.v[p.num] = (utf8proc_int32_t)cp;
		else
			got = utf8proc_decompose_char((utf8proc_int32_t)cp, p.v + p.num,
						      MAX_DECOMPOSITION, (utf8proc_option_t)options,
						      NULL);
		if (got < 0 || got > MAX_DECOMPOSITION) {
			ret = cairn_error(EINVAL, "U+%04X: utf8proc: %s", (unsigned)cp,
					  got < 0 ? utf8proc_errmsg(got) : "too long");
			break;
		}
		p.num += (size_t)got;
	}
	if (!ret)
		ret = flush_points(&p, compose, out);
	free(p.v);
	return ret;
}

static int strip(const struct step *s, const char *text, size_t len, struct buf *out)
{
	size_t begin = 0, end = len;

	while (s->left && begin < end && cairn_is_white_space(cairn_utf8_get(text + begin)))
		begin += cairn_utf8_len(text + begin);
	while (s->right && end > begin) {
		size_t last = end - 1;

		while (last > begin && ((unsigned char)text[last] & 0xc0) == 0x80)
			last--;
		if (!cairn_is_white_space(cairn_utf8_get(text + last)))
			break;
		end = last;
	}
	return cairn_buf_add(out, text + begin, end - begin);
}

static int replace(const struct step *s, const char *text, size_t len, struct buf *out)
{
	struct cairn_spans spans = { 0 };
	int ret;

	ret = cairn_pattern_spans(s->pattern, text, len, &spans);
	for (size_t i = 0; i < spans.num && !ret; i++) {
		const struct cairn_span *sp = &spans.v[i];

		if (sp->match)
			ret = cairn_buf_add(out, s->text, s->len);
		else
			ret = cairn_buf_add(out, text + sp->begin, sp->end - sp->begin);
	}
	cairn_spans_free(&spans);
	return ret;
}

static int normalize_step(const struct step *s, const char *text, size_t len, struct buf *out)
{
	switch (s->kind) {
	case STEP_PREPEND:
		if (len)
			CAIRN_TRY(cairn_buf_add(out, s->text, s->len));
		return cairn_buf_add(out, text, len);
	case STEP_REPLACE:
		return replace(s, text, len, out);
	case STEP_STRIP:
		return strip(s, text, len, out);
	default:
		return normal_form(s->kind, text, len, out);
	}
}

int cairn_normalize(const struct steps *steps, const char *text, size_t len, struct buf *out)
{
	struct buf other = { 0 }, tmp;
	int ret;

	out->len = 0;
	ret = cairn_buf_add(out, text, len);
	for (size_t i = 0; i < steps->num && !ret; i++) {
		other.len = 0;
		ret = normalize_step(&steps->v[i], out->s, out->len, &other);
		tmp = *out;
		*out = other;
		other = tmp;
		if (!ret && !out->s)	/* the step wrote nothing: make the result an empty text */
			ret = cairn_buf_add(out, "", 0);
	}
	cairn_buf_free(&other);
	return ret;
}

static int by_match(const void *a, const void *b)
{
	const struct added_token *x = *(const struct added_token *const *)a;
	const struct added_token *y = *(const struct added_token *const *)b;
	size_t n = x->match_len < y->match_len ? x->match_len : y->match_len;
	int order = memcmp(x->match, y->match, n);

	return order ? order : (x->match_len > y->match_len) - (x->match_len < y->match_len);
}

int cairn_matcher_build(struct matcher *m, const struct added_token *added, size_t num_added,
			bool normalized)
{
	size_t n = 0;

	m->v = malloc((num_added + 1) * sizeof(*m->v));
	if (!m->v)
		return cairn_error(ENOMEM, "no memory for %zu added tokens", num_added);
	for (size_t i = 0; i < num_added; i++)
		if (added[i].normalized == normalized)
			m->v[n++] = &added[i];
	m->num = n;
	if (n > 1)
		qsort(m->v, n, sizeof(*m->v), by_match);
	for (size_t i = 0; i < n; i++)
		m->first[(unsigned char)m->v[i]->match[0] + 1] = (uint32_t)(i + 1);
	for (int b = 1; b < 257; b++)
		if (m->first[b] < m->first[b - 1])
			m->first[b] = m->first[b - 1];
	return 0;
}

/* Returns the longest token that is a prefix of s[0, n), or NULL. n > 0. */
static const struct added_token *longest(const struct matcher *m, const char *s, size_t n)
{
	size_t lo = m->first[(unsigned char)*s], hi = m->first[(unsigned char)*s + 1];
	const struct added_token *best = NULL;

	for (size_t depth = 1; lo < hi; depth++) {
			/* tokens [lo, hi) share their first depth bytes with s; the shortest comes first */
		size_t a, b;

		if (m->v[lo]->match_len == depth)
			best = m->v[lo++];
		if (depth == n)
			break;
		for (a = lo, b = hi; a < b;) {
			size_t mid = (a + b) / 2;

			if ((unsigned char)m->v[mid]->match[depth] < (unsigned char)s[depth])
				a = mid + 1;
			else
				b = mid;
		}
		lo = a;
		for (b = hi; a < b;) {
			size_t mid = (a + b) / 2;

			if ((unsigned char)m->v[mid]->match[depth] <= (unsigned char)s[depth])
				a = mid + 1;
			else
				b = mid;
		}
		hi = a;
	}
	return best;
}

/* Returns whether the library counts cp as \w: Alphabetic, M, Nd, Pc, Join_Control. */
static bool is_word(uint32_t cp)
{
	utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

	switch (c) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_PC:
		return true;
	default:
		break;
	}
	if (cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) ||
	    (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
	    (cp >= 0x1f170 && cp <= 0x1f189))
		return true;
	for (size_t i = 0; i < sizeof(new_categories) / sizeof(*new_categories); i++)
		if (cp >= new_categories[i].first && cp <= new_categories[i].last)
			return strchr("LM", new_categories[i].name[0]) ||
			       !strcmp(new_categories[i].name, "Nd");
	return false;
}

static size_t previous_char(const char *s, size_t at)
{
	do {
		at--;
	} while (((unsigned char)s[at] & 0xc0) == 0x80);
	return at;
}

static size_t moved(const struct plain_parts *plain, size_t at)
{
	return (at > plain->from ? at - plain->from : 0) + plain->to;
}

/*
 * The special token t matches at i, and `ahead` is the first plain part that ends after i. Returns t if it
 * does not touch that part, otherwise the longest token at i that ends before the part, or NULL if there is
 * none. The search then continues *skip bytes after i.
 */
static const struct added_token *outside(const struct matcher *m, const struct added_token *t, const char *s,
					 size_t i, const struct cairn_text_part *ahead, size_t *skip)
{
	*skip = t->match_len;
	if (i + t->match_len <= ahead->begin)
		return t;
	if (i < ahead->begin) {
		*skip = 1;
		return longest(m, s + i, ahead->begin - i);
	}
	/* the token's bytes stay text, but bytes after the part may still begin another token */
	if (i + t->match_len > ahead->end)
		*skip = ahead->end - i;
	return NULL;
}

int cairn_matcher_cut(const struct matcher *m, bool parse_special, const struct plain_parts *plain,
		      size_t begin, size_t end, bool at_start, struct pieces *p)
{
	const char *s = p->text.s;
	size_t done = begin, i = begin, part = 0;
	size_t blank_begin = 0, blank_end = 0;	/* white space measured last, to scan it only once */

	if (begin == end)
		return 0;
	while (m->num && i < end) {
		const struct added_token *t = longest(m, s + i, end - i);
		size_t from = i, to;

		if (t && t->special && parse_special && plain) {
			struct cairn_text_part ahead;
			size_t skip;

			while (part < plain->num && moved(plain, plain->v[part].end) <= i)
				part++;
			if (part < plain->num) {
				ahead.begin = moved(plain, plain->v[part].begin);
				ahead.end = moved(plain, plain->v[part].end);
				t = outside(m, t, s, i, &ahead, &skip);
				if (!t)
					i += skip - 1;
			}
		}
		if (!t) {
			i++;
			continue;
		}
			/* a match that is not recognised still hides its bytes from other tokens */
		to = i += t->match_len;
		if (t->special && !parse_special)
			continue;
		if (t->single_word &&
		    ((from > begin && is_word(cairn_utf8_get(s + previous_char(s, from)))) ||
		     (to < end && is_word(cairn_utf8_get(s + to)))))
			continue;
		while (t->lstrip && from > done &&
		       cairn_is_white_space(cairn_utf8_get(s + previous_char(s, from))))
			from = previous_char(s, from);
		if (from < done)
			from = done;
		if (t->rstrip && !(to >= blank_begin && to <= blank_end)) {
			blank_begin = blank_end = to;
			while (blank_end < end &&
			       cairn_is_white_space(cairn_utf8_get(s + blank_end)))
				blank_end += cairn_utf8_len(s + blank_end);
		}
		if (t->rstrip)
			to = blank_end;
		if (done < from)
			CAIRN_TRY(cairn_pieces_add(p, done, from, -1, at_start && done == begin));
		CAIRN_TRY(cairn_pieces_add(p, from, to, t->id, false));
		done = to;
	}
	if (done != end)
		CAIRN_TRY(cairn_pieces_add(p, done, end, -1, at_start && done == begin));
	return 0;
}
