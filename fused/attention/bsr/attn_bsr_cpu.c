// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bsr_cpu - block-sparse attention without a GPU: fp32, online softmax, blocks of keys
 *
 * A task is one KV head of one token. The keys that it sees are gathered in blocks of up to ATTN_BLOCK_KEYS,
 * and up to ATTN_BLOCK_ROWS of its query heads attend to a block at a time. So a token's bits depend on its
 * own keys only.
 *
 * The sums are those of attn_batch_cpu.c: blocks, and parts of ATTN_PART_KEYS keys that are merged in order,
 * begin at multiples of their size, counted as if the keys that a token sees had consecutive positions from
 * that of the first one on. So a row of a token tree gets the bits of attn_paged for the path to it.
 */
#include "fused/attention/bsr/attn_bsr.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/fp8.h"
#include "primitives/base/wide.h"
#include "fused/attention/base/attn_block.h"
#include "fused/attention/bsr/attn_bsr_walk.h"

/* One token and query heads head .. head + num - 1 of one KV head. */
struct task {
	int32_t token, kv_head, head, num;
};

static int64_t element_bytes(const struct cairn_attn_bsr_args *a)
{
	return (int64_t)cairn_dtype_bytes(a->dtype);
}

/*
 * Widens a key or a value. Logits and the output are multiplied by the scales of part 0, so only the ratio of
 * its own scale to that one is applied here; it is 1 unless parts differ in their scales.
 */
static void load_key(const struct cairn_attn_bsr_args *a, float *x, const void *from, float ratio)
{
	if (!a->kv_fp8) {
		attn_widen_row(x, from, a->head_dim, a->dtype);
		return;
	}
	for (int c = 0; c < a->head_dim; c++)
		x[c] = cairn_e4m3_to_float(((const uint8_t *)from)[c]) * ratio;
}

static void finish(const struct cairn_attn_bsr_args *a, const struct task *t, struct attn_state *state,
		   float scale, float v_scale)
{
	for (int r = 0; r < t->num; r++) {
		int64_t at = (int64_t)t->token * a->num_qo_heads + t->head + r;
		float inverse = state->l[r] > 0 ? 1 / state->l[r] * v_scale : 0;

		for (int c = 0; c < a->head_dim; c++)
			state->o[r][c] *= inverse;
		cairn_store_row(a->out, a->dtype, at * a->head_dim, state->o[r], a->head_dim);
		if (a->lse)
			a->lse[at] = state->l[r] > 0 ? state->m[r] * scale + logf(state->l[r]) : -INFINITY;
	}
}

/* What the logits and the output of a KV head are multiplied by, in addition to sm_scale. */
struct scales {
	float k, v;
};

static struct scales scales_of(const struct cairn_attn_bsr_args *a, int32_t kv_head)
{
	const struct cairn_attn_part *p = &a->part[0];

	return (struct scales){ p->k_scale ? p->k_scale[kv_head] : 1, p->v_scale ? p->v_scale[kv_head] : 1 };
}

