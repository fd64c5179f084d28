// SPDX-License-Identifier: Apache-2.0
/*
 * attn_bsr_cpu - block-sparse attention without a GPU: fp32, online softmax, blocks of keys
 *
 * A task is one KV head of one token. The keys that it sees are gathered in blocks of up to ATTN_BLOCK_KEYS,
 * and up to ATTN_BLOCK_ROWS of its query heads attend to a block at a time. So a token's bits depend on its
 * own keys only.
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

/* Widens a key or a value and multiplies it by its scale. */
static void load_key(const struct cairn_attn_bsr_args *a, float *x, const void *from, float scale)
{
	if (!a->kv_fp8) {
		attn_widen_row(x, from, a->head_dim, a->dtype);
		return;
	}
	for (int c = 0; c < a->head_dim; c++)
		x[c] = cairn_e4m3_to_float(((const uint8_t *)from)[c]) * scale;
}

static void finish(const struct cairn_attn_bsr_args *a, const struct task *t, struct attn_state *state,
		   float scale)
{
	for (int r = 0; r < t->num; r++) {
		int64_t at = (int64_t)t->token * a->num_qo_heads + t->head + r;
		float inverse = state->l[r] > 0 ? 1 / state->l[r] : 0;

		for (int c = 0; c < a->head_dim; c++)
			state->o[r][c] *= inverse;
		cairn_store_row(a->out, a->dtype, at * a->head_dim, state->o[r], a->head_dim);
		if (a->lse)
			a->lse[at] = state->l[r] > 0 ? state->m[r] * scale + logf(state->l[r]) : -INFINITY;
	}
}

static CAIRN_WIDE void attend(const struct cairn_attn_bsr_args *a, const struct task *t,
			      const struct attn_key *keys, int num)
{
	int64_t stride = a->q_stride ? a->q_stride : (int64_t)a->num_qo_heads * a->head_dim;
	float q[ATTN_BLOCK_ROWS][ATTN_MAX_DIM], kt[ATTN_MAX_DIM][ATTN_BLOCK_KEYS];
	float v[ATTN_BLOCK_KEYS][ATTN_MAX_DIM], s[ATTN_BLOCK_KEYS];
	/* a capped logit is stored as its tanh */
	float scale = a->softcap > 0 ? a->softcap : a->sm_scale;
	int dim = a->head_dim;
	struct attn_state state;

	attn_state_clear(&state, t->num, dim);
	for (int r = 0; r < t->num; r++) {
		int64_t at = t->token * stride + (int64_t)(t->head + r) * dim;

		attn_widen_row(q[r], (const char *)a->q + at * element_bytes(a), dim, a->dtype);
	}
	memset(kt, 0, sizeof(kt));
	for (int first = 0; first < num; first += ATTN_BLOCK_KEYS) {
		int n = num - first < ATTN_BLOCK_KEYS ? num - first : ATTN_BLOCK_KEYS;

		for (int j = 0; j < n; j++) {
			load_key(a, v[j], keys[first + j].k, keys[first + j].k_scale);
			for (int c = 0; c < dim; c++)
				kt[c][j] = v[j][c];
		}
		for (int j = 0; j < n; j++)
			load_key(a, v[j], keys[first + j].v, keys[first + j].v_scale);
		for (int r = 0; r < t->num; r++) {
			attn_row_logits(s, q[r], kt, dim);
			for (int j = 0; a->softcap > 0 && j < n; j++)
				s[j] = tanhf(s[j] * a->sm_scale / a->softcap);
			attn_row_update(&state, r, s, n, v, dim, scale);
		}
	}
	finish(a, t, &state, scale);
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
			int n;

			if (!keys || !cover || cover[t.token].row < 0)
				continue;
			t.kv_head = (int32_t)(i % a->num_kv_heads);
			n = attn_bsr_keys(a, cover, t.token, t.kv_head, keys);
			for (int h = 0; h < group; h += ATTN_BLOCK_ROWS) {
				t.head = t.kv_head * group + h;
				t.num = group - h < ATTN_BLOCK_ROWS ? group - h : ATTN_BLOCK_ROWS;
				attend(a, &t, keys, n);
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
