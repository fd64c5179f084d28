// SPDX-License-Identifier: Apache-2.0
/*
 * attn_paged - launcher, and the decode kernel: few rows, many keys, split over a cluster
 *
 * A cluster works on one request, one KV head and 16 packed rows (query heads of the group x tokens). Its
 * CTAs take contiguous shares of the keys (attn_share); in a CTA of n warps, each warp takes every nth tile
 * of 16 keys of the share. A warp works alone: it gathers its tiles with cp.async into its own ring and keeps
 * its own softmax state, so the loop needs no barrier except __syncwarp(). At the end, the states are merged:
 * over warps through shared memory, over CTAs through distributed shared memory. Each CTA merges a slice of
 * the output. The order of the merge depends only on the cluster size, so results are bitwise repeatable.
 * The kernel needs one launch (several if sms limits the call) and no workspace. The device derives the split
 * from kv_len, so a captured graph serves any length within its bounds.
 *
 *   warp, tile n:  wait for tile n | start tile n + stages - 1, whose pages are known | look up the pages of
 *                  the tile after it | S = Q K^T | mask, online softmax | O += P V
 *   end:           O -> own ring; m, l beside the rings | CTA barrier | merge over warps -> ring of warp 0,
 *                  CTA's m, l | cluster barrier | merge a slice of rows x head_dim over ranks, write |
 *                  cluster barrier
 *
 * The host chooses cluster size and CTA width from the bounds, by attn_decode_split(): 8 warps and a whole
 * SM, or 4 and half an SM; with head_dim 256, 6 or 3; with 8-bit keys of up to 128 dimensions, 12 or 6 and,
 * with 128, also 3 and a quarter, or one. If nnz_kv says that a few requests are much longer than the others,
 * another kernel runs instead: that of attn_paged_uneven.cu, in which several tasks may share a cluster, or,
 * with more tasks than CTAs run at once, that of attn_paged_shares.cu, in which every CTA has an equal share
 * of all keys. All three have parts in common (attn_paged_decode.cuh).
 *
 * The kernels of attn_bsr process batches of requests with more rows; for them, the pages of a request are a
 * list of blocks. Both a decode kernel and attn_bsr are launched for a mixed batch, because only the device
 * knows the lengths: the decode kernel takes the requests of up to ATTN_DECODE_TILE packed rows, and the plan
 * of attn_bsr skips them.
 *
 * A window changes only the first key that a task visits and the length that the host assumes. One comparison
 * masks both the keys before a row's window and those past its end; keys before the window of the first row
 * are not read.
 *
 * Shared memory, w warps                                             head_dim 64   128   256
 *   0         [w][stages][K tile, V tile], 16 keys each, swizzled; stages    6     3     2
 *             8-bit keys: 32, 32, 16 keys each; stages                       4     2     4
 *             before the loop, with 16-bit keys, in the last stage of each warp: Q, swizzled as K is
 *             after the loop, at the start of each warp's ring: its O, [16][head_dim] f32
 *   w * ring  m [w][16], l [w][16] of the warps, m [16], l [16] of the CTA
 *   KiB, whole SM (w = 8; 12 with 8-bit keys; head_dim 256: 6)             193   193   193
 *
 * Barriers: after the loop, __syncthreads() once and the cluster barrier twice. There is one cp.async group
 * for each tile, and empty groups follow the last tile, so waiting for all but stages - 2 groups always waits
 * for tile n.
 * Registers: 109, 167, 252 for head_dim 64, 128, 256 (O 128 and Q 64 of the 252), 121, 167, 253 with 8-bit
 * keys; no spills.
 * Floor: one read of K and V at the read ceiling (4.58 TB/s on an H200). Hiding the latency takes about 40
 * KiB in flight on each SM; these rings have 96 to 160, depending on head_dim. Keys of 8 bits
 * (attn_paged_8bit.cuh) have half the bytes but cost as many instructions.
 * Optimisation history: ../NOTES.md.
 */
#include "fused/attention/paged/attn_paged.h"

#include "primitives/base/device_cache.h"
#include "primitives/base/launch.h"
#include "fused/attention/bsr/attn_bsr_front.h"
#include "fused/attention/paged/attn_paged_shares.h"
#include "fused/attention/paged/attn_paged_team.cuh"
#include "fused/attention/paged/attn_paged_uneven.h"

