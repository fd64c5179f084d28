// SPDX-License-Identifier: Apache-2.0
/* sliced_test - a pass in slices, with its attention elsewhere, gives the results of the whole pass */
#include <math.h>

#include "conformance/harness.h"
#include "serving/model/forward/forward_test.h"
#include "serving/slices/sliced_test.h"

/* Requests whose keys end before, at and after the edge of a page; the last ones are chunks of prompts. */
static const struct scene_request mixed[] = {
	{ 1, 14 }, { 1, 15 }, { 1, 16 }, { 1, 40 }, { 1, 1 }, { 20, 0 }, { 17, 15 }, { 2, 30 }, { 20, 33 },
};
static const struct scene_request decoding[] = {
	{ 1, 14 }, { 1, 15 }, { 1, 16 }, { 1, 40 }, { 1, 1 }, { 1, 31 }, { 1, 3 }, { 1, 47 },
};

static const char *const models[] = {
	"llama3_tiny", "llama2_tiny", "qwen2_tiny", "mistral_tiny", "qwen3_tiny", "gemma2_tiny",
	"mixtral_tiny", "qwen3_moe_tiny", "longrope_tiny", "deepseek_tiny", "deepseek_q_tiny",
	"deepseek_v2_group_tiny", "deepseek_v3_tiny", "deepseek_v3_fp8_tiny",
};

/* ---- the same bits ---- */

static void same_bits(struct cairn_test *t, struct scene *s, enum cairn_sliced_form form)
{
	struct slicer x;

	if (!open_slicer(t, &x, s->m, s->s, &s->kv, form, 0)) {
		int64_t bad = run_sliced(s, &x);

		if (!EXPECT(t, bad == 0))
			cairn_note(t, "%s: form %d: %lld differ, %s", s->impl.name, (int)form, (long long)bad,
				   bad < 0 ? cairn_last_error() : "");
	}
	close_slicer(&x);
}

static void same_pass(struct cairn_test *t, struct scene *s, const struct scene_request *r, size_t num)
{
	if (run_scene(t, s, r, (int)num))
		return;
	same_bits(t, s, CAIRN_SLICED_ROWS);
	/* on table cuda the grouping of sums in a product may depend on n */
	if (strcmp(s->impl.name, "cuda"))
		same_bits(t, s, CAIRN_SLICED_PARTS);
}

static void same_model(struct cairn_test *t, const char *table, const char *model, enum cairn_kv_form kv)
{
	struct scene s;

	if (!open_scene_as(t, &s, table, model, kv)) {
		s.all_logits = strstr(model, "qwen") != NULL;
		same_pass(t, &s, mixed, ARRAY_SIZE(mixed));
		if (!strcmp(model, "llama3_tiny") || !strcmp(model, "deepseek_q_tiny"))
			same_pass(t, &s, decoding, ARRAY_SIZE(decoding));
	}
	close_scene(&s);
}

static void bits_cpu(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(models); i++)
		same_model(t, "cpu", models[i], CAIRN_KV_PLAIN);
	same_model(t, "cpu", "llama3_tiny", CAIRN_KV_FP8);
}

static void bits_late(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(models); i += 3)
		same_model(t, "late", models[i], CAIRN_KV_PLAIN);
}

static void bits_cuda(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(models); i++)
		same_model(t, "cuda", models[i], CAIRN_KV_PLAIN);
	same_model(t, "cuda", "llama3_tiny", CAIRN_KV_FP8);
}

/* ---- previous keys elsewhere ---- */

