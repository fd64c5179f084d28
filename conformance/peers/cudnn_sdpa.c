// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/cudnn_sdpa.h"

#include <math.h>
#include <stddef.h>

/* A graph under construction, with what both passes share. */
struct build {
	struct cudnn_graph *g;
	const struct cudnn_sdpa *s;
	void *len_q, *len_kv;		/* lengths of the requests; NULL: all are equal */
	void *k_offsets;
	int io;				/* dtype of the arrays */
};

static struct cudnn_shape of(const struct build *b, int64_t heads, int64_t rows, int64_t cols, int dtype)
{
	return (struct cudnn_shape){
		{ b->s->batch, heads, rows, cols },
		{ heads * rows * cols, rows * cols, cols, 1 }, dtype, 0,
	};
}

/* Declares a virtual tensor with one number for each query row and key. */
static void *scores(const struct build *b, int dtype)
{
	const struct cudnn_shape shape = of(b, b->s->heads, b->s->len_q, b->s->len_kv, dtype);

	return cairn_cudnn_virtual(b->g, &shape, NULL);
}

/* Declares a virtual tensor with one number for each query row. */
static void *rows(const struct build *b)
{
	const struct cudnn_shape shape = of(b, b->s->heads, b->s->len_q, 1, CUDNN_DATA_FLOAT);

	return cairn_cudnn_virtual(b->g, &shape, NULL);
}

int64_t cairn_cudnn_row_stride(const struct cudnn_sdpa *s, int tensor)
{
	switch (tensor) {
	case SDPA_Q: return s->q_stride;
	case SDPA_K: return s->k_stride;
	case SDPA_V: return s->v_stride;
	case SDPA_LSE: return s->heads;
	case SDPA_DQ: return (int64_t)s->heads * s->qk_dim;
	case SDPA_DK: return (int64_t)s->kv_heads * s->qk_dim;
	case SDPA_DV: return (int64_t)s->kv_heads * s->v_dim;
	}
	return (int64_t)s->heads * s->v_dim;	/* out, dout */
}

/* Declares the offsets of a tensor, or returns NULL. */
static void *offsets(const struct build *b, int tensor)
{
	const int64_t n = b->s->batch + 1;
	const struct cudnn_shape shape = { { n, 1, 1, 1 }, { 1, 1, 1, 1 }, CUDNN_DATA_INT64, 0 };

	return b->s->ragged ? cairn_cudnn_tensor(b->g, SDPA_OFFSETS + tensor, &shape, NULL) : NULL;
}

static void *lengths(const struct build *b, int tensor)
{
	const struct cudnn_shape shape = { { b->s->batch, 1, 1, 1 }, { 1, 1, 1, 1 }, CUDNN_DATA_INT32, 0 };

	return b->s->ragged ? cairn_cudnn_tensor(b->g, tensor, &shape, NULL) : NULL;
}

/* Returns the layout of a [row, head, dim] tensor; transposed: as a matrix [dim, row]. */
static struct cudnn_shape lie(const struct build *b, int tensor, int transposed)
{
	const struct cudnn_sdpa *s = b->s;
	int kv = tensor == SDPA_K || tensor == SDPA_V || tensor == SDPA_DK || tensor == SDPA_DV;
	int qk = tensor == SDPA_Q || tensor == SDPA_K || tensor == SDPA_DQ || tensor == SDPA_DK;
	int64_t row = cairn_cudnn_row_stride(s, tensor), dim = qk ? s->qk_dim : s->v_dim;
	int64_t head = tensor == SDPA_K ? s->k_head_stride : tensor == SDPA_V ? s->v_head_stride : dim;
	int64_t len = kv ? s->len_kv : s->len_q;
	struct cudnn_shape shape = {
		{ s->batch, kv ? s->kv_heads : s->heads, len, dim }, { len * row, head, row, 1 }, b->io, 0,
	};

