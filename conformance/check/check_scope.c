// SPDX-License-Identifier: Apache-2.0
#include "conformance/check/check_scope.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/suite/families.h"
#include "primitives/base/error.h"

/* A row above either costs seconds of a processor, mostly to draw, copy and compare its arrays. */
#define LARGE_BYTES	200e6
#define LARGE_FLOPS	3e11

int cairn_check_has_op(const struct cairn_impl *impl, const struct cairn_family *f)
{
	void *fn;

	memcpy(&fn, (const char *)impl + f->op, sizeof(fn));
	return fn != NULL;
}

/* Returns whether the run has only plug-ins and the user has chosen no cases. */
static int is_vendors(const struct cairn_options *opt)
{
	for (int k = 0; k < opt->num_impls; k++)
		if (!strchr(opt->impls[k], '/'))
			return 0;
	return opt->num_impls > 0 && opt->num_globs == 0;
}

int cairn_check_left_out(const struct cairn_options *opt, const struct cairn_impl *impls,
			 const struct cairn_family *f, char *why, size_t len)
{
	why[0] = 0;
	if (!is_vendors(opt))
		return 0;
	if (!f->num_cases) {
		snprintf(why, len, "a host module, which calls no table");
		return 1;
	}
	if (opt->mustpass.num)
		return 0;
	for (int k = 0; k < opt->num_impls; k++)
		if (cairn_check_has_op(&impls[k], f))
			return 0;
	snprintf(why, len, "not in table %.60s%s", impls[0].name, opt->num_impls > 1 ? " or the others" : "");
	return 1;
}

int cairn_check_left_to_bench(const struct cairn_options *opt, const struct cairn_family *f,
			      const struct cairn_selected *s)
{
	const struct cairn_case *c = &s->desc;
	char family[128];

	if (s->what != CAIRN_SEL_CASE || !c->bench || !c->device_only ||
	    (c->bytes <= LARGE_BYTES && c->flops <= LARGE_FLOPS))
		return 0;
	snprintf(family, sizeof(family), "%s.%s", f->stage, f->name);
	return cairn_glob_match(opt, f, family);
}

/* Prints the operations of a plug-in. */
static void print_operations(const struct cairn_impl *impl, const char *path)
{
	int num = 0;

	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		num += (*f)->num_cases && cairn_check_has_op(impl, *f);
	printf("# %s: \"%s\" %s has %d operation%s%s", path, impl->name, impl->version, num,
	       num == 1 ? "" : "s", num ? ":" : "");
	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		if ((*f)->num_cases && cairn_check_has_op(impl, *f))
			printf(" %s", (*f)->name);
	printf("\n");
}

void cairn_check_print_scope(const struct cairn_options *opt, const struct cairn_impl *impls,
			     const struct cairn_check_family *const *families, int num)
{
	int lacking = 0, modules = 0;

	for (int i = 0; i < num; i++) {
		if (!families[i]->left_out[0])
			continue;
		modules += !families[i]->f->num_cases;
		lacking += !!families[i]->f->num_cases;
	}
	for (int k = 0; is_vendors(opt) && k < opt->num_impls; k++)
		print_operations(&impls[k], opt->impls[k]);
	if (lacking) {
		printf("# skipped: %d families of operations that %s:", lacking,
		       opt->num_impls > 1 ? "no plug-in has" : "the plug-in lacks");
		for (int i = 0; i < num; i++)
			if (families[i]->left_out[0] && families[i]->f->num_cases)
				printf(" %s", families[i]->f->name);
		printf("\n");
	}
	if (modules)
		printf("# skipped: %d host modules, which call no table; a GLOB that names one runs it\n",
		       modules);
}

int cairn_check_operations(const struct cairn_options *opt, const struct cairn_impl *impls)
{
	for (int k = 0; k < opt->num_impls; k++) {
		int num = 0;

		for (const struct cairn_family *const *f = cairn_families(); *f; f++)
			num += (*f)->num_cases && cairn_check_has_op(&impls[k], *f);
		if (!num && strchr(opt->impls[k], '/'))
			return cairn_error(EINVAL, "%s: \"%s\" %s has no operation: all members of the table "
					   "that are operations are NULL", opt->impls[k], impls[k].name,
					   impls[k].version);
	}
	return 0;
}
