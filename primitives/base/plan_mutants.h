/* SPDX-License-Identifier: Apache-2.0 */
/* plan_mutants - for mutants of operations whose calls may share a plan (planned) */
#ifndef CAIRN_PLAN_MUTANTS_H
#define CAIRN_PLAN_MUTANTS_H

/* Returns whether this call and the one before it both have planned 1. */
static inline int plan_is_used_up(int planned)
{
	static int before;
	int used_up = planned && before;

	before = planned;
	return used_up;
}

#endif