	if (tensor == SDPA_LSE)
		shape = (struct cudnn_shape){ { s->batch, s->heads, len, 1 }, { len * row, 1, row, 1 },
					      CUDNN_DATA_FLOAT, sizeof(float) };
	if (transposed) {
		shape.dim[2] = dim;
		shape.dim[3] = len;
		shape.stride[2] = 1;
		shape.stride[3] = row;
	}
	return shape;
}

static void *array(const struct build *b, int tensor, int transposed)
{
	const struct cudnn_shape shape = lie(b, tensor, transposed);

	return cairn_cudnn_tensor(b->g, tensor, &shape,
				  tensor == SDPA_K ? b->k_offsets : offsets(b, tensor));
}

static void *apply(const struct build *b, int mode, void *x, void *y, void *with)
{
	cairn_cudnn_pointwise(b->g, &(struct cudnn_pointwise){
		.mode = mode, .compute = CUDNN_DATA_FLOAT, .x = x, .b = with, .y = y });
	return y;
}

/* A pointwise operation on index tensors: arithmetic (int32) or a comparison (boolean). */
static void *on_index(const struct build *b, int mode, int dtype, void *x, void *with)
{
	void *y = scores(b, dtype);

	cairn_cudnn_pointwise(b->g, &(struct cudnn_pointwise){
		.mode = mode, .compute = dtype, .x = x, .b = with, .y = y });
	return y;
}

/* The index of each score's row (axis 2) or key (axis 3). */
static void *gen_index(const struct build *b, int axis, int compute, void *x)
{
	void *y = scores(b, CUDNN_DATA_INT32);

	cairn_cudnn_pointwise(b->g, &(struct cudnn_pointwise){
		.mode = CUDNN_GEN_INDEX, .compute = compute, .x = x, .y = y, .axis = axis });
	return y;
}

static void *keep_where(const struct build *b, void *x, void *mask)
{
	void *y = scores(b, CUDNN_DATA_FLOAT);

	cairn_cudnn_pointwise(b->g, &(struct cudnn_pointwise){
		.mode = CUDNN_BINARY_SELECT, .compute = CUDNN_DATA_FLOAT, .x = x, .t = mask, .y = y,
		.b = cairn_cudnn_float(b->g, -INFINITY) });
	return y;
}

/* Masks rows and keys past the lengths of their request. */
static void *mask_padding(const struct build *b, void *x)
{
	void *row, *key;

	if (!b->s->ragged)
		return x;
	row = gen_index(b, 2, CUDNN_DATA_INT32, x);
	key = gen_index(b, 3, CUDNN_DATA_INT32, x);
	row = on_index(b, CUDNN_CMP_LT, CUDNN_DATA_BOOLEAN, row, b->len_q);
	key = on_index(b, CUDNN_CMP_LT, CUDNN_DATA_BOOLEAN, key, b->len_kv);
	return keep_where(b, x, on_index(b, CUDNN_LOGICAL_AND, CUDNN_DATA_BOOLEAN, row, key));
}

/* Keeps key <= row + len_kv - len_q. For equal lengths the engines' fastest form uses no lengths. */
static void *mask_causal(const struct build *b, void *x)
{
	const struct cudnn_sdpa *s = b->s;
	void *row, *key;

	if (!s->causal)
		return x;
	row = gen_index(b, 2, CUDNN_DATA_FLOAT, x);
	key = gen_index(b, 3, CUDNN_DATA_FLOAT, x);
	if (s->ragged || s->len_q != s->len_kv) {
		row = on_index(b, CUDNN_ADD, CUDNN_DATA_INT32, row,
			       s->ragged ? b->len_kv : cairn_cudnn_int(b->g, s->len_kv));
		row = on_index(b, CUDNN_SUB, CUDNN_DATA_INT32, row,
			       s->ragged ? b->len_q : cairn_cudnn_int(b->g, s->len_q));
	}
	return keep_where(b, x, on_index(b, CUDNN_CMP_GE, CUDNN_DATA_BOOLEAN, row, key));
}

