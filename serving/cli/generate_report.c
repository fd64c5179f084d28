// SPDX-License-Identifier: Apache-2.0
/* generate_report - prints and records what `cairn generate` has measured */
#include "serving/cli/generate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Appends the members about energy; `tokens` of them were made in `seconds`. */
static void write_energy(FILE *json, const struct cairn_energy *e, double seconds, double tokens)
{
	char members[CAIRN_ENERGY_MEMBERS];

	cairn_energy_members(e, seconds, members, sizeof(members));
	fputs(members, json);
	if (e->watts > 0)
		fprintf(json, ",\"mj_per_token\":%.4g", 1e3 * e->watts * seconds / tokens);
}

/* Writes a record. op: "generate" for times as the caller sees them, or "decode_step" for one step. */
static void write_row(FILE *json, const char *op, const struct cairn_session *s,
		      const struct generate_options *o, const struct generate_figures *f, size_t num_prompt,
		      enum cairn_decode_path path)
{
	const char *base = strrchr(s->dir, '/');
	char name[96], device[320];
	double median = f->ns[f->n / 2], gbps = f->bytes / median, peak = cairn_session_peak_gbps(s);
	/* 2 FLOP for each weight and request; attention is not counted */
	double flops = 2 * (double)o->common.batch * (double)cairn_model_step_bytes(s->model, 0, 0) /
		       (double)cairn_dtype_bytes(s->model->dtype);

	snprintf(name, sizeof(name), "%.48s_b%lld_kv%zu", o->shape ? o->shape : base ? base + 1 : s->dir,
		 (long long)o->common.batch, num_prompt);
	for (char *p = name; *p; p++) {
		if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789_", *p))
			*p = '_';
	}
	cairn_session_record(s, path, f->run_energy.sm_mhz, device, sizeof(device));
	fprintf(json,
		"{\"v\":1,\"op\":\"%s\",\"case\":\"%s\",\"ok\":%s,\"err_over_bound\":0,\"n\":%d,"
		"\"min_ns\":%.0f,\"median_ns\":%.0f,\"p95_ns\":%.0f,\"bytes\":%.0f,\"flops\":%.0f,"
		"\"gbps\":%.1f,\"roof_pct\":%.1f",
		op, name, f->same ? "true" : "false", f->n, f->ns[0], median, f->ns[f->n * 95 / 100],
		f->bytes, flops, gbps, f->roof > 0 ? 100 * gbps / f->roof : 0);
	if (f->roof > 0)
		fprintf(json, ",\"stream_pct\":%.1f", 100 * gbps / f->roof);
	if (peak > 0)
		fprintf(json, ",\"peak_pct\":%.1f", 100 * gbps / peak);
	if (!strcmp(op, "generate"))
		fprintf(json, ",\"prompt_tokens\":%zu,\"new_tokens\":%d,\"first_token_ns\":%.0f,"
			"\"decode_ns\":%.0f", num_prompt, f->new_tokens, f->first_s * 1e9, f->decode_s * 1e9);
	if (s->plans)
		fprintf(json, ",\"nano_steps\":%lld", (long long)f->nano_steps);
	if (s->impl.pci_bus_id && !strcmp(op, "generate"))
		write_energy(json, &f->run_energy, f->run_s, (double)f->run_tokens);
	else if (s->impl.pci_bus_id)
		write_energy(json, &f->step_energy, f->step_s, (double)o->common.batch);
	fprintf(json, ",\"seed\":%lld,%s}\n", (long long)o->seed, device);
}

static int write_records(const struct cairn_session *s, const struct generate_options *o,
			 const struct generate_figures *f, size_t num_prompt)
{
	enum cairn_decode_path path = (enum cairn_decode_path)o->common.decode;
	FILE *json = fopen(o->common.json, "a");

	if (!json)
		return cairn_error(EINVAL, "--json: %s: %s", o->common.json, strerror(errno));
	write_row(json, "generate", s, o, f, num_prompt, path);
	/* if auto fell back to an operation list, the record must say so */
	write_row(json, "decode_step", s, o, f, num_prompt, f->fused ? path : CAIRN_DECODE_UNFUSED);
	return fclose(json) ? cairn_error(EIO, "--json: %s: %s", o->common.json, strerror(errno)) : 0;
}

int generate_report(const struct cairn_session *s, const struct generate_options *o,
		    struct generate_figures *f, size_t num_prompt)
{
	FILE *to = o->shape ? stdout : stderr;
	double median;

	if (!f->n) {
		fprintf(to, "prompt of %zu tokens; too few new tokens to measure\n", num_prompt);
		return 0;
	}
	qsort(f->ns, (size_t)f->n, sizeof(*f->ns), by_value);
	/* tokens of one step come at once: the mean is the time of a token */
	median = o->speculative.method ? f->decode_s * 1e9 / (f->new_tokens - 1) : f->ns[f->n / 2];
	f->bytes = (double)cairn_model_step_bytes(s->model, (int32_t)o->common.batch,
					       (int64_t)(f->kv_tokens * (double)o->common.batch));
	fprintf(to, "prompt of %zu tokens: first token after %.1f ms; then %.3f ms a token (p95 %.3f%s), "
		"%.1f tokens/s\n", num_prompt, f->first_s * 1e3, median * 1e-6, f->ns[f->n * 95 / 100] * 1e-6,
		f->fused ? ", fused" : "", (double)o->common.batch * 1e9 / median);
	if (s->plans)
		fprintf(to, "%lld of %lld steps as nano-batches\n", (long long)f->nano_steps,
			(long long)f->steps);
	/* of a pipeline, the model here is only the first stage */
	if ((o->shape && !o->speculative.method && s->model->config.stages <= 1) || o->common.json) {
		f->roof = cairn_session_read_gbps(s);
		fprintf(to, "a step reads %.3f GB, %.1f GB/s", f->bytes * 1e-9, f->bytes / median);
		fprintf(to, f->roof > 0 ? ": %.1f%% of the read stream, %.1f GB/s\n" : "\n",
			100 * f->bytes / median / f->roof, f->roof);
	}
	if (o->speculative.method)
		fprintf(to, "%lld steps, %lld with drafts; %lld of %lld drafts right, %lld pauses\n",
			(long long)f->steps, (long long)f->drafts.drafts,
			(long long)f->drafts.accepted_tokens, (long long)f->drafts.draft_tokens,
			(long long)f->drafts.pauses);
	if (!f->same)
		fprintf(to, "the runs gave different tokens\n");
	if (o->common.json)
		CAIRN_TRY(write_records(s, o, f, num_prompt));
	return 0;
}
