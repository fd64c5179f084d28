// SPDX-License-Identifier: Apache-2.0
/* dropin_module - the functions that dropin.so exports: the drop-in over our CUDA kernels */
#include <cuda_runtime_api.h>
#include <string.h>

#include "conformance/dropin/dropin_attn.h"
#include "primitives/base/launch.h"

/* Functions of libtvm_ffi.so, which the process has already loaded. They are bound at their first call. */
void *TVMFFIEnvGetStream(int32_t device_type, int32_t device_id);
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
int TVMFFIFunctionGetGlobal(const struct tvm_text *name, void **out);
int TVMFFIFunctionCall(void *function, struct tvm_any *args, int32_t num_args, struct tvm_any *result);

int64_t cairn_dropin_calls(int32_t function);
tvm_function __tvm_ffi_plan, __tvm_ffi_run, __tvm_ffi_ragged_run, __tvm_ffi_paged_run, __tvm_ffi_packbits,
	__tvm_ffi_segment_packbits;

static void *stream(int32_t device_type, int32_t device_id)
{
	return TVMFFIEnvGetStream(device_type, device_id);
}

static void raise(const char *kind, const char *message)
{
	TVMFFIErrorSetRaisedFromCStr(kind, message);
}

static int array(const int64_t *values, int32_t count, struct tvm_any *out)
{
	static const struct tvm_text name = { "ffi.Array", 9 };
	static void *make;
	struct tvm_any items[8];

	if (!make && TVMFFIFunctionGetGlobal(&name, &make))
		return -1;
	memset(items, 0, sizeof(items));
	for (int32_t i = 0; i < count; i++)
		items[i] = (struct tvm_any){ .type = TVM_INT, .i = values[i] };
	return make ? TVMFFIFunctionCall(make, items, count, out) : -1;
}

static const struct cairn_impl table = {
	.size = sizeof(table),
	.abi_version = CAIRN_ABI_VERSION,
	.name = "cuda",
	.attn_paged = cairn_attn_paged,
	.attn_paged_workspace = cairn_attn_paged_workspace,
	.attn_dense = cairn_attn_dense,
	.attn_dense_workspace = cairn_attn_dense_workspace,
	.attn_bsr = cairn_attn_bsr,
	.attn_bsr_workspace = cairn_attn_bsr_workspace,
};
static const struct dropin_host host = { stream, raise, array };
static const struct dropin dropin = { &table, &dropin_arrays_cuda, &host };
static int64_t calls[DROPIN_FUNCTIONS];		/* answered without an error */

/* Returns how many calls of a function were answered in this process; tools/dropin_grid.py reads it. */
int64_t cairn_dropin_calls(int32_t function)
{
	return function >= 0 && function < DROPIN_FUNCTIONS ?
	       __atomic_load_n(&calls[function], __ATOMIC_RELAXED) : 0;
}

/* Kernels run on the device of the tensors, which need not be the current one. */
static int call(enum dropin_function f, const struct tvm_any *args, int32_t num_args, struct tvm_any *result)
{
	const struct dl_tensor *t = dropin_first_tensor(args, num_args);
	int was, elsewhere, ret;

	elsewhere = t && t->device_type == DL_CUDA && !cudaGetDevice(&was) && was != t->device_id;
	if (elsewhere)
		cudaSetDevice(t->device_id);
	ret = dropin_call(&dropin, f, args, num_args, result);
	if (elsewhere)
		cudaSetDevice(was);
	if (!ret)
		__atomic_add_fetch(&calls[f], 1, __ATOMIC_RELAXED);
	return ret;
}

#define EXPORT(name, f) \
	int __tvm_ffi_##name(void *self, const struct tvm_any *args, int32_t num_args, \
			     struct tvm_any *result) \
	{ \
		(void)self; \
		return call(f, args, num_args, result); \
	}

EXPORT(plan, DROPIN_PLAN)
EXPORT(run, DROPIN_RUN)
EXPORT(ragged_run, DROPIN_RAGGED_RUN)
EXPORT(paged_run, DROPIN_PAGED_RUN)
EXPORT(packbits, DROPIN_PACKBITS)
EXPORT(segment_packbits, DROPIN_SEGMENT_PACKBITS)
