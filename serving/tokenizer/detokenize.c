/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detokenize - token ids to text, at once or as a stream
 *
 * Decoder steps, run one after another, turn a list of tokens into a list of strings; the text is the
 * concatenation of these strings. A stream runs the same steps over one token at a time. That is exact as
 * long as each step depends only on its token. ByteLevel and ByteFallback collect bytes across tokens, so the
 * stream holds bytes back until they form a character. After these steps the list is one string (Fuse), and
 * only its beginning can still change (Strip).
 */
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/tokenizer/tokenizer_impl.h"
#include "serving/base/utf8.h"

/* A list of strings, stored end to end in text; end[i]: where string i ends. */
struct strings {
	struct buf text;
	size_t *end;
	size_t num, cap;
};

static int end_string(struct strings *l)
{
	if (l->num == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 64;
		size_t *grown = realloc(l->end, cap * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "no memory for %zu tokens", cap);
		l->end = grown;
		l->cap = cap;
	}
	l->end[l->num++] = l->text.len;
	return 0;
}

static int add_string(struct strings *l, const char *s, size_t n)
{
	CAIRN_TRY(cairn_buf_add(&l->text, s, n));
	return end_string(l);
}

static void free_strings(struct strings *l)
{
	cairn_buf_free(&l->text);
	free(l->end);
}

