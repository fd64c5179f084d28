// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_trial - finds the fastest implementation of a product by timing the candidates on the device
 *
 * Candidates are the algorithms that cuBLASLt's heuristics list for the shape (up to 32) and a kernel of our
 * own. The trial measures a product within a chain of small kernels, not a sequence of equal products: each
 * call follows a kernel that it depends on (a norm of the size of a) and uses another copy of b, so that no
 * copy is still in the L2 when its turn comes. The calls are captured in a graph. The four fastest candidates
 * are timed again for longer, and the one with the best median wins.
 *
 * A b of less than 1 MiB is not worth a trial: it gets our own kernel or, if there is none, the first
 * algorithm listed.
 *
 * Figures: NOTES.md.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/gemm/gemm_lt.h"
#include "primitives/base/launch.h"
#include "primitives/rows/rmsnorm.h"

#define MAX_SHAPES	128
#define MIN_BYTES	(1 << 20)	/* smallest b that is worth a trial */
#define ROTATE_BYTES	(256ll << 20)	/* bytes of all copies of b: five times the L2 of an H200 */
#define MAX_COPIES	64
#define MIN_CALLS	16		/* products in a graph */
#define FIRST_ROUNDS	4
#define FINAL_ROUNDS	21
#define FINALISTS	4
#define OWN		(-1)
#define MAX_NORM	16384

struct shape {
	struct cairn_gemm_lt key;	/* its pointers only say whether they are null */
	int device;
	int choice, algos;		/* chosen algorithm or OWN; number of algorithms */
	int tried;			/* 0: not timed, because the stream is being captured */
	char text[CAIRN_GEMM_TRIAL_TEXT];	/* of cairn_gemm_trial_choice() */
};

typedef int own_fn(const struct cairn_gemm_lt *p, void *stream);

struct bench {
	struct cairn_gemm_lt p;		/* the product, with out, a and b in memory of the trial */
	own_fn *own;			/* our kernel; NULL: none */
	struct cairn_rmsnorm_args norm;	/* the kernel ahead of each product */
	char *mem, *b;			/* all device memory; the copies of b in it */
	size_t b_pitch;			/* bytes from one copy of b to the next */
	int copies, calls;		/* copies of b; products in a graph */
	cudaStream_t stream;
	cudaEvent_t start, end;
};

struct candidate {
	int choice;			/* index in the heuristics' list, or OWN */
	float ms;			/* median time of a graph */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shape shapes[MAX_SHAPES];
static int num_shapes, next_shape;

static void make_key(struct cairn_gemm_lt *key, const struct cairn_gemm_lt *p)
{
	memset(key, 0, sizeof(*key));
	key->gemm.m = p->gemm.m;
	key->gemm.n = p->gemm.n;
	key->gemm.k = p->gemm.k;
	key->gemm.dtype = p->gemm.dtype;
	key->gemm.out_dtype = p->gemm.out_dtype;
	key->gemm.sms = p->gemm.sms;
	key->gemm.workspace_bytes = p->gemm.workspace ? p->gemm.workspace_bytes : 0;
	key->gemm.bias = p->gemm.bias ? (void *)1 : NULL;
	key->residual = p->residual ? (void *)1 : NULL;
	key->out_head = p->out_head;
	key->a_head = p->a_head;
	key->b_head = p->b_head;
	key->out_row = p->out_row;
	key->a_row = p->a_row;
	key->b_row = p->b_row;
	key->heads = p->heads;
	key->b_kn = p->b_kn;
}

static struct shape *look_up(const struct cairn_gemm_lt *p, int device)
{
	struct cairn_gemm_lt key;

