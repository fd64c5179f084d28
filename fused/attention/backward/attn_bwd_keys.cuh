/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bwd_keys - p and ds of a warpgroup whose products have 64 keys as rows and tokens as columns
 *
 * Lane l holds keys l / 4 and l / 4 + 8 of its warp's 16, and tokens 2 (l % 4) and 2 (l % 4) + 1 of every 8
 * (wgmma.cuh). lse and delta of the tokens are in shared memory.
 */
#ifndef CAIRN_ATTN_BWD_KEYS_CUH
#define CAIRN_ATTN_BWD_KEYS_CUH

#include "fused/attention/backward/attn_bwd_tile.cuh"

/* The tokens that see all 64 keys of a warpgroup. */
struct attn_bwd_sight {
	int32_t first, end;
};

ATTN_DEV struct attn_bwd_sight attn_bwd_look(const struct attn_bwd_call &a, const struct attn_bwd_request &r,
					     int key0)
{
	return { attn_bwd_first_token(a, r, key0 + 63),
		 key0 + 64 <= r.kv_len ? attn_bwd_end_token(a, r, key0) : 0 };
}

/*
 * Turns S of `tokens` tokens into P times the derivative of the softcap, and P itself into fragments.
 * s_lse is the address of the tokens' lse.
 */
template <int dtype, int tokens, bool capped>
ATTN_DEV void attn_bwd_p_tile(const struct attn_bwd_call &a, float (*s)[4], uint32_t (*fragment)[4],
			      uint32_t s_lse)
{
#pragma unroll
	for (int j = 0; j < tokens / 16; j++) {
		float p[2][4];

#pragma unroll
		for (int t = 0; t < 2; t++) {
			uint2 pair = ptx_ld_shared_v2(s_lse + (2 * j + t) * 32);

#pragma unroll
			for (int i = 0; i < 4; i++) {
				float *at = &s[2 * j + t][i], f;

				p[t][i] = attn_bwd_p(a, *at, __uint_as_float(i % 2 ? pair.y : pair.x),
						     capped ? a.cap : 0, &f);
				*at = capped ? p[t][i] * f : p[t][i];
			}
		}
		attn_p_fragment<dtype>(fragment[j], p);
	}
}

/* Returns a word with bits 0 .. n - 1 set. */
ATTN_DEV uint64_t attn_bwd_bits(int n)
{
	return n <= 0 ? 0 : n >= 64 ? ~0ull : (1ull << n) - 1;
}

/* Sets the results of attn_bwd_p_tile() to 0 where the token does not see the key; `tokens` is at most 64. */
template <int tokens>
ATTN_DEV void attn_bwd_mask(const struct attn_bwd_call &a, const struct attn_bwd_request &r, float (*s)[4],
			    uint32_t (*fragment)[4], int key0, int token)
{
	const uint32_t thread = attn_thread();

	key0 += thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int key = key0 + half * 8, end = key < r.kv_len ? attn_bwd_end_token(a, r, key) : 0;
		uint64_t seen = attn_bwd_bits(end - token) &
				~attn_bwd_bits(attn_bwd_first_token(a, r, key) - token);

		seen >>= thread % 4 * 2;
#pragma unroll
		for (int t = 0; t < tokens / 8; t++) {
			uint32_t word = (uint32_t)(seen >> t / 4 * 32), lo = word & 1 << t % 4 * 8;
			uint32_t hi = word & 2 << t % 4 * 8;

			s[t][2 * half] = lo ? s[t][2 * half] : 0;
			s[t][2 * half + 1] = hi ? s[t][2 * half + 1] : 0;
			fragment[t / 2][t % 2 * 2 + half] &= (lo ? 0xffff : 0) | (hi ? 0xffff0000 : 0);
		}
	}
}

/* Returns whether the tokens from `token` to end - 1 see all keys. */
ATTN_DEV bool attn_bwd_all(const struct attn_bwd_sight &w, int token, int end)
{
	return (token >= w.first) & (end <= w.end);
}

/*
 * Computes P for the tokens from `token` on and the keys from key0 on, in the form of attn_bwd_p_tile(), and
 * masks it unless `all`.
 */
template <int dtype, int tokens>
ATTN_DEV void attn_bwd_bend(const struct attn_bwd_call &a, const struct attn_bwd_request &r, float (*s)[4],
			    uint32_t (*fragment)[4], int key0, int token, uint32_t s_lse, bool all)
{
	s_lse += (uint32_t)attn_thread() % 4 * 8;
	if (a.cap == 0)
		attn_bwd_p_tile<dtype, tokens, false>(a, s, fragment, s_lse);
	else
		attn_bwd_p_tile<dtype, tokens, true>(a, s, fragment, s_lse);
	if (!all)
		attn_bwd_mask<tokens>(a, r, s, fragment, key0, token);
}

/*
 * Turns dP into dS, and dS into fragments. pf is the S that attn_bwd_bend() has turned into P f; s_delta is
 * the address of the tokens' delta.
 */
template <int dtype, int tokens>
ATTN_DEV void attn_bwd_ds(float (*dp)[4], float (*pf)[4], uint32_t (*fragment)[4], uint32_t s_delta, bool all)
{
	s_delta += (uint32_t)attn_thread() % 4 * 8;
#pragma unroll
	for (int j = 0; j < tokens / 8; j++) {
		uint2 pair = ptx_ld_shared_v2(s_delta + j * 32);

#pragma unroll
		for (int i = 0; i < 4; i++)
			dp[j][i] = pf[j][i] * (dp[j][i] - __uint_as_float(i % 2 ? pair.y : pair.x));
		/* V of a key that no token sees may be NaN */
		if (!all) {
#pragma unroll
			for (int i = 0; i < 4; i++)
				dp[j][i] = pf[j][i] == 0 ? 0 : dp[j][i];
		}
		if (j % 2)
			attn_p_fragment<dtype>(fragment[j / 2], dp + j - 1);
	}
}

#endif