/* Decodes a token from the byte alphabet; if it has any other character, appends it unchanged instead. */
static int byte_level(const char *s, size_t n, struct buf *out)
{
	size_t before = out->len;

	for (size_t i = 0; i < n; i += cairn_utf8_len(s + i)) {
		int byte = cairn_char_byte(cairn_utf8_get(s + i));

		if (byte < 0) {
			out->len = before;
			return cairn_buf_add(out, s, n);
		}
		CAIRN_TRY(cairn_buf_add(out, (char[]){ (char)byte }, 1));
	}
	return 0;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
	       c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Returns the byte that "<0xE4>" stands for, or -1. Like the library's number parser it accepts "<0x+4>". */
static int fallback_byte(const char *s, size_t n)
{
	int high, low;

	if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>')
		return -1;
	low = hex_digit(s[4]);
	high = s[3] == '+' ? 0 : hex_digit(s[3]);
	return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static int metaspace(const struct step *s, const char *text, size_t n, bool first, struct buf *out)
{
	bool drop = first && s->scheme != PREPEND_NEVER;

	for (size_t i = 0, len; i < n; i += len) {
		len = cairn_utf8_len(text + i);
		if (len == s->len && !memcmp(text + i, s->text, len))
			CAIRN_TRY(cairn_buf_add(out, " ", !drop));
		else
			CAIRN_TRY(cairn_buf_add(out, text + i, len));
	}
	return 0;
}

static int strip(const struct step *s, const char *text, size_t n, struct buf *out)
{
	size_t begin = 0, end = n;

	for (size_t k = 0;
	     k < s->left && n - begin >= s->len && !memcmp(text + begin, s->text, s->len); k++)
		begin += s->len;
	for (size_t k = 0;
	     k < s->right && end >= begin + s->len && !memcmp(text + end - s->len, s->text, s->len);
	     k++)
		end -= s->len;
	return cairn_buf_add(out, text + begin, end - begin);
}

/* Runs one string through a step that does not depend on its neighbours. */
static int string_step(const struct step *s, const char *text, size_t n, bool first,
		       struct cairn_spans *spans, struct buf *out)
{
	switch (s->kind) {
	case STEP_METASPACE:
		return metaspace(s, text, n, first, out);
	case STEP_STRIP:
		return strip(s, text, n, out);
	default:	/* STEP_REPLACE */
		CAIRN_TRY(cairn_pattern_spans(s->pattern, text, n, spans));
		for (size_t k = 0; k < spans->num; k++) {
			const struct cairn_span *sp = &spans->v[k];

			if (sp->match)
				CAIRN_TRY(cairn_buf_add(out, s->text, s->len));
			else
				CAIRN_TRY(
					cairn_buf_add(out, text + sp->begin, sp->end - sp->begin));
		}
		return 0;
	}
}

static bool is_utf8(const char *s, size_t n)
{
	uint32_t cp;
	int truncated, len;

	for (size_t i = 0; i < n; i += (size_t)len) {
		len = cairn_utf8_next(s + i, n - i, &cp, &truncated);
		if (len < 0)
			return false;
	}
	return true;
}

/* Ends a run of byte tokens: appends it as one string if it is UTF-8, otherwise a U+FFFD for each byte. */
static int end_run(struct buf *run, struct strings *out)
{
	if (run->len == 0)
		return 0;
	if (is_utf8(run->s, run->len)) {
		CAIRN_TRY(add_string(out, run->s, run->len));
	} else {
		for (size_t i = 0; i < run->len; i++)
			CAIRN_TRY(add_string(out, CAIRN_UTF8_REPLACEMENT, 3));
	}
	run->len = 0;
	return 0;
}

/* Runs the whole list through one step. run and spans are working memory. */
static int list_step(const struct step *s, const struct strings *in, struct strings *out,
		     struct buf *run, struct cairn_spans *spans)
{
	run->len = 0;
	for (size_t i = 0; i < in->num; i++) {
		size_t begin = i ? in->end[i - 1] : 0, n = in->end[i] - begin;
		/* text.s is NULL if all strings are empty */
		const char *text = in->text.s ? in->text.s + begin : "";
		int byte;

		switch (s->kind) {
		case STEP_BYTE_LEVEL:
			CAIRN_TRY(byte_level(text, n, run));
			break;
		case STEP_FUSE:
			CAIRN_TRY(cairn_buf_add(&out->text, text, n));
			break;
		case STEP_BYTE_FALLBACK:
			byte = fallback_byte(text, n);
			if (byte >= 0) {
				CAIRN_TRY(cairn_buf_add(run, (char[]){ (char)byte }, 1));
				break;
			}
			CAIRN_TRY(end_run(run, out));
			CAIRN_TRY(add_string(out, text, n));
			break;
		default:
			CAIRN_TRY(string_step(s, text, n, i == 0, spans, &out->text));
			CAIRN_TRY(end_string(out));
		}
	}
	if (s->kind == STEP_BYTE_FALLBACK)
		return end_run(run, out);
	if (s->kind == STEP_BYTE_LEVEL)
		CAIRN_TRY(cairn_utf8_mend(run->s, run->len, &out->text));
	return s->kind == STEP_BYTE_LEVEL || s->kind == STEP_FUSE ? end_string(out) : 0;
}

/* Returns the string that the decoder gets for an id; for an added token, the text that it matches. */
static const char *spelling(const struct cairn_tokenizer *tok, int32_t id, size_t *n)
{
	const struct added_token *t = tok->by_id[id];

	*n = t ? t->match_len : tok->bpe.tokens[id].len;
	return t ? t->match : tok->bpe.tokens[id].bytes;
}

int cairn_tokenizer_decode(const struct cairn_tokenizer *tok, const int32_t *ids, size_t num_ids,
			   bool skip_special, char **text, size_t *num_bytes)
{
	struct strings list = { 0 }, other = { 0 }, tmp;
	struct cairn_spans spans = { 0 };
	struct buf run = { 0 };
	int ret = 0;

	if (!tok || (!ids && num_ids) || !text || !num_bytes)
		return cairn_error(EINVAL, "tokenizer: null argument");
	for (size_t i = 0; i < num_ids && !ret; i++) {
		const char *s;
		size_t n;

		if (ids[i] < 0)
			ret = cairn_error(EINVAL, "%s: token id %d is negative", tok->name, ids[i]);
		else if (ids[i] < tok->num_ids && !(skip_special && tok->skip[ids[i]])) {
			s = spelling(tok, ids[i], &n);
			if (!tok->has_decoder && list.num)	/* no decoder: separate tokens by blanks */
				ret = cairn_buf_add(&list.text, " ", 1);
			if (!ret)
				ret = add_string(&list, s, n);
		}
	}
	for (size_t i = 0; i < tok->decoder.num && !ret; i++) {
		other.text.len = 0;
		other.num = 0;
		ret = list_step(&tok->decoder.v[i], &list, &other, &run, &spans);
		tmp = list;
		list = other;
		other = tmp;
	}
	if (!ret)
		ret = cairn_buf_add(&list.text, "", 0);
	if (!ret) {
		*text = list.text.s;
		*num_bytes = list.text.len;
		list.text.s = NULL;
	} else {
		cairn_error_prefix(ret, "%s", tok->name);
	}
	cairn_spans_free(&spans);
	cairn_buf_free(&run);
	free_strings(&other);
	free_strings(&list);
	return ret;
}

struct cairn_token_stream {
	const struct cairn_tokenizer *tok;
	bool skip_special;
	size_t num_single;	/* the first decoder steps, which are run per token */
	int collect;		/* the step after them: STEP_BYTE_LEVEL, STEP_BYTE_FALLBACK or -1 */
	const struct step *strip;	/* the last step, applied to the text as a whole; may be NULL */
	bool any;		/* a token has been pushed */
	size_t strip_left;	/* characters that strip may still remove */
	struct buf held;	/* bytes of an incomplete character, or of a run of byte tokens */
	struct buf out, a, b;	/* result of the last call; result and scratch of run_single() */
	struct cairn_spans spans;
};

/* Splits the decoder into steps per token, a step that collects bytes, Fuse, and Strip of the beginning. */
static int plan_stream(struct cairn_token_stream *st)
{
	const struct steps *d = &st->tok->decoder;
	size_t i = 0;

	st->collect = -1;
	while (i < d->num && (d->v[i].kind == STEP_REPLACE || d->v[i].kind == STEP_METASPACE ||
			      d->v[i].kind == STEP_STRIP))
		i++;
	st->num_single = i;
	if (i < d->num && (d->v[i].kind == STEP_BYTE_LEVEL || d->v[i].kind == STEP_BYTE_FALLBACK))
		st->collect = (int)d->v[i++].kind;
	if (i < d->num && (d->v[i].kind == STEP_FUSE || st->collect == STEP_BYTE_LEVEL)) {
		while (i < d->num && d->v[i].kind == STEP_FUSE)
			i++;
		if (i < d->num && d->v[i].kind == STEP_STRIP && d->v[i].right == 0)
			st->strip = &d->v[i++];
	}
	if (i < d->num)
		return cairn_error(EOPNOTSUPP,
				   "%s: decoder: this order of steps cannot be streamed",
				   st->tok->name);
	return 0;
}

static void restart(struct cairn_token_stream *st)
{
	st->any = false;
	st->held.len = 0;
	st->strip_left = st->strip ? st->strip->left : 0;
}

int cairn_token_stream_new(const struct cairn_tokenizer *tok, bool skip_special,
			   struct cairn_token_stream **out)
{
	struct cairn_token_stream *st;
	int ret;

	if (!tok || !out)
		return cairn_error(EINVAL, "tokenizer: null argument");
	st = calloc(1, sizeof(*st));
	if (!st)
		return cairn_error(ENOMEM, "%s: no memory", tok->name);
	st->tok = tok;
	st->skip_special = skip_special;
	ret = plan_stream(st);
	if (ret) {
		free(st);
		return ret;
	}
	restart(st);
	*out = st;
	return 0;
}

void cairn_token_stream_free(struct cairn_token_stream *st)
{
	if (!st)
		return;
	cairn_spans_free(&st->spans);
	cairn_buf_free(&st->held);
	cairn_buf_free(&st->out);
	cairn_buf_free(&st->a);
	cairn_buf_free(&st->b);
	free(st);
}

/* Appends text that can no longer change to out, without what Strip removes from the beginning of the
 * whole text. */
static int emit(struct cairn_token_stream *st, const char *s, size_t n)
{
	while (st->strip_left && n) {
		if (n < st->strip->len || memcmp(s, st->strip->text, st->strip->len)) {
			st->strip_left = 0;
			break;
		}
		s += st->strip->len;
		n -= st->strip->len;
		st->strip_left--;
	}
	return cairn_buf_add(&st->out, s, n);
}

/* Emits U+FFFD for n ill-formed bytes: one, or with byte fallback one for each byte. */
static int emit_broken(struct cairn_token_stream *st, size_t n)
{
	size_t times = st->collect == STEP_BYTE_FALLBACK ? n : n > 0;

	while (times--)
		CAIRN_TRY(emit(st, CAIRN_UTF8_REPLACEMENT, 3));
	return 0;
}

/* Emits the held bytes except a trailing sequence that further bytes could complete. */
static int release(struct cairn_token_stream *st)
{
	struct buf *h = &st->held;
	size_t i = 0;
	int truncated = 0, n;
	uint32_t cp;

	while (i < h->len) {
		n = cairn_utf8_next(h->s + i, h->len - i, &cp, &truncated);
		if (truncated)
			break;
		if (n > 0)
			CAIRN_TRY(emit(st, h->s + i, (size_t)n));
		else
			CAIRN_TRY(emit_broken(st, (size_t)-n));
		i += (size_t)abs(n);
	}
	if (i)
		memmove(h->s, h->s + i, h->len - i);
	h->len -= i;
	return 0;
}

/* Runs the steps that depend on one token only. The result is in st->a. */
static int run_single(struct cairn_token_stream *st, int32_t id, bool first)
{
	struct buf tmp;
	size_t n;
	const char *s = spelling(st->tok, id, &n);

	st->a.len = 0;
	CAIRN_TRY(cairn_buf_add(&st->a, s, n));
	for (size_t i = 0; i < st->num_single; i++) {
		st->b.len = 0;
		CAIRN_TRY(cairn_buf_add(&st->b, "", 0));
		CAIRN_TRY(string_step(&st->tok->decoder.v[i], st->a.s, st->a.len, first, &st->spans,
				      &st->b));
		tmp = st->a;
		st->a = st->b;
		st->b = tmp;
	}
	return 0;
}

static int push_token(struct cairn_token_stream *st, int32_t id)
{
	int byte;

	if (!st->tok->has_decoder && st->any)
		CAIRN_TRY(emit(st, " ", 1));
	CAIRN_TRY(run_single(st, id, !st->any));
	st->any = true;
	if (st->collect == STEP_BYTE_LEVEL) {
		CAIRN_TRY(byte_level(st->a.s, st->a.len, &st->held));
		return release(st);
	}
	if (st->collect == STEP_BYTE_FALLBACK) {
		byte = fallback_byte(st->a.s, st->a.len);
		if (byte >= 0) {
			CAIRN_TRY(cairn_buf_add(&st->held, (char[]){ (char)byte }, 1));
			return release(st);
		}
		CAIRN_TRY(emit_broken(st, st->held.len));
		st->held.len = 0;
	}
	return emit(st, st->a.s, st->a.len);
}

static int hand_out(struct cairn_token_stream *st, int ret, const char **text, size_t *num_bytes)
{
	if (!ret)
		ret = cairn_buf_add(&st->out, "", 0);
	if (ret)
		return cairn_error_prefix(ret, "%s", st->tok->name);
	*text = st->out.s;
	*num_bytes = st->out.len;
	return 0;
}

int cairn_token_stream_push(struct cairn_token_stream *st, int32_t id, const char **text,
			    size_t *num_bytes)
{
	int ret = 0;

	if (!st || !text || !num_bytes)
		return cairn_error(EINVAL, "tokenizer: null argument");
	if (id < 0)
		return cairn_error(EINVAL, "%s: token id %d is negative", st->tok->name, id);
	st->out.len = 0;
	if (id < st->tok->num_ids && !(st->skip_special && st->tok->skip[id]))
		ret = push_token(st, id);
	return hand_out(st, ret, text, num_bytes);
}

int cairn_token_stream_bytes(struct cairn_token_stream *st, int32_t id, const char **bytes, size_t *num_bytes)
{
	int ret = 0, byte;

	if (!st || !bytes || !num_bytes || id < 0)
		return cairn_error(EINVAL, "tokenizer: null argument or negative id");
	st->out.len = 0;
	if (id < st->tok->num_ids) {
		ret = run_single(st, id, false);
		byte = !ret && st->collect == STEP_BYTE_FALLBACK ? fallback_byte(st->a.s, st->a.len) : -1;
		if (!ret && st->collect == STEP_BYTE_LEVEL)
			ret = byte_level(st->a.s, st->a.len, &st->out);
		else if (!ret)
			ret = byte < 0 ? cairn_buf_add(&st->out, st->a.s, st->a.len) :
			      cairn_buf_add(&st->out, (char[]){ (char)byte }, 1);
	}
	return hand_out(st, ret, bytes, num_bytes);
}

int cairn_token_stream_finish(struct cairn_token_stream *st, const char **text, size_t *num_bytes)
{
	int ret;

	if (!st || !text || !num_bytes)
		return cairn_error(EINVAL, "tokenizer: null argument");
	st->out.len = 0;
	ret = emit_broken(st, st->held.len);
	restart(st);
	return hand_out(st, ret, text, num_bytes);
}
