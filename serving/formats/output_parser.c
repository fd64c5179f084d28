// SPDX-License-Identifier: Apache-2.0
/*
 * output_parser - the states of an answer: reasoning, text, and the parts of a call
 *
 * Every step looks at the text that is held and either decides about its beginning or waits for more. The
 * decision depends only on the text, never on how much of it arrived at once: a step that sees too little to
 * distinguish all cases waits. All limits therefore count bytes of the text.
 */
#include "serving/formats/output_parser.h"

#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/formats/output_parser_impl.h"

enum cairn_prompt_end cairn_prompt_end(const struct cairn_reasoning_format *f, const char *prompt, size_t n)
{
	size_t begin, end;

	if (!f || f->harmony)
		return CAIRN_PROMPT_PLAIN;
	begin = strlen(f->begin);
	end = strlen(f->end);
	while (n && is_space(prompt[n - 1]))
		n--;
	if (n >= begin && !memcmp(prompt + n - begin, f->begin, begin))
		return CAIRN_PROMPT_REASONS;
	return n >= end && !memcmp(prompt + n - end, f->end, end) ? CAIRN_PROMPT_REASONED
								  : CAIRN_PROMPT_PLAIN;
}

int cairn_output_parser_new(const struct cairn_output_rules *rules, struct cairn_output_parser **out)
{
	struct cairn_output_parser *p = calloc(1, sizeof(*p));
	const struct cairn_reasoning_format *r = rules->reasoning;

	if (!p)
		return cairn_error(ENOMEM, "output_parser: no memory");
	p->rules = *rules;
	if ((r && r->harmony) || (rules->tool_format && rules->tool_format->harmony))
		p->state = PARSER_HEADER;
	else
		p->state = !r || rules->prompt_end == CAIRN_PROMPT_REASONED ? PARSER_TEXT : PARSER_BEGIN;
	p->skip_space = r && p->state == PARSER_TEXT;
	*out = p;
	return 0;
}

void cairn_output_parser_free(struct cairn_output_parser *p)
{
	if (!p)
		return;
	cairn_api_out_free(&p->held);
	free(p);
}

int32_t cairn_output_parser_calls(const struct cairn_output_parser *p)
{
	return p->num_calls;
}

/* Returns whether the answer begins with reasoning even without its opening mark. */
static bool begun(const struct cairn_output_parser *p)
{
	return p->rules.reasoning->begun || p->rules.prompt_end == CAIRN_PROMPT_REASONS;
}

bool cairn_output_parser_reasons(const struct cairn_output_parser *p)
{
	return p->state == PARSER_REASONING || (p->state == PARSER_BEGIN && begun(p)) ||
	       (p->state == PARSER_BODY && p->body == CAIRN_PIECE_REASONING);
}

/* Looks for a mark. Returns its position, or that of its beginning at the end of the text, or n. */
static size_t find_mark(const char *s, size_t n, const char *mark, size_t len, bool *whole)
{
	const char *at = s;

	*whole = false;
	while ((at = memchr(at, mark[0], n - (size_t)(at - s)))) {
		size_t i = (size_t)(at - s), have = n - i < len ? n - i : len;

		if (!memcmp(at, mark, have)) {
			*whole = have == len;
			return i;
		}
		at++;
	}
	return n;
}

/* Length of s[0..n) without white space at its end, of which at most a bounded part is cut off. */
static size_t before_space(const char *s, size_t n)
{
	size_t i = n;

	while (i && is_space(s[i - 1]) && n - i < CAIRN_PARSER_MAX_HEAD)
		i--;
	return i;
}

void parser_drop_space(struct cairn_output_parser *p)
{
	size_t i = 0;

	while (p->skip_space && i < num_held(p) && is_space(held(p)[i]))
		i++;
	p->skip_space &= i == num_held(p);
	consume(p, i);
}

