// SPDX-License-Identifier: Apache-2.0
/* plan_file_read - reads and checks plan files, and picks an entry */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/digest.h"
#include "serving/base/json.h"
#include "serving/search/search_fault.h"
#include "serving/plan/plan_file.h"

enum { MOST_BYTES = 16 << 20, MOST_CONTEXT = 1 << 28, MOST_LAG = 16 };

static int bad(struct cairn_json_at at, const char *key, const char *why)
{
	return cairn_error(EINVAL, "%s: %s%s: %s", at.file, at.where, key, why);
}

static int take_int32(const json_t *o, struct cairn_json_at at, const char *key, int32_t lo, int32_t hi,
		      int32_t *value)
{
	int64_t v = 0;

	CAIRN_TRY(cairn_json_int(o, at, key, true, lo, hi, &v));
	*value = (int32_t)v;
	return 0;
}

/* Reads an array of whole numbers in [lo, hi]; returns its length in *num. */
static int take_ints(const json_t *o, struct cairn_json_at at, const char *key, int32_t lo, int32_t hi,
		     int32_t max, int32_t *values, int32_t *num)
{
	json_t *array = NULL;

	CAIRN_TRY(cairn_json_child(o, at, key, true, JSON_ARRAY, &array));
	if (json_array_size(array) > (size_t)max)
		return bad(at, key, "has too many numbers");
	*num = (int32_t)json_array_size(array);
	for (int32_t i = 0; i < *num; i++) {
		const json_t *v = json_array_get(array, (size_t)i);

		if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
			return cairn_error(EINVAL, "%s: %s%s[%d]: must be a whole number from %d to %d",
					   at.file, at.where, key, i, lo, hi);
		values[i] = (int32_t)json_integer_value(v);
	}
	return 0;
}

static int take_text(const json_t *o, struct cairn_json_at at, const char *key, char *to, size_t room)
{
	const char *text = "";

	CAIRN_TRY(cairn_json_string(o, at, key, true, &text, NULL));
	if (!*text || strlen(text) >= room)
		return bad(at, key, "is empty or too long");
	strcpy(to, text);
	return 0;
}

static int take_part(const json_t *o, struct cairn_json_at at, const struct cairn_plan_file *plan,
		     struct cairn_plan_file_entry *e)
{
	struct cairn_plan_file_part *p = &e->parts[e->num_parts];
	char how[16] = "";
	int i = 0;

	CAIRN_TRY(take_text(o, at, "op", p->op, sizeof(p->op)));
	CAIRN_TRY(take_int32(o, at, "nano", 0, e->nanos - 1, &p->nano));
	/* the lower bound of cairn_json_number() is exclusive */
	CAIRN_TRY(cairn_json_number(o, at, "start", true, -1e-300, MOST_LAG, &p->start));
	CAIRN_TRY(cairn_json_number(o, at, "r", true, 0, 1, &p->r));
	CAIRN_TRY(take_text(o, at, "how", how, sizeof(how)));
	while (cairn_search_how_names[i] && strcmp(cairn_search_how_names[i], how))
		i++;
	if (!cairn_search_how_names[i] || (i == CAIRN_SEARCH_ALONE) != (p->r == 1))
		return bad(at, "how", "is unknown, or does not fit r");
	p->how = (enum cairn_search_how)i;
	CAIRN_TRY(take_int32(o, at, "sms", 1, plan->sms, &p->sms));
	if (e->num_parts && p->start < p[-1].start)
		return bad(at, "start", "is less than that of the part before");
	for (int32_t k = 0; k < e->num_parts; k++)
		if (e->parts[k].nano == p->nano && !strcmp(e->parts[k].op, p->op))
			return bad(at, "op", "the nano-batch has this operation already");
	e->num_parts++;
	return 0;
}

static int take_parts(const json_t *o, struct cairn_json_at at, const struct cairn_plan_file *plan,
		      struct cairn_plan_file_entry *e)
{
	json_t *parts = NULL;
	char where[96];

	CAIRN_TRY(cairn_json_child(o, at, "parts", true, JSON_ARRAY, &parts));
	if (!json_array_size(parts) || json_array_size(parts) > CAIRN_SEARCH_MOST_PARTS)
		return bad(at, "parts", "has no nano-operation, or too many");
	for (size_t i = 0; i < json_array_size(parts); i++) {
		const json_t *part = json_array_get(parts, i);

		snprintf(where, sizeof(where), "%sparts[%zu].", at.where, i);
		if (!json_is_object(part))
			return bad((struct cairn_json_at){ at.file, where }, "", "must be an object");
		CAIRN_TRY(take_part(part, (struct cairn_json_at){ at.file, where }, plan, e));
	}
	return 0;
}

