// SPDX-License-Identifier: Apache-2.0
/*
 * mla_paged - absorbed weights: queries to latents, attention over one KV head of latents, latents to values
 *
 *   cuBLASLt     ql = q w, a product for each head             [nnz_qo, num_heads, 512]
 *   attention    o, on tiles of 64 packed rows (below)         [nnz_qo, num_heads, 512]
 *   merge        only if keys are split
 *   cuBLASLt     out = o w^T, a product for each head
 *
 * With absorbed weights a pair of query and key costs 2 * (576 + 512) flops instead of 2 * (192 + 128), but
 * no key or value is ever expanded or stored, and all heads of a token read the same tile of keys. Packed row
 * r of a request is token r / num_heads, head r % num_heads. A CTA takes 64 packed rows (four tokens of 16
 * heads) and walks over the keys that its last row sees, 64 at a time. Its 8 warps form 4 groups of 16 rows,
 * each of two halves; the halves of a group split S by keys and O by columns, as in mla_decode.cu.
 *
 *   tile n:  wait for its copy | barrier | S, masked, maximum of own keys -> shared memory | barrier |
 *            maximum of both, P -> shared memory | barrier | O += P C | barrier |
 *            start the copy of tile n + 2 into the same buffer
 *   end:     O / l -> o; if keys are split, O, m, l -> workspace
 *
 * A CTA finds its request and rows by summing the requests' tiles; the host only knows an upper bound of
 * their number. CTAs without a tile zero the rows past the last one. Tiles that see the most keys come
 * first. Keys are split evenly if there are fewer tiles than SMs, and always above 4096 keys: a decoding
 * request next to a prompt is one tile, and a single CTA would otherwise walk over all its keys.
 *
 * Shared memory
 *   0          Q [64][576]                       73728
 *   73728      two tiles of keys [64][576]      147456
 *   221184     P [64][64]                         8192
 *   229376     m [2][64], l [2][64], float        1024
 * Rows of Q and keys are 9 blocks of 128 bytes, with 16-byte chunks at chunk ^ (row & 7); P likewise.
 * Barriers: __syncthreads() only. cp.async groups: one for each tile, empty ones past the last tile.
 */
#include "fused/latent/latent_find.cuh"
#include "fused/latent/mla_paged.h"

#include "primitives/gemm/gemm_lt.h"
#include "primitives/base/args.h"
#include "primitives/base/launch.h"
#include "fused/attention/base/attn_tile.cuh"

#define RANK		512
#define ROPE		64
#define NOPE		128
#define V_DIM		128
#define DIM		(RANK + ROPE)
#define ROW_BYTES	(DIM * 2)
#define ROW_CHUNKS	(DIM / 8)
#define KEYS		64
#define ROWS		64
#define TILE_BYTES	(KEYS * ROW_BYTES)
#define THREADS		256
#define SHARE		2		/* warps that share 16 rows */
#define N8		(KEYS / SHARE / 8)
#define COLUMNS		(RANK / SHARE)
#define SMEM_BYTES	(ROWS * ROW_BYTES + 2 * TILE_BYTES + ROWS * KEYS * 2 + 2 * SHARE * ROWS * 4)
#define MAX_SPLITS	16
#define SPLIT_KEYS	4096
#define MAX_PARTIAL	((size_t)512 << 20)
#define MERGE_THREADS	(RANK / 4)

struct paged {
	struct cairn_mla_paged_args a;
	void *ql, *o;
	float *part;			/* [splits][rows][RANK]: O, not yet divided by l */
	float2 *ml;			/* [splits][rows]: maximum before sm_scale, and sum */
	void *gemm_workspace;
	int64_t rows;			/* nnz_qo * num_heads */
	uint32_t magic;			/* attn_magic(num_heads) */
	int32_t splits, tasks;		/* tasks: an upper bound of the row tiles */
	int32_t first_task;		/* the first task of this launch */
};

/* The rows of a tile and their request b; b < 0: no tile. */
struct task {
	int32_t b, row0, num_rows, qo_first, qo_len, kv_len;
	const int32_t *pages;
};

