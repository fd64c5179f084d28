// SPDX-License-Identifier: Apache-2.0
/*
 * mla_decode - splits the keys over all SMs and keeps the heads of a request together; a second kernel merges
 *
 * All heads of a request read the same keys, so a CTA takes a row tile of 16, 32 or 64 heads (the smallest
 * that holds all heads, else 64) and a contiguous share of the keys, 64 at a time. The tile consists of g
 * groups of 16 heads. 8 / g of the 8 warps work on one group; they split S = Q K^T by keys and O = P C by
 * columns. Each element of the cache is fetched once and multiplied twice from shared memory.
 *
 *   tile n:  wait for its copy | barrier | S, maximum of own keys -> shared memory | barrier |
 *            maximum of all, P -> shared memory | barrier | O += P C | barrier |
 *            start the copy of tile n + 2 into the same buffer
 *   end:     O undivided, m, l -> workspace (with a single split, O / l -> out)
 *
 * mla_merge_kernel: one warp merges 128 columns of a head; with more than 16 splits, eight warps share the
 * splits, each taking every eighth. All loads are issued before the first is used; the sums of the warps are
 * added in order.
 *
 * Shared memory, g groups                                      g = 1     2       4
 *   0          Q [16 g][576]                                   18432   36864   73728
 *   Q          two tiles of keys [64][576]                    147456  147456  147456
 *   + tiles    P [16 g][64]                                     2048    4096    8192
 *   + P        m [8 / g][16 g], l likewise, float               1024    1024    1024
 * A row of Q or of a tile is 9 blocks of 128 bytes; the 16-byte chunks of a block are at chunk ^ (row & 7),
 * so that ldmatrix, plain or transposed, is free of bank conflicts; P is laid out likewise. The only barriers
 * are __syncthreads(). There is one cp.async group for each tile; the last groups are empty.
 *
 * Floor: one read of the cache; 16K keys are 18.9 MB, 4.1 us. Partial results take 2 KiB per head and split,
 * so there are never more splits than tiles. Optimisation history: NOTES.md.
 */
#include "primitives/base/launch.h"
#include "fused/attention/base/attn_tile.cuh"
#include "conformance/tables/mla_decode.h"

#define RANK		512
#define ROPE		64
#define DIM		(RANK + ROPE)
#define ROW_BYTES	(DIM * 2)
#define ROW_CHUNKS	(DIM / 8)
#define KEYS		64
#define TILE_BYTES	(KEYS * ROW_BYTES)
#define THREADS		256
#define WARPS		8
#define MAX_SPLITS	160
#define FEW_SPLITS	16
#define MERGE_THREADS(sharers)	((sharers) == 1 ? RANK / 4 : 32 * (sharers))

/* Partial results of the splits, in the workspace. */
struct parts {
	float *o;		/* [batch][splits][num_heads][RANK], undivided */
	float2 *ml;		/* [batch][num_heads][splits]: maximum, before sm_scale, and sum */
	int32_t splits;
};

struct request {
	int32_t kv_len;
	const int32_t *pages;
};

ATTN_DEV struct request load_request(const struct mla_decode_args &a, int b)
{
	int32_t first = a.kv.indptr[b];
	struct request r;

	r.kv_len = kv_walk_len(a.kv.indptr[b + 1] - first, a.kv.last_page_len[b], a.kv.page_size);
	r.pages = a.kv.indices + first;
	return r;
}

/* Byte offset of a chunk of 8 elements in rows of DIM. */
ATTN_DEV uint32_t chunk_at(int row, int chunk)
{
	return row * ROW_BYTES + (chunk >> 3) * 128 + (((chunk ^ row) & 7) << 4);
}

/* Starts the copy of a tile: 8 threads per row, blocks of 128 bytes. Keys past kv_len become zero. */
ATTN_DEV void fetch_tile(const struct mla_decode_args &a, const struct request &r,
			 int32_t page_shift, uint32_t s_tile, int32_t first)
{
#pragma unroll
	for (int i = 0; i < KEYS; i += THREADS / 8) {
		int row = i + threadIdx.x / 8, chunk = threadIdx.x % 8;
		int32_t key = first + row, page = page_shift >= 0 ? key >> page_shift : key / a.kv.page_size;
		bool there = key < r.kv_len;
		const char *from = (const char *)a.kv.k_pages;

		if (there)
			from += ((int64_t)r.pages[page] * a.kv.page_size +
				 (key - page * a.kv.page_size)) * ROW_BYTES + chunk * 16;
#pragma unroll
		for (int c = 0; c < ROW_CHUNKS / 8; c++)
			ptx_cp_async_cg(s_tile + chunk_at(row, c * 8 + chunk),
					from + (there ? c * 128 : 0), there ? 16 : 0);
	}
}

