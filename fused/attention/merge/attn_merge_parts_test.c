// SPDX-License-Identifier: Apache-2.0
/*
 * attn_merge_parts_test - properties of attn_merge, on the cpu table and on a device
 *
 * They are: a left fold in place, a constant added to all lse, a single state, another order of the states, a
 * row in a large and in a small grid, merged attention over parts of the keys compared with attention over
 * all keys, an own key compared with a state of attention over that key, an own key alone, and callers whose
 * arguments end before q.
 */
#include "conformance/harness.h"

#include <stdlib.h>

#include "conformance/tables/tables.h"
#include "fused/attention/merge/attn_merge.h"

/* A table under test, and the memory that a test has allocated there. */
struct site {
	struct cairn_test *t;
	struct cairn_impl impl;
	void *stream, *held[24];
	int num_held;
};

/* Allocates memory of the table and copies data there, unless it is NULL. */
static void *put(struct site *s, const void *data, size_t bytes)
{
	void *p = NULL;

	if (!EXPECT(s->t, s->num_held < (int)ARRAY_SIZE(s->held) && s->impl.mem_alloc(&p, bytes) == 0))
		abort();
	s->held[s->num_held++] = p;
	if (data)
		EXPECT(s->t, s->impl.mem_copy(p, data, bytes, CAIRN_COPY_TO_DEVICE, s->stream) == 0);
	return p;
}

static void get(struct site *s, void *to, const void *from, size_t bytes)
{
	EXPECT(s->t, s->impl.mem_copy(to, from, bytes, CAIRN_COPY_TO_HOST, s->stream) == 0);
	EXPECT(s->t, s->impl.stream_sync(s->stream) == 0);
}

static void release(struct site *s)
{
	while (s->num_held)
		s->impl.mem_free(s->held[--s->num_held]);
}

/* Merges states on the table. Pointers of h are in host memory; results are copied back to them. */
static void merge_there(struct site *s, const struct cairn_attn_merge_args *h)
{
	struct cairn_attn_merge_args full = cairn_attn_merge_strides(h), a = *h;
	int64_t pairs = (int64_t)h->rows * h->num_heads;
	size_t esize = cairn_dtype_bytes(h->dtype);
	size_t bytes = pairs * h->head_dim * cairn_dtype_bytes(h->out_dtype);
	int before = s->num_held;

	a.o = put(s, h->o, h->num_states * full.state_stride * esize);
	a.lse = put(s, h->lse, h->num_states * full.lse_stride * sizeof(float));
	a.out = h->out == h->o ? (void *)a.o : put(s, NULL, bytes);
	a.lse_out = h->lse_out == h->lse ? (float *)a.lse : put(s, NULL, pairs * sizeof(float));
	if (h->counts)
		a.counts = put(s, h->counts, h->rows * sizeof(int32_t));
	if (full.sink)
		a.sink = put(s, h->sink, h->num_heads * sizeof(float));
	if (full.q) {
		a.q = put(s, h->q, h->rows * full.q_stride * esize);
		a.k = put(s, h->k, h->rows * full.kv_stride * esize);
		a.v = put(s, h->v, h->rows * full.kv_stride * esize);
	}
	if (!EXPECT(s->t, s->impl.attn_merge(&a, s->stream) == 0))
		cairn_note(s->t, "%s", cairn_impl_error(&s->impl));
	get(s, h->out, a.out, bytes);
	get(s, h->lse_out, a.lse_out, pairs * sizeof(float));
	while (s->num_held > before)
		s->impl.mem_free(s->held[--s->num_held]);
}

static double normal_of(struct cairn_test *t)
{
	double sum = -6;

	for (int i = 0; i < 12; i++)
		sum += (double)(cairn_rand(t) >> 11) * 0x1p-53;
	return sum;
}

#define ALIGNED	__attribute__((aligned(16)))

enum { N = 5, ROWS = 7, HEADS = 3, DIM = 136, PAIRS = ROWS * HEADS, STATE = PAIRS * DIM };

/* f32 states in host memory, a result, and the reference's values and bounds. */
struct states {
	struct cairn_attn_merge_args a;
	float o[N * STATE] ALIGNED, out[STATE] ALIGNED, lse[N * PAIRS], lse_out[PAIRS];
	double val[STATE], bound[STATE], lse_val[PAIRS], lse_bound[PAIRS];
};

