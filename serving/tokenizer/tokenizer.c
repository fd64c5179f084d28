/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer - opens a tokenizer and encodes text: the functions of tokenizer.h except for decoding */
#include "serving/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/tokenizer/tokenizer_impl.h"
#include "serving/base/utf8.h"

#define MAX_FILE_BYTES	(256u << 20)	/* the largest known file, Gemma 3's, has 33 MB */

int cairn_tokenizer_open_mem(const char *json, size_t num_bytes, const char *name,
			     struct cairn_tokenizer **out)
{
	struct cairn_tokenizer *tok;
	int ret;

	if (!json || !name || !out)
		return cairn_error(EINVAL, "tokenizer: null argument");
	tok = calloc(1, sizeof(*tok));
	if (tok)
		tok->name = strdup(name);
	if (!tok || !tok->name)
		ret = cairn_error(ENOMEM, "%s: no memory", name);
	else
		ret = cairn_tokenizer_load(json, num_bytes, tok);
	if (ret) {
		cairn_tokenizer_free(tok);
		return ret;
	}
	tok->longest = cairn_tokenizer_find_longest(tok);
	*out = tok;
	return 0;
}

int cairn_tokenizer_open(const char *path, struct cairn_tokenizer **out)
{
	char *file = NULL, *json = NULL;
	size_t num_bytes = 0;
	struct stat sb;
	int ret;

	if (!path || !out)
		return cairn_error(EINVAL, "tokenizer: null argument");
	if (!stat(path, &sb) && S_ISDIR(sb.st_mode)) {
		size_t n = strlen(path);

		file = malloc(n + sizeof("/tokenizer.json"));
		if (!file)
			return cairn_error(ENOMEM, "%s: no memory", path);
		sprintf(file, n && path[n - 1] == '/' ? "%stokenizer.json" : "%s/tokenizer.json",
			path);
		path = file;
	}
	ret = cairn_read_file(path, MAX_FILE_BYTES, &json, &num_bytes);
	if (!ret)
		ret = cairn_tokenizer_open_mem(json, num_bytes, path, out);
	free(json);
	free(file);
	return ret;
}

static void free_steps(struct steps *steps)
{
	for (size_t i = 0; i < steps->num; i++) {
		cairn_pattern_free(steps->v[i].pattern);
		free(steps->v[i].text);
	}
	free(steps->v);
}

void cairn_tokenizer_free(struct cairn_tokenizer *tok)
{
	if (!tok)
		return;
	for (size_t i = 0; i < tok->num_added; i++) {
		free(tok->added[i].content);
		free(tok->added[i].match);
	}
	free(tok->added);
	free(tok->raw.v);
	free(tok->normalized.v);
	free(tok->by_id);
	free(tok->skip);
	free(tok->prefix.v);
	free(tok->suffix.v);
	free_steps(&tok->normalizer);
	free_steps(&tok->pre_tokenizer);
	free_steps(&tok->decoder);
	cairn_bpe_free(&tok->bpe);
	free(tok->arena);
	free(tok->name);
	free(tok);
}

int32_t cairn_tokenizer_size(const struct cairn_tokenizer *tok)
{
	return tok->num_ids;
}

int32_t cairn_tokenizer_id(const struct cairn_tokenizer *tok, const char *token, size_t len)
{
	for (size_t i = 0; i < tok->num_added; i++)
		if (tok->added[i].content_len == len && !memcmp(tok->added[i].content, token, len))
			return tok->added[i].id;
	return cairn_bpe_find(&tok->bpe, token, len);
}

const char *cairn_tokenizer_token(const struct cairn_tokenizer *tok, int32_t id, size_t *len)
{
	const struct added_token *t;

	if (id < 0 || id >= tok->num_ids)
		return NULL;
	t = tok->by_id[id];
	if (len)
		*len = t ? t->content_len : tok->bpe.tokens[id].len;
	return t ? t->content : tok->bpe.tokens[id].bytes;
}

bool cairn_tokenizer_is_special(const struct cairn_tokenizer *tok, int32_t id)
{
	return id >= 0 && id < tok->num_ids && tok->by_id[id] && tok->by_id[id]->special;
}

size_t cairn_tokenizer_longest(const struct cairn_tokenizer *tok)
{
	return tok->longest;
}

/* Cuts piece p of the raw text, whose normalized form begins at out->text[begin], at tok->normalized. */
static int cut_normalized(const struct cairn_tokenizer *tok, bool parse_special, struct plain_parts *plain,
			  const struct piece *p, size_t begin, struct pieces *out)
{
	struct plain_parts moved, *here = NULL;

	if (plain) {
			/* pieces are in ascending order: parts that end before p are not needed again */
		while (plain->num && plain->v->end <= p->begin) {
			plain->v++;
			plain->num--;
		}
		moved = *plain;
		moved.from = p->begin;
		moved.to = begin;
		if (plain->num && plain->v->begin < p->end) {
			here = &moved;
			parse_special = parse_special && !tok->normalizer.num;
		}
	}
	return cairn_matcher_cut(&tok->normalized, parse_special, here, begin, out->text.len,
				 p->at_start, out);
}

