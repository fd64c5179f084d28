// SPDX-License-Identifier: Apache-2.0
/* dropin_read - reads the argument lists of FlashInfer 0.6 that run attention */
#include <limits.h>
#include <math.h>

#include "conformance/dropin/dropin_attn.h"
#include "conformance/dropin/dropin_value.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

#define COUNT(x)	((int)(sizeof(x) / sizeof(*(x))))

/* What a run takes; the forms say at which place. */
enum arg {
	WORKSPACE, PLAN, Q, K, V, QO_INDPTR, KV_INDPTR, INDICES, LAST_LEN, OUT, LSE, MASK_MODE, LAYOUT,
	WINDOW, MASK, MASK_INDPTR, SOFTCAP, SM_SCALE, SCALE_V, SCALE_V_SCALAR, NUM_ARGS
};
enum mask_mode { MASK_NONE, MASK_CAUSAL, MASK_CUSTOM };
enum layout { NHD, HND };

/*
 * Places are counted from 1, so that 0 is an argument that the form lacks. Left out: the integer workspace,
 * enable_pdl, slopes of ALiBi (FlashInfer passes them always), factors of RoPE, and arrays of multi-item
 * scoring and of 4-bit keys, which the mask mode and the dtype already state.
 */
static const struct form {
	const char *name;
	enum dropin_function function;
	int num_args, q_ndim;
	int8_t at[NUM_ARGS];
} forms[] = {
	{ "batch_prefill paged fa2", DROPIN_PAGED_RUN, 29, 3,
	  { 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 25, 26 } },
	{ "batch_prefill paged fa3", DROPIN_PAGED_RUN, 24, 3,
	  { 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 0, 21, 22, 20, 23 } },
	{ "batch_prefill ragged fa2", DROPIN_RAGGED_RUN, 27, 3,
	  { 1, 3, 4, 5, 6, 7, 8, 0, 0, 9, 10, 11, 12, 13, 15, 16, 23, 24 } },
	{ "batch_prefill ragged fa3", DROPIN_RAGGED_RUN, 22, 3,
	  { 1, 3, 4, 5, 6, 7, 8, 0, 0, 9, 10, 11, 12, 13, 0, 0, 19, 20, 18, 21 } },
	{ "batch_decode", DROPIN_RUN, 19, 3,
	  { 1, 3, 4, 5, 6, 0, 7, 8, 9, 10, 11, 0, 12, 13, 0, 0, 16, 17 } },
	{ "single_prefill fa2", DROPIN_RUN, 17, 3,
	  { 4, 0, 1, 2, 3, 0, 0, 0, 0, 5, 6, 7, 8, 9, 10, 0, 14, 15 } },
	{ "single_prefill fa3", DROPIN_RUN, 13, 3,
	  { 4, 0, 1, 2, 3, 0, 0, 0, 0, 5, 6, 7, 8, 9, 0, 0, 11, 12, 10, 13 } },
	{ "single_decode", DROPIN_RUN, 13, 2,
	  { 4, 0, 1, 2, 3, 0, 0, 0, 0, 5, 6, 0, 7, 8, 0, 0, 10, 11 } },
};

/* The arguments of a call, in the order of enum arg; absent ones are TVM_NONE. */
struct call {
	const struct form *form;
	struct tvm_any arg[NUM_ARGS];
};

/* An optional contiguous array of one dimension. */
static int read_array(const struct call *c, enum arg which, const char *arg, int code, int bits,
		      const void *out, int64_t *count)
{
	const struct dl_tensor *t = tensor_of(&c->arg[which]);

	if (!t)
		return 0;
	CAIRN_TRY(needs_tensor(c->form->name, arg, t, 1));
	if (!is_type(t, code, bits) || !is_contiguous(t))
		return cairn_error(EOPNOTSUPP, "%s: %s: must be a contiguous array of %d-bit elements",
				   c->form->name, arg, bits);
	*(const void **)out = data_of(t);
	if (count)
		*count = t->shape[0];
	return 0;
}