static struct states *new_states(struct cairn_test *t)
{
	struct states *x = aligned_alloc(64, (sizeof(*x) + 63) / 64 * 64);

	if (!x)
		abort();
	memset(x, 0, sizeof(*x));
	for (int i = 0; i < N * STATE; i++)
		x->o[i] = (float)normal_of(t);
	for (int i = 0; i < N * PAIRS; i++)
		x->lse[i] = (float)(3 * normal_of(t));
	x->a = (struct cairn_attn_merge_args){ .size = sizeof(x->a), .out = x->out, .lse_out = x->lse_out,
					       .o = x->o, .lse = x->lse, .num_states = N, .rows = ROWS,
					       .num_heads = HEADS, .head_dim = DIM };
	return x;
}

static void judge_states(struct cairn_test *t, struct states *x)
{
	struct cairn_exact e[2] = { { .val = x->val, .bound = x->bound },
				    { .val = x->lse_val, .bound = x->lse_bound } };

	EXPECT(t, cairn_attn_merge_exact(&x->a, e) == 0);
}

/*
 * A left fold in place: one state after another is merged into state 0. The bound follows the errors. If p is
 * the weight of the states merged so far, their errors eo and el become p eo + 2 p (1 - p) el (|O| + |o|) and
 * el, and each step adds the bound of a merge of its actual inputs.
 */
static void fold(struct site *s)
{
	struct states *x = new_states(s->t), *step = new_states(s->t);
	double *eo = calloc(STATE, sizeof(*eo)), el[PAIRS] = { 0 };
	int bad = 0;

	memcpy(step->o, x->o, STATE * sizeof(float));
	memcpy(step->lse, x->lse, PAIRS * sizeof(float));
	step->a.num_states = 2;
	for (int k = 1; k < N; k++) {
		const float *next = x->o + k * STATE;

		memcpy(step->o + STATE, next, STATE * sizeof(float));
		memcpy(step->lse + PAIRS, x->lse + k * PAIRS, PAIRS * sizeof(float));
		x->a.num_states = k;
		judge_states(s->t, x);		/* the exact merge of the first k states */
		judge_states(s->t, step);
		for (int i = 0; i < STATE; i++) {
			double q = 1 / (1 + exp(x->lse_val[i / DIM] - (double)x->lse[k * PAIRS + i / DIM]));
			double moved = 2 * q * (1 - q) * el[i / DIM];

			eo[i] = (1 - q + moved) * eo[i] + moved * (fabs(x->val[i]) + fabs((double)next[i])) +
				step->bound[i];
		}
		for (int i = 0; i < PAIRS; i++)
			el[i] += step->lse_bound[i];
		step->a.out = step->o;
		step->a.lse_out = step->lse;
		merge_there(s, &step->a);
		step->a.out = step->out;
		step->a.lse_out = step->lse_out;
	}
	x->a.num_states = N;
	judge_states(s->t, x);
	for (int i = 0; i < STATE; i++)
		bad += !(fabs((double)step->o[i] - x->val[i]) <= eo[i]);
	for (int i = 0; i < PAIRS; i++)
		bad += !(fabs((double)step->lse[i] - x->lse_val[i]) <= el[i]);
	EXPECT(s->t, bad == 0);
	free(eo);
	free(step);
	free(x);
}

/* Adding a constant to all lse without rounding leaves the bits of out unchanged. */
static void shift(struct site *s)
{
	struct states *x = new_states(s->t);
	float *first = malloc(sizeof(x->out));

	for (int i = 0; i < N * PAIRS; i++)
		x->lse[i] = (float)((double)(cairn_rand(s->t) % 4096) / 256 - 8);
	merge_there(s, &x->a);
	memcpy(first, x->out, sizeof(x->out));
	for (int i = 0; i < N * PAIRS; i++)
		x->lse[i] += 1000;
	merge_there(s, &x->a);
	EXPECT(s->t, !memcmp(first, x->out, sizeof(x->out)));
	free(first);
	free(x);
}

