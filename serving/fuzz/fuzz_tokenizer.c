// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_tokenizer - opens arbitrary bytes as a tokenizer.json; a tokenizer that opens must encode a text and
 * decode the ids, at once and in pieces
 *
 * Input: tokenizer.json, optionally followed by a NUL and the text.
 */
#include <string.h>

#include "serving/fuzz/fuzz.h"
#include "serving/tokenizer/tokenizer.h"

static void check_ids(const struct cairn_tokenizer *tok, const int32_t *ids, size_t num_ids)
{
	for (size_t i = 0; i < num_ids; i++)
		FUZZ_HOLDS(ids[i] >= 0 && ids[i] < cairn_tokenizer_size(tok));
}

/* Returns all pieces of a stream; NULL if the decoder cannot be streamed or a call fails. */
static char *in_pieces(const struct cairn_tokenizer *tok, const int32_t *ids, size_t num_ids,
		       bool skip_special, size_t *len)
{
	struct cairn_token_stream *stream = NULL;
	char *all = NULL;
	const char *piece;
	size_t n;
	int ret;

	*len = 0;
	if (cairn_token_stream_new(tok, skip_special, &stream))
		return NULL;
	for (size_t i = 0; i <= num_ids; i++) {
		if (i < num_ids && !cairn_token_stream_bytes(stream, ids[i], &piece, &n))
			FUZZ_HOLDS(!piece[n]);
		ret = i < num_ids ? cairn_token_stream_push(stream, ids[i], &piece, &n)
				  : cairn_token_stream_finish(stream, &piece, &n);
		if (ret) {
			free(all);
			all = NULL;
			break;
		}
		FUZZ_HOLDS(fuzz_is_utf8(piece, n) && !piece[n]);
		all = realloc(all, *len + n + 1);
		memcpy(all + *len, piece, n);
		*len += n;
	}
	cairn_token_stream_free(stream);
	return all;
}

static void decode(const struct cairn_tokenizer *tok, const int32_t *ids, size_t num_ids, bool skip_special)
{
	size_t len = 0, all_len = 0;
	char *text = NULL, *all;

	if (cairn_tokenizer_decode(tok, ids, num_ids, skip_special, &text, &len))
		return;
	FUZZ_HOLDS(fuzz_is_utf8(text, len) && !text[len]);
	all = in_pieces(tok, ids, num_ids, skip_special, &all_len);
	/* the two may differ only in how many U+FFFD replace an ill-formed run */
	FUZZ_HOLDS(!all || (len == all_len && !memcmp(text, all, len)) ||
		   memmem(text, len, "\xef\xbf\xbd", 3));
	free(all);
	free(text);
}

static void use(const struct cairn_tokenizer *tok, const char *text, size_t len)
{
	const struct cairn_text_part plain[] = { { len / 8, len / 4 }, { len / 2, len - len / 4 } };
	const unsigned flags = CAIRN_ENCODE_ADD_SPECIAL | CAIRN_ENCODE_PARSE_SPECIAL;
	int32_t *ids = NULL, *other = NULL;
	size_t num_ids = 0, num_other = 0;
	int ret;

	/* fails if a pattern of the file exceeds its budget */
	ret = cairn_tokenizer_encode(tok, text, len, flags, &ids, &num_ids);
	if (!ret) {
		check_ids(tok, ids, num_ids);
		decode(tok, ids, num_ids, false);
		decode(tok, ids, num_ids, true);
	}
	if (fuzz_is_utf8(text, len)) {
		FUZZ_HOLDS(ret ==
			   cairn_tokenizer_encode_parts(tok, text, len, NULL, 0, flags, &other, &num_other));
		FUZZ_HOLDS(ret || (num_ids == num_other && !memcmp(ids, other, num_ids * sizeof(*ids))));
		free(other);
		other = NULL;
		if (!cairn_tokenizer_encode_parts(tok, text, len, plain, 2, CAIRN_ENCODE_PARSE_SPECIAL,
						  &other, &num_other))
			check_ids(tok, other, num_other);
		free(other);
	}
	free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char some[] = "Hello <s> world\n\n \xe6\xa8\xa1 <|eot|> 12  \xf0\x9f\x98\x80";
	const char *bytes = (const char *)data;
	size_t len = size ? strnlen(bytes, size) : 0;
	struct cairn_tokenizer *tok = NULL;

	if (cairn_tokenizer_open_mem(bytes, len, "fuzz", &tok))
		return 0;
	if (len < size)
		use(tok, bytes + len + 1, size - len - 1);
	else
		use(tok, some, sizeof(some) - 1);
	cairn_tokenizer_free(tok);
	return 0;
}
