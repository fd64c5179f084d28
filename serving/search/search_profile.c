// SPDX-License-Identifier: Apache-2.0
/* search_profile - reads a profile */
#include "serving/search/search_profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

enum { MOST_BYTES = 64 << 20 };

const char *const cairn_search_how_names[] = { "alone", "streams", "green", "queue", "coresident",
					       "priority", NULL };
const char *const cairn_search_kind_names[] = { "compute", "memory", "network", NULL };

struct part {			/* one operation of a case */
	char op[CAIRN_SEARCH_NAME];
	int32_t rows, context;
};

static int is_attn(const char *op)
{
	return !strcmp(op, "dec") || !strcmp(op, "pre");
}

/* Reads a number up to `end`, which must be all of the text. Returns 0 if it is none. */
static int32_t take_count(const char *text, const char *end)
{
	int64_t v = 0;

	if (text == end)
		return 0;
	for (; text < end; text++) {
		if (*text < '0' || *text > '9' || v > CAIRN_SEARCH_MOST_ROWS)
			return 0;
		v = v * 10 + *text - '0';
	}
	return v <= CAIRN_SEARCH_MOST_ROWS ? (int32_t)v : 0;
}

/* Returns the last occurrence of mark within text .. end, or NULL. */
static const char *find_last(const char *text, const char *end, const char *mark)
{
	size_t n = strlen(mark);

	for (size_t at = (size_t)(end - text); at >= n; at--)
		if (!memcmp(text + at - n, mark, n))
			return text + at - n;
	return NULL;
}

/* Reads NAME_mROWS, dec_bBATCH_kvCONTEXT or pre_mROWS_kvCONTEXT. Returns whether the text is one of them. */
static int take_part(const char *text, const char *end, struct part *part)
{
	const char *kv = find_last(text, end, "_kv"), *mark, *name_end;

	memset(part, 0, sizeof(*part));
	name_end = kv ? kv : end;
	mark = find_last(text, name_end, kv && end - text > 3 && !memcmp(text, "dec", 3) ? "_b" : "_m");
	if (!mark || mark == text || mark - text >= CAIRN_SEARCH_NAME)
		return 0;
	memcpy(part->op, text, (size_t)(mark - text));
	part->rows = take_count(mark + 2, name_end);
	part->context = kv ? take_count(kv + 3, end) : 0;
	return part->rows > 0 && is_attn(part->op) == (kv != NULL) && (!kv || part->context > 0);
}

/* Splits a case at its double underscores. Returns the number of operations, or -1. */
static int take_case(const char *text, struct part parts[3])
{
	int n = 0;

	for (;;) {
		const char *end = strstr(text, "__");

		if (n == 3 || !take_part(text, end ? end : text + strlen(text), &parts[n]))
			return -1;
		n++;
		if (!end)
			return n;
		text = end + 2;
	}
}

static enum cairn_search_kind kind_of(const struct part *part)
{
	return is_attn(part->op) ? CAIRN_SEARCH_MEMORY :
	       !strcmp(part->op, CAIRN_SEARCH_ALL_REDUCE) ? CAIRN_SEARCH_NETWORK : CAIRN_SEARCH_COMPUTE;
}

static int grow(void *array, int32_t num, size_t bytes)
{
	void *bigger;

	if (num & (num - 1))		/* the room is the next power of two */
		return 0;
	bigger = realloc(*(void **)array, (num ? (size_t)num * 2 : 1) * bytes);
	if (!bigger)
		return cairn_error(ENOMEM, "profile: out of memory");
	*(void **)array = bigger;
	return 0;
}

static int add_time(struct cairn_search_profile *p, const struct part *part, int32_t sms, double ms)
{
	struct cairn_search_time *t;

	for (int32_t i = 0; i < p->num_times; i++) {
		t = &p->times[i];
		if (!strcmp(t->op, part->op) && t->rows == part->rows && t->context == part->context &&
		    t->sms == sms) {
			t->ms = ms;
			return 0;
		}
	}
	CAIRN_TRY(grow(&p->times, p->num_times, sizeof(*p->times)));
	t = &p->times[p->num_times++];
	memset(t, 0, sizeof(*t));
	memcpy(t->op, part->op, sizeof(t->op));
	t->rows = part->rows;
	t->context = part->context;
	t->sms = sms;
	t->ms = ms;
	if (sms > p->sms)
		p->sms = sms;
	return 0;
}