/* A single state, or one among empty states, keeps all its bits, subnormals and -0 included. */
static void one_state(struct site *s)
{
	struct states *x = new_states(s->t);
	uint8_t *bits = (uint8_t *)x->o;

	x->a.num_heads = 1;
	for (int dtype = CAIRN_F32; dtype <= CAIRN_BF16; dtype++) {
		size_t esize = cairn_dtype_bytes(dtype), bytes = ROWS * DIM * esize;

		x->a.dtype = x->a.out_dtype = dtype;
		for (int i = 0; i < N * ROWS * DIM; i++) {
			uint32_t r = (uint32_t)cairn_rand(s->t);

			memcpy(bits + i * esize, &r, esize);
			if (!isfinite(cairn_load(bits, dtype, i)) || i % 16 == 5)
				cairn_store(bits, dtype, i, i % 3 ? -0.0 : 0x1p-24);
		}
		for (int only = 0; only < N; only++) {
			for (int i = 0; i < N * ROWS; i++)
				x->lse[i] = i / ROWS == only ? -3.3f + (float)i : -INFINITY;
			x->a.num_states = only ? N : 1;
			merge_there(s, &x->a);
			EXPECT(s->t, !memcmp(x->out, bits + only * bytes, bytes));
			EXPECT(s->t, !memcmp(x->lse_out, x->lse + only * ROWS, ROWS * sizeof(float)));
		}
	}
	free(x);
}

/* In another order the states give the same result, within the bound. */
static void permutation(struct site *s)
{
	struct states *x = new_states(s->t), *y = new_states(s->t);
	int bad = 0;

	for (int k = 0; k < N; k++) {
		int from = (2 * k + 3) % N;

		memcpy(y->o + k * STATE, x->o + from * STATE, STATE * sizeof(float));
		memcpy(y->lse + k * PAIRS, x->lse + from * PAIRS, PAIRS * sizeof(float));
	}
	merge_there(s, &x->a);
	merge_there(s, &y->a);
	judge_states(s->t, x);
	for (int i = 0; i < STATE; i++)
		bad += !(fabs((double)x->out[i] - (double)y->out[i]) <= 2 * x->bound[i]);
	for (int i = 0; i < PAIRS; i++)
		bad += !(fabs((double)x->lse_out[i] - (double)y->lse_out[i]) <= 2 * x->lse_bound[i]);
	EXPECT(s->t, bad == 0);
	free(y);
	free(x);
}

/* A row has the same bits in a separate call and in a grid of several waves. */
static void rows_alone(struct site *s)
{
	enum { MANY_ROWS = 150, MANY_HEADS = 16, DIM_HERE = 128, STATES = 19 };
	const int64_t row = MANY_HEADS * DIM_HERE, state = MANY_ROWS * row, pairs = MANY_ROWS * MANY_HEADS;
	float *o = aligned_alloc(64, STATES * state * sizeof(float));
	float *out = aligned_alloc(64, (state + row) * sizeof(float));
	float *lse = malloc(STATES * pairs * sizeof(float)), *lse_out = malloc(2 * pairs * sizeof(float));
	struct cairn_attn_merge_args all = {
		.size = sizeof(all), .out = out, .lse_out = lse_out, .o = o, .lse = lse, .num_states = STATES,
		.rows = MANY_ROWS, .num_heads = MANY_HEADS, .head_dim = DIM_HERE,
	}, one = all;

	if (!o || !lse || !out || !lse_out)
		abort();
	for (int64_t i = 0; i < STATES * state; i++)
		o[i] = (float)((double)(cairn_rand(s->t) >> 11) * 0x1p-52 - 1);
	for (int64_t i = 0; i < STATES * pairs; i++)
		lse[i] = cairn_rand(s->t) % 4 ? (float)(5 * normal_of(s->t)) : -INFINITY;
	merge_there(s, &all);
	one.rows = 1;
	one.out = out + state;
	one.lse_out = lse_out + pairs;
	for (int i = 0; i < MANY_ROWS; i += 37) {
		float *o_here = aligned_alloc(64, STATES * row * sizeof(float));
		float lse_here[STATES * MANY_HEADS];

		for (int k = 0; k < STATES; k++) {
			memcpy(o_here + k * row, o + k * state + i * row, row * sizeof(float));
			memcpy(lse_here + k * MANY_HEADS, lse + k * pairs + i * MANY_HEADS,
			       MANY_HEADS * sizeof(float));
		}
		one.o = o_here;
		one.lse = lse_here;
		merge_there(s, &one);
		EXPECT(s->t, !memcmp(one.out, out + i * row, row * sizeof(float)));
		EXPECT(s->t, !memcmp(one.lse_out, lse_out + i * MANY_HEADS, MANY_HEADS * sizeof(float)));
		free(o_here);
	}
	free(lse_out);
	free(out);
	free(lse);
	free(o);
}

