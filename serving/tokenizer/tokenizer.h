/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer - text to token ids and back, as the tokenizer.json of a checkpoint specifies
 *
 * The result is that of the Hugging Face `tokenizers` library (0.23), token by token:
 *
 *   text -> added tokens cut out -> normalizer -> added tokens again -> pre-tokenizer -> BPE
 *        -> template (bos, eos) -> ids
 *
 *   model           BPE (bpe.h), merges as "a b" or ["a", "b"]
 *   normalizer      NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Sequence
 *   pre_tokenizer   Split (string or regex, see pattern.h), ByteLevel, Metaspace, Digits, Sequence
 *   post_processor  TemplateProcessing (one sequence), ByteLevel, Sequence
 *   decoder         ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence
 *   added_tokens    special, single_word, lstrip, rstrip, normalized
 *
 * A component that is not in this list is rejected with -EOPNOTSUPP and an error that names it. So is a
 * Metaspace with prepend_scheme "first" after a normalizer that moves text, the one combination that cannot
 * be reproduced exactly. Truncation and padding in the file are ignored: as in transformers, they are
 * settings of a call. As in transformers 5, add_bos_token and add_eos_token of tokenizer_config.json are
 * ignored: the template of tokenizer.json decides.
 *
 * An inconsistent file is rejected with -EINVAL and an error that names file and field: merges of unknown
 * tokens, ids that repeat, leave a gap or differ from those the library would assign, a template with
 * unknown ids, wrong types, truncated JSON, more than 256 MiB.
 *
 * Each maximal ill-formed subpart of UTF-8 in text becomes one U+FFFD, as if Python had decoded the text with
 * errors="replace" for the library. Therefore decode(encode(text)) is not always equal to text.
 *
 * Lifetime: the tokenizer must outlive its streams. The caller must free() the arrays and texts it
 *           gets.
 * Threads:  a tokenizer is read-only and may be shared; a stream belongs to one thread at a time.
 * Time:     O(n log n) in the bytes of any text, plus the time of the file's own regexes.
 * Errors:   -EINVAL, -EOPNOTSUPP, -EIO (the file cannot be read), -ENOMEM. Out parameters are
 *           written on success only.
 */
#ifndef CAIRN_TOKENIZER_H
#define CAIRN_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAIRN_MAX_TEXT		(64u << 20)	/* bytes in one call of encode */

struct cairn_tokenizer;
struct cairn_token_stream;

enum {
	CAIRN_ENCODE_ADD_SPECIAL = 1 << 0,	/* the template's tokens around a text: bos, eos */
	/* "<|eot_id|>" and other special tokens spelled out in the text become those tokens. Without this
	 * flag they are encoded as ordinary text, which is right for user input. */
	CAIRN_ENCODE_PARSE_SPECIAL = 1 << 1,
};

/* path: a tokenizer.json, or a directory that contains one. */
int cairn_tokenizer_open(const char *path, struct cairn_tokenizer **out);
/* name identifies the tokenizer in error messages. The bytes are not needed after the call. */
int cairn_tokenizer_open_mem(const char *json, size_t num_bytes, const char *name,
			     struct cairn_tokenizer **out);
void cairn_tokenizer_free(struct cairn_tokenizer *tok);	/* tok may be NULL */

/* Ids are 0..size - 1, without gaps. A model may have more ids (padding); these decode to nothing. */
int32_t cairn_tokenizer_size(const struct cairn_tokenizer *tok);
/* Returns the id of a token, spelled as in tokenizer.json, or -1. */
int32_t cairn_tokenizer_id(const struct cairn_tokenizer *tok, const char *token, size_t len);
/* Returns the NUL-terminated spelling of an id, or NULL; valid as long as tok. len may be NULL. */
const char *cairn_tokenizer_token(const struct cairn_tokenizer *tok, int32_t id, size_t *len);
bool cairn_tokenizer_is_special(const struct cairn_tokenizer *tok, int32_t id);

/*
 * Returns an upper bound on the number of bytes of text that one id can stand for, or 0 if none is known
 * because the file drops or contracts text. A text of n bytes has at least n / longest ids, so an overlong
 * text can be refused before it is encoded.
 */
size_t cairn_tokenizer_longest(const struct cairn_tokenizer *tok);

/* text: any bytes, including NULs. *ids is malloc()ed and not NULL even if *num_ids is 0. */
int cairn_tokenizer_encode(const struct cairn_tokenizer *tok, const void *text, size_t num_bytes,
			   unsigned flags, int32_t **ids, size_t *num_ids);

/*
 * Encodes UTF-8 text that has untrusted parts (plain: ascending, disjoint). With CAIRN_ENCODE_PARSE_SPECIAL a
 * special token is recognised only where none of its bytes lies in such a part. Otherwise the text is encoded
 * as a whole, so the ids do not depend on where parts begin and end. Positions are not tracked through the
 * normalizer. Special tokens that the file matches after it ("normalized") are therefore recognised only in
 * stretches, between other added tokens, that contain no untrusted byte.
 */
struct cairn_text_part {
	size_t begin, end;	/* bytes */
};

int cairn_tokenizer_encode_parts(const struct cairn_tokenizer *tok, const void *text, size_t num_bytes,
				 const struct cairn_text_part *plain, size_t num_plain, unsigned flags,
				 int32_t **ids, size_t *num_ids);

/* *text is malloc()ed, well-formed UTF-8, with a NUL after its *num_bytes. -EINVAL: negative id. */
int cairn_tokenizer_decode(const struct cairn_tokenizer *tok, const int32_t *ids, size_t num_ids,
			   bool skip_special, char **text, size_t *num_bytes);

/*
 * Incremental decoding. Each push returns the text that can no longer change, which may be empty: bytes of an
 * incomplete character are held back. The concatenated pieces equal the decode of all ids, with one
 * exception: a run of byte tokens ("<0xE4>") that turns out not to be UTF-8. For such a run, decode replaces
 * every byte by U+FFFD, while the stream has already returned the run's complete characters and replaces only
 * the rest.
 *
 * *text is valid until the next call with this stream; a NUL follows its *num_bytes.
 * -EOPNOTSUPP if the decoder is a sequence that cannot be followed token by token.
 */
int cairn_token_stream_new(const struct cairn_tokenizer *tok, bool skip_special,
			   struct cairn_token_stream **out);
int cairn_token_stream_push(struct cairn_token_stream *stream, int32_t id, const char **text,
			    size_t *num_bytes);
/*
 * Returns the raw bytes of a token, special or not, when it follows other tokens. They are not valid UTF-8 if
 * the token begins or ends inside a character. Does not change the stream's decoding state. The bytes stay
 * valid until the next call, as the text of a push does.
 */
int cairn_token_stream_bytes(struct cairn_token_stream *stream, int32_t id, const char **bytes,
			     size_t *num_bytes);
/* Returns U+FFFD for the bytes held back, if any. The stream can then be used again. */
int cairn_token_stream_finish(struct cairn_token_stream *stream, const char **text,
			      size_t *num_bytes);
void cairn_token_stream_free(struct cairn_token_stream *stream);	/* stream may be NULL */

#ifdef __cplusplus
}
#endif

#endif
