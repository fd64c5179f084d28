/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_kernels - the kernels of a text */
#ifndef CAIRN_ATTN_VARIANT_KERNELS_H
#define CAIRN_ATTN_VARIANT_KERNELS_H

/*
 * `whole` attends to whole row tiles, `slice` to slices of their keys, and `merge` merges slices. With key(),
 * `keys` rotates all keys before `whole` or `slice` runs, and `in_place` replaces `slice` if there are few
 * rows, and rotates keys itself. Without key(), both are NULL.
 */
struct attn_variant_kernels {
	const void *whole, *slice, *in_place, *keys, *merge;
};

#endif
