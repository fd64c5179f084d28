/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_prefill - one product expands keys and values, attn_dense attends, attn_merge merges the parts
 *
 *   gather     latents of a part's keys from their pages                     [keys, 512], [keys, 64]
 *   gemm       all heads' keys and values                                    [keys, num_heads, 128 + 128]
 *   attention  causal for the new keys, full for past ones; out and lse of the part
 *   merge      after the last part, if there are several
 *
 * The causal mask of attn_dense is aligned with the last key of a request. So the part with the new keys
 * always holds all new keys, alone or after all past keys; every row sees all keys of every other part.
 *
 * In w_kv_b, the rows for a head's keys are followed by those for its values. So the product writes keys and
 * values side by side, and attn_dense reads them with strides. The rotated part of a key is the same for all
 * heads: attn_dense fetches it from a separate matrix (attn_dense_shared.h) instead of num_heads copies.
 *
 * attn_dense gets one request more than the call has. It holds the rows past the last request and no key, so
 * attn_dense writes these as rows without a key. If a request has no key in a part, its rows are written in
 * the same way, and their state has no weight. Keys past the last one of a part are zeros.
 *
 * If there are more parts than places for their results, the results so far are merged into the first place,
 * which frees the others.
 *
 * Floor: that of attn_dense, and 2 * 256 * 512 operations of the product for each key and head, which are a
 * tenth of attn_dense's at 8192 keys. Figures and optimisation history: ../NOTES.md.
 */
#include "fused/latent/prefill/mla_prefill.h"

#include "fused/attention/base/attn_tile.cuh"
#include "fused/attention/dense/attn_dense_shared.h"
#include "fused/attention/merge/attn_merge.h"
#include "primitives/base/launch.h"
#include "primitives/gemm/gemm_lt.h"

#define RANK		512
#define ROPE		64
#define NOPE		128
#define V_DIM		128
#define HEAD		(NOPE + V_DIM)	/* elements of a head in the product's result */
#define LATENT_CHUNKS	(RANK / 8)	/* 16 bytes each */
#define ROTATED_CHUNKS	(ROPE / 8)
#define CHUNKS		(LATENT_CHUNKS + ROTATED_CHUNKS)
#define ROW_BYTES	((RANK + ROPE) * 2)
#define THREADS		256
#define STATE_BYTES	((size_t)256 << 20)	/* for the results of parts, unless 4 need more */
#define MIN_STATES	4
#define DENSE_BYTES	256

struct prefill {
	struct cairn_mla_prefill_args a;
	int32_t chunk, parts, whole;	/* whole: the only part has all keys of each request */
	int32_t new_rows, rows;		/* keys of the part with the new keys; keys of the largest part */
	int32_t states;			/* places for the results of parts; 0: there is one part */
	/* attn_dense's pointers to rows, and to keys of the current part [batch + 2]; its counter */
	int32_t *qo, *part, *counter;
	void *latents, *rotated, *kv;	/* of the current part */
	char *o;			/* [states][nnz_qo][num_heads][V_DIM] */
	float *lse;			/* [states][nnz_qo][num_heads] */
	void *gemm_workspace;
};

/* Returns the sum of x over the lanes up to this one. */
ATTN_DEV int32_t sum_up_to(int32_t x)
{
#pragma unroll
	for (int s = 1; s < 32; s *= 2) {
		int32_t y = __shfl_up_sync(~0u, x, s);

		x += threadIdx.x % 32 >= s ? y : 0;
	}
	return x;
}

/* Sets *added and *past to the new and past keys of request b, 0 if there is none. */
ATTN_DEV void count_keys(const struct prefill &g, int32_t b, int32_t *added, int32_t *past)
{
	int32_t keys;

	*added = *past = 0;
	if (b >= g.a.kv.batch)
		return;
	keys = kv_walk_len(g.a.kv.indptr[b + 1] - g.a.kv.indptr[b], g.a.kv.last_page_len[b],
			   g.a.kv.page_size);
	*added = g.whole ? keys : min(g.a.qo_indptr[b + 1] - g.a.qo_indptr[b], keys);
	*past = keys - *added;
}

/*
 * Writes attn_dense's index arrays for request b, whose keys end at `end`, and the extra request after the
 * last.
 */
ATTN_DEV void tell_dense(const struct prefill &g, int32_t b, int32_t end, int32_t rows)
{
	const int32_t origin = g.a.qo_indptr[0];

	if (b == 0) {
		g.qo[0] = g.part[0] = 0;
		*g.counter = 0;
	}
	if (b >= g.a.kv.batch)
		return;
	end = min(max(end, 0), rows);
	g.qo[b + 1] = g.a.qo_indptr[b + 1] - origin;
	g.part[b + 1] = end;
	if (b == g.a.kv.batch - 1) {
		g.qo[b + 2] = g.a.nnz_qo;
		g.part[b + 2] = end;
	}
}

