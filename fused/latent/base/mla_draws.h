/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_draws - axes of drawn cases of latent attention (conformance/suite/draw.h)
 *
 * The tests of mla_paged, mla_decode and mla_prefill draw the same sizes and the same forms of a call. Each
 * puts its own axes between or behind them. Include draw.h and paged_test.h first.
 */
#ifndef CAIRN_MLA_DRAWS_H
#define CAIRN_MLA_DRAWS_H

#define MLA_DRAW_SIZES \
	CAIRN_DRAW_SIZE(struct shape, batch, 1, 140, 1), \
	CAIRN_DRAW_SIZE(struct shape, qo, 1, 300, 1), \
	CAIRN_DRAW_SIZE(struct shape, kv, 1, 4000, 1), \
	CAIRN_DRAW_SIZE(struct shape, page, 1, 600, 1), \
	CAIRN_DRAW_SIZE(struct shape, heads, 1, 128, 1)

#define MLA_DRAW_FORMS \
	CAIRN_DRAW_ONE_OF(struct shape, scale, 0, 0, 0.25f, 0.03f), \
	CAIRN_DRAW_ONE_OF(struct shape, sms, 0, 0, 0, 1, 2, 3, 24), \
	CAIRN_DRAW_ONE_OF(struct shape, pair, 0, 1), \
	CAIRN_DRAW_ONE_OF(struct shape, equal, 0, 1), \
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, F16), \
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, LSE), \
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, SHARP), \
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, LIMITS), \
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, PAGED_RAGGED), \
	CAIRN_DRAW_ONE_OF(struct shape, flags, 0, 0, 0, PAGED_PADDED, PAGED_SPARE, PAGED_DUPLICATE, \
			  PAGED_HELD)

#endif