static int read_dtypes(const struct call *c, const struct dl_tensor *q, const struct dl_tensor *k,
		       const struct dl_tensor *v, const struct dl_tensor *o, struct dropin_attn *a)
{
	const char *name = c->form->name;

	if (!is_type(q, DL_FLOAT, 16) && !is_type(q, DL_BFLOAT, 16))
		return cairn_error(EOPNOTSUPP, "%s: q: its dtype is not f16 or bf16", name);
	if (!is_type(o, q->code, q->bits))
		return cairn_error(EOPNOTSUPP, "%s: o: its dtype differs from that of q", name);
	if (!is_type(v, k->code, k->bits))
		return cairn_error(EOPNOTSUPP, "%s: v: its dtype differs from that of k", name);
	a->dtype = q->code == DL_BFLOAT ? CAIRN_BF16 : CAIRN_F16;
	a->kv_fp8 = is_type(k, DL_E4M3, 8);
	if (!a->kv_fp8 && is_type(k, DL_E5M2, 8))
		return cairn_error(EOPNOTSUPP, "%s: k: e5m2", name);
	if (!a->kv_fp8 && k->bits == 8)
		return cairn_error(EOPNOTSUPP, "%s: k: 4-bit elements", name);
	if (!a->kv_fp8 && !is_type(k, q->code, q->bits))
		return cairn_error(EOPNOTSUPP, "%s: k: its dtype is neither that of q nor e4m3", name);
	return 0;
}

/* q is [rows, heads, dim], or [heads, dim] for one row. */
static int read_q(const struct call *c, const struct dl_tensor *q, const struct dl_tensor *o,
		  struct dropin_attn *a)
{
	int h = c->form->q_ndim - 2;
	const struct dl_tensor *lse = tensor_of(&c->arg[LSE]);
	int64_t lse_size = 1;

	a->rows = h ? (int32_t)q->shape[0] : 1;
	a->heads = (int32_t)q->shape[h];
	a->qk_dim = (int32_t)q->shape[h + 1];
	a->q_stride = h ? stride_of(q, 0) : 0;
	if (stride_of(q, h + 1) != 1 || stride_of(q, h) != a->qk_dim)
		return cairn_error(EOPNOTSUPP, "%s: q: the heads of a row are not contiguous", a->name);
	if (!is_contiguous(o))
		return cairn_error(EOPNOTSUPP, "%s: o: is not contiguous", a->name);
	if ((h && o->shape[0] != a->rows) || o->shape[h] != a->heads)
		return cairn_error(EINVAL, "%s: o: its rows or heads differ from those of q", a->name);
	a->q = data_of(q);
	a->out = data_of(o);
	if (!lse)
		return 0;
	for (int i = 0; i < lse->ndim; i++)
		lse_size *= lse->shape[i];
	if (!is_type(lse, DL_FLOAT, 32) || !is_contiguous(lse) || lse_size != (int64_t)a->rows * a->heads)
		return cairn_error(EINVAL, "%s: lse: must be contiguous f32 [rows, heads]", a->name);
	a->lse = data_of(lse);
	return 0;
}

/* K and V are pages [block, slot, head, dim], or rows [slot, head, dim], which are blocks of one slot. */
static int read_strides(const struct call *c, const char *arg, const struct dl_tensor *t,
			struct dropin_strides *at)
{
	int first = t->ndim - 3, hnd = integer_of(&c->arg[LAYOUT]) == HND;
	int slot = first + hnd, head = first + 1 - hnd;

	if (stride_of(t, t->ndim - 1) != 1)
		return cairn_error(EOPNOTSUPP, "%s: %s: the elements of a head are not contiguous",
				   c->form->name, arg);
	at->slot = stride_of(t, slot);
	at->head = stride_of(t, head);
	at->block = first ? stride_of(t, 0) : at->slot;
	return 0;
}

static int read_kv(const struct call *c, const struct dl_tensor *k, const struct dl_tensor *v,
		   struct dropin_attn *a)
{
	int first = k->ndim - 3, hnd = integer_of(&c->arg[LAYOUT]) == HND;

