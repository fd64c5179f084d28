// SPDX-License-Identifier: Apache-2.0
/*
 * nano_ablation_test - measured times of plans
 *
 * On a table whose clock only its operations advance, each time has a closed form; on cpu and late, that the
 * passes run. The measures have the times of GPUs that share a model.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "conformance/tables/program.h"
#include "serving/base/json.h"
#include "serving/base/json_test.h"
#include "serving/model/model_graph.h"
#include "serving/model/model_test.h"
#include "serving/profile/nano_ablation_test.h"

/* ---- a table whose operations take known times ---- */

enum { GEMM_NS = 100, CALL_NS = 3000, KEY_NS = 2 };

static double now_ns;
static int num_parts;

static int known_gemm(const struct cairn_gemm_args *args, void *stream)
{
	(void)stream;
	now_ns += CALL_NS + GEMM_NS * args->m;
	return 0;
}

/* Charges a request for all its keys. A prompt that is cut is two requests, so its first keys count twice. */
static int known_attn(const struct cairn_attn_paged_args *args, void *stream)
{
	(void)stream;
	for (int32_t b = 0; b < args->kv.batch; b++)
		now_ns += KEY_NS * (double)cairn_kv_len(&args->kv, b);
	return 0;
}

static int known_record(void *event, void *stream)
{
	(void)stream;
	*(double *)event = now_ns;
	return 0;
}

static int known_elapsed(float *ms, void *start, void *end)
{
	*ms = (float)((*(double *)end - *(double *)start) * 1e-6);
	return 0;
}

static int known_part(void **stream, int32_t sms, int32_t priority)
{
	static int token;

	num_parts += (sms == 8 || sms == -8) && !priority;
	*stream = &token;
	return 0;
}

static int open_small(struct cairn_test *t, const char *table, struct cairn_impl *impl, struct golden *g,
		      struct cairn_model **m)
{
	if (open_table(t, table, impl) || open_golden(t, g, "llama3_tiny"))
		return -1;
	return EXPECT(t, cairn_model_load(m, impl, g->dir, NULL, NULL) == 0) ? 0 : -1;
}

/*
 * Each of the four products of a layer costs a call more for the second nano-batch. The prompt of 200 rows is
 * cut after 96: its first part has 96 keys, and the second one all 200.
 */
static void known_times(struct cairn_test *t)
{
	const struct nano_ablation_options options = { .seconds = 1e-3, .turns = 3, .page_size = 16 };
	double prompt = ROWS - DECODE, keys = DECODE * CONTEXT + prompt, want;
	struct nano_ablation a;
	struct cairn_plan_file *file;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	int32_t layers;

	if (open_small(t, "cpu", &impl, &g, &m))
		return;
	impl.gemm = known_gemm;
	impl.attn_paged = known_attn;
	impl.event_record = known_record;
	impl.event_elapsed = known_elapsed;
	impl.stream_create_part = known_part;
	layers = m->config.num_hidden_layers;
	want = 1e-6 * layers * (4 * (CALL_NS + GEMM_NS * ROWS) + KEY_NS * keys);
	file = make_plan(t, &m->config, "green");
	num_parts = 0;
	if (file && EXPECT(t, nano_ablation_run(&a, m, file, 0, &options) == 0)) {
		EXPECT(t, a.num == 4 && num_parts == 2 && !a.shared_cache);
		EXPECT(t, !strcmp(a.hows[0].name, "sequential"));
		if (!EXPECT(t, fabs(a.hows[0].ms - want) < 1e-5 * want))
			cairn_note(t, "sequential %.6f ms, %.6f", a.hows[0].ms, want);
		want += 1e-6 * layers * (4 * CALL_NS + KEY_NS * (FIRST - 8));
		for (int i = 1; i < a.num; i++)
			if (!EXPECT(t, fabs(a.hows[i].ms - want) < 1e-5 * want))
				cairn_note(t, "%s %.6f ms, %.6f", a.hows[i].name, a.hows[i].ms, want);
		EXPECT(t, !strcmp(a.hows[3].name, "plan"));
		EXPECT(t, file->entries[0].measured_sequential_ms == a.hows[0].ms &&
			  file->entries[0].measured_ms == a.hows[3].ms);
		EXPECT(t, !cairn_plan_file_has_gain(&file->entries[0]));
	} else {
		cairn_note(t, "%s", cairn_last_error());
	}
	cairn_plan_file_free(file);
	cairn_model_free(m);
	close_golden(&g);
}

