// SPDX-License-Identifier: Apache-2.0
/*
 * late_plugin - gives the cpu table (with CAIRN_LATE_OF=ref: the ref table) the asynchronous behaviour of a
 * device, to test host code without a GPU
 *
 * late_memory.c provides the memory, late_runtime.c the streams. A call checks its arguments, copies them and
 * returns; the cpu operation runs when the stream reaches it. A pointer in the arguments to host memory that
 * is not from host_alloc, or to freed memory, is rejected at the call and again when the operation runs.
 *
 * Workspaces. Every query returns more bytes than cpu needs. The surplus depends on the shape, so that a
 * larger shape may need a smaller workspace. A call with fewer bytes is rejected. A workspace with undefined
 * contents is filled with 1 bits before each execution. Some contracts have the caller zero the workspace
 * once, and again when scalars change. In such a workspace the bytes after those of cpu are counters: an
 * execution fails unless they are zero or as the previous execution with equal scalars left them.
 *
 * Collectives run when their stream reaches them, too, and wait for those of the other ranks, which are
 * processes of their own with queues of their own. So each rank must force all of its own calls before it
 * waits for another rank in any other way. If a rank does not come, the call ends, and comm_error() tells of
 * it.
 *
 * A failure in execution, or a misuse detected there, is final, as on a device: every later call returns
 * -EIO.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "conformance/abi.h"
#include "conformance/late/late.h"

static const struct cairn_impl *base;		/* the table whose operations run */

/* ---- operations ---- */

/* The workspace that an operation needs. own: bytes that cpu uses; bytes: size that the query returns. */
struct need {
	size_t own, bytes;
	int kept;			/* the caller zeroes it once; calls leave it ready for the next one */
	uint64_t mark;			/* value of the counters after an execution with these scalars */
};

struct op {
	const char *name;
	int (*check)(const void *args);
	int (*run)(const void *args);
	size_t size, pointers;		/* size of the arguments; offset at which their pointers end */
	size_t later, later_end;	/* offsets of further pointers, which were added behind the scalars */
	int (*ask)(const void *args, struct need *need);	/* NULL: no workspace */
	size_t workspace;		/* offset of `workspace`; workspace_bytes follows it */
};

/* Checks the pointers from byte `at` to byte `end`. */
static int check_range(const struct op *op, const void *args, size_t at, size_t end)
{
	for (; at < end; at += sizeof(void *)) {
		void *p;

		memcpy(&p, (const char *)args + at, sizeof(p));
		if (p && !late_holds(p, 0, 0) && !late_holds(p, 0, 1))
			return cairn_error(EINVAL, "%s: arguments: byte %zu: points to memory %s",
					   op->name, at, late_in_arena(p) ? "that was freed" : "of the host");
	}
	return 0;
}

/*
 * Checks the pointers that argument structs start with, between `size` and the first scalar, and later ones,
 * as far as the struct has them.
 */
static int check_pointers(const struct op *op, const void *args)
{
	size_t size;

	memcpy(&size, args, sizeof(size));
	CAIRN_TRY(check_range(op, args, sizeof(size), op->pointers));
	return check_range(op, args, op->later, size < op->later_end ? size : op->later_end);
}

static int check_workspace(const struct op *op, const void *args, struct need *need, char **workspace)
{
	size_t bytes;

	CAIRN_TRY(op->ask(args, need));
	memcpy(workspace, (const char *)args + op->workspace, sizeof(*workspace));
	memcpy(&bytes, (const char *)args + op->workspace + sizeof(*workspace), sizeof(bytes));
	if (!*workspace || (uintptr_t)*workspace % LATE_ALIGN || bytes < need->bytes)
		return cairn_error(EINVAL, "%s: workspace: has %zu bytes, needs %zu, 256-byte aligned",
				   op->name, *workspace ? bytes : 0, need->bytes);
	if (!late_holds(*workspace, bytes, 0))
		return cairn_error(EINVAL, "%s: workspace: %zu bytes are not all in device memory", op->name,
				   bytes);
	return 0;
}

/* Checks that the counters are zero or as the previous execution with equal scalars left them. */
static int check_kept(const struct op *op, const uint64_t *kept, size_t num, uint64_t mark)
{
	for (size_t i = 0; i < num; i++) {
		if (kept[i] != kept[0] || (kept[i] && kept[i] != mark))
			return cairn_error(EIO, "%s: workspace: not zeroed before its first use, "
					   "or before a call with other scalars, or written since",
					   op->name);
	}
	return 0;
}

