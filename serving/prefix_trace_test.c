// SPDX-License-Identifier: Apache-2.0
/*
 * The nine steps of the source (003, section 12: RadixAttention with LRU eviction), node by node.
 *
 * A page holds one token, as there. The source gives what happens, not the lengths: those below make it
 * happen, in 120 pages, by the same rules as everywhere. Nodes have the letters that the source gives them,
 * step by step (it letters each picture anew: the second chat's first turn is d in (4) and g in (8)); one
 * that it does not name is called after the node it was split from, b' and j', or has a letter that the
 * source leaves free.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../conformance/harness.h"
#include "kv_pool.h"
#include "prefix_trace_test.h"
#include "prefix_tree.h"

enum { PAGES = 120, LONGEST = 128, MOST_FORKS = 3 };

struct trace {
	struct cairn_kv_pool *pool;
	struct cairn_prefix_tree *tree;
	const struct step *now, *before;
	char evicted[64];
	uint64_t used;			/* the time before this step */
	int32_t had[MOST_NODES];	/* of each wanted node's path, so much was there before */
};

static const struct cairn_cache_salt nobody;

static int32_t put_text(const int8_t *text, int32_t *tokens, int32_t len)
{
	for (; *text != END; text++) {
		for (int32_t k = 0; k < texts[*text].num_tokens; k++)
			tokens[len++] = *text * 1000 + k;
	}
	return len;
}

static const struct want *find_want(const struct step *s, const char *name)
{
	for (int i = 0; i < MOST_NODES && s->nodes[i].name; i++) {
		if (!strcmp(s->nodes[i].name, name))
			return &s->nodes[i];
	}
	return NULL;
}

/* All tokens from the root to the end of a wanted node. */
static int32_t path_of(const struct step *s, const struct want *w, int32_t *tokens)
{
	const struct want *parent = find_want(s, w->parent);

	return put_text(w->text, tokens, parent ? path_of(s, parent, tokens) : 0);
}

/* The wanted node that is this one; NULL: none. */
static const struct want *name_of(struct trace *tr, const struct step *s, int32_t node)
{
	struct cairn_prefix_node n;
	int32_t want[LONGEST], got[LONGEST], len;

	len = (int32_t)cairn_prefix_tree_path(tr->tree, node, NULL, got, NULL);
	cairn_prefix_tree_node(tr->tree, node, &n);
	for (int i = 0; i < MOST_NODES && s->nodes[i].name; i++) {
		int32_t start = find_want(s, s->nodes[i].parent) ?
			path_of(s, find_want(s, s->nodes[i].parent), want) : 0;

		if (path_of(s, &s->nodes[i], want) == len && start == n.start &&
		    !memcmp(want, got, (size_t)len * sizeof(*got)))
			return &s->nodes[i];
	}
	return NULL;
}

static int grow(struct cairn_test *t, struct trace *tr, int32_t seq, int32_t len)
{
	struct cairn_kv_copy copy;
	int ret;

	while ((ret = cairn_kv_pool_resize(tr->pool, seq, len, &copy)) == -ENOSPC) {
		int32_t victim = cairn_prefix_tree_victim(tr->tree);
		const struct want *w = victim < 0 ? NULL : name_of(tr, tr->before, victim);

		if (!EXPECT(t, w))
			return ret;
		snprintf(tr->evicted + strlen(tr->evicted), sizeof(tr->evicted) - strlen(tr->evicted), "%s%s",
			 tr->evicted[0] ? " " : "", w->name);
		CAIRN_TRY(cairn_prefix_tree_remove(tr->tree, victim));
	}
	return ret;
}