/* Starts the copy of Q: latent part, then rope part of each row; heads past the last are zeros. */
template <int rows> ATTN_DEV void fetch_q(const struct mla_decode_args &a, uint32_t s_q, int b, int head0)
{
	for (int i = threadIdx.x; i < rows * ROW_CHUNKS; i += THREADS) {
		int row = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
		bool there = head0 + row < a.num_heads;
		int64_t head = (int64_t)b * a.num_heads + (there ? head0 + row : 0);
		const uint16_t *from = chunk < RANK / 8 ?
			(const uint16_t *)a.q_latent + head * RANK + chunk * 8 :
			(const uint16_t *)a.q_rope + head * a.q_rope_stride + (chunk - RANK / 8) * 8;

		ptx_cp_async_cg(s_q + chunk_at(row, chunk), from, there ? 16 : 0);
	}
}

/*
 * Computes S of 16 rows and n8 * 8 keys. s_q, s_k: this lane's ldmatrix address at chunk 0. With one n8 tile,
 * four separate sums break the chain of dependent products.
 */
template <int dtype, int n8> ATTN_DEV void make_logits(float (*s)[4], uint32_t s_q, uint32_t s_k)
{
	constexpr int sums = n8 == 1 ? 4 : n8 == 2 ? 2 : 1;
	float sum[sums][n8][4] = {};

#pragma unroll
	for (int k = 0; k < DIM / 32; k++) {
		uint32_t q[2][4];

#pragma unroll
		for (int h = 0; h < 2; h++)
			ptx_ldmatrix_x4(q[h], (s_q ^ ((2 * k + h) & 3) * 32) + k / 2 * 128);
#pragma unroll
		for (int t = 0; t < n8; t++) {
			uint32_t b[4];

			ptx_ldmatrix_x4(b, (s_k ^ (k & 1) * 64) + k / 2 * 128 + t * 8 * ROW_BYTES);
			attn_mma<dtype>(sum[2 * k % sums][t], q[0], b);
			attn_mma<dtype>(sum[(2 * k + 1) % sums][t], q[1], b + 2);
		}
	}
#pragma unroll
	for (int t = 0; t < n8; t++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			s[t][i] = sum[0][t][i];
#pragma unroll
			for (int k = 1; k < sums; k++)
				s[t][i] += sum[k][t][i];
		}
}

/* O += P C over 64 keys and columns16 * 16 columns. s_p, s_c: this lane's ldmatrix address. */
template <int dtype, int columns16> ATTN_DEV void add_values(float (*o)[4], uint32_t s_p, uint32_t s_c)
{
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++) {
		uint32_t p[4];

		ptx_ldmatrix_x4(p, s_p ^ k * 32);
#pragma unroll
		for (int d = 0; d < columns16; d++) {
			uint32_t b[4];

			ptx_ldmatrix_x4_trans(b, (s_c ^ (d & 3) * 32) + d / 4 * 128 + k * 16 * ROW_BYTES);
			attn_mma<dtype>(o[2 * d], p, b);
			attn_mma<dtype>(o[2 * d + 1], p, b + 2);
		}
	}
}

template <int dtype>
ATTN_DEV void store_pair(const struct mla_decode_args &a, const struct parts &parts, int64_t at,
			 int column, float x, float y, float l)
{
	float inverse = l > 0 ? 1 / l : 0;

	if (parts.splits == 1)
		*(uint32_t *)((uint16_t *)a.out + at * RANK + column) =
			attn_pack<dtype>(x * inverse, y * inverse);
	else
		*(float2 *)(parts.o + at * RANK + column) = make_float2(x, y);
}

