// SPDX-License-Identifier: Apache-2.0
/*
 * cudnn_attn - shapes, plans and workspace of the two operations
 *
 * A plan is made once for a shape and cached. The cache holds 32 shapes and evicts the least recently used
 * one. One lock covers look-up and launch, so that no plan is evicted during a launch. A captured graph must
 * not outlive its plan: at most 31 other shapes may follow.
 */
#include "conformance/peers/cudnn_attn.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/peers/cudnn_graph.h"
#include "conformance/peers/cudnn_lengths.h"
#include "conformance/peers/cudnn_sdpa.h"
#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

#define MAX_SHAPES	32
#define MAX_TRIALS	4		/* plans that a first call may time */
#define TRIAL_CALLS	8
#define LARGE		(1ll << 30)	/* multiplications in q k from which on plans are timed */

struct key {
	struct cudnn_sdpa s;
	int32_t device, bwd;
};

struct shape {
	struct key key;
	uint64_t used;			/* value of `now` at the last use; 0: free */
	struct cudnn_graph graph;
	int choice;			/* plan; < 0: not chosen yet */
	int differ;			/* key: equal lengths; the latest call had different ones */
};

/* A call of either operation, with the workspace divided. */
struct call {
	const char *op;
	struct cairn_attn_dense_args a;	/* the arguments that both operations have */
	struct key key;
	int has_lse;			/* the caller gave an array for it */
	int tight;			/* see is_tight() */
	void *at[CUDNN_MAX_POINTERS];	/* tensors by number */
	void *lib_workspace;
	size_t bytes;			/* size of the whole workspace */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shape shapes[MAX_SHAPES];
static uint64_t now;

static int supported(const struct call *c)
{
	const struct cairn_attn_dense_args *a = &c->a;
	int sms = cairn_sms_of(a->sms);

	if (sms < 0)
		return sms;
	if (a->softcap > 0)
		return cairn_error(EOPNOTSUPP, "%s: softcap: not passed to cuDNN", c->op);
	if (sms < cairn_num_sms())
		return cairn_error(EOPNOTSUPP, "%s: sms: cuDNN uses all", c->op);
	if (!a->max_qo_len || !a->nnz_qo || !a->max_kv_len || !a->nnz_kv)
		return cairn_error(EOPNOTSUPP, "%s: max_qo_len, max_kv_len: cuDNN needs a row and a key",
				   c->op);
	if (c->key.bwd && a->num_qo_heads != a->num_kv_heads)
		return cairn_error(EOPNOTSUPP, "%s: num_kv_heads: cuDNN rounds each head's part of a "
				   "gradient of K and V to 16 bits before it adds those of a group", c->op);
	if (c->key.bwd && a->qk_dim == 256 && a->v_dim > 64 && a->v_dim < 192)
		return cairn_error(EOPNOTSUPP, "%s: qk_dim, v_dim: of 256, %d cuDNN computes only the first "
				   "128 of dq and dk", c->op, a->v_dim);
	return 0;
}

static int64_t work(const struct cudnn_sdpa *s)
{
	return (int64_t)s->batch * s->heads * s->len_q * s->len_kv * s->qk_dim;
}

/*
 * Returns whether the call is large and all requests may have the largest lengths. The scalars suggest so if
 * nnz is batch times the largest length, but nnz may be a loose bound, so find_by_lengths() looks at the
 * lengths. The library's graph for equal lengths has no causal mask with more rows than keys.
 */
static int is_tight(const struct call *c)
{
	const struct cairn_attn_dense_args *a = &c->a;

	return work(&c->key.s) >= LARGE && a->nnz_qo == (int64_t)a->batch * a->max_qo_len &&
	       a->nnz_kv == (int64_t)a->batch * a->max_kv_len &&
	       (a->max_qo_len <= a->max_kv_len || !(a->causal || a->window));
}

/* Fills the key from the arguments; padding bytes are 0. */
static int make_key(struct call *c, int bwd)
{
	const struct cairn_attn_dense_args *a = &c->a;
	struct cudnn_sdpa *s = &c->key.s;
	int device;

	CAIRN_CUDA(cudaGetDevice(&device));
	memset(&c->key, 0, sizeof(c->key));
	c->key.device = device;
	c->key.bwd = bwd;
	s->q_stride = cairn_attn_dense_q_stride(a);
	s->k_stride = cairn_attn_dense_k_stride(a);
	s->v_stride = cairn_attn_dense_v_stride(a);
	s->k_head_stride = cairn_attn_dense_k_head_stride(a);
	s->v_head_stride = cairn_attn_dense_v_head_stride(a);
	s->batch = a->batch;
	s->heads = a->num_qo_heads;
	s->kv_heads = a->num_kv_heads;
	s->len_q = a->max_qo_len;
	s->len_kv = a->max_kv_len;
	s->qk_dim = a->qk_dim;
	s->v_dim = a->v_dim;
	s->bf16 = a->dtype == CAIRN_BF16;
	s->causal = !!a->causal;
	s->window = a->window < a->max_qo_len + (int64_t)a->max_kv_len ? a->window : 0;
	s->ragged = 1;
	s->scale = a->sm_scale;
	c->tight = is_tight(c);
	return supported(c);
}

static void *take(struct call *c, int64_t elements, size_t bytes)
{
	void *p = c->a.workspace ? (char *)c->a.workspace + c->bytes : NULL;

	c->bytes += ((size_t)elements * bytes + 255) / 256 * 256;
	return p;
}

/* Divides the workspace for the key; without one only counts its bytes. */
static void divide(struct call *c, const struct cudnn_graph *g)
{
	const struct cudnn_sdpa *s = &c->key.s;
	int64_t rows = (int64_t)s->batch * s->heads * s->len_q;

	c->bytes = 0;
	memset(c->at + SDPA_OFFSETS, 0, sizeof(c->at) - SDPA_OFFSETS * sizeof(*c->at));
	for (int t = SDPA_Q; s->ragged && t <= (c->key.bwd ? SDPA_DV : SDPA_LSE); t++)
		c->at[SDPA_OFFSETS + t] = take(c, s->batch + 1, sizeof(int64_t));
	if (s->ragged) {
		c->at[SDPA_LEN_Q] = take(c, s->batch, sizeof(int32_t));
		c->at[SDPA_LEN_KV] = take(c, s->batch, sizeof(int32_t));
	}
	if (!c->has_lse)
		c->at[SDPA_LSE] = take(c, (int64_t)c->a.nnz_qo * s->heads, sizeof(float));
	if (c->key.bwd) {
		c->at[SDPA_DELTA] = take(c, rows, sizeof(float));
		c->at[SDPA_DQ_SUM] = take(c, rows * s->qk_dim, sizeof(float));
	}
	c->lib_workspace = take(c, g->workspace_bytes, 1);
}

static int make_plans(struct shape *sh, const struct call *c)
{
	const struct cudnn_sdpa *s = &c->key.s;
	int ret;

	memset(sh, 0, sizeof(*sh));
	sh->graph.op = c->op;
	if (c->key.bwd)
		cairn_cudnn_sdpa_bwd(&sh->graph, s);
	else
		cairn_cudnn_sdpa(&sh->graph, s);
	ret = cairn_cudnn_plan(&sh->graph, work(s) < LARGE ? 1 : MAX_TRIALS);
	if (ret) {
		cairn_cudnn_free(&sh->graph);
		return ret;
	}
	sh->choice = sh->graph.num_plans > 1 ? -1 : 0;
	sh->key = c->key;
	return 0;
}

/* The caller holds the lock. */
static int find(const struct call *c, int captured, struct shape **out)
{
	struct shape *oldest = &shapes[0];

	for (int i = 0; i < MAX_SHAPES; i++) {
		struct shape *sh = &shapes[i];

		if (sh->used && !memcmp(&sh->key, &c->key, sizeof(sh->key))) {
			sh->used = ++now;
			*out = sh;
			return 0;
		}
		if (sh->used < oldest->used)
			oldest = sh;
	}
	if (captured)
		return cairn_error(EOPNOTSUPP, "%s: cuDNN: the first call of a shape cannot be captured",
				   c->op);
	cairn_cudnn_free(&oldest->graph);
	oldest->used = 0;
	CAIRN_TRY(make_plans(oldest, c));
	oldest->used = ++now;
	*out = oldest;
	return 0;
}

/* Sets *differ if indptr is not that of requests of `len` rows each. */
static int compare(const struct call *c, const int32_t *indptr, int32_t len, void *stream, int *differ)
{
	int n = c->a.batch + 1;
	int32_t *host = malloc((size_t)n * sizeof(*host));
	cudaError_t err;

	if (!host)
		return cairn_error(ENOMEM, "%s: no memory", c->op);
	err = cudaMemcpyAsync(host, indptr, (size_t)n * sizeof(*host), cudaMemcpyDeviceToHost, stream);
	if (err == cudaSuccess)
		err = cudaStreamSynchronize(stream);
	for (int b = 0; b < n && err == cudaSuccess; b++)
		*differ |= host[b] != b * len;
	free(host);
	CAIRN_CUDA(err);
	return 0;
}

/* Finds the plans for the lengths in the index arrays, which only a call outside of a capture can read. */
static int find_by_lengths(struct call *c, int captured, void *stream, struct shape **out)
{
	c->key.s.ragged = !c->tight;
	CAIRN_TRY(find(c, captured, out));
	if (!c->tight)
		return 0;
	if (!captured) {
		(*out)->differ = 0;
		CAIRN_TRY(compare(c, c->a.qo_indptr, c->a.max_qo_len, stream, &(*out)->differ));
		CAIRN_TRY(compare(c, c->a.kv_indptr, c->a.max_kv_len, stream, &(*out)->differ));
	}
	if (!(*out)->differ)
		return 0;
	c->key.s.ragged = 1;
	return find(c, captured, out);
}

static int run_plan(struct call *c, const struct shape *sh, int plan, void *stream)
{
	return cairn_cudnn_run(&sh->graph, plan, c->at, c->lib_workspace, stream);
}

static int time_plan(struct call *c, const struct shape *sh, int plan, void *stream, float *ms)
{
	cudaEvent_t start, end;

	CAIRN_TRY(run_plan(c, sh, plan, stream));
	CAIRN_CUDA(cudaStreamSynchronize(stream));
	CAIRN_CUDA(cudaEventCreate(&start));
	CAIRN_CUDA(cudaEventCreate(&end));
	CAIRN_CUDA(cudaEventRecord(start, stream));
	for (int i = 0; i < TRIAL_CALLS; i++)
		CAIRN_TRY(run_plan(c, sh, plan, stream));
	CAIRN_CUDA(cudaEventRecord(end, stream));
	CAIRN_CUDA(cudaEventSynchronize(end));
	CAIRN_CUDA(cudaEventElapsedTime(ms, start, end));
	cudaEventDestroy(start);
	cudaEventDestroy(end);
	return 0;
}

/* Chooses the fastest plan; plans that fail to run are left out. */
static int choose(struct call *c, struct shape *sh, void *stream)
{
	float best = 0;
	int ret = 0;

	for (int i = 0; i < sh->graph.num_plans; i++) {
		float ms = 0;
		int this = time_plan(c, sh, i, stream, &ms);

		if (this) {
			ret = this;
			continue;
		}
		if (sh->choice < 0 || ms < best) {
			sh->choice = i;
			best = ms;
		}
	}
	return sh->choice < 0 ? ret : 0;
}

static int prepare_lengths(const struct call *c, void *stream)
{
	struct cudnn_lengths_args l = {
		.qo_indptr = c->a.qo_indptr, .kv_indptr = c->a.kv_indptr, .batch = c->a.batch,
		.len_q = c->at[SDPA_LEN_Q], .len_kv = c->at[SDPA_LEN_KV],
	};

	for (int t = SDPA_Q; t < SDPA_OFFSETS; t++) {
		l.offsets[t] = c->at[SDPA_OFFSETS + t];
		l.stride[t] = cairn_cudnn_row_stride(&c->key.s, t);
	}
	return cairn_cudnn_lengths(&l, stream);
}

static int mend_keyless(const struct call *c, void *stream)
{
	const struct cudnn_keyless_args k = {
		.qo_indptr = c->a.qo_indptr, .kv_indptr = c->a.kv_indptr, .out = c->at[SDPA_OUT],
		.lse = c->at[SDPA_LSE], .batch = c->a.batch, .heads = c->a.num_qo_heads, .v_dim = c->a.v_dim,
	};

	return cairn_cudnn_keyless(&k, stream);
}

static int run_locked(struct call *c, void *stream)
{
	enum cudaStreamCaptureStatus status;
	struct shape *sh;
	int captured;

	CAIRN_CUDA(cudaStreamIsCapturing(stream, &status));
	captured = status != cudaStreamCaptureStatusNone;
	CAIRN_TRY(find_by_lengths(c, captured, stream, &sh));
	divide(c, &sh->graph);
	if (c->bytes && (!c->a.workspace || c->a.workspace_bytes < c->bytes))
		return cairn_error(EINVAL, "%s: workspace_bytes: %zu, needs %zu", c->op,
				   c->a.workspace_bytes, c->bytes);
	if (c->key.s.ragged)
		CAIRN_TRY(prepare_lengths(c, stream));
	if (sh->choice < 0 && captured)
		return cairn_error(EOPNOTSUPP, "%s: cuDNN: the first call of a shape cannot be captured",
				   c->op);
	if (sh->choice < 0)
		CAIRN_TRY(choose(c, sh, stream));
	CAIRN_TRY(run_plan(c, sh, sh->choice, stream));
	return c->key.s.ragged && !c->key.bwd ? mend_keyless(c, stream) : 0;
}

static int run(struct call *c, void *stream)
{
	int ret;

	pthread_mutex_lock(&lock);
	ret = run_locked(c, stream);
	pthread_mutex_unlock(&lock);
	return ret;
}

/* The answer is large enough for equal and for different lengths, because a query does not read them. */
static int query(struct call *c, size_t *bytes)
{
	struct shape *sh;
	int ret = 0;

	*bytes = 0;
	c->a.workspace = NULL;
	pthread_mutex_lock(&lock);
	for (int ragged = !c->tight; ragged <= 1 && !ret; ragged++) {
		c->key.s.ragged = ragged;
		ret = find(c, 0, &sh);
		if (ret)
			break;
		divide(c, &sh->graph);
		if (c->bytes > *bytes)
			*bytes = c->bytes;
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

/* Copies the arguments of the forward pass, or those of the backward pass that both have. */
static int begin(struct call *c, const char *op, const struct cairn_attn_dense_args *a, int bwd)
{
	memset(c, 0, sizeof(*c));
	c->op = op;
	cairn_copy_args(&c->a, a, sizeof(c->a));
	CAIRN_TRY(cairn_cudnn_load(op));
	return make_key(c, bwd);
}

int cairn_attn_dense_cudnn(const struct cairn_attn_dense_args *a, void *stream)
{
	struct call c;

	CAIRN_TRY(cairn_attn_dense_check(a));
	if (!a->batch || !a->nnz_qo)
		return 0;
	CAIRN_TRY(begin(&c, "attn_dense", a, 0));
	if (c.a.lse && c.a.max_qo_len == 1)
		return cairn_error(EOPNOTSUPP, "attn_dense: lse: cuDNN's of a single row may be NaN");
	c.at[SDPA_Q] = (void *)c.a.q;
	c.at[SDPA_K] = (void *)c.a.k;
	c.at[SDPA_V] = (void *)c.a.v;
	c.at[SDPA_OUT] = c.a.out;
	c.at[SDPA_LSE] = c.a.lse;
	c.has_lse = !!c.a.lse;
	return run(&c, stream);
}

/*
 * The library writes lse even if the caller wants none. The answer must not depend on pointers, so it always
 * includes room for lse.
 */
int cairn_attn_dense_cudnn_workspace(const struct cairn_attn_dense_args *a, size_t *bytes)
{
	struct call c;

	CAIRN_TRY(cairn_attn_dense_check_shape(a));
	*bytes = 0;
	if (!a->batch || !a->nnz_qo)
		return 0;
	CAIRN_TRY(begin(&c, "attn_dense", a, 0));
	return query(&c, bytes);
}

int cairn_attn_bwd_cudnn(const struct cairn_attn_bwd_args *args, void *stream)
{
	struct cairn_attn_bwd_args a;
	struct cairn_attn_dense_args forward;
	struct call c;

	CAIRN_TRY(cairn_attn_bwd_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	forward = cairn_attn_bwd_forward(&a);
	if (!a.batch)
		return 0;
	CAIRN_TRY(begin(&c, "attn_bwd", &forward, 1));
	c.a.workspace = a.workspace;
	c.a.workspace_bytes = a.workspace_bytes;
	c.at[SDPA_Q] = (void *)a.q;
	c.at[SDPA_K] = (void *)a.k;
	c.at[SDPA_V] = (void *)a.v;
	c.at[SDPA_OUT] = (void *)a.out;
	c.at[SDPA_LSE] = (void *)a.lse;
	c.has_lse = 1;
	c.at[SDPA_DOUT] = (void *)a.dout;
	c.at[SDPA_DQ] = a.dq;
	c.at[SDPA_DK] = a.dk;
	c.at[SDPA_DV] = a.dv;
	return run(&c, stream);
}

int cairn_attn_bwd_cudnn_workspace(const struct cairn_attn_bwd_args *args, size_t *bytes)
{
	struct cairn_attn_dense_args forward;
	struct call c;

	CAIRN_TRY(cairn_attn_bwd_check_shape(args));
	forward = cairn_attn_bwd_forward(args);
	*bytes = 0;
	if (!forward.batch)
		return 0;
	CAIRN_TRY(begin(&c, "attn_bwd", &forward, 1));
	return query(&c, bytes);
}

void cairn_cudnn_describe(char *text, size_t bytes)
{
	int v = cairn_cudnn_version();

	snprintf(text, bytes, "cudnn %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}
