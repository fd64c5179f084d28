/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_stream - decoding token by token gives the same text as decoding at once */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/base/json.h"
#include "serving/base/json_test.h"
#include "serving/tokenizer/tokenizer.h"
#include "serving/tokenizer/tokenizer_golden_test.h"
#include "serving/base/utf8.h"

/* Pushes ids through a stream; every piece must be UTF-8, and together they must equal want. */
static void check_stream(struct cairn_test *t, struct cairn_tokenizer *tok, const int32_t *ids,
			 size_t num_ids, bool skip_special, const char *want, size_t want_len)
{
	struct cairn_token_stream *stream = NULL;
	size_t done = 0, len = 0;
	const char *text = "";
	uint32_t cp;
	int truncated;

	if (!EXPECT(t, !cairn_token_stream_new(tok, skip_special, &stream)))
		return;
	for (size_t i = 0; i <= num_ids; i++) {
		int ret = i < num_ids ? cairn_token_stream_push(stream, ids[i], &text, &len) :
					cairn_token_stream_finish(stream, &text, &len);

		if (!EXPECT(t, !ret) ||
		    !EXPECT(t, done + len <= want_len && !memcmp(text, want + done, len)))
			break;
		for (size_t k = 0; k < len;) {
			int n = cairn_utf8_next(text + k, len - k, &cp, &truncated);

			if (!EXPECT(t, n > 0))
				break;
			k += (size_t)n;
		}
		done += len;
	}
	EXPECT(t, done == want_len);
	cairn_token_stream_free(stream);
}

/* Decodes the ids of random text, and random ids, with every variant. */
static void adds_up(struct cairn_test *t)
{
	struct cairn_golden g;
	char *file;

	if (!EXPECT(t, !cairn_golden_open(&g)))
		return;
	for (size_t i = 0; (file = cairn_golden_file(&g, i)); i++) {
		const json_t *row = json_array_get(json_object_get(g.root, "variants"), i);
		bool fallback = strstr(file, "\"ByteFallback\"") != NULL;
		struct cairn_tokenizer *tok = NULL;

		EXPECT(t, !cairn_tokenizer_open_mem(file, strlen(file), "x", &tok));
		for (int round = 0; round < 300 && tok; round++) {
			int32_t few[24], *ids = few;
			size_t n = cairn_rand(t) % ARRAY_SIZE(few), len = 0;
			bool skip = cairn_rand(t) & 1;
			char bytes[64], *text = NULL;

			for (size_t k = 0; k < n; k++)
				few[k] = (int32_t)(cairn_rand(t) %
						   (uint64_t)cairn_tokenizer_size(tok));
			for (size_t k = 0; k < sizeof(bytes); k++)
				bytes[k] = (char)(cairn_rand(t) >> (cairn_rand(t) % 4 ? 57 : 0));
			if (round % 2)
				EXPECT(t,
				       !cairn_tokenizer_encode(tok, bytes, sizeof(bytes),
							       CAIRN_ENCODE_ADD_SPECIAL, &ids, &n));
			EXPECT(t, !cairn_tokenizer_decode(tok, ids, n, skip, &text, &len));
			/* the one case in which the stream keeps characters that decode replaces */
			if (!fallback || !memmem(text, len, CAIRN_UTF8_REPLACEMENT, 3))
				check_stream(t, tok, ids, n, skip, text, len);
			if (ids != few)
				free(ids);
			free(text);
		}
		if (!tok)
			cairn_note(t, "%s", json_string_value(json_object_get(row, "name")));
		cairn_tokenizer_free(tok);
		free(file);
	}
	cairn_golden_close(&g);
}

/* A stream holds back an incomplete character, replaces ill-formed bytes, and can be used again. */
static void holds_back(struct cairn_test *t)
{
	struct cairn_token_stream *s = NULL;
	struct cairn_tokenizer *tok = NULL;
	struct cairn_golden g;
	static const struct {
		const char *token, *text;
	} steps[] = {
		{ "<s>", "" }, { "<0xE4>", "" }, { "<0xBD>", "" }, { "<0xA0>", "你" },
		{ "<0xF0>", "" }, { "<0x9F>", "" }, { "▁", "\ufffd\ufffd " },
		{ "<0xFF>", "\ufffd" }, { "<0xC3>", "" }, { "<0xC3>", "\ufffd" },
		{ "<0xA9>", "é" }, { "<0xE2>", "" },
	};
	const char *text = NULL;
	size_t len = 0;

	if (!EXPECT(t, !cairn_golden_open(&g)))
		return;
	tok = cairn_golden_tokenizer(&g, "llama2");
	cairn_golden_close(&g);
	if (!EXPECT(t, tok && !cairn_token_stream_new(tok, true, &s)))
		return;
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
			int32_t id =
				cairn_tokenizer_id(tok, steps[i].token, strlen(steps[i].token));

			EXPECT(t, id >= 0 && !cairn_token_stream_push(s, id, &text, &len));
			if (!EXPECT(t, !strcmp(text, steps[i].text)))
				cairn_note(t, "step %zu: \"%s\"", i, text);
		}
		EXPECT(t, !cairn_token_stream_finish(s, &text, &len) && !strcmp(text, "\ufffd"));
	}
	EXPECT(t, !cairn_token_stream_push(s, cairn_tokenizer_size(tok) + 100, &text, &len) &&
			  len == 0);
	EXPECT(t, cairn_token_stream_push(s, -1, &text, &len) == -EINVAL);
	cairn_token_stream_free(s);
	cairn_tokenizer_free(tok);
}

/* A decoder cannot be streamed if its later steps could change text that has already been returned. */
static void refuses(struct cairn_test *t)
{
	static const char file[] =
		"{'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Replace',"
		"'pattern':{'String':'ab'},'content':'c'}]},"
		"'model':{'type':'BPE','vocab':{'a':0,'b':1},'merges':[]}}";
	char *json = cairn_json_text("", NULL, file);
	struct cairn_token_stream *s = NULL;
	struct cairn_tokenizer *tok = NULL;
	char *text = NULL;
	size_t len = 0;

	if (!EXPECT(t, json && !cairn_tokenizer_open_mem(json, strlen(json), "x.json", &tok)))
		goto out;
	EXPECT(t, !cairn_tokenizer_decode(tok, (int32_t[]){ 0, 1, 1 }, 3, false, &text, &len) &&
			  !strcmp(text, "cb"));
	EXPECT(t, cairn_token_stream_new(tok, false, &s) == -EOPNOTSUPP && !s);
	EXPECT_CONTAINS(t, cairn_last_error(), "x.json: decoder");
	free(text);
	cairn_tokenizer_free(tok);
out:
	free(json);
}

static const struct cairn_unit units[] = {
	{ "adds_up", adds_up },
	{ "holds_back", holds_back },
	{ "refuses", refuses },
};

const struct cairn_family cairn_tokenizer_stream_family = {
	.stage = "serving",
	.name = "tokenizer_stream",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
