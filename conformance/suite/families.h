/* SPDX-License-Identifier: Apache-2.0 */
/* families - the families and mutants that this build contains, as the Kbuild files list them */
#ifndef CAIRN_FAMILIES_H
#define CAIRN_FAMILIES_H

struct cairn_family;
struct cairn_mutant;

/* All families, in build order (primitives, fused, serving, rdma, conformance); NULL ends the list. */
const struct cairn_family *const *cairn_families(void);
/* The i-th mutant of the build; NULL past the last one. */
const struct cairn_mutant *cairn_mutant_at(int i);

#endif
