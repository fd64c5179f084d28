/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_map - what the copy engine must know of a tensor, to fetch boxes of it by their coordinates
 *
 * Dimensions from the innermost outwards. In shared memory a box is dense, its innermost dimension at most
 * `swizzle` bytes if there is one; elements past an end of the tensor arrive as zeros.
 */
#ifndef CAIRN_TENSOR_MAP_H
#define CAIRN_TENSOR_MAP_H

#include <cuda.h>

#include "primitives/base/error.h"

#define CAIRN_TENSOR_MAP_DIMS	4

struct cairn_tensor_layout {
	const void *data;			/* 16-byte aligned */
	int dims, element_bytes;		/* 1 or 2 */
	uint64_t size[CAIRN_TENSOR_MAP_DIMS];	/* elements */
	uint64_t stride[CAIRN_TENSOR_MAP_DIMS];	/* bytes, multiples of 16: of dimension 1, 2, 3 */
	uint32_t box[CAIRN_TENSOR_MAP_DIMS];	/* elements, at most 256 of each */
	int swizzle;				/* bytes: 0, 32 or 128 */
	int promotion;				/* bytes a miss of the L2 brings: 0 (as asked), 128, 256 */
};

#ifdef __cplusplus
extern "C" {
#endif

/* who: begins the message. -EINVAL: no such element, swizzle or promotion; -EIO: the driver refuses. */
int cairn_tensor_map(CUtensorMap *map, const struct cairn_tensor_layout *tensor, const char *who);

#ifdef __cplusplus
}
#endif
#endif
