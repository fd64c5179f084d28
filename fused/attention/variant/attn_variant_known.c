// SPDX-License-Identifier: Apache-2.0
/* attn_variant_known - the hooks of the built-in variants, and of callers' texts, on the host */
#include "fused/attention/variant/attn_variant_known.h"

#include "fused/attention/variant/attn_variant.h"
#include "fused/attention/variant/text/attn_variant_list.h"
#include "primitives/base/error.h"

/* Tables of attn_variant_f32.c and attn_variant_f64.c, each of its own struct attn_hooks. */
#define TABLES(text)	extern const char attn_variant_f32_##text[], attn_variant_f64_##text[];
TABLES(plain) TABLES(rope) TABLES(alibi) TABLES(softcap) TABLES(sigmoid) TABLES(bits)

#define PAIR(text)	{ attn_variant_f32_##text, attn_variant_f64_##text }
static const void *const built_in[CAIRN_VARIANT_BUILT_IN][2] = {
	[CAIRN_VARIANT_PLAIN] = PAIR(plain), [CAIRN_VARIANT_ROPE] = PAIR(rope),
	[CAIRN_VARIANT_ALIBI] = PAIR(alibi),
	[CAIRN_VARIANT_SOFTCAP] = PAIR(softcap), [CAIRN_VARIANT_SIGMOID] = PAIR(sigmoid),
	[CAIRN_VARIANT_BITS] = PAIR(bits),
};

int attn_variant_known(int32_t variant)
{
	return (variant >= 0 && variant < CAIRN_VARIANT_BUILT_IN) || attn_variant_text(variant) != NULL;
}

int attn_variant_weighs(int32_t variant)
{
	const struct attn_variant_text *t = attn_variant_text(variant);

	return variant == CAIRN_VARIANT_SIGMOID || (t && t->hooks >> ATTN_HOOK_WEIGHT & 1);
}

int attn_variant_rotates_keys(int32_t variant)
{
	const struct attn_variant_text *t = attn_variant_text(variant);

	return variant == CAIRN_VARIANT_ROPE || (t && t->hooks >> ATTN_HOOK_KEY & 1);
}

int attn_variant_hooks(int32_t variant, int exact, const void **hooks)
{
	const struct attn_variant_text *t = attn_variant_text(variant);

	*hooks = t ? t->tables[exact] : built_in[variant][exact];
	return *hooks ? 0 : cairn_error(EOPNOTSUPP, "attn_variant: %s: there is no C compiler (cc), which "
					"the reference and the CPU need for texts of callers", t->name);
}
