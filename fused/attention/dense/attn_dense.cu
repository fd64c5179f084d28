/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense - attention over contiguous keys, by wgmma and TMA (FlashAttention-3)
 *
 * CTAs are persistent, with two or three consumer warpgroups and a producer warp. attn_forward.cuh describes
 * the schedule of the consumers, attn_dense_fetch.cuh the producer. This file chooses the form and lays out
 * the call.
 *
 * Row tiles: if the number of query heads of a KV head is a power of two up to 64, a tile holds all these
 * heads of consecutive tokens, as packed rows (attn_tile.h). A causal call then computes fewer masked logits,
 * and TMA fetches Q in one box for each 64 columns. Otherwise a tile holds rows of one head.
 *
 * Order: if there are more row tiles than CTAs, CTAs draw them from a counter in the workspace, the longest
 * first within a section of heads whose keys the L2 can hold. Results do not depend on which CTA computes a
 * tile. Clusters take theirs in a fixed order.
 *
 * Forms: qk_dim x v_dim as computed, rows x keys of a tile, stages of K and V, buffers of Q, shared memory
 *    64 x  64   192 x  96   4   2   144 KiB     three consumers: exponentials take longer than products
 *    64 x  64   128 x 128   4   2   160 KiB     where lengths fill its tiles better
 *    96 x  96   128 x 128   2   2   192 KiB
 *   128 x 128   128 x 128   2   2   192 KiB     causal, below 8192 keys: fewer masked logits
 *   128 x 128   128 x 160   2   2   224 KiB     otherwise: fewer, larger products; also in clusters of two
 *   192 x 128   128 x 128   2   1   208 KiB
 *   256 x 128   128 x  64   2   1   160 KiB
 *   128 x 256   128 x  64   2   1   128 KiB
 *   256 x 256   128 x  80   2   1   224 KiB
 * Other dimensions use the next larger form, padded with zeros.
 *
 * Floor: 2 * (qk_dim + v_dim) * (query, key) pairs at the rate of wgmma, 680 to 790 TFLOP/s on an H200 at its
 * power limit. Optimisation history: ../NOTES.md.
 */
#include "fused/attention/dense/attn_dense_kernel.cuh"

#include "fused/attention/dense/attn_dense_shared.h"
#include "fused/attention/dense/attn_dense_maps.cuh"
#include "fused/attention/dense/attn_dense_plan.cuh"

/* From this many keys on, larger key tiles save more time than the masked logits that they add cost. */
#define LONG_KEYS	8192

struct attn_dense_kernel attn_dense_64(void)
{
	return attn_dense_instance<attn_form<64, 64, 96, 3, 4, 2, 152, 56>>();
}

struct attn_dense_kernel attn_dense_64_even(void)
{
	return attn_dense_instance<attn_form<64, 64, 128, 2, 4, 2, 232, 40>>();
}

struct attn_dense_kernel attn_dense_96(void)
{
	return attn_dense_instance<attn_form<96, 96, 128, 2, 2, 2, 232, 40>>();
}

struct attn_dense_kernel attn_dense_128(void)
{
	return attn_dense_instance<attn_form<128, 128, 128, 2, 2, 2, 232, 40>>();
}

typedef attn_form<128, 128, 160, 2, 2, 2, 232, 40> attn_form_long;

struct attn_dense_kernel attn_dense_128_long(void)
{
	return attn_dense_instance<attn_form_long>();
}

struct attn_dense_kernel attn_dense_128_pair(void)
{
	return attn_dense_instance<attn_form_pair<attn_form_long>>();
}

/*
 * Returns whether clusters of two pay. Their CTAs proceed in step and take row tiles in a fixed order, so all
 * row tiles should have equally many keys: no mask, and requests that all are as long as the longest.
 */
static bool in_pairs(const struct cairn_attn_dense_args *a, int num_sms)
{
	const int group = a->num_qo_heads / a->num_kv_heads;

	return !a->causal && !a->window && num_sms >= 2 &&
	       a->nnz_qo == (int64_t)a->batch * a->max_qo_len &&
	       a->nnz_kv == (int64_t)a->batch * a->max_kv_len &&
	       (int64_t)a->max_qo_len << attn_dense_shift(group) > attn_form_long::rows;
}

/* Returns the number of logits of a head with the most queries and keys, padded to whole tiles. */
static double padded(const struct cairn_attn_dense_args *a, const struct attn_dense_kernel &f)
{
	const int64_t rows = (int64_t)a->max_qo_len << attn_dense_shift(a->num_qo_heads / a->num_kv_heads);

	return (double)((rows + f.rows - 1) / f.rows * f.rows) *
	       (double)(((int64_t)a->max_kv_len + f.keys - 1) / f.keys * f.keys);
}

/* For each padded logit, the form of 192 x 96 takes less time, by a factor of 1.08 (../NOTES.md). */
static struct attn_dense_kernel choose_64(const struct cairn_attn_dense_args *a)
{
	const struct attn_dense_kernel even = attn_dense_64_even(), three = attn_dense_64();