	for (int i = 0; i < k->ndim - 1; i++)
		if (k->shape[i] != v->shape[i])
			return cairn_error(EINVAL, "%s: v: its shape differs from that of k", a->name);
	a->kv_heads = (int32_t)k->shape[first + 1 - hnd];
	a->num_blocks = (int32_t)(first ? k->shape[0] : k->shape[hnd]);
	a->block_n = first ? (int32_t)k->shape[1 + hnd] : 1;
	a->v_dim = (int32_t)v->shape[v->ndim - 1];
	if (k->shape[k->ndim - 1] != a->qk_dim)
		return cairn_error(EINVAL, "%s: k: its last dimension differs from that of q", a->name);
	a->k = data_of(k);
	a->v = data_of(v);
	CAIRN_TRY(read_strides(c, "k", k, &a->k_at));
	return read_strides(c, "v", v, &a->v_at);
}

static int read_tensors(const struct call *c, struct dropin_attn *a)
{
	const struct dl_tensor *q = tensor_of(&c->arg[Q]), *k = tensor_of(&c->arg[K]);
	const struct dl_tensor *v = tensor_of(&c->arg[V]), *o = tensor_of(&c->arg[OUT]);
	int kv_ndim = c->form->at[INDICES] ? 4 : 3;

	CAIRN_TRY(needs_tensor(a->name, "q", q, c->form->q_ndim));
	CAIRN_TRY(needs_tensor(a->name, "o", o, c->form->q_ndim));
	CAIRN_TRY(needs_tensor(a->name, "k", k, kv_ndim));
	CAIRN_TRY(needs_tensor(a->name, "v", v, kv_ndim));
	CAIRN_TRY(read_dtypes(c, q, k, v, o, a));
	CAIRN_TRY(read_q(c, q, o, a));
	CAIRN_TRY(read_kv(c, k, v, a));
	return o->shape[o->ndim - 1] == a->v_dim ? 0 :
	       cairn_error(EINVAL, "%s: o: its last dimension differs from that of v", a->name);
}

static int read_arrays(const struct call *c, struct dropin_attn *a, int64_t *listed)
{
	const struct dl_tensor *w = tensor_of(&c->arg[WORKSPACE]);
	int64_t kv = 2, qo = 0, lens = 0;

	CAIRN_TRY(read_array(c, KV_INDPTR, "kv_indptr", DL_INT, 32, &a->kv_indptr, &kv));
	CAIRN_TRY(read_array(c, QO_INDPTR, "qo_indptr", DL_INT, 32, &a->qo_indptr, &qo));
	CAIRN_TRY(read_array(c, INDICES, "kv_indices", DL_INT, 32, &a->indices, listed));
	CAIRN_TRY(read_array(c, LAST_LEN, "kv_last_page_len", DL_INT, 32, &a->last_len, &lens));
	if (!w)
		return cairn_error(EINVAL, "%s: workspace: must be a tensor", a->name);
	if (kv < 1 || (a->qo_indptr && qo != kv) || (a->last_len && lens < kv - 1))
		return cairn_error(EINVAL, "%s: kv_indptr: its length contradicts another array", a->name);
	if (!c->form->at[QO_INDPTR] && c->form->at[PLAN] && kv - 1 != a->rows)
		return cairn_error(EINVAL, "%s: q: must have one row for each request", a->name);
	a->batch = (int32_t)kv - 1;
	a->workspace = data_of(w);
	a->workspace_bytes = w->bits / 8;
	for (int i = 0; i < w->ndim; i++)
		a->workspace_bytes *= (size_t)w->shape[i];
	return 0;
}