template <int dtype, int groups> static __global__ void __launch_bounds__(THREADS, 1)
mla_decode_kernel(const __grid_constant__ struct mla_decode_args a, const struct parts parts)
{
	constexpr int rows = groups * 16, share_of = WARPS / groups;	/* warps of a group */
	constexpr int n8 = KEYS / share_of / 8, columns = RANK / share_of;
	extern __shared__ __align__(1024) uint8_t s_mem[];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
		  group = warp % groups, part = warp / groups;
	const int b = blockIdx.z, head0 = blockIdx.y * rows,
		  row = group * 16 + lane / 4;	/* this lane has rows row and row + 8 */
	const uint32_t s_q = ptx_smem(s_mem), s_tiles = s_q + rows * ROW_BYTES,
		       s_p = s_tiles + 2 * TILE_BYTES;
	float *s_m = (float *)(s_mem + rows * ROW_BYTES + 2 * TILE_BYTES + rows * KEYS * 2),
	      *s_l = s_m + share_of * rows;
	const uint32_t q_at = s_q + chunk_at(group * 16 + lane % 16, lane / 16);
	const uint32_t k_at = chunk_at(part * n8 * 8 + lane % 8, lane / 8);
	const uint32_t c_at = chunk_at(lane / 8 % 2 * 8 + lane % 8, part * columns / 8 + lane / 16);
	const uint32_t p_at = s_p + attn_swizzle(group * 16 + lane % 16, lane / 16, KEYS * 2);
	const float scale_log2 = a.sm_scale * ATTN_LOG2E;
	const int32_t page_shift = kv_page_shift(a.kv.page_size);
	float o[columns / 8][4] = {}, m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	int32_t num_tiles, first, last;
	struct request r;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	r = load_request(a, b);
	num_tiles = attn_div_up(r.kv_len, KEYS);
	/* attn_share() needs tiles * splits below 2^32: true for every cache that fits a device */
	first = attn_share(num_tiles, parts.splits, blockIdx.x);
	last = attn_share(num_tiles, parts.splits, blockIdx.x + 1);
	if (first < last)
		fetch_q<rows>(a, s_q, b, head0);
	for (int i = 0; i < 2; i++) {
		if (first + i < last)
			fetch_tile(a, r, page_shift, s_tiles + i * TILE_BYTES, (first + i) * KEYS);
		ptx_cp_async_commit_group();
	}
	for (int tile = first; tile < last; tile++) {
		uint32_t s_tile = s_tiles + ((tile - first) & 1) * TILE_BYTES;
		float s[n8][4], keep[2], top;

		ptx_cp_async_wait_group<1>();
		__syncthreads();
		make_logits<dtype, n8>(s, q_at, s_tile + k_at);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			top = -CUDART_INF_F;
#pragma unroll
			for (int t = 0; t < n8; t++)
#pragma unroll
				for (int i = 2 * h; i < 2 * h + 2; i++) {
					if (tile * KEYS + (part * n8 + t) * 8 +
					    lane % 4 * 2 + (i & 1) >= r.kv_len)
						s[t][i] = -CUDART_INF_F;
					top = fmaxf(top, s[t][i]);
				}
			top = attn_quad_max(top);
			if (lane % 4 == 0)
				s_m[part * rows + row + h * 8] = top;
		}
		__syncthreads();
#pragma unroll
		for (int h = 0; h < 2; h++) {
			int at = row + h * 8;

			top = m[h];
#pragma unroll
			for (int k = 0; k < share_of; k++)
				top = fmaxf(top, s_m[k * rows + at]);
			/*
			 * top is finite, because each tile of the share holds at least one key, and all rows
			 * attend to it
			 */
			keep[h] = ptx_ex2_approx_ftz((m[h] - top) * scale_log2);
			m[h] = top;
			l[h] *= keep[h];
#pragma unroll
			for (int t = 0; t < n8; t++) {
				float x = ptx_ex2_approx_ftz((s[t][2 * h] - top) * scale_log2);
				float y = ptx_ex2_approx_ftz((s[t][2 * h + 1] - top) * scale_log2);

				l[h] += x + y;
				ptx_st_shared_b32(s_p + attn_swizzle(at, part * n8 + t, KEYS * 2) +
						  lane % 4 * 4, attn_pack<dtype>(x, y));
			}
		}
		__syncthreads();
		attn_rescale<columns>(o, keep);
		add_values<dtype, columns / 16>(o, p_at, s_tile + c_at);
		__syncthreads();
		if (tile + 2 < last)
			fetch_tile(a, r, page_shift, s_tile, (tile + 2) * KEYS);
		ptx_cp_async_commit_group();
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float sum = attn_quad_sum(l[h]);

		if (lane % 4 == 0)
			s_l[part * rows + row + h * 8] = sum;
	}
	__syncthreads();
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int head = head0 + row + h * 8;
		int64_t at = ((int64_t)b * parts.splits + blockIdx.x) * a.num_heads + head;
		float sum = 0;

		if (head >= a.num_heads)
			continue;
