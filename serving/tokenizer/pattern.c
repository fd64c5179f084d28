/* SPDX-License-Identifier: Apache-2.0 */
/* pattern - compiles a regex of tokenizer.json for PCRE2 and cuts texts at its matches */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "serving/tokenizer/pattern.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/utf8.h"

#define MAX_PATTERN	65536	/* bytes; the longest known, DeepSeek's, has 1.5 KB */
#define MATCH_LIMIT	10000000
#define HEAP_LIMIT_KB	(128 * 1024)

struct cairn_pattern {
	char *where;
	pcre2_code *code;		/* NULL: a literal */
	pcre2_match_context *limits;
	char *literal;
	size_t literal_len;
};

static struct cairn_pattern *new_pattern(const char *where)
{
	struct cairn_pattern *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->where = strdup(where);
	if (p->where)
		return p;
	free(p);
	return NULL;
}

int cairn_pattern_literal(const char *bytes, size_t len, const char *where,
			  struct cairn_pattern **out)
{
	struct cairn_pattern *p;

	if (len == 0)
		return cairn_error(EINVAL, "%s: is empty", where);
	p = new_pattern(where);
	if (p)
		p->literal = malloc(len);
	if (!p || !p->literal) {
		cairn_pattern_free(p);
		return cairn_error(ENOMEM, "%s: no memory", where);
	}
	memcpy(p->literal, bytes, len);
	p->literal_len = len;
	*out = p;
	return 0;
}

int cairn_pattern_compile(const char *regex, size_t len, const char *where,
			  struct cairn_pattern **out)
{
	pcre2_compile_context *context = NULL;
	struct cairn_pattern *p = NULL;
	char *translated = NULL;
	size_t translated_len = 0;
	int code = 0, ret;
	char reason[128];
	PCRE2_SIZE at = 0;

	if (len == 0 || len > MAX_PATTERN)
		return cairn_error(EINVAL, "%s: %zu bytes, must be 1 to %d", where, len,
				   MAX_PATTERN);
	CAIRN_TRY(cairn_pattern_translate(regex, len, where, &translated, &translated_len));
	p = new_pattern(where);
	context = pcre2_compile_context_create(NULL);
	if (p)
		p->limits = pcre2_match_context_create(NULL);
	if (!p || !context || !p->limits) {
		ret = cairn_error(ENOMEM, "%s: no memory", where);
		goto out;
	}
	pcre2_set_match_limit(p->limits, MATCH_LIMIT);
	pcre2_set_depth_limit(p->limits, MATCH_LIMIT);
	pcre2_set_heap_limit(p->limits, HEAP_LIMIT_KB);
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
	pcre2_set_parens_nest_limit(context, 100);
	p->code = pcre2_compile((PCRE2_SPTR)translated, translated_len,
				PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE,
				&code, &at, context);
	if (!p->code) {
		pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof(reason));
		ret = cairn_error(code == PCRE2_ERROR_HEAP_FAILED ? ENOMEM : EINVAL, "%s: %s",
				  where, reason);
		goto out;
	}
	/* may fail if there is no JIT or it is forbidden; the interpreter finds the same matches */
	pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
	*out = p;
	p = NULL;
	ret = 0;
out:
	cairn_pattern_free(p);
	pcre2_compile_context_free(context);
	free(translated);
	return ret;
}

void cairn_pattern_free(struct cairn_pattern *p)
{
	if (!p)
		return;
	pcre2_match_context_free(p->limits);
	pcre2_code_free(p->code);
	free(p->literal);
	free(p->where);
	free(p);
}

int cairn_spans_add(struct cairn_spans *spans, size_t begin, size_t end, bool match)
{
	if (spans->num == spans->cap) {
		size_t cap = spans->cap ? spans->cap * 2 : 64;
		struct cairn_span *grown = realloc(spans->v, cap * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "pattern: no memory for %zu spans", cap);
		spans->v = grown;
		spans->cap = cap;
	}
	spans->v[spans->num++] = (struct cairn_span){ begin, end, match };
	return 0;
}

void cairn_spans_free(struct cairn_spans *spans)
{
	pcre2_match_data_free(spans->scratch);
	free(spans->v);
}

/* Finds the first match at or after pos. Returns 1, 0 if there is none, or a negative errno. */
static int find(const struct cairn_pattern *p, const char *text, size_t len, size_t pos,
		pcre2_match_data *data, size_t *begin, size_t *end)
{
	char reason[128];
	int rc;

	if (!p->code) {
		for (; len - pos >= p->literal_len; pos++) {
			const char *hit =
				memchr(text + pos, *p->literal, len - pos - p->literal_len + 1);

			if (!hit)
				return 0;
			pos = (size_t)(hit - text);
			if (memcmp(hit, p->literal, p->literal_len))
				continue;
			*begin = pos;
			*end = pos + p->literal_len;
			return 1;
		}
		return 0;
	}
	rc = pcre2_match(p->code, (PCRE2_SPTR)text, len, pos, PCRE2_NO_UTF_CHECK, data, p->limits);
	if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
		rc = pcre2_match(p->code, (PCRE2_SPTR)text, len, pos,
				 PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, p->limits);
	if (rc == PCRE2_ERROR_NOMATCH)
		return 0;
	if (rc < 0) {
		pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof(reason));
		return cairn_error(rc == PCRE2_ERROR_NOMEMORY ? ENOMEM : EINVAL,
				   "%s: gave up on the text: %s", p->where, reason);
	}
	*begin = pcre2_get_ovector_pointer(data)[0];
	*end = pcre2_get_ovector_pointer(data)[1];
	return 1;
}

int cairn_pattern_spans(const struct cairn_pattern *p, const char *text, size_t len,
			struct cairn_spans *spans)
{
	size_t pos = 0, last = SIZE_MAX, done = 0, begin = 0, end = 0;
	int found;

	spans->num = 0;
	if (len == 0)
		return cairn_spans_add(spans, 0, 0, false);
	if (!spans->scratch)
		spans->scratch = pcre2_match_data_create(1, NULL);
	if (!spans->scratch)
		return cairn_error(ENOMEM, "%s: no memory", p->where);
	while (pos <= len) {
		found = find(p, text, len, pos, spans->scratch, &begin, &end);
		if (found < 0)
			return found;
		if (!found)
			break;
		if (end < begin)	/* \K in a lookahead could cause it; translated patterns have none */
			return cairn_error(EINVAL, "%s: a match ends before it begins",
					   p->where);
		if (begin == end && end == last) {
			/* an empty match directly after the last match: try again one character further */
			if (pos >= len)
				break;
			pos += cairn_utf8_len(text + pos);
			continue;
		}
		if (done != begin)
			CAIRN_TRY(cairn_spans_add(spans, done, begin, false));
		CAIRN_TRY(cairn_spans_add(spans, begin, end, true));
		done = pos = last = end;
	}
	if (done != len)
		CAIRN_TRY(cairn_spans_add(spans, done, len, false));
	return 0;
}
