/* SPDX-License-Identifier: Apache-2.0 */
/* pretokenize - cuts text into the pieces that BPE encodes: Split, ByteLevel, Metaspace, Digits */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "primitives/base/error.h"
#include "serving/tokenizer/tokenizer_impl.h"
#include "serving/tokenizer/unicode_tables.h"
#include "serving/base/utf8.h"

/*
 * GPT-2's byte alphabet. Bytes printable in Latin-1 represent themselves; the 68 others (0..32, 127..160,
 * 173) are represented in this order by U+0100 and following.
 */
uint32_t cairn_byte_char(unsigned char byte)
{
	if (byte < 33)
		return 0x100u + byte;
	if (byte < 127)
		return byte;
	if (byte < 161)
		return 0x100u + 33 + (byte - 127u);
	return byte == 173 ? 0x143 : byte;
}

int cairn_char_byte(uint32_t cp)
{
	if (cp < 0x100)
		return cairn_byte_char((unsigned char)cp) == cp ? (int)cp : -1;
	if (cp < 0x121)
		return (int)(cp - 0x100);
	if (cp < 0x143)
		return (int)(cp - 0x121 + 127);
	return cp == 0x143 ? 173 : -1;
}

int cairn_pieces_add(struct pieces *p, size_t begin, size_t end, int32_t id, bool at_start)
{
	if (begin == end && id < 0)
		return 0;
	if (p->num == p->cap) {
		size_t cap = p->cap ? p->cap * 2 : 64;
		struct piece *grown = realloc(p->v, cap * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "no memory for %zu pieces", cap);
		p->v = grown;
		p->cap = cap;
	}
	p->v[p->num++] = (struct piece){ begin, end, id, at_start };
	return 0;
}

void cairn_pieces_free(struct pieces *p)
{
	cairn_buf_free(&p->text);
	free(p->v);
}

static bool is_numeric(uint32_t cp)
{
	utf8proc_category_t c;

	if (cp < 0x80)
		return cp >= '0' && cp <= '9';
	c = utf8proc_category((utf8proc_int32_t)cp);
	if (c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO)
		return true;
	for (size_t i = 0; i < sizeof(new_numeric) / sizeof(*new_numeric); i++)
		if (cp >= new_numeric[i].first && cp <= new_numeric[i].last)
			return true;
	return false;
}

/* Makes each digit a match and each stretch between digits a non-match. */
static int digit_spans(const char *text, size_t len, struct cairn_spans *spans)
{
	size_t done = 0, n;

	spans->num = 0;
	for (size_t i = 0; i < len; i += n) {
		n = cairn_utf8_len(text + i);
		if (!is_numeric(cairn_utf8_get(text + i)))
			continue;
		if (done < i)
			CAIRN_TRY(cairn_spans_add(spans, done, i, false));
		CAIRN_TRY(cairn_spans_add(spans, i, i + n, true));
		done = i + n;
	}
	return done < len ? cairn_spans_add(spans, done, len, false) : 0;
}

/*
 * Turns spans of matches (delimiters) and gaps into the spans of pieces; afterwards `match` means that the
 * span is left out. A delimiter joins its neighbour only if the span before it (after it, for
 * MERGED_WITH_NEXT) is not a delimiter.
 */
static void apply_behavior(struct cairn_spans *spans, enum behavior behavior, bool invert)
{
	size_t n = spans->num, kept = 0;
	struct cairn_span *v = spans->v;
	bool previous = false;

	for (size_t i = 0; i < n && invert; i++)
		v[i].match = !v[i].match;
	switch (behavior) {
	case REMOVED:
		return;
	case ISOLATED:
		for (size_t i = 0; i < n; i++)
			v[i].match = false;
		return;
	case CONTIGUOUS:
	case MERGED_WITH_PREVIOUS:
		for (size_t i = 0; i < n; i++) {
			bool match = v[i].match;
			bool join = behavior == CONTIGUOUS ? match == previous : match && !previous;

			if (join && kept)
				v[kept - 1].end = v[i].end;
			else
				v[kept++] = (struct cairn_span){ v[i].begin, v[i].end, false };
			previous = match;
		}
		spans->num = kept;
		return;
	case MERGED_WITH_NEXT:
		/* the same from the end, where the `kept` spans are collected */
		for (size_t i = n; i-- > 0;) {
			bool match = v[i].match;

			if (match && !previous && kept)
				v[n - kept].begin = v[i].begin;
			else
				v[n - ++kept] = (struct cairn_span){ v[i].begin, v[i].end, false };
			previous = match;
		}
		memmove(v, v + n - kept, kept * sizeof(*v));
		spans->num = kept;
		return;
	}
}

/* Runs Split or Digits, which cut the pieces further and do not change the text. */
static int cut_pieces(const struct step *s, struct pieces *p, struct cairn_spans *spans)
{
	struct pieces finer = { 0 };
	int ret = 0;

	for (size_t i = 0; i < p->num && !ret; i++) {
		const struct piece *piece = &p->v[i];
		const char *text = p->text.s + piece->begin;

		if (piece->id >= 0) {
			ret = cairn_pieces_add(&finer, piece->begin, piece->end, piece->id, false);
			continue;
		}
		if (s->kind == STEP_DIGITS)
			ret = digit_spans(text, piece->end - piece->begin, spans);
		else
			ret = cairn_pattern_spans(s->pattern, text, piece->end - piece->begin,
						  spans);
		if (ret)
			break;
		if (s->kind == STEP_DIGITS)
			apply_behavior(spans, s->individual ? ISOLATED : CONTIGUOUS, false);
		else
			apply_behavior(spans, s->behavior, s->invert);
		for (size_t k = 0; k < spans->num && !ret; k++)
			if (!spans->v[k].match)
				ret = cairn_pieces_add(&finer, piece->begin + spans->v[k].begin,
						       piece->begin + spans->v[k].end, -1,
						       piece->at_start && spans->v[k].begin == 0);
	}
	if (!ret) {
		struct piece *old = p->v;

		p->v = finer.v;
		p->num = finer.num;
		p->cap = finer.cap;
		finer.v = old;
	}
	free(finer.v);
	return ret;
}

