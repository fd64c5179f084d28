/* SPDX-License-Identifier: Apache-2.0 */
/* attn_dense_maps - the tensor maps of a call, on the host; for attn_dense and attn_variant */
#ifndef CAIRN_ATTN_DENSE_MAPS_CUH
#define CAIRN_ATTN_DENSE_MAPS_CUH

#include "fused/attention/dense/attn_dense.h"
#include "primitives/base/tensor_map.h"

/* Maps q with boxes of `rows` packed rows of 2^shift heads. */
static inline int attn_dense_map_q(CUtensorMap *map, const struct cairn_attn_dense_args *a, int rows,
				   int32_t shift)
{
	const struct cairn_tensor_layout t = {
		.data = a->q, .dims = 3, .element_bytes = 2,
		.size = { (uint64_t)a->qk_dim, (uint64_t)a->num_qo_heads, (uint64_t)a->nnz_qo },
		.stride = { (uint64_t)a->qk_dim * 2, (uint64_t)cairn_attn_dense_q_stride(a) * 2 },
		.box = { 64, 1u << shift, (uint32_t)(rows >> shift) }, .swizzle = 128, .promotion = 256,
	};

	return cairn_tensor_map(map, &t, "attn_dense");
}

/* Maps K or V with boxes of `keys` keys of a head. */
static inline int attn_dense_map_kv(CUtensorMap *map, const struct cairn_attn_dense_args *a, const void *data,
				    int32_t dim, int64_t stride, int64_t head_stride, int keys)
{
	const struct cairn_tensor_layout t = {
		.data = data, .dims = 3, .element_bytes = 2,
		.size = { (uint64_t)dim, (uint64_t)(a->nnz_kv ? a->nnz_kv : 1), (uint64_t)a->num_kv_heads },
		.stride = { (uint64_t)stride * 2, (uint64_t)head_stride * 2 },
		.box = { 64, (uint32_t)keys, 1 }, .swizzle = 128, .promotion = 256,
	};

	return cairn_tensor_map(map, &t, "attn_dense");
}

#endif
