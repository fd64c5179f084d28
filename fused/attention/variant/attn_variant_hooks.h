/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_hooks - makes a table of the hooks of a text, on the host; included after the text
 *
 * The includer defines ATTN_TABLE, the name of the table, and ATTN_LOGIT, ATTN_KEEP and so on for the hooks
 * that the text has. This header undefines the macros of the hooks.
 */
#ifdef ATTN_EXACT
#define ATTN_SET_NUDGE	set_nudge
static void set_nudge(double share)
{
	attn_nudge = share;
}
#else
#define ATTN_SET_NUDGE	0
#endif

const struct attn_hooks ATTN_TABLE = {
#ifdef ATTN_HEAD_SLOPE
	head_slope,
#else
	0,
#endif
#ifdef ATTN_LOGIT
	logit,
#else
	0,
#endif
#ifdef ATTN_LOGIT_CAP
	logit_cap,
#else
	0,
#endif
#ifdef ATTN_KEEP
	keep,
#else
	0,
#endif
#ifdef ATTN_RANGE
	range,
#else
	0,
#endif
#ifdef ATTN_QUERY
	query,
#else
	0,
#endif
#ifdef ATTN_KEY
	key,
#else
	0,
#endif
#ifdef ATTN_SINK
	sink,
#else
	0,
#endif
#ifdef ATTN_WEIGHT
	weight,
#else
	0,
#endif
#ifdef ATTN_OUTPUT
	output,
#else
	0,
#endif
	ATTN_SET_NUDGE
};
#undef ATTN_SET_NUDGE
#undef ATTN_HEAD_SLOPE
#undef ATTN_LOGIT
#undef ATTN_LOGIT_CAP
#undef ATTN_KEEP
#undef ATTN_RANGE
#undef ATTN_QUERY
#undef ATTN_KEY
#undef ATTN_SINK
#undef ATTN_WEIGHT
#undef ATTN_OUTPUT