/* Checks cuts and decoding rows against the rows of the pass. */
static int check_rows(const struct cairn_plan_file_entry *e, struct cairn_json_at at)
{
	int32_t decode = 0;

	for (int32_t i = 0, from = 0, to; i < e->nanos; i++, from = to) {
		to = i + 1 < e->nanos ? e->cuts[i] : e->rows;
		if (to <= from)
			return bad(at, "cuts", "must ascend, and end before the last row");
		if (e->decode[i] > to - from)
			return bad(at, "decode", "has more rows than its nano-batch");
		decode += e->decode[i];
	}
	if (fabs(8.0 * decode / e->rows - e->decode_eighths) > 0.5)
		return bad(at, "decode", "does not have decode_eighths of the rows");
	return 0;
}

static int take_ms(const json_t *o, struct cairn_json_at at, const char *key, bool required, double *ms)
{
	json_t *value = json_object_get(o, key);

	*ms = 0;
	if (!value)
		return bad(at, key, "is missing");
	if (json_is_null(value))
		return required ? bad(at, key, "is null: the plan has not been measured") : 0;
	return cairn_json_number(o, at, key, true, 0, 1e9, ms);
}

static int take_entry(const json_t *o, struct cairn_json_at at, const struct cairn_plan_file *plan,
		      bool measured, struct cairn_plan_file_entry *e)
{
	int32_t num = 0;

	if (!json_is_object(o))
		return bad(at, "", "must be an object");
	CAIRN_TRY(take_int32(o, at, "rows", 1, CAIRN_SEARCH_MOST_ROWS, &e->rows));
	CAIRN_TRY(take_int32(o, at, "decode_eighths", 0, 8, &e->decode_eighths));
	CAIRN_TRY(take_int32(o, at, "context", 1, MOST_CONTEXT, &e->context));
	if (e->context & (e->context - 1))
		return bad(at, "context", "must be a power of two");
	CAIRN_TRY(take_ints(o, at, "cuts", 1, e->rows - 1, CAIRN_SEARCH_MOST_SPLIT - 1, e->cuts, &num));
	if (!num)
		return bad(at, "cuts", "must have at least one row");
	for (int32_t i = 0; i < num && FAULT(CUT_OFF_BY_ONE); i++)
		e->cuts[i]--;
	e->nanos = num + 1;
	CAIRN_TRY(take_ints(o, at, "decode", 0, e->rows, CAIRN_SEARCH_MOST_SPLIT, e->decode, &num));
	if (num != e->nanos)
		return bad(at, "decode", "must have a number for each nano-batch");
	CAIRN_TRY(check_rows(e, at));
	CAIRN_TRY(take_parts(o, at, plan, e));
	CAIRN_TRY(take_ms(o, at, "sequential_ms", true, &e->sequential_ms));
	CAIRN_TRY(take_ms(o, at, "predicted_ms", true, &e->predicted_ms));
	e->gap = INFINITY;
	CAIRN_TRY(cairn_json_number(o, at, "gap", false, -1e-300, 1e9, &e->gap));
	CAIRN_TRY(take_ms(o, at, "measured_sequential_ms", measured, &e->measured_sequential_ms));
	CAIRN_TRY(take_ms(o, at, "measured_ms", measured, &e->measured_ms));
	if ((e->measured_ms > 0) != (e->measured_sequential_ms > 0))
		return bad(at, "measured_ms",
			   "one of the measured times is null, so there is no measured gain");
	return 0;
}

static int take_entries(const json_t *root, struct cairn_json_at at, struct cairn_plan_file *plan,
			bool measured)
{
	json_t *entries = NULL;
	char where[32];
	size_t num;

	CAIRN_TRY(cairn_json_child(root, at, "entries", true, JSON_ARRAY, &entries));
	num = json_array_size(entries);
	if (num > CAIRN_SEARCH_MOST_ENTRIES)
		return bad(at, "entries", "has too many objects");
	plan->entries = calloc(num ? num : 1, sizeof(*plan->entries));
	if (!plan->entries)
		return cairn_error(ENOMEM, "%s: out of memory", at.file);
	for (size_t i = 0; i < num; i++) {
		snprintf(where, sizeof(where), "entries[%zu].", i);
		CAIRN_TRY(take_entry(json_array_get(entries, i), (struct cairn_json_at){ at.file, where },
				     plan, measured, &plan->entries[i]));
		plan->num_entries++;
	}
	return 0;
}

static int must_be(struct cairn_json_at at, const char *key, const char *got, const char *want)
{
	return strcmp(got, want) ? cairn_error(EINVAL, "%s: %s: the plan is for %s, not for %s", at.file, key,
					       CAIRN_QUOTED(got), CAIRN_QUOTED(want)) : 0;
}

static int take_plan(const json_t *root, struct cairn_json_at at, const struct cairn_plan_file_for *want,
		     struct cairn_plan_file *plan)
{
	int32_t v;