static bool begin_step(struct cairn_output_parser *p)
{
	const struct cairn_reasoning_format *f = p->rules.reasoning;
	struct found found = { 0 };
	enum match m;

	p->skip_space = true;
	parser_drop_space(p);
	m = parser_match(f->begin, held(p), num_held(p), &found);
	if (m == MATCH_MORE)
		return false;
	if (m == MATCH_YES)
		consume(p, found.at);
	p->state = m == MATCH_YES || begun(p) ? PARSER_REASONING : PARSER_TEXT;
	p->skip_space = m == MATCH_YES;
	return true;
}

static bool reasoning_step(struct cairn_output_parser *p, struct cairn_output *out)
{
	const char *mark = p->rules.reasoning->end;
	size_t len = strlen(mark), at, text;
	bool whole;

	parser_drop_space(p);
	at = find_mark(held(p), num_held(p), mark, len, &whole);
	text = before_space(held(p), at);
	at -= text;
	emit(p, CAIRN_PIECE_REASONING, text, out);
	if (!whole)
		return false;
	consume(p, at + len);
	p->state = PARSER_TEXT;
	p->skip_space = true;
	return true;
}

static void emit_content(struct cairn_output_parser *p, size_t n, struct cairn_output *out)
{
	for (size_t i = 0; i < n && !p->has_content; i++)
		p->has_content = !is_space(held(p)[i]);
	emit(p, CAIRN_PIECE_CONTENT, n, out);
}

void parser_begin_call(struct cairn_output_parser *p, const char *name, size_t len, int32_t number,
		       struct cairn_output *out)
{
	p->function = cairn_tool_find(p->rules.tools, name, len);
	p->num_calls++;
	p->num_parameters = 0;
	cairn_output_add(out, CAIRN_PIECE_NAME, name, len);
	if (!out->text.failed)
		out->v[out->num - 1].number = number;
}

void parser_end_call(struct cairn_output_parser *p, enum parser_state next)
{
	p->state = p->rules.one_call ? PARSER_DONE : next;
}

static const char *mark_of(const struct cairn_tool_form *f)
{
	return *f->begin ? f->begin : f->call;
}

static bool is_bare(const struct cairn_tool_form *f)
{
	return !parser_literal(mark_of(f));
}

/* Matches the head of a call at position `at` of the held text; before: what comes before the call's
 * pattern. */
static enum match match_head(const struct cairn_output_parser *p, const struct cairn_tool_form *form,
			     const char *before, size_t at, struct found *f)
{
	const char *s = held(p) + at;
	size_t n = num_held(p) - at, limit = n < CAIRN_PARSER_MAX_HEAD ? n : CAIRN_PARSER_MAX_HEAD;
	enum match m;

	*f = (struct found){ .number = -1 };
	m = parser_match(before, s, limit, f);
	if (m == MATCH_YES)
		m = parser_match(form->call, s, limit, f);
	if (m == MATCH_MORE && limit == CAIRN_PARSER_MAX_HEAD)
		return MATCH_NO;
	if (m == MATCH_YES && is_bare(form) && !cairn_tool_find(p->rules.tools, f->name, f->name_len))
		return MATCH_NO;
	return m;
}

/* Reports a call whose head has been found at position `at` of the held text. */
static void take_head(struct cairn_output_parser *p, const struct cairn_tool_form *form, size_t at,
		      const struct found *f, struct cairn_output *out)
{
	parser_begin_call(p, f->name, f->name_len, f->number, out);
	p->form = form;
	p->envelope = f->envelope;
	p->scan = (struct json_scan){ 0 };
	p->rest = f->pattern;
	p->state = PARSER_ARGUMENTS;
	if (f->closed) {
		cairn_output_add(out, CAIRN_PIECE_ARGUMENTS, f->arguments ? f->arguments : "{}",
				 f->arguments ? f->num_arguments : 2);
		p->state = PARSER_TAIL;
	} else if (!f->envelope) {
		p->state = f->pattern[1] == 'p' ? PARSER_PARAMETERS : PARSER_ARGUMENTS;
		p->rest += 2;
	}
	consume(p, at + f->at);
}

