// SPDX-License-Identifier: Apache-2.0
/* draft_seqs - finds, opens and evicts the sequences of a drafter (draft_seqs.h) */
#include "serving/engine/spec/draft_seqs.h"

#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/engine/spec/spec_tree.h"

int cairn_draft_seqs_create(struct cairn_draft_seqs *s, int32_t max, int32_t num_pages, int32_t page_size)
{
	s->all = calloc((size_t)max, sizeof(*s->all));
	if (!s->all)
		return cairn_error(ENOMEM, "drafts: no memory for %d sequences", max);
	s->max = max;
	for (int32_t i = 0; i < max; i++)
		s->all[i].kv = -1;
	return cairn_kv_pool_create(&s->pool, num_pages, page_size, max);
}

void cairn_draft_seqs_destroy(struct cairn_draft_seqs *s)
{
	cairn_kv_pool_destroy(s->pool);
	free(s->all);
}

static void release(struct cairn_draft_seqs *s, struct cairn_draft_seq *seq)
{
	cairn_kv_pool_close(s->pool, seq->kv);
	seq->kv = -1;
}

struct cairn_draft_seq *cairn_draft_seqs_find(struct cairn_draft_seqs *s, uint64_t request, int32_t index)
{
	for (int32_t i = 0; i < s->max; i++) {
		struct cairn_draft_seq *seq = &s->all[i];

		if (seq->kv >= 0 && seq->request == request && seq->index == index)
			return seq;
	}
	return NULL;
}

/* Returns the sequence that was not used for the longest time and is not in this call, or NULL. */
static struct cairn_draft_seq *oldest(struct cairn_draft_seqs *s)
{
	struct cairn_draft_seq *found = NULL;

	for (int32_t i = 0; i < s->max; i++) {
		struct cairn_draft_seq *seq = &s->all[i];

		if (seq->kv >= 0 && seq->used < s->calls && (!found || seq->used < found->used))
			found = seq;
	}
	return found;
}

int cairn_draft_seqs_use(struct cairn_draft_seqs *s, uint64_t request, int32_t index,
			 struct cairn_draft_seq **out)
{
	struct cairn_draft_seq *seq = cairn_draft_seqs_find(s, request, index);

	*out = NULL;
	if (!seq) {
		for (int32_t i = 0; i < s->max && !seq; i++)
			seq = s->all[i].kv < 0 ? &s->all[i] : NULL;
		if (!seq) {
			seq = oldest(s);
			if (!seq)
				return 0;
			release(s, seq);
		}
		*seq = (struct cairn_draft_seq){ .request = request, .index = index, .kv = -1 };
		CAIRN_TRY(cairn_kv_pool_open(s->pool, &seq->kv));
	}
	seq->used = s->calls;
	*out = seq;
	return 0;
}

int cairn_draft_seqs_resize(struct cairn_draft_seqs *s, struct cairn_draft_seq *seq, int32_t len, int *fits)
{
	int ret;

	CAIRN_TRY(cairn_kv_pool_resize(s->pool, seq->kv, seq->computed, NULL));
	while ((ret = cairn_kv_pool_resize(s->pool, seq->kv, len, NULL)) == -ENOSPC) {
		struct cairn_draft_seq *old = oldest(s);

		if (!old)
			break;
		release(s, old);
	}
	*fits = !ret;
	return ret == -ENOSPC ? 0 : ret;
}

void cairn_draft_seqs_end(struct cairn_draft_seqs *s, uint64_t request, int32_t index)
{
	struct cairn_draft_seq *seq = cairn_draft_seqs_find(s, request, index);

	if (seq)
		release(s, seq);
}

void cairn_draft_branches(struct cairn_sched_draft *p, const int32_t (*likely)[CAIRN_MAX_BRANCHES],
			  int32_t branches, int32_t vocab)
{
	struct cairn_spec_tree t = {
		.ids = p->drafts, .parents = p->parents, .num = p->num, .room = p->room, .branches = branches,
	};

	for (int32_t j = 0; j < p->num; j++) {
		for (int32_t k = 0; k < branches; k++) {
			if (likely[j][k] >= 0 && likely[j][k] < vocab)
				cairn_spec_tree_add(&t, j, likely[j][k]);
		}
	}
	p->num = t.num;
}
