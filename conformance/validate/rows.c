// SPDX-License-Identifier: Apache-2.0
/* rows - the rows that the processes of devices report, under construction */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/validate/rates.h"
#include "conformance/validate/validate.h"
#include "primitives/base/error.h"

enum { MAX_REMEMBERED = 32 };	/* findings of a row */

json_t *validate_row(const char *test, int required)
{
	return json_pack("{s:s, s:s, s:b, s:s, s:[]}", "test", test, "verdict", "pass", "required", required,
			 "text", "", "findings");
}

enum validate_verdict validate_verdict_of(const json_t *row)
{
	const char *name = json_string_value(json_object_get(row, "verdict"));
	int v = VALIDATE_PASS;

	/* a row without memory for its verdict has shown nothing */
	if (!name)
		return VALIDATE_NOT_RUN;
	while (v < VALIDATE_FAIL && strcmp(validate_verdict_name(v), name))
		v++;
	return v;
}

void validate_set(json_t *row, enum validate_verdict v, const char *fmt, ...)
{
	char text[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	json_object_set_new(row, "verdict", json_string(validate_verdict_name(v)));
	json_object_set_new(row, "text", json_string(text));
}

json_t *validate_finding(json_t *row, enum validate_verdict v, const char *again, const char *fmt, ...)
{
	char text[512];
	va_list args;
	json_t *f;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	f = json_pack("{s:s, s:s, s:s?}", "verdict", validate_verdict_name(v), "text", text, "again", again);
	json_array_append_new(json_object_get(row, "findings"), f);
	if (v > validate_verdict_of(row))
		json_object_set_new(row, "verdict", json_string(validate_verdict_name(v)));
	return f;
}

void validate_figure(const struct validate_device *d, json_t *row, const char *name, const double *v,
		     int32_t n)
{
	json_t *figures = json_object_get(row, "figures"), *list = json_array();
	double windows[VALIDATE_WINDOWS];
	int32_t num = validate_windows(v, n, windows);

	if (d->opt->shared) {
		json_decref(list);
		return;
	}
	if (!figures) {
		figures = json_object();
		json_object_set_new(row, "figures", figures);
	}
	for (int32_t i = 0; i < num; i++)
		json_array_append_new(list, json_real(windows[i]));
	json_object_set_new(figures, name, list);
}

/*
 * Adds what earlier turns of a longer run have found to the row, which replaces theirs. The rows of screens
 * and of health need no such memory, because they are about the whole run.
 */
static void remember(struct validate_device *d, json_t *row)
{
	json_t *old = json_object_get(d->found, d->test->name), *f;
	json_t *findings = json_object_get(row, "findings");
	size_t i;

	if (d->test->kind == VALIDATE_ALL_TURNS)
		return;
	json_array_foreach(old, i, f) {
		enum validate_verdict v = validate_verdict_of(f);

		if (json_array_size(findings) >= MAX_REMEMBERED)
			break;
		json_array_append(findings, f);
		if (v > validate_verdict_of(row))
			json_object_set_new(row, "verdict", json_string(validate_verdict_name(v)));
	}
	json_object_set_new(d->found, d->test->name, json_deep_copy(findings));
}

int validate_report(struct validate_device *d, json_t *row)
{
	char *line;

	if (row && d->test)
		remember(d, row);
	line = row ? json_dumps(row, JSON_COMPACT) : NULL;

	json_decref(row);
	if (!line)
		return cairn_error(ENOMEM, "no memory for a row");
	fprintf(d->out, "R %s\n", line);
	free(line);
	return 0;
}

int validate_not_run(struct validate_device *d, const struct validate_test *t, const char *why)
{
	json_t *row = validate_row(t->name, t->required);

	validate_set(row, VALIDATE_NOT_RUN, "%s", why);
	return validate_report(d, row);
}