/* The team of a task is its cluster. magic: attn_magic() of its size */
struct whole_cluster {
	uint32_t magic;

	__device__ __forceinline__ int size() const { return ptx_cluster_nctarank(); }
	__device__ __forceinline__ int first() const { return 0; }
	__device__ __forceinline__ int rank() const { return ptx_cluster_ctarank(); }
	__device__ __forceinline__ int share(int total, int rank) const
	{
		return attn_share_by(total, magic, rank);
	}
};

template <int dtype, int head_dim, bool fp8>
static __global__ __launch_bounds__(num_warps<head_dim, fp8>() * 32) void
attn_paged_decode_kernel(const __grid_constant__ struct cairn_attn_paged_args a, int32_t row_tiles,
			 int32_t max_rows, int32_t group, uint32_t magic, uint32_t size_magic,
			 int32_t first_task)
{
	int task = first_task + ptx_clusterid_x(), head = task % a.num_kv_heads, rest = task / a.num_kv_heads;
	int row0 = rest % row_tiles * ROWS, b = rest / row_tiles;
	struct attn_request r;
	int32_t rows;

	/* The preceding kernel may still write these; a prefetch to the L2 speeds up their later look-up. */
	if (threadIdx.x == 0 && a.kv.max_len) {
		ptx_prefetch_global_L2(a.kv.indptr + b);
		ptx_prefetch_global_L2(a.kv.last_page_len + b);
		ptx_prefetch_global_L2(a.qo_indptr + b);
		ptx_prefetch_global_L2(a.kv.indices);
	}
	ptx_griddepcontrol_wait();
	r = attn_load_request(a, b, head, group, magic);
	rows = r.qo_len * group;
	if (row0 < rows && rows <= max_rows)	/* uniform over the cluster */
		attend_rows<dtype, head_dim, fp8>(a, r, row0, min(rows, row0 + ROWS),
						  (struct whole_cluster){ size_magic });
}

/* The decode kernels for a shape, the bytes of a warp's ring, and the warps of each width of a CTA. */
struct decoder {
	const void *kernel, *uneven;	/* uneven: for uneven lengths, attn_paged_uneven.h */
	int ring, warps[ATTN_WIDTHS];
};

template <int head_dim, bool fp8> static struct decoder decoder_of(int dtype)
{
	struct decoder d = { dtype == CAIRN_F16 ?
			     (const void *)attn_paged_decode_kernel<CAIRN_F16, head_dim, fp8> :
			     (const void *)attn_paged_decode_kernel<CAIRN_BF16, head_dim, fp8>,
			     attn_paged_uneven_kernel(dtype, head_dim, fp8),
			     ring_bytes<head_dim, fp8>(), {} };

	for (int width = 0; width < ATTN_WIDTHS; width++)
		d.warps[width] = attn_decode_warps(head_dim, fp8, width);
	return d;
}

static struct decoder choose_decoder(const struct cairn_attn_paged_args *a)
{
	switch (a->head_dim) {
	case 64:
		return a->kv_fp8 ? decoder_of<64, true>(a->dtype) : decoder_of<64, false>(a->dtype);
	case 128:
		return a->kv_fp8 ? decoder_of<128, true>(a->dtype) : decoder_of<128, false>(a->dtype);
	default:
		return a->kv_fp8 ? decoder_of<256, true>(a->dtype) : decoder_of<256, false>(a->dtype);
	}
}

/* Returns the bytes of shared memory of a CTA. */
static int smem_bytes(int ring, int warps)
{
	return warps * ring + (warps + 1) * ROWS * 8;
}

static void set_width(struct cairn_launch *l, const struct decoder *d, int width)
{
	l->block[0] = (unsigned int)d->warps[width] * 32;
	l->smem = (size_t)smem_bytes(d->ring, d->warps[width]);
}

/* resident[] of attn_decode_split() */
struct residency {
	int32_t ctas[ATTN_WIDTHS][ATTN_MAX_CLUSTER + 1];
};

