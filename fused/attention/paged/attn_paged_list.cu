/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_list - lists the row tiles of a mixed batch (prompts and decodes) for the prefill kernel
 *
 * Lists all row tiles of each request of more than min_rows packed rows. Tiles with the most keys come first,
 * to the resolution of BUCKETS buckets: one pass counts, a second one places. The order within a bucket is
 * arbitrary, and no result depends on it. One CTA takes about 3 us; meanwhile the decode kernel that follows
 * is launched and waits only for the end of this one. Without a list, a grid over all requests and max_qo_len
 * would consist mostly of CTAs without work: 200,000 for one prompt of 1400 tokens among 600 requests.
 */
#include "primitives/base/launch.h"
#include "fused/attention/paged/attn_paged_walk.cuh"

#define BUCKETS		64
#define LIST_THREADS	512

static __global__ __launch_bounds__(LIST_THREADS) void
attn_paged_list_kernel(const __grid_constant__ struct cairn_attn_paged_args a, int32_t *list,
		       int32_t min_rows, int32_t group, uint32_t magic)
{
	__shared__ int32_t s_at[BUCKETS];
	int lane = threadIdx.x % 32;
	float scale = (float)BUCKETS / (float)(a.kv.max_len + 1);

	if (threadIdx.x < BUCKETS)
		s_at[threadIdx.x] = 0;
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	__syncthreads();
	for (int pass = 0; pass < 2; pass++) {
		for (int first = 0; first < a.kv.batch; first += LIST_THREADS) {
			int b = first + threadIdx.x;
			struct attn_request mine = {};
			uint32_t some;

			if (b < a.kv.batch)
				mine = attn_load_request(a, b, 0, group, magic);
			some = __ballot_sync(~0u, mine.qo_len * group > min_rows);
			for (; some; some &= some - 1) {	/* a warp takes all tiles of one request */
				struct attn_request r = mine;
				int from = __ffs(some) - 1, rows;

				r.magic = magic;	/* lanes past the batch have not loaded r.magic */
				r.qo_len = __shfl_sync(~0u, mine.qo_len, from);
				r.kv_len = __shfl_sync(~0u, mine.kv_len, from);
				rows = r.qo_len * group;
				for (int i = lane; i * ATTN_PREFILL_ROWS < rows; i += 32) {
					int row = i * ATTN_PREFILL_ROWS;
					int end = min(rows, row + ATTN_PREFILL_ROWS);
					int keys = attn_row_sees(a, r, end - 1) - attn_row_first(a, r, row);
					int bucket = BUCKETS - 1 - min(BUCKETS - 1, (int)(keys * scale));
					int at = atomicAdd(&s_at[bucket], 1);

					if (pass) {
						list[2 + 2 * at] = first + threadIdx.x / 32 * 32 + from;
						list[3 + 2 * at] = i;
					}
				}
			}
		}
		__syncthreads();
		if (pass == 0 && threadIdx.x < 32) {	/* counts become the first index of each bucket */
			int low = s_at[2 * lane], sum = low + s_at[2 * lane + 1], end = sum;

			for (int k = 1; k < 32; k *= 2) {
				int up = __shfl_up_sync(~0u, end, k);

				end += lane >= k ? up : 0;
			}
			s_at[2 * lane] = end - sum;
			s_at[2 * lane + 1] = end - sum + low;
			if (lane == 31)
				list[0] = end;
		}
		__syncthreads();
	}
}

/* Returns an upper bound of the row tiles in a mixed batch; requests of up to min_rows rows have none. */
int64_t attn_paged_list_tiles(const struct cairn_attn_paged_args *a, int32_t min_rows)
{
	int64_t rows = (int64_t)a->nnz_qo * (a->num_qo_heads / a->num_kv_heads);
	int64_t requests = rows / (min_rows + 1);

	return rows / ATTN_PREFILL_ROWS + (requests < a->kv.batch ? requests : a->kv.batch);
}

size_t attn_paged_list_bytes(const struct cairn_attn_paged_args *args, int32_t min_rows)
{
	return (size_t)(2 + 2 * attn_paged_list_tiles(args, min_rows)) * sizeof(int32_t);
}

int attn_paged_list(const struct cairn_attn_paged_args *args, int32_t min_rows, void *stream)
{
	int32_t group = args->num_qo_heads / args->num_kv_heads, *list = (int32_t *)args->workspace;
	uint32_t magic = attn_magic((uint32_t)group);
	void *params[] = { (void *)args, &list, &min_rows, &group, &magic };
	struct cairn_launch l = {};

	l.grid[0] = 1;
	l.block[0] = LIST_THREADS;
	l.pdl = !args->sms;
	l.stream = stream;
	return cairn_launch((const void *)attn_paged_list_kernel, &l, params);
}

