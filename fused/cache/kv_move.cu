// SPDX-License-Identifier: Apache-2.0
/*
 * kv_move - divides all moves into one sequence of chunks, which the CTAs take in turn
 *
 * A part is one side of one layer of a move; a chunk is up to THREADS * UNROLL vectors of 16 bytes of a part.
 * All loads of a chunk are issued before its first store. For a short list, chunks are smaller, so that even
 * the copy-on-write of a single page occupies all SMs. Loads and stores are streaming (evict-first).
 *
 * Floor: twice the bytes at the memory's copy speed, 4.0 TB/s on an H200; if slots are host memory, the bytes
 * once at the link's speed. Over a PCIe 5 link of 16 lanes, 4 CTAs reach the full speed of 52.6 GB/s out and
 * 51.3 in, so max_ctas 4 costs nothing there. Optimisation history: NOTES.md.
 */
#include "fused/cache/kv_move.h"

#include "primitives/base/launch.h"
#include "primitives/ptx/ptx.cuh"

#define THREADS		256
#define CTAS_PER_SM	4

static __device__ __forceinline__ char *place_part(const struct cairn_kv_move_args &a, int32_t place,
						   int layer, int side, int sides)
{
	if (place >= 0)
		return (char *)a.base + layer * a.layer_bytes + side * a.v_offset + place * a.page_bytes;
	return (char *)a.slots + (((int64_t)~place * a.num_layers + layer) * sides + side) * a.page_bytes;
}

template <int unroll> __global__ void __launch_bounds__(THREADS)
kv_move_kernel(const __grid_constant__ struct cairn_kv_move_args a, int vecs, int chunks, int span,
	       int64_t num_chunks)
{
	const int sides = a.v_offset ? 2 : 1;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	for (int64_t c = blockIdx.x; c < num_chunks; c += gridDim.x) {
		int64_t part = c / chunks;
		int begin = (int)(c - part * chunks) * span, end = min(begin + span, vecs);
		int first = begin + threadIdx.x;
		int side = (int)(part % sides), layer = (int)(part / sides % a.num_layers);
		int move = (int)(part / sides / a.num_layers);
		int32_t from = a.from[move], to = a.to[move];
		const uint4 *src = (const uint4 *)place_part(a, from, layer, side, sides) + first;
		uint4 *dst = (uint4 *)place_part(a, to, layer, side, sides) + first, v[unroll];

		if (from == to)
			continue;
#pragma unroll
		for (int k = 0; k < unroll; k++)
			if (first + k * THREADS < end)
				v[k] = __ldcs(src + k * THREADS);
#pragma unroll
		for (int k = 0; k < unroll; k++)
			if (first + k * THREADS < end)
				__stcs(dst + k * THREADS, v[k]);
	}
}

extern "C" int cairn_kv_move(const struct cairn_kv_move_args *a, void *stream)
{
	static const void *const kernels[] = {
		(const void *)kv_move_kernel<1>, (const void *)kv_move_kernel<2>,
		(const void *)kv_move_kernel<4>, (const void *)kv_move_kernel<8>,
	};
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	int sms = cairn_num_sms(), vecs, chunks, span, pick = 3;
	int64_t parts, num_chunks, ctas;
	void *params[] = { (void *)a, &vecs, &chunks, &span, &num_chunks };

	CAIRN_TRY(cairn_kv_move_check(a));
	if (a->num_moves == 0)
		return 0;
	if (sms < 0)
		return sms;
	if (a->page_bytes / 16 > INT32_MAX / 2)
		return cairn_error(EOPNOTSUPP, "kv_move: page_bytes: %lld are too many",
				   (long long)a->page_bytes);
	vecs = (int)(a->page_bytes / 16);
	parts = (int64_t)a->num_moves * a->num_layers * (a->v_offset ? 2 : 1);
	/* the largest chunk that a part fills more than half and that leaves two chunks for every SM */
	for (; pick > 0; pick--) {
		int chunk = THREADS << pick;

		if (chunk / 2 < vecs && (a->max_ctas || parts * ((vecs + chunk - 1) / chunk) >= 2ll * sms))
			break;
	}
	chunks = (vecs + (THREADS << pick) - 1) / (THREADS << pick);
	span = (vecs + chunks - 1) / chunks;	/* chunks of equal length */
	num_chunks = parts * chunks;
	ctas = a->max_ctas ? a->max_ctas : (int64_t)CTAS_PER_SM * sms;
	l.grid[0] = (unsigned int)(num_chunks < ctas ? num_chunks : ctas);
	return cairn_launch(kernels[pick], &l, params);
}
