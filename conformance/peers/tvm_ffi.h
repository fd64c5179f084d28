/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tvm_ffi - the part of TVM's foreign function interface through which FlashInfer and its compiled modules
 * call each other
 *
 * A function takes an array of tagged values and gives one. If it returns nonzero, it has raised an error,
 * which TVMFFIErrorMoveFromRaised() returns. The layouts are those of apache-tvm-ffi 0.1 and of DLPack 1.
 */
#ifndef CAIRN_TVM_FFI_H
#define CAIRN_TVM_FFI_H

#include <stddef.h>
#include <stdint.h>

enum tvm_type {
	TVM_NONE = 0, TVM_INT = 1, TVM_BOOL = 2, TVM_FLOAT = 3, TVM_TENSOR = 7, TVM_TEXT = 8,
	TVM_SMALL_TEXT = 11, TVM_OBJECTS = 64, TVM_TEXT_OBJECT = 65, TVM_TENSOR_OBJECT = 70, TVM_ARRAY = 71
};
enum dl_device { DL_CPU = 1, DL_CUDA = 2 };
enum dl_code {
	DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6, DL_E4M3 = 10, DL_E5M2 = 12
};

struct tvm_any {
	int32_t type;			/* enum tvm_type; from TVM_OBJECTS on the value is a counted object */
	uint32_t zero;
	union {
		int64_t i;
		double f;
		void *p;
	};
};

struct tvm_text {
	const char *data;
	size_t size;
};

struct tvm_object {
	uint64_t count;
	int32_t type, pad;
	void *deleter;
};

struct tvm_error {
	struct tvm_object object;
	struct tvm_text kind, message;
};

struct tvm_array {			/* of values of any type */
	struct tvm_object object;
	struct tvm_any *items;
	int64_t size;
};

struct tvm_text_object {
	struct tvm_object object;
	struct tvm_text text;
};

struct dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides;	/* strides in elements; NULL: contiguous */
	uint64_t byte_offset;
};

struct tvm_tensor_object {
	struct tvm_object object;
	struct dl_tensor tensor;
};

typedef int tvm_function(void *self, const struct tvm_any *args, int32_t num_args, struct tvm_any *result);

#endif
