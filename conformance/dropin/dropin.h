/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dropin - answers the calls that FlashInfer makes to its compiled attention modules by an operation table
 *
 * FlashInfer 0.6 loads one module for each configuration (dtypes, head dimensions, window, softcap) and calls
 * its functions through TVM's interface (peers/tvm_ffi.h). dropin.so has the functions of all of them,
 * because every call states its configuration by its tensors: batch_prefill (plan, ragged_run, paged_run),
 * batch_decode (plan, run), single_prefill and single_decode (run), and the packing of masks (packbits,
 * segment_packbits). tools/dropin.py writes the folder of names under which FlashInfer finds it.
 *
 *   paged keys, whole NHD pages, no mask          attn_paged
 *   16-bit contiguous keys, no mask               attn_dense
 *   all others: HND, strided pages, e4m3 keys     attn_bsr, one block row for each request
 *   and custom masks
 *
 * Plan:        our operations plan on the device, so `plan` only notes the largest lengths. A plan for a CUDA
 *              graph notes none: `run` then takes the sizes of the arrays as bounds, which hold for every
 *              later plan of the same wrapper.
 * Workspace:   FlashInfer's float workspace. If it is too small for attn_bsr on all SMs, the call uses fewer;
 *              if it is too small at all, the error states the bytes.
 * lse:         FlashInfer's is in base 2, so it is converted in place.
 * Refused:     with a RuntimeError "cairn: not supported: ..." that names the argument: queries of 8 bits,
 *              keys of e5m2 or of 4 bits, head dimensions other than 64, 128 and 256 (attn_dense has more),
 *              multi-item scoring, fixed_split_size and disable_split_kv (they promise bits that do not
 *              depend on the batch), scale_v of FlashAttention-3's form, and K and V of different strides
 *              where attn_bsr is needed. FlashInfer states a positional encoding by the module's name only,
 *              so that the folder has no name for ROPE_LLAMA and ALIBI.
 */
#ifndef CAIRN_DROPIN_H
#define CAIRN_DROPIN_H

#include "conformance/abi.h"
#include "conformance/dropin/dropin_arrays.h"
#include "conformance/peers/tvm_ffi.h"

enum dropin_function {
	DROPIN_PLAN, DROPIN_RUN, DROPIN_RAGGED_RUN, DROPIN_PAGED_RUN, DROPIN_PACKBITS,
	DROPIN_SEGMENT_PACKBITS, DROPIN_FUNCTIONS
};

/* What a module needs of the process that loads it. */
struct dropin_host {
	void *(*stream)(int32_t device_type, int32_t device_id);
	void (*raise)(const char *kind, const char *message);
	int (*array)(const int64_t *values, int32_t count, struct tvm_any *out);
};

struct dropin {
	const struct cairn_impl *table;
	const struct dropin_arrays *arrays;	/* for the same memory as the table */
	const struct dropin_host *host;
};

/*
 * Answers one call. Returns 0, or -1 after host->raise(), as TVM's functions do. *result is written on
 * success only.
 */
int dropin_call(const struct dropin *d, enum dropin_function f, const struct tvm_any *args, int32_t num_args,
		struct tvm_any *result);

#endif