/*
 * Copies the latents of `rows` keys from number `base` on, one warp for each key. Keys are numbered over the
 * new or past keys of all requests; keys past the last one are zeros. The first warp also writes the arrays
 * of attn_dense.
 */
static __global__ void __launch_bounds__(THREADS)
mla_prefill_gather_kernel(const __grid_constant__ struct prefill g, int32_t base, int32_t rows,
			  int32_t is_new)
{
	const int32_t row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
	const int32_t key = base + row;
	const uint4 *from = NULL;
	uint4 x[3];
	int32_t before = 0;		/* keys of the requests before `first` */

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (row >= rows)
		return;
	for (int32_t first = 0; first < g.a.kv.batch && (!from || row == 0); first += 32) {
		int32_t b = first + lane, added, past, count, end, page, j;
		uint32_t here;

		count_keys(g, b, &added, &past);
		count = is_new ? added : past;
		end = before + sum_up_to(count);
		if (row == 0)
			tell_dense(g, b, end - base, rows);
		j = key - (end - count) + (is_new ? past : 0);
		here = __ballot_sync(~0u, key >= end - count && key < end);
		before = __shfl_sync(~0u, end, 31);
		if (!here)
			continue;
		b = first + __ffs(here) - 1;
		j = __shfl_sync(~0u, j, b - first);
		page = j / g.a.kv.page_size;
		from = (const uint4 *)((const char *)g.a.kv.k_pages +
				       ((int64_t)g.a.kv.indices[g.a.kv.indptr[b] + page] * g.a.kv.page_size +
					(j - page * g.a.kv.page_size)) * ROW_BYTES);
	}
#pragma unroll
	for (int k = 0; k < 3; k++)	/* all loads before the first store */
		x[k] = from && lane + 32 * k < CHUNKS ? from[lane + 32 * k] : make_uint4(0, 0, 0, 0);
#pragma unroll
	for (int k = 0; k < LATENT_CHUNKS / 32; k++)
		((uint4 *)g.latents)[(int64_t)row * LATENT_CHUNKS + lane + 32 * k] = x[k];
	if (lane < ROTATED_CHUNKS)
		((uint4 *)g.rotated)[(int64_t)row * ROTATED_CHUNKS + lane] = x[2];
}

static struct cairn_gemm_args product(const struct prefill *g, int32_t rows)
{
	struct cairn_gemm_args p = {};

	p.size = sizeof(p);
	p.out = g->kv;
	p.a = g->latents;
	p.b = g->a.w_kv_b;
	p.workspace = g->gemm_workspace;
	p.workspace_bytes = CAIRN_GEMM_LT_WORKSPACE;
	p.m = rows;
	p.n = g->a.num_heads * HEAD;
	p.k = RANK;
	p.dtype = p.out_dtype = g->a.dtype;
	p.sms = g->a.sms;
	return p;
}

/* Sets scalars and lays out the workspace at `ws`, which may be NULL. Returns its bytes. */
static size_t plan(struct prefill *g, const struct cairn_mla_prefill_args *a, char *ws)
{
	size_t at = 0, pairs = (size_t)a->nnz_qo * (size_t)a->num_heads, state = pairs * V_DIM * 2, fit;

	g->a = *a;
	g->chunk = cairn_mla_prefill_chunk(a);
	g->parts = cairn_mla_prefill_parts(a);
	g->whole = g->parts == 1;
	g->new_rows = a->nnz_qo + (g->whole ? a->nnz_past : 0);
	g->rows = g->whole || g->new_rows > g->chunk ? g->new_rows : g->chunk;
	fit = STATE_BYTES / state;
	fit = fit < MIN_STATES ? MIN_STATES : fit > CAIRN_ATTN_MERGE_STATES ? CAIRN_ATTN_MERGE_STATES : fit;
	g->states = g->whole ? 0 : g->parts < (int32_t)fit ? g->parts : (int32_t)fit;
#define PART(field, size) \
	do { *(void **)&g->field = ws + at; at += ((size_t)(size) + 255) / 256 * 256; } while (0)
	PART(qo, ((size_t)a->kv.batch + 2) * sizeof(int32_t));
	PART(part, ((size_t)a->kv.batch + 2) * sizeof(int32_t));
	PART(latents, (size_t)g->rows * RANK * 2);
	PART(rotated, (size_t)g->rows * ROPE * 2);
	PART(kv, (size_t)g->rows * (size_t)a->num_heads * HEAD * 2);
	PART(o, (size_t)g->states * state);
	PART(lse, (size_t)g->states * pairs * sizeof(float));
	PART(counter, DENSE_BYTES);
	PART(gemm_workspace, CAIRN_GEMM_LT_WORKSPACE);
#undef PART
	return at;
}