static int run_op(struct work *w)
{
	struct need need = { 0, 0, 0, 0 };
	char *workspace = NULL;

	CAIRN_TRY(check_pointers(w->op, w->data));
	if (!w->op->ask)
		return w->op->run(w->data);
	CAIRN_TRY(check_workspace(w->op, w->data, &need, &workspace));
	memset(workspace, 0xff, need.kept ? need.own : need.bytes);
	if (need.kept) {
		uint64_t *kept = (uint64_t *)(workspace + need.own);
		size_t num = (need.bytes - need.own) / sizeof(*kept);

		CAIRN_TRY(check_kept(w->op, kept, num, need.mark));
		for (size_t i = 0; i < num; i++)
			kept[i] = need.mark;
	}
	return w->op->run(w->data);
}

static int call(const struct op *op, const void *args, void *stream)
{
	struct need need;
	struct work *w;
	char *workspace;
	size_t size;
	LATE_CALL;

	CAIRN_TRY(late_lost());
	CAIRN_TRY(op->check(args));
	memcpy(&size, args, sizeof(size));
	size = size < op->size ? size : op->size;
	CAIRN_TRY(check_pointers(op, args));
	if (op->ask)
		CAIRN_TRY(check_workspace(op, args, &need, &workspace));
	w = late_new_work(run_op, op->size);
	if (!w)
		return -ENOMEM;
	w->op = op;
	memcpy(w->data, args, size);
	memcpy(w->data, &size, sizeof(size));
	return late_enqueue(stream, w);
}

/* number: a hash of the scalars on which the counters depend; the surplus of the size depends on it. */
static int fill_need(struct need *need, size_t own, int kept, int64_t number)
{
	need->own = (own + LATE_ALIGN - 1) / LATE_ALIGN * LATE_ALIGN;
	need->bytes = need->own + LATE_ALIGN * (1 + (uint64_t)number * 0x9e3779b97f4a7c15u % 7);
	need->kept = kept;
	need->mark = (uint64_t)number * 2 + 1;
	return 0;
}

static int query(const struct op *op, const void *args, size_t *bytes)
{
	struct need need;

	if (!bytes)
		return cairn_error(EINVAL, "%s_workspace: bytes: null pointer", op->name);
	CAIRN_TRY(op->ask(args, &need));
	*bytes = need.bytes;
	return 0;
}

