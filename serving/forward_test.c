// SPDX-License-Identifier: Apache-2.0
#include "decode.h"

#include <math.h>
#include <stdlib.h>

#include "../conformance/harness.h"
#include "model_ref.h"
#include "model_test.h"

/*
 * model_ref against the golden logits, which Hugging Face transformers computed in double from the
 * same weights: two programs, one function. What is left between them: the golden file is rounded to f32,
 * and the rotary frequencies here are rounded to f32 (an angle is off by position * 2^-24 of itself).
 */
static void reference_is_transformers(struct cairn_test *t)
{
	static const char *const names[] = {
		"llama2_tiny", "llama3_tiny", "qwen2_tiny", "deepseek_tiny", "deepseek_q_tiny",
	};

	for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
		struct cairn_model_config c;
		double worst = 0, *logits;
		struct golden g;

		if (open_golden(t, &g, names[k]))
			return;
		EXPECT(t, cairn_model_config_load(g.dir, &c) == 0);
		logits = malloc(sizeof(*logits) * (size_t)(g.num_tokens * c.vocab_size));
		EXPECT(t, cairn_model_ref(g.dir, g.tokens, g.num_tokens, 0, 0, logits) == 0);
		for (int i = 0; i < g.num_positions * c.vocab_size; i++) {
			double want = (double)g.logits[i];
			double got = logits[g.positions[i / c.vocab_size] * c.vocab_size + i % c.vocab_size];

			worst = fmax(worst, fabs(got - want));
		}
		cairn_note(t, "%s: largest difference %.2g", names[k], worst);
		EXPECT(t, worst < 1e-4);
		free(logits);
		close_golden(&g);
	}
}

/* The device side of a pass over one prompt, whole or in parts. */
struct fixture {
	struct cairn_impl impl;
	struct golden g;
	struct cairn_model *m;
	struct cairn_kv_store kv;
	struct cairn_scratch *s;
	struct cairn_decoder *decoder;	/* takes passes of one row; NULL: the list of operations does */
	void *stream;
	int32_t *index; /* qo_indptr 2, kv_indptr 2, last_page_len 1, kv_indices MAX_PAGES, ids, positions */
	float *dev_logits, *logits;
	double *exact, *bound;
	int vocab, fused;		/* fused: passes that the decoder took */
};

#define PAGE_SIZE	16
#define MAX_PAGES	16
#define INDEX_IDS	(5 + MAX_PAGES)		/* ids, positions, and a drawn token behind them */

/* name: a golden checkpoint; NULL: the crafted one, which has biases and f32 weights. */
static int open_fixture(struct cairn_test *t, struct fixture *f, const char *table, const char *name, int f16)
{
	static const int32_t tokens[20] = { 1, 7, 40, 3, 3, 9, 47, 0, 22, 31, 5, 16, 8, 44, 12, 29,
					    1, 2, 35, 18 };
	char dir[PATH_MAX];
	size_t n;
	void *p;

	memset(f, 0, sizeof(*f));
	f->g.tokens = tokens;
	f->g.num_tokens = ARRAY_SIZE(tokens);
	if (open_table(t, table, &f->impl))
		return -1;
	if (!name)
		crafted_checkpoint(t, f16 ? "float16" : "bfloat16", "F32", 1, f->g.dir);
	else if (open_golden(t, &f->g, name))
		return -1;
	snprintf(dir, sizeof(dir), "%s", f->g.dir);
	if (f16 && name && altered_checkpoint(t, f->g.dir, "\"bfloat16\"", "\"float16\"", dir))
		return -1;
	if (!EXPECT(t, cairn_model_load(&f->m, &f->impl, dir, NULL, NULL) == 0))
		return -1;
	EXPECT(t, f->m->dtype == (f16 ? CAIRN_F16 : CAIRN_BF16));
	f->vocab = f->m->config.vocab_size;
	n = (size_t)(f->g.num_tokens * f->vocab);
	f->logits = malloc(n * sizeof(*f->logits));
	f->exact = malloc(n * sizeof(*f->exact));
	f->bound = malloc(n * sizeof(*f->bound));
	if (!EXPECT(t, cairn_kv_store_create(&f->kv, f->m, MAX_PAGES, PAGE_SIZE) == 0) ||
	    (!cairn_model_is_latent(f->m) &&
	     !EXPECT(t, cairn_scratch_create(&f->s, f->m, f->g.num_tokens, f->g.num_tokens) == 0)) ||
	    !EXPECT(t, f->impl.stream_create(&f->stream) == 0) ||
	    !EXPECT(t, f->impl.mem_alloc(&p, n * sizeof(float)) == 0))
		return -1;
	f->dev_logits = p;
	if (!EXPECT(t,
		    f->impl.mem_alloc(&p, sizeof(int32_t) *
				      (size_t)(INDEX_IDS + 2 * f->g.num_tokens + 1)) == 0))
		return -1;
	f->index = p;
	/* a stray read of the cache meets NaN */
	EXPECT(t, f->impl.mem_set(f->kv.base, 0xff, f->kv.layer_bytes *
				  (size_t)f->m->config.num_hidden_layers, f->stream) == 0);
	return EXPECT(t, cairn_model_ref_bound(dir, f->g.tokens, f->g.num_tokens, f->m->dtype, f->exact,
					       f->bound) == 0) ? 0 : -1;
}

static void close_fixture(struct fixture *f)
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
	free(f->exact);
	free(f->bound);
}

/* Rows first .. first + n - 1 of the prompt, pages in an order of no order; the batch is left in *b. */
static int prepare_pass(struct fixture *f, int first, int n, struct cairn_batch *b)
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
	};
	CAIRN_TRY(f->impl.mem_copy(dev, host, bytes, CAIRN_COPY_TO_DEVICE, f->stream));
	return f->impl.stream_sync(f->stream);
}

