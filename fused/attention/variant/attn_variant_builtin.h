/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_builtin - makes the host's tables of hooks of the built-in texts
 *
 * The includer defines `real` and ATTN_TABLE_OF(text), the name of the table of a text.
 */
#include "fused/attention/variant/attn_variant_text.h"

#define JOIN_(a, b)	a##_##b
#define JOIN(a, b)	JOIN_(a, b)
#define ATTN_HOOK(name)	JOIN(ATTN_TEXT, name)
#define ATTN_TABLE	ATTN_TABLE_OF(ATTN_TEXT)
#define head_slope	ATTN_HOOK(head_slope)
#define logit		ATTN_HOOK(logit)
#define logit_cap	ATTN_HOOK(logit_cap)
#define keep		ATTN_HOOK(keep)
#define range		ATTN_HOOK(range)
#define query		ATTN_HOOK(query)
#define key		ATTN_HOOK(key)
#define sink		ATTN_HOOK(sink)
#define weight		ATTN_HOOK(weight)
#define set_nudge	ATTN_HOOK(set_nudge)

#define ATTN_TEXT	plain
#define ATTN_RANGE
#define ATTN_SINK
#include "fused/attention/variant/builtin/plain.c"
#include "fused/attention/variant/attn_variant_hooks.h"

#undef ATTN_TEXT
#define ATTN_TEXT	rope
#define ATTN_QUERY
#define ATTN_KEY
#include "fused/attention/variant/builtin/rope.c"
#include "fused/attention/variant/attn_variant_hooks.h"

#undef ATTN_TEXT
#define ATTN_TEXT	alibi
#define ATTN_HEAD_SLOPE
#include "fused/attention/variant/builtin/alibi.c"
#include "fused/attention/variant/attn_variant_hooks.h"

#undef ATTN_TEXT
#define ATTN_TEXT	softcap
#define ATTN_LOGIT_CAP
#include "fused/attention/variant/builtin/softcap.c"
#include "fused/attention/variant/attn_variant_hooks.h"

#undef ATTN_TEXT
#define ATTN_TEXT	sigmoid
#define ATTN_WEIGHT
#include "fused/attention/variant/builtin/sigmoid.c"
#include "fused/attention/variant/attn_variant_hooks.h"

#undef ATTN_TEXT
#define ATTN_TEXT	bits
#define ATTN_KEEP
#include "fused/attention/variant/builtin/bits.c"
#include "fused/attention/variant/attn_variant_hooks.h"