/* Finds tile number `id` over all requests; sets *total to their number. All threads must call it. */
ATTN_DEV struct task find_task(const struct paged &g, int id, int32_t *total)
{
	__shared__ int32_t s_warp[THREADS / 32], s_found[2];
	struct task t = {};
	int32_t base = 0;

	if (threadIdx.x == 0)
		s_found[0] = -1;
	for (int32_t first = 0; first < g.a.kv.batch; first += THREADS) {
		int32_t b = first + threadIdx.x, own = 0, upto;

		if (b < g.a.kv.batch)
			own = attn_div_up((g.a.qo_indptr[b + 1] - g.a.qo_indptr[b]) * g.a.num_heads, ROWS);
		upto = latent_upto<THREADS>(own, s_warp, &base);
		if (id >= upto - own && id < upto) {
			s_found[0] = b;
			s_found[1] = upto - 1 - id;	/* last rows first */
		}
		__syncthreads();
	}
	*total = base;
	t.b = s_found[0];
	if (t.b < 0)
		return t;
	t.qo_first = g.a.qo_indptr[t.b];
	t.qo_len = g.a.qo_indptr[t.b + 1] - t.qo_first;
	t.row0 = s_found[1] * ROWS;
	t.num_rows = min(t.qo_len * g.a.num_heads - t.row0, ROWS);
	t.pages = g.a.kv.indices + g.a.kv.indptr[t.b];
	t.kv_len = kv_walk_len(g.a.kv.indptr[t.b + 1] - g.a.kv.indptr[t.b], g.a.kv.last_page_len[t.b],
			       g.a.kv.page_size);
	return t;
}

/* Returns the byte offset of a chunk of 8 elements in rows of DIM. */
ATTN_DEV uint32_t chunk_at(int row, int chunk)
{
	return row * ROW_BYTES + (chunk >> 3) * 128 + (((chunk ^ row) & 7) << 4);
}

/* Starts the copy of a tile of keys: 8 threads a row. Keys past kv_len become zeros. */
ATTN_DEV void fetch_tile(const struct paged &g, const struct task &t, int32_t page_shift, uint32_t s_tile,
			 int32_t first)
{
#pragma unroll
	for (int i = 0; i < KEYS; i += THREADS / 8) {
		int row = i + threadIdx.x / 8, chunk = threadIdx.x % 8;
		int32_t key = first + row;
		int32_t page = page_shift >= 0 ? key >> page_shift : key / g.a.kv.page_size;
		bool there = key < t.kv_len;
		const char *from = (const char *)g.a.kv.k_pages;

		if (there)
			from += ((int64_t)t.pages[page] * g.a.kv.page_size +
				 (key - page * g.a.kv.page_size)) * ROW_BYTES + chunk * 16;
#pragma unroll
		for (int c = 0; c < ROW_CHUNKS / 8; c++)
			ptx_cp_async_cg(s_tile + chunk_at(row, c * 8 + chunk), from + (there ? c * 128 : 0),
					there ? 16 : 0);
	}
}

/* Starts the copy of Q: absorbed part, then rope part of each row; rows past the last become zeros. */
ATTN_DEV void fetch_q(const struct paged &g, uint32_t s_q, int64_t at, int num_rows)
{
	for (int i = threadIdx.x; i < ROWS * ROW_CHUNKS; i += THREADS) {
		int row = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
		bool there = row < num_rows;
		int64_t from_row = at + (there ? row : 0);
		const uint16_t *from = chunk < RANK / 8 ?
			(const uint16_t *)g.ql + from_row * RANK + chunk * 8 :
			(const uint16_t *)g.a.q + from_row * (NOPE + ROPE) + NOPE + (chunk - RANK / 8) * 8;

		ptx_cp_async_cg(s_q + chunk_at(row, chunk), from, there ? 16 : 0);
	}
}