/* Cuts the added tokens out of the text and normalizes the rest. */
static int cut_text(const struct cairn_tokenizer *tok, const char *text, size_t len,
		    bool parse_special, struct plain_parts *plain, struct pieces *out)
{
	struct pieces raw = { 0 };
	struct buf form = { 0 };
	int ret;

	ret = cairn_utf8_mend(text, len, &raw.text);
	if (!ret && plain && (raw.text.len != len || memcmp(raw.text.s, text, len)))
		ret = cairn_error(EINVAL, "a text with untrusted parts must be UTF-8");
	if (!ret)
		ret = cairn_matcher_cut(&tok->raw, parse_special, plain, 0, raw.text.len, true, &raw);
	if (ret || (tok->normalizer.num == 0 && tok->normalized.num == 0)) {
		*out = raw;
		return ret;
	}
	for (size_t i = 0; i < raw.num && !ret; i++) {
		const struct piece *p = &raw.v[i];
		size_t begin = out->text.len;

		if (p->id >= 0) {
			ret = cairn_pieces_add(out, begin, begin, p->id, false);
			continue;
		}
		ret = cairn_normalize(&tok->normalizer, raw.text.s + p->begin, p->end - p->begin,
				      &form);
		if (!ret)
			ret = cairn_buf_add(&out->text, form.s, form.len);
		if (!ret)
			ret = cut_normalized(tok, parse_special, plain, p, begin, out);
	}
	cairn_buf_free(&form);
	cairn_pieces_free(&raw);
	return ret;
}

static int add_all(struct cairn_ids *to, const struct cairn_ids *from)
{
	for (size_t i = 0; i < from->num; i++)
		CAIRN_TRY(cairn_ids_add(to, from->v[i]));
	return 0;
}

static int encode_pieces(const struct cairn_tokenizer *tok, const struct pieces *p,
			 struct cairn_bpe_scratch *scratch, struct cairn_ids *ids)
{
	for (size_t i = 0; i < p->num; i++) {
		const struct piece *piece = &p->v[i];

		if (piece->id >= 0)
			CAIRN_TRY(cairn_ids_add(ids, piece->id));
		else
			CAIRN_TRY(cairn_bpe_encode(&tok->bpe, p->text.s + piece->begin,
						   piece->end - piece->begin, scratch, ids));
	}
	return 0;
}

static int encode(const struct cairn_tokenizer *tok, const void *text, size_t num_bytes,
		  struct plain_parts *plain, unsigned flags, int32_t **ids, size_t *num_ids)
{
	struct cairn_bpe_scratch scratch = { 0 };
	struct cairn_ids out = { 0 };
	struct pieces p = { 0 };
	int ret;

	if (!tok || (!text && num_bytes) || !ids || !num_ids)
		return cairn_error(EINVAL, "tokenizer: null argument");
	if (num_bytes > CAIRN_MAX_TEXT)
		return cairn_error(EINVAL,
				   "tokenizer: a text of %zu bytes, at most %u are accepted",
				   num_bytes, CAIRN_MAX_TEXT);
	ret = cut_text(tok, num_bytes ? text : "", num_bytes, flags & CAIRN_ENCODE_PARSE_SPECIAL,
		       plain, &p);
	if (!ret)
		ret = cairn_pretokenize(&tok->pre_tokenizer, &p);
	if (!ret && flags & CAIRN_ENCODE_ADD_SPECIAL)
		ret = add_all(&out, &tok->prefix);
	if (!ret)
		ret = encode_pieces(tok, &p, &scratch, &out);
	if (!ret && flags & CAIRN_ENCODE_ADD_SPECIAL)
		ret = add_all(&out, &tok->suffix);
	if (!ret && !out.v) {
		out.v = malloc(sizeof(*out.v));
		if (!out.v)
			ret = cairn_error(ENOMEM, "no memory");
	}
	cairn_bpe_scratch_free(&scratch);
	cairn_pieces_free(&p);
	if (ret) {
		free(out.v);
		return cairn_error_prefix(ret, "%s", tok->name);
	}
	*ids = out.v;
	*num_ids = out.num;
	return 0;
}

int cairn_tokenizer_encode(const struct cairn_tokenizer *tok, const void *text, size_t num_bytes,
			   unsigned flags, int32_t **ids, size_t *num_ids)
{
	return encode(tok, text, num_bytes, NULL, flags, ids, num_ids);
}

int cairn_tokenizer_encode_parts(const struct cairn_tokenizer *tok, const void *text, size_t num_bytes,
				 const struct cairn_text_part *plain, size_t num_plain, unsigned flags,
				 int32_t **ids, size_t *num_ids)
{
	struct plain_parts parts = { .v = plain, .num = num_plain };

	if (!plain && num_plain)
		return cairn_error(EINVAL, "tokenizer: null argument");
	for (size_t i = 0; i < num_plain; i++)
		if (plain[i].begin >= plain[i].end || plain[i].end > num_bytes ||
		    (i && plain[i].begin < plain[i - 1].end))
			return cairn_error(EINVAL, "tokenizer: part %zu is not in order", i);
	return encode(tok, text, num_bytes, &parts, flags, ids, num_ids);
}