static int run_pass(struct fixture *f, int first, int n)
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

/* The prompt in passes of the given sizes, the last one repeated: logits within the bound everywhere. */
static void judge_passes(struct cairn_test *t, struct fixture *f, const char *what, const int *sizes,
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
			cairn_note(t, "%s: position %d, token %d: got %g, want %g within %g", what,
				   i / f->vocab, i % f->vocab, (double)f->logits[i], f->exact[i],
				   f->bound[i]);
		worst = fmax(worst, err / f->bound[i]);
	}
	cairn_note(t, "%s: worst err/bound %.2f", what, worst);
	EXPECT(t, bad == 0);
}

static void logits(struct cairn_test *t, const char *table, const char *name, int f16)
{
	static const int whole[] = { 1 << 20 }, chunks[] = { 7, 16, 33, 1, 23 }, single[] = { 1 };
	static const int prompt[] = { 13, 1 };
	struct fixture f;

	if (open_fixture(t, &f, table, name, f16))
		goto out;
	if (cairn_model_is_latent(f.m)) {	/* all of whose passes are decoding steps */
		EXPECT(t, cairn_decoder_create(&f.decoder, f.m, CAIRN_DECODE_UNFUSED) == -EOPNOTSUPP);
		if (EXPECT(t, cairn_decoder_create(&f.decoder, f.m, CAIRN_DECODE_AUTO) == 0))
			judge_passes(t, &f, "token by token", single, 1);
		goto out;
	}
	judge_passes(t, &f, "in one pass", whole, 1);
	judge_passes(t, &f, "in chunks", chunks, (int)ARRAY_SIZE(chunks));
	judge_passes(t, &f, "token by token", single, 1);
	/* a decoding step as one operation; the crafted checkpoint has biases that it has no place for */
	if (!EXPECT(t, cairn_decoder_create(&f.decoder, f.m, CAIRN_DECODE_AUTO) == 0))
		goto out;
	judge_passes(t, &f, "token by token, fused", single, 1);
	EXPECT(t, f.fused == (name && f.impl.decode_step ? f.g.num_tokens : 0));
	judge_passes(t, &f, "a prompt, then fused", prompt, 2);
out:
	close_fixture(&f);
}

#define EACH(what, table) \
	what(llama2_bf16, "llama2_tiny", 0, table) what(llama2_f16, "llama2_tiny", 1, table) \
	what(llama3_bf16, "llama3_tiny", 0, table) what(llama3_f16, "llama3_tiny", 1, table) \
	what(qwen2_bf16, "qwen2_tiny", 0, table) what(qwen2_f16, "qwen2_tiny", 1, table) \
	what(deepseek_bf16, "deepseek_tiny", 0, table) what(deepseek_f16, "deepseek_tiny", 1, table) \
	what(deepseek_q_bf16, "deepseek_q_tiny", 0, table) what(deepseek_q_f16, "deepseek_q_tiny", 1, table) \
	what(biases_f16, NULL, 1, table)
#define DEFINE(unit, name, f16, table) \
	static void unit##_##table(struct cairn_test *t) { logits(t, #table, name, f16); }
#define LIST(unit, name, f16, table) { #unit "_" #table, unit##_##table },
EACH(DEFINE, ref)
EACH(DEFINE, cpu)
EACH(DEFINE, cuda)

/* A decode pass captured at one position gives, replayed at later ones, the bits of the eager pass. */
static void graph_is_eager(struct cairn_test *t)
{
	struct cairn_batch b;
	struct fixture f;
	void *graph = NULL;
	int rows, moved;

	if (open_fixture(t, &f, "cuda", "llama3_tiny", 0))
		goto out;
	rows = f.g.num_tokens;
	if (!EXPECT(t, run_pass(&f, 0, rows - 20) == 0) || !EXPECT(t, run_pass(&f, rows - 20, 1) == 0) ||
	    !EXPECT(t, prepare_pass(&f, rows - 20, 1, &b) == 0) ||
	    !EXPECT(t, cairn_scratch_reserve(f.s, &f.kv, &b, f.stream, &moved) == 0) ||
	    !EXPECT(t, f.impl.graph_begin(f.stream) == 0))
		goto out;
	EXPECT(t, cairn_forward(f.s, &f.kv, &b, f.stream) == 0);
	if (!EXPECT(t, f.impl.graph_end(f.stream, &graph) == 0))
		goto out;
	for (int at = rows - 19; at < rows; at++) {
		float *eager = f.logits + at * f.vocab, *replayed = f.logits;
		size_t bytes = sizeof(float) * (size_t)f.vocab;

		EXPECT(t, run_pass(&f, at, 1) == 0);
		EXPECT(t, prepare_pass(&f, at, 1, &b) == 0);
		EXPECT(t, f.impl.mem_set(f.dev_logits, 0xff, bytes, f.stream) == 0);
		EXPECT(t, f.impl.graph_launch(graph, f.stream) == 0);
		EXPECT(t, f.impl.mem_copy(replayed, f.dev_logits, bytes, CAIRN_COPY_TO_HOST, f.stream) == 0);
		EXPECT(t, f.impl.stream_sync(f.stream) == 0);
		EXPECT(t, !memcmp(eager, replayed, bytes));
	}
out:
	if (graph)
		f.impl.graph_destroy(graph);
	close_fixture(&f);
}

static const struct cairn_unit units[] = {
	{ "reference_is_transformers", reference_is_transformers },
	EACH(LIST, ref)
	EACH(LIST, cpu)
	EACH(LIST, cuda)
	{ "graph_is_eager", graph_is_eager },
};

const struct cairn_family cairn_forward_family = {
	.stage = "serving",
	.name = "forward",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
