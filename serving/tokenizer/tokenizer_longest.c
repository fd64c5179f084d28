// SPDX-License-Identifier: Apache-2.0
/*
 * tokenizer_longest - computes how many bytes of a text one id can stand for
 *
 * The spelling of a token is at least as long as the text it stands for, except for unk and where a
 * normalizer contracts the text. If any amount of text may vanish, there is no bound, and the result is 0.
 */
#include "serving/base/utf8.h"
#include "serving/tokenizer/tokenizer_impl.h"

/*
 * Composition contracts 9 bytes to 3 at most (three jamo, one syllable), singletons 3 to 1 (KELVIN SIGN),
 * compatibility 4 to 1 (MATHEMATICAL BOLD CAPITAL A); a character may be subject to two of these.
 */
#define CANONICAL	9
#define COMPATIBLE	16

/* Returns the factor by which a step may contract text; 0: no bound. */
static size_t contracts(const struct step *s)
{
	switch (s->kind) {
	case STEP_NFC:
	case STEP_NFD:
		return CANONICAL;
	case STEP_NFKC:
	case STEP_NFKD:
		return COMPATIBLE;
	case STEP_REPLACE:
		return s->literal && s->len ? (s->literal + s->len - 1) / s->len : 0;
	case STEP_STRIP:
		return 0;
	case STEP_SPLIT:
		return s->behavior == REMOVED ? 0 : 1;
	default:
		return 1;
	}
}

/* Returns false if a character may be dropped, or may become one unk together with its neighbours. */
static bool keeps_characters(const struct cairn_tokenizer *tok)
{
	bool byte_level = false, all_bytes = tok->bpe.byte_fallback, all_chars = true;

	for (size_t i = 0; i < tok->pre_tokenizer.num; i++)
		byte_level |= tok->pre_tokenizer.v[i].kind == STEP_BYTE_LEVEL;
	for (int b = 0; b < 256; b++) {
		char text[4];
		size_t n = (size_t)cairn_utf8_put(cairn_byte_char((unsigned char)b), text);

		all_chars = all_chars && cairn_bpe_find(&tok->bpe, text, n) >= 0;
		all_bytes = all_bytes && tok->bpe.byte_ids[b] >= 0;
	}
	return (byte_level && all_chars) || all_bytes || (tok->bpe.has_unk && !tok->bpe.fuse_unk);
}

size_t cairn_tokenizer_find_longest(const struct cairn_tokenizer *tok)
{
	size_t longest = 4;	/* unk stands for a character */

	if (!keeps_characters(tok))
		return 0;
	for (int32_t i = 0; i < tok->bpe.num_tokens; i++)
		longest = tok->bpe.tokens[i].len > longest ? tok->bpe.tokens[i].len : longest;
	for (size_t i = 0; i < tok->num_added; i++) {
		const struct added_token *a = &tok->added[i];

		if (a->lstrip || a->rstrip)	/* takes any number of spaces with it */
			return 0;
		longest = a->content_len > longest ? a->content_len : longest;
	}
	for (size_t i = 0; i < tok->normalizer.num; i++)
		longest *= contracts(&tok->normalizer.v[i]);
	for (size_t i = 0; i < tok->pre_tokenizer.num; i++)
		longest *= contracts(&tok->pre_tokenizer.v[i]);
	return longest;
}
