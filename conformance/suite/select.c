// SPDX-License-Identifier: Apache-2.0
/* select - chooses and orders the cases that the globs and options of a command select */
#include <errno.h>
#include <fnmatch.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/draw.h"
#include "conformance/suite/op_case.h"
#include "conformance/suite/runner.h"

static const char *const kind_names[CAIRN_NUM_KINDS] = { "exact", "normal", "extreme", "poison" };

/*
 * Returns whether glob matches the case's name, either the whole name or its beginning up to a dot:
 * primitives, *.rmsnorm.
 */
static int match_one(const char *glob, const char *name)
{
	char longer[256];

	if (!fnmatch(glob, name, 0))
		return 1;
	snprintf(longer, sizeof(longer), "%s.*", glob);
	return !fnmatch(longer, name, 0);
}

int cairn_glob_match(const struct cairn_options *opt, const struct cairn_family *f, const char *name)
{
	const char *short_name = name + strlen(f->stage) + 1;

	for (int i = 0; i < opt->num_skips; i++)
		if (match_one(opt->skips[i], name) || match_one(opt->skips[i], short_name))
			return 0;
	for (int i = 0; i < opt->num_globs; i++)
		if (match_one(opt->globs[i], name) || match_one(opt->globs[i], short_name))
			return 1;
	return opt->num_globs == 0;
}

/* Returns a case's kinds: all or, with opt->one_kind, one of them, by the case's number. */
static unsigned kinds_of(const struct cairn_options *opt, const struct cairn_selected *s)
{
	const int num = __builtin_popcount(s->desc.kinds);
	int turn = num ? s->case_index % num : 0;

	if (!opt->one_kind || !num)
		return s->desc.kinds;
	for (int kind = 0; ; kind++)
		if ((s->desc.kinds & CAIRN_KIND_BIT(kind)) && turn-- == 0)
			return CAIRN_KIND_BIT(kind);
}

/* Calls fn for each kind of the case that s describes. */
static int each_kind(const struct cairn_options *opt, const struct cairn_family *f, struct cairn_selected *s,
		     cairn_each_fn fn, void *arg)
{
	const unsigned kinds = kinds_of(opt, s);
	int ret;

	for (int kind = 0; kind < CAIRN_NUM_KINDS; kind++) {
		if (!(kinds & CAIRN_KIND_BIT(kind)))
			continue;
		s->kind = kind;
		snprintf(s->name, sizeof(s->name), "%s.%s.%s.%s", f->stage, f->name, s->desc.name,
			 kind_names[kind]);
		if (cairn_glob_match(opt, f, s->name) && (ret = fn(s, arg)))
			return ret;
	}
	return 0;
}

static int one_drawn(const struct cairn_options *opt, const struct cairn_family *f, int number,
		     cairn_each_fn fn, void *arg)
{
	struct cairn_selected s = { .what = CAIRN_SEL_CASE, .case_index = f->num_cases + number,
				    .seed = opt->seed };

	cairn_draw_describe(f, number, &s.desc);
	return each_kind(opt, f, &s, fn, arg);
}

/* Calls fn for the cases that the seed draws, and for those that a glob names by their numbers. */
static int each_drawn(const struct cairn_options *opt, const struct cairn_family *f, cairn_each_fn fn,
		      void *arg)
{
	int first = cairn_draw_first(opt->seed), num = opt->drawn, ret = 0;

	if (num < 0)
		num = num == CAIRN_DRAWN_MANY ? f->draw->many : f->draw->few ? f->draw->few : 2;
	for (int i = 0; i < opt->num_globs && !ret; i++) {
		int number = cairn_draw_named(opt->globs[i]);

		if (number >= 0 && (number < first || number >= first + num))
			ret = one_drawn(opt, f, number, fn, arg);
	}
	for (int i = 0; i < num && !ret; i++)
		ret = one_drawn(opt, f, first + i, fn, arg);
	return ret;
}