#pragma unroll
		for (int k = 0; k < share_of; k++)
			sum += s_l[k * rows + row + h * 8];
		if (parts.splits > 1 && part == 0 && lane % 4 == 0)
			parts.ml[((int64_t)b * a.num_heads + head) * parts.splits + blockIdx.x] =
				make_float2(m[h], sum);
		if (parts.splits > 1 && first == last)
			continue;
#pragma unroll
		for (int t = 0; t < columns / 8; t++)
			store_pair<dtype>(a, parts, at, part * columns + t * 8 + lane % 4 * 2, o[t][2 * h],
					  o[t][2 * h + 1], sum);
	}
}

/*
 * blockIdx: columns, head, request. A lane has four columns; `sharers` warps divide the splits of 128 columns
 * among them. With one sharer a CTA of four warps merges a whole head.
 */
template <int dtype, int sharers, int max_splits>
static __global__ void __launch_bounds__(MERGE_THREADS(sharers))
mla_merge_kernel(const __grid_constant__ struct mla_decode_args a, const struct parts parts)
{
	constexpr int words = (max_splits + 31) / 32, loads = max_splits / sharers;
	__shared__ float4 s_o[sharers][32];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sharer = warp % sharers;
	const int column = (sharers == 1 ? warp : blockIdx.x) * 32 + lane, head = blockIdx.y, b = blockIdx.z;
	const float2 *ml = parts.ml + ((int64_t)b * a.num_heads + head) * parts.splits;
	const float4 *o = (const float4 *)parts.o +
			  ((int64_t)b * parts.splits * a.num_heads + head) * (RANK / 4) + column;
	float4 v[loads], sum = make_float4(0, 0, 0, 0);
	float2 part[words];			/* lane i has splits i, i + 32, ... */
	float top = -CUDART_INF_F, total = 0;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
#pragma unroll
	for (int w = 0; w < words; w++)
		part[w] = w * 32 + lane < parts.splits ? ml[w * 32 + lane] : make_float2(-CUDART_INF_F, 0);
#pragma unroll
	for (int n = 0; n < loads; n++)
		if (n * sharers + sharer < parts.splits)
			v[n] = o[(int64_t)(n * sharers + sharer) * a.num_heads * (RANK / 4)];
#pragma unroll
	for (int w = 0; w < words; w++)
		top = fmaxf(top, part[w].x);
#pragma unroll
	for (int k = 16; k; k /= 2)
		top = fmaxf(top, __shfl_xor_sync(~0u, top, k));
#pragma unroll
	for (int w = 0; w < words; w++) {
		float weight = part[w].y > 0 ?
			       ptx_ex2_approx_ftz((part[w].x - top) * a.sm_scale * ATTN_LOG2E) : 0;

		total += weight * part[w].y;
		part[w].x = weight;
	}
#pragma unroll
	for (int k = 16; k; k /= 2)
		total += __shfl_xor_sync(~0u, total, k);
#pragma unroll
	for (int n = 0; n < loads; n++) {
		float weight = __shfl_sync(~0u, part[n * sharers / 32].x, n * sharers % 32 + sharer);

		if (weight == 0)	/* no such split, or one without a key: v is undefined */
			continue;
		sum.x += weight * v[n].x;
		sum.y += weight * v[n].y;
		sum.z += weight * v[n].z;
		sum.w += weight * v[n].w;
	}
	if (sharers > 1) {
		s_o[sharer][lane] = sum;
		__syncthreads();
		if (warp)
			return;
	}
#pragma unroll
	for (int w = 1; w < sharers; w++) {
		sum.x += s_o[w][lane].x;
		sum.y += s_o[w][lane].y;
		sum.z += s_o[w][lane].z;
		sum.w += s_o[w][lane].w;
	}
	total = total > 0 ? 1 / total : 0;
	((uint2 *)a.out)[((int64_t)b * a.num_heads + head) * (RANK / 4) + column] =
		make_uint2(attn_pack<dtype>(sum.x * total, sum.y * total),
			   attn_pack<dtype>(sum.z * total, sum.w * total));
}

