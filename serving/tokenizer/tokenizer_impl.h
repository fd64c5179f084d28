/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer_impl - internal structures and functions of the tokenizer
 *
 * tokenizer_load.c and tokenizer_steps.c fill in the structures, normalize.c and pretokenize.c turn text
 * into pieces, detokenize.c turns tokens into text. Only the tokenizer's own files include this header.
 */
#ifndef CAIRN_TOKENIZER_IMPL_H
#define CAIRN_TOKENIZER_IMPL_H

#include <jansson.h>

#include "serving/tokenizer/bpe.h"
#include "serving/tokenizer/pattern.h"
#include "serving/tokenizer/tokenizer.h"

/* A growing byte array; initialise with { 0 }. */
struct buf {
	char *s;
	size_t len, cap;
};

/* Reserves space for n more bytes and a NUL. -ENOMEM. */
int cairn_buf_reserve(struct buf *b, size_t n);
/* Appends n bytes and writes a NUL after them, which len does not count. -ENOMEM. */
int cairn_buf_add(struct buf *b, const char *s, size_t n);
void cairn_buf_free(struct buf *b);

enum step_kind {
	/* normalizers */
	STEP_NFC, STEP_NFD, STEP_NFKC, STEP_NFKD, STEP_PREPEND, STEP_REPLACE, STEP_STRIP,
	/* pre-tokenizers */
	STEP_SPLIT, STEP_BYTE_LEVEL, STEP_METASPACE, STEP_DIGITS,
	/* decoders: STEP_REPLACE, STEP_STRIP, STEP_BYTE_LEVEL, STEP_METASPACE and: */
	STEP_BYTE_FALLBACK, STEP_FUSE,
};

enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
enum scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

/* One component of a normalizer, pre-tokenizer or decoder; Sequences are flattened into struct steps. */
struct step {
	enum step_kind kind;
	struct cairn_pattern
		*pattern; /* Replace, Split, ByteLevel (or NULL), Metaspace's character */
	size_t literal;   /* bytes that the pattern matches; 0: a regex, which may match any number */
	char *text;       /* text that Prepend or Replace inserts; the character of Metaspace or Strip */
	size_t len;       /* bytes of text */
	enum behavior behavior;		/* Split */
	bool invert;			/* Split */
	bool prefix_space;		/* ByteLevel */
	bool split;			/* Metaspace */
	bool individual;		/* Digits */
	enum scheme scheme;		/* Metaspace */
	size_t left, right;		/* Strip: in a normalizer a flag, in a decoder the maximum count */
};

struct steps {
	struct step *v;
	size_t num;
};

struct added_token {
	char *content;		/* as spelled in the file */
	size_t content_len;
	char *match;		/* text to search for: content, or its normalized form */
	size_t match_len;
	int32_t id;
	bool special, single_word, lstrip, rstrip, normalized;
};

/* Added tokens sorted by match; the longest match at a position is found by narrowing a range of v. */
struct matcher {
	const struct added_token **v;
	size_t num;
	uint32_t first[257];	/* [first[b], first[b + 1]): tokens that begin with byte b */
};

struct cairn_tokenizer {
	char *name;
	char *arena;			/* spellings of the model's tokens */
	struct cairn_bpe bpe;
	struct steps normalizer, pre_tokenizer, decoder;
	bool has_decoder;
	struct added_token *added;
	size_t num_added;
	struct matcher raw;		/* tokens matched in the raw text */
	struct matcher normalized;	/* tokens matched in the normalized text */
	int32_t num_ids;
	const struct added_token **by_id;	/* [num_ids]; NULL: in the model's vocabulary only */
	bool *skip;			/* [num_ids]: omitted by skip_special */
	size_t longest;			/* see cairn_tokenizer_longest() */
	struct cairn_ids prefix, suffix;	/* ids the template puts before and after the text */
};

/* A stretch of text, or an added token. begin and end are byte offsets into struct pieces.text. */
struct piece {
	size_t begin, end;
	int32_t id;		/* >= 0: an added token; -1: text to encode */
	bool at_start;		/* begins with the first character of the text given to encode */
};

struct pieces {
	struct buf text;
	struct piece *v;
	size_t num, cap;
};

int cairn_pieces_add(struct pieces *p, size_t begin, size_t end, int32_t id, bool at_start);
void cairn_pieces_free(struct pieces *p);

/* Applies the steps to a text and replaces the contents of out. */
int cairn_normalize(const struct steps *steps, const char *text, size_t len, struct buf *out);
/* Applies the steps to every text piece of p, in place; empty pieces are removed. */
int cairn_pretokenize(const struct steps *steps, struct pieces *p);

int cairn_matcher_build(struct matcher *m, const struct added_token *added, size_t num_added,
			bool normalized);
/*
 * Untrusted parts of a text, in which special tokens are ignored. Byte `from` of that text is byte `to` of
 * the text to be cut.
 */
struct plain_parts {
	const struct cairn_text_part *v;
	size_t num, from, to;
};

/*
 * Cuts p->text[begin, end) at the tokens of m and appends the pieces. Special tokens are recognised only
 * with parse_special, and only outside the plain parts (NULL: there are none).
 */
int cairn_matcher_cut(const struct matcher *m, bool parse_special, const struct plain_parts *plain,
		      size_t begin, size_t end, bool at_start, struct pieces *p);

/* GPT-2's byte alphabet: each byte is represented by a printable character, U+0021 to U+0143. */
uint32_t cairn_byte_char(unsigned char byte);
int cairn_char_byte(uint32_t cp);	/* -1: cp is not in the alphabet */

/* Returns whether cp has the Unicode property White_Space. */
bool cairn_is_white_space(uint32_t cp);

/* Appends text to out with each maximal ill-formed subpart replaced by U+FFFD. */
int cairn_utf8_mend(const char *text, size_t len, struct buf *out);

/* Fills the zeroed tok from the text of the file. After an error the caller frees tok with what it holds. */
int cairn_tokenizer_load(const char *json, size_t num_bytes, struct cairn_tokenizer *tok);
/* Computes cairn_tokenizer_longest() of a loaded tokenizer. */
size_t cairn_tokenizer_find_longest(const struct cairn_tokenizer *tok);
int cairn_tokenizer_load_steps(const json_t *root, struct cairn_tokenizer *tok);

#endif
