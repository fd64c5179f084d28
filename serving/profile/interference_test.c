// SPDX-License-Identifier: Apache-2.0
/*
 * interference_test - the rows of a profile of a small model, and the measure serving.interference of a large
 * one
 *
 * The arithmetic is checked on a table whose clock only its operations advance; on cpu, that a search finds
 * in the profile all that it needs.
 */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/model/model_test.h"
#include "serving/profile/profile.h"
#include "serving/search/search_problem.h"

/* ---- units ---- */

static const struct profile_options tiny = {
	.rows = { { 128, 256 }, 2 }, .batches = { { 1, 16 }, 2 }, .contexts = { { 256, 16 }, 2 },
	.pair_rows = { { 128 }, 1 }, .pair_batches = { { 16 }, 1 }, .part_sms = { { 1 }, 1 }, .limit_s = 60,
	.layers = 2, .page_size = 16,
};

/* Rows as a file. */
struct rows {
	char text[1 << 16];
	size_t len;
	int num_pairs, num_green;
	const char *table;
};

static int take_row(void *ctx, const char *name, const char *members, double sm_mhz)
{
	struct rows *r = ctx;

	(void)sm_mhz;
	r->len += (size_t)snprintf(r->text + r->len, sizeof(r->text) - r->len,
				   "{\"v\":1,\"op\":\"interference\",\"case\":\"%s\",\"impl\":\"%s\","
				   "\"gpu\":\"host\",%s}\n", name, r->table, members);
	r->num_pairs += strstr(members, "\"gain\":") != NULL;
	r->num_green += strstr(members, "\"green\"") != NULL;
	return r->len < sizeof(r->text) ? 0 : cairn_error(EINVAL, "rows: too many");
}

static int config_of(struct cairn_test *t, const char *name, struct cairn_model_config *config)
{
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, name))
		return -1;
	if (!EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) == 0))
		return -1;
	*config = m->config;
	cairn_model_free(m);
	close_golden(&g);
	return 0;
}

/* Measures a small model on a table; returns the profile as `cairn search` reads it. */
static struct cairn_search_profile *measure(struct cairn_test *t, const char *table, const char *model,
					    const struct profile_options *opt, struct rows *rows,
					    struct profile_result *result)
{
	const struct profile_sink sink = { take_row, rows };
	struct cairn_search_profile *p = NULL;
	struct cairn_model_config config;
	struct cairn_impl impl;

	memset(rows, 0, sizeof(*rows));
	rows->table = table;
	if (config_of(t, model, &config) || open_table(t, table, &impl))
		return NULL;
	if (!EXPECT(t, profile_run(&impl, &config, opt, &sink, result) == 0) ||
	    !EXPECT(t, cairn_search_profile_parse(&p, rows->text, rows->len, "profile") == 0))
		cairn_note(t, "%s", cairn_last_error());
	return p;
}

/* A search finds all that it needs for a pass: every size, and a line of attention. */
static void is_complete(struct cairn_test *t, const struct cairn_search_profile *p,
			const struct cairn_model_config *config)
{
	static struct cairn_search_problem problem;
	const struct cairn_search_pass pass = { 256, 128, 64 };
	struct cairn_search_pipeline pipeline;

	if (!p || !EXPECT(t, cairn_search_pipeline(&pipeline, config) == 0))
		return;
	EXPECT(t, !strcmp(p->shape, pipeline.shape) && !strcmp(p->kernels, cairn_kernel_digest()));
	if (!EXPECT(t, cairn_search_problem(&problem, &pipeline, config, p, &pass, ~0u) == 0 &&
		    problem.num_sizes == 1))
		cairn_note(t, "%s", cairn_last_error());
}

/*
 * Real operations. Other work on the host may disturb any pair, and table late runs a stream only when
 * something waits for it, so there pairs do not overlap, and none has times.
 */
static void complete(struct cairn_test *t, const char *table, const char *model)
{
	struct rows *rows = malloc(sizeof(*rows));
	struct cairn_model_config config;
	struct profile_result result;
	struct cairn_search_profile *p;

	if (!EXPECT(t, rows != NULL))
		return;
	p = measure(t, table, model, &tiny, rows, &result);
	if (p && !config_of(t, model, &config)) {
		EXPECT(t, result.num_late == 0 && result.num_rows > 8);
		EXPECT(t, rows->num_pairs + result.num_starved + result.num_disturbed >= 4);
		EXPECT(t, cairn_search_profile_has(p, "dec") && p->seconds <= result.seconds + 0.1);
		cairn_note(t, "%s, %s: %d rows in %.2f s, %d pairs", table, model, result.num_rows,
			   result.seconds, rows->num_pairs);
		is_complete(t, p, &config);
	}
	cairn_search_profile_free(p);
	free(rows);
}