static int launch_merge(const struct mla_decode_args *args, struct parts *parts, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	void *params[] = { (void *)args, parts };
	int f16 = args->dtype == CAIRN_F16;

	l.grid[1] = args->num_heads;
	l.grid[2] = args->kv.batch;
	if (parts->splits <= FEW_SPLITS) {
		l.block[0] = MERGE_THREADS(1);
		return cairn_launch(f16 ? (const void *)mla_merge_kernel<CAIRN_F16, 1, FEW_SPLITS> :
				    (const void *)mla_merge_kernel<CAIRN_BF16, 1, FEW_SPLITS>, &l, params);
	}
	l.grid[0] = RANK / 128;
	l.block[0] = MERGE_THREADS(8);
	return cairn_launch(f16 ? (const void *)mla_merge_kernel<CAIRN_F16, 8, MAX_SPLITS> :
			    (const void *)mla_merge_kernel<CAIRN_BF16, 8, MAX_SPLITS>, &l, params);
}

static int groups_of(int32_t num_heads)
{
	return num_heads <= 16 ? 1 : num_heads <= 32 ? 2 : 4;
}

static int num_splits(const struct mla_decode_args *a)
{
	int num_sms = cairn_num_sms(),
	    tasks = a->kv.batch * attn_div_up(a->num_heads, groups_of(a->num_heads) * 16);
	int tiles = attn_div_up(a->kv.max_len, KEYS), splits;

	if (num_sms < 0)
		return num_sms;
	splits = tasks < num_sms ? num_sms / tasks : 1;
	splits = splits < MAX_SPLITS ? splits : MAX_SPLITS;
	if (splits >= tiles)
		return tiles > 1 ? tiles : 1;
	return attn_div_up(tiles, attn_div_up(tiles, splits));	/* the fewest with no more tiles per split */
}

static const void *kernel_of(int dtype, int groups)
{
	int f16 = dtype == CAIRN_F16;

	switch (groups) {
	case 1:
		return f16 ? (const void *)mla_decode_kernel<CAIRN_F16, 1> :
		       (const void *)mla_decode_kernel<CAIRN_BF16, 1>;
	case 2:
		return f16 ? (const void *)mla_decode_kernel<CAIRN_F16, 2> :
		       (const void *)mla_decode_kernel<CAIRN_BF16, 2>;
	default:
		return f16 ? (const void *)mla_decode_kernel<CAIRN_F16, 4> :
		       (const void *)mla_decode_kernel<CAIRN_BF16, 4>;
	}
}

extern "C" int mla_decode(const struct mla_decode_args *args, void *stream)
{
	struct cairn_launch l = { .pdl = 1, .stream = stream };
	int groups = groups_of(args->num_heads), rows = groups * 16, splits = num_splits(args);
	void *params[2] = { (void *)args, NULL };
	struct parts parts;

	if (splits < 0)
		return splits;
	if (!args->kv.batch)
		return 0;
	parts.splits = splits;
	parts.o = (float *)args->workspace;
	parts.ml = (float2 *)(parts.o + (int64_t)args->kv.batch * splits * args->num_heads * RANK);
	params[1] = &parts;
	l.grid[0] = splits;
	l.grid[1] = attn_div_up(args->num_heads, rows);
	l.grid[2] = args->kv.batch;
	l.block[0] = THREADS;
	l.smem = rows * ROW_BYTES + 2 * TILE_BYTES + rows * KEYS * 2 +
		 2 * (WARPS / groups) * rows * sizeof(float);
	CAIRN_TRY(cairn_launch(kernel_of(args->dtype, groups), &l, params));
	return splits == 1 ? 0 : launch_merge(args, &parts, stream);
}

extern "C" int mla_decode_workspace(const struct mla_decode_args *args, size_t *bytes)
{
	int splits = num_splits(args);

	if (splits < 0)
		return splits;
	*bytes = splits > 1 ? (size_t)args->kv.batch * splits * args->num_heads *
			      (RANK * sizeof(float) + sizeof(float2)) : 0;
	return 0;
}
