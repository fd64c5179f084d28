/* SPDX-License-Identifier: Apache-2.0 */
/* bits - a key is seen if its bit is set: t[0] holds p[0] words of 32 bits for each row of q, LSB first */
HOOK int keep(const struct attn_x *x)
{
	return attn_bit(x->t[0] + (long)x->row * (int)x->p[0], x->k_pos);
}
