/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch - the one way kernels are launched, and CUDA errors become ours
 */
#ifndef CAIRN_LAUNCH_H
#define CAIRN_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "primitives/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cairn_launch {
	unsigned int grid[3], block[3];	/* a zero counts as 1 */
	/* dynamic shared memory, bytes; the opt-in above 48 KiB is set here */
	size_t smem;
	/* CTAs of a cluster along x; 0: none. Above 8 the non-portable size is asked for */
	int cluster;
	/* programmatic dependent launch: may start before its predecessor ends */
	int pdl;
	void *stream;
};

/* params: one pointer for each kernel parameter. Never synchronises. */
int cairn_launch(const void *kernel, const struct cairn_launch *launch, void **params);
/* How many clusters of this launch can be resident at once, on this very device; < 0: -errno. */
int cairn_max_active_clusters(const void *kernel, const struct cairn_launch *launch);
/* Multiprocessors of the current device (cached); < 0: -errno. */
int cairn_num_sms(void);
int cairn_cuda_error(cudaError_t err, const char *what, const char *file, int line);

#ifdef __cplusplus
}
#endif

#define CAIRN_CUDA(expr) do { cudaError_t err_ = (expr); \
		if (err_ != cudaSuccess) return cairn_cuda_error(err_, #expr, __FILE__, __LINE__); } while (0)

#endif