	make_key(&key, p);
	for (int i = 0; i < num_shapes; i++)
		if (shapes[i].device == device && !memcmp(&shapes[i].key, &key, sizeof(key)))
			return &shapes[i];
	return NULL;
}

static int plain(const struct cairn_gemm_lt *p, void *stream)
{
	return cairn_gemm_own(&p->gemm, p->residual, stream);
}

static int is_plain(const struct cairn_gemm_lt *p)
{
	return p->heads <= 1 && !p->b_kn && !p->out_row && !p->a_row && !p->b_row &&
	       p->gemm.m <= CAIRN_GEMM_OWN_M && p->gemm.dtype != CAIRN_F32;
}

static int call(const struct cairn_gemm_lt *p, own_fn *own, int choice, void *stream)
{
	struct cairn_gemm_lt with = *p;

	if (choice == OWN)
		return own(p, stream);
	with.algo = choice;
	return cairn_gemm_lt(&with, stream);
}

/* Returns the bytes from the first element of a matrix to its last, over all heads. */
static size_t extent(const struct cairn_gemm_lt *p, int64_t head, int64_t row, int64_t rows,
		     int64_t cols, int dtype)
{
	int64_t heads = p->heads > 1 ? p->heads - 1 : 0;

	return (size_t)(heads * head + (rows - 1) * (row ? row : cols) + cols) * cairn_dtype_bytes(dtype);
}

static size_t b_extent(const struct cairn_gemm_lt *p)
{
	const struct cairn_gemm_args *g = &p->gemm;

	return extent(p, p->b_head, p->b_row, p->b_kn ? g->k : g->n, p->b_kn ? g->n : g->k, g->dtype);
}

static size_t round_up(size_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

static void close_bench(struct bench *b)
{
	if (b->start)
		cudaEventDestroy(b->start);
	if (b->end)
		cudaEventDestroy(b->end);
	if (b->stream)
		cudaStreamDestroy(b->stream);
	cudaFree(b->mem);
}

static int open_bench(struct bench *b, const struct cairn_gemm_lt *p, own_fn *own)
{
	const struct cairn_gemm_args *g = &p->gemm;
	size_t a_bytes = extent(p, p->a_head, p->a_row, g->m, g->k, g->dtype);
	size_t out_bytes = extent(p, p->out_head, p->out_row, g->m, g->n, g->out_dtype);
	size_t b_bytes = b_extent(p), at;

	memset(b, 0, sizeof(*b));
	b->b_pitch = round_up(b_bytes);
	b->copies = (int)(ROTATE_BYTES / (int64_t)b->b_pitch) + 1;
	b->copies = b->copies > MAX_COPIES ? MAX_COPIES : b->copies;
	b->calls = (MIN_CALLS + b->copies - 1) / b->copies * b->copies;
	CAIRN_CUDA(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
	CAIRN_CUDA(cudaEventCreate(&b->start));
	CAIRN_CUDA(cudaEventCreate(&b->end));
	at = b->copies * b->b_pitch;
	CAIRN_CUDA(cudaMalloc((void **)&b->mem, at + 2 * round_up(a_bytes) + round_up(out_bytes)));
	b->b = b->mem;
	for (int i = 0; i < b->copies; i++)
		CAIRN_CUDA(cudaMemcpyAsync(b->b + i * b->b_pitch, g->b, b_bytes,
					   cudaMemcpyDeviceToDevice, b->stream));
	CAIRN_CUDA(cudaMemcpyAsync(b->mem + at, g->a, a_bytes, cudaMemcpyDeviceToDevice, b->stream));
	b->p = *p;
	b->own = own;
	b->p.gemm.a = b->mem + at;
	b->p.gemm.out = b->mem + at + 2 * round_up(a_bytes);
	b->norm.size = sizeof(b->norm);
	b->norm.out = b->mem + at + round_up(a_bytes);
	b->norm.x = b->norm.weight = b->mem + at;
	b->norm.rows = g->m;
	b->norm.dim = g->k < MAX_NORM ? g->k : MAX_NORM;
	b->norm.dtype = g->dtype;
	b->norm.eps = 1;
	CAIRN_CUDA(cudaStreamSynchronize(b->stream));
	return 0;
}

static int call_all(struct bench *b, int choice)
{
	for (int i = 0; i < b->calls; i++) {
		b->p.gemm.b = b->b + i % b->copies * b->b_pitch;
		CAIRN_TRY(cairn_rmsnorm(&b->norm, b->stream));
		CAIRN_TRY(call(&b->p, b->own, choice, b->stream));
	}
	return 0;
}

static int compare(const void *x, const void *y)
{
	float a = *(const float *)x, b = *(const float *)y;

	return (a > b) - (a < b);
}

/* Returns the median time of all launches except the first in *ms. */
static int launch_timed(struct bench *b, cudaGraphExec_t graph, int rounds, float *ms)
{
	float took[FINAL_ROUNDS];

	for (int i = -1; i < rounds; i++) {
		CAIRN_CUDA(cudaEventRecord(b->start, b->stream));
		CAIRN_CUDA(cudaGraphLaunch(graph, b->stream));
		CAIRN_CUDA(cudaEventRecord(b->end, b->stream));
		CAIRN_CUDA(cudaEventSynchronize(b->end));
		if (i >= 0)
			CAIRN_CUDA(cudaEventElapsedTime(&took[i], b->start, b->end));
	}
	qsort(took, rounds, sizeof(*took), compare);
	*ms = took[rounds / 2];
	return 0;
}

static int time_one(struct bench *b, int choice, int rounds, float *ms)
{
	cudaGraphExec_t exec;
	cudaGraph_t graph;
	cudaError_t err;
	int ret;

	b->p.gemm.b = b->b;
	CAIRN_TRY(call(&b->p, b->own, choice, b->stream));	/* loads the code, forbidden during capture */
	CAIRN_CUDA(cudaStreamSynchronize(b->stream));
	CAIRN_CUDA(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
	ret = call_all(b, choice);
	err = cudaStreamEndCapture(b->stream, &graph);
	if (!ret)
		CAIRN_CUDA(err);
	if (err == cudaSuccess) {
		if (!ret)
			err = cudaGraphInstantiate(&exec, graph, 0);
		cudaGraphDestroy(graph);
	}
	if (ret)
		return ret;
	CAIRN_CUDA(err);
	ret = launch_timed(b, exec, rounds, ms);
	cudaGraphExecDestroy(exec);
	return ret;
}

static int faster(const void *x, const void *y)
{
	const struct candidate *a = x, *b = y;

	return (a->ms > b->ms) - (a->ms < b->ms);
}

/* Drops candidates that fail; a lost device (-EIO) is an error. Sorts c, the fastest candidate first. */
static int try_all(struct bench *b, struct candidate *c, int num)
{
	int left = 0;

	for (int i = 0; i < num; i++) {
		int ret = time_one(b, c[i].choice, FIRST_ROUNDS, &c[i].ms);

		if (ret == -EIO)
			return ret;
		if (!ret)
			c[left++] = c[i];
	}
	if (!left)
		return cairn_error(EOPNOTSUPP, "gemm: none of %d candidates works for m %d n %d k %d", num,
				   b->p.gemm.m, b->p.gemm.n, b->p.gemm.k);
	qsort(c, left, sizeof(*c), faster);
	if (left > FINALISTS)
		left = FINALISTS;
	for (int i = 0; i < left; i++)
		CAIRN_TRY(time_one(b, c[i].choice, FINAL_ROUNDS, &c[i].ms));
	qsort(c, left, sizeof(*c), faster);
	return 0;
}

static int choose(struct shape *s, const struct cairn_gemm_lt *p, own_fn *own)
{
	struct candidate c[CAIRN_GEMM_LT_ALGOS + 1];
	struct bench b;
	int num = 0, ret;

	s->algos = 0;
	ret = cairn_gemm_lt_algos(p, &s->algos);
	if (own)
		c[num++].choice = OWN;
	else if (ret)
		return ret;
	for (int i = 0; i < s->algos; i++)
		c[num++].choice = i;
	s->choice = c[0].choice;
	if (num == 1 || !s->tried || b_extent(p) < MIN_BYTES)
		return 0;
	ret = open_bench(&b, p, own);
	if (!ret)
		ret = try_all(&b, c, num);
	close_bench(&b);
	s->choice = c[0].choice;
	return ret;
}

static void describe(struct shape *s)
{
	if (s->choice == OWN)
		snprintf(s->text, sizeof(s->text), "own");
	else
		snprintf(s->text, sizeof(s->text), "cublaslt %d of %d", s->choice + 1, s->algos);
}

static int learn(const struct cairn_gemm_lt *p, own_fn *own, void *stream, struct shape *out)
{
	enum cudaStreamCaptureStatus status;
	struct shape s = { .tried = 1 };

	CAIRN_CUDA(cudaStreamIsCapturing(stream, &status));
	if (status != cudaStreamCaptureStatusNone)
		s.tried = 0;
	else
		CAIRN_CUDA(cudaStreamSynchronize(stream));	/* a is complete, the workspace unused */
	make_key(&s.key, p);
	CAIRN_TRY(choose(&s, p, own));
	describe(&s);
	*out = s;
	return 0;
}

int cairn_gemm_trial(const struct cairn_gemm_lt *args, own_fn *own, void *stream)
{
	struct shape *s, fresh;
	int choice, device, ret = 0;

	CAIRN_TRY(cairn_gemm_check(&args->gemm));
	if (!own && is_plain(args))
		own = plain;
	CAIRN_CUDA(cudaGetDevice(&device));
	pthread_mutex_lock(&lock);
	s = look_up(args, device);
	if (!s) {
		ret = learn(args, own, stream, &fresh);
		fresh.device = device;
		s = &fresh;
		if (!ret && fresh.tried) {
			shapes[next_shape] = fresh;
			next_shape = (next_shape + 1) % MAX_SHAPES;
			num_shapes = num_shapes < MAX_SHAPES ? num_shapes + 1 : num_shapes;
		}
	}
	choice = s->choice;
	pthread_mutex_unlock(&lock);
	return ret ? ret : call(args, own, choice, stream);
}

void cairn_gemm_trial_choice(const struct cairn_gemm_lt *args, char text[CAIRN_GEMM_TRIAL_TEXT])
{
	const struct shape *s;
	int device = -1;

	cudaGetDevice(&device);
	pthread_mutex_lock(&lock);
	s = look_up(args, device);
	snprintf(text, CAIRN_GEMM_TRIAL_TEXT, "%s", s ? s->text : "");
	pthread_mutex_unlock(&lock);
}
