/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_known - the variants that attn_variant knows: the built-in ones, and texts of callers */
#ifndef CAIRN_ATTN_VARIANT_KNOWN_H
#define CAIRN_ATTN_VARIANT_KNOWN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether there is such a variant, and whether it has the hooks weight() and key(). */
int attn_variant_known(int32_t variant);
int attn_variant_weighs(int32_t variant);
int attn_variant_rotates_keys(int32_t variant);
/* Sets *hooks to the struct attn_hooks of a variant (double if exact, else float). Returns 0 or -errno. */
int attn_variant_hooks(int32_t variant, int exact, const void **hooks);

#ifdef __cplusplus
}
#endif

#endif
