/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_image - a compiled text: its file, and the cache of such files
 *
 * A file holds a line "cairn-attn-variant 1 HEADERS DTYPE HEAD_DIM TEXT_BYTES CUBIN_BYTES", where HEADERS is
 * the hash of the headers that it was compiled with; the text; the cubin; and the SHA-256 of everything
 * before it, in 64 digits. The cache is the first directory of $CAIRN_CACHE, $XDG_CACHE_HOME/cairn and
 * $HOME/.cache/cairn whose variable is set. A missing one is made with mode 0700; one that is not ours, or
 * that others may enter, is not used. A file is written under another name and renamed. A file that is
 * damaged counts as missing, and is replaced.
 */
#ifndef CAIRN_ATTN_VARIANT_IMAGE_H
#define CAIRN_ATTN_VARIANT_IMAGE_H

#include <stddef.h>
#include <stdint.h>

struct attn_variant_image {
	int32_t dtype, head_dim;
	char *text;			/* ends with a zero */
	void *cubin;
	size_t cubin_bytes;
};

void attn_variant_image_free(struct attn_variant_image *image);
/* Returns whether the file's first bytes are those of an image. */
int attn_variant_is_image(const void *data, size_t bytes);
/*
 * Reads an image from memory, or writes one to a file. Both return 0 or -errno, with a text that names
 * `path`.
 * An image that was compiled with other headers than this program's is refused with -EINVAL.
 */
int attn_variant_image_read(const void *data, size_t bytes, const char *path,
			    struct attn_variant_image *image);
int attn_variant_image_write(const struct attn_variant_image *image, const char *path);

/* Returns 1 and sets *image if the cache has a sound image for `key` (64 digits), else 0. */
int attn_variant_cache_find(const char *key, struct attn_variant_image *image);
/* Puts an image into the cache. Returns 0, or -errno if there is no cache; callers go on without one. */
int attn_variant_cache_put(const char *key, const struct attn_variant_image *image);

#endif
