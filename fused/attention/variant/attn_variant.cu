/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant - attn_dense with the hooks of a text compiled into its kernel
 *
 * The kernel is attn_variant_kernel.cuh. This file chooses the instance and lays out the call as
 * attn_dense.cu does; the forms are those of attn_dense for causal calls.
 *
 * Slices: if a call has at most half as many row tiles as SMs, and many keys, the keys of each row tile are
 * cut into slices of equally many key tiles. A CTA attends to one slice and writes the states of its rows, in
 * fp32, to the workspace; a second kernel merges them (attn_variant_merge.cuh).
 *
 * With a hook key(), a kernel rotates all keys into the workspace first (attn_variant_keys.cuh). If there are
 * slices and at most 64 rows in a row tile, keys are rotated in shared memory instead.
 *
 * Optimisation history: ../NOTES.md.
 */
#include "fused/attention/variant/attn_variant.h"

#include "fused/attention/dense/attn_dense_maps.cuh"
#include "fused/attention/dense/attn_dense_plan.cuh"
#include "fused/attention/variant/attn_variant_call.cuh"
#include "fused/attention/variant/attn_variant_instances.h"
#include "fused/attention/variant/attn_variant_known.h"
#include "fused/attention/variant/text/attn_variant_list.h"
#include "fused/attention/variant/text/attn_variant_load.h"

/* The least number of key tiles in a slice. Slices run at the same time, but their states must be merged. */
#define LEAST_TILES	4

/* Returns the kernels of a built-in variant. */
static struct attn_variant_kernels built_in(const struct cairn_attn_variant_args *a)
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

template <class F> static struct form sizes_of(void)
{
	return { F::rows, F::keys, F::threads, F::smem_bytes };
}

static struct form form_of(int32_t head_dim)
{
	typedef attn_variant_form<64, false> small;
	typedef attn_variant_form<128, false> large;

	/* forms for rotations and for slices differ in registers only */
	static_assert(attn_variant_form<64, true>::smem_bytes == small::smem_bytes &&
		      attn_variant_form<128, true>::smem_bytes == large::smem_bytes &&
		      attn_variant_form<128, false, VARIANT_SLICE>::smem_bytes == large::smem_bytes, "forms");
	return head_dim == 64 ? sizes_of<small>() : sizes_of<large>();
}

static struct form form_in_place(int32_t head_dim)
{
	typedef attn_variant_form<64, true, VARIANT_IN_PLACE> small;
	typedef attn_variant_form<128, true, VARIANT_IN_PLACE> large;

	/* the merging kernel finds slices by the form for whole row tiles */
	static_assert(small::keys == attn_variant_form<64, true>::keys &&
		      large::keys == attn_variant_form<128, true>::keys, "forms");
	return head_dim == 64 ? sizes_of<small>() : sizes_of<large>();
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

/* How a call is divided: the form, row tiles, and slices of the keys of each row tile. */
struct division {
	struct form form;
	int num_sms, items, slices;
	int in_place;			/* the kernel is that of VARIANT_IN_PLACE */
};

/*
 * Divides a call, and sets the plan except the index arrays and the counter. There are slices if they occupy
 * more SMs and have at least LEAST_TILES key tiles each, in a row tile with the most keys. Only bounds decide
 * this, which the host knows.
 */
static int divide(const struct cairn_attn_variant_args *a, struct attn_dense_plan *plan, struct division *d)
{
	const int32_t shift = attn_dense_shift(a->num_qo_heads / a->num_kv_heads);
	struct attn_dense_sizes sizes;
	struct form in_place = form_in_place(a->head_dim);
	int slices;

	d->form = form_of(a->head_dim);
	d->num_sms = cairn_sms_of(a->sms);
	if (d->num_sms < 0)
		return d->num_sms;
	sizes = { "attn_variant", a->batch, a->max_qo_len, a->max_kv_len, a->num_qo_heads, a->num_kv_heads,
		  d->form.rows, d->num_sms, a->head_dim * 4, a->causal };
	d->items = attn_dense_lay_out_tiles(&sizes, plan);
	if (d->items < 0)
		return d->items;
	slices = a->max_kv_len / (d->form.keys * LEAST_TILES);
	if (d->items && slices > d->num_sms / d->items)
		slices = d->num_sms / d->items;
	d->slices = d->items && slices > 1 ? slices : 1;
	d->in_place = d->slices > 1 && attn_variant_rotates_keys(a->variant) &&
		      (int64_t)a->max_qo_len << shift <= in_place.rows;
	if (d->in_place)
		d->form = in_place;
	return 0;
}

/* Returns a bound of the rows of out and lse that a call writes. */
static int64_t state_rows(const struct cairn_attn_variant_args *a)
{
	int64_t rows = (int64_t)a->batch * a->max_qo_len;

	return (rows < a->nnz_qo ? rows : a->nnz_qo) * a->num_qo_heads;
}

/*
 * Offsets in the workspace: the counter is first; with a hook key(), rotated keys follow, unless they are
 * rotated in shared memory; with slices, O and the sums of their rows.
 */
struct places {
	size_t rotated, o, sums, bytes;
	int rotates;			/* a hook key() rotates keys into the workspace */
};

/* Hands out the next bytes of the workspace, in multiples of 256. */
static size_t take(struct places *p, int64_t bytes)
{
	size_t at = p->bytes;

	p->bytes += ((size_t)bytes + 255) / 256 * 256;
	return at;
}

static struct places places_of(const struct cairn_attn_variant_args *a, const struct division *d)
{
	const int64_t rows = d->slices > 1 ? d->slices * state_rows(a) : 0;
	struct places p = {};

