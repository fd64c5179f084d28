// SPDX-License-Identifier: Apache-2.0
/*
 * mutants - `cairn check --mutants`: the suite proves its teeth
 *
 * Each mutant is the reference table with one operation replaced by a wrong one. The cases of its
 * family run until one fails; a mutant that passes them all fails the suite. Those whose names begin with
 * the word that the mutant's does (moe_fp8_transposed: moe's cases fp8_*) come first.
 */
#include <stdlib.h>
#include <string.h>

#include "op_case.h"
#include "registry.h"
#include "runner.h"

struct hunt {
	FILE *out;
	const struct cairn_family *f;
	struct cairn_impl impl;
	uint64_t seed;
	void *stream;
	struct cairn_outcome outcome;
	char caught_by[192];
	int ran, likely;
	const char *word;	/* of the mutant's name, and its length */
	size_t word_len;
};

static int is_likely(const struct hunt *h, const struct cairn_selected *s)
{
	return s->what == CAIRN_SEL_CASE && !strncmp(s->desc.name, h->word, h->word_len) &&
	       s->desc.name[h->word_len] == '_';
}

static int try_case(const struct cairn_selected *s, void *arg)
{
	struct hunt *h = arg;
	const char *name;
	struct cairn_op op;

	if (s->what == CAIRN_SEL_UNIT || s->desc.device_only || is_likely(h, s) != h->likely)
		return 0;
	fprintf(h->out, "B %s\n", s->name);
	h->ran++;
	if (s->what == CAIRN_SEL_REJECT) {
		cairn_op_reject(h->f, s->case_index, &h->impl, h->stream, h->seed, &name, &h->outcome);
	} else {
		if (cairn_op_open(&op, h->f, s->case_index, s->kind, h->seed))
			return 1;
		cairn_op_verify(h->f, &op, &h->impl, h->stream, &h->outcome);
		cairn_op_close(&op);
	}
	if (h->outcome.verdict == CAIRN_PASS || h->outcome.verdict == CAIRN_SKIP)
		return 0;
	snprintf(h->caught_by, sizeof(h->caught_by), "%s", s->name);
	return 1;
}

static const struct cairn_family *family_of(const struct cairn_mutant *m)
{
	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		if ((*f)->num_cases && (*f)->op == m->op)
			return *f;
	return NULL;
}

static void hunt_child(FILE *out, const struct cairn_family *f, const struct cairn_impl *impl,
		       const struct cairn_options *opt, void *arg)
{
	const struct cairn_mutant *m = arg;
	struct cairn_options all = *opt;
	struct hunt *h = calloc(1, sizeof(*h));

	if (!h)
		return;
	all.num_globs = 0;
	h->out = out;
	h->f = f;
	h->impl = *impl;
	h->impl.name = m->name;
	h->seed = opt->seed;
	h->word = m->name;
	if (!strncmp(m->name, f->name, strlen(f->name)) && m->name[strlen(f->name)] == '_')
		h->word += strlen(f->name) + 1;
	h->word_len = strcspn(h->word, "_");
	memcpy((char *)&h->impl + m->op, &m->fn, sizeof(m->fn));
	if (!impl->stream_create(&h->stream))
		for (h->likely = 1; h->likely >= 0 && !h->caught_by[0]; h->likely--)
			cairn_each(&all, f, try_case, h);
	if (h->caught_by[0])
		fprintf(out, "P %s\n", h->caught_by);
	else
		fprintf(out, "F %d\n", h->ran);
	free(h);
}

static void hunt_line(char *text, void *arg)
{
	char *result = arg;

	if (text[0] != 'B')
		snprintf(result, 256, "%s", text);
}

int cairn_cmd_mutants(const struct cairn_options *opt)
{
	const struct cairn_mutant *m;
	struct cairn_impl ref;
	int caught = 0, total = 0;

	if (cairn_impl_open("ref", &ref))
		return 2;
	for (int i = 0; (m = cairn_mutant_at(i)); i++) {
		const struct cairn_family *f = family_of(m);
		char result[256] = "", name[192];
		const char *death;

		snprintf(name, sizeof(name), "%s.%s.%s", f ? f->stage : "", f ? f->name : "", m->name);
		if (f && !cairn_glob_match(opt, f, name))
			continue;
		total++;
		death = f ? cairn_run_child(hunt_child, f, &ref, opt, (void *)m, hunt_line, result) : NULL;
		if (result[0] == 'P' || (death && !strstr(death, "TIMEOUT"))) {
			caught++;
			if (opt->verbose)
				printf("ok - %s # %s; caught by %s\n", m->name, m->what,
				       death ? death : result + 2);
			continue;
		}
		printf("not ok - %s # %s; SURVIVED %s cases\n", m->name, m->what,
		       f ? result + 2 : "no family, 0");
	}
	printf("mutants: %d of %d caught\n", caught, total);
	return caught == total && (total > 0 || opt->num_globs) ? 0 : 1;
}