/* Computes S of 16 rows and N8 * 8 keys. s_q, s_k: this lane's ldmatrix address at chunk 0. */
template <int dtype> ATTN_DEV void make_logits(float (*s)[4], uint32_t s_q, uint32_t s_k)
{
#pragma unroll
	for (int t = 0; t < N8; t++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			s[t][i] = 0;
#pragma unroll
	for (int k = 0; k < DIM / 32; k++) {
		uint32_t q[2][4];

#pragma unroll
		for (int h = 0; h < 2; h++)
			ptx_ldmatrix_x4(q[h], (s_q ^ ((2 * k + h) & 3) * 32) + k / 2 * 128);
#pragma unroll
		for (int t = 0; t < N8; t++) {
			uint32_t b[4];

			ptx_ldmatrix_x4(b, (s_k ^ (k & 1) * 64) + k / 2 * 128 + t * 8 * ROW_BYTES);
			attn_mma<dtype>(s[t], q[0], b);
			attn_mma<dtype>(s[t], q[1], b + 2);
		}
	}
}

/* O += P C over 64 keys and COLUMNS columns. s_p, s_c: this lane's ldmatrix address. */
template <int dtype> ATTN_DEV void add_values(float (*o)[4], uint32_t s_p, uint32_t s_c)
{
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++) {
		uint32_t p[4];

		ptx_ldmatrix_x4(p, s_p ^ k * 32);
#pragma unroll
		for (int d = 0; d < COLUMNS / 16; d++) {
			uint32_t b[4];

			ptx_ldmatrix_x4_trans(b, (s_c ^ (d & 3) * 32) + d / 4 * 128 + k * 16 * ROW_BYTES);
			attn_mma<dtype>(o[2 * d], p, b);
			attn_mma<dtype>(o[2 * d + 1], p, b + 2);
		}
	}
}

/* Sets the rows past the last request to 0, and their lse to -INFINITY; called by CTAs without a tile. */
ATTN_DEV void zero_rest(const struct paged &g, int spare, int num_spare)
{
	const int64_t first = (int64_t)g.a.qo_indptr[g.a.kv.batch] * g.a.num_heads;
	const int64_t at = spare * THREADS + threadIdx.x, step = num_spare * THREADS;

	for (int64_t i = first * (RANK / 8) + at; i < g.rows * (RANK / 8); i += step)
		((uint4 *)g.o)[i] = make_uint4(0, 0, 0, 0);
	for (int64_t i = first + at; g.a.lse && i < g.rows; i += step)
		g.a.lse[i] = -CUDART_INF_F;
}

