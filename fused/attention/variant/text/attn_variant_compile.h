/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_compile - compiles a text for the host and for the GPU */
#ifndef CAIRN_ATTN_VARIANT_COMPILE_H
#define CAIRN_ATTN_VARIANT_COMPILE_H

#include "fused/attention/variant/text/attn_variant_headers.h"
#include "fused/attention/variant/text/attn_variant_image.h"
#include "fused/attention/variant/text/attn_variant_list.h"

/* The host's compiler is stopped after this many seconds: 60, or less in a test. */
extern int attn_variant_cc_limit_s;
/*
 * Compiles the text with the host's compiler and sets its library and tables; leaves them NULL if there is no
 * compiler. Returns 0, -EINVAL with "name:line: reason", -ETIMEDOUT or -EIO.
 */
int attn_variant_compile_host(struct attn_variant_text *t);
/*
 * Compiles a text for the GPU, or finds it in the cache. Returns 0 and sets *image, which the caller frees;
 * -EINVAL with "name:line: reason"; or -EOPNOTSUPP if there is no NVRTC.
 */
int attn_variant_compile_device(const char *text, const char *name, int32_t dtype, int32_t head_dim,
				struct attn_variant_image *image);
/* Sets the key of a text in the cache: a hash of everything that determines the compiler's output. */
int attn_variant_cache_key(const char *text, int32_t dtype, int32_t head_dim, char key[ATTN_VARIANT_HASH]);
/* Writes lines that define ATTN_LOGIT and so on for the hooks of a text. */
void attn_variant_define(unsigned int hooks, char lines[512]);

#endif
