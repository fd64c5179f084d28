/* SPDX-License-Identifier: Apache-2.0 */
/* fi_module - a compiled module of FlashInfer, loaded without Python and PyTorch */
#ifndef CAIRN_FI_MODULE_H
#define CAIRN_FI_MODULE_H

#include "conformance/peers/tvm_ffi.h"

/* FlashAttention-3 for bf16 and one pair of dimensions. */
struct fi_module {
	tvm_function *plan, *ragged_run, *paged_run;
};

/*
 * Finds the module of these dimensions, and libtvm_ffi.so, in $CAIRN_FLASHINFER or else in the folder peers
 * beside the program (tools/peers.sh). -EOPNOTSUPP: there is none. `op` begins the text. Modules stay loaded.
 */
int cairn_fi_load(const char *op, int qk_dim, int v_dim, const struct fi_module **out);

/* Calls a function on a stream of the current device. The caller frees *result with cairn_fi_release(). */
int cairn_fi_call(const char *op, tvm_function *f, const struct tvm_any *args, int num_args, void *stream,
		  struct tvm_any *result);
void cairn_fi_release(struct tvm_any *value);

#endif