#define CALL(fn) \
	static int late_##fn(const struct cairn_##fn##_args *args, void *stream) \
	{ \
		return call(&fn##_op, args, stream); \
	}
#define PARTS(fn) \
	static int fn##_check(const void *args) { return cairn_offer.fn##_check(args); } \
	static int fn##_run(const void *args) { return base->fn(args, NULL); }
/* The call checks the handle. When it runs, a communicator's error does not count as a lost device. */
#define RANKS_PARTS(fn) \
	static int fn##_check(const void *args) \
	{ \
		const struct cairn_##fn##_args *a = args; \
		CAIRN_TRY(cairn_offer.fn##_check(a)); \
		return cairn_offer.comm_host_check(&a->comm, #fn); \
	} \
	static int fn##_run(const void *args) \
	{ \
		const struct cairn_##fn##_args *a = args; \
		int ret = base->fn(a, NULL); \
		return base->comm_error(&a->comm) ? 0 : ret; \
	}
/* scalar: the first scalar of the arguments, or of the KV cache view if that is the last input */
#define PLAIN(fn, scalar)	PARTS(fn) PLAIN_OP(fn, scalar)
#define COLLECTIVE(fn)		RANKS_PARTS(fn) PLAIN_OP(fn, comm)
#define PLAIN_OP(fn, scalar, ...) \
	static const struct op fn##_op = { \
		.name = #fn, .check = fn##_check, .run = fn##_run, .size = sizeof(struct cairn_##fn##_args), \
		.pointers = offsetof(struct cairn_##fn##_args, scalar), __VA_ARGS__ \
	}; \
	CALL(fn)
/* first: the first of the pointers behind the scalars; end: the member behind the last of them */
#define PLAIN_LATER(fn, scalar, first, end) \
	PARTS(fn) PLAIN_OP(fn, scalar, .later = offsetof(struct cairn_##fn##_args, first), \
			   .later_end = offsetof(struct cairn_##fn##_args, end))
/*
 * space: the member workspace; end: the first member after the pointers; scalars: the check of the scalars;
 * cpu: the workspace query of cpu (both return 0 or an error)
 */
#define WITH_WORKSPACE_AT(fn, space, end, scalars, cpu, kept, number) \
	static int fn##_ask(const void *args, struct need *need) \
	{ \
		const struct cairn_##fn##_args *a = args; \
		size_t own = 0, *bytes = &own; \
		CAIRN_TRY(scalars); \
		(void)bytes; \
		CAIRN_TRY(cpu); \
		return fill_need(need, own, kept, number); \
	} \
	static const struct op fn##_op = { \
		.name = #fn, .check = fn##_check, .run = fn##_run, .size = sizeof(struct cairn_##fn##_args), \
		.ask = fn##_ask, .pointers = offsetof(struct cairn_##fn##_args, end), \
		.workspace = offsetof(struct cairn_##fn##_args, space), \
	}; \
	CALL(fn) \
	static int late_##fn##_workspace(const struct cairn_##fn##_args *args, size_t *bytes) \
	{ \
		return query(&fn##_op, args, bytes); \
	}
#define WITH_WORKSPACE(fn, ...)	PARTS(fn) WITH_WORKSPACE_AT(fn, workspace, workspace, __VA_ARGS__)
#define WITH_PAGES(fn, ...)	PARTS(fn) WITH_WORKSPACE_AT(fn, workspace, kv.num_pages, __VA_ARGS__)

PLAIN(stream, seed) PLAIN(dsmem, src_bytes) PLAIN(rmsnorm, rows) PLAIN(rope, q_stride)
PLAIN(silu_mul, rows) PLAIN(embedding, rows) PLAIN(argmax, rows) PLAIN(kv_append, kv.num_pages)
PLAIN(pick_ids, rows) PLAIN(kv_move, layer_bytes) PLAIN(token_counts, num_slots) PLAIN(penalize, rows)
PLAIN(logprobs, rows) PLAIN(mask_logits, rows) PLAIN(quant_fp8w, n) PLAIN(mla_append, kv.num_pages)
PLAIN_LATER(attn_merge, state_stride, sink, q_stride) PLAIN(attn_quant, q_stride) PLAIN(screen, seed)
PLAIN(gemm_gated, m) PLAIN_LATER(qkv_append, kv.num_pages, k_scale, q_stride)
COLLECTIVE(all_reduce_norm) COLLECTIVE(all_to_all) COLLECTIVE(send_recv)
WITH_WORKSPACE(cluster_reduce, cairn_offer.cluster_reduce_check_shape(a), 0, 0, a->len + a->num_clusters)
WITH_WORKSPACE(cluster_gather, cairn_offer.cluster_gather_check_shape(a), 0, 0, a->len + a->num_clusters)
WITH_WORKSPACE(gemm, cairn_offer.gemm_check_shape(a), 0, 0, a->m + (int64_t)a->n * a->k)
WITH_WORKSPACE(gemm_fixed, cairn_offer.gemm_fixed_check_shape(a), 0, 0, a->m + (int64_t)a->n * a->k)
WITH_WORKSPACE(gemm_fp8, cairn_offer.gemm_fp8_check_shape(a), 0, 0, a->m + (int64_t)a->n * a->k)
WITH_WORKSPACE(gemm_fp8w, cairn_offer.gemm_fp8w_check_shape(a), 0, 0, a->m + (int64_t)a->n * a->k)
WITH_WORKSPACE(gemm_w4, cairn_offer.gemm_w4_check_shape(a), 0, 0, a->m + (int64_t)a->n * a->k)
WITH_WORKSPACE(lora, cairn_offer.lora_check_shape(a), 0, 0, a->m + a->rank)
WITH_WORKSPACE(sample, cairn_offer.sample_check_shape(a), 0, 0, a->rows)
WITH_WORKSPACE(attn_bsr, cairn_offer.attn_bsr_check_shape(a), 0, 0, a->nnz_qo + a->num_parts)
WITH_WORKSPACE(attn_bwd, cairn_offer.attn_bwd_check_shape(a), 0, 0, a->nnz_qo + a->nnz_kv)
WITH_WORKSPACE(attn_dense, cairn_offer.attn_dense_check_shape(a), 0, 0, a->nnz_qo + a->nnz_kv)
WITH_WORKSPACE(attn_fp8, cairn_offer.attn_fp8_check_shape(a), 0, 0, a->nnz_qo + a->nnz_kv)
WITH_WORKSPACE(attn_variant, cairn_offer.attn_variant_check_shape(a), 0, 0, a->nnz_qo + a->nnz_kv)
WITH_PAGES(attn_paged, cairn_offer.attn_paged_check_shape(a), 0, 0,
	   a->nnz_qo + a->kv.batch + a->kv.max_len)
WITH_PAGES(mla_decode, cairn_offer.mla_decode_check_shape(a), 0, 0,
	   a->nnz_qo + a->kv.batch + a->kv.max_len)
WITH_PAGES(mla_paged, cairn_offer.mla_paged_check_shape(a), 0, 0,
	   a->nnz_qo + a->kv.batch + a->kv.max_len)
WITH_PAGES(mla_prefill, cairn_offer.mla_prefill_check_shape(a), 0, 0,
	   a->nnz_qo + a->kv.batch + a->nnz_past)
#define CONTEXT	((int64_t)a->kv.max_len * 1024 + a->kv.batch)
WITH_PAGES(cluster_attn, cairn_offer.cluster_attn_check_shape(a),
	   cairn_offer.cluster_attn_cpu_workspace(a, bytes), 1, CONTEXT)
WITH_PAGES(cluster_mla, cairn_offer.cluster_mla_check_shape(a), 0, 1, CONTEXT)
WITH_PAGES(decode_step, cairn_offer.decode_step_check_shape(a),
	   cairn_offer.decode_step_cpu_workspace(a, bytes), 1, CONTEXT)
RANKS_PARTS(decode_step_ranks)
WITH_WORKSPACE_AT(decode_step_ranks, step.workspace, step.kv.num_pages,
		  cairn_offer.decode_step_ranks_check_shape(a),
		  cairn_offer.decode_step_ranks_cpu_workspace(a, bytes), 1,
		  (int64_t)a->step.kv.max_len * 1024 + a->step.kv.batch)
WITH_WORKSPACE(moe, cairn_offer.moe_check_shape(a), 0, a->batch <= CAIRN_MOE_FEW, a->batch)

/* ---- the table ---- */

#define ONE(fn)		(impl.fn = late_##fn)
#define BOTH(fn)	(ONE(fn), impl.fn##_workspace = late_##fn##_workspace)

const struct cairn_impl *cairn_impl_get(uint32_t abi_version)
{
	static struct cairn_impl impl;
	const char *of = getenv("CAIRN_LATE_OF");

	base = of && !strcmp(of, "ref") ? cairn_offer.ref : cairn_offer.cpu;
	impl = late_runtime;
	ONE(stream); ONE(dsmem); ONE(screen); BOTH(cluster_reduce); BOTH(cluster_gather); BOTH(gemm);
	BOTH(gemm_fixed); BOTH(gemm_fp8); BOTH(gemm_w4); BOTH(lora); ONE(gemm_gated); ONE(qkv_append);
	ONE(rmsnorm); ONE(rope); ONE(silu_mul); ONE(embedding); ONE(argmax); BOTH(sample);
	ONE(kv_append); BOTH(attn_paged); BOTH(cluster_attn); BOTH(cluster_mla);
	BOTH(decode_step); BOTH(moe); ONE(pick_ids); ONE(kv_move); ONE(token_counts);
	ONE(penalize); ONE(logprobs); ONE(mask_logits); ONE(quant_fp8w); BOTH(gemm_fp8w); ONE(mla_append);
	BOTH(mla_paged); ONE(attn_merge); BOTH(attn_dense);
	BOTH(attn_bsr); BOTH(attn_bwd); BOTH(mla_prefill); ONE(attn_quant); BOTH(attn_fp8);
	BOTH(attn_variant); BOTH(mla_decode); ONE(all_reduce_norm); ONE(all_to_all);
	ONE(send_recv);
	if (base->decode_step_ranks)
		BOTH(decode_step_ranks);
	impl.comm_open = base->comm_open;
	impl.comm_error = base->comm_error;
	impl.comm_abort = base->comm_abort;
	impl.comm_close = base->comm_close;
	return abi_version == CAIRN_ABI_VERSION ? &impl : NULL;
}
