// SPDX-License-Identifier: Apache-2.0
/*
 * prefix_trace_test - replays the nine steps of the survey's example (section 12: RadixAttention with LRU
 * eviction), node by node
 *
 * A page holds one token, as in the survey. The survey says what happens but gives no lengths; with the
 * lengths below it happens in 120 pages by the ordinary rules. Nodes have the survey's letters in each step.
 * (The survey assigns letters anew in each picture: the first turn of the second chat is d in (4) and g in
 * (8).) A node without a letter there is named after the node it was split from (b', j') or has a letter that
 * the survey does not use.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/kv/kv_pool.h"
#include "serving/kv/prefix_trace_test.h"
#include "serving/kv/prefix_tree.h"

enum { PAGES = 120, LONGEST = 128, MOST_FORKS = 3 };

struct trace {
	struct cairn_kv_pool *pool;
	struct cairn_prefix_tree *tree;
	const struct step *now, *before;
	char evicted[64];
	uint64_t used;			/* time of last use before this step */
	int32_t had[MOST_NODES];	/* [node]: tokens of a wanted node's path that the tree had before */
	int64_t prompts, found;		/* tokens of this step's prompts; how many of them were found */
	char json[8192];		/* the nodes of its row for the report */
};

static const struct cairn_cache_salt no_salt;
static int is_measure;	/* write rows for `cairn bench` */

/* Returns the wanted node that has this node's path, or NULL. */
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

static const char *parent_name(struct trace *tr, const struct step *s, const struct cairn_prefix_node *n)
{
	const struct want *parent;

	if (n->parent == CAIRN_PREFIX_NONE)
		return "a";
	parent = name_of(tr, s, n->parent);
	return parent ? parent->name : "?";
}

/* Appends a node to the row; its edge is written as the texts its
 * tokens belong to, [text, number of tokens]. */
static void write_node(struct trace *tr, const char *name, const char *parent, char state,
		       const struct cairn_prefix_node *n)
{
	char *out = tr->json;
	size_t at = strlen(out), len = sizeof(tr->json);

	at += (size_t)snprintf(out + at, len - at,
			       "%s{\"name\":\"%s\",\"parent\":\"%s\",\"state\":\"%c\",\"edge\":[",
			       at ? "," : "", name, parent, state);
	for (int64_t i = 0, run; i < n->num_tokens; i += run) {
		int32_t text = n->tokens[i] / 1000;

		for (run = 1; i + run < n->num_tokens && n->tokens[i + run] / 1000 == text; run++)
			;
		at += (size_t)snprintf(out + at, len - at, "%s[\"%s\",%lld]", i ? "," : "", texts[text].text,
				       (long long)run);
	}
	snprintf(out + at, len - at, "]}");
}

static int grow(struct cairn_test *t, struct trace *tr, int32_t seq, int32_t len)
{
	struct cairn_kv_copy copy;
	int ret;

	while ((ret = cairn_kv_pool_resize(tr->pool, seq, len, &copy)) == -ENOSPC) {
		int32_t victim = cairn_prefix_tree_victim(tr->tree);
		const struct want *w = victim < 0 ? NULL : name_of(tr, tr->before, victim);
		struct cairn_prefix_node n;

		if (!EXPECT(t, w && cairn_prefix_tree_node(tr->tree, victim, &n) == 0))
			return ret;
		write_node(tr, w->name, parent_name(tr, tr->before, &n), '-', &n);
		snprintf(tr->evicted + strlen(tr->evicted), sizeof(tr->evicted) - strlen(tr->evicted), "%s%s",
			 tr->evicted[0] ? " " : "", w->name);
		CAIRN_TRY(cairn_prefix_tree_remove(tr->tree, victim));
	}
	return ret;
}

