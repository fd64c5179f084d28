// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_chat_template - renders arbitrary bytes as a template
 *
 * Rendering must stay within its budgets, yield whole characters and mark the user's text.
 *
 * Input: a template, optionally followed by a NUL and the text of the user's message.
 */
#include <string.h>

#include "serving/template/chat_template.h"
#include "serving/fuzz/fuzz.h"

static void check(const struct cairn_chat_text *text, bool marked)
{
	size_t end = 0;

	FUZZ_HOLDS(fuzz_is_utf8(text->text, text->num_bytes));
	for (size_t i = 0; i < text->num_user; i++) {
		FUZZ_HOLDS(text->user[i].begin >= end && text->user[i].end > text->user[i].begin);
		FUZZ_HOLDS(i == 0 || text->user[i].begin > end);
		end = text->user[i].end;
	}
	FUZZ_HOLDS(end <= text->num_bytes);
	if (!marked)
		return;
	/* only the user's message contains U+E000 (see below), so each U+E000 must be marked as the user's */
	for (const char *at = text->text;
	     (at = memmem(at, text->num_bytes - (size_t)(at - text->text), "\xee\x80\x80", 3)); at++) {
		size_t i = 0, from = (size_t)(at - text->text);

		while (i < text->num_user && text->user[i].end <= from)
			i++;
		FUZZ_HOLDS(i < text->num_user && text->user[i].begin <= from &&
			   text->user[i].end >= from + 3);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *source = (const char *)data;
	size_t len = size ? strnlen(source, size) : 0, said = len < size ? size - len - 1 : 0;
	struct cairn_chat_template *t = NULL;
	struct cairn_chat_text text;
	char user[512] = "\xee\x80\x80";
	/* the check is void if the template itself may produce U+E000, literally or by an escape */
	bool marked = !memmem(source, len, user, 3) && !memmem(source, len, "\\", 1);
	json_t *messages, *extra;

	if (said && said < sizeof(user) - 4 && fuzz_is_utf8(source + len + 1, said))
		memcpy(user + 3, source + len + 1, said);
	if (cairn_chat_template_open(source, len, NULL, "fuzz", &t))
		return 0;
	messages = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", user, "role", "assistant",
			     "content", "");
	extra = json_pack("{s:[i,f,b,n],s:{s:s}}", "l", 5, 2.5, 1, "d", "k", user);
	if (messages && extra) {
		struct cairn_chat_input in = {
			.messages = messages,
			.extra = extra,
			.budget = { 100000, 1 << 16, 8 << 20 },
		};

		if (!cairn_chat_template_render(t, &in, &text)) {
			check(&text, marked);
			cairn_chat_text_free(&text);
		}
	}
	json_decref(messages);
	json_decref(extra);
	cairn_chat_template_free(t);
	return 0;
}