/* Real passes on a table; a plan of plain streams has no fourth way. */
static void passes_on(struct cairn_test *t, const char *table)
{
	const struct nano_ablation_options options = { .seconds = 0, .turns = 1, .page_size = 16 };
	struct nano_ablation a;
	struct cairn_plan_file *file;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_small(t, table, &impl, &g, &m))
		return;
	file = make_plan(t, &m->config, "streams");
	if (file && !EXPECT(t, nano_ablation_run(&a, m, file, 0, &options) == 0 && a.num == 3 &&
			    a.hows[0].ms > 0 && !strcmp(a.hows[2].name, "streams")))
		cairn_note(t, "%s", cairn_last_error());
	cairn_plan_file_free(file);
	cairn_model_free(m);
	close_golden(&g);
}

static void on_cpu(struct cairn_test *t)
{
	passes_on(t, "cpu");
}

static void on_late(struct cairn_test *t)
{
	passes_on(t, "late");
}

static void refused(struct cairn_test *t)
{
	const struct nano_ablation_options none = { .page_size = 16 }, one = { .turns = 1, .page_size = 16 };
	struct nano_ablation a;
	struct cairn_plan_file *file;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_small(t, "cpu", &impl, &g, &m))
		return;
	file = make_plan(t, &m->config, "green");
	if (!file)
		return;
	EXPECT(t, nano_ablation_run(&a, m, file, 0, &none) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "turns: 0");
	EXPECT(t, nano_ablation_run(&a, m, file, 0, &one) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "no stream_create_part");
	file->shape[0] ^= 1;
	EXPECT(t, nano_ablation_run(&a, m, file, 0, &one) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "the plan is for");
	EXPECT(t, file->entries[0].measured_ms == 0);
	cairn_plan_file_free(file);
	cairn_model_free(m);
	close_golden(&g);
}

/* ---- ranks ---- */

/*
 * A layer in two halves, attention A and MLP M, of nano-batches 0 and 1: A0, M1 of the layer before, M0, A1.
 * So each half is followed by one of the other nano-batch, and beside that one its output is summed.
 */
static double overlapped_start(const struct cairn_search_pipeline *p, int32_t op, int32_t nano)
{
	static const double half[2][2] = { { 0.25, 0.75 }, { 1, 1.5 } };
	static const double sum[2][2] = { { 0, 0.5 }, { 0.75, 1.25 } };
	int is_mlp = 0;

	for (int32_t o = 0; o <= op; o++)
		is_mlp |= !strcmp(p->ops[o].name, "mlp_norm");
	return p->ops[op].network ? sum[nano][is_mlp] : half[nano][is_mlp] + 0.01 * op;
}

static int by_start(const void *x, const void *y)
{
	const struct cairn_plan_file_part *a = x, *b = y;

	return (a->start > b->start) - (a->start < b->start);
}

/*
 * Fills a plan that cuts a pass into two halves. eighths: how many eighths of the rows decode. sms: number
 * of SMs for the sums of the ranks, which products may use, too; 0: the sums may use all SMs, at a higher
 * priority.
 */
