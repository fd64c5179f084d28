// SPDX-License-Identifier: Apache-2.0
/* attn_variant_list - the texts that callers have added */
#include "fused/attention/variant/text/attn_variant_list.h"

#include <pthread.h>

#include "primitives/base/error.h"

static struct attn_variant_text *texts[ATTN_VARIANT_TEXTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct attn_variant_text *attn_variant_text(int32_t variant)
{
	int32_t i = variant - ATTN_VARIANT_FIRST_TEXT;

	return variant >= ATTN_VARIANT_FIRST_TEXT && i < ATTN_VARIANT_TEXTS ?
	       __atomic_load_n(&texts[i], __ATOMIC_ACQUIRE) : NULL;
}

int attn_variant_add(struct attn_variant_text *text, int32_t *variant)
{
	int i = 0;

	pthread_mutex_lock(&lock);
	while (i < ATTN_VARIANT_TEXTS && texts[i])
		i++;
	if (i < ATTN_VARIANT_TEXTS)
		__atomic_store_n(&texts[i], text, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	*variant = ATTN_VARIANT_FIRST_TEXT + i;
	return i < ATTN_VARIANT_TEXTS ? 0 :
	       cairn_error(ENOMEM, "attn_variant: more than %d texts", ATTN_VARIANT_TEXTS);
}

struct attn_variant_text *attn_variant_remove(int32_t variant)
{
	struct attn_variant_text *t = attn_variant_text(variant);

	if (t)
		__atomic_store_n(&texts[variant - ATTN_VARIANT_FIRST_TEXT], NULL, __ATOMIC_RELEASE);
	return t;
}
