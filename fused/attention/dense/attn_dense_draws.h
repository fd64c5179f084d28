/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_dense_draws - axes of drawn cases of attn_dense and attn_bwd (conformance/suite/draw.h)
 *
 * Each of the two tests puts its own axes between or behind these. hq is drawn as the query heads of one KV
 * head, and a v of 0 means qk's width; dense_draw_fits() makes a shape of them. Include draw.h first, and
 * this file after struct shape.
 */
#ifndef CAIRN_ATTN_DENSE_DRAWS_H
#define CAIRN_ATTN_DENSE_DRAWS_H

#define DENSE_DRAW_SIZES \
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 140, 1), \
	CAIRN_DRAW_SIZE(struct shape, qo, 1, 700, 1), \
	CAIRN_DRAW_SIZE(struct shape, kv, 1, 9000, 1), \
	CAIRN_DRAW_SIZE(struct shape, hkv, 1, 40, 1), \
	CAIRN_DRAW_SIZE(struct shape, hq, 1, 40, 1), \
	CAIRN_DRAW_ONE_OF(struct shape, qk, 64, 80, 96, 112, 128, 192, 256), \
	CAIRN_DRAW_ONE_OF(struct shape, v, 0, 0, 64, 80, 96, 112, 128, 192, 256), \
	CAIRN_DRAW_SIZE(struct shape, window, 0, 3000, 1), \
	CAIRN_DRAW_ONE_OF(struct shape, cap, 0, 0, 0, 30, 5, 0.7f), \
	CAIRN_DRAW_ONE_OF(struct shape, scale, 0, 0, 0.3f, 1.3f), \
	CAIRN_DRAW_ONE_OF(struct shape, layout, CONTIGUOUS, CONTIGUOUS, ROW_GAPS, HEAD_GAPS, HEADS_FIRST, \
			  LONE_K, LONE_V, LONE_K_HEAD, LONE_V_HEAD, JOINED), \
	CAIRN_DRAW_ONE_OF(struct shape, q_gap, 0, 0, 8, 72), \
	CAIRN_DRAW_ONE_OF(struct shape, explicit_stride, 0, 1), \
	CAIRN_DRAW_ONE_OF(struct shape, equal, 0, 1), \
	CAIRN_DRAW_ONE_OF(struct shape, logits, 0, 0, LIMITS), \
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 1, 2, 3, 24), \
	CAIRN_DRAW_ONE_OF(struct shape, flags, CAUSAL, CAUSAL, CAUSAL, 0)

#define DENSE_DRAW_FORMS \
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16), \
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_RAGGED), \
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, PAGED_PADDED)

/*
 * Completes a drawn shape and says whether it is small enough: at most room * work products, and few keys.
 * Where there is more room, most shapes have one request and one or two heads, and not much less work than
 * allowed: they have many keys together with many rows.
 */
static inline int dense_draw_fits(struct shape *s, int room, int64_t work)
{
	int64_t products, least = 0;

	s->pair = 1;
	s->hq *= s->hkv;
	s->v = s->v ? s->v : s->qk;
	s->window = s->window % 3 ? s->window : 0;
	if (room > 1 && s->batch % 4) {
		s->batch = s->hkv = 1;
		s->hq = 1 + s->hq % 2;
		least = room * work / 6;
	}
	products = (int64_t)s->batch * s->qo * (s->kv + 16) * s->hq * (s->qk + s->v);
	return products >= least && products <= room * work &&
	       (int64_t)s->batch * s->kv * s->hkv * s->qk <= room * 500000;
}

#endif