static int ask_residency(const void *arg, int32_t *answer)
{
	const struct decoder *d = (const struct decoder *)arg;
	struct residency *r = (struct residency *)answer;
	struct cairn_launch l = {};

	*r = {};
	for (int width = 0; width < ATTN_WIDTHS; width++) {
		set_width(&l, d, width);
		for (int c = 1; c <= ATTN_MAX_CLUSTER && d->warps[width]; c++) {
			int n;

			l.cluster = c;
			l.grid[0] = c;
			n = cairn_max_active_clusters(d->kernel, &l);
			r->ctas[width][c] = n > 0 ? n * c : 0;
		}
	}
	return 0;
}

/* Caches all residencies of a kernel as one answer, because every look-up costs time at each call. */
static int find_residency(const struct decoder *d, struct residency *r)
{
	struct cairn_device_question q = {};

	q.kernel = d->kernel;
	CAIRN_CUDA(cudaGetDevice(&q.device));
	return cairn_device_ask(&q, r->ctas[0], sizeof(*r) / sizeof(int32_t), ask_residency, d);
}

/*
 * Launches the kernel for uneven lengths, or returns 1 if teams would not gain. keys: the most keys that a
 * request has to read.
 */
static int launch_uneven(const struct cairn_attn_paged_args *args, int32_t max_rows, int32_t keys,
			 const struct decoder *decoder, const struct residency *residency, void *stream)
{
	int32_t group = args->num_qo_heads / args->num_kv_heads;
	int64_t num_tasks = (int64_t)args->kv.batch * args->num_kv_heads, ctas, clusters;
	struct attn_teams t = attn_decode_teams(num_tasks, keys, (double)args->nnz_kv / args->kv.batch,
						args->head_dim, args->kv_fp8, residency->ctas);
	struct attn_uneven u = { max_rows, group, attn_magic((uint32_t)group), keys, t.share };
	void *params[] = { (void *)args, &u };
	struct cairn_launch l = {};

	if (t.most == 1)
		return 1;
	/* attn_paged_uneven.h; a task has at most one cluster */
	ctas = num_tasks + 2 * args->nnz_kv * args->num_kv_heads / t.share;
	clusters = min(num_tasks, ctas / t.most + ATTN_TEAM_SIZES);
	if (clusters * t.most > 0x7fffffff)
		return 1;
	set_width(&l, decoder, t.width);
	l.cluster = t.most;
	l.grid[0] = (unsigned int)(clusters * t.most);
	l.pdl = 1;
	l.stream = stream;
	return cairn_launch(decoder->uneven, &l, params);
}

/*
 * Returns the most keys that a row tile reads: with a window, that of its first row and one more key for each
 * further token.
 */
static int32_t keys_of_tile(const struct cairn_attn_paged_args *a)
{
	const int64_t keys = (int64_t)a->window + attn_div_up(ROWS, a->num_qo_heads / a->num_kv_heads);

	return a->window && keys < a->kv.max_len ? (int32_t)keys : a->kv.max_len;
}

