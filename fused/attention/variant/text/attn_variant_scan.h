/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_scan - which hooks a text has, and what a text may not contain */
#ifndef CAIRN_ATTN_VARIANT_SCAN_H
#define CAIRN_ATTN_VARIANT_SCAN_H

/*
 * Sets bit h of *hooks for each enum attn_variant_hook h whose function the text defines. Returns -EINVAL,
 * with "name:line: reason", if the text has no hook or defines one twice, has a preprocessor line (# or its
 * spellings %: and ?\?=), _Pragma, inline assembly, a backslash outside of a literal, or a comment or a
 * bracket without an end.
 */
int attn_variant_scan(const char *text, const char *name, unsigned int *hooks);
/* Returns the name of a hook. */
const char *attn_variant_hook_name(int hook);

#endif
