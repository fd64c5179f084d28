// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_reduce_cpu - runs the kernels' schedule on the CPU in fp32, one thread for all ranks of a cluster
 *
 * Every message of cluster_schedule.h is copied from its sender's buffer into a receive slot and reduced from
 * there in the order of the kernels. This tests the schedule for every cluster size on a machine without a
 * GPU. AUTO and OFFCHIP reduce in rank order, as ONESHOT does.
 *
 * SOFTMAX becomes SUM after every rank has received all (m, l) and multiplied its own o by exp(m - M).
 */
#include "primitives/cluster/cluster_reduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/wide.h"

struct run {
	const struct cairn_cluster_reduce_args *a;
	int algo, n, op;		/* AUTO, OFFCHIP and SOFTMAX resolved; n: cluster size */
	struct cairn_cluster_chunks chunks;
	int per_granule;		/* values in a granule of a message */
	int32_t stride;			/* values in a rank's buffer */
	float *work, *result, *slot;	/* [n, stride] each: partial results, results, receive buffers */
};

static void combine(float *dst, const float *src, int count, int op)
{
	for (int i = 0; i < count; i++) {
		float x = dst[i], y = src[i];

		if (op == CAIRN_CLUSTER_SUM)
			dst[i] = x + y;
		else if (isnan(y) || (!isnan(x) && (op == CAIRN_CLUSTER_MAX ? y > x : y < x)))
			dst[i] = y;
	}
}

/* Loads all ranks' inputs as fp32. For SOFTMAX, scales them to the common maximum and writes out_ml. */
CAIRN_WIDE static void load(struct run *p, int64_t first)
{
	const struct cairn_cluster_reduce_args *a = p->a;
	const int softmax = a->op == CAIRN_CLUSTER_SOFTMAX;
	const int32_t rows = softmax ? a->len / a->head_dim : 1, dim = a->len / rows;
	const float *ml = softmax ? a->in_ml + first * rows * 2 : NULL;

	for (int r = 0; r < p->n; r++)
		cairn_load_row(p->work + (int64_t)r * p->stride, a->in, a->dtype, (first + r) * a->len,
			       a->len);
	for (int32_t row = 0; softmax && row < rows; row++) {
		float m = -INFINITY, l = 0;

		for (int r = 0; r < p->n; r++)
			m = fmaxf(m, ml[(r * rows + row) * 2]);
		for (int r = 0; r < p->n; r++) {
			float m_r = ml[(r * rows + row) * 2];
			float *o = p->work + (int64_t)r * p->stride + (int64_t)row * dim;
			float w = m_r > -INFINITY ? expf(m_r - m) : 0;

			if (m_r > -INFINITY)
				l += w * ml[(r * rows + row) * 2 + 1];
			for (int32_t i = 0; i < dim; i++)
				o[i] = m_r > -INFINITY ? w * o[i] : 0;
		}
		for (int r = 0; r < p->n; r++) {
			float *out = a->out_ml + ((first + r) * rows + row) * 2;

			out[0] = m;
			out[1] = l;
		}
	}
}

static float *at(const struct run *p, float *buf, int rank, int granule)
{
	return buf + (int64_t)rank * p->stride + (int64_t)granule * p->per_granule;
}

/* One slot for each source; a rank reduces the slots and its own values in rank order. */
static void one_step(struct run *p)
{
	const int halves = p->n - 1;

	for (int b = 0; b < p->n; b++) {
		int first = 0, count = p->chunks.granules;

		for (int s = 0; s < halves; s++) {
			struct cairn_cluster_msg m =
				cairn_cluster_reduce_msg(p->algo, p->n, b, s, &p->chunks);
			struct cairn_cluster_msg sent =
				cairn_cluster_reduce_msg(p->algo, p->n, m.from, s, &p->chunks);

			memcpy(at(p, p->slot, m.from, m.recv_first), at(p, p->work, m.from, sent.send_first),
			       (size_t)sent.send_count * p->per_granule * sizeof(float));
			first = m.recv_first;
			count = m.recv_count;
		}
		for (int r = 0; r < p->n; r++) {
			const float *src = at(p, r == b ? p->work : p->slot, r, first);

			if (r == 0)
				memcpy(at(p, p->result, b, first), src,
				       (size_t)count * p->per_granule * sizeof(float));
			else
				combine(at(p, p->result, b, first), src, count * p->per_granule, p->op);
		}
	}
}

