// SPDX-License-Identifier: Apache-2.0
/* api_response - writes bodies, chunks, events and errors as JSON */
#include "serving/api/api_response.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_response_impl.h"
#include "serving/base/utf8.h"

void cairn_api_out_free(struct cairn_api_out *out)
{
	free(out->s);
	*out = (struct cairn_api_out) { 0 };
}

void cairn_api_put(struct cairn_api_out *out, const char *json, size_t num_bytes)
{
	if (out->failed)
		return;
	if (out->cap - out->len <= num_bytes) {
		size_t cap = 2 * (out->len + num_bytes) + 256;
		char *grown = realloc(out->s, cap);

		if (!grown) {
			out->failed = true;
			return;
		}
		out->s = grown;
		out->cap = cap;
	}
	memcpy(out->s + out->len, json, num_bytes);
	out->len += num_bytes;
	out->s[out->len] = 0;
}

void cairn_api_puts(struct cairn_api_out *out, const char *json)
{
	cairn_api_put(out, json, strlen(json));
}

void cairn_api_print(struct cairn_api_out *out, const char *fmt, ...)
{
	char buf[128];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(buf, sizeof(buf), fmt, ap);
	va_end(ap);
	cairn_api_puts(out, buf);
}

/* Returns the number of leading bytes that need no escape. */
static size_t plain_run(const unsigned char *s, size_t n)
{
	size_t i = 0;

	while (i < n && s[i] >= 0x20 && s[i] < 0x7f && s[i] != '"' && s[i] != '\\')
		i++;
	return i;
}

void cairn_api_put_escaped(struct cairn_api_out *out, const char *s, size_t n)
{
	static const char plain[] = "\"\\\n\r\t\b\f", names[] = "\"\\nrtbf";

	for (size_t i = 0; i < n;) {
		size_t run = plain_run((const unsigned char *)s + i, n - i);
		const char *known;
		int truncated, len;
		uint32_t cp;

		cairn_api_put(out, s + i, run);
		i += run;
		if (i == n)
			return;
		len = cairn_utf8_next(s + i, n - i, &cp, &truncated);
		known = len == 1 && cp ? strchr(plain, (int)cp) : NULL;
		if (len < 0)
			cairn_api_put(out, CAIRN_UTF8_REPLACEMENT, 3);
		else if (known)
			cairn_api_put(out, (const char[]) { '\\', names[known - plain] }, 2);
		else if (cp < 0x20 || cp == 0x7f || cp == 0x85 || cp == 0x2028 || cp == 0x2029)
			cairn_api_print(out, "\\u%04x", cp);
		else
			cairn_api_put(out, s + i, (size_t)len);
		i += (size_t)abs(len);
	}
}

void cairn_api_put_string(struct cairn_api_out *out, const char *s, size_t num_bytes)
{
	cairn_api_put(out, "\"", 1);
	cairn_api_put_escaped(out, s, num_bytes);
	cairn_api_put(out, "\"", 1);
}

static void put_text(struct cairn_api_out *out, const char *s)
{
	cairn_api_put_string(out, s, strlen(s));
}

void cairn_api_id(enum cairn_api_kind kind, const uint64_t random[2], char id[CAIRN_API_ID_LEN])
{
	snprintf(id, CAIRN_API_ID_LEN, "%s%016llx%016llx",
		 kind == CAIRN_API_CHAT ? "chatcmpl-" : kind == CAIRN_API_RESPONSES ? "resp_" : "cmpl-",
		 (unsigned long long)random[0], (unsigned long long)random[1]);
}

/* Writes {"id":...,"object":...,"created":...,"model":...,"choices":[ */
static void put_head(struct cairn_api_out *out, const char *object, const char *id, int64_t created,
		     const char *model)
{
	cairn_api_puts(out, "{\"id\":");
	put_text(out, id);
	cairn_api_print(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)created);
	put_text(out, model);
	cairn_api_puts(out, ",\"choices\":[");
}

