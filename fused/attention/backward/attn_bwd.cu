/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bwd - the gradients of attn_dense, by wgmma and TMA (FlashAttention-2, backward), repeatable
 *
 *   attn_bwd_rows   writes lse and delta of each row to the workspace, ordered by head and token tile
 *   attn_bwd_all    up to 128 dimensions: dq, dk, dv in five products; then attn_bwd_dq rounds dq
 *   attn_bwd_kv     above 128: dk, dv; a CTA owns keys and walks over tokens; 4 products
 *   attn_bwd_q      above 128: dq; a CTA owns tokens and walks over keys; 3 products
 *
 * Above 128 dimensions the accumulators of five products do not fit the registers, so two of the products are
 * computed twice. Every sum has a fixed order.
 *
 * Floor: 5 * (qk_dim + v_dim) * (query, key) pairs for five products, 7 for seven, at the rate of wgmma.
 */
#include "fused/attention/backward/attn_bwd_tile.cuh"

#include <math.h>

#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"

/* Alignment of the arrays in the workspace, in bytes. */
#define ALIGN	256

/*
 * Limits of the KV heads between which the CTAs of attn_bwd_all alternate: the bytes of their Q, dO and dq,
 * and their number.
 */
#define SECTION_BYTES	(128 << 20)
#define MAX_SECTION	16

/* Offsets of the arrays in the workspace, and its size, in bytes. */
struct places {
	int32_t token_shift, token_tiles;
	size_t turns, dq_sum, bytes;
};

static bool in_one_kernel(const struct cairn_attn_bwd_args *a)
{
	return a->qk_dim <= 128 && a->v_dim <= 128;
}

static struct places places_of(const struct cairn_attn_bwd_args *a)
{
	struct places p = {};
	size_t tiles;

	p.token_shift = a->qk_dim <= 64 && a->v_dim <= 64 ? 7 : 6;
	p.token_tiles = (a->nnz_qo >> p.token_shift) + a->batch;
	tiles = (size_t)p.token_tiles * (size_t)a->num_qo_heads;
	p.turns = tiles * 2 * sizeof(float) << p.token_shift;
	p.dq_sum = p.turns + (tiles * sizeof(uint32_t) + ALIGN - 1) / ALIGN * ALIGN;
	p.bytes = p.dq_sum + (in_one_kernel(a) ? tiles * ATTN_BWD_DQ_BYTES : 0);
	return p;
}

int cairn_attn_bwd_workspace(const struct cairn_attn_bwd_args *args, size_t *bytes)
{
	if (!bytes)
		return cairn_error(EINVAL, "attn_bwd_workspace: null pointer");
	CAIRN_TRY(cairn_attn_bwd_check_shape(args));
	*bytes = places_of(args).bytes;
	return 0;
}

/*
 * Returns the number of KV heads in a section. Consecutive CTAs of attn_bwd_all take the same key tile of all
 * heads of a section, then the next key tile. With fewer heads, more of the resident CTAs belong to one head:
 * they share its rows of Q, dO and dq in the L2, but the last of them waits longer until it may first add to
 * dq. The number is such that about a quarter of a head's key tiles are resident, or smaller if the rows of
 * all heads of a section would not fit the L2.
 */
static int32_t section_of(const struct cairn_attn_bwd_args *a, int32_t keys, int num_sms)
{
	double rows = (double)a->max_qo_len * a->num_qo_heads / a->num_kv_heads;
	double bytes = rows * (a->qk_dim <= 64 && a->v_dim <= 64 ? 512 : 1024) + 1;
	double heads = fmin(4.0 * num_sms * keys / (a->max_kv_len + 1.0), SECTION_BYTES / bytes);

	heads = fmin(heads, MAX_SECTION);
	return heads < 1 ? 1 : (int32_t)heads;
}

/* Maps [outer][middle][dim], whose strides are in elements, in boxes of 64 elements. */
static int make_map(CUtensorMap *map, const void *data, int32_t dim, int64_t middle, int64_t middle_stride,
		    int64_t outer, int64_t outer_stride, int box_middle, int box_outer)
{
	const struct cairn_tensor_layout t = {
		.data = data, .dims = 3, .element_bytes = 2,
		.size = { (uint64_t)dim, (uint64_t)(middle ? middle : 1), (uint64_t)(outer ? outer : 1) },
		.stride = { (uint64_t)middle_stride * 2, (uint64_t)outer_stride * 2 },
		.box = { 64, (uint32_t)box_middle, (uint32_t)box_outer }, .swizzle = 128, .promotion = 256,
	};

	return cairn_tensor_map(map, &t, "attn_bwd");
}

