// SPDX-License-Identifier: Apache-2.0
/*
 * measure - rows of `cairn bench` that do not time an operation of a table
 *
 * A measure verifies and times something of its family and writes rows with cairn_row(). Each runs in its own
 * process, so that a crash, a hang or a lost device affects no other measure.
 */
#include <stdio.h>
#include <string.h>

#include "conformance/suite/runner.h"

static int is_selected(const struct cairn_options *opt, const struct cairn_family *f, int i)
{
	char name[224];

	snprintf(name, sizeof(name), "%s.%s.%s", f->stage, f->name, f->measures[i].name);
	return cairn_glob_match(opt, f, name);
}

int cairn_measures_selected(const struct cairn_options *opt, const struct cairn_family *f)
{
	int num = 0;

	for (int i = 0; i < f->num_measures; i++)
		num += is_selected(opt, f, i);
	return num;
}

/* The arguments of one process, which runs a measure. */
struct measure_call {
	const struct cairn_family *f;
	const struct cairn_unit *u;
	uint64_t seed;
	FILE *json;
	struct cairn_totals *sum;
};

static void measure_child(FILE *out, void *arg)
{
	const struct measure_call *c = arg;
	const struct cairn_family *f = c->f;
	const struct cairn_unit *u = c->u;
	char reason[256];

	switch (cairn_measure_run(f, u, c->seed, out, reason, sizeof(reason))) {
	case CAIRN_UNIT_PASS:
		break;
	case CAIRN_UNIT_SKIP:
		fprintf(out, "S %s.%s.%s: %s\n", f->stage, f->name, u->name, reason);
		break;
	default:
		fprintf(out, "F %s.%s.%s\n", f->stage, f->name, u->name);
	}
}

void cairn_bench_line(const char *text, FILE *json, struct cairn_totals *sum)
{
	switch (text[0]) {
	case 'J':
		if (json)
			fprintf(json, "%s\n", text + 2);
		return;
	case 'P':
		sum->passed++;
		puts(text + 2);
		break;
	case 'F':
		sum->failed++;
		printf("FAILED %s\n", text + 2);
		break;
	case 'S':
		sum->skipped++;
		printf("skipped %s\n", text + 2);
		break;
	case 'D':
		printf("# %s\n", text + 2);
		break;
	}
	fflush(stdout);
}

static void measure_line(char *text, void *arg)
{
	struct measure_call *c = arg;

	cairn_bench_line(text, c->json, c->sum);
}

void cairn_measures(const struct cairn_options *opt, const struct cairn_family *f, FILE *json,
		    struct cairn_totals *sum)
{
	for (int i = 0; i < f->num_measures; i++) {
		struct measure_call call = { f, &f->measures[i], opt->seed, json, sum };
		struct cairn_child child = { .run = measure_child, .line = measure_line, .arg = &call,
			.timeout_s = cairn_timeout_s(opt, f) };
		const char *death;

		if (!is_selected(opt, f, i))
			continue;
		death = cairn_child_run(&child);
		if (!death)
			continue;
		printf("FAILED %s.%s.%s: %s\n", f->stage, f->name, f->measures[i].name, death);
		fflush(stdout);
		sum->failed++;
	}
}
