/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_scope - what a run leaves out because its user did not name it
 *
 * A run that tests only plug-ins, as a vendor's does, leaves out host modules, which call no table, and
 * families of operations that no plug-in has. Every run leaves large rows to `cairn bench`. All of these
 * cases count as skipped.
 */
#ifndef CAIRN_CHECK_SCOPE_H
#define CAIRN_CHECK_SCOPE_H

#include "conformance/check/check_report.h"

int cairn_check_has_op(const struct cairn_impl *impl, const struct cairn_family *f);

/*
 * Returns whether a run of opt leaves f out, and writes why. With --mustpass, operations that the table lacks
 * are not left out, since they must fail.
 */
int cairn_check_left_out(const struct cairn_options *opt, const struct cairn_impl *impls,
			 const struct cairn_family *f, char *why, size_t len);

/*
 * Returns whether s is a large row of `cairn bench`, which judges each row before it times it, and no GLOB
 * names cases of the family f: one that names the family or its stage does not ask for its large rows.
 */
int cairn_check_left_to_bench(const struct cairn_options *opt, const struct cairn_family *f,
			      const struct cairn_selected *s);

/* Prints which families a run leaves out, and why; prints nothing if it leaves out none. */
void cairn_check_print_scope(const struct cairn_options *opt, const struct cairn_impl *impls,
			     const struct cairn_check_family *const *families, int num);

/* Returns -EINVAL if a plug-in has no operation, so that there is nothing to judge. */
int cairn_check_operations(const struct cairn_options *opt, const struct cairn_impl *impls);

#endif