	take(&p, ATTN_DENSE_COUNTER_BYTES);
	p.rotates = attn_variant_rotates_keys(a->variant) && !d->in_place;
	if (p.rotates)
		p.rotated = take(&p, (int64_t)a->num_kv_heads * a->nnz_kv * a->head_dim * 2);
	p.o = take(&p, rows * a->head_dim * 4);
	p.sums = take(&p, rows * 8);
	return p;
}

int cairn_attn_variant_workspace(const struct cairn_attn_variant_args *args, size_t *bytes)
{
	struct attn_dense_plan plan;
	struct division d;

	if (!bytes)
		return cairn_error(EINVAL, "attn_variant_workspace: null pointer");
	CAIRN_TRY(cairn_attn_variant_check_shape(args));
	CAIRN_TRY(divide(args, &plan, &d));
	*bytes = places_of(args, &d).bytes;
	return 0;
}

/* Sets the map of the rotated keys, and the members of the call that concern them. */
static int set_keys(const struct cairn_attn_variant_args *a, const struct cairn_attn_dense_args *dense,
		    const struct places *p, int keys, struct attn_variant_call *call, CUtensorMap *map)
{
	int64_t rows = a->nnz_kv ? a->nnz_kv : 1;

	call->k = a->k;
	call->k_stride = cairn_attn_dense_k_stride(dense);
	call->k_head_stride = cairn_attn_dense_k_head_stride(dense);
	call->nnz_kv = a->nnz_kv;
	call->kv_heads = a->num_kv_heads;
	call->rotated = (char *)a->workspace + p->rotated;
	return attn_dense_map_kv(map, dense, call->rotated, a->head_dim, a->head_dim, rows * a->head_dim,
				 keys);
}

/* A kernel that runs before or after the one that attends: its CTAs, at most per_sm for each SM. */
struct helper {
	const void *kernel;
	int64_t ctas;
	int threads, per_sm;
};

static int launch_helper(const struct cairn_attn_variant_args *a, int num_sms, const struct helper *h,
			 struct attn_variant_call *call, struct attn_dense_plan *plan, void *stream)
{
	/* if sms is set, at most one CTA for each allowed SM: each CTA may be placed on a different SM */
	const int64_t most = a->sms ? num_sms : num_sms * h->per_sm;
	void *params[] = { call, plan };
	struct cairn_launch l = {};

	l.grid[0] = (unsigned int)(h->ctas < most ? h->ctas : most);
	l.block[0] = (unsigned int)h->threads;
	l.pdl = !a->sms;
	l.stream = stream;
	return cairn_launch(h->kernel, &l, params);
}

/* Launches the kernel that rotates all keys, and zeroes the plan's counter. */
static int rotate_keys(const struct cairn_attn_variant_args *a, int num_sms, const void *kernel,
		       struct attn_variant_call *call, struct attn_dense_plan *plan, void *stream)
{
	const int64_t parts = (int64_t)a->nnz_kv * a->num_kv_heads * a->head_dim / 64;
	const struct helper h = { kernel, parts / ATTN_KEY_THREADS + 1, ATTN_KEY_THREADS, 16 };

