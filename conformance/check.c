// SPDX-License-Identifier: Apache-2.0
/*
 * check - `cairn check`: every selected case on every selected table
 */
#include <stdlib.h>
#include <string.h>

#include "op_case.h"
#include "registry.h"
#include "runner.h"

struct child {
	FILE *out;
	const struct cairn_family *f;
	const struct cairn_impl *impl;
	const struct cairn_options *opt;
	void *stream;
	const char *no_device;		/* why everything is skipped, or NULL */
	uint64_t seed;
	struct cairn_outcome outcome;
	uint8_t *takes;			/* --sanitize: what is run, in the order of cairn_each(); else NULL */
	int at;				/* in that order */
};

static void print_lines(FILE *out, const char *text)
{
	while (*text) {
		size_t n = strcspn(text, "\n");

		fprintf(out, "D %.*s\n", (int)n, text);
		text += n + (text[n] == '\n');
	}
}

static int has_op(const struct cairn_impl *impl, size_t offset)
{
	void *fn;

	memcpy(&fn, (const char *)impl + offset, sizeof(fn));
	return fn != NULL;
}

static int one_unit(struct child *c, const struct cairn_selected *s)
{
	char reason[256];

	switch (cairn_unit_run(&c->f->units[s->case_index], c->seed, c->out, reason, sizeof(reason))) {
	case CAIRN_UNIT_PASS:
		fprintf(c->out, "P %s 0 1\n", s->name);
		break;
	case CAIRN_UNIT_SKIP:
		fprintf(c->out, "S %s\t%s\n", s->name, reason);
		break;
	default:
		fprintf(c->out, "F %s\n", s->name);
	}
	return 0;
}

static int one_case(const struct cairn_selected *s, void *arg)
{
	struct child *c = arg;
	struct cairn_outcome *o = &c->outcome;
	const char *name, *waiver;
	int at = c->at++;

	fprintf(c->out, "B %s\n", s->name);
	if (s->what == CAIRN_SEL_UNIT)
		return one_unit(c, s);
	if (c->no_device) {
		fprintf(c->out, "S %s\t%s\n", s->name, c->no_device);
		return 0;
	}
	if (s->desc.device_only && (c->impl->flags & CAIRN_IMPL_HOST_MEM)) {
		fprintf(c->out, "S %s\ttoo large for a host table\n", s->name);
		return 0;
	}
	if (c->takes && !c->takes[at]) {
		fprintf(c->out, "S %s\tnot of the selection of --sanitize\n", s->name);
		return 0;
	}
	if (!has_op(c->impl, c->f->op)) {
		o->verdict = CAIRN_SKIP;
		snprintf(o->text, sizeof(o->text), "not in table %s\n", c->impl->name);
	} else if (s->what == CAIRN_SEL_REJECT) {
		cairn_op_reject(c->f, s->case_index, c->impl, c->stream, c->seed, &name, o);
	} else {
		struct cairn_op op;

		if (cairn_op_open(&op, c->f, s->case_index, s->kind, c->seed)) {
			o->verdict = CAIRN_FAIL;
			snprintf(o->text, sizeof(o->text), "%s\n", cairn_last_error());
		} else {
			cairn_op_verify(c->f, &op, c->impl, c->stream, o);
			cairn_op_close(&op);
		}
	}
	if (o->verdict == CAIRN_SKIP && !(c->impl->flags & CAIRN_IMPL_HOST_MEM) &&
	    cairn_list_match(&c->opt->mustpass, s->name)) {
		o->verdict = CAIRN_FAIL;
		fprintf(c->out, "D may not be skipped on a device (--mustpass):\n");
	}
	if (o->verdict == CAIRN_FAIL && (waiver = cairn_list_match(&c->opt->waivers, s->name))) {
		print_lines(c->out, o->text);
		fprintf(c->out, "S %s\twaived: %s\n", s->name, waiver);
		return 0;
	}
	switch (o->verdict) {
	case CAIRN_PASS:
		fprintf(c->out, "P %s %.3g %lld\n", s->name, o->err_over_bound, (long long)o->judged);
		return 0;
	case CAIRN_SKIP:
		o->text[strcspn(o->text, "\n")] = 0;
		fprintf(c->out, "S %s\t%s\n", s->name, o->text);
		return 0;
	default:
		print_lines(c->out, o->text);
		fprintf(c->out, "D again: %s check --impl %s --seed %llu '%s'\n", c->opt->program,
			c->impl->name, (unsigned long long)c->seed, s->name);
		fprintf(c->out, "F %s\n", s->name);
		return o->verdict == CAIRN_LOST;
	}
}

