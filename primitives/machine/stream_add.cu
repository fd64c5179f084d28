/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_add - adds a pattern to device memory by atomic additions, which the L2 carries out
 *
 * A one-shot grid of 256 threads, two words of 64 bits for each thread, as stream.cu writes them. Nothing
 * uses the old values, so that the compiler makes each addition a reduction, which needs no answer.
 *
 * Floor: every 32-byte sector is read and written once.
 */
#include "primitives/base/launch.h"
#include "primitives/machine/stream.h"

#define THREADS		256

__global__ void __launch_bounds__(THREADS)
stream_add_kernel(const __grid_constant__ struct cairn_stream_args a)
{
	int64_t i = 2 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
	unsigned long long *dst = (unsigned long long *)a.dst;

	if (i >= a.bytes / 8)
		return;
	atomicAdd(&dst[i], (unsigned long long)((a.seed + (uint64_t)i) * CAIRN_STREAM_MULT));
	atomicAdd(&dst[i + 1], (unsigned long long)((a.seed + (uint64_t)i + 1) * CAIRN_STREAM_MULT));
}

extern "C" int cairn_stream_add(const struct cairn_stream_args *args, void *stream)
{
	int64_t ctas = (args->bytes / 16 + THREADS - 1) / THREADS;
	struct cairn_launch launch = { 0 };
	void *params[] = { (void *)args };

	if (ctas > 0x7fffffff)
		return cairn_error(EOPNOTSUPP, "stream: bytes: %lld needs too many CTAs",
				   (long long)args->bytes);
	launch.grid[0] = (unsigned int)ctas;
	launch.block[0] = THREADS;
	launch.stream = stream;
	return cairn_launch((const void *)stream_add_kernel, &launch, params);
}