/* blockIdx: tile, from first_task on; split */
template <int dtype>
static __global__ void __launch_bounds__(THREADS, 1) mla_paged_kernel(const __grid_constant__ struct paged g)
{
	extern __shared__ __align__(1024) uint8_t s_mem[];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp % 4, part = warp / 4;
	const int row = group * 16 + lane / 4;		/* and row + 8 */
	const uint32_t s_q = ptx_smem(s_mem), s_tiles = s_q + ROWS * ROW_BYTES,
		       s_p = s_tiles + 2 * TILE_BYTES;
	float *s_m = (float *)(s_mem + ROWS * ROW_BYTES + 2 * TILE_BYTES + ROWS * KEYS * 2),
	      *s_l = s_m + SHARE * ROWS;
	const uint32_t q_at = s_q + chunk_at(group * 16 + lane % 16, lane / 16);
	const uint32_t k_at = chunk_at(part * N8 * 8 + lane % 8, lane / 8);
	const uint32_t c_at = chunk_at(lane / 8 % 2 * 8 + lane % 8, part * COLUMNS / 8 + lane / 16);
	const uint32_t p_at = s_p + attn_swizzle(group * 16 + lane % 16, lane / 16, KEYS * 2);
	const float scale_log2 = g.a.sm_scale * ATTN_LOG2E;
	const int32_t page_shift = kv_page_shift(g.a.kv.page_size);
	float o[COLUMNS / 8][4] = {}, m[2] = { -CUDART_INF_F, -CUDART_INF_F }, l[2] = {};
	int32_t num_tiles, first, last, total, sees[2];
	struct task t;
	int64_t at;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	t = find_task(g, g.first_task + blockIdx.x, &total);
	if (t.b < 0) {
		if (g.splits == 1)
			zero_rest(g, g.first_task + blockIdx.x - total, g.tasks - total);
		return;
	}
	at = (int64_t)t.qo_first * g.a.num_heads + t.row0;
#pragma unroll
	for (int h = 0; h < 2; h++)
		sees[h] = attn_visible(attn_token(t.row0 + row + h * 8, g.magic), t.qo_len, t.kv_len, 1);
	num_tiles = attn_div_up(attn_visible(attn_token(t.row0 + t.num_rows - 1, g.magic), t.qo_len,
					     t.kv_len, 1),
				KEYS);
	first = attn_share(num_tiles, g.splits, blockIdx.y);
	last = attn_share(num_tiles, g.splits, blockIdx.y + 1);
	if (first < last)
		fetch_q(g, s_q, at, t.num_rows);
	for (int i = 0; i < 2; i++) {
		if (first + i < last)
			fetch_tile(g, t, page_shift, s_tiles + i * TILE_BYTES, (first + i) * KEYS);
		ptx_cp_async_commit_group();
	}
	for (int tile = first; tile < last; tile++) {
		uint32_t s_tile = s_tiles + ((tile - first) & 1) * TILE_BYTES;
		float s[N8][4], keep[2], top;

		ptx_cp_async_wait_group<1>();
		__syncthreads();
		make_logits<dtype>(s, q_at, s_tile + k_at);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			top = -CUDART_INF_F;
#pragma unroll
			for (int n = 0; n < N8; n++)
#pragma unroll
				for (int i = 2 * h; i < 2 * h + 2; i++) {
					if (tile * KEYS + (part * N8 + n) * 8 + lane % 4 * 2 + (i & 1) >=
					    sees[h])
						s[n][i] = -CUDART_INF_F;
					top = fmaxf(top, s[n][i]);
				}
			top = attn_quad_max(top);
			if (lane % 4 == 0)
				s_m[part * ROWS + row + h * 8] = top;
		}
		__syncthreads();
#pragma unroll
		for (int h = 0; h < 2; h++) {
			int r = row + h * 8;
			float base;

			top = fmaxf(fmaxf(m[h], s_m[r]), s_m[ROWS + r]);
			base = top == -CUDART_INF_F ? 0 : top;	/* -inf: no key seen yet, all p are 0 */
			keep[h] = ptx_ex2_approx_ftz((m[h] - base) * scale_log2);
			m[h] = top;
			l[h] *= keep[h];
#pragma unroll
			for (int n = 0; n < N8; n++) {
				float x = ptx_ex2_approx_ftz((s[n][2 * h] - base) * scale_log2);
				float y = ptx_ex2_approx_ftz((s[n][2 * h + 1] - base) * scale_log2);

				l[h] += x + y;
				ptx_st_shared_b32(s_p + attn_swizzle(r, part * N8 + n, KEYS * 2) +
						  lane % 4 * 4,
						  attn_pack<dtype>(x, y));
			}
		}
		__syncthreads();
		attn_rescale<COLUMNS>(o, keep);
		add_values<dtype>(o, p_at, s_tile + c_at);
		__syncthreads();
		if (tile + 2 < last)
			fetch_tile(g, t, page_shift, s_tile, (tile + 2) * KEYS);
		ptx_cp_async_commit_group();
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float sum = attn_quad_sum(l[h]);

		if (lane % 4 == 0)
			s_l[part * ROWS + row + h * 8] = sum;
	}
	__syncthreads();
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int r = row + h * 8;
		int64_t to = blockIdx.y * g.rows + at + r;
		float sum = s_l[r] + s_l[ROWS + r], inverse = sum > 0 ? 1 / sum : 0;

		if (r >= t.num_rows)
			continue;
		if (g.splits > 1 && part == 0 && lane % 4 == 0)
			g.ml[to] = make_float2(m[h], sum);
		if (g.splits == 1 && g.a.lse && part == 0 && lane % 4 == 0)
			g.a.lse[to] = sum > 0 ? fmaf(m[h], g.a.sm_scale, logf(sum)) : -CUDART_INF_F;
		if (g.splits > 1 && first == last)
			continue;
#pragma unroll
		for (int n = 0; n < COLUMNS / 8; n++) {
			int64_t element = to * RANK + part * COLUMNS + n * 8 + lane % 4 * 2;

			if (g.splits > 1)
				*(float2 *)(g.part + element) = make_float2(o[n][2 * h], o[n][2 * h + 1]);
			else
				*(uint32_t *)((uint16_t *)g.o + element) =
					attn_pack<dtype>(o[n][2 * h] * inverse, o[n][2 * h + 1] * inverse);
		}
	}
}