/* Launches a decode kernel for the requests of up to max_rows packed rows. */
static int launch_decode(const struct cairn_attn_paged_args *args, int32_t max_rows,
			 const struct attn_shares_room *shares, void *stream)
{
	int32_t row_tiles = attn_div_up(max_rows, ROWS), group = args->num_qo_heads / args->num_kv_heads;
	int64_t num_tasks = (int64_t)args->kv.batch * args->num_kv_heads * row_tiles, at_once;
	uint32_t magic = attn_magic((uint32_t)group), size_magic;
	int32_t first_task;
	void *params[] = { (void *)args, &row_tiles, &max_rows, &group, &magic, &size_magic, &first_task };
	const int sms = cairn_sms_of(args->sms), limited = sms < cairn_num_sms();
	const int on_part = cairn_stream_is_part(stream);
	const struct decoder decoder = choose_decoder(args);
	struct cairn_launch l = {};
	struct residency residency;
	struct attn_split split;

	if (sms < 0)
		return sms;
	if (on_part < 0)
		return on_part;
	CAIRN_TRY(find_residency(&decoder, &residency));
	/* even if this stream has a part of the device: a later call by this plan may have all of it */
	if (shares->most && !limited && !args->planned)
		CAIRN_TRY(attn_shares_begin(args, shares, stream));
	if (shares->most && !limited && !on_part)
		return attn_shares_attend(args, max_rows, shares, stream);
	if (row_tiles == 1 && args->nnz_kv && !limited && !on_part) {
		int ret = launch_uneven(args, max_rows, keys_of_tile(args), &decoder, &residency, stream);

		if (ret <= 0)
			return ret;
	}
	for (int c = 1; c <= ATTN_MAX_CLUSTER; c++) {
		/* only clusters of a portable size fit every part of the device */
		const int32_t most = on_part && c > 8 ? 0 : limited ? sms / c * c : INT32_MAX;

		for (int width = 0; width < ATTN_WIDTHS; width++)
			if (residency.ctas[width][c] > most)
				residency.ctas[width][c] = most;
	}
	split = attn_decode_split(num_tasks, keys_of_tile(args), args->head_dim, args->kv_fp8,
				  residency.ctas);
	if (num_tasks * split.cluster_size > 0x7fffffff)
		return cairn_error(EOPNOTSUPP, "attn_paged: kv.batch, num_kv_heads, max_qo_len: %lld CTAs, "
				   "beyond a grid", (long long)(num_tasks * split.cluster_size));
	set_width(&l, &decoder, split.width);
	size_magic = attn_magic((uint32_t)split.cluster_size);
	/* without clusters, CTAs start sooner than in clusters of one */
	l.cluster = split.cluster_size > 1 ? split.cluster_size : 0;
	l.pdl = !args->sms;	/* a dependent launch would take SMs that this call may not use */
	l.stream = stream;
	/*
	 * one launch with all tasks; if sms limits the call, each launch has as many tasks as these SMs hold
	 * at once
	 */
	at_once = limited ? sms / split.cluster_size : num_tasks;
	for (int64_t first = 0; first < num_tasks; first += at_once) {
		int64_t num = num_tasks - first < at_once ? num_tasks - first : at_once;

		first_task = (int32_t)first;
		l.grid[0] = (unsigned int)(num * split.cluster_size);
		CAIRN_TRY(cairn_launch(decoder.kernel, &l, params));
	}
	return 0;
}

/*
 * The kernels that a call uses. DECODE: the decode kernel alone. PREFILL: the kernels of attn_bsr alone.
 * MIXED: the decode kernel takes the requests of up to ATTN_DECODE_TILE packed rows, attn_bsr the others.
 */
enum way { NOTHING, DECODE, PREFILL, MIXED };

static enum way way_of(const struct cairn_attn_paged_args *args)
{
	int64_t max_rows = (int64_t)args->max_qo_len * (args->num_qo_heads / args->num_kv_heads);

	if (!args->kv.batch || !args->nnz_qo || !args->max_qo_len)
		return NOTHING;
	if (max_rows <= ATTN_DECODE_ROWS)
		return DECODE;
	/*
	 * with one request, or if all requests are as long as the longest, the decode kernel would have
	 * nothing to do
	 */
	if (args->kv.batch == 1 || args->nnz_qo == (int64_t)args->kv.batch * args->max_qo_len)
		return PREFILL;
	return MIXED;
}

/* A call of attn_bsr: the pages of each request are the blocks of a block row. */
struct prefill {
	struct cairn_attn_bsr_args args;
	struct attn_bsr_front front;
};

static struct prefill prefill_of(const struct cairn_attn_paged_args *a, enum way way)
{
	struct prefill p = {};
	struct cairn_attn_part *part = &p.args.part[0];

	p.args.size = sizeof(p.args);
	p.args.out = a->out;
	p.args.lse = a->lse;
	p.args.q = a->q;
	p.args.workspace = a->workspace;
	p.args.workspace_bytes = a->workspace_bytes;
	p.args.q_stride = a->q_stride;
	p.args.num_parts = 1;
	p.args.nnz_qo = a->nnz_qo;
	p.args.num_qo_heads = a->num_qo_heads;
	p.args.num_kv_heads = a->num_kv_heads;
	p.args.head_dim = a->head_dim;
	p.args.dtype = a->dtype;
	p.args.kv_fp8 = a->kv_fp8;
	p.args.sm_scale = a->sm_scale;
	p.args.window = a->window;
	p.args.softcap = a->softcap;
	p.args.sms = a->sms;
	part->k = a->kv.k_pages;
	part->v = a->kv.v_pages;
	part->k_scale = a->k_scale;
	part->v_scale = a->v_scale;
	part->row_indptr = a->qo_indptr;
	part->blk_indptr = a->kv.indptr;
	part->blk_indices = a->kv.indices;
	part->last_len = a->kv.last_page_len;
	part->rows = a->kv.batch;
	part->block_m = 1;
	part->block_n = a->kv.page_size;
	part->index_heads = 1;
	part->num_blocks = a->kv.num_pages;
	part->max_keys = a->kv.max_len;
	part->mask_mode = a->causal ? CAIRN_ATTN_CAUSAL : CAIRN_ATTN_ALL;
	p.front.skip = way == MIXED ? ATTN_DECODE_TILE : 0;
	p.front.longest = a->max_qo_len;
	return p;
}