static void fill_overlapped(struct cairn_plan_file_entry *e, const struct cairn_search_pipeline *p,
			    int32_t rows, int32_t eighths, int32_t sms)
{
	*e = (struct cairn_plan_file_entry){
		.rows = rows, .decode_eighths = eighths, .context = 1024, .nanos = 2, .cuts = { rows / 2 },
		.decode = { rows * eighths / 16, rows * eighths / 16 }, .sequential_ms = 1, .predicted_ms = 1,
	};
	for (int32_t o = 0; o < p->num_ops; o++)
		for (int32_t nano = 0; nano < (p->ops[o].whole ? 1 : 2); nano++) {
			struct cairn_plan_file_part *part = &e->parts[e->num_parts++];

			memcpy(part->op, p->ops[o].name, sizeof(part->op));
			part->nano = nano;
			part->start = overlapped_start(p, o, p->ops[o].whole ? 1 : nano);
			part->r = 0.5;
			part->how = !p->ops[o].network ? CAIRN_SEARCH_STREAMS : sms ? CAIRN_SEARCH_GREEN :
				    CAIRN_SEARCH_PRIORITY;
			part->sms = sms ? sms : 1;
		}
	qsort(e->parts, (size_t)e->num_parts, sizeof(*e->parts), by_start);
}

/* Measures a plan of a file by a program of its own, as ranks are forked before a table is started. */
static int measure_plan(struct cairn_test *t, const struct cairn_plan_file *file, const char *option,
			const char *model, const char *table, int ranks, const char *seconds, char *rows,
			size_t len)
{
	char out[4096], plan[PATH_MAX], tp[16];
	const char *const argv[] = {
		"cairn", "search", option, model, "--measure", plan, "--impl", table, "--tp", tp, "--turns",
		"3", "--turn-seconds", seconds, "--json", rows, NULL,
	};

	snprintf(tp, sizeof(tp), "%d", ranks);
	snprintf(plan, sizeof(plan), "%s/ranks.json", cairn_tmpdir(t));
	snprintf(rows, len, "%s/ranks.jsonl", cairn_tmpdir(t));
	remove(rows);
	if (EXPECT(t, cairn_plan_file_write(file, plan) == 0) &&
	    EXPECT(t, cairn_spawn((char *const *)argv, out, sizeof(out)) == 0))
		return 0;
	cairn_note(t, "%s", out);
	return -1;
}

/* Two ranks take the same turns and measure all ways of a plan with collectives. */
static void two_ranks(struct cairn_test *t)
{
	struct cairn_device_info info = { .size = sizeof(info) };
	char rows[PATH_MAX], text[8192] = "";
	struct cairn_plan_file *file;
	struct cairn_model_config c;
	struct cairn_impl impl;
	struct golden g;
	int32_t kv_shares;
	FILE *f;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "mixtral_tiny") ||
	    !EXPECT(t, impl.device_info(&info) == 0 && cairn_model_config_load(g.dir, &c) == 0 &&
		    cairn_model_share_config(&c, g.dir, 2, 0, &kv_shares) == 0))
		return;
	file = make_plan(t, &c, "streams");
	if (!file)
		return;
	file->entries[0].num_parts--;		/* experts are whole */
	snprintf(file->gpu, sizeof(file->gpu), "%s", info.name);
	strcpy(file->impl, "cpu:tp2");
	snprintf(file->kernels, sizeof(file->kernels), "%s", cairn_kernel_digest());
	if (!measure_plan(t, file, "--model", g.dir, "cpu", 2, "0.01", rows, sizeof(rows))) {
		f = fopen(rows, "r");
		EXPECT(t, f && fread(text, 1, sizeof(text) - 1, f) > 0);
		if (f)
			fclose(f);
		EXPECT_CONTAINS(t, text, "_sequential\"");
		EXPECT_CONTAINS(t, text, "_split\"");
		EXPECT_CONTAINS(t, text, "_streams\"");
		EXPECT_CONTAINS(t, text, "\"impl\":\"cpu:tp2\"");
	}
	cairn_plan_file_free(file);
	close_golden(&g);
}

/* ---- the measure ---- */

struct measured {
	const char *shape;
	int ranks;
	struct { int32_t eighths, sms; } of[2];
	int num;
};

