/* SPDX-License-Identifier: Apache-2.0 */
/* fi_value - the tagged values that the functions of FlashInfer's modules take */
#ifndef CAIRN_FI_VALUE_H
#define CAIRN_FI_VALUE_H

#include "conformance/peers/tvm_ffi.h"

#define FI_COUNT(args)	((int)(sizeof(args) / sizeof(*(args))))

/* The memory of a tensor's description, which must live until the call has returned. */
struct fi_tensor {
	struct dl_tensor t;
	int64_t shape[4], strides[4];
};

/* A tensor whose last dimension is contiguous; steps: strides of the other dimensions, in elements. */
struct tvm_any cairn_fi_tensor(struct fi_tensor *x, const void *data, int on, int code, int bits, int ndim,
			       const int64_t *shape, const int64_t *steps);
/* A contiguous tensor of one dimension. */
struct tvm_any cairn_fi_list(struct fi_tensor *x, const void *data, int on, int code, int bits,
			     int64_t count);
/* A contiguous tensor of two dimensions on the device. */
struct tvm_any cairn_fi_rows(struct fi_tensor *x, const void *data, int code, int bits, int64_t rows,
			     int64_t dim);

static inline struct tvm_any fi_integer(int64_t i)
{
	return (struct tvm_any){ .type = TVM_INT, .i = i };
}

static inline struct tvm_any fi_number(double f)
{
	return (struct tvm_any){ .type = TVM_FLOAT, .f = f };
}

static inline struct tvm_any fi_flag(int is)
{
	return (struct tvm_any){ .type = TVM_BOOL, .i = !!is };
}

static inline struct tvm_any fi_none(void)
{
	return (struct tvm_any){ .type = TVM_NONE };
}

/* The code of a dtype of 16 bits. */
static inline int fi_code(int is_bf16)
{
	return is_bf16 ? DL_BFLOAT : DL_FLOAT;
}

#endif