/* A prompt and n answers to it, each of one text, computed side by side. */
static void serve(struct cairn_test *t, struct trace *tr, const int8_t *prompt, const int8_t *answers)
{
	int32_t tokens[LONGEST], pages[LONGEST], seqs[MOST_FORKS], node, ended, len, found, n;

	len = put_text(prompt, tokens, 0);
	found = (int32_t)cairn_prefix_tree_match(tr->tree, nobody, tokens, len, &node, pages);
	if (node != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_pin(tr->tree, node);
	EXPECT(t, cairn_kv_pool_open(tr->pool, &seqs[0]) == 0);
	/* a prompt that is there whole: its last token is computed all the same, its row gives the next
	 * one */
	EXPECT(t, cairn_kv_pool_adopt(tr->pool, seqs[0], pages, found < len ? found : len - 1) == 0);
	EXPECT(t, grow(t, tr, seqs[0], len - 1) == 0);
	for (n = 1; answers[n] != END; n++)
		EXPECT(t, cairn_kv_pool_fork(tr->pool, seqs[0], &seqs[n]) == 0);
	for (int32_t i = 0; i < n; i++)
		EXPECT(t, grow(t, tr, seqs[i], len + texts[answers[i]].num_tokens) == 0);
	for (int32_t i = 0; i < n; i++) {
		int8_t answer[2] = { answers[i], END };
		int32_t end = put_text(answer, tokens, len), num;
		const int32_t *table = cairn_kv_pool_pages(tr->pool, seqs[i], &num);

		EXPECT(t, cairn_prefix_tree_insert(tr->tree, nobody, tokens, end, table, &ended) == 0);
		EXPECT(t, cairn_kv_pool_close(tr->pool, seqs[i]) == 0);
	}
	if (node != CAIRN_PREFIX_NONE)
		EXPECT(t, cairn_prefix_tree_unpin(tr->tree, node) == 0);
}

#define TEXT(...)	((const int8_t []){ __VA_ARGS__, END })

static void serve_step(struct cairn_test *t, struct trace *tr, int number)
{
	switch (number) {
	case 2:
		return serve(t, tr, TEXT(SYS), TEXT(HELLO));
	case 3:
		return serve(t, tr, TEXT(SYS, HELLO), TEXT(SOLVE));
	case 4:
		return serve(t, tr, TEXT(SYS), TEXT(WHAT));
	case 5:
		return serve(t, tr, TEXT(SYS, WHAT), TEXT(STORY));
	case 6:
		return serve(t, tr, TEXT(SHOTS, Q1), TEXT(A1));
	case 7:		/* the answer to j's question is the last to be ready */
		serve(t, tr, TEXT(SHOTS, Q3), TEXT(A3));
		serve(t, tr, TEXT(SHOTS, Q4), TEXT(A4));
		return serve(t, tr, TEXT(SHOTS, Q2), TEXT(A2));
	case 8:
		return serve(t, tr, TEXT(SYS, HELLO, SOLVE), TEXT(AGAIN));
	case 9:
		return serve(t, tr, TEXT(SHOTS, Q2), TEXT(A2_A, A2_B, A2_C));
	default:
		return;
	}
}

/* A node and what hangs from it, indented; and as DOT: green is new, blue was used, as in the source. */
static void draw(const struct step *s, int number, const char *name, int depth, char *text, char *dot,
		 size_t len)
{
	for (int i = 0; i < MOST_NODES && s->nodes[i].name; i++) {
		const struct want *w = &s->nodes[i];
		size_t at = strlen(text), dot_at = strlen(dot);

		if (strcmp(w->parent, name))
			continue;
		snprintf(text + at, len - at, "%*s%c %-2s", 2 * depth + 2, "", w->state, w->name);
		snprintf(dot + dot_at, len - dot_at, "  \"%d%s\" -> \"%d%s\" [label=\"", number, name, number,
			 w->name);
		for (const int8_t *k = w->text; *k != END; k++) {
			at = strlen(text);
			dot_at = strlen(dot);
			snprintf(text + at, len - at, " %s (%d)", texts[*k].text, texts[*k].num_tokens);
			snprintf(dot + dot_at, len - dot_at, "%s ", texts[*k].text);
		}
		at = strlen(text);
		dot_at = strlen(dot);
		snprintf(text + at, len - at, "\n");
		snprintf(dot + dot_at, len - dot_at, "\"]; \"%d%s\" [label=\"%s\"%s];\n", number, w->name,
			 w->name,
			 w->state == '+'   ? ", color=green"
			 : w->state == '*' ? ", color=blue"
					   : "");
		draw(s, number, w->name, depth + 1, text, dot, len);
	}
}

static void check_step(struct cairn_test *t, struct trace *tr)
{
	struct cairn_prefix_stats st;
	int32_t wanted = 0, tokens[LONGEST];

	while (wanted < MOST_NODES && tr->now->nodes[wanted].name)
		wanted++;
	cairn_prefix_tree_stats(tr->tree, &st);
	EXPECT(t, st.num_nodes == wanted);
	EXPECT(t, !strcmp(tr->evicted, tr->now->evicted));
	for (int32_t i = 0, seen = 0; seen < st.num_nodes && i < 64; i++) {
		struct cairn_prefix_node n, p;
		const struct want *w;
		char state;

		if (cairn_prefix_tree_node(tr->tree, i, &n))
			continue;
		seen++;
		w = name_of(tr, tr->now, i);
		if (!EXPECT(t, w))
			continue;
		state = n.used <= tr->used                                          ? ' '
			: tr->had[w - tr->now->nodes] < path_of(tr->now, w, tokens) ? '+'
										    : '*';
		if (!EXPECT(t, state == w->state && n.pins == 0))
			cairn_note(t, "%s: %s is '%c', not '%c'", tr->now->what, w->name, state, w->state);
		EXPECT(t, n.parent == CAIRN_PREFIX_NONE ? !strcmp(w->parent, "a") :
		       !strcmp(w->parent, name_of(tr, tr->now, n.parent)->name));
		EXPECT(t, n.parent == CAIRN_PREFIX_NONE ||
		       (cairn_prefix_tree_node(tr->tree, n.parent, &p) == 0 && p.used >= n.used));
	}
	EXPECT(t, cairn_prefix_tree_verify(tr->tree) == 0 && cairn_kv_pool_verify(tr->pool) == 0);
}

static uint64_t latest(const struct trace *tr)
{
	struct cairn_prefix_node n;
	uint64_t used = 0;

	for (int32_t i = 0; i < 64; i++) {
		if (cairn_prefix_tree_node(tr->tree, i, &n) == 0 && n.used > used)
			used = n.used;
	}
	return used;
}

static void nine_steps(struct cairn_test *t)
{
	static char text[4096], dot[16384];
	struct trace tr = { 0 };
	int32_t tokens[LONGEST];

	if (!EXPECT(t, cairn_kv_pool_create(&tr.pool, PAGES, 1, MOST_FORKS) == 0))
		return;
	EXPECT(t, cairn_prefix_tree_create(&tr.tree, tr.pool, 1) == 0);
	cairn_note(t, "AT-13: + added, * used in this step; in brackets the number of tokens; %d fit", PAGES);
	for (int k = 0; k < 9; k++) {
		tr.before = tr.now ? tr.now : &steps[0];
		tr.now = &steps[k];
		tr.used = latest(&tr);
		tr.evicted[0] = 0;
		for (int i = 0; i < MOST_NODES && tr.now->nodes[i].name; i++)
			tr.had[i] = (int32_t)cairn_prefix_tree_peek(
				tr.tree, nobody, tokens, path_of(tr.now, &tr.now->nodes[i], tokens));
		serve_step(t, &tr, k + 1);
		check_step(t, &tr);
		snprintf(text, sizeof(text), "%s%s%s\n    a\n", tr.now->what,
			 tr.evicted[0] ? "; evicted: " : "", tr.evicted);
		draw(tr.now, k + 1, "a", 1, text, dot, sizeof(text));
		cairn_note(t, "%s", text);
	}
	cairn_note(t, "digraph nine_steps {\n%s}", dot);
	cairn_prefix_tree_destroy(tr.tree);
	EXPECT(t, cairn_kv_pool_free_pages(tr.pool) == PAGES);
	cairn_kv_pool_destroy(tr.pool);
}

static const struct cairn_unit units[] = {
	{ "nine_steps", nine_steps },
};

const struct cairn_family cairn_prefix_trace_family = {
	.stage = "serving",
	.name = "prefix_trace",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
