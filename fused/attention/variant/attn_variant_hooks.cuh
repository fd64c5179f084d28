/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_variant_hooks - wraps the hooks of a text in a class ATTN_HOOKS, for a kernel; included after the text
 *
 * The includer defines ATTN_LOGIT, ATTN_KEEP and so on for the hooks that the text has.
 */
struct ATTN_HOOKS {
#ifdef ATTN_LOGIT
	static constexpr bool has_logit = true;
	ATTN_METHOD float logit(const struct attn_x &x, float s) { return ::ATTN_TEXT::logit(&x, s); }
#else
	static constexpr bool has_logit = false;
	ATTN_METHOD float logit(const struct attn_x &, float s) { return s; }
#endif
#ifdef ATTN_HEAD_SLOPE
	static constexpr bool has_head_slope = true;
	ATTN_METHOD float head_slope(const struct attn_x &x) { return ::ATTN_TEXT::head_slope(&x); }
#else
	static constexpr bool has_head_slope = false;
	ATTN_METHOD float head_slope(const struct attn_x &) { return 0; }
#endif
#ifdef ATTN_LOGIT_CAP
	static constexpr bool has_logit_cap = true;
	ATTN_METHOD float logit_cap(const struct attn_x &x) { return ::ATTN_TEXT::logit_cap(&x); }
#else
	static constexpr bool has_logit_cap = false;
	ATTN_METHOD float logit_cap(const struct attn_x &) { return 0; }
#endif
#ifdef ATTN_KEEP
	static constexpr bool has_keep = true;
	ATTN_METHOD bool keep(const struct attn_x &x) { return ::ATTN_TEXT::keep(&x); }
#else
	static constexpr bool has_keep = false;
	ATTN_METHOD bool keep(const struct attn_x &) { return true; }
#endif
#ifdef ATTN_RANGE
	static constexpr bool has_range = true;
	ATTN_METHOD void range(const struct attn_x &x, int *lo, int *hi) { ::ATTN_TEXT::range(&x, lo, hi); }
#else
	static constexpr bool has_range = false;
	ATTN_METHOD void range(const struct attn_x &, int *, int *) { }
#endif
#ifdef ATTN_QUERY
	static constexpr bool has_query = true;
	ATTN_METHOD void query(const struct attn_x &x, float *a, float *b, int pair)
	{
		::ATTN_TEXT::query(&x, a, b, pair);
	}
#else
	static constexpr bool has_query = false;
	ATTN_METHOD void query(const struct attn_x &, float *, float *, int) { }
#endif
#ifdef ATTN_KEY
	static constexpr bool has_key = true;
	ATTN_METHOD void key(const struct attn_x &x, float *a, float *b, int pair)
	{
		::ATTN_TEXT::key(&x, a, b, pair);
	}
#else
	static constexpr bool has_key = false;
	ATTN_METHOD void key(const struct attn_x &, float *, float *, int) { }
#endif
#ifdef ATTN_SINK
	static constexpr bool has_sink = true;
	ATTN_METHOD float sink(const struct attn_x &x) { return ::ATTN_TEXT::sink(&x); }
#else
	static constexpr bool has_sink = false;
	ATTN_METHOD float sink(const struct attn_x &) { return -CUDART_INF_F; }
#endif
#ifdef ATTN_WEIGHT
	static constexpr bool has_weight = true;
	ATTN_METHOD float weight(const struct attn_x &x, float s) { return ::ATTN_TEXT::weight(&x, s); }
#else
	static constexpr bool has_weight = false;
	ATTN_METHOD float weight(const struct attn_x &, float s) { return s; }
#endif
#ifdef ATTN_OUTPUT
	ATTN_METHOD float output(const struct attn_x &x, float o, int c)
	{
		return ::ATTN_TEXT::output(&x, o, c);
	}
#else
	ATTN_METHOD float output(const struct attn_x &, float o, int) { return o; }
#endif
};