/* Merges the splits: one CTA for each row, four columns for each thread. */
template <int dtype>
static __global__ void __launch_bounds__(MERGE_THREADS)
mla_merge_kernel(const __grid_constant__ struct paged g)
{
	const int64_t row = blockIdx.x;
	float top = -CUDART_INF_F, total = 0, weight[MAX_SPLITS];
	float4 sum = make_float4(0, 0, 0, 0);

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (row < (int64_t)g.a.qo_indptr[g.a.kv.batch] * g.a.num_heads) {
#pragma unroll
		for (int i = 0; i < MAX_SPLITS; i++)
			if (i < g.splits)
				top = fmaxf(top, g.ml[i * g.rows + row].x);
		if (top == -CUDART_INF_F)
			top = 0;
#pragma unroll
		for (int i = 0; i < MAX_SPLITS; i++) {
			float2 ml = i < g.splits ? g.ml[i * g.rows + row] : make_float2(0, 0);

			weight[i] = ml.y > 0 ?
				    ptx_ex2_approx_ftz((ml.x - top) * g.a.sm_scale * ATTN_LOG2E) : 0;
			total += weight[i] * ml.y;
		}
#pragma unroll
		for (int i = 0; i < MAX_SPLITS; i++) {
			float4 v;

			if (i >= g.splits || weight[i] == 0)	/* a split without a key has no part[] */
				continue;
			v = ((const float4 *)g.part)[(i * g.rows + row) * (RANK / 4) + threadIdx.x];
			sum.x += weight[i] * v.x;
			sum.y += weight[i] * v.y;
			sum.z += weight[i] * v.z;
			sum.w += weight[i] * v.w;
		}
	}
	if (g.a.lse && threadIdx.x == 0)
		g.a.lse[row] = total > 0 ? fmaf(top, g.a.sm_scale, logf(total)) : -CUDART_INF_F;
	total = total > 0 ? 1 / total : 0;
	((uint2 *)g.o)[row * (RANK / 4) + threadIdx.x] =
		make_uint2(attn_pack<dtype>(sum.x * total, sum.y * total),
			   attn_pack<dtype>(sum.z * total, sum.w * total));
}

static int num_splits(const struct cairn_mla_paged_args *a, int32_t tasks)
{
	int num_sms = cairn_sms_of(a->sms), splits, tiles = attn_div_up(a->kv.max_len, KEYS);
	size_t each = (size_t)a->nnz_qo * (size_t)a->num_heads * (RANK * sizeof(float) + sizeof(float2));

	if (num_sms < 0)
		return num_sms;
	splits = tasks < num_sms ? num_sms / tasks : 1;
	if (splits < attn_div_up(a->kv.max_len, SPLIT_KEYS))
		splits = attn_div_up(a->kv.max_len, SPLIT_KEYS);
	splits = splits < MAX_SPLITS ? splits : MAX_SPLITS;
	splits = splits < tiles ? splits : tiles;
	splits = splits < num_sms ? splits : num_sms;
	while (splits > 1 && (size_t)splits * each > MAX_PARTIAL)
		splits--;
	return splits > 1 ? splits : 1;
}

/* Sets scalars and lays out the workspace at `ws`, which may be NULL. Returns its bytes, or -errno. */
static int64_t plan(struct paged *g, const struct cairn_mla_paged_args *a, char *ws)
{
	size_t at = 0, latents, parts;

	cairn_copy_args(&g->a, a, sizeof(g->a));
	g->rows = (int64_t)a->nnz_qo * a->num_heads;
	g->magic = attn_magic((uint32_t)a->num_heads);
	/* each request has at most one partial tile, so the bound leaves at least one CTA without a tile */
	g->tasks = (int32_t)((g->rows + ROWS - 1) / ROWS) + a->kv.batch;
	g->splits = num_splits(a, g->tasks);
	if (g->splits < 0)
		return g->splits;
	latents = (size_t)g->rows * RANK * 2;
	parts = g->splits > 1 ? (size_t)g->splits * (size_t)g->rows : 0;
#define PART(field, size) \
	do { *(void **)&g->field = ws + at; at += ((size_t)(size) + 255) / 256 * 256; } while (0)
	PART(ql, latents);
	PART(o, latents);
	PART(part, parts * RANK * sizeof(float));
	PART(ml, parts * sizeof(float2));
	PART(gemm_workspace, CAIRN_GEMM_LT_WORKSPACE);
#undef PART
	return (int64_t)at;
}

