/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward_impl - the walk over the operations of a pass; for forward*.c, serving/nano and serving/slices
 *
 * A walk runs operations on all rows of a pass, or on num_rows consecutive ones from first_row on: its batch
 * then describes only these rows and their requests. It may have memory of its own for its rows of some
 * activations: `own` has their offsets for one row, so the rows of v begin at num_rows * own->offset[v], and
 * the num_rows rows of all of them take num_rows * own->bytes.
 *
 * A product and a rotation of rows of q, k and v may run for the columns of q, and for those of k and v. The
 * value then consists of the rows of q, without gaps, followed by the rows of k and v.
 *
 * Operations of one lane run one after the other and share a workspace. A plan of attention belongs to the
 * requests that it was made for, so it has a workspace of its own for each split of the pass.
 */
#ifndef CAIRN_FORWARD_IMPL_H
#define CAIRN_FORWARD_IMPL_H

#include "primitives/base/dtype.h"
#include "serving/graph/buffers.h"
#include "serving/model/forward/forward.h"

#define FORWARD_LANES	8		/* lane 0: the caller's stream */
#define FORWARD_SPLITS	9		/* split 0: all rows */

enum forward_part { FORWARD_ALL, FORWARD_Q, FORWARD_KV };

struct room {
	void *at;
	size_t bytes;
};

struct cairn_scratch {
	const struct cairn_model *model;
	int32_t max_rows, max_logits;
	struct cairn_buffers buffers;		/* offsets of the activations from base */
	char *base;
	size_t bytes;				/* at base */
	/* attn holds the plans that layers share, moe counters from call to call */
	struct room lane[FORWARD_LANES], attn[FORWARD_SPLITS], moe;
	/* with context parallelism, one of the two */
	struct context_room *context;
	struct ring_room *ring;
	struct room pages;		/* of passes with batch->pages */
	unsigned int no_codes;		/* 1 << kind: operations of the table that do not quantise */
};

struct walk {
	const struct cairn_model *m;
	const struct cairn_op_graph *g;
	struct cairn_scratch *s;
	const struct cairn_kv_store *kv;
	const struct cairn_batch *b;
	const struct cairn_buffers *buffers;
	const struct cairn_buffers *own;	/* NULL: none */
	int64_t own_at;		/* where its own memory begins in the scratch's */
	int32_t first_row;	/* of the pass; for values with a row for each token */
	int32_t lane, split;
	enum forward_part part;		/* what a product or a rotation of q, k and v computes */
	void *stream;
	int asking;		/* query workspaces; launch nothing */
	size_t workspace_bytes, attn_bytes, moe_bytes;	/* the largest answers so far */
	/*
	 * The walk runs the operations of the graph in order on one stream, so an operation may leave the
	 * 8-bit codes of its output in the workspace for the product after it.
	 */
	int in_order;
	const struct cairn_graph_op *quantised_for;	/* the product whose codes lie there; NULL: none */
	/* the last operation that a product before it has computed, too; NULL: none */
	const struct cairn_graph_op *covered;
	int has_plan;		/* the split's attn holds the plan of attention with this window */
	int32_t plan_window;
};

/* Returns the sizes of a pass, for placing its activations. */
struct cairn_pass_sizes forward_sizes(const struct cairn_model *model, int32_t max_rows, int32_t max_logits);
/* Returns the address of the walk's rows of an activation or of the logits. */
char *forward_at(const struct walk *w, int32_t value);
/* Runs one operation, or with w->asking queries its workspace. */
int forward_run_op(struct walk *w, const struct cairn_graph_op *op);
int forward_check_batch(const struct cairn_scratch *scratch, const struct cairn_batch *batch);
/* Grows *room to at least `bytes` bytes; if it must, waits for the stream and sets *moved. */
int forward_reserve(const struct cairn_impl *impl, struct room *room, size_t bytes, void *stream, int *moved);

/* ---- what operations read: forward.c, forward_attn.c, forward_gemm.c ---- */

#define FORWARD_WORKSPACE(room)	.workspace = (room).at, .workspace_bytes = (room).bytes

static inline int32_t forward_rows(const struct walk *w, int32_t value)
{
	return w->g->values[value].shape.rows == CAIRN_ROWS_LOGITS ? w->b->num_logits : w->b->num_rows;
}

static inline int32_t forward_width(const struct walk *w, int32_t value)
{
	return w->m->dims[w->g->values[value].shape.width];
}

/* Returns the weight of this kind that the operation reads, or NULL if it reads none. */
static inline void *forward_weight(const struct walk *w, const struct cairn_graph_op *op,
				   enum cairn_weight kind)
{
	return cairn_op_weight(w->g, op, kind) < 0 ? NULL : cairn_model_weight(w->m, op->layer, kind);
}

/* Returns the i-th weight of an operation, or NULL if it has fewer. */
static inline void *forward_weight_at(const struct walk *w, const struct cairn_graph_op *op, int32_t i)
{
	return i < op->num_weights ? forward_weight(w, op, w->g->values[op->weights[i]].weight) : NULL;
}

/* Returns the scales of an 8-bit weight, or NULL. */
static inline const float *forward_scale(const struct walk *w, const struct cairn_graph_op *op,
					 enum cairn_weight kind)
{
	return cairn_op_weight(w->g, op, kind) < 0 ? NULL : cairn_model_scale(w->m, op->layer, kind);
}

