/* SPDX-License-Identifier: Apache-2.0 */
/* alibi - a bias of t[0][head], the slope of the query head, for each key of distance */
HOOK real logit(const struct attn_x *x, real s)
{
	return s + attn_bias(x, x->t[0][x->head]);
}
