/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal_rig_test - passes that a journal records, and what must be in it
 *
 * The rows are in the table's memory, and change on the stream behind each call. Table late carries out what
 * is on a stream only when it is waited for. Include conformance/harness.h first.
 */
#ifndef CAIRN_JOURNAL_RIG_TEST_H
#define CAIRN_JOURNAL_RIG_TEST_H

#include <stdlib.h>
#include <string.h>

#include "serving/model/model_test.h"
#include "serving/remote/attention/journal.h"

enum { JOURNAL_LAYERS = 3, JOURNAL_HEADS = 2, JOURNAL_DIM = 64, JOURNAL_PAGES = 12, JOURNAL_PAGE = 4,
       JOURNAL_REQUESTS = 3, JOURNAL_PASSES = 9, JOURNAL_KV = JOURNAL_HEADS * JOURNAL_DIM };

/* How K and V lie in the memory: side by side and behind one another, with gaps, or apart. */
enum journal_form { JOURNAL_JOINED, JOURNAL_GAPS, JOURNAL_APART, JOURNAL_FORMS };

struct journal_rig {
	struct cairn_impl impl;
	struct cairn_model m;
	struct cairn_journal *j;
	void *stream;
	uint16_t *host, *dev;		/* rows of a layer, and their copy in the table's memory */
	uint16_t want[JOURNAL_LAYERS][JOURNAL_PAGES][JOURNAL_PAGE][2 * JOURNAL_KV];
	int32_t fill[JOURNAL_PAGES];
};

static inline int open_journal(struct cairn_test *t, struct journal_rig *b, const char *table,
			       const struct cairn_remote_limits *l, int32_t heads, int32_t dim,
			       int32_t layers)
{
	const size_t bytes = (size_t)l->max_rows * 3 * (size_t)(heads * dim) * sizeof(*b->dev);
	void *p;

	memset(b, 0, sizeof(*b));
	if (open_table(t, table, &b->impl))
		return -1;
	b->m.impl = &b->impl;
	b->m.dtype = CAIRN_BF16;
	b->m.config.num_hidden_layers = layers;
	b->m.config.num_key_value_heads = heads;
	b->m.config.head_dim = dim;
	if (!EXPECT(t, b->impl.stream_create(&b->stream) == 0) ||
	    !EXPECT(t, b->impl.mem_alloc(&p, bytes) == 0) ||
	    !EXPECT(t, b->impl.mem_set(p, 0, bytes, b->stream) == 0))
		return -1;
	b->dev = p;
	b->host = calloc(1, bytes);
	return EXPECT(t, cairn_journal_create(&b->j, &b->m, l, (int64_t)1 << 32) == 0) ? 0 : -1;
}

static inline void close_journal(struct journal_rig *b)
{
	cairn_journal_destroy(b->j);
	free(b->host);
	if (b->dev)
		b->impl.mem_free(b->dev);
	if (b->stream)
		b->impl.stream_destroy(b->stream);
}

/* Records one layer of a pass. key: what its rows hold */
static inline void journal_record(struct cairn_test *t, struct journal_rig *b,
				  const struct cairn_remote_pass *p, int32_t layer, enum journal_form form,
				  uint16_t key)
{
	const size_t stride = JOURNAL_KV * (form == JOURNAL_JOINED ? 2 : form == JOURNAL_GAPS ? 3 : 1);
	const size_t v = form == JOURNAL_APART ? (size_t)p->num_rows * JOURNAL_KV : JOURNAL_KV;
	const struct cairn_attn_rows rows = {
		.layer = layer, .num_rows = p->num_rows, .k = b->dev, .v = b->dev + v,
		.kv_stride = (int64_t)stride,
	};

	for (size_t i = 0; i < (size_t)p->num_rows; i++) {
		for (size_t e = 0; e < JOURNAL_KV; e++) {
			b->host[i * stride + e] = (uint16_t)(key + 7 * i + e);
			b->host[v + i * stride + e] = (uint16_t)(key + 7 * i + e + 30000);
		}
	}
	EXPECT(t, b->impl.mem_copy(b->dev, b->host, (size_t)p->num_rows * 3 * JOURNAL_KV * sizeof(*b->dev),
				   CAIRN_COPY_TO_DEVICE, b->stream) == 0);
	EXPECT(t, b->impl.stream_sync(b->stream) == 0);
	EXPECT(t, cairn_journal_rows(b->j, 0, &rows, b->stream) == 0);
	/* what comes later on the stream must not be in the journal */
	EXPECT(t, b->impl.mem_set(b->dev, 0xee, (size_t)p->num_rows * 3 * JOURNAL_KV * sizeof(*b->dev),
				  b->stream) == 0);
}