/* Keeps key > row + len_kv - len_q - window. */
static void *mask_window(const struct build *b, void *x)
{
	const struct cudnn_sdpa *s = b->s;
	void *row, *key;

	if (!s->window)
		return x;
	row = gen_index(b, 2, CUDNN_DATA_FLOAT, x);
	key = gen_index(b, 3, CUDNN_DATA_FLOAT, x);
	if (s->ragged) {
		key = on_index(b, CUDNN_ADD, CUDNN_DATA_INT32, key, cairn_cudnn_int(b->g, s->window));
		key = on_index(b, CUDNN_SUB, CUDNN_DATA_INT32, key, b->len_kv);
		key = on_index(b, CUDNN_ADD, CUDNN_DATA_INT32, key, b->len_q);
	} else {
		key = on_index(b, CUDNN_ADD, CUDNN_DATA_FLOAT, key,
			       cairn_cudnn_float(b->g, (float)s->window - s->len_kv + s->len_q));
	}
	return keep_where(b, x, on_index(b, CUDNN_CMP_GT, CUDNN_DATA_BOOLEAN, key, row));
}

static struct build begin(struct cudnn_graph *g, const struct cudnn_sdpa *s)
{
	struct build b = { .g = g, .s = s, .io = s->bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF };

	b.len_q = lengths(&b, SDPA_LEN_Q);
	b.len_kv = lengths(&b, SDPA_LEN_KV);
	b.k_offsets = offsets(&b, SDPA_K);
	return b;
}

void cairn_cudnn_sdpa(struct cudnn_graph *g, const struct cudnn_sdpa *s)
{
	struct build b = begin(g, s);
	void *x = scores(&b, CUDNN_DATA_FLOAT), *most = rows(&b), *sum = rows(&b), *log_sum = rows(&b);
	void *p, *e;

	cairn_cudnn_matmul(g, &(struct cudnn_matmul){
		.a = array(&b, SDPA_Q, 0), .b = array(&b, SDPA_K, 1), .c = x, .m = b.len_q, .n = b.len_kv });
	x = apply(&b, CUDNN_MUL, x, scores(&b, CUDNN_DATA_FLOAT), cairn_cudnn_float(g, s->scale));
	x = mask_padding(&b, x);
	x = mask_causal(&b, x);
	x = mask_window(&b, x);
	cairn_cudnn_reduce(g, CUDNN_REDUCE_MAX, x, most);
	x = apply(&b, CUDNN_SUB, x, scores(&b, CUDNN_DATA_FLOAT), most);
	e = apply(&b, CUDNN_EXP, x, scores(&b, CUDNN_DATA_FLOAT), NULL);
	cairn_cudnn_reduce(g, CUDNN_REDUCE_ADD, e, sum);
	apply(&b, CUDNN_LOG, sum, log_sum, NULL);
	apply(&b, CUDNN_ADD, most, array(&b, SDPA_LSE, 0), log_sum);
	p = apply(&b, CUDNN_DIV, e, scores(&b, b.io), sum);
	cairn_cudnn_matmul(g, &(struct cudnn_matmul){
		.a = p, .b = array(&b, SDPA_V, 0), .c = array(&b, SDPA_OUT, 0), .m = b.len_q,
		.k = b.len_kv });
}

/* Returns the scores transposed to [key, row], in the arrays' dtype. */
static void *turned(const struct build *b, void *x)
{
	struct cudnn_shape shape = of(b, b->s->heads, b->s->len_q, b->s->len_kv, b->io);
	void *y;

	shape.dim[2] = b->s->len_kv;
	shape.dim[3] = b->s->len_q;
	shape.stride[2] = 1;
	shape.stride[3] = b->s->len_kv;
	y = cairn_cudnn_virtual(b->g, &shape, NULL);
	cairn_cudnn_reshape(b->g, x, y);
	return y;
}

/* The gradient of K or V, which heads do not share: transposed scores times a. */
static void grad_kv(const struct build *b, int tensor, void *turned_scores, void *a)
{
	cairn_cudnn_matmul(b->g, &(struct cudnn_matmul){
		.a = turned_scores, .b = a, .c = array(b, tensor, 0), .m = b->len_kv, .k = b->len_q });
}

