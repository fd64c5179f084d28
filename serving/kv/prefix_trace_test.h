/* SPDX-License-Identifier: Apache-2.0 */
/* prefix_trace_test - the texts of the survey's example and its nine pictures */
#ifndef CAIRN_PREFIX_TRACE_TEST_H
#define CAIRN_PREFIX_TRACE_TEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MOST_NODES = 16 };

/* Texts as a tokenizer would split them: a text is num_tokens tokens that occur in no other text. */
enum {
	SYS, HELLO, SOLVE, WHAT, STORY, SHOTS, Q1, A1, Q2, A2, Q3, A3, Q4, A4, AGAIN, A2_A, A2_B, A2_C,
	NUM_TEXTS
};

static const struct {
	const char *text;
	int32_t num_tokens;
} texts[NUM_TEXTS] = {
	[SYS] = { "You are a helpful assistant.", 6 },
	[HELLO] = { "User: Hello! Assistant: Hi!", 6 },
	[SOLVE] = { "User: Solve this problem... Assistant: Sure...", 45 },
	[WHAT] = { "User: What can you do? Assistant: I can...", 30 },
	[STORY] = { "User: Write a story... Assistant: Once...", 40 },
	[SHOTS] = { "Question 1:... Answer 1:... Question 2:... Answer 2:...", 12 },
	[Q1] = { "Question 3: Why...", 4 },
	[A1] = { "Answer 3: As...", 2 },
	[Q2] = { "Question 3: What...", 4 },
	[A2] = { "Answer 3: It...", 2 },
	[Q3] = { "Question 3: When...", 4 },
	[A3] = { "Answer 3: In...", 2 },
	[Q4] = { "Question 3: How...", 4 },
	[A4] = { "Answer 3: By...", 2 },
	[AGAIN] = { "User: And this... Assistant: Well...", 6 },
	[A2_A] = { "Answer 3: First...", 12 },
	[A2_B] = { "Answer 3: Some...", 12 },
	[A2_C] = { "Answer 3: That...", 12 },
};

#define END	(-1)

struct want {
	const char *name, *parent;
	char state;			/* +: added in this step, *: used in it, space: unchanged */
	int8_t text[4];			/* texts of its edge, ended by END */
};

struct step {
	const char *what, *evicted;	/* evicted: nodes by their names in the previous step, in order */
	struct want nodes[MOST_NODES];
};

static const struct step steps[9] = {
	{ "(1) empty", "", { { NULL } } },
	{ "(2) a first chat", "", { { "b", "a", '+', { SYS, HELLO, END } } } },
	{ "(3) its second turn",
	  "",
	  { { "b", "a", '*', { SYS, HELLO, END } }, { "c", "b", '+', { SOLVE, END } } } },
	{ "(4) a second chat: b is split",
	  "",
	  { { "b", "a", '*', { SYS, END } },
	    { "b'", "b", ' ', { HELLO, END } },
	    { "c", "b'", ' ', { SOLVE, END } },
	    { "d", "b", '+', { WHAT, END } } } },
	{ "(5) it goes on",
	  "c",
	  { { "b", "a", '*', { SYS, END } },
	    { "b'", "b", ' ', { HELLO, END } },
	    { "d", "b", '*', { WHAT, END } },
	    { "h", "d", '+', { STORY, END } } } },
	{ "(6) a few-shot query: the root has a second child",
	  "",
	  { { "b", "a", ' ', { SYS, END } },
	    { "b'", "b", ' ', { HELLO, END } },
	    { "d", "b", ' ', { WHAT, END } },
	    { "h", "d", ' ', { STORY, END } },
	    { "e", "a", '+', { SHOTS, Q1, A1, END } } } },
	{ "(7) a batch of queries with the same examples: e is split",
	  "",
	  { { "b", "a", ' ', { SYS, END } },
	    { "b'", "b", ' ', { HELLO, END } },
	    { "g", "b", ' ', { WHAT, END } },
	    { "h", "g", ' ', { STORY, END } },
	    { "e", "a", '*', { SHOTS, END } },
	    { "i", "e", ' ', { Q1, A1, END } },
	    { "j", "e", '+', { Q2, A2, END } },
	    { "k", "e", '+', { Q3, A3, END } },
	    { "l", "e", '+', { Q4, A4, END } } } },
	{ "(8) the first chat goes on",
	  "h g",
	  { { "b", "a", '*', { SYS, END } },
	    { "b'", "b", '*', { HELLO, END } },
	    { "f", "b'", '+', { SOLVE, AGAIN, END } },
	    { "e", "a", ' ', { SHOTS, END } },
	    { "i", "e", ' ', { Q1, A1, END } },
	    { "j", "e", ' ', { Q2, A2, END } },
	    { "k", "e", ' ', { Q3, A3, END } },
	    { "l", "e", ' ', { Q4, A4, END } } } },
	{ "(9) more answers to the question in j",
	  "i k l",
	  { { "b", "a", ' ', { SYS, END } },
	    { "b'", "b", ' ', { HELLO, END } },
	    { "f", "b'", ' ', { SOLVE, AGAIN, END } },
	    { "e", "a", '*', { SHOTS, END } },
	    { "j", "e", '*', { Q2, END } },
	    { "j'", "j", ' ', { A2, END } },
	    { "m", "j", '+', { A2_A, END } },
	    { "n", "j", '+', { A2_B, END } },
	    { "o", "j", '+', { A2_C, END } } } },
};

static inline int32_t put_text(const int8_t *text, int32_t *tokens, int32_t len)
{
	for (; *text != END; text++) {
		for (int32_t k = 0; k < texts[*text].num_tokens; k++)
			tokens[len++] = *text * 1000 + k;
	}
	return len;
}

static inline const struct want *find_want(const struct step *s, const char *name)
{
	for (int i = 0; i < MOST_NODES && s->nodes[i].name; i++) {
		if (!strcmp(s->nodes[i].name, name))
			return &s->nodes[i];
	}
	return NULL;
}

/* Writes all tokens from the root to the end of a wanted node; returns their number. */
static inline int32_t path_of(const struct step *s, const struct want *w, int32_t *tokens)
{
	const struct want *parent = find_want(s, w->parent);

	return put_text(w->text, tokens, parent ? path_of(s, parent, tokens) : 0);
}

#endif
