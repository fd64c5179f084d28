// SPDX-License-Identifier: Apache-2.0
/* plan_file - makes and writes plan files */
#include "serving/plan/plan_file.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

int cairn_plan_file_create(struct cairn_plan_file **out, const struct cairn_search_profile *profile,
			   const struct cairn_search_pipeline *pipeline)
{
	struct cairn_plan_file *plan = calloc(1, sizeof(*plan));

	if (!plan)
		return cairn_error(ENOMEM, "plan: out of memory");
	snprintf(plan->gpu, sizeof(plan->gpu), "%s", profile->gpu);
	snprintf(plan->impl, sizeof(plan->impl), "%s", profile->impl);
	snprintf(plan->kernels, sizeof(plan->kernels), "%s", profile->kernels);
	snprintf(plan->shape, sizeof(plan->shape), "%s", pipeline->shape);
	plan->ranks = pipeline->ranks;
	plan->sms = profile->sms;
	*out = plan;
	return 0;
}

static int by_start(const void *a, const void *b)
{
	const struct cairn_plan_file_part *x = a, *y = b;

	if (x->start != y->start)
		return x->start < y->start ? -1 : 1;
	return strcmp(x->op, y->op) ? strcmp(x->op, y->op) : x->nano - y->nano;
}

int cairn_plan_file_add(struct cairn_plan_file *plan, const struct cairn_search_problem *p,
			const struct cairn_search_found *found)
{
	const struct cairn_search_schedule *s = &found->schedule;
	struct cairn_plan_file_entry *e;

	if (plan->num_entries == CAIRN_SEARCH_MOST_ENTRIES)
		return cairn_error(EINVAL, "plan: more than %d kinds of passes", CAIRN_SEARCH_MOST_ENTRIES);
	e = realloc(plan->entries, ((size_t)plan->num_entries + 1) * sizeof(*e));
	if (!e)
		return cairn_error(ENOMEM, "plan: out of memory");
	plan->entries = e;
	e += plan->num_entries++;
	memset(e, 0, sizeof(*e));
	e->rows = p->pass.rows;
	e->decode_eighths = (p->pass.decode * 8 + p->pass.rows / 2) / p->pass.rows;
	e->context = p->pass.context;
	e->nanos = s->nanos;
	for (int32_t i = 0, row = 0; i < s->nanos; i++) {
		row += s->size[i];
		if (i + 1 < s->nanos)
			e->cuts[i] = row;
		e->decode[i] = s->decode[i];
	}
	for (int32_t i = 0; i < found->parts.num_parts; i++) {
		const struct cairn_search_level *level = cairn_search_level_of(p, &found->parts, s, i);
		struct cairn_plan_file_part *part = &e->parts[e->num_parts++];
		const struct cairn_search_op *op = &p->ops[found->parts.parts[i].op];

		memcpy(part->op, op->name, sizeof(part->op));
		part->nano = found->parts.parts[i].nano;
		part->start = s->start[i];
		part->r = level->r;
		part->how = level->how;
		part->sms = level->sms;
	}
	qsort(e->parts, (size_t)e->num_parts, sizeof(*e->parts), by_start);
	e->sequential_ms = found->sequential_ms;
	e->predicted_ms = found->tries[found->best].pass_ms;
	e->gap = found->tries[found->best].stage2_gap;
	return 0;
}

void cairn_plan_file_name(const char *gpu, const char *shape, int32_t ranks, char *name, size_t len)
{
	snprintf(name, len, "%s_%s_tp%d.json", gpu, shape, ranks);
	for (char *c = name; *c; c++)
		if (*c == ' ' || *c == '/')
			*c = '_';
}

static json_t *ints_json(const int32_t *values, int32_t num)
{
	json_t *array = json_array();

	for (int32_t i = 0; i < num; i++)
		json_array_append_new(array, json_integer(values[i]));
	return array;
}

/* Returns a number, or null if the value is 0 or not finite. */
static json_t *ms_json(double ms)
{
	return ms > 0 && isfinite(ms) ? json_real(ms) : json_null();
}

static json_t *entry_json(const struct cairn_plan_file_entry *e)
{
	json_t *parts = json_array();

	for (int32_t i = 0; i < e->num_parts; i++) {
		const struct cairn_plan_file_part *p = &e->parts[i];

		json_array_append_new(parts, json_pack("{s:s, s:i, s:f, s:f, s:s, s:i}", "op", p->op, "nano",
						       (int)p->nano, "start", p->start, "r", p->r, "how",
						       cairn_search_how_names[p->how], "sms", (int)p->sms));
	}
	return json_pack("{s:i, s:i, s:i, s:o, s:o, s:o, s:f, s:f, s:o, s:o, s:o}", "rows", (int)e->rows,
			 "decode_eighths", (int)e->decode_eighths, "context", (int)e->context,
			 "cuts", ints_json(e->cuts, e->nanos - 1), "decode", ints_json(e->decode, e->nanos),
			 "parts", parts, "sequential_ms", e->sequential_ms, "predicted_ms", e->predicted_ms,
			 "gap", isfinite(e->gap) ? json_real(e->gap) : json_null(),
			 "measured_sequential_ms", ms_json(e->measured_sequential_ms),
			 "measured_ms", ms_json(e->measured_ms));
}

int cairn_plan_file_write(const struct cairn_plan_file *plan, const char *path)
{
	char part[PATH_MAX];
	json_t *entries = json_array(), *root;
	int ret = 0;

	for (int32_t i = 0; i < plan->num_entries; i++)
		json_array_append_new(entries, entry_json(&plan->entries[i]));
	root = json_pack("{s:i, s:s, s:s, s:s, s:s, s:i, s:i, s:o}", "v", CAIRN_PLAN_FILE_VERSION, "gpu",
			 plan->gpu, "impl", plan->impl, "kernels", plan->kernels, "shape", plan->shape,
			 "ranks", (int)plan->ranks,
			 "sms", (int)plan->sms, "entries", entries);
	if (!root || json_array_size(entries) != (size_t)plan->num_entries)
		ret = cairn_error(ENOMEM, "%s: out of memory", path);
	else if (snprintf(part, sizeof(part), "%s.part", path) >= (int)sizeof(part))
		ret = cairn_error(EINVAL, "%s: the name is too long", path);
	else if (json_dump_file(root, part, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) || rename(part, path))
		ret = cairn_error(EIO, "%s: %s", path, strerror(errno));
	json_decref(root);
	return ret;
}
