// SPDX-License-Identifier: Apache-2.0
/*
 * harmony - reads the format of gpt-oss: messages, each with a channel and perhaps a recipient
 *
 *   <|start|>assistant<|channel|>analysis<|message|>TEXT<|end|>            reasoning
 *   <|start|>assistant<|channel|>final<|message|>TEXT<|return|>            content
 *   <|start|>assistant<|channel|>commentary<|message|>TEXT<|end|>          content
 *   <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>JSON<|call|>
 *
 * The prompt ends with the first <|start|>assistant. The recipient may also stand before the channel. Text
 * that is not a header is content.
 */
#include "serving/formats/output_parser_impl.h"

#define MAX_HEADER 512 /* bytes from <|start|> to <|message|> */

static const char message[] = "<|message|>", channel[] = "<|channel|>", start[] = "<|start|>";
static const char functions[] = "functions.";

static bool begins(const char *s, size_t n, const char *with)
{
	return n >= strlen(with) && !memcmp(s, with, strlen(with));
}

/* Returns whether s could grow into a header. fresh: s follows <|start|>assistant or the end of a message.
 */
static bool may_be_header(const char *s, size_t n, bool fresh)
{
	const char *const all[] = { channel, start, " to=" };

	for (int i = 0; i < (fresh ? 3 : 2); i++) {
		size_t len = strlen(all[i]);

		if (!memcmp(s, all[i], n < len ? n : len))
			return true;
	}
	return false;
}

/* Finds the recipient of a header of n bytes. */
static const char *recipient(const char *s, size_t n, size_t *len)
{
	const char *to = memmem(s, n, "to=", 3);
	size_t left;

	if (!to)
		return NULL;
	to += 3;
	left = n - (size_t)(to - s);
	if (begins(to, left, functions)) {
		to += strlen(functions);
		left -= strlen(functions);
	}
	*len = cairn_tool_name_len(to, left);
	return *len && *len <= CAIRN_MAX_TOOL_NAME ? to : NULL;
}

/* Reads a header of n bytes, without <|message|>. Returns false if it is none. */
static bool take_header(struct cairn_output_parser *p, size_t n, struct cairn_output *out)
{
	const char *s = held(p), *to, *name = memmem(s, n, channel, strlen(channel));
	size_t len;

	to = recipient(s, n, &len);
	if (to && p->rules.tool_format) {
		parser_begin_call(p, to, len, -1, out);
		p->body = CAIRN_PIECE_ARGUMENTS;
		p->body_empty = true;
		return true;
	}
	if (!name)
		return false;
	name += strlen(channel);
	n -= (size_t)(name - s);
	p->body = CAIRN_PIECE_CONTENT;
	if (begins(name, n, "analysis") && p->rules.reasoning)
		p->body = CAIRN_PIECE_REASONING;
	return begins(name, n, "analysis") || begins(name, n, "commentary") || begins(name, n, "final");
}

/* Reports text that is no header up to the next mark that could begin one. */
static bool no_header(struct cairn_output_parser *p, struct cairn_output *out)
{
	size_t n = 1;

	while (n < num_held(p) && held(p)[n] != '<')
		n++;
	emit(p, CAIRN_PIECE_CONTENT, n, out);
	p->has_content = true;
	return true;
}

static bool header_step(struct cairn_output_parser *p, struct cairn_output *out)
{
	size_t n = num_held(p), limit = n < MAX_HEADER ? n : MAX_HEADER, end;
	const char *s = held(p), *at;

	if (!n)
		return false;
	if (!may_be_header(s, n, !p->has_content))
		return no_header(p, out);
	at = memmem(s, limit, message, strlen(message));
	if (!at && limit < MAX_HEADER)
		return false;
	end = at ? (size_t)(at - s) : 0;
	if (!at || !take_header(p, end, out))
		return no_header(p, out);
	consume(p, end + strlen(message));
	p->state = PARSER_BODY;
	p->has_content = false;
	return true;
}

/* Finds the mark that ends a message; *len: what of it is consumed. Returns n if there is none. */
static size_t find_end(const char *s, size_t n, size_t *len)
{
	static const struct {
		const char *mark;
		bool is_next; /* it already belongs to the next message */
	} ends[] = { { "<|end|>", false },
		     { "<|call|>", false },
		     { "<|return|>", false },
		     { "<|start|>", true },
		     { "<|channel|>", true } };

	for (size_t i = 0; i < n; i++) {
		if (s[i] != '<')
			continue;
		for (size_t k = 0; k < sizeof(ends) / sizeof(*ends); k++) {
			size_t whole = strlen(ends[k].mark), have = n - i < whole ? n - i : whole;

			if (memcmp(s + i, ends[k].mark, have))
				continue;
			*len = have < whole ? 0 : ends[k].is_next ? 0 : whole;
			if (have < whole)
				*len = SIZE_MAX; /* more text is needed to tell */
			return i;
		}
	}
	*len = SIZE_MAX;
	return n;
}

static void end_body(struct cairn_output_parser *p, struct cairn_output *out)
{
	p->state = PARSER_HEADER;
	if (p->body != CAIRN_PIECE_ARGUMENTS)
		return;
	if (p->body_empty)
		cairn_output_add(out, CAIRN_PIECE_ARGUMENTS, "{}", 2);
	parser_end_call(p, PARSER_HEADER);
}

static bool body_step(struct cairn_output_parser *p, struct cairn_output *out)
{
	size_t len, n = find_end(held(p), num_held(p), &len);

	p->body_empty &= !n;
	emit(p, p->body, n, out);
	if (len == SIZE_MAX)
		return false;
	consume(p, len);
	end_body(p, out);
	return true;
}

bool harmony_step(struct cairn_output_parser *p, struct cairn_output *out)
{
	return p->state == PARSER_HEADER ? header_step(p, out) : body_step(p, out);
}

void harmony_finish(struct cairn_output_parser *p, struct cairn_output *out)
{
	size_t n = num_held(p);

	if (p->state == PARSER_BODY) {
		emit(p, p->body, n, out);
		p->body_empty &= !n;
		if (p->body == CAIRN_PIECE_ARGUMENTS && p->body_empty)
			cairn_output_add(out, CAIRN_PIECE_ARGUMENTS, "{}", 2);
	} else if (n && !begins(held(p), n, start) && !begins(held(p), n, channel)) {
		emit(p, CAIRN_PIECE_CONTENT, n, out);
	}
}