/* Reads a share and checks that it is the quotient of the two times that the row gives. */
static int take_share(const json_t *row, struct cairn_json_at at, const char *key, double alone, double pair,
		      double *share)
{
	CAIRN_TRY(cairn_json_number(row, at, key, true, 0, 1.1, share));
	if (fabs(*share * pair - alone) > 0.01 * alone)
		return cairn_error(EINVAL, "%s: %s%s: %g, but the row's times give %g", at.file, at.where,
				   key, *share, alone / pair);
	if (*share > 1)
		*share = 1;
	return 0;
}

static int take_pair(struct cairn_search_profile *p, const json_t *row, struct cairn_json_at at,
		     const struct part parts[2], enum cairn_search_how how, int32_t sms_a, double alone_a)
{
	struct cairn_search_pair pair = { .ms = alone_a * 1e-6, .other = kind_of(&parts[1]), .how = how,
					  .sms_a = sms_a };
	double alone_b = 0, pair_a = 0, pair_b = 0;
	int64_t sms_b = 0;

	CAIRN_TRY(cairn_json_int(row, at, "sms_b", true, 1, CAIRN_SEARCH_MOST_SMS, &sms_b));
	pair.sms_b = (int32_t)sms_b;
	memcpy(pair.op, parts[0].op, sizeof(pair.op));
	CAIRN_TRY(cairn_json_number(row, at, "alone_b_ns", true, 0, 1e12, &alone_b));
	CAIRN_TRY(cairn_json_number(row, at, "pair_a_ns", true, 0, 1e12, &pair_a));
	CAIRN_TRY(cairn_json_number(row, at, "pair_b_ns", true, 0, 1e12, &pair_b));
	CAIRN_TRY(take_share(row, at, "r", alone_a, pair_a, &pair.r));
	CAIRN_TRY(take_share(row, at, "p", alone_b, pair_b, &pair.p));
	if (kind_of(&parts[0]) != CAIRN_SEARCH_COMPUTE || pair.other == CAIRN_SEARCH_COMPUTE)
		return 0;	/* it checks the table, and is no part of it */
	CAIRN_TRY(grow(&p->pairs, p->num_pairs, sizeof(*p->pairs)));
	p->pairs[p->num_pairs++] = pair;
	return 0;
}

static int take_same(const json_t *row, struct cairn_json_at at, const char *key, char *to, size_t room)
{
	const char *text = "";

	CAIRN_TRY(cairn_json_string(row, at, key, true, &text, NULL));
	if (!*text || strlen(text) >= room)
		return cairn_error(EINVAL, "%s: %s%s: must have 1 to %zu bytes", at.file, at.where, key,
				   room - 1);
	if (!*to)
		strcpy(to, text);
	else if (strcmp(to, text))
		return cairn_error(EINVAL, "%s: %s%s: %s, but the first row has %s", at.file, at.where, key,
				   CAIRN_QUOTED(text), CAIRN_QUOTED(to));
	return 0;
}

static int take_how(const json_t *row, struct cairn_json_at at, int parts, enum cairn_search_how *how)
{
	const char *text = "";
	int i = 0;

	CAIRN_TRY(cairn_json_string(row, at, "how", true, &text, NULL));
	while (cairn_search_how_names[i] && strcmp(cairn_search_how_names[i], text))
		i++;
	if (!cairn_search_how_names[i] || (i == CAIRN_SEARCH_ALONE) != (parts == 1))
		return cairn_error(EINVAL, "%s: %show: %s is no way to run %s", at.file, at.where,
				   CAIRN_QUOTED(text), parts == 1 ? "one operation" : "operations together");
	*how = (enum cairn_search_how)i;
	return 0;
}