/* The rows of an entry follow each other, and begin with the sequential way. */
static void put_rows(struct cairn_test *t, const char *path, const struct measured *m)
{
	char line[2048], name[96];
	FILE *f = fopen(path, "r");
	int i = -1;

	while (EXPECT(t, f) && fgets(line, sizeof(line), f)) {
		json_t *o = json_loads(line, 0, NULL);
		const char *how = json_string_value(json_object_get(o, "how"));
		const int rows = (int)json_integer_value(json_object_get(o, "rows"));
		const int decode = (int)json_integer_value(json_object_get(o, "decode"));

		if (!EXPECT(t, o && how))
			break;
		i += !strcmp(how, "sequential");
		if (!EXPECT(t, i >= 0 && i < m->num))
			break;
		snprintf(name, sizeof(name), "%s_tp%d_rows%d_dec%d_sums%d_%s", m->shape, m->ranks,
			 rows, 8 * decode / rows, m->of[i].sms, how);
		cairn_row(t, name, "cuda", "\"how\":\"%s\",\"ranks\":%d,\"rows\":%d,\"decode\":%d,"
			  "\"context\":1024,\"nanos\":2,\"sum_sms\":%d,\"ms\":%.4f,\"gain\":%.4f,"
			  "\"shared_cache\":%s", how, m->ranks, rows, decode, m->of[i].sms,
			  json_number_value(json_object_get(o, "ms")),
			  json_number_value(json_object_get(o, "gain")),
			  json_is_true(json_object_get(o, "shared_cache")) ? "true" : "false");
		json_decref(o);
	}
	if (f)
		fclose(f);
}

/* The file of the measure, but for the GPU. */
static int fill_file(struct cairn_plan_file *file, const struct measured *m,
		     struct cairn_search_pipeline *pipeline)
{
	struct cairn_model_config c;
	int32_t kv_shares;

	CAIRN_TRY(cairn_model_shape(m->shape, &c));
	CAIRN_TRY(cairn_model_share_config(&c, m->shape, m->ranks, 0, &kv_shares));
	CAIRN_TRY(cairn_search_pipeline(pipeline, &c));
	snprintf(file->kernels, sizeof(file->kernels), "%s", cairn_kernel_digest());
	memcpy(file->shape, pipeline->shape, sizeof(file->shape));
	file->num_entries = m->num;
	for (int k = 0; k < m->num; k++)
		fill_overlapped(&file->entries[k], pipeline, 2048, m->of[k].eighths, m->of[k].sms);
	return 0;
}

static const struct measured measured[] = {
	{ "llama3-8b", 2, { { 3, 0 }, { 0, 0 } }, 2 }, { "llama3-8b", 2, { { 3, 16 }, { 3, 32 } }, 2 },
	{ "llama3-70b", 2, { { 3, 0 } }, 1 }, { "dsv2lite", 2, { { 3, 0 } }, 1 },
	{ "llama3-70b", 4, { { 3, 0 }, { 0, 0 } }, 2 }, { "llama3-70b", 8, { { 3, 0 }, { 0, 0 } }, 2 },
};

/* The table's name in a plan file. */
static void name_table(const struct measured *m, char *name, size_t len)
{
	snprintf(name, len, "cuda:tp%d", m->ranks);
}

