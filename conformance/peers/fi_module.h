/* SPDX-License-Identifier: Apache-2.0 */
/* fi_module - a compiled module of FlashInfer, loaded without Python and PyTorch */
#ifndef CAIRN_FI_MODULE_H
#define CAIRN_FI_MODULE_H

#include "conformance/peers/tvm_ffi.h"

/*
 * Finds functions of the module flashinfer_NAME.so. It and libtvm_ffi.so lie in $CAIRN_FLASHINFER or else in
 * the folder peers beside the program (tools/peers.sh). -EOPNOTSUPP: there is none, or it lacks one of the
 * functions. `op` begins the text. Modules stay loaded.
 */
int cairn_fi_load(const char *op, const char *name, const char *const *functions, int count,
		  tvm_function **out);

/* Calls a function on a stream of the current device. The caller frees *result with cairn_fi_release(). */
int cairn_fi_call(const char *op, tvm_function *f, const struct tvm_any *args, int num_args, void *stream,
		  struct tvm_any *result);
void cairn_fi_release(struct tvm_any *value);

/* Sets *captured to whether the stream is being captured. */
int cairn_fi_captured(void *stream, int *captured);
/* -EOPNOTSUPP unless `sms` means all SMs of the device. */
int cairn_fi_sms(const char *op, int32_t sms);
/* Copies an array from the device and waits for it. */
int cairn_fi_fetch(void *host, const void *array, size_t bytes, void *stream);

#endif