static int take_row(struct cairn_search_profile *p, const json_t *row, struct cairn_json_at at)
{
	const char *op = "", *name = "";
	enum cairn_search_how how = CAIRN_SEARCH_ALONE;
	double alone = 0, rate = 0;
	int64_t v = 0, sms = 0;
	struct part parts[3];
	int n;

	CAIRN_TRY(cairn_json_int(row, at, "v", true, 1, 1, &v));
	CAIRN_TRY(cairn_json_string(row, at, "op", true, &op, NULL));
	if (strcmp(op, "interference"))
		return cairn_error(EINVAL, "%s: %sop: %s is not \"interference\"", at.file, at.where,
				   CAIRN_QUOTED(op));
	CAIRN_TRY(cairn_json_string(row, at, "case", true, &name, NULL));
	n = take_case(name, parts);
	if (n < 0)
		return cairn_error(EINVAL, "%s: %scase: %s does not name operations and their rows", at.file,
				   at.where, CAIRN_QUOTED(name));
	CAIRN_TRY(take_how(row, at, n, &how));
	CAIRN_TRY(take_same(row, at, "impl", p->impl, sizeof(p->impl)));
	CAIRN_TRY(take_same(row, at, "gpu", p->gpu, sizeof(p->gpu)));
	CAIRN_TRY(take_same(row, at, "kernels", p->kernels, sizeof(p->kernels)));
	if (json_object_get(row, "shape"))
		CAIRN_TRY(take_same(row, at, "shape", p->shape, sizeof(p->shape)));
	CAIRN_TRY(cairn_json_int(row, at, "sms_a", true, 1, CAIRN_SEARCH_MOST_SMS, &sms));
	CAIRN_TRY(cairn_json_number(row, at, "alone_a_ns", true, 0, 1e12, &alone));
	CAIRN_TRY(cairn_json_number(row, at, "tflops_a", false, 0, 1e6, &rate));
	if (rate > p->tflops)
		p->tflops = rate;
	rate = 0;
	CAIRN_TRY(cairn_json_number(row, at, n == 1 ? "gbps_a" : "gbps_b", false, 0, 1e6, &rate));
	if (rate > p->gbps)
		p->gbps = rate;
	rate = 0;
	CAIRN_TRY(cairn_json_number(row, at, "at_s", false, -1e-300, 1e9, &rate));
	if (rate > p->seconds)
		p->seconds = rate;
	if (n == 2)
		return take_pair(p, row, at, parts, how, (int32_t)sms, alone);
	return n == 1 ? add_time(p, &parts[0], (int32_t)sms, alone * 1e-6) : 0;
}

static int take_line(struct cairn_search_profile *p, const char *path, int line, const char *text, size_t len)
{
	char where[32], file[512];
	json_t *row;
	int ret;

	snprintf(file, sizeof(file), "%s: line %d", path, line);
	CAIRN_TRY(cairn_json_parse(text, len, file, false, &row));
	snprintf(where, sizeof(where), "line %d: ", line);
	ret = take_row(p, row, (struct cairn_json_at){ path, where });
	json_decref(row);
	return ret;
}

int cairn_search_profile_parse(struct cairn_search_profile **out, const char *text, size_t num_bytes,
			       const char *path)
{
	struct cairn_search_profile *p = calloc(1, sizeof(*p));
	int ret = p ? 0 : cairn_error(ENOMEM, "%s: out of memory", path), line = 0;

	for (size_t at = 0, n; !ret && at < num_bytes; at += n + 1) {
		const char *end = memchr(text + at, '\n', num_bytes - at);

		n = end ? (size_t)(end - text) - at : num_bytes - at;
		line++;
		if (!end)
			ret = cairn_error(EINVAL, "%s: line %d: truncated: it has no newline", path, line);
		else
			ret = take_line(p, path, line, text + at, n);
	}
	if (!ret && !p->num_times)
		ret = cairn_error(EINVAL, "%s: no row of an operation alone", path);
	if (ret) {
		cairn_search_profile_free(p);
		return ret;
	}
	*out = p;
	return 0;
}

int cairn_search_profile_read(struct cairn_search_profile **out, const char *path)
{
	char *text;
	size_t num_bytes;
	int ret;

	CAIRN_TRY(cairn_read_file(path, MOST_BYTES, &text, &num_bytes));
	ret = cairn_search_profile_parse(out, text, num_bytes, path);
	free(text);
	return ret;
}

void cairn_search_profile_free(struct cairn_search_profile *p)
{
	if (!p)
		return;
	free(p->times);
	free(p->pairs);
	free(p);
}