/* Runs rows first .. first + n - 1 of the prompt in slices. */
static int run_chunk(struct fixture *f, struct slicer *x, int first, int n)
{
	int32_t pages[MAX_PAGES];
	struct cairn_batch b;

	CAIRN_TRY(prepare_pass(f, first, n, &b));
	CAIRN_TRY(f->impl.mem_copy(pages, b.kv_indices, sizeof(pages), CAIRN_COPY_TO_HOST, f->stream));
	CAIRN_TRY(f->impl.stream_sync(f->stream));
	add_past(x, 0, n, first, pages, PAGE_SIZE);
	CAIRN_TRY(ready_slicer(x, &b, f->stream));
	CAIRN_TRY(cairn_sliced_forward(x->sliced, &b, &x->link, f->stream));
	CAIRN_TRY(f->impl.mem_copy(f->logits + first * f->vocab, f->dev_logits,
				   sizeof(float) * (size_t)(n * f->vocab), CAIRN_COPY_TO_HOST, f->stream));
	return f->impl.stream_sync(f->stream);
}

/* Runs the prompt in chunks; all logits must be within the bound of the reference. */
static void judge_chunks(struct cairn_test *t, struct fixture *f, struct slicer *x, const int *sizes)
{
	double worst = 0;
	int rows = f->g.num_tokens, bad = 0;

	for (int i = 0; i < rows * f->vocab; i++)
		f->logits[i] = NAN;
	for (int at = 0, k = 0, n; at < rows; at += n, k++) {
		n = sizes[k] < rows - at ? sizes[k] : rows - at;
		if (!EXPECT(t, run_chunk(f, x, at, n) == 0)) {
			cairn_note(t, "%s", cairn_last_error());
			return;
		}
	}
	for (int i = 0; i < rows * f->vocab; i++) {
		double err = fabs((double)f->logits[i] - f->exact[i]);

		bad += !(err <= f->bound[i]);
		worst = fmax(worst, err / f->bound[i]);
	}
	cairn_note(t, "%s, form %d, previous keys in %d stripes: worst err/bound %.2f", f->table,
		   (int)x->sliced->form, x->link.previous, worst);
	EXPECT(t, bad == 0);
}

static void judge_weights(struct cairn_test *t, const char *table, const char *model,
			  enum cairn_weights weights, int previous)
{
	static const int chunks[] = { 7, 16, 33, 1, 23, 100 };
	struct fixture f;

	if (!open_fixture(t, &f, table, model, 0, weights)) {
		for (int form = CAIRN_SLICED_PARTS; form <= CAIRN_SLICED_ROWS; form++) {
			struct slicer x;

			if (!open_slicer(t, &x, f.m, f.s, &f.kv, (enum cairn_sliced_form)form, previous))
				judge_chunks(t, &f, &x, chunks);
			close_slicer(&x);
		}
	}
	close_fixture(&f);
}

static void judge_split(struct cairn_test *t, const char *table, const char *model, int previous)
{
	judge_weights(t, table, model, CAIRN_WEIGHTS_PLAIN, previous);
}

/* The columns of q, and those of k and v, have scales of their own. */
static void judge_scales(struct cairn_test *t, const char *table)
{
	judge_weights(t, table, "llama3_tiny", CAIRN_WEIGHTS_FP8, 0);
	judge_weights(t, table, "llama3_tiny", CAIRN_WEIGHTS_FP8_BLOCKS, 0);
}

static void scales_cpu(struct cairn_test *t)
{
	judge_scales(t, "cpu");
}

/* Plain heads; biases; a window; windows in every second layer, and a softcap; latents. */
static void split_cpu(struct cairn_test *t)
{
	judge_split(t, "cpu", "llama3_tiny", 1);
	judge_split(t, "cpu", "qwen2_tiny", 1);
	judge_split(t, "cpu", "mistral_tiny", 1);
	judge_split(t, "cpu", "gemma2_tiny", 3);
	judge_split(t, "cpu", "deepseek_tiny", 3);
}

static void split_cuda(struct cairn_test *t)
{
	judge_scales(t, "cuda");
	for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
		judge_split(t, "cuda", models[i], 0);
		judge_split(t, "cuda", models[i], 1 + (int)i % 3);
	}
}

