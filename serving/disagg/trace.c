// SPDX-License-Identifier: Apache-2.0
/* trace - readers of the two formats (trace.h) */
#include "serving/disagg/trace.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

struct reader {
	const char *path;
	int32_t line;
	struct cairn_trace *trace;
	int32_t room;
};

static int wrong(const struct reader *r, const char *what)
{
	return cairn_error(EINVAL, "%s:%d: %s", r->path, r->line, what);
}

static int add(struct reader *r, int64_t prompt, int64_t answer)
{
	struct cairn_trace *t = r->trace;
	int32_t sum = (int32_t)(prompt + answer);

	if (t->num_requests == r->room) {
		int32_t room = r->room ? 2 * r->room : 1024;
		void *more = realloc(t->requests, (size_t)room * sizeof(*t->requests));

		if (!more)
			return cairn_error(ENOMEM, "%s: out of memory", r->path);
		t->requests = more;
		r->room = room;
	}
	t->requests[t->num_requests++] = (struct cairn_trace_request){ (int32_t)prompt, (int32_t)answer };
	t->mean_prompt += (double)prompt;
	t->mean_answer += (double)answer;
	t->longest = sum > t->longest ? sum : t->longest;
	t->longest_answer = answer > t->longest_answer ? (int32_t)answer : t->longest_answer;
	return 0;
}

/* Reads digits up to `end`, and steps over it. */
static int take_tokens(const struct reader *r, char **at, char end, const char *field, int64_t *value)
{
	char *p = *at;
	int64_t v = 0;

	for (; *p >= '0' && *p <= '9' && v <= CAIRN_TRACE_MOST_TOKENS; p++)
		v = 10 * v + (*p - '0');
	if (p == *at || *p != end || v < 1 || v > CAIRN_TRACE_MOST_TOKENS)
		return cairn_error(EINVAL, "%s:%d: %s: not a whole number from 1 to %d", r->path, r->line,
				   field, CAIRN_TRACE_MOST_TOKENS);
	*at = p + 1;
	*value = v;
	return 0;
}

static const char header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

static int csv_line(struct reader *r, char *line, size_t len)
{
	int64_t prompt = 0, answer = 0;
	char *at;

	(void)len;
	if (r->line == 1)
		return strcmp(line, header) ? wrong(r, "the header is not that of an Azure trace") : 0;
	at = strchr(line, ',');
	if (!at || at == line)
		return wrong(r, "TIMESTAMP: missing");
	at++;
	CAIRN_TRY(take_tokens(r, &at, ',', "ContextTokens", &prompt));
	CAIRN_TRY(take_tokens(r, &at, 0, "GeneratedTokens", &answer));
	return add(r, prompt, answer);
}

static int json_line(struct reader *r, char *line, size_t len)
{
	int64_t prompt = 0, answer = 0;
	double timestamp;
	char name[4096];
	struct cairn_json_at at = { name, "" };
	json_t *root, *hashes;
	int ret;

	snprintf(name, sizeof(name), "%s:%d", r->path, r->line);
	CAIRN_TRY(cairn_json_parse(line, len, name, false, &root));
	ret = cairn_json_number(root, at, "timestamp", true, -1, 1e18, &timestamp);
	if (!ret)
		ret = cairn_json_int(root, at, "input_length", true, 1, CAIRN_TRACE_MOST_TOKENS, &prompt);
	if (!ret)
		ret = cairn_json_int(root, at, "output_length", true, 1, CAIRN_TRACE_MOST_TOKENS, &answer);
	if (!ret)
		ret = cairn_json_child(root, at, "hash_ids", true, JSON_ARRAY, &hashes);
	json_decref(root);
	return ret ? ret : add(r, prompt, answer);
}

static int read_lines(struct reader *r, char *text, size_t num_bytes, int32_t most)
{
	int (*take)(struct reader *, char *, size_t) = text[0] == '{' ? json_line : csv_line;
	char *end = text + num_bytes;

	for (char *at = text; at < end && r->trace->num_requests < most;) {
		char *stop = memchr(at, '\n', (size_t)(end - at));
		size_t len;

		stop = stop ? stop : end;
		len = (size_t)(stop - at);
		len -= len && at[len - 1] == '\r';
		r->line++;
		if (memchr(at, 0, len))
			return wrong(r, "has a NUL byte");
		at[len] = 0;
		CAIRN_TRY(take(r, at, len));
		at = stop + 1;
	}
	if (!r->trace->num_requests)
		return cairn_error(EINVAL, "%s: has no request", r->path);
	r->trace->mean_prompt /= r->trace->num_requests;
	r->trace->mean_answer /= r->trace->num_requests;
	return 0;
}

int cairn_trace_parse(struct cairn_trace **out, char *text, size_t num_bytes, const char *path, int32_t most)
{
	struct reader r = { .path = path, .trace = calloc(1, sizeof(*r.trace)) };
	int ret;

	if (!r.trace)
		return cairn_error(ENOMEM, "%s: out of memory", path);
	ret = read_lines(&r, text, num_bytes, most);
	if (ret)
		cairn_trace_free(r.trace);
	else
		*out = r.trace;
	return ret;
}

int cairn_trace_read(struct cairn_trace **out, const char *path, int32_t most)
{
	size_t num_bytes;
	char *text;
	int ret;

	CAIRN_TRY(cairn_read_file(path, CAIRN_TRACE_MOST_BYTES, &text, &num_bytes));
	ret = cairn_trace_parse(out, text, num_bytes, path, most);
	free(text);
	return ret;
}

void cairn_trace_free(struct cairn_trace *trace)
{
	if (!trace)
		return;
	free(trace->requests);
	free(trace);
}