/* ---- attention over parts of the keys, merged, is attention over all keys ---- */

enum {
	PARTS = 4, QUERIES = 3, QO_HEADS = 8, KV_HEADS = 2, HEAD = 64, PAGE = 16, PAGES = 12, LAST = 5,
	PART_PAIRS = QUERIES * QO_HEADS, PART = PART_PAIRS * HEAD, CACHE = PAGES * PAGE * KV_HEADS * HEAD,
};

/*
 * Request k of `split` has the queries of the only request of `whole`, and a part of its pages. The out and
 * lse of `split` are packed states.
 */
struct parts {
	struct cairn_attn_paged_args whole, split;
	int32_t qo_indptr[PARTS + 1], kv_indptr[PARTS + 1], whole_kv_indptr[2], ids[PAGES];
	int32_t last[PARTS], whole_last;
	uint16_t q[PARTS * PART] ALIGNED, k[CACHE] ALIGNED, v[CACHE] ALIGNED;
	uint16_t out[PART] ALIGNED, o[PARTS * PART] ALIGNED;
	float merged[PART] ALIGNED, lse_merged[PART_PAIRS], lse[PART_PAIRS], lse_parts[PARTS * PART_PAIRS];
	double val[PART], bound[PART], lse_val[PART_PAIRS], lse_bound[PART_PAIRS];
	double o_val[PARTS * PART], o_bound[PARTS * PART];
	double part_val[PARTS * PART_PAIRS], part_bound[PARTS * PART_PAIRS];
	double merge_val[PART], merge_bound[PART], merge_lse[PART_PAIRS], merge_lse_bound[PART_PAIRS];
};

static void fill_parts(struct cairn_test *t, struct parts *p)
{
	static const int32_t pages[PARTS + 1] = { 0, 5, 6, 6, PAGES };	/* part 2 has no key */

	for (int i = 0; i < PARTS * PART; i++)
		p->q[i] = i < PART ? cairn_double_to_bf16(2 * normal_of(t)) : p->q[i - PART];
	for (int i = 0; i < CACHE; i++) {
		p->k[i] = cairn_double_to_bf16(normal_of(t));
		p->v[i] = cairn_double_to_bf16(normal_of(t));
	}
	for (int i = 0; i < PAGES; i++)
		p->ids[i] = 5 * (i + 1) % PAGES;
	for (int i = 0; i <= PARTS; i++) {
		p->qo_indptr[i] = i * QUERIES;
		p->kv_indptr[i] = pages[i];
		p->last[i % PARTS] = i < PARTS - 1 ? PAGE : LAST;
	}
	p->last[0] = PAGE;
	p->whole_kv_indptr[1] = PAGES;
	p->whole_last = LAST;
	p->split = (struct cairn_attn_paged_args){
		.size = sizeof(p->split), .out = p->o, .lse = p->lse_parts, .q = p->q,
		.qo_indptr = p->qo_indptr,
		.kv = { .k_pages = p->k, .v_pages = p->v, .indptr = p->kv_indptr, .indices = p->ids,
			.last_page_len = p->last, .num_pages = PAGES, .page_size = PAGE, .batch = PARTS,
			.max_len = PAGES * PAGE },
		.nnz_qo = PARTS * QUERIES, .max_qo_len = QUERIES, .num_qo_heads = QO_HEADS,
		.num_kv_heads = KV_HEADS, .head_dim = HEAD, .dtype = CAIRN_BF16, .sm_scale = 0.125f,
	};
	p->whole = p->split;
	p->whole.out = p->out;
	p->whole.lse = p->lse;
	p->whole.kv.indptr = p->whole_kv_indptr;
	p->whole.kv.last_page_len = &p->whole_last;
	p->whole.kv.batch = 1;
	p->whole.nnz_qo = QUERIES;
}

