// SPDX-License-Identifier: Apache-2.0
/*
 * pt2_cut - finds the minimum cut of a program at one attention operator (pt2_slices.h)
 *
 * The flow network is that of serving/slices (README.md there), without free nodes and without nodes that run
 * at the attention worker: an attention operator reads what it is sent.
 */
#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/pt2/pt2_slices_impl.h"
#include "serving/slices/min_cut.h"

#define BYTE		((int64_t)1 << 16)	/* 2^16 values together count as one byte */

struct network {
	struct cairn_min_cut *c;
	const struct pt2_facts *f;
	const struct cairn_pt2_seam *seams;
	int32_t at, source, sink;
};

static int infinite(const struct network *w, int32_t from, int32_t to)
{
	return cairn_min_cut_arc(w->c, from, to, CAIRN_MIN_CUT_INFINITE);
}

/* An operation before the cut has the producers of its inputs before it, too. */
static int add_reader(const struct network *w, int32_t node, int32_t value, int sent)
{
	int32_t producer = pt2_source(w->f, value);

	if (producer < 0)
		return 0;
	CAIRN_TRY(infinite(w, node, producer));
	return sent ? 0 : infinite(w, w->f->p->num_nodes + value, node);
}

static int add_results(const struct network *w, int32_t n)
{
	const struct cairn_pt2 *p = w->f->p;
	const struct cairn_pt2_node *node = &p->nodes[n];

	for (int32_t i = 0; i < node->num_out; i++) {
		int32_t v = p->ids[node->first_out + i];

		if (w->f->bytes[v] >= CAIRN_MIN_CUT_INFINITE / BYTE / 1024)
			return cairn_error(EINVAL, "%s: value %s has %lld bytes", p->path,
					   CAIRN_QUOTED(p->values[v].name), (long long)w->f->bytes[v]);
		CAIRN_TRY(cairn_min_cut_arc(w->c, n, p->num_nodes + v, w->f->bytes[v] * BYTE + 1));
	}
	return 0;
}

static int add_attention(const struct network *w, int32_t index)
{
	const struct cairn_pt2_seam *s = &w->seams[index];
	const int32_t sent[] = { s->q, s->k, s->v };

	for (int i = 0; i < 3; i++) {
		CAIRN_TRY(add_reader(w, s->attn, sent[i], index == w->at));
		if (index == w->at)
			CAIRN_TRY(infinite(w, w->source, pt2_source(w->f, sent[i])));
	}
	CAIRN_TRY(add_results(w, s->attn));
	return index < w->at ? infinite(w, w->source, s->attn) : infinite(w, s->attn, w->sink);
}

static int build(const struct network *w)
{
	const struct cairn_pt2 *p = w->f->p;

	for (int32_t n = 0; n < p->num_nodes; n++) {
		const struct cairn_pt2_node *node = &p->nodes[n];

		if (w->f->is_free[n] || w->f->is_far[n] || node->op->role == CAIRN_PT2_ATTENDS)
			continue;
		for (int32_t i = 0; i < node->num_in; i++)
			CAIRN_TRY(add_reader(w, n, p->ids[node->first_in + i], 0));
		CAIRN_TRY(add_results(w, n));
	}
	for (int32_t i = 0; i < w->f->num_attn; i++)
		CAIRN_TRY(add_attention(w, i));
	return 0;
}

int pt2_cut(uint8_t *after, const struct pt2_facts *f, const struct cairn_pt2_seam *seams, int32_t at)
{
	const int32_t num_nodes = f->p->num_nodes + f->p->num_values + 2;
	struct network w = {
		.f = f, .seams = seams, .at = at, .source = num_nodes - 2, .sink = num_nodes - 1,
	};
	uint8_t *before = malloc((size_t)num_nodes);
	int ret = before ? cairn_min_cut_create(&w.c, num_nodes) : cairn_error(ENOMEM, "pt2: no memory");

	if (!ret)
		ret = build(&w);
	if (!ret && cairn_min_cut_solve(w.c, w.source, w.sink, NULL))
		ret = cairn_error_prefix(-EINVAL, "%s: node %s cannot be cut", f->p->path,
					 CAIRN_QUOTED(f->p->nodes[seams[at].attn].name));
	if (!ret) {
		cairn_min_cut_side(w.c, before);
		ret = cairn_min_cut_verify(w.c, before);
	}
	for (int32_t n = 0; n < f->p->num_nodes && !ret; n++)
		after[n] = !before[n] && !f->is_free[n] && !f->is_far[n];
	cairn_min_cut_destroy(w.c);
	free(before);
	return ret;
}