int cairn_api_answer_init(struct cairn_api_answer *a, const struct cairn_api_request *request, const char *id,
			  int64_t created)
{
	struct cairn_api_out whole = { 0 }, chunk = { 0 };
	const char *model = request->model ? request->model : "";
	bool chat = request->kind == CAIRN_API_CHAT;

	put_head(&whole, chat ? "chat.completion" : "text_completion", id, created, model);
	cairn_api_puts(&chunk, "data: ");
	put_head(&chunk, chat ? "chat.completion.chunk" : "text_completion", id, created, model);
	if (whole.failed || chunk.failed) {
		cairn_api_out_free(&whole);
		cairn_api_out_free(&chunk);
		return cairn_error(ENOMEM, "api: no memory for an answer");
	}
	*a = (struct cairn_api_answer) {
		.kind = request->kind,
		.include_usage = request->stream && request->include_usage,
		.continuous_usage = request->stream && request->continuous_usage,
		.head = whole.s,
		.chunk_head = chunk.s,
		.head_len = whole.len,
		.chunk_head_len = chunk.len,
	};
	return 0;
}

void cairn_api_answer_free(struct cairn_api_answer *a)
{
	free(a->head);
	free(a->chunk_head);
	*a = (struct cairn_api_answer) { 0 };
}

static void put_prompt_logprobs(struct cairn_api_out *out, const struct cairn_api_choice *c)
{
	if (!c->prompt_logprobs)
		return;
	cairn_api_puts(out, ",\"prompt_logprobs\":");
	cairn_api_put(out, c->prompt_logprobs->s, c->prompt_logprobs->len);
}

/* Writes "logprobs":...,"finish_reason":...,"stop_reason":...} */
static void put_end(struct cairn_api_out *out, const struct cairn_api_answer *a,
		    const struct cairn_api_choice *c)
{
	static const char *const reasons[] = { "null",	"\"stop\"",  "\"length\"",
					       "\"abort\"", "\"error\"", "\"tool_calls\"" };

	cairn_api_puts(out, ",\"logprobs\":");
	if (!c->logprobs)
		cairn_api_puts(out, "null");
	else if (a->kind == CAIRN_API_CHAT)
		cairn_api_put_chat_logprobs(out, c);
	else
		cairn_api_put_text_logprobs(out, c);
	cairn_api_print(out, ",\"finish_reason\":%s", reasons[c->finish]);
	if (c->finish != CAIRN_API_GOES_ON) {
		cairn_api_puts(out, ",\"stop_reason\":");
		if (c->finish == CAIRN_API_STOP && c->stop)
			cairn_api_put_string(out, c->stop->bytes, c->stop->num_bytes);
		else if (c->finish == CAIRN_API_STOP && c->stop_id >= 0)
			cairn_api_print(out, "%d", (int)c->stop_id);
		else
			cairn_api_puts(out, "null");
	}
	if (a->kind != CAIRN_API_CHAT)
		put_prompt_logprobs(out, c);
	cairn_api_puts(out, "}");
}

static void put_usage(struct cairn_api_out *out, const struct cairn_api_usage *u)
{
	cairn_api_print(out, "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,",
			(long long)u->prompt_tokens, (long long)u->completion_tokens,
			(long long)(u->prompt_tokens + u->completion_tokens));
	cairn_api_print(out, "\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
			(long long)u->cached_tokens);
}