static int count_one(const struct cairn_selected *s, void *arg)
{
	(void)s;
	(*(int *)arg)++;
	return 0;
}

/* What runs under --sanitize */
static int plan(struct child *c)
{
	int total = 0;

	cairn_each(c->opt, c->f, count_one, &total);
	c->takes = malloc((size_t)total + 1);
	return !c->takes || cairn_sanitize_plan(c->opt, c->f, c->takes, total) < 0;
}

static void check_child(FILE *out, const struct cairn_family *f, const struct cairn_impl *impl,
			const struct cairn_options *opt, void *arg)
{
	struct child *c = calloc(1, sizeof(*c));
	int ret = 0, lost = 0;

	(void)arg;
	if (!c)
		return;
	c->out = out;
	c->f = f;
	c->impl = impl;
	c->opt = opt;
	if (opt->sanitize && f->num_cases && plan(c)) {
		fprintf(out, "D --sanitize: no memory\n");
		exit(3);
	}
	if (f->num_cases) {
		ret = cairn_impl_start(impl, opt->device);
		if (!ret)
			ret = impl->stream_create(&c->stream);
		if (ret)
			c->no_device = strdup(cairn_impl_error(impl));
		if (ret && ret != -ENODEV) {
			fprintf(out, "D %s: %s\n", impl->name, c->no_device);
			exit(3);
		}
	}
	for (int i = 0; i < opt->repeat && !lost; i++) {
		c->seed = opt->seed + (uint64_t)i;
		c->at = 0;
		lost = cairn_each(opt, f, one_case, c);
	}
	if (c->stream)
		impl->stream_destroy(c->stream);
	if (f->num_cases && !ret)
		cairn_impl_stop(impl);
	free((void *)c->no_device);
	free(c->takes);
	free(c);
	if (lost)
		exit(4);
}

struct tally {
	const struct cairn_options *opt;
	const struct cairn_family *f;
	const char *impl;		/* the name asked for, or NULL for units */
	FILE *json;
	struct cairn_totals here;
	double worst;
	char now[192];			/* the case underway */
	char skip_reason[256];
	int lines;			/* results seen */
};

static void record(struct tally *t, const char *name, const char *verdict, double ratio)
{
	if (t->json)
		fprintf(t->json, "{\"v\":1,\"check\":\"%s\",\"impl\":\"%s\",\"verdict\":\"%s\","
			"\"err_over_bound\":%.4g,\"seed\":%llu,\"source\":\"%s\"}\n", name,
			t->impl ? t->impl : "host", verdict, ratio, (unsigned long long)t->opt->seed,
			cairn_source_digest());
}

static void check_line(char *text, void *arg)
{
	struct tally *t = arg;
	char *rest = strchr(text, ' '), *tab;
	double ratio = 0;

	if (!rest)
		return;
	*rest++ = 0;
	tab = strchr(rest, '\t');
	switch (text[0]) {
	case 'B':
		snprintf(t->now, sizeof(t->now), "%s", rest);
		return;
	case 'D':
		printf("    # %s\n", rest);
		return;
	case 'P':
		rest[strcspn(rest, " ")] = 0;
		ratio = strtod(rest + strlen(rest) + 1, NULL);
		t->worst = ratio > t->worst ? ratio : t->worst;
		t->here.passed++;
		if (t->opt->verbose)
			printf("    ok %d - %s # err/bound %.3g\n", ++t->lines, rest, ratio);
		record(t, rest, "pass", ratio);
		break;
	case 'F':
		t->here.failed++;
		printf("    not ok %d - %s\n", ++t->lines, rest);
		record(t, rest, "fail", 0);
		break;
	case 'S':
		if (tab)
			*tab++ = 0;
		t->here.skipped++;
		snprintf(t->skip_reason, sizeof(t->skip_reason), "%s", tab ? tab : "");
		if (t->opt->verbose)
			printf("    ok %d - %s # SKIP %s\n", ++t->lines, rest, tab ? tab : "");
		record(t, rest, "skip", 0);
		break;
	}
	t->now[0] = 0;
}