	return 1.08 * padded(a, even) < padded(a, three) ? even : three;
}

static struct attn_dense_kernel choose(const struct cairn_attn_dense_args *a, int num_sms)
{
	const int32_t qk = a->qk_dim, v = a->v_dim;

	if (qk <= 64 && v <= 64)
		return choose_64(a);
	if (qk <= 96 && v <= 96)
		return attn_dense_96();
	if (qk <= 128 && v <= 128 && in_pairs(a, num_sms))
		return attn_dense_128_pair();
	if (qk <= 128 && v <= 128)
		return a->causal && a->max_kv_len < LONG_KEYS ? attn_dense_128() : attn_dense_128_long();
	if (qk <= 192 && v <= 128)
		return attn_dense_192_128();
	if (v <= 128)
		return attn_dense_256_128();
	return qk <= 128 ? attn_dense_128_256() : attn_dense_256();
}

int cairn_attn_dense_workspace(const struct cairn_attn_dense_args *args, size_t *bytes)
{
	if (!bytes)
		return cairn_error(EINVAL, "attn_dense_workspace: null pointer");
	CAIRN_TRY(cairn_attn_dense_check_shape(args));
	*bytes = ATTN_DENSE_COUNTER_BYTES;
	return 0;
}

/* Maps K, whose last 64 elements all heads may share (attn_dense_shared.h). */
static int map_k(struct attn_dense_maps *maps, const struct cairn_attn_dense_args *a, const void *shared,
		 int keys)
{
	struct cairn_attn_dense_args one = *a;
	int32_t own = a->qk_dim - (shared ? ATTN_DENSE_SHARED : 0);

	one.num_kv_heads = 1;
	if (shared)
		CAIRN_TRY(attn_dense_map_kv(&maps->k_shared, &one, shared, ATTN_DENSE_SHARED,
					    ATTN_DENSE_SHARED, ATTN_DENSE_SHARED, keys));
	return attn_dense_map_kv(&maps->k, a, a->k, own, cairn_attn_dense_k_stride(a),
				 cairn_attn_dense_k_head_stride(a), keys);
}

int cairn_attn_dense(const struct cairn_attn_dense_args *args, void *stream)
{
	return attn_dense_with_shared(args, NULL, stream);
}

int attn_dense_with_shared(const struct cairn_attn_dense_args *args, const void *shared, void *stream)
{
	struct attn_dense_kernel f;
	struct attn_dense_maps maps = {};
	struct attn_dense_plan plan = {};
	struct attn_call call = {};
	struct attn_dense_sizes sizes = {};
	struct cairn_launch l = {};
	void *params[] = { &call, &plan, &maps };
	int num_sms, items;

	CAIRN_TRY(cairn_attn_dense_check(args));
	CAIRN_TRY(attn_dense_check_counter(args->workspace, args->workspace_bytes, "attn_dense"));
	if (!args->batch || !args->nnz_qo || !args->max_qo_len)
		return 0;
	num_sms = cairn_sms_of(args->sms);
	if (num_sms < 0)
		return num_sms;
	f = shared ? attn_dense_192_128_shared() : choose(args, num_sms);
	call.out = args->out;
	call.lse = args->lse;
	call.num_qo_heads = args->num_qo_heads;
	call.v_dim = args->v_dim;
	call.shift = attn_dense_shift(args->num_qo_heads / args->num_kv_heads);
	call.causal = args->causal;
	call.window = args->window;
	call.sm_scale = args->sm_scale;
	call.softcap = args->softcap;
	plan.qo_indptr = args->qo_indptr;
	plan.kv_indptr = args->kv_indptr;
	plan.extra = shared != NULL;
	sizes = { "attn_dense", args->batch - plan.extra, args->max_qo_len, args->max_kv_len,
		  args->num_qo_heads, args->num_kv_heads, f.ctas * f.rows, num_sms,
		  (args->qk_dim + args->v_dim) * 2, args->causal };
	items = attn_dense_lay_out_tiles(&sizes, &plan);
	if (items < 0)
		return items;
	CAIRN_TRY(attn_dense_map_q(&maps.q, args, f.rows, call.shift));
	CAIRN_TRY(map_k(&maps, args, shared, f.keys / f.ctas));
	CAIRN_TRY(attn_dense_map_kv(&maps.v, args, args->v, args->v_dim, cairn_attn_dense_v_stride(args),
				    cairn_attn_dense_v_head_stride(args), f.keys / f.ctas));
	l.block[0] = (unsigned int)f.threads;
	l.smem = f.smem;
	l.stream = stream;
	l.cluster = f.ctas > 1 ? f.ctas : 0;
	CAIRN_TRY(attn_dense_start_tiles(&plan, &l, items, num_sms, args->workspace, args->sms,
					 shared != NULL));
	return cairn_launch(f.kernel[args->dtype == CAIRN_BF16], &l, params);
}