/* Runs attn_paged on the table. Pointers of h are in host memory; results are copied back to them. */
static void attend_there(struct site *s, const struct cairn_attn_paged_args *h)
{
	size_t lse_bytes = (size_t)h->nnz_qo * QO_HEADS * 4, out_bytes = lse_bytes / 2 * HEAD;
	struct cairn_attn_paged_args a = *h;

	a.out = put(s, NULL, out_bytes);
	a.lse = put(s, NULL, lse_bytes);
	a.q = put(s, h->q, out_bytes);
	a.kv.k_pages = put(s, h->kv.k_pages, CACHE * 2);
	a.kv.v_pages = put(s, h->kv.v_pages, CACHE * 2);
	a.qo_indptr = put(s, h->qo_indptr, (size_t)(h->kv.batch + 1) * 4);
	a.kv.indptr = put(s, h->kv.indptr, (size_t)(h->kv.batch + 1) * 4);
	a.kv.indices = put(s, h->kv.indices, PAGES * 4);
	a.kv.last_page_len = put(s, h->kv.last_page_len, (size_t)h->kv.batch * 4);
	if (s->impl.attn_paged_workspace)
		EXPECT(s->t, s->impl.attn_paged_workspace(&a, &a.workspace_bytes) == 0);
	if (a.workspace_bytes)
		a.workspace = put(s, NULL, a.workspace_bytes);
	EXPECT(s->t, s->impl.attn_paged(&a, s->stream) == 0);
	get(s, h->out, a.out, out_bytes);
	get(s, h->lse, a.lse, lse_bytes);
	release(s);
}

/*
 * The bound: the parts have errors of at most b (o) and L (lse), from attn_paged's reference. Weights then
 * change by a factor of at most e^(2 L), so out moves by sum p [e^(2 L) b + (e^(2 L) - 1) (|o| + |out|)] and
 * lse by L. The merge adds its own bound; so does attention over all keys, with which the merge is compared.
 */
static void split_attention(struct site *s)
{
	struct parts *p = aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);
	struct cairn_attn_merge_args m = { .size = sizeof(m), .num_states = PARTS, .rows = QUERIES,
					   .num_heads = QO_HEADS, .head_dim = HEAD, .dtype = CAIRN_BF16 };
	struct cairn_exact whole[2] = { { .val = p->val, .bound = p->bound },
					{ .val = p->lse_val, .bound = p->lse_bound } };
	struct cairn_exact split[2] = { { .val = p->o_val, .bound = p->o_bound },
					{ .val = p->part_val, .bound = p->part_bound } };
	struct cairn_exact merged[2] = { { .val = p->merge_val, .bound = p->merge_bound },
					 { .val = p->merge_lse, .bound = p->merge_lse_bound } };
	int bad = 0;

	if (!p)
		abort();
	memset(p, 0, sizeof(*p));
	fill_parts(s->t, p);
	EXPECT(s->t, cairn_attn_paged_exact(&p->whole, whole) == 0);
	EXPECT(s->t, cairn_attn_paged_exact(&p->split, split) == 0);
	attend_there(s, &p->whole);
	attend_there(s, &p->split);
	m.out = p->merged;
	m.lse_out = p->lse_merged;
	m.o = p->o;
	m.lse = p->lse_parts;
	merge_there(s, &m);
	EXPECT(s->t, cairn_attn_merge_exact(&m, merged) == 0);
	for (int i = 0; i < PART_PAIRS; i++) {
		double shifted = 0, grown;

		for (int k = 0; k < PARTS; k++)
			shifted = fmax(shifted, p->part_bound[k * PART_PAIRS + i]);
		grown = exp(2 * shifted);
		bad += !(fabs((double)p->lse_merged[i] - (double)p->lse[i]) <=
			 shifted + p->merge_lse_bound[i] + p->lse_bound[i]);
		for (int c = i * HEAD; c < (i + 1) * HEAD; c++) {
			double bound = p->merge_bound[c] + p->bound[c];

			for (int k = 0; k < PARTS; k++)
				bound += exp(p->part_val[k * PART_PAIRS + i] - p->lse_val[i]) *
					 (grown * p->o_bound[k * PART + c] +
					  (grown - 1) * (fabs(p->o_val[k * PART + c]) + fabs(p->val[c])));
			bad += !(fabs((double)p->merged[c] - cairn_load(p->out, CAIRN_BF16, c)) <= bound);
			bad += !(bound < 0.05);		/* a larger bound would prove nothing */
		}
	}
	EXPECT(s->t, bad == 0);
	free(p);
}

