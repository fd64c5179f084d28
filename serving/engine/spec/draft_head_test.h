/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft_head_test - runs a target and its head over one text
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_DRAFT_HEAD_TEST_H
#define CAIRN_DRAFT_HEAD_TEST_H

#include <stdlib.h>
#include <string.h>

#include "serving/engine/spec/draft_head.h"

enum { HEAD_TEXT = 40, HEAD_PAGE = 8 };		/* maximum tokens; tokens of a page */

static const int32_t head_test_pages[HEAD_TEXT / HEAD_PAGE] = { 3, 1, 4, 0, 2 };

/* Runs the target over the tokens. The worker then has the features of their keys, in these pages. */
static inline struct cairn_worker *head_worker(struct cairn_test *t, struct cairn_model *m,
					       const struct cairn_draft_head *head, const int32_t *pages,
					       const int32_t *tokens, int32_t num)
{
	const struct cairn_worker_options opt = {
		.max_batch = 1, .max_rows = 64, .max_context = 64, .num_pages = 8, .page_size = HEAD_PAGE,
		.no_graphs = 1, .decode = CAIRN_DECODE_UNFUSED, .taps = &head->taps,
	};
	static const struct cairn_sampling greedy = { .top_p = 1 };
	struct cairn_worker_part part = {
		.ids = tokens, .follows = -1, .num_rows = num, .pages = pages,
		.num_pages = (num + HEAD_PAGE - 1) / HEAD_PAGE, .draw = &greedy,
	};
	struct cairn_worker_result result;
	struct cairn_worker *w;

	if (!EXPECT(t, num <= HEAD_TEXT && cairn_worker_create(&w, m, &opt) == 0))
		return NULL;
	cairn_worker_begin(w);
	cairn_worker_add(w, &part);
	EXPECT(t, cairn_worker_launch(w) == 0 && cairn_worker_collect(w, &result) == 0);
	return w;
}

/* Copies the features of tokens in head_test_pages to states, [num, width], of a dtype of 2 bytes. */
static inline void head_features(const struct cairn_worker *w, int32_t width, int32_t num, uint16_t *states)
{
	const struct cairn_kv_store *f = cairn_worker_features(w);
	const int32_t half = width / 2;

	for (int32_t i = 0; i < num; i++) {
		int32_t slot = head_test_pages[i / HEAD_PAGE] * HEAD_PAGE + i % HEAD_PAGE;
		const char *at = f->base + (size_t)slot * (size_t)half * 2;

		memcpy(states + i * width, at, (size_t)half * 2);
		memcpy(states + i * width + half, at + f->v_offset, (size_t)half * 2);
	}
}

/* Computes the head's logits, [num - 1, vocab], for all places of the text but the last. Host tables only. */
static inline void head_logits(struct cairn_test *t, struct cairn_model *m, struct cairn_draft_head *head,
			       const int32_t *tokens, int32_t num, float *logits)
{
	int32_t positions[HEAD_TEXT], all[HEAD_TEXT], rows = num - 1, qo[2] = { 0, rows }, kv[2] = { 0, 1 };
	int32_t last = rows, page = 0;
	uint16_t *states = calloc(HEAD_TEXT, (size_t)head->hidden * 2);
	uint16_t *next = calloc(HEAD_TEXT, (size_t)head->hidden * 2);
	char *keys = calloc(2 * HEAD_TEXT, head->key_bytes);
	struct cairn_worker *w = head_worker(t, m, head, head_test_pages, tokens, num);
	struct cairn_draft_pass pass = {
		.ids = tokens + 1, .positions = positions, .states = (char *)states, .qo_indptr = qo,
		.last_rows = all, .logits = logits, .next = (char *)next, .num_rows = rows,
		.max_qo_len = rows, .num_last = rows,
		.kv = { .k_pages = keys, .v_pages = head->is_latent ? NULL : keys + HEAD_TEXT *
			head->key_bytes, .indptr = kv, .indices = &page, .last_page_len = &last,
			.num_pages = 1, .page_size = rows, .batch = 1, .max_len = rows },
	};

	for (int i = 0; i < rows; i++)
		positions[i] = all[i] = i;
	if (w && EXPECT(t, states && next && keys)) {
		head_features(w, head->hidden, num, states);
		EXPECT(t, head->ops->reserve(head, rows, rows) == 0);
		EXPECT(t, head->ops->run(head, &pass, NULL) == 0);
	}
	cairn_worker_destroy(w);
	free(states);
	free(next);
	free(keys);
}

#endif
