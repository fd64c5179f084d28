/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_create - creates variants from a caller's text (attn_variant.h)
 *
 * A text is trusted like a plug-in: it becomes part of this process and of kernels. It must come from the
 * program's caller, never from a request or a checkpoint. Preprocessor lines and inline assembly are refused.
 *
 * The host's compiler (cc) compiles the hooks of the reference and of the CPU table; without cc, these tables
 * return -EOPNOTSUPP for the variant. Kernels are compiled by NVRTC, or read from the cache, at the first
 * call for a dtype and head dimension, which must not be captured; without NVRTC the cuda table returns
 * -EOPNOTSUPP. Built-in variants need neither. $CAIRN_NVRTC names the library if it is neither libnvrtc.so.13
 * nor libnvrtc.so.12 nor in /usr/local/cuda.
 */
#ifndef CAIRN_ATTN_VARIANT_CREATE_H
#define CAIRN_ATTN_VARIANT_CREATE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Sets *variant to a number for cairn_attn_variant_args. data: a text, or a file of
 * cairn_attn_variant_build(); name: its file, for messages. Returns 0, -EINVAL with "name:line: reason",
 * -ETIMEDOUT if cc does not end, or -ENOMEM.
 */
int cairn_attn_variant_create(const void *data, size_t bytes, const char *name, int32_t *variant);
/* Destroys a variant. No call with it may be in flight. */
void cairn_attn_variant_destroy(int32_t variant);
/* Compiles a text for a dtype and head dimension into a file, without a GPU. Returns 0 or -errno. */
int cairn_attn_variant_build(const char *text, const char *name, int32_t dtype, int32_t head_dim,
			     const char *path);

#endif
