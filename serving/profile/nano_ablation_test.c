// SPDX-License-Identifier: Apache-2.0
/*
 * nano_ablation_test - measured times of plans
 *
 * On a table whose clock only its operations advance, each time has a closed form; on cpu and late, that the
 * passes run.
 */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/base/json_test.h"
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

/* Each request costs, and so a prompt that is cut costs twice. */
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

static const struct cairn_unit units[] = {
	{ "known_times", known_times },
	{ "on_cpu", on_cpu },
	{ "on_late", on_late },
	{ "refused", refused },
};

const struct cairn_family cairn_nano_ablation_family = {
	.stage = "serving",
	.name = "nano_ablation",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
