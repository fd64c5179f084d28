// SPDX-License-Identifier: Apache-2.0
/* tensor_map - encodes TMA descriptors with the driver's cuTensorMapEncodeTiled */
#include "primitives/base/tensor_map.h"

#include "primitives/base/launch.h"

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
			   const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
			   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/*
 * Gets the function through the CUDA runtime. If the program were linked with libcuda, every machine would
 * need it.
 */
static int find_encode(encode_fn **encode, const char *caller)
{
	enum cudaDriverEntryPointQueryResult found;
	void *fn = NULL;

	CAIRN_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault,
						    &found));
	if (!fn)
		return cairn_error(EOPNOTSUPP, "%s: the driver has no cuTensorMapEncodeTiled", caller);
	*encode = (encode_fn *)fn;
	return 0;
}

int cairn_tensor_map(CUtensorMap *map, const struct cairn_tensor_layout *t, const char *caller)
{
	static encode_fn *known;
	encode_fn *encode = __atomic_load_n(&known, __ATOMIC_RELAXED);
	const cuuint32_t one[CAIRN_TENSOR_MAP_DIMS] = { 1, 1, 1, 1, 1 };
	const CUtensorMapDataType type =
		t->element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
	const CUtensorMapSwizzle swizzle = t->swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B :
					   t->swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B :
					   t->swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B :
					   CU_TENSOR_MAP_SWIZZLE_NONE;
	const CUtensorMapL2promotion promotion = t->promotion == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B :
						 t->promotion == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B :
						 CU_TENSOR_MAP_L2_PROMOTION_NONE;
	CUresult res;

	if (t->dims < 1 || t->dims > CAIRN_TENSOR_MAP_DIMS || t->element_bytes < 1 || t->element_bytes > 2 ||
	    (t->swizzle && t->swizzle != 32 && t->swizzle != 64 && t->swizzle != 128) ||
	    (t->promotion && t->promotion != 128 && t->promotion != 256))
		return cairn_error(EINVAL,
				   "%s: tensor map: %d dims, elements of %d bytes, swizzle %d, promotion %d",
				   caller, t->dims, t->element_bytes, t->swizzle, t->promotion);
	if (!encode) {
		CAIRN_TRY(find_encode(&encode, caller));
		__atomic_store_n(&known, encode, __ATOMIC_RELAXED);
	}
	res = encode(map, type, (cuuint32_t)t->dims, (void *)t->data, t->size, t->stride, t->box, one,
		     CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	if (res != CUDA_SUCCESS)
		return cairn_error(EIO, "%s: cuTensorMapEncodeTiled: %d", caller, (int)res);
	return 0;
}
