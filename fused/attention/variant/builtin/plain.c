/* SPDX-License-Identifier: Apache-2.0 */
/* plain - a window of p[0] keys (0: none) and sinks, a logit t[0][head] without a value (NULL: none) */
HOOK void range(const struct attn_x *x, int *lo, int *hi)
{
	(void)hi;
	if (x->p[0] > 0 && x->q_pos - (int)x->p[0] + 1 > *lo)
		*lo = x->q_pos - (int)x->p[0] + 1;
}

HOOK real sink(const struct attn_x *x)
{
	return x->t[0] ? (real)x->t[0][x->head] : -attn_infinity;
}