/* Tries all forms whose mark, or for bare forms the object, begins at position `at`. */
static enum match try_forms(struct cairn_output_parser *p, size_t at, bool bare, struct cairn_output *out)
{
	const struct cairn_tool_form *forms = p->rules.tool_format->forms;
	struct found f;

	for (int i = 0; i < CAIRN_TOOL_FORMS && forms[i].begin; i++) {
		enum match m = is_bare(&forms[i]) == bare ? match_head(p, &forms[i], forms[i].begin, at, &f)
							  : MATCH_NO;

		if (m == MATCH_YES) {
			size_t text = before_space(held(p), at);

			/* take_head() reads names at their place in the held text, which emit keeps */
			emit_content(p, text, out);
			take_head(p, &forms[i], at - text, &f, out);
		}
		if (m != MATCH_NO)
			return m;
	}
	return MATCH_NO;
}

/* Finds the first opening mark of any form. */
static size_t find_opening(const struct cairn_output_parser *p, bool *whole)
{
	const struct cairn_tool_form *forms = p->rules.tool_format->forms;
	size_t first = num_held(p);

	*whole = false;
	for (int i = 0; i < CAIRN_TOOL_FORMS && forms[i].begin; i++) {
		const char *mark = mark_of(&forms[i]);
		bool is_whole;
		size_t at;

		if (is_bare(&forms[i]))
			continue;
		at = find_mark(held(p), num_held(p), mark, parser_literal(mark), &is_whole);
		if (at < first || (at == first && at < num_held(p) && is_whole)) {
			first = at;
			*whole = is_whole;
		}
	}
	return first;
}

static bool text_step(struct cairn_output_parser *p, struct cairn_output *out)
{
	enum match m = MATCH_NO;
	size_t at = 0;
	bool whole;

	parser_drop_space(p);
	if (!num_held(p))
		return false;
	if (!p->rules.tool_format) {
		emit_content(p, num_held(p), out);
		return false;
	}
	if (!p->has_content && !p->num_calls) {
		while (at < num_held(p) && is_space(held(p)[at]))
			at++;
		if (at < num_held(p) && held(p)[at] == '{')
			m = try_forms(p, at, true, out);
		if (m != MATCH_NO)
			return m == MATCH_YES;
	}
	at = find_opening(p, &whole);
	if (whole) {
		m = try_forms(p, at, false, out);
		if (m == MATCH_YES)
			return true;
		if (m == MATCH_NO) {
			emit_content(p, at + 1, out);
			return true;
		}
	}
	emit_content(p, before_space(held(p), at), out);
	return false;
}

/* After a call: another one, or the end of the list. */
static bool call_step(struct cairn_output_parser *p, struct cairn_output *out)
{
	struct found call = { 0 }, end = { 0 };
	enum match another, over = MATCH_NO;

	another = match_head(p, p->form, p->form->between, 0, &call);
	if (another == MATCH_YES) {
		take_head(p, p->form, 0, &call, out);
		return true;
	}
	if (*p->form->end) {
		while (end.at < num_held(p) && is_space(held(p)[end.at]) && end.at < CAIRN_PARSER_MAX_HEAD)
			end.at++;
		over = parser_match(p->form->end, held(p), num_held(p), &end);
	}
	if (over == MATCH_YES)
		consume(p, end.at);
	else if (another == MATCH_MORE || over == MATCH_MORE)
		return false;
	p->state = PARSER_TEXT;
	return true;
}

static bool arguments_step(struct cairn_output_parser *p, struct cairn_output *out)
{
	bool ended;
	size_t n = parser_scan(&p->scan, held(p), num_held(p), &ended);

	emit(p, CAIRN_PIECE_ARGUMENTS, n, out);
	if (ended)
		p->state = p->envelope ? PARSER_ENVELOPE : PARSER_TAIL;
	return ended;
}