static int make_maps(struct attn_bwd_maps *maps, const struct cairn_attn_bwd_args *a,
		     const struct attn_bwd_kernel *f)
{
	const struct cairn_attn_dense_args d = cairn_attn_bwd_forward(a);
	const int32_t heads = a->num_qo_heads;

	CAIRN_TRY(make_map(&maps->q, a->q, a->qk_dim, heads, a->qk_dim, a->nnz_qo,
			   cairn_attn_dense_q_stride(&d), 1, f->q_rows));
	CAIRN_TRY(make_map(&maps->dout, a->dout, a->v_dim, heads, a->v_dim, a->nnz_qo,
			   (int64_t)heads * a->v_dim, 1, f->q_rows));
	CAIRN_TRY(make_map(&maps->k, a->k, a->qk_dim, a->nnz_kv, cairn_attn_dense_k_stride(&d),
			   a->num_kv_heads, cairn_attn_dense_k_head_stride(&d), f->kv_rows, 1));
	return make_map(&maps->v, a->v, a->v_dim, a->nnz_kv, cairn_attn_dense_v_stride(&d), a->num_kv_heads,
			cairn_attn_dense_v_head_stride(&d), f->kv_rows, 1);
}

/* Launches a kernel over all its tiles. If `sms` limits the call, launches rounds of that many CTAs. */
static int launch_tiles(const struct cairn_attn_bwd_args *args, struct attn_bwd_call *call,
			const struct attn_bwd_kernel *f, int32_t max_len, int32_t heads, int num_sms,
			void *stream)
{
	int64_t tiles, most;
	struct attn_bwd_maps maps;
	void *params[] = { call, &maps };
	struct cairn_launch l = {};

	call->tiles = max_len / f->tile + (max_len % f->tile != 0);
	tiles = (int64_t)call->tiles * heads * args->batch;
	if (!tiles)
		return 0;
	if (tiles > 0x7fffffff)
		return cairn_error(EOPNOTSUPP, "attn_bwd: batch, heads, max_qo_len, max_kv_len: too large");
	CAIRN_TRY(make_maps(&maps, args, f));
	most = args->sms ? num_sms : tiles;
	l.block[0] = (unsigned int)f->threads;
	l.smem = f->smem;
	l.stream = stream;
	for (call->first = 0; call->first < tiles; call->first += (int32_t)most) {
		l.grid[0] = (unsigned int)(tiles - call->first < most ? tiles - call->first : most);
		CAIRN_TRY(cairn_launch(f->kernel[args->dtype == CAIRN_BF16], &l, params));
		if (tiles - call->first <= most)
			break;
	}
	return 0;
}

int cairn_attn_bwd(const struct cairn_attn_bwd_args *args, void *stream)
{
	struct attn_bwd_call call = {};
	struct attn_bwd_kernel all, kv, q;
	struct places p;
	int num_sms;

	CAIRN_TRY(cairn_attn_bwd_check(args));
	p = places_of(args);
	if (p.bytes && (!args->workspace || (uintptr_t)args->workspace % ALIGN ||
			args->workspace_bytes < p.bytes))
		return cairn_error(EINVAL, "attn_bwd: workspace, workspace_bytes: at least %zu bytes, "
				   "256-byte aligned", p.bytes);
	if (!args->batch)
		return 0;
	num_sms = cairn_sms_of(args->sms);
	if (num_sms < 0)
		return num_sms;
	call.dq = args->dq;
	call.dk = args->dk;
	call.dv = args->dv;
	call.rows = (float *)args->workspace;
	call.turns = (uint32_t *)((char *)args->workspace + p.turns);
	call.dq_sum = (float *)((char *)args->workspace + p.dq_sum);
	call.qo_indptr = args->qo_indptr;
	call.kv_indptr = args->kv_indptr;
	call.batch = args->batch;
	call.num_qo_heads = args->num_qo_heads;
	call.num_kv_heads = args->num_kv_heads;
	call.group = args->num_qo_heads / args->num_kv_heads;
	call.qk_dim = args->qk_dim;
	call.v_dim = args->v_dim;
	call.causal = args->causal;
	call.window = args->window;
	call.token_shift = p.token_shift;
	call.token_tiles = p.token_tiles;
	call.sm_scale = args->sm_scale;
	call.softcap = args->softcap;
	call.cap = args->softcap > 0 ? 2 * ATTN_LOG2E * (args->sm_scale / args->softcap) : 0;
	CAIRN_TRY(attn_bwd_launch_rows(args, &call, num_sms, stream));
	if (in_one_kernel(args)) {
		all = p.token_shift == 7 ? attn_bwd_all_64() : attn_bwd_all_128();
		call.section = section_of(args, all.tile, num_sms);
		CAIRN_TRY(launch_tiles(args, &call, &all, args->max_kv_len, args->num_kv_heads, num_sms,
				       stream));
		return attn_bwd_launch_dq(args, &call, num_sms, stream);
	}
	kv = args->qk_dim <= 192 && args->v_dim <= 128 ? attn_bwd_kv_192_128() : attn_bwd_kv_256();
	q = args->qk_dim <= 192 && args->v_dim <= 128 ? attn_bwd_q_192_128() : attn_bwd_q_256();
	CAIRN_TRY(launch_tiles(args, &call, &kv, args->max_kv_len, args->num_kv_heads, num_sms, stream));
	return launch_tiles(args, &call, &q, args->max_qo_len, args->num_qo_heads, num_sms, stream);
}
