// SPDX-License-Identifier: Apache-2.0
/* report - prints the results of `cairn validate`, and writes them as JSON records and as JUnit XML */
#include <string.h>
#include <unistd.h>

#include <sha2.h>

#include "conformance/suite/runner.h"
#include "conformance/tables/program.h"
#include "conformance/validate/result.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

const char *validate_text(const json_t *object, const char *key)
{
	const char *s = json_string_value(json_object_get(object, key));

	return s ? s : "";
}

static void hash_text(const char *text, char id[17])
{
	char hex[SHA256_DIGEST_STRING_LENGTH];
	SHA2_CTX s;

	SHA256Init(&s);
	SHA256Update(&s, (const uint8_t *)text, strlen(text));
	SHA256End(&s, hex);
	memcpy(id, hex, 16);
	id[16] = 0;
}

/*
 * Sets the names of the device and of its node in records. With another key, the machine's own id, the hashes
 * say nothing about either.
 */
static void identify(const struct validate_result *d, char id[17], char node[17])
{
	char machine[64] = "", text[512];
	FILE *f = fopen("/etc/machine-id", "r");

	if (f && !fgets(machine, sizeof(machine), f))
		machine[0] = 0;
	if (f)
		fclose(f);
	snprintf(text, sizeof(text), "cairn validate\n%s\n%s\n%s\n%d", machine, validate_text(d->who, "uuid"),
		 validate_text(d->who, "pci"), d->number);
	hash_text(text, id);
	snprintf(text, sizeof(text), "cairn validate node\n%s", machine);
	hash_text(text, node);
}

static int write_record(FILE *f, const struct validate_result *d, const json_t *row)
{
	char id[17], node[17], host[256] = "";
	json_t *r = json_pack("{s:i, s:s, s:s, s:s, s:i, s:s, s:s, s:I}", "v", 1, "op", "validate", "case",
			      validate_text(row, "test"), "impl", d->opt->impl, "device", d->number, "gpu",
			      validate_text(d->who, "gpu"), "source", cairn_source_digest(), "seed",
			      (json_int_t)d->opt->seed);
	int ret;

	identify(d, id, node);
	json_object_set_new(r, "id", json_string(id));
	json_object_set_new(r, "driver", json_string(validate_text(d->who, "driver")));
	json_object_set(r, "config", json_object_get(d->who, "config"));
	json_object_set_new(r, "node", json_string(node));
	if (d->opt->identify) {
		gethostname(host, sizeof(host) - 1);
		json_object_set(r, "uuid", json_object_get(d->who, "uuid"));
		json_object_set(r, "pci", json_object_get(d->who, "pci"));
		json_object_set_new(r, "host", json_string(host));
	}
	json_object_update(r, (json_t *)row);
	ret = !r || json_dumpf(r, f, JSON_COMPACT) || fputc('\n', f) < 0;
	json_decref(r);
	return ret ? cairn_error(EIO, "--json: a record cannot be written") : 0;
}

/* Writes text with the characters that XML reserves as entities. */
static void write_xml(FILE *f, const char *text)
{
	for (; *text; text++) {
		const char *entity = *text == '<' ? "&lt;" : *text == '&' ? "&amp;" : *text == '"' ?
				     "&quot;" : NULL;

		if (entity)
			fputs(entity, f);
		else
			fputc((unsigned char)*text < 0x20 ? ' ' : *text, f);
	}
}

static void write_case(FILE *f, const struct validate_result *d, const json_t *row)
{
	enum validate_verdict v = validate_verdict_of(row);
	const json_t *finding;
	size_t i;

	fprintf(f, "<testcase classname=\"validate.device%d\" name=\"", d->number);
	write_xml(f, validate_text(row, "test"));
	fprintf(f, "\">");
	if (v == VALIDATE_FAIL) {
		fprintf(f, "<failure message=\"");
		write_xml(f, validate_text(row, "text"));
		fprintf(f, "\">");
		json_array_foreach(json_object_get(row, "findings"), i, finding) {
			write_xml(f, validate_text(finding, "text"));
			fputc('\n', f);
		}
		fprintf(f, "</failure>");
	} else if (v == VALIDATE_NOT_RUN) {
		fprintf(f, "<skipped message=\"");
		write_xml(f, validate_text(row, "text"));
		fprintf(f, "\"/>");
	}
	fprintf(f, "</testcase>\n");
}