/* ---- graphs ---- */

/* A captured pass replayed with other lengths and pages gives the bits of the pass itself. */
static void replayed(struct cairn_test *t, const char *table, const char *model, int previous)
{
	struct scene_request r[8];
	struct slicer x = { 0 };
	struct scene s;
	void *graph = NULL;

	if (open_scene(t, &s, table, model))
		goto out;
	for (int step = 0; step < 4; step++) {
		const struct cairn_nano_cuts cuts = cuts_at(&s, 1, NULL);

		/* shorter in each step, so that the scene's workspace stays where it is */
		for (int i = 0; i < 8; i++)
			r[i] = (struct scene_request){ 1, (11 * i + 3) % 40 * (4 - step) / 4 };
		if (run_scene(t, &s, r, 8) ||
		    (!step && open_slicer(t, &x, s.m, s.s, &s.kv, CAIRN_SLICED_ROWS, previous)))
			goto out;
		if (!EXPECT(t, previous ? run_sliced(&s, &x) >= 0 : run_sliced(&s, &x) == 0))
			goto out;
		memcpy(s.want, s.got, s.logits_bytes);
		memcpy(s.after, s.now, s.kv_bytes);
		if (!graph && EXPECT(t, s.impl.graph_begin(s.stream) == 0)) {
			EXPECT(t, cairn_sliced_forward(x.sliced, &s.batch, &x.link, s.stream) == 0);
			if (!EXPECT(t, s.impl.graph_end(s.stream, &graph) == 0))
				goto out;
		}
		EXPECT(t, scene_reset(&s) == 0);
		EXPECT(t, s.impl.graph_launch(graph, s.stream) == 0);
		EXPECT(t, s.impl.stream_sync(s.stream) == 0);
		EXPECT(t, compare_scene(&s, &cuts) == 0);
	}
out:
	if (graph)
		s.impl.graph_destroy(graph);
	if (x.m)
		close_slicer(&x);
	close_scene(&s);
}

static void replayed_late(struct cairn_test *t)
{
	replayed(t, "late", "llama3_tiny", 0);
	replayed(t, "late", "llama3_tiny", 2);
	replayed(t, "late", "deepseek_tiny", 2);
}

static void replayed_cuda(struct cairn_test *t)
{
	replayed(t, "cuda", "llama3_tiny", 0);
	replayed(t, "cuda", "llama3_tiny", 1);
	replayed(t, "cuda", "deepseek_tiny", 2);
}

/* ---- hooks and errors ---- */

static int count_layer(void *ctx, int32_t layer, void *stream)
{
	int32_t *next = ctx;

	(void)stream;
	return layer == (*next)++ ? 0 : cairn_error(EINVAL, "layer %d after %d layers", layer, *next - 1);
}

static int lose_layer_1(struct slicer *x, void *o, float *lse, void *stream)
{
	(void)x, (void)o, (void)lse, (void)stream;
	return cairn_error(EIO, "the attention worker is gone");
}

/* The hook of each layer is called in order, a pass without logits computes the same cache, and a pass after
 * one that has lost its attention worker is right. */
static void hooks_and_errors(struct cairn_test *t)
{
	struct slicer x = { 0 };
	int32_t layers = 0;
	struct scene s;

	if (open_scene(t, &s, "cpu", "mixtral_tiny") || run_scene(t, &s, mixed, ARRAY_SIZE(mixed)) ||
	    open_slicer(t, &x, s.m, s.s, &s.kv, CAIRN_SLICED_PARTS, 0))
		goto out;
	s.batch.on_layer = count_layer;
	s.batch.on_layer_ctx = &layers;
	EXPECT(t, run_sliced(&s, &x) == 0);
	EXPECT(t, layers == s.m->config.num_hidden_layers);
	s.batch.on_layer = NULL;
	x.bend_result = lose_layer_1;
	EXPECT(t, run_sliced(&s, &x) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "the attention worker is gone");
	x.bend_result = NULL;
	s.batch.num_logits = 0;
	s.only_cache = 1;
	EXPECT(t, run_sliced(&s, &x) == 0);
out:
	if (x.m)
		close_slicer(&x);
	close_scene(&s);
}