/* bytes is a pointer because the query in the argument ret must run before it is read. */
static inline int forward_ask_into(const struct walk *w, size_t *most, int ret, const size_t *bytes,
				   const char *what)
{
	if (!ret && *bytes > *most)
		*most = *bytes;
	return cairn_table_ret(w->m->impl, ret, what);
}

static inline int forward_ask(struct walk *w, int ret, const size_t *bytes, const char *what)
{
	return forward_ask_into(w, &w->workspace_bytes, ret, bytes, what);
}

/* Each runs an operation; those with a workspace query it with w->asking: forward_attn.c, forward_gemm.c. */
int forward_attn(struct walk *w, const struct cairn_graph_op *op);
int forward_mla(struct walk *w, const struct cairn_graph_op *op);
int forward_kv_append(struct walk *w, const struct cairn_graph_op *op);
int forward_mla_append(struct walk *w, const struct cairn_graph_op *op);
int forward_gemm(struct walk *w, const struct cairn_graph_op *op);
/* Runs the product for q, k and v with the rotation and the append after it: forward_attn.c. */
int forward_qkv(struct walk *w, const struct cairn_graph_op *op, const struct cairn_gemm_args *product);
/*
 * Returns whether the operation may give its output in 8 bits alone: the product after it, which multiplies
 * 8-bit activations, is the only reader. Sets *quant to where that product expects codes and scales.
 */
int forward_may_quantise(const struct walk *w, const struct cairn_graph_op *op,
			 struct cairn_quant_fp8w_args *quant);
/*
 * Takes what a call with these outputs has returned. Returns 0 if the table cannot quantise in this
 * operation; then it must be called without them, and the product quantises.
 */
int forward_has_quantised(struct walk *w, const struct cairn_graph_op *op, int ret);

/* Returns the bytes of a row of this width, in the model's dtype. */
static inline int64_t forward_row_bytes(const struct cairn_model *m, enum cairn_dim width)
{
	return (int64_t)m->dims[width] * (int64_t)cairn_dtype_bytes(m->dtype);
}

static inline const struct cairn_graph_op *forward_first_of_head(const struct cairn_op_graph *g)
{
	int32_t o = 0;

	while (g->ops[o].block != CAIRN_BLOCK_HEAD)
		o++;
	return &g->ops[o];
}

/* Returns whether the last half layer's output must still be added to the residual stream. */
static inline int forward_head_adds(const struct cairn_graph_op *first)
{
	return first[1].kind == CAIRN_OP_PICK_ROWS;
}

/* ---- one of several ranks: serving/ranks/ranks_forward.c ---- */

/* Runs a norm that is a collective: it sums x over the ranks first. */
int forward_sum_norm(const struct walk *w, const struct cairn_rmsnorm_args *a);
int forward_gather(const struct walk *w, const struct cairn_graph_op *op);

/* ---- one of several ranks that share the rows of a pass: serving/ranks/ranks_context.c ---- */

/*
 * Adds the bytes that exchanges need to *bytes, the size of the activations. After an error, destroy() must
 * still be called.
 */
int forward_context_create(struct cairn_scratch *scratch, int64_t *bytes);
void forward_context_destroy(struct cairn_scratch *scratch);
/* cairn_scratch_reserve() and cairn_forward() call these two for such a rank. */
int forward_context_reserve(struct cairn_scratch *scratch, const struct cairn_kv_store *kv,
			    const struct cairn_batch *batch, void *stream, int *moved);
int forward_context(struct cairn_scratch *scratch, const struct cairn_kv_store *kv,
		    const struct cairn_batch *batch, void *stream);

/* ---- the same with a ring: serving/ranks/ranks_ring.c ---- */

int forward_ring_create(struct cairn_scratch *scratch, int64_t *bytes);
void forward_ring_destroy(struct cairn_scratch *scratch);
/* For passes with batch->ring; others are computed whole by every rank. */
int forward_ring_reserve(struct cairn_scratch *scratch, const struct cairn_kv_store *kv,
			 const struct cairn_batch *batch, void *stream, int *moved);
int forward_ring(struct cairn_scratch *scratch, const struct cairn_kv_store *kv,
		 const struct cairn_batch *batch, void *stream);

/* ---- a decoding pass whose ranks share out pages: serving/ranks/ranks_pages.c ---- */

/* Attention of a pass with batch->pages. */
int forward_pages(struct walk *w, const struct cairn_graph_op *op);
int forward_pages_reserve(struct cairn_scratch *scratch, const struct cairn_batch *batch, void *stream,
			  int *moved);

/* ---- a pass whose ranks each hold some of the pages: serving/ranks/ranks_stripes.c ---- */

/* Around each operation of a pass; without batch->stripes they do nothing. w->kv: the store of the pass. */
int forward_stripes_before(const struct walk *w, const struct cairn_graph_op *op);
int forward_stripes_after(const struct walk *w, const struct cairn_graph_op *op);

/* ---- exchanges that several of them make ---- */

/*
 * Gives every rank `row` bytes of `rows` rows of all ranks, which lie `stride` bytes apart in x; the rows of
 * rank r begin at row r * rows of out: ranks_context.c.
 */
int forward_gather_rows(const struct walk *w, char *out, const char *x, int32_t rows, int64_t row,
			int64_t stride);

/* Returns whether a workspace query of this operation may be left out, as others of its kind stand for it. */
int forward_may_skip_query(const struct cairn_model *model, const struct cairn_graph_op *op);
/* Zeroes moe's counters for this number of rows: moe leaves them ready for the next layer only. */
int forward_zero_counters(const struct walk *w);

#endif