	return launch_helper(a, num_sms, &h, call, plan, stream);
}

/* Sets the members of the call that concern slices. */
static void set_slices(const struct cairn_attn_variant_args *a, const struct division *d,
		       const struct places *p, struct attn_variant_call *call)
{
	const int64_t rows = (int64_t)a->max_qo_len << call->shift;
	char *workspace = (char *)a->workspace;

	call->slices = d->slices;
	call->tile_rows = rows < d->form.rows ? (int32_t)rows : d->form.rows;
	call->state_rows = state_rows(a);
	call->state_o = (float *)(workspace + p->o);
	call->state_sums = (float2 *)(workspace + p->sums);
}

/* Launches the kernel that merges the states of slices. */
static int merge(const struct cairn_attn_variant_args *a, const struct division *d, const void *kernel,
		 struct attn_variant_call *call, struct attn_dense_plan *plan, void *stream)
{
	const int warps = ATTN_MERGERS / 32, ctas = d->items * ((call->tile_rows + warps - 1) / warps);
	const struct helper h = { kernel, ctas, ATTN_MERGERS, 8 };

	return launch_helper(a, d->num_sms, &h, call, plan, stream);
}

static int kernels_of(const struct cairn_attn_variant_args *a, struct attn_variant_kernels *kernels)
{
	if (a->variant >= ATTN_VARIANT_FIRST_TEXT)
		return attn_variant_load(a->variant, a->dtype, a->head_dim, kernels);
	*kernels = built_in(a);
	return 0;
}

/* Makes the tensor maps; if `rotates`, that of K is the one of set_keys(). */
static int make_maps(const struct cairn_attn_dense_args *dense, const struct form *f, int shift, int rotates,
		     struct attn_dense_maps *maps)
{
	CAIRN_TRY(attn_dense_map_q(&maps->q, dense, f->rows, shift));
	if (!rotates)
		CAIRN_TRY(attn_dense_map_kv(&maps->k, dense, dense->k, dense->qk_dim,
					    cairn_attn_dense_k_stride(dense),
					    cairn_attn_dense_k_head_stride(dense), f->keys));
	return attn_dense_map_kv(&maps->v, dense, dense->v, dense->v_dim, cairn_attn_dense_v_stride(dense),
				 cairn_attn_dense_v_head_stride(dense), f->keys);
}

int cairn_attn_variant(const struct cairn_attn_variant_args *args, void *stream)
{
	struct cairn_attn_dense_args dense;
	struct attn_dense_maps maps = {};
	struct attn_dense_plan plan = {};
	struct attn_variant_kernels kernels;
	struct attn_variant_call call;
	struct cairn_launch l = {};
	struct division d;
	struct places p;
	void *params[] = { &call, &plan, &maps };

	CAIRN_TRY(cairn_attn_variant_check(args));
	CAIRN_TRY(attn_dense_check_counter(args->workspace, args->workspace_bytes, "attn_variant"));
	CAIRN_TRY(divide(args, &plan, &d));
	p = places_of(args, &d);
	if (args->workspace_bytes < p.bytes)
		return cairn_error(EINVAL, "attn_variant: workspace_bytes: at least %zu, for rotated keys "
				   "and slices of keys", p.bytes);
	if (!d.items || !args->nnz_qo)
		return 0;
	CAIRN_TRY(kernels_of(args, &kernels));
	dense = attn_variant_as_dense(args);
	call = call_of(args);
	set_slices(args, &d, &p, &call);
	plan.qo_indptr = args->qo_indptr;
	plan.kv_indptr = args->kv_indptr;
	CAIRN_TRY(make_maps(&dense, &d.form, call.shift, p.rotates, &maps));
	if (p.rotates)
		CAIRN_TRY(set_keys(args, &dense, &p, d.form.keys, &call, &maps.k));
	l.block[0] = (unsigned int)d.form.threads;
	l.smem = d.form.smem;
	l.stream = stream;
	CAIRN_TRY(attn_dense_start_tiles(&plan, &l, d.items * d.slices, d.num_sms, args->workspace,
					 args->sms, p.rotates));
	if (p.rotates)
		CAIRN_TRY(rotate_keys(args, d.num_sms, kernels.keys, &call, &plan, stream));
	if (d.slices == 1)
		return cairn_launch(kernels.whole, &l, params);
	CAIRN_TRY(cairn_launch(d.in_place ? kernels.in_place : kernels.slice, &l, params));
	return merge(args, &d, kernels.merge, &call, &plan, stream);
}