static void on_cpu(struct cairn_test *t)
{
	complete(t, "cpu", "llama3_tiny");
}

static void on_late(struct cairn_test *t)
{
	complete(t, "late", "llama3_tiny");
}

/* ---- a table whose operations take known times ---- */

static double now_ns;			/* of its clock */
static int num_parts, bad_parts;

static int known_gemm(const struct cairn_gemm_args *args, void *stream)
{
	(void)stream;
	now_ns += 1e3 * args->m;
	return 0;
}

static int known_attn(const struct cairn_attn_paged_args *args, void *stream)
{
	(void)stream;
	for (int32_t b = 0; b < args->kv.batch; b++)
		now_ns += 10 * (double)cairn_kv_len(&args->kv, b);
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

	num_parts++;
	bad_parts += sms && sms != 8 && sms != -8;
	bad_parts += priority && sms;
	*stream = &token;
	return 0;
}

static int known_info(struct cairn_device_info *info)
{
	*info = (struct cairn_device_info){ .size = sizeof(*info), .name = "known", .num_sms = 20 };
	return 0;
}

/* Returns the number after the first `key` in the row of a case that also contains `with`, or -1. */
static double figure(const struct rows *r, const char *name, const char *with, const char *key)
{
	char quoted[64];

	snprintf(quoted, sizeof(quoted), "\"case\":\"%s\"", name);
	for (const char *at = strstr(r->text, quoted); at; at = strstr(at + 1, quoted)) {
		const char *end = strchr(at, '\n'), *has = strstr(at, with), *value = strstr(at, key);

		if (has && has < end && value && value < end)
			return strtod(value + strlen(key), NULL);
	}
	return -1;
}

/* Measures with the table of known times. */
static int measure_known(struct cairn_test *t, const struct profile_options *opt, struct rows *rows,
			 struct profile_result *result)
{
	const struct profile_sink sink = { take_row, rows };
	struct cairn_model_config config;
	struct cairn_impl impl;

	memset(rows, 0, sizeof(*rows));
	rows->table = "known";
	if (config_of(t, "llama3_tiny", &config) || open_table(t, "cpu", &impl))
		return -1;
	impl.gemm = known_gemm;
	impl.attn_paged = known_attn;
	impl.event_record = known_record;
	impl.event_elapsed = known_elapsed;
	impl.stream_create_part = known_part;
	impl.device_info = known_info;
	num_parts = bad_parts = 0;
	return profile_run(&impl, &config, opt, &sink, result);
}

/*
 * Alone, a product of 128 rows takes 128 us and attention of 16 requests 41 us. On this table operations
 * never overlap, and both tasks get half of the time: r and p are 0.5 but for the launches at the ends.
 */
static void known_times(struct cairn_test *t)
{
	static const char *const hows[] = { "\"streams\"", "\"priority\"", "\"green\"" };
	static const char pair[] = "gate_up_m128__dec_b16_kv256";
	struct profile_options opt = tiny;
	struct rows *rows = malloc(sizeof(*rows));
	struct cairn_search_profile *profile = NULL;
	struct cairn_model_config config;
	struct profile_result result;

	opt.part_sms = (struct profile_list){ { 8, 24 }, 2 };
	if (!EXPECT(t, rows && measure_known(t, &opt, rows, &result) == 0))
		return;
	EXPECT(t, fabs(figure(rows, "qkv_m128", "alone", "\"alone_a_ns\":") - 128e3) < 1);
	EXPECT(t, fabs(figure(rows, "qkv_m256", "alone", "\"alone_a_ns\":") - 256e3) < 1);
	EXPECT(t, fabs(figure(rows, "dec_b1_kv16", "alone", "\"alone_a_ns\":") - 160) < 1);
	EXPECT(t, figure(rows, "qkv_m128", "alone", "\"sms_a\":") == 20);
	for (size_t i = 0; i < ARRAY_SIZE(hows); i++) {
		double r = figure(rows, pair, hows[i], "\"r\":"), p = figure(rows, pair, hows[i], "\"p\":");

		if (!EXPECT(t, fabs(r - 0.5) < 0.06 && fabs(p - 0.5) < 0.06))
			cairn_note(t, "%s: r %.3f, p %.3f", hows[i], r, p);
		EXPECT(t, fabs(figure(rows, pair, hows[i], "\"gain\":") - r - p) < 1e-3);
	}
	/* attention has the first 8 of 20 SMs, the product the others; 24 are more than there are */
	EXPECT(t, figure(rows, pair, "green", "\"sms_a\":") == 12 &&
		  figure(rows, pair, "green", "\"sms_b\":") == 8);
	EXPECT(t, figure(rows, pair, "streams", "\"sms_a\":") == 20 &&
		  figure(rows, pair, "streams", "\"sms_b\":") == 20);
	EXPECT(t, num_parts > 0 && !bad_parts && rows->num_green == 4 && rows->num_pairs == 12);
	EXPECT(t, fabs(figure(rows, "o_m128", "\"sms_a\":12", "\"alone_a_ns\":") - 128e3) < 1);
	if (EXPECT(t, cairn_search_profile_parse(&profile, rows->text, rows->len, "profile") == 0) &&
	    !config_of(t, "llama3_tiny", &config))
		is_complete(t, profile, &config);
	cairn_search_profile_free(profile);
	free(rows);
}