/* Serves a prompt with n concurrent answers, each consisting of one text. */
static void serve(struct cairn_test *t, struct trace *tr, const int8_t *prompt, const int8_t *answers)
{
	int32_t tokens[LONGEST], pages[LONGEST], seqs[MOST_FORKS], node, ended, len, found, n;

	len = put_text(prompt, tokens, 0);
	found = (int32_t)cairn_prefix_tree_match(tr->tree, no_salt, tokens, len, &node, pages);
	tr->prompts += len;
	tr->found += found;
	if (node != CAIRN_PREFIX_NONE)
		cairn_prefix_tree_pin(tr->tree, node);
	EXPECT(t, cairn_kv_pool_open(tr->pool, &seqs[0]) == 0);
	/* The last token of a fully cached prompt is still computed: its row gives the next token. */
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

		EXPECT(t, cairn_prefix_tree_insert(tr->tree, no_salt, tokens, end, table, &ended) == 0);
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
	case 7:		/* the answer to j's question is the last to finish */
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

/* Draws a node's children recursively, indented. */
static void draw(const struct step *s, const char *name, int depth, char *text, size_t len)
{
	for (int i = 0; i < MOST_NODES && s->nodes[i].name; i++) {
		const struct want *w = &s->nodes[i];
		size_t at = strlen(text);

		if (strcmp(w->parent, name))
			continue;
		at += (size_t)snprintf(text + at, len - at, "%*s%c %-2s", 2 * depth + 2, "", w->state,
				       w->name);
		for (const int8_t *k = w->text; *k != END; k++)
			at += (size_t)snprintf(text + at, len - at, " %s (%d)", texts[*k].text,
					       texts[*k].num_tokens);
		snprintf(text + at, len - at, "\n");
		draw(s, w->name, depth + 1, text, len);
	}
}

/* '+': added in this step; '*': used in it. had: tokens of the node's path that the tree held before. */
static char state_of(const struct trace *tr, const struct cairn_prefix_node *n, int32_t had)
{
	return n->used <= tr->used ? ' ' : had < n->start + n->num_tokens ? '+' : '*';
}

static void check_step(struct cairn_test *t, struct trace *tr)
{
	struct cairn_prefix_stats st;
	int32_t wanted = 0;

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
		state = state_of(tr, &n, tr->had[w - tr->now->nodes]);
		if (!EXPECT(t, state == w->state && n.pins == 0))
			cairn_note(t, "%s: %s is '%c', not '%c'", tr->now->what, w->name, state, w->state);
		EXPECT(t, !strcmp(w->parent, parent_name(tr, tr->now, &n)));
		write_node(tr, w->name, parent_name(tr, tr->now, &n), state, &n);
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

/* Writes the evicted nodes and the resulting tree as the row that the report draws. */
static void write_row(struct cairn_test *t, struct trace *tr, int number)
{
	char name[16];

	snprintf(name, sizeof(name), "step%d", number);
	cairn_host_row(t, name, "host",
		       "\"what\":\"%s\",\"pages\":%d,\"pages_taken\":%d,\"prompt_tokens\":%lld,"
		       "\"found_tokens\":%lld,\"nodes\":[%s]",
		       tr->now->what, PAGES, PAGES - cairn_kv_pool_free_pages(tr->pool),
		       (long long)tr->prompts, (long long)tr->found, tr->json);
}

static void nine_steps(struct cairn_test *t)
{
	struct trace tr = { 0 };
	int32_t tokens[LONGEST];
	char text[4096];

	if (!EXPECT(t, cairn_kv_pool_create(&tr.pool, PAGES, 1, MOST_FORKS) == 0))
		return;
	EXPECT(t, cairn_prefix_tree_create(&tr.tree, tr.pool, 1) == 0);
	cairn_note(t, "AT-13: + added, * used in this step; (number of tokens); the pool holds %d", PAGES);
	for (int k = 0; k < 9; k++) {
		tr.before = tr.now ? tr.now : &steps[0];
		tr.now = &steps[k];
		tr.used = latest(&tr);
		tr.evicted[0] = tr.json[0] = 0;
		tr.prompts = tr.found = 0;
		for (int i = 0; i < MOST_NODES && tr.now->nodes[i].name; i++)
			tr.had[i] = (int32_t)cairn_prefix_tree_peek(
				tr.tree, no_salt, tokens, path_of(tr.now, &tr.now->nodes[i], tokens));
		serve_step(t, &tr, k + 1);
		check_step(t, &tr);
		if (is_measure)
			write_row(t, &tr, k + 1);
		snprintf(text, sizeof(text), "%s%s%s\n    a\n", tr.now->what,
			 tr.evicted[0] ? "; evicted: " : "", tr.evicted);
		draw(tr.now, "a", 1, text, sizeof(text));
		cairn_note(t, "%s", text);
	}
	cairn_prefix_tree_destroy(tr.tree);
	EXPECT(t, cairn_kv_pool_free_pages(tr.pool) == PAGES);
	cairn_kv_pool_destroy(tr.pool);
}

/* Writes AT-13 as rows for `cairn bench`: one per step, with all its nodes. */
static void claims(struct cairn_test *t)
{
	is_measure = 1;
	nine_steps(t);
}

static const struct cairn_unit units[] = {
	{ "nine_steps", nine_steps },
};

static const struct cairn_unit measures[] = {
	{ "claims", claims },
};

const struct cairn_family cairn_prefix_trace_family = {
	.stage = "serving",
	.name = "prefix_trace",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
