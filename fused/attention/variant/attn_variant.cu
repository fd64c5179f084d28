/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant - attn_dense with the hooks of a text compiled into its kernel
 *
 * The kernel is attn_variant_kernel.cuh. This file chooses the instance and lays out the call as
 * attn_dense.cu does; the forms are those of attn_dense for causal calls. Optimisation history: ../NOTES.md.
 */
#include "fused/attention/variant/attn_variant.h"

#include "fused/attention/dense/attn_dense_maps.cuh"
#include "fused/attention/dense/attn_dense_plan.cuh"
#include "fused/attention/variant/attn_variant_call.cuh"
#include "fused/attention/variant/attn_variant_instances.h"
#include "fused/attention/variant/attn_variant_known.h"
#include "fused/attention/variant/text/attn_variant_list.h"
#include "fused/attention/variant/text/attn_variant_load.h"

/* Returns the kernel of a built-in variant. */
static const void *built_in(const struct cairn_attn_variant_args *a)
{
	switch (a->variant) {
	case CAIRN_VARIANT_ROPE:
		return attn_variant_rope(a->dtype, a->head_dim);
	case CAIRN_VARIANT_ALIBI:
		return attn_variant_alibi(a->dtype, a->head_dim);
	case CAIRN_VARIANT_SOFTCAP:
		return attn_variant_softcap(a->dtype, a->head_dim);
	case CAIRN_VARIANT_SIGMOID:
		return attn_variant_sigmoid(a->dtype, a->head_dim);
	case CAIRN_VARIANT_BITS:
		return attn_variant_bits(a->dtype, a->head_dim);
	}
	return attn_variant_plain(a->dtype, a->head_dim);
}

/* The sizes of a form, as the host needs them. */
struct form {
	int32_t rows, keys, threads;
	size_t smem;
};

static struct form form_of(int32_t head_dim)
{
	typedef attn_variant_form<64, false> small;
	typedef attn_variant_form<128, false> large;

	/* forms that rotate differ in registers only */
	static_assert(attn_variant_form<64, true>::smem_bytes == small::smem_bytes &&
		      attn_variant_form<128, true>::smem_bytes == large::smem_bytes, "forms");
	if (head_dim == 64)
		return { small::rows, small::keys, small::threads, small::smem_bytes };
	return { large::rows, large::keys, large::threads, large::smem_bytes };
}

static struct attn_variant_call call_of(const struct cairn_attn_variant_args *a)
{
	struct attn_variant_call call = {};

	call.out = a->out;
	call.lse = a->lse;
	call.num_qo_heads = a->num_qo_heads;
	call.v_dim = a->head_dim;
	call.group = a->num_qo_heads / a->num_kv_heads;
	call.shift = attn_dense_shift(call.group);
	call.causal = a->causal;
	call.sm_scale = a->sm_scale;
	call.interleaved = a->interleaved;
	for (int i = 0; i < 8; i++)
		call.p[i] = a->p[i];
	for (int i = 0; i < 4; i++)
		call.t[i] = a->t[i];
	return call;
}

/*
 * Offsets in the workspace: the counter is first; with a hook key(), states of pieces and rotated keys
 * follow.
 */
struct places {
	size_t states, turned, bytes;
	int turns;			/* there is a hook key() */
};

static struct places places_of(const struct cairn_attn_variant_args *a)
{
	size_t states = (size_t)a->num_kv_heads * (size_t)attn_variant_pieces(a->nnz_kv, a->batch) * 4;
	size_t turned = (size_t)a->num_kv_heads * (size_t)a->nnz_kv * (size_t)a->head_dim * 2;
	struct places p = { ATTN_DENSE_COUNTER_BYTES, 0, ATTN_DENSE_COUNTER_BYTES,
			    attn_variant_turns_keys(a->variant) };

	if (p.turns) {
		p.turned = p.states + (states + 255) / 256 * 256;
		p.bytes = p.turned + turned;
	}
	return p;
}

int cairn_attn_variant_workspace(const struct cairn_attn_variant_args *args, size_t *bytes)
{
	if (!bytes)
		return cairn_error(EINVAL, "attn_variant_workspace: null pointer");
	CAIRN_TRY(cairn_attn_variant_check_shape(args));
	*bytes = places_of(args).bytes;
	return 0;
}