/* Chosen operations and ways alone are measured. */
static void chosen(struct cairn_test *t)
{
	struct profile_options opt = tiny;
	struct rows *rows = malloc(sizeof(*rows));
	struct profile_result result;

	opt.ops = "gate_up,attn";
	opt.hows = 1u << CAIRN_SEARCH_PRIORITY;
	if (!EXPECT(t, rows && measure_known(t, &opt, rows, &result) == 0))
		return;
	EXPECT(t, rows->num_pairs == 1 && strstr(rows->text, "\"priority\"") && !strstr(rows->text, "qkv"));
	EXPECT(t, result.num_rows == 2 + 4 + 1 + 1);	/* products, attention, a pair, a part */
	free(rows);
}

static void limits(struct cairn_test *t)
{
	const struct profile_sink sink = { take_row, NULL };
	struct profile_options opt = tiny;
	struct rows *rows = malloc(sizeof(*rows));
	struct cairn_model_config config;
	struct profile_result result;
	struct cairn_impl impl;

	if (!EXPECT(t, rows != NULL) || open_table(t, "cpu", &impl) || config_of(t, "llama3_tiny", &config))
		return;
	opt.ops = "qkv,gate";
	EXPECT(t, profile_run(&impl, &config, &opt, &sink, &result) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "ops: 'qkv,gate' names an operation");
	opt.ops = NULL;
	opt.limit_s = -1;
	EXPECT(t, profile_run(&impl, &config, &opt, &sink, &result) == 0 && result.num_rows == 0 &&
		  result.num_late > 8);
	opt = tiny;
	opt.batches.v[1] = 1 << 16;
	opt.contexts.v[0] = 1 << 16;
	EXPECT(t, profile_run(&impl, &config, &opt, &sink, &result) == -ENOMEM);
	EXPECT_CONTAINS(t, cairn_last_error(), " tokens in the cache take ");
	free(rows);
}

/* ---- the measure ---- */

static int write_row(void *ctx, const char *name, const char *members, double sm_mhz)
{
	if (isnan(sm_mhz))
		cairn_row(ctx, name, "cuda", "%s", members);
	else
		cairn_row(ctx, name, "cuda", "%s,\"sm_mhz\":%.0f", members, sm_mhz);
	return 0;
}

static void llama3_8b(struct cairn_test *t)
{
	const struct profile_sink sink = { write_row, t };
	struct cairn_model_config config;
	struct profile_result result;
	struct cairn_impl impl;

	if (open_table(t, "cuda", &impl) || !EXPECT(t, cairn_model_shape("llama3-8b", &config) == 0))
		return;
	if (!EXPECT(t, profile_run(&impl, &config, &profile_full, &sink, &result) == 0))
		return;
	cairn_note(t, "%d rows in %.0f s; %d measurements too late, %d pairs starved", result.num_rows,
		   result.seconds, result.num_late, result.num_starved);
	EXPECT(t, result.num_late == 0);
}

static const struct cairn_unit units[] = {
	{ "on_cpu", on_cpu },
	{ "on_late", on_late },
	{ "known_times", known_times },
	{ "chosen", chosen },
	{ "limits", limits },
};

static const struct cairn_unit measures[] = {
	{ "llama3_8b", llama3_8b },
};

const struct cairn_family cairn_interference_family = {
	.stage = "serving",
	.name = "interference",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
