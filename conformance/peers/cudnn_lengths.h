/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_lengths - describes requests of different lengths to cuDNN; sets rows of requests without a key */
#ifndef CAIRN_CUDNN_LENGTHS_H
#define CAIRN_CUDNN_LENGTHS_H

#include <stdint.h>

#include "conformance/peers/cudnn_sdpa.h"

struct cudnn_lengths_args {
	const int32_t *qo_indptr, *kv_indptr;	/* [batch + 1] rows */
	int64_t *offsets[SDPA_OFFSETS];		/* [batch + 1] elements, of each tensor; NULL: not wanted */
	int64_t stride[SDPA_OFFSETS];		/* elements from one row to the next */
	int32_t *len_q, *len_kv;		/* [batch] */
	int32_t batch;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_cudnn_lengths(const struct cudnn_lengths_args *args, void *stream);

/* Sets the rows of requests without a key, where the library writes NaN: out to 0, lse to -INFINITY. */
struct cudnn_keyless_args {
	const int32_t *qo_indptr, *kv_indptr;	/* [batch + 1] rows */
	void *out;				/* [rows, heads * v_dim] of 16 bits */
	float *lse;				/* [rows, heads] */
	int32_t batch, heads, v_dim;
};
int cairn_cudnn_keyless(const struct cudnn_keyless_args *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