static bool envelope_step(struct cairn_output_parser *p)
{
	size_t n = num_held(p) < CAIRN_PARSER_MAX_HEAD ? num_held(p) : CAIRN_PARSER_MAX_HEAD, end = 0;
	enum match m = parser_envelope_end(held(p), n, &end);

	if (m == MATCH_MORE && n < CAIRN_PARSER_MAX_HEAD)
		return false;
	consume(p, end);
	if (m == MATCH_YES)
		p->state = PARSER_TAIL;
	else
		parser_end_call(p, PARSER_TEXT);
	return true;
}

static bool tail_step(struct cairn_output_parser *p)
{
	size_t n = num_held(p) < CAIRN_PARSER_MAX_HEAD ? num_held(p) : CAIRN_PARSER_MAX_HEAD;
	struct found f = { 0 };
	enum match m = parser_match(p->rest, held(p), n, &f);

	if (m == MATCH_MORE && n < CAIRN_PARSER_MAX_HEAD)
		return false;
	if (m == MATCH_YES)
		consume(p, f.at);
	parser_end_call(p, PARSER_CALL);
	return true;
}

static bool step(struct cairn_output_parser *p, struct cairn_output *out)
{
	switch (p->state) {
	case PARSER_BEGIN:
		return begin_step(p);
	case PARSER_REASONING:
		return reasoning_step(p, out);
	case PARSER_TEXT:
		return text_step(p, out);
	case PARSER_CALL:
		return call_step(p, out);
	case PARSER_ARGUMENTS:
		return arguments_step(p, out);
	case PARSER_ENVELOPE:
		return envelope_step(p);
	case PARSER_PARAMETERS:
		return parser_parameters(p, out);
	case PARSER_TAIL:
		return tail_step(p);
	case PARSER_HEADER:
	case PARSER_BODY:
		return harmony_step(p, out);
	case PARSER_DONE:
		break;
	}
	consume(p, num_held(p));
	return false;
}

bool cairn_output_parser_push(struct cairn_output_parser *p, const char *text, size_t n,
			      struct cairn_output *out)
{
	cairn_api_put(&p->held, text, n);
	while (!p->held.failed && !out->text.failed && step(p, out))
		;
	out->text.failed |= p->held.failed;
	if (p->at && !p->held.failed) {
		p->held.len -= p->at;
		memmove(p->held.s, p->held.s + p->at, p->held.len);
		p->at = 0;
	}
	return p->state == PARSER_DONE;
}

void cairn_output_parser_finish(struct cairn_output_parser *p, struct cairn_output *out)
{
	struct found f = { 0 };
	size_t n = num_held(p), text = before_space(held(p), n);

	switch (p->state) {
	case PARSER_BEGIN:
		emit(p, begun(p) ? CAIRN_PIECE_REASONING : CAIRN_PIECE_CONTENT, text, out);
		break;
	case PARSER_REASONING:
		emit(p, CAIRN_PIECE_REASONING, text, out);
		break;
	case PARSER_CALL:
		/* the list of calls is cut in the middle of its closing mark */
		while (f.at < n && is_space(held(p)[f.at]))
			f.at++;
		if (*p->form->end && parser_match(p->form->end, held(p), n, &f) == MATCH_MORE)
			break;
		emit_content(p, text, out);
		break;
	case PARSER_TEXT:
		emit_content(p, p->num_calls ? text : n, out);
		break;
	case PARSER_HEADER:
	case PARSER_BODY:
		harmony_finish(p, out);
		break;
	case PARSER_ARGUMENTS:
	case PARSER_ENVELOPE:
	case PARSER_PARAMETERS:
	case PARSER_TAIL:
	case PARSER_DONE:
		break; /* a call that is cut: what is held is an unfinished parameter or a part of a mark */
	}
	consume(p, num_held(p));
}