/* delta: the sums of dout * out of each row, in memory. */
static void *delta_of(const struct build *b, void *dout)
{
	const struct cudnn_sdpa *s = b->s;
	const struct cudnn_shape row = of(b, s->heads, s->len_q, 1, CUDNN_DATA_FLOAT);
	struct cudnn_shape product = of(b, s->heads, s->len_q, s->v_dim, CUDNN_DATA_FLOAT);
	void *x, *sum = rows(b), *delta;

	product.stride[2] = (int64_t)s->heads * s->v_dim;
	x = cairn_cudnn_virtual(b->g, &product, NULL);
	apply(b, CUDNN_MUL, dout, x, array(b, SDPA_OUT, 0));
	cairn_cudnn_reduce(b->g, CUDNN_REDUCE_ADD, x, sum);
	delta = cairn_cudnn_tensor(b->g, SDPA_DELTA, &row, NULL);
	return apply(b, CUDNN_MUL, sum, delta, cairn_cudnn_float(b->g, 1));
}

/* dq = ds k, summed in fp32 in memory, then rounded. */
static void grad_q(const struct build *b, void *ds, void *k)
{
	const struct cudnn_sdpa *s = b->s;
	const struct cudnn_shape plain = lie(b, SDPA_K, 0);
	const struct cudnn_shape in_fp32 = of(b, s->heads, s->len_q, s->qk_dim, CUDNN_DATA_FLOAT);
	void *turned_k = cairn_cudnn_virtual(b->g, &plain, b->k_offsets);
	void *sum = cairn_cudnn_tensor(b->g, SDPA_DQ_SUM, &in_fp32, NULL);

	cairn_cudnn_reshape(b->g, k, turned_k);
	cairn_cudnn_matmul(b->g, &(struct cudnn_matmul){
		.a = ds, .b = turned_k, .c = sum, .m = b->len_q, .k = b->len_kv });
	apply(b, CUDNN_IDENTITY, sum, array(b, SDPA_DQ, 0), NULL);
}

void cairn_cudnn_sdpa_bwd(struct cudnn_graph *g, const struct cudnn_sdpa *s)
{
	struct build b = begin(g, s);
	void *q = array(&b, SDPA_Q, 0), *k = array(&b, SDPA_K, 1), *dout = array(&b, SDPA_DOUT, 0);
	void *delta = delta_of(&b, dout), *scale = cairn_cudnn_float(g, s->scale);
	void *x = scores(&b, CUDNN_DATA_FLOAT), *p, *dp = scores(&b, CUDNN_DATA_FLOAT), *ds;

	cairn_cudnn_matmul(g, &(struct cudnn_matmul){ .a = q, .b = k, .c = x, .m = b.len_q, .n = b.len_kv });
	x = apply(&b, CUDNN_MUL, x, scores(&b, CUDNN_DATA_FLOAT), scale);
	x = mask_padding(&b, x);
	x = apply(&b, CUDNN_SUB, x, scores(&b, CUDNN_DATA_FLOAT), array(&b, SDPA_LSE, 0));
	x = mask_causal(&b, x);
	x = mask_window(&b, x);
	p = apply(&b, CUDNN_EXP, x, scores(&b, CUDNN_DATA_FLOAT), NULL);
	grad_kv(&b, SDPA_DV, turned(&b, p), dout);
	cairn_cudnn_matmul(g, &(struct cudnn_matmul){
		.a = dout, .b = array(&b, SDPA_V, 1), .c = dp, .m = b.len_q, .n = b.len_kv });
	dp = apply(&b, CUDNN_SUB, dp, scores(&b, CUDNN_DATA_FLOAT), delta);
	ds = apply(&b, CUDNN_MUL, dp, scores(&b, CUDNN_DATA_FLOAT), p);
	ds = apply(&b, CUDNN_MUL, ds, scores(&b, CUDNN_DATA_FLOAT), scale);
	grad_kv(&b, SDPA_DK, turned(&b, ds), q);
	grad_q(&b, ds, k);
}