static void run_family(struct tally *t, const struct cairn_impl *impl, int number, struct cairn_totals *sum)
{
	const char *death;
	int total = 0, done;

	cairn_each(t->opt, t->f, count_one, &total);
	total *= t->opt->repeat;
	death = cairn_run_child(check_child, t->f, impl, t->opt, NULL, check_line, t);
	done = t->here.passed + t->here.failed + t->here.skipped;
	if (!death && done < total)
		death = "EXIT before the end";
	if (death) {
		printf("    # %s, at %s\n", death, t->now[0] ? t->now : "(between cases)");
		if (t->now[0])
			printf("    not ok %d - %s # %s\n", ++t->lines, t->now, death);
		if (total - done > 1)
			printf("    # %d further cases were not run and count as failed\n",
			       total - done - (t->now[0] != 0));
		t->here.failed += total - done > 0 ? total - done : 1;
	}
	printf("%s %d - %s%s%s.%s # %d passed, %d failed, %d skipped", t->here.failed ? "not ok" : "ok",
	       number, t->impl ? t->impl : "", t->impl ? ":" : "", t->f->stage, t->f->name, t->here.passed,
	       t->here.failed, t->here.skipped);
	if (t->worst > 0)
		printf(", worst err/bound %.2f", t->worst);
	if (t->here.skipped && !t->here.passed && !t->here.failed)
		printf(" # SKIP %s", t->skip_reason);
	printf("\n");
	fflush(stdout);
	sum->passed += t->here.passed;
	sum->failed += t->here.failed;
	sum->skipped += t->here.skipped;
}

int cairn_cmd_check(const struct cairn_options *opt)
{
	struct cairn_impl impls[ARRAY_SIZE(opt->impls)];
	struct cairn_totals sum = { 0, 0, 0 };
	FILE *json = NULL;
	int number = 0, lost;

	for (int k = 0; k < opt->num_impls; k++) {
		int ret = cairn_impl_open(opt->impls[k], &impls[k]);

		if (ret == -ENODEV && !strcmp(opt->impls[k], "cuda")) {
			/* a build without CUDA still counts its cases, as skipped */
			impls[k] = cairn_host_runtime;
			impls[k].name = "cuda";
		} else if (ret) {
			fprintf(stderr, "cairn check: %s\n", cairn_last_error());
			return 2;
		}
	}
	if (opt->json && !(json = fopen(opt->json, "a"))) {
		fprintf(stderr, "cairn check: --json: %s: cannot be written\n", opt->json);
		return 2;
	}
	printf("TAP version 14\n# seed %llu, source %s\n", (unsigned long long)opt->seed,
	       cairn_source_digest());
	for (const struct cairn_family *const *f = cairn_families(); *f; f++) {
		int num = (*f)->num_cases ? opt->num_impls : 1;

		if (!cairn_family_selected(opt, *f))
			continue;
		for (int k = 0; k < num; k++) {
			struct tally t = { .opt = opt, .f = *f, .json = json };

			t.impl = (*f)->num_cases ? impls[k].name : NULL;
			run_family(&t, &impls[k], ++number, &sum);
		}
	}
	printf("1..%d\n", number);
	lost = cairn_close_json(json, opt, "check");
	if (number == 0) {
		fprintf(stderr, "cairn check: no case matches\n");
		return 2;
	}
	printf("%d passed, %d failed, %d skipped\n", sum.passed, sum.failed, sum.skipped);
	return sum.failed || lost ? 1 : 0;
}
