/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill_group_test - two stages copy what they have of a prompt to the memory that they share
 *
 * One process is both stages, one after the other. Include conformance/harness.h first.
 */
#ifndef CAIRN_PREFILL_GROUP_TEST_H
#define CAIRN_PREFILL_GROUP_TEST_H

#include <stdlib.h>
#include <string.h>

#include "serving/engine/engine_test.h"
#include "serving/remote/prefill/prefill_group.h"

enum { GROUP_PAGE = 4, GROUP_PAGES = 16, GROUP_ROWS = 24, GROUP_CHUNK = 8 };

/* The second job has the pages from 8 on; its prompt has six of them, in three chunks. */
static const int32_t group_pages[] = { 8, 9, 10, 11, 12, 13 };

/* Returns how many sides of a layer of the prompt differ from those of the stage. */
static inline int64_t group_compare(const struct cairn_prefill_group *g, const struct cairn_kv_store *kv,
				    size_t page_bytes, int32_t layer, int32_t stage_layer)
{
	int64_t bad = 0;

	for (size_t side = 0; side < 2; side++) {
		const size_t within = side * kv->v_offset + 8 * page_bytes;

		bad += memcmp(cairn_prefill_group_base(g) + (size_t)layer * kv->layer_bytes + within,
			      kv->base + (size_t)stage_layer * kv->layer_bytes + within,
			      6 * page_bytes) != 0;
	}
	return bad;
}

/* Returns how much is wrong after a stage has copied its layers of all chunks. */
static inline int64_t group_stage(struct cairn_test *t, struct cairn_prefill_group *g,
				  const struct cairn_impl *impl, const char *dir, int stage,
				  struct cairn_model **stages)
{
	const struct cairn_worker_options o = {
		.max_batch = 1, .max_rows = 64, .max_context = 32, .num_pages = GROUP_PAGES,
		.page_size = GROUP_PAGE, .no_graphs = 1, .chunk_rows = GROUP_CHUNK,
		.decode = CAIRN_DECODE_UNFUSED,
	};
	const struct cairn_worker_part part = {
		.num_rows = GROUP_ROWS, .pages = group_pages, .num_pages = 6,
	};
	const struct cairn_kv_store *kv;
	struct cairn_worker *w = NULL;
	struct cairn_model *m = NULL;
	int64_t bad = 0;

	if (!EXPECT(t, !cairn_model_load_stage(&stages[stage], impl, dir, stage, 2, CAIRN_WEIGHTS_PLAIN,
					       CAIRN_KV_PLAIN, NULL, NULL)) ||
	    !EXPECT(t, !cairn_worker_create(&w, stages[stage], &o)))
		return 0;
	m = stages[stage];
	cairn_prefill_group_join(g, NULL, m, GROUP_CHUNK);
	kv = cairn_worker_kv(w);
	for (size_t i = 0; i < kv->layer_bytes; i++)
		kv->base[i] = (char)cairn_rand(t);
	EXPECT(t, !cairn_prefill_group_map(g, w, &o) && !cairn_prefill_group_part(g, &part));
	cairn_prefill_group_clear(g, !stage);	/* of the other job: this one's layers stay */
	for (int32_t first = 0; first < GROUP_ROWS; first += GROUP_CHUNK) {
		/* the last chunk is still on its way from a device */
		bad += cairn_prefill_group_tokens(g, 1, stage) > first;
		EXPECT(t, !cairn_prefill_group_chunk(g, first, first + GROUP_CHUNK, 0,
						     cairn_worker_stream(w)));
	}
	EXPECT(t, !cairn_prefill_group_collected(g));
	bad += cairn_prefill_group_tokens(g, 1, stage) != GROUP_ROWS;
	bad += group_compare(g, kv, cairn_model_key_bytes(m) * GROUP_PAGE, stage, 0);
	cairn_worker_destroy(w);
	return bad;
}

/* Returns how much is wrong. as_device: the table's memory seems to be that of a device. */
static inline int64_t group_differs(struct cairn_test *t, int as_device)
{
	struct cairn_prefill_group *g = NULL;
	struct cairn_model_config whole;
	struct cairn_model *stages[2] = { NULL, NULL };
	struct cairn_impl impl;
	struct golden golden;
	int64_t bad;

	if (open_table(t, "cpu", &impl) || open_golden(t, &golden, "llama3_tiny"))
		return 0;
	if (as_device)
		impl.flags &= ~CAIRN_IMPL_HOST_MEM;
	EXPECT(t, !cairn_model_config_load(golden.dir, &whole) && !cairn_prefill_group_create(&g, &whole));
	bad = group_stage(t, g, &impl, golden.dir, 0, stages);
	bad += group_stage(t, g, &impl, golden.dir, 1, stages);
	bad += cairn_prefill_group_tokens(g, 1, 0) != GROUP_ROWS;
	cairn_prefill_group_clear(g, 1);
	bad += cairn_prefill_group_tokens(g, 1, 0) || cairn_prefill_group_tokens(g, 1, 1);
	cairn_prefill_group_destroy(g);
	cairn_model_free(stages[0]);
	cairn_model_free(stages[1]);
	close_golden(&golden);
	return bad;
}

#endif