/* A pass with one request of 1 to 5 rows at the end of the rows that pages 4 r .. 4 r + 3 hold. */
static inline void journal_pass(struct cairn_test *t, struct journal_rig *b, int32_t lens[JOURNAL_REQUESTS],
			    enum journal_form form, uint16_t key)
{
	const int32_t r = (int32_t)(cairn_rand(t) % JOURNAL_REQUESTS), room = 4 * JOURNAL_PAGE - lens[r];
	const int32_t num = room < 5 ? room : 1 + (int32_t)(cairn_rand(t) % 5);
	const int32_t len = lens[r] + num, pages = (len + JOURNAL_PAGE - 1) / JOURNAL_PAGE;
	int32_t qo[] = { 0, num }, kv[] = { 0, pages }, list[4] = { 4 * r, 4 * r + 1, 4 * r + 2, 4 * r + 3 };
	const int32_t last = len - (pages - 1) * JOURNAL_PAGE;
	const struct cairn_remote_pass p = {
		.num_rows = num, .batch = 1, .num_pages = pages, .qo_indptr = qo, .kv_indptr = kv,
		.last_page_len = &last, .kv_indices = list,
	};

	if (!num)
		return;
	EXPECT(t, cairn_journal_begin(b->j, 0, &p) == 0);
	for (int32_t layer = 0; layer < JOURNAL_LAYERS; layer++) {
		journal_record(t, b, &p, layer, form, (uint16_t)(key + 100 * layer));
		for (int32_t i = 0; i < num; i++) {
			const int32_t at = lens[r] + i;

			for (int32_t e = 0; e < 2 * JOURNAL_KV; e++)
				b->want[layer][4 * r + at / JOURNAL_PAGE][at % JOURNAL_PAGE][e] = (uint16_t)
					(key + 100 * layer + 7 * i + e % JOURNAL_KV +
					 (e < JOURNAL_KV ? 0 : 30000));
			b->fill[4 * r + at / JOURNAL_PAGE] = at % JOURNAL_PAGE + 1;
		}
	}
	EXPECT(t, cairn_journal_commit(b->j, 0, b->stream) == 0);
	lens[r] = len;
}

/* Returns whether the journal has not what the passes had, after some of them in the table's memory. */
static inline int journal_differs(struct cairn_test *t, const char *table)
{
	const struct cairn_remote_limits limits = {
		8, 8, 4 * JOURNAL_PAGE, JOURNAL_PAGES, JOURNAL_PAGE, 1, 0,
	};
	struct journal_rig *b = malloc(sizeof(*b));
	int32_t lens[JOURNAL_REQUESTS] = { 0 };
	int bad = 0;

	if (!EXPECT(t, b != NULL) ||
	    open_journal(t, b, table, &limits, JOURNAL_HEADS, JOURNAL_DIM, JOURNAL_LAYERS))
		goto out;
	for (int i = 0; i < JOURNAL_PASSES; i++)
		journal_pass(t, b, lens, (enum journal_form)(i % JOURNAL_FORMS), (uint16_t)(1000 * i));
	EXPECT(t, cairn_journal_drain(b->j) == 0);
	for (int32_t page = 0; page < JOURNAL_PAGES; page++) {
		const size_t bytes = JOURNAL_KV * sizeof(b->want[0][0][0][0]);

		bad |= cairn_journal_fill(b->j, page) != b->fill[page];
		for (int32_t k = 0; k < 2 * JOURNAL_LAYERS * b->fill[page]; k++) {
			const int32_t layer = k / 2 % JOURNAL_LAYERS, slot = k / (2 * JOURNAL_LAYERS);

			bad |= memcmp(cairn_journal_page(b->j, layer, k % 2, page) + (size_t)slot * bytes,
				      &b->want[layer][page][slot][k % 2 * JOURNAL_KV], bytes) != 0;
		}
	}
	close_journal(b);
out:
	free(b);
	return bad;
}

#endif
