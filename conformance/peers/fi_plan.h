/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fi_plan - plans of FlashInfer's attention, kept by shape
 *
 * FlashInfer distributes tiles to CTAs on the host. A call outside of a capture reads the index arrays, makes
 * a plan, and keeps it in memory of its own. A captured call uses the plan of the latest call of the shape,
 * which must exist; its graph is valid for these lengths only. A captured call therefore takes the time of
 * the kernel alone, as in a step of a model whose layers share a plan.
 */
#ifndef CAIRN_FI_PLAN_H
#define CAIRN_FI_PLAN_H

#include "conformance/peers/tvm_ffi.h"
#include "fused/attention/paged/attn_paged.h"

#define FI_PLAN_BYTES	(8 << 20)	/* size of a plan's index arrays, as in FlashInfer's own wrapper */
#define FI_PART_BYTES	(128 << 20)	/* size of the partial results, as FlashInfer's documents advise */

/* What a plan depends on besides the lengths; padding bytes are 0. */
struct fi_key {
	int32_t device, kind, dtype, batch, nnz_qo, nnz_kv, max_qo_len, max_kv_len, heads, kv_heads, qk_dim,
		v_dim, page_size, causal;
};

enum fi_kind { FI_DENSE, FI_PAGED, FI_DECODE, FI_TENSOR, FI_MLA };

struct fi_plan {
	struct fi_key key;
	uint64_t used;			/* the cache's clock at the last use; 0: free */
	struct tvm_any info;		/* FlashInfer's description: offsets in the index arrays */
	void *device, *host;		/* FI_PLAN_BYTES each; host: page-locked */
	void *parts;			/* FI_PART_BYTES on the device, shared by all plans there */
};

struct fi_call {
	const char *op;
	struct fi_key key;
	const int32_t *qo_indptr, *kv_indptr;
	const int32_t *last_page_len;	/* NULL: kv_indptr counts keys, not pages */
	int32_t *lengths;		/* on the host: both index arrays, and the numbers of keys */
	/* makes a plan of c->lengths in p's arrays and describes it in p->info */
	int (*make)(const struct fi_call *c, struct fi_plan *p, void *stream);
	tvm_function *plan, *run;
};

/* [batch + 1] rows, [batch + 1] keys or pages, [batch] numbers of keys */
static inline int32_t *fi_rows_of(const struct fi_call *c)
{
	return c->lengths;
}

static inline int32_t *fi_keys_of(const struct fi_call *c)
{
	return c->lengths + c->key.batch + 1;
}

static inline int32_t *fi_num_keys_of(const struct fi_call *c)
{
	return c->lengths + 2 * ((size_t)c->key.batch + 1);
}

/* Sets the key's device, kind and sizes, and the index arrays, of a call of attn_paged. */
int cairn_fi_take_paged(struct fi_call *c, const struct cairn_attn_paged_args *a, enum fi_kind kind);
/*
 * Finds the plan of a captured call; makes a new one for any other call. The caller holds the lock from
 * before this until it has called the kernel.
 */
int cairn_fi_plan(struct fi_call *c, void *stream, struct fi_plan **out);
void cairn_fi_lock(void);
void cairn_fi_unlock(void);

#endif
