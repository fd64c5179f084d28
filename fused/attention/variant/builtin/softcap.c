/* SPDX-License-Identifier: Apache-2.0 */
/* softcap - logits bent to less than p[0] */
HOOK real logit(const struct attn_x *x, real s)
{
	return x->p[0] * attn_tanh(s * (1 / x->p[0]));
}
