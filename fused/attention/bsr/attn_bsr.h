/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr - attention over lists of blocks: pages, shared prefixes, token trees, top-k (block-sparse rows)
 *
 * A call has one to four parts. Each part divides the query tokens into block rows, and each block row lists
 * blocks of slots. The slots of that list, in order, are the keys of the block row. A token belongs to at
 * most one block row of each part, and sees the keys of these rows that the masks admit. One softmax spans
 * all parts:
 *
 *   out[t,h,:] = sum_n p[n] * v_scale[g] * v[n,g,:],   p = softmax_n(s[n])   over all keys that token t sees
 *   lse[t,h]   = ln sum_n exp(s[n])
 *   s[n]       = x[n] without a softcap, softcap * tanh(x[n] / softcap) with one
 *   x[n]       = sm_scale * k_scale[g] * dot(q[t,h,:], k[n,g,:])
 *   g          = h / (num_qo_heads / num_kv_heads)
 *
 * Block rows   Row r of a part holds the places row_indptr[r] .. row_indptr[r+1]-1. Without row_indptr it
 *              holds the places r * block_m .. min((r + 1) * block_m, nnz_qo) - 1. Place i holds token
 *              q_index[i], or token i without q_index. The rows of part 0 define which tokens the call
 *              computes; out and lse of other tokens are not written. A token that no row of another part
 *              holds sees no key of that part.
 * Lists        The list of row r is blk_indices[blk_indptr[i]] .. blk_indices[blk_indptr[i+1] - 1], where
 *              i = g * (rows + 1) + r if index_heads is num_kv_heads, and i = r if index_heads is 1. All
 *              block_n slots of a block are keys, except that last_len, if given, shortens the last block of
 *              the list to its first last_len[g * rows + r] (or [r]) slots, 1 .. block_n. Key n of the list
 *              is slot n % block_n of the list's block n / block_n. A block that is listed twice counts
 *              twice.
 * Addresses    Slot s of block b begins, for KV head g, at element b * block_stride + s * slot_stride + g *
 *              head_stride of k and of v.
 * Positions    Key n, in slot s of block b, has position key_pos[b * block_n + s]; without key_pos,
 *              kv_pos0[r] + n; without either, n. Token t has position q_pos[t]. Without q_pos, the last
 *              token of a block row has the position of the row's last key, and each token before it is one
 *              position earlier.
 * Masks        mask_mode 0 admits all keys; 1 admits keys whose position is at most the token's; 2 admits
 *              keys whose bit is 1; 3 admits keys that both 1 and 2 admit. A window > 0 applies to all parts:
 *              it admits only keys whose position is greater than the token's position - window.
 * Bits         The bit lines of row r begin at byte mask_indptr[r]. Each token of the row has one line, in
 *              the order of places, of ceil(keys of the row / 8) bytes. Key n is bit n % 8 of byte n / 8,
 *              counted from the lowest bit.
 *
 *   argument          dtype  shape                                           notes
 *   out               dtype  [nnz_qo, num_qo_heads, head_dim]                out, may not alias an input
 *   lse               f32    [nnz_qo, num_qo_heads]                          out, optional (NULL)
 *   q                 dtype  [nnz_qo, num_qo_heads, head_dim]                in, row i at i * q_stride
 *   q_pos             int32  [nnz_qo]                                        in, optional
 *   workspace                [workspace_bytes]                               256-byte aligned
 *   part[].k, v       dtype, or e4m3 with kv_fp8   num_blocks blocks         in
 *   part[].k_scale, v_scale   f32    [num_kv_heads]                          in, optional (1), > 0, if kv_fp8
 *   part[].row_indptr         int32  [rows + 1]                              in, optional, ascending from 0
 *   part[].q_index            int32  [places]                                in, optional, no token twice
 *   part[].blk_indptr         int32  [index_heads, rows + 1]                 in, ascending from any start
 *   part[].blk_indices        int32  [blk_indptr of the last]                in, 0 .. num_blocks - 1
 *   part[].last_len           int32  [index_heads, rows]                     in, optional
 *   part[].kv_pos0            int32  [rows]                                  in, optional
 *   part[].key_pos            int32  [num_blocks * block_n]                  in, optional, needs q_pos
 *   part[].mask               uint8  lines of bits                           in, with mask_mode 2 and 3
 *   part[].mask_indptr        int64  [rows]                                  in, with mask_mode 2 and 3
 *
 * out, q, k and v are 16-byte aligned. q_stride is as in attn_paged.h. The strides of K and V are in elements
 * and are multiples of 16 bytes. 0 stands for head_stride = head_dim, slot_stride = num_kv_heads * head_dim,
 * block_stride = block_n * slot_stride. Otherwise each is at least head_dim, and any of them may be the
 * largest, so that a block may hold [slot][head] or [head][slot]. The call does not check the contents of the
 * arrays; cairn_attn_bsr_valid() does so on the host. nnz_qo, max_keys (an upper bound for every list of the
 * part) and the other scalars of the parts are bounds, from which the host lays out the grid. Only the device
 * reads the arrays, so a captured graph serves other lists within the same bounds.
 *
 * Plan:        how the call is divided depends on the scalars and on the index arrays alone. attn_plan(), and
 *              a call with planned 0, leave this plan in the workspace. A call with planned 1 may then use it
 *              instead of making its own, so that the layers of a model share one plan. It must have the same
 *              workspace, the same scalars except sm_scale and softcap, and index arrays (row_indptr to
 *              key_pos and mask_indptr, q_pos) of the same contents, wherever they lie; nothing else may have
 *              written to the workspace, but other calls may have been made in other workspaces. out, lse, q,
 *              k, v, the scales and mask may be others. A table may ignore `planned`. attn_plan() takes the
 *              arguments of a whole call, and refuses the same ones; it writes the workspace alone.
 * sms:         as in gemm.h.
 * Supported:   dtype f16, bf16; head_dim 64, 128, 256; num_qo_heads any multiple of num_kv_heads; block_m,
 *              block_n >= 1; bits only with index_heads 1. Anything else -EOPNOTSUPP. nnz_qo 0 is legal, and
 *              so is a part without rows.
 * Numerics, Tolerance: as in attn_paged.h; e4m3 is converted exactly, and each scale adds a rounding in fp32.
 *              A token that sees no key has lse -INFINITY and an all-zero output.
 * Not numbers: a NaN or an infinity in a query leaves its own row and head undefined; one in a listed key or
 *              value leaves the tokens of the block rows that list it undefined, in the heads that share the
 *              KV head. All other results are unaffected.
 * Determinism: bitwise repeatable for equal arguments. A token's result depends on the lists and masks of its
 *              own block rows only, but the grouping of its sums may depend on the lengths of all lists, on
 *              the bounds, on rows, block_m, block_n and sms, and on whether there is row_indptr.
 * Unused memory: slots that no list names, gaps, tokens that no row of part 0 holds, and bits past the last
 *              key of a line may hold anything and never reach a result.
 * Errors:      -EINVAL (null pointer, misaligned, negative or contradictory size, window without q_pos with
 *              more than one part, key_pos without q_pos), -EOPNOTSUPP, -EIO.
 * Source:      Ye et al. 2025 (FlashInfer), sections 3.1 and 3.2.
 */
