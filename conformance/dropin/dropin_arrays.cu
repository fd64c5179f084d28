// SPDX-License-Identifier: Apache-2.0
/* dropin_arrays - the conversions on a device: one launch each, a few microseconds */
#include "conformance/dropin/dropin_arrays.h"
#include "primitives/base/launch.h"

#define THREADS		128
#define MAX_CHUNKS	64

static int launch(const void *kernel, int64_t x, int64_t y, const void *args, void *stream)
{
	struct cairn_launch l = {};
	void *params[] = { (void *)args };

	if (x <= 0 || y <= 0)
		return 0;
	l.grid[0] = (unsigned)x;
	l.grid[1] = (unsigned)y;
	l.block[0] = THREADS;
	l.stream = stream;
	return cairn_launch(kernel, &l, params);
}

static int64_t chunks(int64_t n)
{
	return (n + THREADS - 1) / THREADS;
}

static __global__ void __launch_bounds__(THREADS) count_kernel(const __grid_constant__ struct dropin_count a)
{
	int32_t i = blockIdx.x * THREADS + threadIdx.x;

	if (i < a.count)
		a.to[i] = a.first + i * a.step;
}

static int count(const struct dropin_count *a, void *stream)
{
	return launch((const void *)count_kernel, chunks(a->count), 1, a, stream);
}

/* blockIdx.x is the row of request blockIdx.y. */
static __global__ void __launch_bounds__(THREADS) lines_kernel(const __grid_constant__ struct dropin_lines a)
{
	const int32_t b = blockIdx.y, i = blockIdx.x, first = a.qo_indptr[b];
	const int64_t keys = dropin_keys(&a, b), bytes = (keys + 7) / 8, start = first * a.line_bytes;

	if (i == 0 && threadIdx.x == 0)
		a.lines_indptr[b] = start;
	if (i >= a.qo_indptr[b + 1] - first)
		return;
	for (int64_t n = threadIdx.x; n < bytes; n += THREADS)
		a.lines[start + i * bytes + n] = dropin_line_byte(&a, b, i, keys, n);
}

static int lines(const struct dropin_lines *a, void *stream)
{
	return launch((const void *)lines_kernel, a->max_rows, a->batch, a, stream);
}

static __global__ void __launch_bounds__(THREADS) base2_kernel(const __grid_constant__ struct dropin_base2 a)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

	if (i < a.count)
		a.lse[i] *= DROPIN_LOG2E;
}

static int base2(const struct dropin_base2 *a, void *stream)
{
	return launch((const void *)base2_kernel, chunks(a->count), 1, a, stream);
}

/* The CTAs of one blockIdx.y share its segment. */
static __global__ void __launch_bounds__(THREADS) pack_kernel(const __grid_constant__ struct dropin_pack a)
{
	const int32_t s = blockIdx.y;
	const int64_t bytes = (dropin_pack_count(&a, s) + 7) / 8;

	for (int64_t n = blockIdx.x * THREADS + threadIdx.x; n < bytes; n += gridDim.x * THREADS)
		dropin_pack_byte(&a, s, n);
}

static int pack(const struct dropin_pack *a, void *stream)
{
	return launch((const void *)pack_kernel, MAX_CHUNKS, a->segments, a, stream);
}

extern const struct dropin_arrays dropin_arrays_cuda = { count, lines, base2, pack };
