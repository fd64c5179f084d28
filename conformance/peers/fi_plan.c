// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_plan.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/peers/fi_module.h"
#include "primitives/base/error.h"
#include "primitives/base/launch.h"

#define MAX_PLANS	32
#define MAX_DEVICES	16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fi_plan plans[MAX_PLANS];
static void *parts[MAX_DEVICES];
static uint64_t now;

int cairn_fi_take_paged(struct fi_call *c, const struct cairn_attn_paged_args *a, enum fi_kind kind)
{
	CAIRN_CUDA(cudaGetDevice(&c->key.device));
	c->key.kind = kind;
	c->key.batch = a->kv.batch;
	c->key.nnz_qo = a->nnz_qo;
	c->key.nnz_kv = a->kv.num_pages;
	c->key.max_qo_len = a->max_qo_len;
	c->key.max_kv_len = a->kv.max_len;
	c->key.heads = a->num_qo_heads;
	c->key.kv_heads = a->num_kv_heads;
	c->key.qk_dim = c->key.v_dim = a->head_dim;
	c->key.page_size = a->kv.page_size;
	c->qo_indptr = a->qo_indptr;
	c->kv_indptr = a->kv.indptr;
	c->last_page_len = a->kv.last_page_len;
	return 0;
}

void cairn_fi_lock(void)
{
	pthread_mutex_lock(&lock);
}

void cairn_fi_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static int open_plan(const struct fi_call *c, struct fi_plan *p)
{
	if (c->key.device >= MAX_DEVICES)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: more than %d devices", c->op, MAX_DEVICES);
	if (!parts[c->key.device])
		CAIRN_CUDA(cudaMalloc(&parts[c->key.device], FI_PART_BYTES));
	p->parts = parts[c->key.device];
	if (!p->device) {
		CAIRN_CUDA(cudaMalloc(&p->device, FI_PLAN_BYTES));
		CAIRN_CUDA(cudaMallocHost(&p->host, FI_PLAN_BYTES));
	}
	return 0;
}

/* The caller holds the lock. */
static int find(const struct fi_call *c, int captured, struct fi_plan **out)
{
	struct fi_plan *oldest = &plans[0];

	for (int i = 0; i < MAX_PLANS; i++) {
		struct fi_plan *p = &plans[i];

		if (p->used && !memcmp(&p->key, &c->key, sizeof(p->key))) {
			p->used = ++now;
			*out = p;
			return 0;
		}
		if (p->used < oldest->used)
			oldest = p;
	}
	if (captured)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: the first call of a shape cannot be captured",
				   c->op);
	CAIRN_TRY(open_plan(c, oldest));
	oldest->key = c->key;
	oldest->used = ++now;
	*out = oldest;
	return 0;
}

static int fetch(int32_t *host, const int32_t *array, int count, void *stream)
{
	return cairn_fi_fetch(host, array, (size_t)count * sizeof(*host), stream);
}

static int read_lengths(struct fi_call *c, void *stream)
{
	int n = c->key.batch;
	int32_t *qo = fi_rows_of(c), *kv = fi_keys_of(c), *len = fi_num_keys_of(c);

	CAIRN_TRY(fetch(qo, c->qo_indptr, n + 1, stream));
	CAIRN_TRY(fetch(kv, c->kv_indptr, n + 1, stream));
	if (c->last_page_len)
		CAIRN_TRY(fetch(len, c->last_page_len, n, stream));
	for (int b = 0; b < n; b++) {
		int32_t pages = kv[b + 1] - kv[b];

		if (!c->last_page_len)
			len[b] = pages;
		else
			len[b] = pages > 0 ? (pages - 1) * c->key.page_size + len[b] : 0;
		if (qo[b + 1] > qo[b] && (!len[b] || (c->key.causal && qo[b + 1] - qo[b] > len[b])))
			return cairn_error(EOPNOTSUPP, "%s: FlashInfer: request %d: a row without a key is "
					   "undefined", c->op, b);
	}
	return 0;
}

int cairn_fi_plan(struct fi_call *c, void *stream, struct fi_plan **out)
{
	int captured, ret;

	CAIRN_TRY(cairn_fi_captured(stream, &captured));
	CAIRN_TRY(find(c, captured, out));
	if (captured)
		return 0;
	c->lengths = malloc(3 * ((size_t)c->key.batch + 1) * sizeof(*c->lengths));
	if (!c->lengths)
		return cairn_error(ENOMEM, "%s: no memory", c->op);
	ret = read_lengths(c, stream);
	if (!ret) {
		cairn_fi_release(&(*out)->info);
		ret = c->make(c, *out, stream);
	}
	free(c->lengths);
	if (ret)
		(*out)->used = 0;
	return ret;
}
