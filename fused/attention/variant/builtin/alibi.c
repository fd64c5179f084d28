/* SPDX-License-Identifier: Apache-2.0 */
/* alibi - a bias of slope * distance on each logit, where t[0][head] is the slope of the query head */
HOOK real head_slope(const struct attn_x *x)
{
	return x->t[0][x->head];
}
