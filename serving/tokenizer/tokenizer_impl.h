/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the tokenizer share: tokenizer_load.c and tokenizer_steps.c fill it in,
 * normalize.c and pretokenize.c turn text into pieces, detokenize.c turns tokens into text. Nobody
 * else includes this.
 */
#ifndef CAIRN_TOKENIZER_IMPL_H
#define CAIRN_TOKENIZER_IMPL_H

#include <jansson.h>

#include "serving/tokenizer/bpe.h"
#include "serving/tokenizer/pattern.h"
#include "serving/tokenizer/tokenizer.h"

/* Growing bytes; start with { 0 }. */
struct buf {
	char *s;
	size_t len, cap;
};

/* Room for n more and a NUL; the second also adds them, and keeps a NUL behind. -ENOMEM. */
int cairn_buf_reserve(struct buf *b, size_t n);
int cairn_buf_add(struct buf *b, const char *s, size_t n);
void cairn_buf_free(struct buf *b);

enum step_kind {
	/* normalizers */
	STEP_NFC, STEP_NFD, STEP_NFKC, STEP_NFKD, STEP_PREPEND, STEP_REPLACE, STEP_STRIP,
	/* pre-tokenizers */
	STEP_SPLIT, STEP_BYTE_LEVEL, STEP_METASPACE, STEP_DIGITS,
	/* decoders: STEP_REPLACE, STEP_STRIP, STEP_BYTE_LEVEL, STEP_METASPACE and */
	STEP_BYTE_FALLBACK, STEP_FUSE,
};

enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
enum scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

/* One component of a normalizer, pre-tokenizer or decoder; Sequences are flattened. */
struct step {
	enum step_kind kind;
	struct cairn_pattern
		*pattern; /* Replace, Split, ByteLevel (or NULL), Metaspace's character */
	char *text;       /* what Prepend, Replace put; the character of Metaspace, Strip */
	size_t len;
	enum behavior behavior;		/* Split */
	bool invert;			/* Split */
	bool prefix_space;		/* ByteLevel */
	bool split;			/* Metaspace */
	bool individual;		/* Digits */
	enum scheme scheme;		/* Metaspace */
	size_t left, right;		/* Strip: normalizer, 0 or not; decoder, how many at most */
};

struct steps {
	struct step *v;
	size_t num;
};

struct added_token {
	char *content;		/* as spelled */
	size_t content_len;
	char *match;		/* how it looks in a text: content, or its normalized form */
	size_t match_len;
	int32_t id;
	bool special, single_word, lstrip, rstrip, normalized;
};

/* Added tokens sorted by what they match: the longest at a place is found by narrowing a range. */
struct matcher {
	const struct added_token **v;
	size_t num;
	uint32_t first[257];	/* [first[b], first[b + 1]): those that begin with byte b */
};

struct cairn_tokenizer {
	char *name;
	char *arena;			/* spellings of the model's tokens */
	struct cairn_bpe bpe;
	struct steps normalizer, pre_tokenizer, decoder;
	bool has_decoder;
	struct added_token *added;
	size_t num_added;
	struct matcher raw;		/* matched in the text as it comes */
	struct matcher normalized;	/* matched in the normalized text */
	int32_t num_ids;
	const struct added_token **by_id;	/* [num_ids], NULL: the model's alone */
	bool *skip;			/* [num_ids] left out by skip_special */
	struct cairn_ids prefix, suffix;	/* the template */
};

/* A stretch of text on its way to ids. Text pieces are in struct pieces' own bytes. */
struct piece {
	size_t begin, end;
	int32_t id;		/* >= 0: an added token, done */
	bool at_start;		/* its first character is the first of the text given to encode */
};

struct pieces {
	struct buf text;
	struct piece *v;
	size_t num, cap;
};

int cairn_pieces_add(struct pieces *p, size_t begin, size_t end, int32_t id, bool at_start);
void cairn_pieces_free(struct pieces *p);

/* The step list over a text: out is replaced. */
int cairn_normalize(const struct steps *steps, const char *text, size_t len, struct buf *out);
/* Every text piece of p through the steps, in place; empty pieces vanish. */
int cairn_pretokenize(const struct steps *steps, struct pieces *p);

int cairn_matcher_build(struct matcher *m, const struct added_token *added, size_t num_added,
			bool normalized);
/* Parts of a text in which specials do not count; what is at `from` there is at `to` here. */
struct plain_parts {
	const struct cairn_text_part *v;
	size_t num, from, to;
};

/*
 * Cuts p->text[begin, end) at the tokens of m and adds the pieces; specials count only if
 * parse_special, and outside of plain (NULL: nothing is).
 */
int cairn_matcher_cut(const struct matcher *m, bool parse_special, const struct plain_parts *plain,
		      size_t begin, size_t end, bool at_start, struct pieces *p);

/* GPT-2's alphabet: each byte is a printable character, U+0021 to U+0143. */
uint32_t cairn_byte_char(unsigned char byte);
int cairn_char_byte(uint32_t cp);	/* -1: not in the alphabet */

/* Property White_Space. */
bool cairn_is_white_space(uint32_t cp);

/* Cuts broken UTF-8 out: appends text to out, ill-formed subparts as U+FFFD. */
int cairn_utf8_mend(const char *text, size_t len, struct buf *out);

/* Fills a zeroed tok in from the file's text. What is there after an error is freed with tok. */
int cairn_tokenizer_load(const char *json, size_t num_bytes, struct cairn_tokenizer *tok);
int cairn_tokenizer_load_steps(const json_t *root, struct cairn_tokenizer *tok);

#endif