/* ---- own keys ---- */

/* Two states of normal values, in bf16, and as the third what attn_paged gives for each query's own key. */
struct owns {
	struct parts p;		/* first: it is aligned */
	struct cairn_attn_merge_args m;
	float out[2][PART] ALIGNED, lse_out[2][PART_PAIRS], sink[QO_HEADS];
};

/* The own key of query i is in the first slot of page i. */
static struct owns *new_owns(struct site *s)
{
	struct owns *x = aligned_alloc(64, (sizeof(*x) + 63) / 64 * 64);
	struct cairn_attn_paged_args own;

	if (!x)
		abort();
	memset(x, 0, sizeof(*x));
	fill_parts(s->t, &x->p);
	for (int i = 0; i < 2 * PART; i++)
		x->p.o[i] = cairn_double_to_bf16(normal_of(s->t));
	for (int i = 0; i < 2 * PART_PAIRS; i++)
		x->p.lse_parts[i] = (float)(2 * normal_of(s->t));
	for (int i = 0; i <= QUERIES; i++) {
		x->p.qo_indptr[i] = x->p.kv_indptr[i] = x->p.ids[i] = i;
		x->p.last[i] = 1;
	}
	own = x->p.split;
	own.out = x->p.o + 2 * PART;
	own.lse = x->p.lse_parts + 2 * PART_PAIRS;
	own.kv.batch = own.nnz_qo = QUERIES;
	own.max_qo_len = 1;
	attend_there(s, &own);
	EXPECT(s->t, cairn_attn_paged_exact(&own, (struct cairn_exact[2]){
		{ .val = x->p.o_val, .bound = x->p.o_bound },
		{ .val = x->p.part_val, .bound = x->p.part_bound } }) == 0);
	x->m = (struct cairn_attn_merge_args){
		.size = sizeof(x->m), .out = x->out[0], .lse_out = x->lse_out[0], .o = x->p.o,
		.lse = x->p.lse_parts, .num_states = 2, .rows = QUERIES, .num_heads = QO_HEADS,
		.head_dim = HEAD, .dtype = CAIRN_BF16, .q = x->p.q, .k = x->p.k, .v = x->p.v,
		.kv_stride = PAGE * KV_HEADS * HEAD, .num_kv_heads = KV_HEADS, .sm_scale = own.sm_scale,
	};
	return x;
}

/*
 * An own key gives what a third state of attention over this key gives. Its lse is off by B in attn_paged, so
 * its weight by a factor of at most e^B, which moves out by (e^B - 1) (|v| + |out|) and lse by B; each merge
 * adds its own bound. With one key, attn_paged's out is v.
 */
static void own_key(struct site *s)
{
	struct owns *x = new_owns(s);
	struct cairn_attn_merge_args third = x->m;
	double *val = x->p.val, *bound = x->p.bound, *lse_bound = x->p.lse_bound;
	int bad = 0;

	third.num_states = 3;
	third.q = third.k = third.v = NULL;
	third.out = x->out[1];
	third.lse_out = x->lse_out[1];
	merge_there(s, &x->m);
	merge_there(s, &third);
	EXPECT(s->t, cairn_attn_merge_exact(&x->m, (struct cairn_exact[2]){
		{ .val = val, .bound = bound }, { .val = x->p.lse_val, .bound = lse_bound } }) == 0);
	EXPECT(s->t, cairn_attn_merge_exact(&third, (struct cairn_exact[2]){
		{ .val = x->p.merge_val, .bound = x->p.merge_bound },
		{ .val = x->p.merge_lse, .bound = x->p.merge_lse_bound } }) == 0);
	for (int i = 0; i < PART; i++) {
		const int pair = i / HEAD;
		const double moved = x->p.part_bound[pair], size = fabs(val[i]) + fabs(x->p.o_val[i]);
		const double most = bound[i] + x->p.merge_bound[i] + expm1(moved) * size;

		bad += !(fabs((double)x->out[0][i] - (double)x->out[1][i]) <= most) || !(most < 0.01);
		bad += !(fabs((double)x->lse_out[0][pair] - (double)x->lse_out[1][pair]) <=
			 lse_bound[pair] + x->p.merge_lse_bound[pair] + moved);
	}
	EXPECT(s->t, bad == 0);
	free(x);
}

