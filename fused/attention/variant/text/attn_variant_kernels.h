/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_kernels - the kernels of a text */
#ifndef CAIRN_ATTN_VARIANT_KERNELS_H
#define CAIRN_ATTN_VARIANT_KERNELS_H

/*
 * Kernels for whole row tiles and for slices of their keys, and the one that merges slices. in_place is for
 * slices of a text with key(), with few rows; keys rotates all keys before one of the other two; both are
 * NULL without key().
 */
struct attn_variant_kernels {
	const void *whole, *slice, *in_place, *keys, *merge;
};

#endif