/* The plans of the measure can be read and run. */
static void plans_by_hand(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(measured); i++) {
		struct cairn_plan_file_entry entries[ARRAY_SIZE(measured[0].of)];
		struct cairn_plan_file file = { .gpu = "G", .ranks = measured[i].ranks, .sms = 132,
						.entries = entries }, *read;
		struct cairn_plan_file_for want = { "G", file.impl, cairn_kernel_digest(), file.shape,
						    measured[i].ranks, false };
		struct cairn_search_pipeline pipeline;
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%s/by_hand.json", cairn_tmpdir(t));
		name_table(&measured[i], file.impl, sizeof(file.impl));
		if (!EXPECT(t, fill_file(&file, &measured[i], &pipeline) == 0) ||
		    !EXPECT(t, cairn_plan_file_write(&file, path) == 0) ||
		    !EXPECT(t, cairn_plan_file_read(&read, path, &want) == 0)) {
			cairn_note(t, "%s", cairn_last_error());
			continue;
		}
		for (int k = 0; k < measured[i].num; k++) {
			struct cairn_plan_lanes l;

			if (EXPECT(t, cairn_plan_lanes_make(&l, read, k, &pipeline) == 0)) {
				const struct cairn_nano_lane *of = &l.plan.lanes[l.plan.num_lanes - 1];

				EXPECT(t, l.plan.num_lanes == (measured[i].of[k].sms ? 4 : 3));
				EXPECT(t, of->sms == measured[i].of[k].sms && of->priority);
				cairn_plan_lanes_free(&l);
			}
		}
		cairn_plan_file_free(read);
	}
}

static int start_last(struct cairn_impl *impl, int ranks, struct cairn_device_info *info)
{
	CAIRN_TRY(cairn_impl_open("cuda", impl));
	CAIRN_TRY(cairn_impl_start(impl, ranks - 1));
	return impl->device_info(info);
}

/* A model shared by GPUs, all layers, with plans made by hand; those of the search need a profile. */
static void measure_ranks(struct cairn_test *t, const struct measured *m)
{
	struct cairn_plan_file_entry entries[ARRAY_SIZE(m->of)];
	struct cairn_device_info info = { .size = sizeof(info) };
	struct cairn_plan_file file = { .ranks = m->ranks, .entries = entries };
	struct cairn_search_pipeline pipeline;
	struct cairn_impl impl;
	char rows[PATH_MAX];

	if (start_last(&impl, m->ranks, &info)) {
		cairn_skip(t, "needs %d GPUs", m->ranks);
		return;
	}
	if (impl.fini)
		impl.fini();
	file.sms = info.num_sms;
	name_table(m, file.impl, sizeof(file.impl));
	snprintf(file.gpu, sizeof(file.gpu), "%s", info.name);
	if (EXPECT(t, fill_file(&file, m, &pipeline) == 0) &&
	    !measure_plan(t, &file, "--shape", m->shape, "cuda", m->ranks, "0.2", rows, sizeof(rows)))
		put_rows(t, rows, m);
}

static void tp2_llama3_8b(struct cairn_test *t)
{
	measure_ranks(t, &measured[0]);
}

static void tp2_llama3_8b_parts(struct cairn_test *t)
{
	measure_ranks(t, &measured[1]);
}

static void tp2_llama3_70b(struct cairn_test *t)
{
	measure_ranks(t, &measured[2]);
}

static void tp2_dsv2lite(struct cairn_test *t)
{
	measure_ranks(t, &measured[3]);
}

static void tp4_llama3_70b(struct cairn_test *t)
{
	measure_ranks(t, &measured[4]);
}

static void tp8_llama3_70b(struct cairn_test *t)
{
	measure_ranks(t, &measured[5]);
}

static const struct cairn_unit units[] = {
	{ "known_times", known_times },
	{ "on_cpu", on_cpu },
	{ "on_late", on_late },
	{ "refused", refused },
	{ "two_ranks", two_ranks },
	{ "plans_by_hand", plans_by_hand },
};

static const struct cairn_unit measures_of_ranks[] = {
	{ "tp2_llama3_8b", tp2_llama3_8b }, { "tp2_llama3_8b_parts", tp2_llama3_8b_parts },
	{ "tp2_llama3_70b", tp2_llama3_70b }, { "tp2_dsv2lite", tp2_dsv2lite },
	{ "tp4_llama3_70b", tp4_llama3_70b }, { "tp8_llama3_70b", tp8_llama3_70b },
};

const struct cairn_family cairn_nano_ablation_family = {
	.stage = "serving",
	.name = "nano_ablation",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.measures = measures_of_ranks,
	.num_measures = ARRAY_SIZE(measures_of_ranks),
};