static void print_device(const struct validate_result *d)
{
	const char *test;
	json_t *row, *finding;
	size_t i;

	printf("device %d: %s\n", d->number, d->who ? validate_text(d->who, "gpu") : "unknown");
	json_object_foreach(d->rows, test, row)
		printf("  %-8s %-19s %s\n", validate_text(row, "verdict"), test, validate_text(row, "text"));
	json_object_foreach(d->rows, test, row)
		json_array_foreach(json_object_get(row, "findings"), i, finding) {
			printf("  %s: %s: %s\n", validate_text(finding, "verdict"), test,
			       validate_text(finding, "text"));
			if (*validate_text(finding, "again"))
				printf("    again: %s\n", validate_text(finding, "again"));
		}
}

/* ---- what a pass excludes ---- */

enum { MAX_COUNTED = 16 };

/* Adds up the operations of all rows by what they count. Returns how many kinds there are. */
static int32_t add_up(const struct validate_result *d, const char *counts[], double operations[])
{
	int32_t num = 0;
	const char *test;
	json_t *row;

	json_object_foreach(d->rows, test, row) {
		const char *what = validate_text(row, "counts");
		int32_t i = 0;

		while (i < num && strcmp(counts[i], what))
			i++;
		if (!*what || i == MAX_COUNTED || validate_verdict_of(row) == VALIDATE_NOT_RUN)
			continue;
		if (i == num) {
			counts[num] = what;
			operations[num++] = 0;
		}
		operations[i] += json_number_value(json_object_get(row, "operations"));
	}
	return num;
}

static int has_failed(const struct validate_result *d)
{
	const char *test;
	json_t *row;

	json_object_foreach(d->rows, test, row)
		if (validate_verdict_of(row) == VALIDATE_FAIL)
			return 1;
	return 0;
}

/*
 * Prints which error rates a pass excludes: for each kind of operation, by the device that has done the
 * fewest. Devices with a failed test are left out.
 */
static void print_exclusions(const struct validate_result *devices, int num)
{
	const char *counts[MAX_COUNTED];
	double operations[MAX_COUNTED];
	int32_t n = 0;

	for (int i = 0; i < num; i++) {
		const char *other[MAX_COUNTED];
		double more[MAX_COUNTED];
		int32_t have = has_failed(&devices[i]) ? 0 : add_up(&devices[i], other, more);

		for (int32_t k = 0; k < have; k++) {
			int32_t at = 0;

			while (at < n && strcmp(counts[at], other[k]))
				at++;
			if (at == MAX_COUNTED)
				continue;
			if (at == n || more[k] < operations[at])
				operations[at] = more[k];
			counts[at] = other[k];
			n += at == n;
		}
	}
	if (n)
		printf("A pass excludes, with 95%% confidence and for every unit, error rates above\n");
	for (int32_t k = 0; k < n; k++) {
		printf("  %.1e for one %s", validate_excludes(operations[k]), counts[k]);
		/* one wrong byte is a fault; a unit takes two wrong results, so the rate found is higher */
		if (strcmp(counts[k], "byte read back"))
			printf(" (from %.1e on, 99 of 100 runs find the unit)",
			       validate_finds(operations[k]));
		printf("\n");
	}
	if (n)
		printf("but no fault that is rarer, that shows only after hours, in more heat or with other\n"
		       "inputs, or that lies in circuits that no test uses.\n");
}

int validate_print(const struct validate_options *opt, struct validate_result *devices, int num, FILE *json,
		  FILE *junit)
{
	struct validate_tally tally = { { 0 }, 0 };
	int ret = 0;

	if (junit)
		fprintf(junit,
			"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"cairn validate\">\n");
	for (int i = 0; i < num; i++) {
		const char *test;
		json_t *row;

		print_device(&devices[i]);
		json_object_foreach(devices[i].rows, test, row) {
			validate_tally_add(&tally, validate_verdict_of(row),
					   json_is_true(json_object_get(row, "required")));
			if (json && !ret)
				ret = write_record(json, &devices[i], row);
			if (junit)
				write_case(junit, &devices[i], row);
		}
	}
	if (junit)
		fprintf(junit, "</testsuite>\n");
	print_exclusions(devices, num);
	printf("%d passed, %d warned, %d failed, %d did not run\n", tally.num[VALIDATE_PASS],
	       tally.num[VALIDATE_WARN], tally.num[VALIDATE_FAIL], tally.num[VALIDATE_NOT_RUN]);
	if (ret) {
		fprintf(stderr, "cairn validate: %s\n", cairn_last_error());
		return CAIRN_EXIT_FAILED;
	}
	return validate_exit(&tally, opt->strict);
}