int cairn_each(const struct cairn_options *opt, const struct cairn_family *f, cairn_each_fn fn, void *arg)
{
	struct cairn_selected s;
	const char *name;
	int ret;

	for (int i = 0; i < f->num_units; i++) {
		s = (struct cairn_selected){ .seed = opt->seed };
		s.what = CAIRN_SEL_UNIT;
		s.case_index = i;
		snprintf(s.name, sizeof(s.name), "%s.%s.%s", f->stage, f->name, f->units[i].name);
		if (cairn_glob_match(opt, f, s.name) && (ret = fn(&s, arg)))
			return ret;
	}
	for (int i = 0; i < f->num_cases; i++) {
		s = (struct cairn_selected){ .seed = opt->seed };
		f->describe(i, &s.desc);
		s.case_index = i;
		s.what = CAIRN_SEL_CASE;
		if (!s.desc.kinds)
			s.desc.kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
		if ((ret = each_kind(opt, f, &s, fn, arg)))
			return ret;
	}
	if (f->draw && (ret = each_drawn(opt, f, fn, arg)))
		return ret;
	for (int i = CAIRN_REJECT_UNKNOWN; f->num_cases; i++) {
		int more = cairn_op_reject_name(f, i, &name);

		if (more <= 0)
			return more;
		s = (struct cairn_selected){ .seed = opt->seed };
		s.what = CAIRN_SEL_REJECT;
		s.case_index = i;
		snprintf(s.name, sizeof(s.name), "%s.%s.reject_%s", f->stage, f->name, name);
		if (cairn_glob_match(opt, f, s.name) && (ret = fn(&s, arg)))
			return ret;
	}
	return 0;
}

static int say_yes(const struct cairn_selected *s, void *arg)
{
	(void)s;
	(void)arg;
	return 1;
}

int cairn_family_selected(const struct cairn_options *opt, const struct cairn_family *f)
{
	return cairn_each(opt, f, say_yes, NULL);
}

int cairn_timeout_s(const struct cairn_options *opt, const struct cairn_family *f)
{
	const char *env = getenv("CAIRN_TIMEOUT");
	int s = f->timeout_s ? f->timeout_s : 300;

	if (env && atoi(env) > 0)
		return atoi(env);
	return opt->sanitize ? 4 * s : s;
}

int cairn_num_processors(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

int cairn_close_output(FILE *f, const char *command, const char *option, const char *path)
{
	int lost;

	if (!f)
		return 0;
	lost = ferror(f);
	if (!fclose(f) && !lost)
		return 0;
	fprintf(stderr, "cairn %s: --%s: %s: cannot be written\n", command, option, path);
	return -EIO;
}

double cairn_cost(const struct cairn_selected *s)
{
	return s->what == CAIRN_SEL_CASE ? s->desc.flops + 16 * s->desc.bytes : 0;
}

int cairn_name_apart(const struct cairn_options *opt, struct cairn_impl *impls)
{
	char *names[CAIRN_MAX_IMPLS] = { NULL };

	for (int k = 0; k < opt->num_impls; k++) {
		int same = 0, path_same = 0;
		char name[400];

		for (int i = 0; i < opt->num_impls; i++) {
			same += !strcmp(impls[i].name, impls[k].name);
			path_same += i < k && !strcmp(opt->impls[i], opt->impls[k]);
		}
		if (same == 1)
			continue;
		if (path_same)
			snprintf(name, sizeof(name), "%s#%d", impls[k].name, path_same + 1);
		else if (strchr(opt->impls[k], '/'))
			snprintf(name, sizeof(name), "%s(%.300s)", impls[k].name, opt->impls[k]);
		else
			continue;
		for (char *c = name; *c; c++)
			/* names are written to lines and records without escaping (plugin.c) */
			if (*c < 0x20 || *c > 0x7e || *c == '"' || *c == '\\')
				*c = '?';
		names[k] = strdup(name);
		if (!names[k])
			return cairn_error(ENOMEM, "no memory for the names of the tables");
	}
	for (int k = 0; k < opt->num_impls; k++)
		if (names[k])
			impls[k].name = names[k];
	return 0;
}
