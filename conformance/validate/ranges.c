// SPDX-License-Identifier: Apache-2.0
/*
 * ranges - compares a device's figures with those that GPUs of the same model had in records
 *
 * Each model has a file, which validate_ranges.py makes from records:
 *
 *   {"gpu": NAME, "configurations": [{"config": {"mem_gib", "limit_w", "ecc", "mig", "branch"},
 *     "gpus": N, "nodes": N, "provisional": BOOL,
 *     "figures": {TEST: {FIGURE: {"median", "mad", "low", "high"}}}}]}
 *
 * A device is compared with the first configuration that agrees with its own. A member that is null there was
 * not recorded, and agrees with everything.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "conformance/validate/rates.h"
#include "conformance/validate/result.h"

/* Writes the path of the model's file: its name in lower case, with '_' for all but letters and digits. */
static void file_of(const struct validate_result *d, char *path, size_t len)
{
	char name[80];
	size_t i = 0;

	for (const char *c = validate_text(d->who, "gpu"); *c && i < sizeof(name) - 1; c++)
		name[i++] = isalnum((unsigned char)*c) ? (char)tolower((unsigned char)*c) : '_';
	name[i] = 0;
	if (d->opt->ranges)
		snprintf(path, len, "%s/%s.json", d->opt->ranges, name);
	else
		snprintf(path, len, "%s/conformance/validate/ranges/%s.json", cairn_data_dir(), name);
}

static int agrees(const json_t *recorded, const json_t *config)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)recorded, key, value)
		if (!json_is_null(value) && !json_equal(value, json_object_get(config, key)))
			return 0;
	return json_is_object(recorded);
}

static const json_t *configuration_of(const struct validate_result *d, const json_t *file)
{
	const json_t *c;
	size_t i;

	json_array_foreach(json_object_get(file, "configurations"), i, c)
		if (agrees(json_object_get(c, "config"), json_object_get(d->who, "config")))
			return c;
	return NULL;
}

/* Compares one figure. Returns 1, or 0 if the range is not there or is no range. */
static int compare_figure(const json_t *c, const char *test, const char *name, const json_t *figure,
			  json_t *row)
{
	const json_t *r = json_object_get(json_object_get(json_object_get(c, "figures"), test), name);
	struct validate_range range = {
		json_number_value(json_object_get(r, "median")), json_number_value(json_object_get(r, "mad")),
		(int32_t)json_integer_value(json_object_get(c, "gpus")),
		(int32_t)json_integer_value(json_object_get(c, "nodes")),
	};
	double values[VALIDATE_WINDOWS], worse;
	int32_t n = (int32_t)json_array_size(figure);
	enum validate_verdict v;

	if (!(range.median > 0) || !(range.mad >= 0))
		return 0;
	n = n < VALIDATE_WINDOWS ? n : VALIDATE_WINDOWS;
	for (int32_t i = 0; i < n; i++)
		values[i] = json_number_value(json_array_get(figure, (size_t)i));
	worse = validate_beyond(values, n, &range, validate_more_is_better(name));
	v = validate_range_verdict(worse, &range);
	if (v != VALIDATE_PASS)
		validate_finding(row, v, NULL, "%s, %s: %.1f%% worse than the %.6g of %d GPUs", test, name,
				 100 * worse, range.median, range.gpus);
	return 1;
}

static void compare(const struct validate_result *d, const char *path, const json_t *file, json_t *row)
{
	const json_t *c = configuration_of(d, file);
	const char *test, *name;
	json_t *other, *figure;
	int gpus, num = 0;

	if (!c) {
		validate_set(row, VALIDATE_NOT_RUN, "%s has no range of this configuration", path);
		return;
	}
	json_object_foreach(d->rows, test, other)
		json_object_foreach(json_object_get(other, "figures"), name, figure)
			num += compare_figure(c, test, name, figure, row);
	gpus = (int)json_integer_value(json_object_get(c, "gpus"));
	json_object_set_new(row, "compared", json_integer(num));
	validate_set(row, num ? validate_verdict_of(row) : VALIDATE_NOT_RUN, "%d figures against %d GPU%s%s",
		     num, gpus, gpus == 1 ? "" : "s", gpus < VALIDATE_MIN_GPUS ? ", provisional" : "");
}

void validate_compare_ranges(struct validate_result *devices, int num)
{
	for (int i = 0; i < num; i++) {
		struct validate_result *d = &devices[i];
		json_t *row = validate_row("ranges", 0), *file;
		json_error_t error;
		char path[4200];

		file_of(d, path, sizeof(path));
		file = json_load_file(path, 0, &error);
		if (!*validate_text(d->who, "gpu"))
			validate_set(row, VALIDATE_NOT_RUN, "the device has not told its model");
		else if (d->opt->shared)
			validate_set(row, VALIDATE_NOT_RUN, "--shared: others use the device");
		else if (!file && access(path, F_OK))
			validate_set(row, VALIDATE_NOT_RUN, "no ranges of this model: %s: %s", path,
				     strerror(errno));
		else if (!file)
			validate_set(row, VALIDATE_NOT_RUN, "%s:%d: %s", path, error.line, error.text);
		else
			compare(d, path, file, row);
		json_decref(file);
		json_object_set_new(d->rows, "ranges", row);
	}
}
