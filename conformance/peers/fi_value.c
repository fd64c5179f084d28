// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_value.h"

#include <cuda_runtime_api.h>

struct tvm_any cairn_fi_tensor(struct fi_tensor *x, const void *data, int on, int code, int bits, int ndim,
			       const int64_t *shape, const int64_t *steps)
{
	int device = 0;

	if (on == DL_CUDA)
		cudaGetDevice(&device);
	x->t = (struct dl_tensor){ .data = (void *)data, .device_type = on, .device_id = device,
		.ndim = ndim, .code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = 1, .shape = x->shape,
		.strides = x->strides };
	for (int i = 0; i < ndim; i++) {
		x->shape[i] = shape[i];
		x->strides[i] = i == ndim - 1 ? 1 : steps[i];
	}
	return (struct tvm_any){ .type = TVM_TENSOR, .p = &x->t };
}

struct tvm_any cairn_fi_list(struct fi_tensor *x, const void *data, int on, int code, int bits, int64_t count)
{
	return cairn_fi_tensor(x, data, on, code, bits, 1, &count, NULL);
}

struct tvm_any cairn_fi_rows(struct fi_tensor *x, const void *data, int code, int bits, int64_t rows,
			     int64_t dim)
{
	const int64_t shape[] = { rows, dim };

	return cairn_fi_tensor(x, data, DL_CUDA, code, bits, 2, shape, &dim);
}