static void refused(struct cairn_test *t, struct scene *s, const char *says)
{
	struct cairn_attn_local *local = NULL;

	EXPECT(t, cairn_attn_local_create(&local, s->m, &s->kv, 8, 1) == -EOPNOTSUPP && !local);
	EXPECT_CONTAINS(t, cairn_last_error(), says);
}

/* A merge that knows no own keys, as tables from before they were added have. */
static int older_merge(const struct cairn_attn_merge_args *args, void *stream)
{
	struct cairn_attn_merge_args known = *args;

	CAIRN_TRY(cairn_check_args(args, CAIRN_ATTN_MERGE_SECOND_BYTES, "attn_merge"));
	known.size = CAIRN_ATTN_MERGE_SECOND_BYTES;
	return cairn_attn_merge_cpu(&known, stream);
}

static void refusals(struct cairn_test *t)
{
	struct slicer x = { 0 };
	struct scene s;
	int moved;

	if (!open_scene(t, &s, "cpu", "deepseek_tiny")) {
		s.impl.mla_paged = NULL;
		refused(t, &s, "the table has no operation mla_paged");
	}
	close_scene(&s);
	if (!open_scene(t, &s, "cpu", "gpt_oss_tiny")) {
		struct cairn_slices slices = { .num_slices = s.m->graph->num_attn + 1 };

		EXPECT(t, cairn_sliced_create(&x.sliced, s.s, &slices, CAIRN_SLICED_PARTS) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), "attention sinks are not supported in slices");
	}
	close_scene(&s);
	if (open_scene(t, &s, "cpu", "llama3_tiny") || run_scene(t, &s, mixed, ARRAY_SIZE(mixed)) ||
	    open_slicer(t, &x, s.m, s.s, &s.kv, CAIRN_SLICED_PARTS, 1))
		goto out;
	EXPECT(t, cairn_attn_local_begin(x.local, &s.batch, NULL, s.stream, &moved) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "past: null pointer");
	if (run_scene(t, &s, decoding, ARRAY_SIZE(decoding)))
		goto out;
	list_scene_past(&x, &s);
	EXPECT(t, ready_slicer(&x, &s.batch, s.stream) == 0);
	s.impl.attn_merge = older_merge;	/* no row would have its own key */
	EXPECT(t, cairn_sliced_reserve(x.sliced, &s.batch, &x.link, s.stream, &moved) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "attn_merge");
	s.impl.attn_merge = NULL;
	EXPECT(t, cairn_sliced_reserve(x.sliced, &s.batch, &x.link, s.stream, &moved) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "the table has no operation attn_merge");
	s.impl.attn_bsr = NULL;
	refused(t, &s, "the table has no operation attn_bsr");
	s.batch.num_rows = SCENE_ROWS + 1;
	EXPECT(t, cairn_sliced_forward(x.sliced, &s.batch, &x.link, s.stream) == -EINVAL);
out:
	if (x.m)
		close_slicer(&x);
	close_scene(&s);
}

static const struct cairn_unit units[] = {
	{ "bits_cpu", bits_cpu },
	{ "bits_late", bits_late },
	{ "bits_cuda", bits_cuda },
	{ "split_cpu", split_cpu },
	{ "scales_cpu", scales_cpu },
	{ "split_cuda", split_cuda },
	{ "replayed_late", replayed_late },
	{ "replayed_cuda", replayed_cuda },
	{ "hooks_and_errors", hooks_and_errors },
	{ "refusals", refusals },
};

const struct cairn_family cairn_sliced_family = {
	.stage = "serving", .name = "sliced", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 5,
};
