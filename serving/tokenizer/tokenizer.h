/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer - text to token ids and back, by the tokenizer.json of a checkpoint
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
 * A component that is not in this list is refused with -EOPNOTSUPP, by name; so is one combination
 * that could not be followed exactly, a Metaspace with prepend_scheme "first" behind a normalizer
 * that moves text. truncation and padding are settings of a call, not of the tokenizer: as in
 * transformers they are off whatever the file says. Nor are add_bos_token and add_eos_token of
 * tokenizer_config.json looked at: as in transformers 5 the template of tokenizer.json decides.
 *
 * A file is also refused, -EINVAL, the text naming file and field, when it is not what it claims:
 * merges of unknown tokens, ids that repeat, leave a gap, or differ from those the library would
 * give, a template with unknown ids, wrong types, truncated JSON, over 256 MiB.
 *
 * Broken UTF-8 in text becomes U+FFFD, one for each maximal ill-formed subpart: exactly what the
 * library gets when Python decodes with errors="replace". So decode(encode(text)) is not always
 * text.
 *
 * Lifetime: the tokenizer must outlive its streams. Arrays and texts handed out are the caller's to
 *           free().
 * Threads:  a tokenizer is read-only and may be shared; a stream belongs to one thread at a time.
 * Time:     O(n log n) in the bytes of text, whatever they are, and the file's own regexes.
 * Errors:   -EINVAL, -EOPNOTSUPP, -EIO (the file cannot be read), -ENOMEM. Out parameters are
 *           written on success only.
 */
#ifndef CAIRN_TOKENIZER_H
#define CAIRN_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAIRN_MAX_TEXT		(64u << 20)	/* bytes in one call of encode */

struct cairn_tokenizer;
struct cairn_token_stream;

enum {
	CAIRN_ENCODE_ADD_SPECIAL = 1 << 0,	/* what the template puts around a text: bos, eos */
	/*
	 * "<|eot_id|>" and other special tokens spelled out in the text become those tokens.
	 * Without it they are text like any other: right for whatever a user typed.
	 */
	CAIRN_ENCODE_PARSE_SPECIAL = 1 << 1,
};

/* path: tokenizer.json, or a directory that has one. */
int cairn_tokenizer_open(const char *path, struct cairn_tokenizer **out);
/* name: what messages call it. The bytes are not needed afterwards. */
int cairn_tokenizer_open_mem(const char *json, size_t num_bytes, const char *name,
			     struct cairn_tokenizer **out);
void cairn_tokenizer_free(struct cairn_tokenizer *tok);	/* NULL is fine */

/* Ids are 0..size - 1, without gaps. A model may have more (padding): those decode to nothing. */
int32_t cairn_tokenizer_size(const struct cairn_tokenizer *tok);
/* The id of a token as tokenizer.json spells it, or -1. */
int32_t cairn_tokenizer_id(const struct cairn_tokenizer *tok, const char *token, size_t len);
/* The spelling of an id, NUL-terminated, or NULL; it lives as long as tok. len may be NULL. */
const char *cairn_tokenizer_token(const struct cairn_tokenizer *tok, int32_t id, size_t *len);
bool cairn_tokenizer_is_special(const struct cairn_tokenizer *tok, int32_t id);

/* text: any bytes, NULs too. *ids is malloc()ed, not NULL even when *num_ids is 0. */
int cairn_tokenizer_encode(const struct cairn_tokenizer *tok, const void *text, size_t num_bytes,
			   unsigned flags, int32_t **ids, size_t *num_ids);

/*
 * The same for a text, UTF-8, of which some parts are not to be trusted (ascending, apart): with
 * CAIRN_ENCODE_PARSE_SPECIAL a special token counts where none of its bytes is in such a part. All else is
 * as if the text had been encoded as a whole, so ids do not depend on where it is cut.
 * Special tokens that the file wants matched behind a normalizer ("normalized") count only in stretches
 * between other added tokens that hold nothing of those parts, as places are not followed through it.
 */
struct cairn_text_part {
	size_t begin, end;	/* bytes */
};

int cairn_tokenizer_encode_parts(const struct cairn_tokenizer *tok, const void *text, size_t num_bytes,
				 const struct cairn_text_part *plain, size_t num_plain, unsigned flags,
				 int32_t **ids, size_t *num_ids);

/* *text is malloc()ed, well-formed UTF-8, a NUL behind its *num_bytes. -EINVAL: negative id. */
int cairn_tokenizer_decode(const struct cairn_tokenizer *tok, const int32_t *ids, size_t num_ids,
			   bool skip_special, char **text, size_t *num_bytes);

/*
 * Decoding while ids still come. Each push hands out the text that is certain by now, perhaps none:
 * bytes of an unfinished character are held back. All pieces together are what decode gives for all
 * ids, but for one case: a run of byte tokens ("<0xE4>") that turns out not to be UTF-8. decode
 * then replaces every byte of the run by U+FFFD; the stream has shown the whole characters among
 * them already, and replaces the rest.
 *
 * *text is valid until the next call with this stream; it has a NUL behind its *num_bytes.
 * -EOPNOTSUPP when the decoder is a sequence that cannot be followed token by token.
 */
int cairn_token_stream_new(const struct cairn_tokenizer *tok, bool skip_special,
			   struct cairn_token_stream **out);
int cairn_token_stream_push(struct cairn_token_stream *stream, int32_t id, const char **text,
			    size_t *num_bytes);
/*
 * The bytes that a token stands for behind others, special or not, as they are: of one cut inside a character
 * they are no UTF-8. Changes nothing of the stream; valid as the text of a push.
 */
int cairn_token_stream_bytes(struct cairn_token_stream *stream, int32_t id, const char **bytes,
			     size_t *num_bytes);
/* What was held back: U+FFFD for it. The stream is then as new. */
int cairn_token_stream_finish(struct cairn_token_stream *stream, const char **text,
			      size_t *num_bytes);
void cairn_token_stream_free(struct cairn_token_stream *stream);	/* NULL is fine */

#endif
