/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_end_test - an engine with a bystander request that the ends of other requests must not disturb
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_ENGINE_END_TEST_H
#define CAIRN_ENGINE_END_TEST_H

#include "serving/engine/engine_test.h"

struct fixture {
	struct cairn_impl impl;
	struct golden g;
	struct cairn_model *m;
	struct cairn_engine *e;
	struct answer bystander;	/* answer of a request that runs undisturbed */
};

static inline int open_engine(struct cairn_test *t, struct fixture *f, const struct cairn_engine_options *opt)
{
	memset(f, 0, sizeof(*f));
	if (open_model(t, "cpu", "llama3_tiny", &f->impl, &f->g, &f->m))
		return -1;
	if (EXPECT(t, cairn_engine_create(&f->e, f->m, opt) == 0))
		return 0;
	close_model(f->m, &f->g);
	return -1;
}

static inline void close_engine(struct cairn_test *t, struct fixture *f)
{
	struct cairn_engine_stats st;

	cairn_engine_stats(f->e, &st);
	EXPECT(t, st.scheduler.num_running == 0 && st.scheduler.num_waiting == 0);
	EXPECT(t, st.scheduler.device.num_seqs == 0 && st.scheduler.device.table_pages == 0);
	EXPECT(t, st.scheduler.queued_tokens == 0);
	EXPECT(t, cairn_engine_verify(f->e) == 0);
	cairn_engine_destroy(f->e);
	close_model(f->m, &f->g);
}

static inline void submit_bystander(struct cairn_test *t, struct fixture *f)
{
	struct cairn_request r = request(&f->g, f->g.num_tokens, f->g.num_greedy, &f->bystander);

	r.ignore_eos = 1;
	EXPECT(t, cairn_engine_submit(f->e, &r) == 0);
}

static inline void check_bystander(struct cairn_test *t, struct fixture *f)
{
	EXPECT(t, f->bystander.num_ids == f->g.num_greedy && f->bystander.why == CAIRN_FINISH_LENGTH);
	EXPECT(t, !memcmp(f->bystander.ids, f->g.greedy, (size_t)f->g.num_greedy * sizeof(*f->g.greedy)));
}

static const struct cairn_engine_options small = {
	.max_batch = 4, .max_context = 130, .max_rows = 16, .page_size = 4,
};

/* Runs steps until an answer has num_ids tokens (-1: until its request
 * has started); num_ids 0: runs k steps. */
static inline void steps(struct cairn_test *t, struct fixture *f, const struct answer *a, int num_ids, int k)
{
	int busy = 1;

	while (busy && (num_ids < 0 ? a->cached < 0 : num_ids ? a->num_ids < num_ids : k-- > 0))
		EXPECT(t, cairn_engine_step(f->e, &busy) == 0);
}

#endif
