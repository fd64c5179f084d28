/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_walk - the page walk of the decode kernels, and the gather into swizzled shared memory
 */
#ifndef CAIRN_ATTN_PAGED_WALK_CUH
#define CAIRN_ATTN_PAGED_WALK_CUH

#include "fused/attention/base/attn_tile.cuh"
#include "fused/attention/paged/attn_paged.h"
#include "primitives/ptx/ptx_copy.cuh"

/* One request and one KV head. */
struct attn_request {
	int32_t qo_first, qo_len, kv_len;
	int32_t head, group;
	uint32_t magic;			/* attn_magic(group) */
	const int32_t *pages;		/* the request's page ids */
};

ATTN_DEV struct attn_request attn_load_request(const struct cairn_attn_paged_args &a, int b, int head,
					       int group, uint32_t magic)
{
	struct attn_request r;
	int32_t first_page = a.kv.indptr[b];

	r.head = head;
	r.group = group;
	r.magic = magic;
	r.qo_first = a.qo_indptr[b];
	r.qo_len = a.qo_indptr[b + 1] - r.qo_first;
	r.kv_len = kv_walk_len(a.kv.indptr[b + 1] - first_page, a.kv.last_page_len[b], a.kv.page_size);
	r.pages = a.kv.indices + first_page;
	return r;
}

/* Returns the end of the keys that a packed row sees. */
ATTN_DEV int32_t attn_row_sees(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			       int32_t row)
{
	return attn_visible(attn_token(row, r.magic), r.qo_len, r.kv_len, a.causal);
}

/* Returns the first key that a packed row sees. */
ATTN_DEV int32_t attn_row_first(const struct cairn_attn_paged_args &a, const struct attn_request &r,
				int32_t row)
{
	return attn_first_key(attn_token(row, r.magic), r.qo_len, r.kv_len, a.window);
}

/* The scales of a KV head of 8 bits; 1 without kv_fp8. */
struct attn_scales {
	float k, v;
};

template <bool fp8>
ATTN_DEV struct attn_scales attn_scales_of(const struct cairn_attn_paged_args &a, int head)
{
	struct attn_scales s = { 1, 1 };

	if (fp8 && a.k_scale)
		s.k = a.k_scale[head];
	if (fp8 && a.v_scale)
		s.v = a.v_scale[head];
	return s;
}

/* Returns the factor that turns a logit in registers into its value; a capped logit is kept as its tanh. */
ATTN_DEV float attn_logit_scale(const struct cairn_attn_paged_args &a, float k_scale)
{
	return a.softcap > 0 ? a.softcap : a.sm_scale * k_scale;
}

ATTN_DEV float attn_cap_factor(const struct cairn_attn_paged_args &a, float k_scale)
{
	return a.softcap > 0 ? 2 * ATTN_LOG2E * (a.sm_scale * k_scale / a.softcap) : 0;
}

/* Returns the element of q at which a packed row begins. */
ATTN_DEV int64_t attn_q_row(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			    int32_t row)
{
	int64_t stride = a.q_stride ? a.q_stride : (int64_t)a.num_qo_heads * a.head_dim;
	int32_t token = attn_token(row, r.magic), head = r.head * r.group + row - token * r.group;

	return (r.qo_first + token) * stride + head * a.head_dim;
}

/* Returns a packed row's index among all rows and heads, which is its row of out and its element of lse. */
ATTN_DEV int64_t attn_out_row(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			      int32_t row)
{
	int32_t token = attn_token(row, r.magic), head = r.head * r.group + row - token * r.group;

	return (int64_t)(r.qo_first + token) * a.num_qo_heads + head;
}

/*
 * Where a key is: the id of its page, and its place in the page; -1: there is no key. A loop looks up a key's
 * place a step before it needs the slot, so that it does not wait for the page id.
 */
struct attn_place {
	int32_t page, at;
};

/* Looks up a key, without reading a page id if key >= end. */
ATTN_DEV struct attn_place attn_look_up(const struct cairn_attn_paged_args &a, const struct attn_request &r,
					int32_t page_shift, int32_t key, int32_t end)
{
	struct attn_place p = { 0, -1 };

	if (key < end) {
		const int32_t nth = page_shift >= 0 ? key >> page_shift : key / a.kv.page_size;

		p.page = r.pages[nth];
		p.at = key - nth * a.kv.page_size;
	}
	return p;
}

/* Returns the slot of a place, counted over all pages; ~0 if there is no key. */
ATTN_DEV uint32_t attn_slot_at(const struct cairn_attn_paged_args &a, struct attn_place p)
{
	return p.at < 0 ? ~0u : (uint32_t)p.page * (uint32_t)a.kv.page_size + (uint32_t)p.at;
}

ATTN_DEV uint32_t attn_slot(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			    int32_t page_shift, int32_t key, int32_t end)
{
	return attn_slot_at(a, attn_look_up(a, r, page_shift, key, end));
}

/*
 * Starts the copy of `rows` keys to the rows from `first` (a multiple of 8) on, in a K tile at s_k and in a V
 * tile that lies v_offset bytes after it. Lane i < rows of the warp passes the slot of key i, or ~0 for a key
 * that does not exist. Such a key becomes a row of zeros, so that p = 0 is never multiplied by a NaN of an
 * unused slot.
 */
template <int head_dim, int rows, int v_offset>
ATTN_DEV void attn_gather(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			  uint32_t s_k, int first, uint32_t slot)
{
	constexpr int chunks = head_dim / 8, per_pass = 32 / chunks;
	int row = threadIdx.x % 32 / chunks, chunk = threadIdx.x % chunks;
	uint32_t slot_bytes = a.num_kv_heads * head_dim * 2;
	uint32_t column = r.head * head_dim * 2 + chunk * 16;
	const char *k = attn_opaque((const char *)a.kv.k_pages + column);
	const int64_t v = (const char *)a.kv.v_pages - (const char *)a.kv.k_pages;

	s_k += attn_swizzle(first + row, chunk, head_dim * 2);
#pragma unroll
	for (int i = 0; i < rows; i += per_pass) {
		uint32_t from = __shfl_sync(~0u, slot, i + row), bytes = from == ~0u ? 0 : 16;
		uint32_t to = (s_k ^ (i & 7) << 4) + i * head_dim * 2;
		const char *at = k + (uint64_t)(from == ~0u ? 0 : from) * slot_bytes;

		ptx_cp_async_cg(to, at, bytes);
		ptx_cp_async_cg(to + v_offset, at + v, bytes);
	}
}

#endif
