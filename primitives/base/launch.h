/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch - launches every kernel of Cairn and turns CUDA errors into Cairn errors
 */
#ifndef CAIRN_LAUNCH_H
#define CAIRN_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "primitives/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cairn_launch {
	unsigned int grid[3], block[3];	/* CTAs, threads in x, y, z; 0 counts as 1 */
	/* bytes of dynamic shared memory; cairn_launch() sets the opt-in that more than 48 KiB need */
	size_t smem;
	/* CTAs per cluster along x; 0: no clusters. Above 8 cairn_launch() allows the non-portable size */
	int cluster;
	/* programmatic dependent launch: the kernel may start before its predecessor ends */
	int pdl;
	/* cudaStream_t */
	void *stream;
};

/* params holds one pointer for each kernel parameter. Does not synchronise. */
int cairn_launch(const void *kernel, const struct cairn_launch *launch, void **params);
/*
 * Returns how many clusters of this launch the current device can hold at once, or -errno. The answer is
 * cached for each device, kernel, number of threads, smem and cluster; errors are not cached.
 */
int cairn_max_active_clusters(const void *kernel, const struct cairn_launch *launch);
/* Returns the number of SMs of the current device (cached), or -errno. */
int cairn_num_sms(void);
/* Returns how many SMs a call with argument `sms` may use (all if sms is 0 or too large), or -errno. */
int cairn_sms_of(int32_t sms);
/*
 * Returns 1 if work of this stream runs on a part of the device only (a green context), 0, or -errno. Default
 * streams have no part.
 */
int cairn_stream_is_part(void *stream);
/*
 * Returns 0 if all CTAs of this launch can be resident at once, -EOPNOTSUPP if they cannot, or another
 * -errno. A kernel whose CTAs wait for each other needs this check.
 */
int cairn_check_resident(const void *kernel, const struct cairn_launch *launch, const char *caller);
/* Sets the error text from err, the failed expression and its place; returns -ENODEV or -EIO. */
int cairn_cuda_error(cudaError_t err, const char *what, const char *file, int line);

#ifdef __cplusplus
}
#endif

#define CAIRN_CUDA(expr) do { cudaError_t err_ = (expr); \
		if (err_ != cudaSuccess) return cairn_cuda_error(err_, #expr, __FILE__, __LINE__); } while (0)

#endif
