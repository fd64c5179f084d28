/* SPDX-License-Identifier: Apache-2.0 */
/* dropin_value - readers of the values and tensors in an argument list */
#ifndef CAIRN_DROPIN_VALUE_H
#define CAIRN_DROPIN_VALUE_H

#include <limits.h>

#include "conformance/peers/tvm_ffi.h"
#include "primitives/base/error.h"

/* NULL: the argument is no tensor. */
static inline const struct dl_tensor *tensor_of(const struct tvm_any *a)
{
	if (a->type == TVM_TENSOR)
		return a->p;
	if (a->type == TVM_TENSOR_OBJECT)
		return &((const struct tvm_tensor_object *)a->p)->tensor;
	return NULL;
}

static inline int64_t integer_of(const struct tvm_any *a)
{
	return a->type == TVM_FLOAT ? (int64_t)a->f : a->type == TVM_NONE ? 0 : a->i;
}

static inline double number_of(const struct tvm_any *a)
{
	return a->type == TVM_FLOAT ? a->f : (double)integer_of(a);
}

static inline int64_t contiguous_stride(const struct dl_tensor *t, int dim)
{
	int64_t stride = 1;

	for (int i = dim + 1; i < t->ndim; i++)
		stride *= t->shape[i];
	return stride;
}

/* The stride, or the contiguous one if the dimension has one element, whose stride means nothing. */
static inline int64_t stride_of(const struct dl_tensor *t, int dim)
{
	return t->strides && t->shape[dim] != 1 ? t->strides[dim] : contiguous_stride(t, dim);
}

static inline int is_contiguous(const struct dl_tensor *t)
{
	for (int i = 0; i < t->ndim; i++)
		if (t->shape[i] && stride_of(t, i) != contiguous_stride(t, i))
			return 0;
	return 1;
}

static inline void *data_of(const struct dl_tensor *t)
{
	return t->data ? (char *)t->data + t->byte_offset : NULL;
}

static inline int is_type(const struct dl_tensor *t, int code, int bits)
{
	return t->code == code && t->bits == bits && t->lanes == 1;
}

static inline int needs_tensor(const char *name, const char *arg, const struct dl_tensor *t, int ndim)
{
	if (!t || t->ndim != ndim)
		return cairn_error(EINVAL, "%s: %s: must be a tensor of %d dimensions", name, arg, ndim);
	for (int i = 0; i < ndim; i++)
		if (t->shape[i] < 0 || t->shape[i] > INT_MAX)
			return cairn_error(EINVAL, "%s: %s: dimension %d is out of range", name, arg, i);
	return 0;
}

#endif