void cairn_api_chunk(struct cairn_api_out *out, const struct cairn_api_answer *a,
		     const struct cairn_api_choice *c, bool first, const struct cairn_api_usage *usage)
{
	cairn_api_put(out, a->chunk_head, a->chunk_head_len);
	cairn_api_print(out, "{\"index\":%d,", (int)c->index);
	if (a->kind == CAIRN_API_CHAT) {
		cairn_api_put_delta(out, c, first);
	} else {
		cairn_api_puts(out, "\"text\":");
		cairn_api_put_string(out, c->text, c->num_bytes);
	}
	put_end(out, a, c);
	if (a->continuous_usage && usage) {
		cairn_api_puts(out, "],\"usage\":");
		put_usage(out, usage);
		cairn_api_puts(out, "}\n\n");
	} else {
		cairn_api_puts(out, a->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
	}
}

void cairn_api_usage_chunk(struct cairn_api_out *out, const struct cairn_api_answer *a,
			   const struct cairn_api_usage *usage)
{
	cairn_api_put(out, a->chunk_head, a->chunk_head_len);
	cairn_api_puts(out, "],\"usage\":");
	put_usage(out, usage);
	cairn_api_puts(out, "}\n\n");
}

void cairn_api_done(struct cairn_api_out *out)
{
	cairn_api_puts(out, "data: [DONE]\n\n");
}

void cairn_api_keep_alive(struct cairn_api_out *out)
{
	cairn_api_puts(out, ": waiting\n\n");
}

void cairn_api_error_body(struct cairn_api_out *out, const struct cairn_api_error *error)
{
	cairn_api_puts(out, "{\"error\":{\"message\":");
	put_text(out, error->message);
	cairn_api_puts(out, ",\"type\":");
	put_text(out, error->type);
	cairn_api_puts(out, ",\"param\":");
	if (error->param[0])
		put_text(out, error->param);
	else
		cairn_api_puts(out, "null");
	cairn_api_puts(out, ",\"code\":");
	if (error->code)
		put_text(out, error->code);
	else
		cairn_api_puts(out, "null");
	cairn_api_puts(out, "}}");
}

void cairn_api_error_event(struct cairn_api_out *out, const struct cairn_api_error *error)
{
	cairn_api_puts(out, "data: ");
	cairn_api_error_body(out, error);
	cairn_api_puts(out, "\n\n");
}

void cairn_api_body(struct cairn_api_out *out, const struct cairn_api_answer *a,
		    const struct cairn_api_choice *choices, size_t num_choices,
		    const struct cairn_api_usage *usage)
{
	cairn_api_put(out, a->head, a->head_len);
	for (size_t i = 0; i < num_choices; i++) {
		const struct cairn_api_choice *c = &choices[i];

		cairn_api_print(out, "%s{\"index\":%d,", i ? "," : "", (int)c->index);
		if (a->kind == CAIRN_API_CHAT) {
			cairn_api_put_message(out, c);
		} else {
			cairn_api_puts(out, "\"text\":");
			cairn_api_put_string(out, c->text, c->num_bytes);
		}
		put_end(out, a, c);
	}
	cairn_api_puts(out, "],\"usage\":");
	put_usage(out, usage);
	/* as in vLLM: a completion has prompt_logprobs in each choice, a chat beside the choices */
	if (a->kind == CAIRN_API_CHAT)
		put_prompt_logprobs(out, choices);
	cairn_api_puts(out, "}");
}

void cairn_api_models_body(struct cairn_api_out *out, const struct cairn_api_limits *limits, int64_t created)
{
	cairn_api_puts(out, "{\"object\":\"list\",\"data\":[");
	for (int i = 0; i < limits->num_models; i++) {
		cairn_api_puts(out, i ? ",{\"id\":" : "{\"id\":");
		put_text(out, limits->models[i]);
		cairn_api_print(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"cairn\",",
				(long long)created);
		cairn_api_print(out, "\"max_model_len\":%d}", (int)limits->max_context);
	}
	cairn_api_puts(out, "]}");
}

void cairn_api_tokenize_body(struct cairn_api_out *out, const int32_t *ids, size_t num_ids,
			     const struct cairn_api_token *strs, int32_t max_context)
{
	cairn_api_print(out, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", num_ids, (int)max_context);
	for (size_t i = 0; i < num_ids; i++)
		cairn_api_print(out, "%s%d", i ? "," : "", (int)ids[i]);
	cairn_api_puts(out, "],\"token_strs\":");
	cairn_api_puts(out, strs ? "[" : "null");
	for (size_t i = 0; strs && i < num_ids; i++) {
		cairn_api_puts(out, i ? "," : "");
		cairn_api_put_token(out, &strs[i]);
	}
	cairn_api_puts(out, strs ? "]}" : "}");
}

void cairn_api_detokenize_body(struct cairn_api_out *out, const char *text, size_t num_bytes)
{
	cairn_api_puts(out, "{\"prompt\":");
	cairn_api_put_string(out, text, num_bytes);
	cairn_api_puts(out, "}");
}
