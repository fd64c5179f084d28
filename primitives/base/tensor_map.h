/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_map - makes descriptors for TMA, which copies boxes of a tensor in global memory by their
 * coordinates
 *
 * Dimension 0 is the innermost. A box is dense in shared memory; with a swizzle, its innermost dimension has
 * at most `swizzle` bytes. Elements of a box outside the tensor arrive as zeros.
 */
#ifndef CAIRN_TENSOR_MAP_H
#define CAIRN_TENSOR_MAP_H

#include <cuda.h>

#include "primitives/base/error.h"

#define CAIRN_TENSOR_MAP_DIMS	5

struct cairn_tensor_layout {
	const void *data;			/* 16-byte aligned */
	int dims, element_bytes;		/* 1..CAIRN_TENSOR_MAP_DIMS; 1 or 2 */
	uint64_t size[CAIRN_TENSOR_MAP_DIMS];	/* elements in each dimension */
	uint64_t stride[CAIRN_TENSOR_MAP_DIMS];	/* bytes, from dimension 1 on; multiples of 16 */
	uint32_t box[CAIRN_TENSOR_MAP_DIMS];	/* elements in each dimension, at most 256 */
	int swizzle;				/* bytes: 0, 32, 64 or 128 */
	int promotion;				/* bytes fetched on an L2 miss: 0 (as requested), 128, 256 */
};

#ifdef __cplusplus
extern "C" {
#endif

/*
 * `caller`, the name of the calling family, starts the error text. -EINVAL: unsupported dims, element_bytes,
 * swizzle or promotion; -EOPNOTSUPP: the driver has no such function; -EIO: the driver rejected the layout.
 */
int cairn_tensor_map(CUtensorMap *map, const struct cairn_tensor_layout *tensor, const char *caller);

#ifdef __cplusplus
}
#endif
#endif
