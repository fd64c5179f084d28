/* SPDX-License-Identifier: Apache-2.0 */
/* alibi - a bias of t[0][head], the slope of the query head, for each key of distance */
HOOK real head_slope(const struct attn_x *x)
{
	return x->t[0][x->head];
}
