// SPDX-License-Identifier: Apache-2.0
/* attn_bsr_walk - block rows, lists, positions and masks of attn_bsr on the host */
#include "fused/attention/bsr/attn_bsr_walk.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"

struct attn_cover *attn_cover_new(const struct cairn_attn_bsr_args *a)
{
	size_t num = (size_t)a->num_parts * (size_t)a->nnz_qo;
	struct attn_cover *cover = malloc(sizeof(*cover) * (num ? num : 1));

	for (size_t i = 0; cover && i < num; i++)
		cover[i].row = -1;
	for (int k = 0; cover && k < a->num_parts; k++) {
		const struct cairn_attn_part *p = &a->part[k];

		for (int64_t r = 0; r < p->rows; r++) {
			int64_t first = p->row_indptr ? p->row_indptr[r] : r * p->block_m;
			int64_t end = p->row_indptr ? p->row_indptr[r + 1] : first + p->block_m;

			if (end > a->nnz_qo)
				end = a->nnz_qo;
			for (int64_t i = first; i < end; i++) {
				int64_t token = p->q_index ? p->q_index[i] : i;

				cover[(int64_t)k * a->nnz_qo + token] = (struct attn_cover){
					(int32_t)r, (int32_t)(i - first), (int32_t)(end - first),
				};
			}
		}
	}
	return cover;
}

static const int32_t *list_of(const struct cairn_attn_part *p, int32_t row, int32_t kv_head)
{
	int64_t head = p->index_heads > 1 ? kv_head : 0;

	return p->blk_indptr + head * (p->rows + 1) + row;
}

int64_t attn_bsr_list_len(const struct cairn_attn_part *p, int32_t row, int32_t kv_head)
{
	const int32_t *list = list_of(p, row, kv_head);
	int64_t blocks = list[1] - list[0], head = p->index_heads > 1 ? kv_head : 0;

	if (!blocks)
		return 0;
	return (blocks - 1) * p->block_n + (p->last_len ? p->last_len[head * p->rows + row] : p->block_n);
}

struct attn_key attn_bsr_key(const struct cairn_attn_bsr_args *a, const struct cairn_attn_part *p,
			     int32_t row, int32_t kv_head, int64_t n)
{
	int64_t block = p->blk_indices[list_of(p, row, kv_head)[0] + n / p->block_n];
	int64_t at = block * cairn_attn_block_stride(p, a->num_kv_heads, a->head_dim) +
		     n % p->block_n * cairn_attn_slot_stride(p, a->num_kv_heads, a->head_dim) +
		     kv_head * cairn_attn_head_stride(p, a->head_dim);
	int64_t bytes = at * (a->kv_fp8 ? 1 : (int64_t)cairn_dtype_bytes(a->dtype));

	return (struct attn_key){
		.k = (const char *)p->k + bytes, .v = (const char *)p->v + bytes,
		.k_scale = p->k_scale ? p->k_scale[kv_head] : 1,
		.v_scale = p->v_scale ? p->v_scale[kv_head] : 1,
	};
}

static int64_t key_position(const struct cairn_attn_part *p, int32_t row, int32_t kv_head, int64_t n)
{
	if (p->key_pos)
		return p->key_pos[(int64_t)p->blk_indices[list_of(p, row, kv_head)[0] + n / p->block_n] *
				  p->block_n + n % p->block_n];
	return n + (p->kv_pos0 ? p->kv_pos0[row] : 0);
}

static int bit(const struct cairn_attn_part *p, const struct attn_cover *c, int64_t num_keys, int64_t n)
{
	int64_t line = (num_keys + 7) / 8;

	return p->mask[p->mask_indptr[c->row] + c->ordinal * line + n / 8] >> n % 8 & 1;
}

int64_t attn_bsr_most_keys(const struct cairn_attn_bsr_args *a)
{
	int64_t most = 0;

	for (int k = 0; k < a->num_parts; k++)
		most += a->part[k].max_keys;
	return most;
}

int attn_bsr_keys(const struct cairn_attn_bsr_args *a, const struct attn_cover *cover, int32_t token,
		  int32_t kv_head, struct attn_key *keys, int64_t *first)
{
	int num = 0;

	for (int k = 0; k < a->num_parts; k++) {
		const struct cairn_attn_part *p = &a->part[k];
		const struct attn_cover *c = &cover[(int64_t)k * a->nnz_qo + token];
		int64_t len, at;

		if (c->row < 0)
			continue;
		len = attn_bsr_list_len(p, c->row, kv_head);
		at = a->q_pos ? a->q_pos[token] :
		     len - 1 + (p->kv_pos0 ? p->kv_pos0[c->row] : 0) - (c->num - 1 - c->ordinal);
		for (int64_t n = 0; n < len; n++) {
			int64_t position = key_position(p, c->row, kv_head, n);

			if (p->mask_mode & CAIRN_ATTN_CAUSAL && position > at)
				continue;
			if (a->window && position <= at - a->window)
				continue;
			if (p->mask_mode & CAIRN_ATTN_BITS && !bit(p, c, len, n))
				continue;
			if (!num && first)
				*first = position;
			keys[num++] = attn_bsr_key(a, p, c->row, kv_head, n);
		}
	}
	return num;
}