	CAIRN_TRY(take_int32(root, at, "v", CAIRN_PLAN_FILE_VERSION, CAIRN_PLAN_FILE_VERSION, &v));
	CAIRN_TRY(take_text(root, at, "gpu", plan->gpu, sizeof(plan->gpu)));
	CAIRN_TRY(take_text(root, at, "impl", plan->impl, sizeof(plan->impl)));
	CAIRN_TRY(take_text(root, at, "kernels", plan->kernels, sizeof(plan->kernels)));
	CAIRN_TRY(take_text(root, at, "shape", plan->shape, sizeof(plan->shape)));
	CAIRN_TRY(take_int32(root, at, "ranks", 1, CAIRN_SEARCH_MOST_SMS, &plan->ranks));
	CAIRN_TRY(take_int32(root, at, "sms", 1, CAIRN_SEARCH_MOST_SMS, &plan->sms));
	/* first, because the name of the table and the shape depend on the ranks */
	if (plan->ranks != want->ranks && !FAULT(OTHER_RANKS))
		return cairn_error(EINVAL, "%s: ranks: the plan is for %d, not for %d", at.file, plan->ranks,
				   want->ranks);
	if (!FAULT(OTHER_GPU))
		CAIRN_TRY(must_be(at, "gpu", plan->gpu, want->gpu));
	CAIRN_TRY(must_be(at, "impl", plan->impl, want->impl));
	if (!FAULT(OTHER_DIGEST))
		CAIRN_TRY(must_be(at, "kernels", plan->kernels, want->kernels));
	if (!FAULT(OTHER_SHAPE))
		CAIRN_TRY(must_be(at, "shape", plan->shape, want->shape));
	return take_entries(root, at, plan, want->measured);
}

void cairn_plan_file_free(struct cairn_plan_file *plan)
{
	if (!plan)
		return;
	free(plan->entries);
	free(plan);
}

int cairn_plan_file_parse(struct cairn_plan_file **out, const char *text, size_t num_bytes, const char *path,
			  const struct cairn_plan_file_for *want)
{
	struct cairn_plan_file *plan = calloc(1, sizeof(*plan));
	json_t *root = NULL;
	int ret = plan ? cairn_json_parse(text, num_bytes, path, false, &root) :
		  cairn_error(ENOMEM, "%s: out of memory", path);

	if (!ret)
		ret = take_plan(root, (struct cairn_json_at){ path, "" }, want, plan);
	json_decref(root);
	if (ret) {
		cairn_plan_file_free(plan);
		return ret;
	}
	plan->digest = cairn_digest(CAIRN_DIGEST_START, text, num_bytes) | 1;
	*out = plan;
	return 0;
}

int cairn_plan_file_read(struct cairn_plan_file **out, const char *path,
			 const struct cairn_plan_file_for *want)
{
	char *text;
	size_t num_bytes;
	int ret;

	CAIRN_TRY(cairn_read_file(path, MOST_BYTES, &text, &num_bytes));
	ret = cairn_plan_file_parse(out, text, num_bytes, path, want);
	free(text);
	return ret;
}

bool cairn_plan_file_has_gain(const struct cairn_plan_file_entry *e)
{
	return FAULT(GAIN_IGNORED) ||
	       (e->measured_ms > 0 &&
		e->measured_sequential_ms >= CAIRN_SEARCH_LEAST_GAIN * e->measured_ms);
}

/* How far a pass is from an entry: in eighths of decoding rows, and in powers of two of the context. */
struct distance {
	double share, context;
};

static int fits(const struct cairn_plan_file_entry *e, int32_t rows, const struct distance *d)
{
	return (e->rows <= rows || FAULT(MORE_ROWS)) &&
	       (rows <= CAIRN_PLAN_FILE_MOST_ROWS * e->rows || FAULT(FAR_ROWS)) &&
	       (d->share <= 0.5 || FAULT(ANY_SHARE)) && (d->context <= 0.5 || FAULT(ANY_CONTEXT));
}

static int is_better(const struct cairn_plan_file_entry *a, const struct distance *x,
		     const struct cairn_plan_file_entry *b, const struct distance *y)
{
	if (a->rows != b->rows)
		return a->rows > b->rows;
	return x->share != y->share ? x->share < y->share : x->context < y->context;
}

const struct cairn_plan_file_entry *cairn_plan_file_pick(const struct cairn_plan_file *plan, int32_t rows,
							  int32_t decode, int32_t context)
{
	const struct cairn_plan_file_entry *best = NULL;
	struct distance least = { 0, 0 };

	for (int32_t i = 0; i < plan->num_entries; i++) {
		const struct cairn_plan_file_entry *e = &plan->entries[i];
		struct distance d = { fabs(e->decode_eighths - 8.0 * decode / rows),
				      decode ? fabs(log2(e->context) - log2(context > 0 ? context : 1)) : 0 };

		if (!cairn_plan_file_has_gain(e) || !fits(e, rows, &d))
			continue;
		if (best && !is_better(e, &d, best, &least))
			continue;
		best = e;
		least = d;
	}
	return best;
}
