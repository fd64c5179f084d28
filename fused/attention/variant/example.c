/* SPDX-License-Identifier: Apache-2.0 */
/* example - a text for `cairn attn-variant`: ALiBi (slopes t[0]) under a softcap of p[0] */
real logit(const struct attn_x *x, real s)
{
	return attn_cap_at(s + attn_bias(x, x->t[0][x->head]), x->p[0]);
}