/* If only the own key has weight, out is v with all its bits, and lse_out its logit. */
static void own_alone(struct site *s)
{
	struct owns *x = new_owns(s);
	int bad = 0;

	for (int i = 0; i < CACHE; i += 3)
		x->p.v[i] = i % 2 ? 0x8000 : (uint16_t)(0x8001 + i % 64);	/* -0 and subnormals */
	for (int i = 0; i < 2 * PART_PAIRS; i++)
		x->p.lse_parts[i] = i % 3 ? -INFINITY : -1e4f;
	x->m.out_dtype = CAIRN_BF16;
	merge_there(s, &x->m);
	for (int i = 0; i < PART_PAIRS; i++) {
		const uint16_t *out = (const uint16_t *)(const void *)x->out[0] + i * HEAD;
		const uint16_t *v = x->p.v + i / QO_HEADS * PAGE * KV_HEADS * HEAD +
				    i % QO_HEADS / (QO_HEADS / KV_HEADS) * HEAD;

		bad += memcmp(out, v, HEAD * sizeof(*v)) != 0;
		bad += !(fabs((double)x->lse_out[0][i] - x->p.part_val[i]) <= x->p.part_bound[i]);
	}
	EXPECT(s->t, bad == 0);
	free(x);
}

/* If `size` ends before q, the call has no own keys, whatever lies behind, but it still has its sinks. */
static void older_callers(struct site *s)
{
	struct owns *x = new_owns(s);
	const struct cairn_attn_merge_args given = x->m;

	for (int i = 0; i < QO_HEADS; i++)
		x->sink[i] = (float)normal_of(s->t);
	x->m.sink = x->sink;
	x->m.q = x->m.k = x->m.v = NULL;
	merge_there(s, &x->m);
	x->m = given;
	x->m.size = CAIRN_ATTN_MERGE_SECOND_BYTES;
	x->m.sink = x->sink;
	x->m.out = x->out[1];
	x->m.lse_out = x->lse_out[1];
	x->m.reserved = -1;
	merge_there(s, &x->m);
	EXPECT(s->t, !memcmp(x->out[0], x->out[1], sizeof(x->out[0])));
	EXPECT(s->t, !memcmp(x->lse_out[0], x->lse_out[1], sizeof(x->lse_out[0])));
	free(x);
}

static void on(struct cairn_test *t, const char *table, void (*property)(struct site *s))
{
	struct site s = { .t = t };

	if (cairn_impl_open(table, &s.impl) || cairn_impl_start(&s.impl, 0)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	if (!EXPECT(t, s.impl.stream_create(&s.stream) == 0))
		return;
	property(&s);
	release(&s);
	s.impl.stream_destroy(s.stream);
}

#define PROPERTIES(P)	P(fold) P(shift) P(one_state) P(permutation) P(rows_alone) P(split_attention) \
	P(own_key) P(own_alone) P(older_callers)
#define DEFINE(p) \
	static void p##_cpu(struct cairn_test *t) { on(t, "cpu", p); } \
	static void p##_cuda(struct cairn_test *t) { on(t, "cuda", p); }
PROPERTIES(DEFINE)
#define LIST(p)	{ #p "_cpu", p##_cpu }, { #p "_cuda", p##_cuda },

static const struct cairn_unit units[] = { PROPERTIES(LIST) };

const struct cairn_family cairn_attn_merge_parts_family = {
	.stage = "fused", .name = "attn_merge_parts", .units = units, .num_units = ARRAY_SIZE(units),
};
