/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_list - the texts that callers have added, and their numbers */
#ifndef CAIRN_ATTN_VARIANT_LIST_H
#define CAIRN_ATTN_VARIANT_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "fused/attention/variant/text/attn_variant_kernels.h"

#define ATTN_VARIANT_FIRST_TEXT	64	/* the number of the first text */
#define ATTN_VARIANT_TEXTS	64	/* texts at a time */

enum attn_variant_hook {
	ATTN_HOOK_HEAD_SLOPE, ATTN_HOOK_LOGIT, ATTN_HOOK_LOGIT_CAP, ATTN_HOOK_KEEP, ATTN_HOOK_RANGE,
	ATTN_HOOK_QUERY, ATTN_HOOK_KEY, ATTN_HOOK_SINK, ATTN_HOOK_WEIGHT, ATTN_HOOK_OUTPUT, ATTN_NUM_HOOKS
};

/* A text of a caller. */
struct attn_variant_text {
	char *text, *name;		/* name: of its file, for messages */
	unsigned int hooks;		/* bit enum attn_variant_hook: the text has the hook */
	void *library[2];		/* what the host's compiler made of it, for float and for double */
	const void *tables[2];		/* struct attn_hooks of both; NULL: there is no compiler */
	/* by dtype (f16, bf16) and head dimension (64, 128) */
	struct attn_variant_instance {
		void *cubin;		/* came with the text, or NULL */
		size_t cubin_bytes;
		struct attn_variant_kernels kernels;	/* loaded at the first call */
		int ready;		/* they are loaded */
		void *loaded;		/* the library that has it */
	} instances[2][2];
	void (*unload)(void *loaded);	/* set with the first `loaded` */
};

/* Returns the caller's text, or NULL if `variant` is not one. */
struct attn_variant_text *attn_variant_text(int32_t variant);
/* Takes over the text and sets *variant to its number. Returns 0, or -ENOMEM if there are too many. */
int attn_variant_add(struct attn_variant_text *text, int32_t *variant);
/* Removes a text from the list; the caller frees it. Returns NULL if there is none. */
struct attn_variant_text *attn_variant_remove(int32_t variant);

#endif