/* Appends the spans of text to out as pieces; mapped: translates each byte to the byte alphabet. */
static int add_spans(struct pieces *out, const char *text, const struct cairn_spans *spans,
		     bool mapped, bool at_start)
{
	struct buf *b = &out->text;

	for (size_t k = 0; k < spans->num; k++) {
		const struct cairn_span *sp = &spans->v[k];
		size_t begin = b->len;

		if (mapped) {
			/* every character of the alphabet is below U+0800, at most 2 bytes of UTF-8 */
			CAIRN_TRY(cairn_buf_reserve(b, 2 * (sp->end - sp->begin)));
			for (size_t i = sp->begin; i < sp->end; i++)
				b->len += (size_t)cairn_utf8_put(cairn_byte_char(
									 (unsigned char)text[i]),
								 b->s + b->len);
		} else {
			CAIRN_TRY(cairn_buf_add(b, text + sp->begin, sp->end - sp->begin));
		}
		CAIRN_TRY(cairn_pieces_add(out, begin, b->len, -1, at_start && k == 0));
	}
	return 0;
}

static int whole_span(size_t len, struct cairn_spans *spans)
{
	spans->num = 0;
	return cairn_spans_add(spans, 0, len, false);
}

static int byte_level(const struct step *s, const char *text, size_t len, bool at_start,
		      struct buf *tmp, struct cairn_spans *spans, struct pieces *out)
{
	if (s->prefix_space && text[0] != ' ') {
		CAIRN_TRY(cairn_buf_add(tmp, " ", 1));
		CAIRN_TRY(cairn_buf_add(tmp, text, len));
		text = tmp->s;
		len = tmp->len;
	}
	if (s->pattern)
		CAIRN_TRY(cairn_pattern_spans(s->pattern, text, len, spans));
	else
		CAIRN_TRY(whole_span(len, spans));
	return add_spans(out, text, spans, true, at_start);
}

static int metaspace(const struct step *s, const char *text, size_t len, bool at_start,
		     struct buf *tmp, struct cairn_spans *spans, struct pieces *out)
{
	bool starts = text[0] == ' ' || (len >= s->len && !memcmp(text, s->text, s->len));
	size_t done = 0;

	if (!starts && (s->scheme == PREPEND_ALWAYS || (s->scheme == PREPEND_FIRST && at_start)))
		CAIRN_TRY(cairn_buf_add(tmp, s->text, s->len));
	for (size_t i = 0; i < len; i++) {
		if (text[i] != ' ')
			continue;
		CAIRN_TRY(cairn_buf_add(tmp, text + done, i - done));
		CAIRN_TRY(cairn_buf_add(tmp, s->text, s->len));
		done = i + 1;
	}
	CAIRN_TRY(cairn_buf_add(tmp, text + done, len - done));
	if (s->split) {
		CAIRN_TRY(cairn_pattern_spans(s->pattern, tmp->s, tmp->len, spans));
		apply_behavior(spans, MERGED_WITH_NEXT, false);
	} else {
		CAIRN_TRY(whole_span(tmp->len, spans));
	}
	return add_spans(out, tmp->s, spans, false, at_start);
}

/* Runs ByteLevel or Metaspace, which change the text as well as the pieces. */
static int rewrite_pieces(const struct step *s, struct pieces *p, struct cairn_spans *spans)
{
	struct pieces out = { 0 };
	struct buf tmp = { 0 };
	int ret = 0;

	for (size_t i = 0; i < p->num && !ret; i++) {
		const struct piece *piece = &p->v[i];
		const char *text = p->text.s + piece->begin;
		size_t len = piece->end - piece->begin;

		tmp.len = 0;
		if (piece->id >= 0)
			ret = cairn_pieces_add(&out, out.text.len, out.text.len, piece->id, false);
		else if (s->kind == STEP_BYTE_LEVEL)
			ret = byte_level(s, text, len, piece->at_start, &tmp, spans, &out);
		else
			ret = metaspace(s, text, len, piece->at_start, &tmp, spans, &out);
	}
	if (!ret) {
		struct pieces old = *p;

		*p = out;
		out = old;
	}
	cairn_pieces_free(&out);
	cairn_buf_free(&tmp);
	return ret;
}

int cairn_pretokenize(const struct steps *steps, struct pieces *p)
{
	struct cairn_spans spans = { 0 };
	int ret = 0;

	for (size_t i = 0; i < steps->num && !ret; i++) {
		const struct step *s = &steps->v[i];

		if (s->kind == STEP_SPLIT || s->kind == STEP_DIGITS) {
			ret = cut_pieces(s, p, &spans);
			continue;
		}
		ret = rewrite_pieces(s, p, &spans);
	}
	cairn_spans_free(&spans);
	return ret;
}
