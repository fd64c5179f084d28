/* SPDX-License-Identifier: Apache-2.0 */
/* softcap - logits bent to less than p[0] */
HOOK real logit(const struct attn_x *x, real s)
{
	return attn_cap_at(s, x->p[0]);
}