static int read_mask(const struct call *c, struct dropin_attn *a)
{
	int64_t mode = integer_of(&c->arg[MASK_MODE]);

	if (mode != MASK_NONE && mode != MASK_CAUSAL && mode != MASK_CUSTOM)
		return cairn_error(EOPNOTSUPP, "%s: mask_mode: multi-item scoring", a->name);
	a->causal = mode == MASK_CAUSAL;
	if (mode != MASK_CUSTOM)
		return 0;
	CAIRN_TRY(read_array(c, MASK, "custom_mask", DL_UINT, 8, &a->mask, NULL));
	CAIRN_TRY(read_array(c, MASK_INDPTR, "mask_indptr", DL_INT, 32, &a->mask_indptr, NULL));
	return a->mask ? 0 : cairn_error(EINVAL, "%s: custom_mask: is missing", a->name);
}

static int read_numbers(const struct call *c, struct dropin_attn *a)
{
	int64_t left = integer_of(&c->arg[WINDOW]);
	int is_scaled = c->form->at[SCALE_V_SCALAR] && number_of(&c->arg[SCALE_V_SCALAR]) != 1;

	if (tensor_of(&c->arg[SCALE_V]) || is_scaled)
		return cairn_error(EOPNOTSUPP, "%s: scale_v", a->name);
	a->window = left < 0 || left >= INT_MAX ? 0 : (int32_t)left + 1;
	a->sm_scale = (float)number_of(&c->arg[SM_SCALE]);
	a->softcap = fmaxf((float)number_of(&c->arg[SOFTCAP]), 0);
	return 0;
}

static int32_t bounded(int64_t n)
{
	return n > INT_MAX ? INT_MAX : n < 1 ? 1 : (int32_t)n;
}

/* Bounds of the lengths: from the plan, or from the sizes if there is none or it is for a graph. */
static int read_bounds(const struct call *c, struct dropin_attn *a, int64_t listed)
{
	const struct tvm_array *plan = c->arg[PLAN].type == TVM_ARRAY ? c->arg[PLAN].p : NULL;
	int64_t rows = c->form->at[QO_INDPTR] || !c->form->at[PLAN] ? a->rows : 1;
	int64_t keys = c->form->at[INDICES] ? listed * a->block_n : a->num_blocks;

	if (c->form->at[PLAN]) {
		if (!plan || plan->size != DROPIN_PLAN_VALUES || plan->items[0].i != DROPIN_PLAN_MARK)
			return cairn_error(EINVAL, "%s: plan_info: is not a plan of Cairn", a->name);
		if (!plan->items[3].i) {
			a->nnz_kv = keys;
			rows = plan->items[1].i;
			keys = plan->items[2].i;
		}
	}
	a->max_rows = bounded(rows);
	a->max_keys = bounded(keys);
	return 0;
}

static const struct form *form_of(enum dropin_function f, const struct tvm_any *args, int32_t num_args)
{
	for (int i = 0; i < COUNT(forms); i++) {
		const struct form *form = &forms[i];
		const struct dl_tensor *q;

		if (form->function != f || form->num_args != num_args)
			continue;
		q = tensor_of(&args[form->at[Q] - 1]);
		if (q && q->ndim == form->q_ndim)
			return form;
	}
	return NULL;
}

int dropin_read(const struct dropin *d, enum dropin_function f, const struct tvm_any *args, int32_t num_args,
		struct dropin_attn *a)
{
	struct call c = { .form = form_of(f, args, num_args) };
	int on = d->table->flags & CAIRN_IMPL_HOST_MEM ? DL_CPU : DL_CUDA;
	int64_t listed = 0;

	if (!c.form)
		return cairn_error(EOPNOTSUPP, "run with %d arguments: queries of 8 bits, or another "
				   "version of FlashInfer", num_args);
	for (int i = 0; i < NUM_ARGS; i++)
		if (c.form->at[i])
			c.arg[i] = args[c.form->at[i] - 1];
	*a = (struct dropin_attn){ .name = c.form->name };
	CAIRN_TRY(read_tensors(&c, a));
	if (tensor_of(&c.arg[Q])->device_type != on)
		return cairn_error(EINVAL, "%s: q: is not in the memory of the table", a->name);
	CAIRN_TRY(read_arrays(&c, a, &listed));
	CAIRN_TRY(read_mask(&c, a));
	CAIRN_TRY(read_numbers(&c, a));
	return read_bounds(&c, a, listed);
}