/* Attends to num keys, which lie in one part of ATTN_PART_KEYS; the first is number `first` of the part. */
static CAIRN_WIDE void attend(const struct cairn_attn_bsr_args *a, const struct task *t,
			      const struct attn_key *keys, int first, int num, struct attn_state *state)
{
	int64_t stride = a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->head_dim;
	float q[ATTN_BLOCK_ROWS][ATTN_MAX_DIM], kt[ATTN_MAX_DIM][ATTN_BLOCK_KEYS];
	float v[ATTN_BLOCK_KEYS][ATTN_MAX_DIM], s[ATTN_BLOCK_KEYS];
	const struct scales scales = scales_of(a, t->kv_head);
	/* a capped logit is stored as its tanh */
	float sm_scale = a->sm_scale * scales.k, scale = a->softcap > 0 ? a->softcap : sm_scale;
	int dim = a->head_dim, n;

	attn_state_clear(state, t->num, dim);
	for (int r = 0; r < t->num; r++) {
		int64_t at = t->token * stride + (int64_t)(t->head + r) * dim;

		attn_widen_row(q[r], (const char *)a->q + at * element_bytes(a), dim, a->dtype);
	}
	memset(kt, 0, sizeof(kt));
	for (int done = 0; done < num; done += n) {
		n = ATTN_BLOCK_KEYS - (first + done) % ATTN_BLOCK_KEYS;
		n = n < num - done ? n : num - done;
		for (int j = 0; j < n; j++) {
			load_key(a, v[j], keys[done + j].k, keys[done + j].k_scale / scales.k);
			for (int c = 0; c < dim; c++)
				kt[c][j] = v[j][c];
		}
		for (int j = 0; j < n; j++)
			load_key(a, v[j], keys[done + j].v, keys[done + j].v_scale / scales.v);
		for (int r = 0; r < t->num; r++) {
			attn_row_logits(s, q[r], kt, dim);
			for (int j = 0; a->softcap > 0 && j < n; j++)
				s[j] = tanhf(s[j] * sm_scale / a->softcap);
			attn_row_update(state, r, s, n, v, dim, scale);
		}
	}
}

/* Attends to all keys of a task, part after part. position: that of the first key. */
static void run(const struct cairn_attn_bsr_args *a, const struct task *t, const struct attn_key *keys,
		int64_t position, int num)
{
	const struct scales scales = scales_of(a, t->kv_head);
	float scale = a->softcap > 0 ? a->softcap : a->sm_scale * scales.k;
	struct attn_state all, part;
	int first = (int)(position % ATTN_PART_KEYS), n;

	first += first < 0 ? ATTN_PART_KEYS : 0;
	attn_state_clear(&all, t->num, a->head_dim);
	for (int done = 0; done < num; done += n) {
		n = num - done < ATTN_PART_KEYS - first ? num - done : ATTN_PART_KEYS - first;
		attend(a, t, keys + done, first, n, &part);
		first = 0;
		for (int r = 0; r < t->num; r++)
			attn_state_merge(&all, &part, r, a->head_dim, scale);
	}
	finish(a, t, &all, scale, scales.v);
}

int cairn_attn_bsr_cpu(const struct cairn_attn_bsr_args *a, void *stream)
{
	struct attn_cover *cover;
	int group, no_memory;

	(void)stream;
	CAIRN_TRY(cairn_attn_bsr_check(a));
	group = a->num_qo_heads / a->num_kv_heads;
	cover = attn_cover_new(a);
	no_memory = !cover;
	#pragma omp parallel reduction(|:no_memory)
	{
		int64_t most = attn_bsr_most_keys(a);
		struct attn_key *keys = malloc(sizeof(*keys) * (most ? (size_t)most : 1));

		no_memory |= !keys;
		#pragma omp for schedule(dynamic)
		for (int64_t i = 0; i < (int64_t)a->nnz_qo * a->num_kv_heads; i++) {
			struct task t = { .token = (int32_t)(i / a->num_kv_heads) };
			int64_t first = 0;
			int n;

			if (!keys || !cover || cover[t.token].row < 0)
				continue;
			t.kv_head = (int32_t)(i % a->num_kv_heads);
			n = attn_bsr_keys(a, cover, t.token, t.kv_head, keys, &first);
			for (int h = 0; h < group; h += ATTN_BLOCK_ROWS) {
				t.head = t.kv_head * group + h;
				t.num = group - h < ATTN_BLOCK_ROWS ? group - h : ATTN_BLOCK_ROWS;
				run(a, &t, keys, first, n);
			}
		}
		free(keys);
	}
	free(cover);
	return no_memory ? cairn_error(ENOMEM, "attn_bsr: no memory for lists of keys") : 0;
}

/* The cpu table needs no plan. */
int cairn_attn_plan_cpu(const struct cairn_attn_bsr_args *a, void *stream)
{
	(void)stream;
	return cairn_attn_bsr_check(a);
}