#ifndef CAIRN_ATTN_BSR_H
#define CAIRN_ATTN_BSR_H

#include <stddef.h>
#include <stdint.h>

struct cairn_exact;

#define CAIRN_ATTN_PARTS	4

enum cairn_attn_mask {
	CAIRN_ATTN_ALL, CAIRN_ATTN_CAUSAL, CAIRN_ATTN_BITS, CAIRN_ATTN_CAUSAL_BITS, CAIRN_ATTN_NUM_MASKS
};

struct cairn_attn_part {
	const void *k, *v;
	const float *k_scale, *v_scale;
	const int32_t *row_indptr, *q_index;
	const int32_t *blk_indptr, *blk_indices, *last_len;
	const int32_t *kv_pos0, *key_pos;
	const uint8_t *mask;
	const int64_t *mask_indptr;
	int64_t block_stride, slot_stride, head_stride;
	int32_t rows, block_m, block_n, index_heads;
	int32_t num_blocks, max_keys, mask_mode, reserved;	/* reserved: 0 */
};

struct cairn_attn_bsr_args {
	size_t size;
	void *out;
	float *lse;
	const void *q;
	const int32_t *q_pos;
	void *workspace;
	size_t workspace_bytes;
	struct cairn_attn_part part[CAIRN_ATTN_PARTS];
	int64_t q_stride;
	int32_t num_parts, nnz_qo;
	int32_t num_qo_heads, num_kv_heads, head_dim;
	int32_t dtype, kv_fp8;		/* kv_fp8 1: K and V are e4m3 */
	float sm_scale;
	int32_t window;			/* keys that a token may see, its own included; 0: all */
	float softcap;			/* in units of a logit; 0: none */
	int32_t sms;			/* SMs that the call may use at a time; 0: all */
	int32_t planned;		/* 1: the workspace holds the plan of these lists */
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_attn_bsr(const struct cairn_attn_bsr_args *args, void *stream);
/* Writes only the plan of the call to its workspace. */
int cairn_attn_plan(const struct cairn_attn_bsr_args *args, void *stream);
/* Reads only the scalars of args. The size also depends on the number of SMs. Host tables need none. */
int cairn_attn_bsr_workspace(const struct cairn_attn_bsr_args *args, size_t *bytes);
int cairn_attn_plan_cpu(const struct cairn_attn_bsr_args *args, void *stream);
int cairn_attn_bsr_cpu(const struct cairn_attn_bsr_args *args, void *stream);
int cairn_attn_bsr_ref(const struct cairn_attn_bsr_args *args, void *stream);
/*
 * Sets exact[0] for out and exact[1] for lse (if not NULL). Tokens that no row of part 0 holds keep their
 * values.
 */
int cairn_attn_bsr_exact(const struct cairn_attn_bsr_args *args, struct cairn_exact *exact);
/* Returns 0, or the error that all of our tables return for these arguments; reads no array. */
int cairn_attn_bsr_check(const struct cairn_attn_bsr_args *args);
/* The part of cairn_attn_bsr_check() that reads only the scalars, for workspace queries. */
int cairn_attn_bsr_check_shape(const struct cairn_attn_bsr_args *args);
/*
 * Checks the contents of all index arrays, which must be in host memory. Returns 0, or -EINVAL with an error
 * text that names the part, the member and the first element out of range.
 */
int cairn_attn_bsr_valid(const struct cairn_attn_bsr_args *args);

#ifdef __cplusplus
}
#endif

/* These return strides in elements, with 0 replaced by the value it stands for. */
static inline int64_t cairn_attn_head_stride(const struct cairn_attn_part *p, int32_t head_dim)
{
	return p->head_stride ? p->head_stride : head_dim;
}

static inline int64_t cairn_attn_slot_stride(const struct cairn_attn_part *p, int32_t num_kv_heads,
					     int32_t head_dim)
{
	return p->slot_stride ? p->slot_stride : (int64_t)num_kv_heads * head_dim;
}

static inline int64_t cairn_attn_block_stride(const struct cairn_attn_part *p, int32_t num_kv_heads,
					      int32_t head_dim)
{
	return p->block_stride ? p->block_stride :
	       p->block_n * cairn_attn_slot_stride(p, num_kv_heads, head_dim);
}

#endif