static int gather(const struct prefill *g, int32_t base, int32_t rows, int32_t is_new, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = !g->a.sms, .stream = stream };
	void *params[] = { (void *)g, &base, &rows, &is_new };

	l.grid[0] = (unsigned int)((rows + THREADS / 32 - 1) / (THREADS / 32));
	return cairn_launch((const void *)mla_prefill_gather_kernel, &l, params);
}

/* Attends to the expanded keys of a part of at most `rows`; writes its state to out and lse. */
static int attend(const struct prefill *g, void *out, float *lse, int32_t rows, int32_t is_new, void *stream)
{
	struct cairn_attn_dense_args d = {};

	d.size = sizeof(d);
	d.out = out;
	d.lse = lse;
	d.q = g->a.q;
	d.k = g->kv;
	d.v = (const uint16_t *)g->kv + NOPE;
	d.qo_indptr = g->qo;
	d.kv_indptr = g->part;
	d.workspace = g->counter;
	d.workspace_bytes = DENSE_BYTES;
	d.k_stride = d.v_stride = (int64_t)g->a.num_heads * HEAD;
	d.k_head_stride = d.v_head_stride = HEAD;
	d.batch = g->a.kv.batch + 1;
	d.nnz_qo = g->a.nnz_qo;
	d.nnz_kv = rows;
	d.max_qo_len = g->a.max_qo_len > 1 ? g->a.max_qo_len : 1;
	d.max_kv_len = rows < g->a.kv.max_len ? rows : g->a.kv.max_len;
	d.num_qo_heads = d.num_kv_heads = g->a.num_heads;
	d.qk_dim = NOPE + ROPE;
	d.v_dim = V_DIM;
	d.dtype = g->a.dtype;
	d.causal = is_new;
	d.sm_scale = g->a.sm_scale;
	d.sms = g->a.sms;
	return attn_dense_with_shared(&d, g->rotated, stream);
}

/* Merges the first `num` states into out and lse, which may be those of the first one. */
static int merge(const struct prefill *g, void *out, float *lse, int32_t num, void *stream)
{
	struct cairn_attn_merge_args m = {};

	m.size = sizeof(m);
	m.out = out;
	m.lse_out = lse;
	m.o = g->o;
	m.lse = g->lse;
	m.num_states = num;
	m.rows = g->a.nnz_qo;
	m.num_heads = g->a.num_heads;
	m.head_dim = V_DIM;
	m.dtype = m.out_dtype = g->a.dtype;
	return cairn_attn_merge(&m, stream);
}

extern "C" int cairn_mla_prefill(const struct cairn_mla_prefill_args *args, void *stream)
{
	struct prefill g = {};
	int32_t used = 0;
	size_t need, pairs;

	CAIRN_TRY(cairn_mla_prefill_check(args));
	if (!args->kv.batch || !args->nnz_qo)
		return 0;
	pairs = (size_t)args->nnz_qo * (size_t)args->num_heads;
	need = plan(&g, args, (char *)args->workspace);
	if (!args->workspace || args->workspace_bytes < need)
		return cairn_error(EINVAL, "mla_prefill: workspace: %zu bytes, 256-byte aligned, are needed",
				   need);
	for (int32_t i = 0; i < g.parts; i++) {
		int32_t rows = i ? g.chunk : g.new_rows;
		struct cairn_gemm_args p = product(&g, rows);

		CAIRN_TRY(gather(&g, i ? (i - 1) * g.chunk : 0, rows, !i, stream));
		CAIRN_TRY(cairn_gemm(&p, stream));
		if (g.whole)
			return attend(&g, args->out, args->lse, rows, 1, stream);
		if (used == g.states) {
			CAIRN_TRY(merge(&g, g.o, g.lse, used, stream));
			used = 1;
		}
		CAIRN_TRY(attend(&g, g.o + used * pairs * V_DIM * 2, g.lse + used * pairs, rows, !i, stream));
		used++;
	}
	return merge(&g, args->out, args->lse, used, stream);
}

/* Prepares the product of a part, so that it can be captured in a graph. */
static int prepare_product(const struct prefill *g, int32_t rows)
{
	struct cairn_gemm_args p = product(g, rows);
	size_t bytes;

	return cairn_gemm_workspace(&p, &bytes);
}

extern "C" int cairn_mla_prefill_workspace(const struct cairn_mla_prefill_args *args, size_t *bytes)
{
	struct prefill g = {};

	CAIRN_TRY(cairn_mla_prefill_check_shape(args));
	if (!bytes)
		return cairn_error(EINVAL, "mla_prefill_workspace: bytes: null pointer");
	*bytes = 0;
	if (!args->kv.batch || !args->nnz_qo)
		return 0;
	*bytes = plan(&g, args, NULL);
	CAIRN_TRY(prepare_product(&g, g.new_rows));
	return g.whole ? 0 : prepare_product(&g, g.chunk);
}
