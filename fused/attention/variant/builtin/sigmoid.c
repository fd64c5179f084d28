/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid - weights 1 / (1 + exp(-(s + p[0]))) in the place of the softmax */
HOOK real weight(const struct attn_x *x, real s)
{
	return attn_sigmoid(s + x->p[0]);
}
