/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bend - macros and helpers shared by the X_mutants.c files of several families
 *
 * The mutants of a family share one plain implementation, bent_<family>(args, bend), in which each value of
 * enum <family>_bend makes one step wrong. The defects were found in real code or are typical of a first
 * draft. BENT() defines the function of one defect, with the type that the operation has in struct
 * cairn_impl. MUTANT() or MUTANT_BARE() makes its row in cairn_<family>_mutants.
 */
#ifndef CAIRN_BEND_H
#define CAIRN_BEND_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "primitives/base/dtype.h"

#define BENT(family, defect) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		(void)stream; \
		return bent_##family(a, family##_bend_##defect); \
	}

/* The mutant's name is family_defect. */
#define MUTANT(family, defect, what) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

/* The mutant's name is the defect alone. */
#define MUTANT_BARE(family, defect, what) \
	{ #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what }

/* Returns v rounded once, to the nearest even value of dtype. */
static inline double rounded(int dtype, double v)
{
	uint64_t bits = 0;	/* wide enough for any dtype */

	cairn_store(&bits, dtype, 0, v);
	return cairn_load(&bits, dtype, 0);
}

/* Returns v rounded to f16, or to the 11 significant bits of TF32. */
static inline double narrow_sum(double v, int f16)
{
	uint64_t bits = 0;

	if (f16)
		return rounded(CAIRN_F16, v);
	memcpy(&bits, &(float){ (float)v }, sizeof(float));
	bits = (bits + 0x1000) & ~0x1fffull;
	return cairn_load(&bits, CAIRN_F32, 0);
}

#endif