/* All ranks send, then all receive; slot r is the only receive buffer of rank r. */
static void neighbour_step(struct run *p, float *buf, int step)
{
	const int final = cairn_cluster_reduce_is_final(p->algo, p->n, step);

	for (int b = 0; b < p->n; b++) {
		struct cairn_cluster_msg m = cairn_cluster_reduce_msg(p->algo, p->n, b, step, &p->chunks);

		memcpy(at(p, p->slot, m.to, m.send_first), at(p, buf, b, m.send_first),
		       (size_t)m.send_count * p->per_granule * sizeof(float));
	}
	for (int b = 0; b < p->n; b++) {
		struct cairn_cluster_msg m = cairn_cluster_reduce_msg(p->algo, p->n, b, step, &p->chunks);
		float *dst = at(p, buf, b, m.recv_first), *src = at(p, p->slot, b, m.recv_first);

		if (final)
			memcpy(dst, src, (size_t)m.recv_count * p->per_granule * sizeof(float));
		else
			combine(dst, src, m.recv_count * p->per_granule, p->op);
	}
}

/* TWOSHOT's second half: each rank sends n - 1 messages of final values, whose order does not matter. */
static void spread(struct run *p)
{
	for (int step = p->n - 1; step < 2 * (p->n - 1); step++)
		neighbour_step(p, p->result, step);
}

CAIRN_WIDE static void one_call(struct run *p, int64_t first)
{
	const struct cairn_cluster_reduce_args *a = p->a;
	const size_t bytes = (size_t)a->len * cairn_dtype_bytes(a->dtype);
	float *result = p->result;

	if (p->n == 1 && a->op != CAIRN_CLUSTER_SOFTMAX) {	/* nothing to add, nothing to round */
		memcpy((char *)a->out + first * bytes, (const char *)a->in + first * bytes, bytes);
		return;
	}
	load(p, first);
	if (p->algo == CAIRN_CLUSTER_RING || p->algo == CAIRN_CLUSTER_TREE) {
		for (int step = 0; step < cairn_cluster_reduce_steps(p->algo, p->n); step++)
			neighbour_step(p, p->work, step);
		result = p->work;
	} else {
		one_step(p);
		if (p->algo == CAIRN_CLUSTER_TWOSHOT)
			spread(p);
	}
	for (int r = 0; r < p->n; r++)
		cairn_store_row(a->out, a->dtype, (first + r) * a->len, result + (int64_t)r * p->stride,
				a->len);
}

static struct run plan(const struct cairn_cluster_reduce_args *a)
{
	struct run p = { .a = a, .algo = a->algo, .n = a->cluster_size, .op = a->op };
	int wire = (int)cairn_dtype_bytes(a->dtype);

	if (p.op == CAIRN_CLUSTER_SOFTMAX)
		p.op = CAIRN_CLUSTER_SUM;
	if (p.algo == CAIRN_CLUSTER_AUTO || p.algo == CAIRN_CLUSTER_OFFCHIP)
		p.algo = CAIRN_CLUSTER_ONESHOT;
	if (p.algo == CAIRN_CLUSTER_RING || p.algo == CAIRN_CLUSTER_TREE)
		wire = sizeof(float);
	p.per_granule = CAIRN_CLUSTER_GRANULE / wire;
	p.chunks = cairn_cluster_chunks((a->len + p.per_granule - 1) / p.per_granule, p.n);
	p.stride = p.chunks.granules * p.per_granule;
	return p;
}

int cairn_cluster_reduce_cpu(const struct cairn_cluster_reduce_args *a, void *stream)
{
	int64_t num_groups;
	int failed = 0;

	(void)stream;
	CAIRN_TRY(cairn_cluster_reduce_check(a));
	num_groups = (int64_t)a->num_clusters * a->num_calls;
#pragma omp parallel reduction(|:failed)
	{
		struct run p = plan(a);
		int64_t count = (int64_t)p.n * p.stride;
		/* the padding of a row to whole granules stays 0 */
		float *buf = calloc(3 * count, sizeof(float));

		failed = !buf;
		p.work = buf;
		p.result = buf + count;
		p.slot = buf + 2 * count;
#pragma omp for schedule(static)
		for (int64_t k = 0; k < num_groups; k++)
			if (buf)
				one_call(&p, k * p.n);
		free(buf);
	}
	if (failed)
		return cairn_error(ENOMEM, "cluster_reduce: no memory for %d ranks of %d", a->cluster_size,
				   a->len);
	for (int64_t i = 0; a->cycles && i < (int64_t)a->num_clusters * a->cluster_size; i++)
		a->cycles[i] = 0;
	return 0;
}
