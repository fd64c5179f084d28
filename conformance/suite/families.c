// SPDX-License-Identifier: Apache-2.0
#include "conformance/suite/families.h"

#include <stddef.h>

#include "conformance/harness.h"

/* CAIRN_FAMILIES and CAIRN_MUTANTS come from the Kbuild files: F(rmsnorm) F(rope) ... */
#define F(name) extern const struct cairn_family cairn_##name##_family;
CAIRN_FAMILIES
#undef F
#define F(name) &cairn_##name##_family,
static const struct cairn_family *const families[] = { CAIRN_FAMILIES NULL };
#undef F

#define F(name) extern const struct cairn_mutant cairn_##name##_mutants[];
CAIRN_MUTANTS
#undef F
#define F(name) cairn_##name##_mutants,
static const struct cairn_mutant *const mutants[] = { CAIRN_MUTANTS NULL };
#undef F

const struct cairn_family *const *cairn_families(void)
{
	return families;
}

const struct cairn_mutant *cairn_mutant_at(int i)
{
	for (int k = 0; mutants[k]; k++)
		for (const struct cairn_mutant *m = mutants[k]; m->name; m++)
			if (i-- == 0)
				return m;
	return NULL;
}