/* Returns the common arguments of the two products. a, b, out: those of head 0; strides are in elements. */
static struct cairn_gemm_lt head_product(const struct paged *g, void *out, const void *a, const void *b,
					 int n, int k)
{
	struct cairn_gemm_lt p = {};

	p.gemm.size = sizeof(p.gemm);
	p.gemm.out = out;
	p.gemm.a = a;
	p.gemm.b = b;
	p.gemm.workspace = g->gemm_workspace;
	p.gemm.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	p.gemm.m = g->a.nnz_qo;
	p.gemm.n = n;
	p.gemm.k = k;
	p.gemm.dtype = p.gemm.out_dtype = g->a.dtype;
	p.gemm.sms = g->a.sms;
	p.heads = g->a.num_heads;
	p.b_head = (NOPE + V_DIM) * RANK;
	p.algo = -1;
	return p;
}

static int absorb(const struct paged *g, void *stream)
{
	struct cairn_gemm_lt p = head_product(g, g->ql, g->a.q, g->a.w_kv_b, RANK, NOPE);

	p.b_kn = 1;
	p.a_head = NOPE + ROPE;
	p.a_row = (NOPE + ROPE) * (int64_t)g->a.num_heads;
	p.out_head = RANK;
	p.out_row = RANK * (int64_t)g->a.num_heads;
	return cairn_gemm_lt(&p, stream);
}

static int raise(const struct paged *g, void *stream)
{
	const uint16_t *down = (const uint16_t *)g->a.w_kv_b + NOPE * RANK;
	struct cairn_gemm_lt p = head_product(g, g->a.out, g->o, down, V_DIM, RANK);

	p.a_head = RANK;
	p.a_row = RANK * (int64_t)g->a.num_heads;
	p.out_head = V_DIM;
	p.out_row = V_DIM * (int64_t)g->a.num_heads;
	return cairn_gemm_lt(&p, stream);
}

extern "C" int cairn_mla_paged(const struct cairn_mla_paged_args *args, void *stream)
{
	struct cairn_launch l = { .pdl = !args->sms, .stream = stream };
	struct paged g = {};
	void *params[] = { &g };
	int64_t need;
	int f16, sms, at_once;

	CAIRN_TRY(cairn_mla_paged_check(args));
	if (!args->kv.batch || !args->nnz_qo)
		return 0;
	need = plan(&g, args, (char *)args->workspace);
	if (need < 0)
		return (int)need;
	if (!args->workspace || args->workspace_bytes < (size_t)need)
		return cairn_error(EINVAL, "mla_paged: workspace: %lld bytes, 256-byte aligned, are needed",
				   (long long)need);
	CAIRN_TRY(absorb(&g, stream));
	f16 = args->dtype == CAIRN_F16;
	l.grid[1] = (unsigned int)g.splits;
	l.block[0] = THREADS;
	l.smem = SMEM_BYTES;
	/* one launch of all tasks; with sms, launches of as many tasks as these SMs run at once */
	sms = cairn_sms_of(args->sms);
	at_once = sms < cairn_num_sms() ? sms / g.splits : g.tasks;
	for (g.first_task = 0; g.first_task < g.tasks; g.first_task += at_once) {
		int num = g.tasks - g.first_task < at_once ? g.tasks - g.first_task : at_once;

		l.grid[0] = (unsigned int)num;
		CAIRN_TRY(cairn_launch(f16 ? (const void *)mla_paged_kernel<CAIRN_F16> :
				       (const void *)mla_paged_kernel<CAIRN_BF16>, &l, params));
	}
	if (g.splits > 1) {
		struct cairn_launch merge = { .pdl = !args->sms, .stream = stream };

		merge.grid[0] = (unsigned int)g.rows;
		merge.block[0] = MERGE_THREADS;
		CAIRN_TRY(cairn_launch(f16 ? (const void *)mla_merge_kernel<CAIRN_F16> :
				       (const void *)mla_merge_kernel<CAIRN_BF16>, &merge, params));
	}
	return raise(&g, stream);
}

extern "C" int cairn_mla_paged_workspace(const struct cairn_mla_paged_args *args, size_t *bytes)
{
	struct paged g = {};
	int64_t need;

	CAIRN_TRY(cairn_mla_paged_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "mla_paged_workspace: bytes: null pointer");
	need = args->kv.batch && args->nnz_qo ? plan(&g, args, NULL) : 0;
	if (need < 0)
		return (int)need;
	*bytes = (size_t)need;
	return 0;
}
