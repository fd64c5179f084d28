/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disagg_side_test - the model worker's side of measures: passes whose attention is remote, local, or whole
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_DISAGG_SIDE_TEST_H
#define CAIRN_DISAGG_SIDE_TEST_H

#include <errno.h>
#include <stdlib.h>

#include "serving/remote/attention/attn_remote.h"
#include "serving/slices/sliced_bench_test.h"

struct side {
	struct bench x;
	struct cairn_sliced *sliced;		/* NULL: the pass is not split */
	struct cairn_attn_local *local;		/* NULL: attention is remote */
	const struct cairn_attn_link *link;
	void *graph;				/* of the pass; NULL: not captured yet */
	int num_passes;
};

static inline struct cairn_remote_pass pass_of(const struct bench *x)
{
	return (struct cairn_remote_pass){
		.num_rows = x->batch, .batch = x->batch, .num_pages = x->batch * PAGES,
		.qo_indptr = x->host.qo_indptr, .kv_indptr = x->host.kv_indptr,
		.last_page_len = x->host.last_page_len, .kv_indices = x->host.kv_indices,
	};
}

static inline struct cairn_remote_limits limits_of(int32_t batch, int32_t lanes)
{
	return (struct cairn_remote_limits){ batch, batch, KEYS, lanes * batch * PAGES, PAGE, lanes,
					     0 };
}

/* A pass that is split, with attention at the workers of r in this lane; r NULL: in this process. */
static inline int open_side(struct side *s, const struct cairn_impl *impl, struct cairn_model *m,
			    int32_t batch, enum cairn_sliced_form form, int32_t first_page,
			    struct cairn_attn_remote *r, int32_t lane)
{
	int moved;

	*s = (struct side){ .x = { .impl = *impl, .m = m, .batch = batch } };
	CAIRN_TRY(prepare(&s->x, r ? 1 : batch * PAGES, first_page));
	CAIRN_TRY(cairn_sliced_create(&s->sliced, s->x.scratch, s->x.slices, form));
	if (!r) {
		CAIRN_TRY(cairn_attn_local_create(&s->local, m, &s->x.kv, batch, 1));
		CAIRN_TRY(cairn_attn_local_begin(s->local, &s->x.b, &s->x.past, s->x.stream, &moved));
	}
	s->link = r ? cairn_attn_remote_link(r, lane) : cairn_attn_local_link(s->local);
	return cairn_sliced_reserve(s->sliced, &s->x.b, s->link, s->x.stream, &moved);
}

static inline void close_side(struct side *s)
{
	if (s->graph)
		s->x.impl.graph_destroy(s->graph);
	cairn_attn_local_destroy(s->local);
	cairn_sliced_destroy(s->sliced);
	close_passes(&s->x);
	*s = (struct side){ 0 };
}

static inline int enqueue(struct side *s)
{
	return s->sliced ? cairn_sliced_forward(s->sliced, &s->x.b, s->link, s->x.stream) :
	       cairn_forward(s->x.scratch, &s->x.kv, &s->x.b, s->x.stream);
}

/* Captures the pass; a table without graphs has none. */
static inline int capture(struct side *s)
{
	const struct cairn_impl *impl = &s->x.impl;
	int ret = impl->graph_begin(s->x.stream), end;

	if (ret)
		return ret == -EOPNOTSUPP ? 0 : ret;
	ret = enqueue(s);
	end = impl->graph_end(s->x.stream, &s->graph);
	return ret ? ret : end;
}

/*
 * Enqueues a pass of a lane: the first one operation by operation, which loads their code, and later ones as
 * a graph. begin: NULL, or an event to record before it.
 */
static inline int launch(struct side *s, struct cairn_attn_remote *r, int32_t lane, void *begin)
{
	const struct cairn_impl *impl = &s->x.impl;
	const struct cairn_remote_pass p = pass_of(&s->x);

	if (r) {
		CAIRN_TRY(cairn_attn_remote_begin(r, lane, &p));
		CAIRN_TRY(cairn_attn_remote_number(r, lane, s->x.batch, s->x.stream));
	}
	if (s->num_passes++ && !s->graph)
		CAIRN_TRY(capture(s));
	if (begin)
		CAIRN_TRY(impl->event_record(begin, s->x.stream));
	return s->graph ? impl->graph_launch(s->graph, s->x.stream) : enqueue(s);
}

#endif
