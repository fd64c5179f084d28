/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tvm_ffi - the part of TVM's foreign function interface through which FlashInfer's compiled modules are
 * called
 *
 * A function takes an array of tagged values and gives one. If it returns nonzero, it has raised an error,
 * which TVMFFIErrorMoveFromRaised() returns. The layouts are those of apache-tvm-ffi 0.1 and of DLPack 1.
 */
#ifndef CAIRN_TVM_FFI_H
#define CAIRN_TVM_FFI_H

#include <stddef.h>
#include <stdint.h>

enum tvm_type { TVM_NONE = 0, TVM_INT = 1, TVM_BOOL = 2, TVM_FLOAT = 3, TVM_TENSOR = 7, TVM_OBJECTS = 64 };
enum dl_device { DL_CPU = 1, DL_CUDA = 2 };
enum dl_code { DL_INT = 0, DL_UINT = 1, DL_BFLOAT = 4 };

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

struct tvm_error {			/* an object */
	uint64_t count;
	int32_t type, pad;
	void *deleter;
	struct tvm_text kind, message;
};

struct dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides;	/* strides in elements */
	uint64_t byte_offset;
};

typedef int tvm_function(void *self, const struct tvm_any *args, int32_t num_args, struct tvm_any *result);

#endif
