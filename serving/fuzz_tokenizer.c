// SPDX-License-Identifier: Apache-2.0
/* fuzz_tokenizer - any bytes as a tokenizer.json; one that opens must encode and decode */
#include <string.h>

#include "fuzz.h"
#include "tokenizer.h"

static void use(const struct cairn_tokenizer *tok)
{
	static const char text[] = "Hello <s> world\n\n \xe6\xa8\xa1 <|eot|> 12  \xf0\x9f\x98\x80";
	const struct cairn_text_part parts[] = { { 3, 8 }, { 20, 26 } };
	struct cairn_token_stream *stream = NULL;
	int32_t *ids = NULL;
	size_t num_ids = 0, len = 0;
	const char *piece;
	char *back = NULL;

	/* a pattern of the file may run out of its budget */
	if (!cairn_tokenizer_encode_parts(tok, text, sizeof(text) - 1, parts, 2, CAIRN_ENCODE_PARSE_SPECIAL,
					  &ids, &num_ids)) {
		for (size_t i = 0; i < num_ids; i++)
			FUZZ_HOLDS(ids[i] >= 0 && ids[i] < cairn_tokenizer_size(tok));
		if (!cairn_tokenizer_decode(tok, ids, num_ids, false, &back, &len)) {
			FUZZ_HOLDS(fuzz_is_utf8(back, len));
			free(back);
		}
		if (!cairn_token_stream_new(tok, true, &stream)) {
			for (size_t i = 0; i < num_ids; i++)
				if (!cairn_token_stream_push(stream, ids[i], &piece, &len))
					FUZZ_HOLDS(fuzz_is_utf8(piece, len));
			if (!cairn_token_stream_finish(stream, &piece, &len))
				FUZZ_HOLDS(fuzz_is_utf8(piece, len));
			cairn_token_stream_free(stream);
		}
		free(ids);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cairn_tokenizer *tok = NULL;

	if (cairn_tokenizer_open_mem((const char *)data, size, "fuzz", &tok))
		return 0;
	use(tok);
	cairn_tokenizer_free(tok);
	return 0;
}