/*
 * Sets the map of the rotated keys, and the members of the call that concern them. Zeroes the counter and the
 * states of pieces.
 */
static int turn_keys(const struct cairn_attn_variant_args *a, const struct cairn_attn_dense_args *dense,
		     int keys, struct attn_variant_call *call, CUtensorMap *map, cudaStream_t stream)
{
	int64_t rows = a->nnz_kv ? a->nnz_kv : 1;
	struct places p = places_of(a);
	char *workspace = (char *)a->workspace;

	call->k = a->k;
	call->k_stride = cairn_attn_dense_k_stride(dense);
	call->k_head_stride = cairn_attn_dense_k_head_stride(dense);
	call->nnz_kv = a->nnz_kv;
	call->pieces = (int32_t)attn_variant_pieces(a->nnz_kv, a->batch);
	call->states = (uint32_t *)(workspace + p.states);
	call->turned = workspace + p.turned;
	CAIRN_TRY(attn_dense_map_kv(map, dense, call->turned, a->head_dim, a->head_dim, rows * a->head_dim,
				    keys));
	CAIRN_CUDA(cudaMemsetAsync(workspace, 0, p.turned, stream));
	return 0;
}

int cairn_attn_variant(const struct cairn_attn_variant_args *args, void *stream)
{
	struct cairn_attn_dense_args dense;
	struct attn_dense_maps maps = {};
	struct attn_dense_plan plan = {};
	struct attn_variant_call call;
	struct attn_dense_sizes sizes;
	struct cairn_launch l = {};
	const void *kernel;
	struct form f;
	void *params[] = { &call, &plan, &maps };
	int num_sms, items, turns;

	CAIRN_TRY(cairn_attn_variant_check(args));
	CAIRN_TRY(attn_dense_check_counter(args->workspace, args->workspace_bytes, "attn_variant"));
	if (args->workspace_bytes < places_of(args).bytes)
		return cairn_error(EINVAL, "attn_variant: workspace_bytes: at least %zu, for rotated keys",
				   places_of(args).bytes);
	if (!args->batch || !args->nnz_qo || !args->max_qo_len)
		return 0;
	num_sms = cairn_sms_of(args->sms);
	if (num_sms < 0)
		return num_sms;
	if (args->variant < ATTN_VARIANT_FIRST_TEXT)
		kernel = built_in(args);
	else
		CAIRN_TRY(attn_variant_load(args->variant, args->dtype, args->head_dim, &kernel));
	dense = attn_variant_as_dense(args);
	call = call_of(args);
	f = form_of(args->head_dim);
	plan.qo_indptr = args->qo_indptr;
	plan.kv_indptr = args->kv_indptr;
	sizes = { "attn_variant", args->batch, args->max_qo_len, args->max_kv_len, args->num_qo_heads,
		  args->num_kv_heads, f.rows, num_sms, args->head_dim * 4, args->causal };
	items = attn_dense_lay_out_tiles(&sizes, &plan);
	if (items < 0)
		return items;
	CAIRN_TRY(attn_dense_map_q(&maps.q, &dense, f.rows, call.shift));
	turns = places_of(args).turns;
	if (turns)
		CAIRN_TRY(turn_keys(args, &dense, f.keys, &call, &maps.k, (cudaStream_t)stream));
	else
		CAIRN_TRY(attn_dense_map_kv(&maps.k, &dense, dense.k, dense.qk_dim,
					    cairn_attn_dense_k_stride(&dense),
					    cairn_attn_dense_k_head_stride(&dense), f.keys));
	CAIRN_TRY(attn_dense_map_kv(&maps.v, &dense, dense.v, dense.v_dim, cairn_attn_dense_v_stride(&dense),
				    cairn_attn_dense_v_head_stride(&dense), f.keys));
	l.block[0] = (unsigned int)f.threads;
	l.smem = f.smem;
	l.stream = stream;
	CAIRN_TRY(attn_dense_start_tiles(&plan, &l, items, num_sms, args->workspace, args->sms, turns));
	if (turns) {
		l.pdl = 0;		/* a memset comes before the kernel */
		l.grid[0] = (unsigned int)num_sms;	/* CTAs without a row tile rotate keys */
	}
	return cairn_launch(kernel, &l, params);
}
