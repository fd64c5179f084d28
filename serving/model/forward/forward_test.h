/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward_test - passes over one prompt, whole or in parts, checked with model_ref
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_FORWARD_TEST_H
#define CAIRN_FORWARD_TEST_H

#include <math.h>
#include <stdlib.h>

#include "serving/model/forward/decode.h"
#include "serving/model/ref/model_ref.h"
#include "serving/model/model_test.h"

/* The state of a pass over one prompt, whole or in parts. */
struct fixture {
	struct cairn_impl impl;
	struct golden g;
	struct cairn_model *m;
	struct cairn_kv_store kv;
	enum cairn_kv_form kv_form;	/* set before load_fixture() */
	struct cairn_scratch *s;
	struct cairn_decoder *decoder;	/* runs passes of one row; NULL: the operation list runs them */
	void *stream;
	/* qo_indptr[2], kv_indptr[2], last_page_len[1], kv_indices[MAX_PAGES], ids, positions */
	int32_t *index;
	float *dev_logits, *logits;
	const double *exact, *bound;
	const char *table;
	int vocab, fused;		/* fused: passes that the decoder ran */
};

/* Expected logits of a checkpoint's prompt and their bounds, computed once for all tables. */
struct judgement {
	struct judgement *next;
	const char *name;
	int f16;
	enum cairn_weights weights;
	double *exact, *bound;		/* [n] each, exact first */
};

/* Finds or computes the judgement. name NULL: the checkpoint differs each time, so nothing is reused. */
static inline int judge_by(struct cairn_test *t, struct fixture *f, const char *name, const char *dir,
			   int f16, enum cairn_weights weights)
{
	size_t n = (size_t)(f->g.num_tokens * f->vocab);
	static struct judgement *all;
	struct judgement *j = all;

	while (j && (!name || !j->name || strcmp(j->name, name) || j->f16 != f16 || j->weights != weights))
		j = j->next;
	if (!j) {
		j = calloc(1, sizeof(*j) + 2 * n * sizeof(double));
		if (!EXPECT(t, j != NULL))
			return -1;
		*j = (struct judgement){ .name = name, .f16 = f16, .weights = weights,
					 .exact = (double *)(j + 1), .bound = (double *)(j + 1) + n };
		if (!EXPECT(t, cairn_model_ref_bound_as(dir, weights, f->g.tokens, f->g.num_tokens,
							f->m->dtype, j->exact, j->bound) == 0)) {
			free(j);
			return -1;
		}
		j->next = all;
		all = j;
	}
	f->exact = j->exact;
	f->bound = j->bound;
	return 0;
}

#define PAGE_SIZE	16
#define MAX_PAGES	16
#define INDEX_IDS	(5 + MAX_PAGES)		/* offset of ids, then positions and one drawn token */

/* Opens table and checkpoint. name: a golden checkpoint; NULL: the crafted one, with biases, in f32. */
static inline int open_checkpoint(struct cairn_test *t, struct fixture *f, const char *table,
				  const char *name, int f16)
{
	static const int32_t tokens[20] = { 1, 7, 40, 3, 3, 9, 47, 0, 22, 31, 5, 16, 8, 44, 12, 29,
					    1, 2, 35, 18 };

	memset(f, 0, sizeof(*f));
	f->table = table;
	f->g.tokens = tokens;
	f->g.num_tokens = ARRAY_SIZE(tokens);
	if (open_table(t, table, &f->impl))
		return -1;
	if (!name)
		crafted_checkpoint(t, f16 ? "float16" : "bfloat16", "F32", 1, f->g.dir);
	else if (open_golden(t, &f->g, name))
		return -1;
	return 0;
}

/* Loads the model and allocates what its passes need. */
static inline int load_fixture(struct cairn_test *t, struct fixture *f, const char *dir, int f16,
			       enum cairn_weights weights)
{
	size_t n;
	void *p;

	if (!EXPECT(t, cairn_model_load_as(&f->m, &f->impl, dir, weights, f->kv_form, NULL, NULL) == 0))
		return -1;
	EXPECT(t, f->m->dtype == (f16 ? CAIRN_F16 : CAIRN_BF16));
	f->vocab = f->m->config.vocab_size;
	n = (size_t)(f->g.num_tokens * f->vocab);
	f->logits = malloc(n * sizeof(*f->logits));
	if (!EXPECT(t, cairn_kv_store_create(&f->kv, f->m, MAX_PAGES, PAGE_SIZE) == 0) ||
	    !EXPECT(t, cairn_scratch_create(&f->s, f->m, f->g.num_tokens, f->g.num_tokens) == 0) ||
	    !EXPECT(t, f->impl.stream_create(&f->stream) == 0) ||
	    !EXPECT(t, f->impl.mem_alloc(&p, n * sizeof(float)) == 0))
		return -1;
	f->dev_logits = p;
	if (!EXPECT(t,
		    f->impl.mem_alloc(&p, sizeof(int32_t) *
				      (size_t)(INDEX_IDS + 2 * f->g.num_tokens + 1)) == 0))
		return -1;
	f->index = p;
	/* Fill the cache with NaN, so that a stray read shows. */
	EXPECT(t, f->impl.mem_set(f->kv.base, 0xff, f->kv.layer_bytes *
				  (size_t)f->m->config.num_hidden_layers, f->stream) == 0);
	return 0;
}

