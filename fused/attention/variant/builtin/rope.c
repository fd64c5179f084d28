/* SPDX-License-Identifier: Apache-2.0 */
/* rope - q and k rotated by position * t[0][pair], where t[0] holds head_dim / 2 inverse frequencies */
HOOK void query(const struct attn_x *x, real *a, real *b, int pair)
{
	attn_rotate(a, b, (float)x->q_pos * attn_at(x->t[0], pair));
}

HOOK void key(const struct attn_x *x, real *a, real *b, int pair)
{
	attn_rotate(a, b, (float)x->k_pos * attn_at(x->t[0], pair));
}
