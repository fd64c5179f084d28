/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_scope - what a run concerns: a vendor who gives nothing but plug-ins wants their operations judged
 *
 * Without a GLOB, families of operations that none of the plug-ins has, and host modules, which call no
 * table, are left out. Their cases count as skipped.
 */
#ifndef CAIRN_CHECK_SCOPE_H
#define CAIRN_CHECK_SCOPE_H

#include "conformance/check/check_report.h"

int cairn_check_has_op(const struct cairn_impl *impl, const struct cairn_family *f);

/*
 * Returns whether a run of opt leaves f out, and writes why. With --mustpass, operations that are lacking
 * stay, since they fail.
 */
int cairn_check_left_out(const struct cairn_options *opt, const struct cairn_impl *impls,
			 const struct cairn_family *f, char *why, size_t len);

/* Prints what is left out of a run with these families, and why; nothing if nothing is. */
void cairn_check_print_scope(const struct cairn_options *opt, const struct cairn_impl *impls,
			     const struct cairn_check_family *const *families, int num);

/* -EINVAL: a plug-in has no operation, so that there is nothing to judge. */
int cairn_check_operations(const struct cairn_options *opt, const struct cairn_impl *impls);

#endif