static inline int open_fixture(struct cairn_test *t, struct fixture *f, const char *table, const char *name,
			       int f16, enum cairn_weights weights)
{
	char dir[PATH_MAX];

	if (open_checkpoint(t, f, table, name, f16))
		return -1;
	snprintf(dir, sizeof(dir), "%s", f->g.dir);
	if (f16 && name && altered_checkpoint(t, f->g.dir, "\"bfloat16\"", "\"float16\"", dir))
		return -1;
	if (load_fixture(t, f, dir, f16, weights))
		return -1;
	return judge_by(t, f, name, dir, f16, weights);
}

static inline void close_fixture(struct fixture *f)
{
	if (f->stream)
		f->impl.stream_destroy(f->stream);
	if (f->index)
		f->impl.mem_free(f->index);
	if (f->dev_logits)
		f->impl.mem_free(f->dev_logits);
	cairn_decoder_destroy(f->decoder);
	if (f->m) {
		cairn_scratch_destroy(f->s);
		cairn_kv_store_destroy(&f->kv, f->m);
	}
	cairn_model_free(f->m);
	close_golden(&f->g);
	free(f->logits);
}

/* Prepares rows first .. first + n - 1 of the prompt in *b; the pages are in shuffled order. */
static inline int prepare_pass(struct fixture *f, int first, int n, struct cairn_batch *b)
{
	static const int32_t shuffled[MAX_PAGES] = { 11, 3, 7, 0, 14, 5, 9, 2, 13, 6, 1, 15, 8, 4, 12, 10 };
	int len = first + n, pages = (len + PAGE_SIZE - 1) / PAGE_SIZE, rows = f->g.num_tokens;
	int32_t host[INDEX_IDS + 2 * 128] = { 0, n, 0, pages, (len - 1) % PAGE_SIZE + 1 };
	int32_t *ids = host + INDEX_IDS, *positions = ids + rows, *dev = f->index;
	size_t bytes = sizeof(*host) * (size_t)(INDEX_IDS + 2 * rows);

	memcpy(host + 5, shuffled, sizeof(shuffled));
	for (int i = 0; i < n; i++) {
		ids[i] = f->g.tokens[first + i];
		positions[i] = first + i;
	}
	*b = (struct cairn_batch) {
		.logits = f->dev_logits,
		.ids = dev + INDEX_IDS,
		.positions = dev + INDEX_IDS + rows,
		.qo_indptr = dev,
		.kv_indptr = dev + 2,
		.kv_last_page_len = dev + 4,
		.kv_indices = dev + 5,
		.num_rows = n,
		.batch = 1,
		.num_logits = n,
		.max_qo_len = n,
		.max_kv_len = MAX_PAGES * PAGE_SIZE,
		/* with latent attention, passes of one row use mla_paged, the others mla_prefill */
		.num_prompts = n > 1, .prompt_rows = n > 1 ? n : 0, .prompt_past = n > 1 ? first : 0,
	};
	CAIRN_TRY(f->impl.mem_copy(dev, host, bytes, CAIRN_COPY_TO_DEVICE, f->stream));
	return f->impl.stream_sync(f->stream);
}

static inline int run_pass(struct fixture *f, int first, int n)
{
	struct cairn_draw draw = { .tokens = f->index + INDEX_IDS + 2 * f->g.num_tokens };
	struct cairn_batch b;
	int moved, done = 0;

	CAIRN_TRY(prepare_pass(f, first, n, &b));
	if (f->decoder && n == 1)
		CAIRN_TRY(cairn_decoder_prepare(f->decoder, &f->kv, &b, &draw, f->stream, &done, &moved));
	if (done)
		CAIRN_TRY(cairn_decoder_run(f->decoder, &f->kv, &b, &draw, f->stream, &done));
	f->fused += done;
	if (!done) {
		CAIRN_TRY(cairn_scratch_reserve(f->s, &f->kv, &b, f->stream, &moved));
		CAIRN_TRY(cairn_forward(f->s, &f->kv, &b, f->stream));
	}
	CAIRN_TRY(f->impl.mem_copy(f->logits + first * f->vocab, f->dev_logits,
				   sizeof(float) * (size_t)(n * f->vocab), CAIRN_COPY_TO_HOST, f->stream));
	return f->impl.stream_sync(f->stream);
}

/* Runs the prompt in passes of the given sizes, repeating the last; all logits must be within the bound. */
static inline void judge_passes(struct cairn_test *t, struct fixture *f, const char *what, const int *sizes,
				int count)
{
	double worst = 0;
	int rows = f->g.num_tokens, bad = 0;

	for (int i = 0; i < rows * f->vocab; i++)
		f->logits[i] = NAN;
	for (int at = 0, k = 0, n; at < rows; at += n, k++) {
		n = sizes[k < count ? k : count - 1];
		n = n < rows - at ? n : rows - at;
		if (!EXPECT(t, run_pass(f, at, n) == 0))
			return;
	}
	for (int i = 0; i < rows * f->vocab; i++) {
		double err = fabs((double)f->logits[i] - f->exact[i]);

		if (!(err <= f->bound[i]) && !bad++)
			cairn_note(t, "%s, %s: position %d, token %d: got %g, want %g within %g",
				   f->table, what, i / f->vocab, i % f->vocab, (double)f->logits[i],
				   f->exact[i], f->bound[i]);
		worst = fmax(worst, err / f->bound[i]);
	}
	cairn_note(t, "%s, %s: worst err/bound %.2f", f->table, what, worst);
	EXPECT(t, bad == 0);
}

#endif