/* Returns the most packed rows of the requests that a decode kernel takes. */
static int32_t decode_rows(const struct cairn_attn_paged_args *a, enum way way)
{
	return way == MIXED ? ATTN_DECODE_TILE : a->max_qo_len * (a->num_qo_heads / a->num_kv_heads);
}

/* Lays out equal shares behind the first *bytes of the workspace if they are the fastest way to decode. */
static int find_shares(const struct cairn_attn_paged_args *a, struct attn_shares_room *shares, size_t *bytes)
{
	const int64_t num_tasks = (int64_t)a->kv.batch * a->num_kv_heads;
	const struct decoder decoder = choose_decoder(a);
	struct residency residency;
	int32_t resident;

	CAIRN_TRY(find_residency(&decoder, &residency));
	resident = residency.ctas[ATTN_HALF][1];
	if (!attn_wants_shares(num_tasks, keys_of_tile(a), (double)a->nnz_kv / a->kv.batch, a->head_dim,
			       a->kv_fp8, resident))
		return 0;
	return attn_shares_lay_out(a, resident, shares, bytes);
}

/* Sets the shares of a call, and the size of its workspace: what attn_bsr needs, then what shares need. */
static int lay_out(const struct cairn_attn_paged_args *a, enum way way, struct attn_shares_room *shares,
		   size_t *bytes)
{
	*shares = {};
	*bytes = 0;
	if (way == PREFILL || way == MIXED) {
		const struct prefill p = prefill_of(a, way);
		const int ret = attn_bsr_front_workspace(&p.args, &p.front, bytes);

		if (ret)
			return ret == -EOPNOTSUPP ? cairn_error(EOPNOTSUPP, "attn_paged: nnz_qo, max_qo_len, "
								"kv.batch: too large") : ret;
	}
	if (!a->nnz_kv || way == NOTHING || way == PREFILL || decode_rows(a, way) > ROWS)
		return 0;
	return find_shares(a, shares, bytes);
}

extern "C" int cairn_attn_paged_workspace(const struct cairn_attn_paged_args *args, size_t *bytes)
{
	struct attn_shares_room shares;

	CAIRN_TRY(cairn_attn_paged_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "attn_paged_workspace: bytes: null pointer");
	return lay_out(args, way_of(args), &shares, bytes);
}

extern "C" int cairn_attn_paged(const struct cairn_attn_paged_args *args, void *stream)
{
	struct attn_shares_room shares;
	enum way way;
	size_t bytes;

	CAIRN_TRY(cairn_attn_paged_check(args));
	way = way_of(args);
	CAIRN_TRY(lay_out(args, way, &shares, &bytes));
	if (bytes && (!args->workspace || (uintptr_t)args->workspace % 256 || args->workspace_bytes < bytes))
		return cairn_error(EINVAL, "attn_paged: workspace, workspace_bytes: at least %zu bytes, "
				   "256-byte aligned", bytes);
	if ((int64_t)args->kv.num_pages * args->kv.page_size > 0xfffffffell)
		return cairn_error(EOPNOTSUPP, "attn_paged: kv.num_pages * kv.page_size: beyond 32 bits");
	if (way == NOTHING)
		return 0;
	if (way == DECODE)
		return launch_decode(args, decode_rows(args, way), &shares, stream);
	const struct prefill p = prefill_of(args, way);

	if (!args->planned)
		CAIRN_TRY(attn_bsr_front_plan(&p.args, &p.front, stream));
	if (way == MIXED)
		CAIRN_TRY(launch_decode(args, decode_rows(args, way), &shares, stream));
	return attn_bsr_front_attend(&p.args, &p.front, stream);
}
