// SPDX-License-Identifier: Apache-2.0
/* api_items - writes the items and events of /v1/responses */
#include "serving/api/api_items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serving/api/api_response_impl.h"

static void put_text(struct cairn_api_out *out, const struct cairn_api_out *text)
{
	cairn_api_put_string(out, text->s ? text->s : "", text->len);
}

static void put_status(struct cairn_api_items *it, struct cairn_api_out *out, const char *status,
		       const char *details, const struct cairn_api_usage *u)
{
	cairn_api_put(out, it->head.s ? it->head.s : "", it->head.len);
	cairn_api_print(out, ",\"status\":\"%s\",\"incomplete_details\":%s", status, details);
	cairn_api_puts(out, ",\"output\":[");
	cairn_api_put(out, it->done.s ? it->done.s : "", it->done.len);
	cairn_api_puts(out, "],\"usage\":");
	if (u) {
		cairn_api_print(
			out, "{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld},",
			(long long)u->prompt_tokens, (long long)u->cached_tokens);
		cairn_api_print(
			out, "\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":%lld},",
			(long long)u->completion_tokens, (long long)u->reasoning_tokens);
		cairn_api_print(out, "\"total_tokens\":%lld}",
				(long long)(u->prompt_tokens + u->completion_tokens));
	} else {
		cairn_api_puts(out, "null");
	}
	cairn_api_put(out, it->tail.s ? it->tail.s : "", it->tail.len);
}

/* Begins an event, whose other members follow; end_event() ends it. */
static void begin_event(struct cairn_api_items *it, const char *type)
{
	cairn_api_print(&it->out, "event: %s\n", type);
	cairn_api_print(&it->out, "data: {\"type\":\"%s\",\"sequence_number\":%lld", type,
			(long long)it->sequence++);
}

static void end_event(struct cairn_api_items *it)
{
	cairn_api_puts(&it->out, "}\n\n");
}

static void put_response_event(struct cairn_api_items *it, const char *type, const char *status,
			       const char *details, const struct cairn_api_usage *usage)
{
	begin_event(it, type);
	cairn_api_puts(&it->out, ",\"response\":");
	put_status(it, &it->out, status, details, usage);
	end_event(it);
}

static void put_item_id(const struct cairn_api_items *it, struct cairn_api_out *out)
{
	static const char *const prefixes[] = { "", "rs", "msg", "fc" };

	cairn_api_print(out, "\"%s%s_%d\"", prefixes[it->open],
			strchr(it->id, '_') ? strchr(it->id, '_') : "", it->index);
}

/* Writes the part of the open item that has its text: with the text, or without. */
static void put_part(struct cairn_api_items *it, struct cairn_api_out *out, bool whole)
{
	cairn_api_puts(out, it->open == CAIRN_API_MESSAGE_ITEM
				    ? "{\"type\":\"output_text\",\"text\":"
				    : "{\"type\":\"reasoning_text\",\"text\":");
	put_text(out, whole ? &it->text : &(struct cairn_api_out){ 0 });
	cairn_api_puts(out,
		       it->open == CAIRN_API_MESSAGE_ITEM ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

static void put_item(struct cairn_api_items *it, struct cairn_api_out *out, bool whole)
{
	const char *status = !whole ? "in_progress" : it->cut ? "incomplete" : "completed";

	cairn_api_puts(out, "{\"id\":");
	put_item_id(it, out);
	cairn_api_print(out, ",\"status\":\"%s\"", status);
	if (it->open == CAIRN_API_CALL_ITEM) {
		cairn_api_puts(out, ",\"type\":\"function_call\",\"call_id\":");
		put_text(out, &it->call_id);
		cairn_api_puts(out, ",\"name\":");
		put_text(out, &it->name);
		cairn_api_puts(out, ",\"arguments\":");
		put_text(out, whole ? &it->text : &(struct cairn_api_out){ 0 });
		cairn_api_puts(out, "}");
		return;
	}
	cairn_api_puts(out, it->open == CAIRN_API_MESSAGE_ITEM
				    ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
				    : ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
	if (whole)
		put_part(it, out, true);
	cairn_api_puts(out, "]}");
}

/* Writes the members that say which item an event is about. */
static void put_place(struct cairn_api_items *it)
{
	cairn_api_puts(&it->out, ",\"item_id\":");
	put_item_id(it, &it->out);
	cairn_api_print(&it->out, ",\"output_index\":%d", it->index);
	if (it->open != CAIRN_API_CALL_ITEM)
		cairn_api_puts(&it->out, ",\"content_index\":0");
}

static void put_item_event(struct cairn_api_items *it, const char *type, bool whole)
{
	begin_event(it, type);
	cairn_api_print(&it->out, ",\"output_index\":%d,\"item\":", it->index);
	put_item(it, &it->out, whole);
	end_event(it);
}

static void put_part_event(struct cairn_api_items *it, const char *type, bool whole)
{
	if (it->open == CAIRN_API_CALL_ITEM)
		return;
	begin_event(it, type);
	put_place(it);
	cairn_api_puts(&it->out, ",\"part\":");
	put_part(it, &it->out, whole);
	end_event(it);
}

/* An event with text: a delta, or all of it at the end. */
static void put_text_event(struct cairn_api_items *it, bool is_delta, const char *s, size_t n)
{
	static const char *const deltas[] = { "", "response.reasoning_text.delta",
					      "response.output_text.delta",
					      "response.function_call_arguments.delta" };
	static const char *const dones[] = { "", "response.reasoning_text.done",
					     "response.output_text.done",
					     "response.function_call_arguments.done" };

	begin_event(it, is_delta ? deltas[it->open] : dones[it->open]);
	put_place(it);
	if (!is_delta && it->open == CAIRN_API_CALL_ITEM) {
		cairn_api_puts(&it->out, ",\"name\":");
		put_text(&it->out, &it->name);
	}
	cairn_api_puts(&it->out, is_delta			   ? ",\"delta\":"
				 : it->open == CAIRN_API_CALL_ITEM ? ",\"arguments\":"
								   : ",\"text\":");
	cairn_api_put_string(&it->out, s, n);
	if (it->open == CAIRN_API_MESSAGE_ITEM)
		cairn_api_puts(&it->out, ",\"logprobs\":[]");
	end_event(it);
}

static void close_item(struct cairn_api_items *it)
{
	if (it->open == CAIRN_API_NO_ITEM)
		return;
	if (it->stream) {
		put_text_event(it, false, it->text.s ? it->text.s : "", it->text.len);
		put_part_event(it, "response.content_part.done", true);
		put_item_event(it, "response.output_item.done", true);
	}
	cairn_api_puts(&it->done, it->index ? "," : "");
	put_item(it, &it->done, true);
	it->text.len = it->name.len = it->call_id.len = 0;
	it->open = CAIRN_API_NO_ITEM;
	it->index++;
}

static void open_item(struct cairn_api_items *it, enum cairn_api_item kind,
		      const struct cairn_api_call *call)
{
	close_item(it);
	it->open = kind;
	if (call) {
		cairn_api_put(&it->name, call->name, call->name_len);
		cairn_api_puts(&it->call_id, call->id);
	}
	if (!it->stream)
		return;
	put_item_event(it, "response.output_item.added", false);
	put_part_event(it, "response.content_part.added", false);
}

void cairn_api_items_add(struct cairn_api_items *it, const struct cairn_api_choice *c)
{
	const struct cairn_api_call *call = c->num_calls ? c->calls : NULL;
	enum cairn_api_item kind = call		      ? CAIRN_API_CALL_ITEM
				   : c->num_reasoning ? CAIRN_API_REASONING_ITEM
						      : CAIRN_API_MESSAGE_ITEM;
	const char *s = call ? call->arguments : c->num_reasoning ? c->reasoning : c->text;
	size_t n = call ? call->num_arguments : c->num_reasoning ? c->num_reasoning : c->num_bytes;

	if ((call && call->id) || (n && it->open != kind))
		open_item(it, kind, call);
	if (!n)
		return;
	cairn_api_put(&it->text, s, n);
	if (it->stream)
		put_text_event(it, true, s, n);
}

/* Writes a member of the response that repeats one of the request. */
static void put_given(struct cairn_api_out *out, const struct cairn_api_request *r, const char *name,
		      const char *absent)
{
	const json_t *v = json_object_get(r->given, name);
	char *text = v && !json_is_null(v) ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	cairn_api_print(out, ",\"%s\":", name);
	cairn_api_puts(out, text ? text : absent);
	out->failed |= v && !json_is_null(v) && !text;
	free(text);
}

void cairn_api_items_begin(struct cairn_api_items *it, const struct cairn_api_request *r, const char *id,
			   int64_t created)
{
	*it = (struct cairn_api_items){ .stream = r->stream };
	snprintf(it->id, sizeof(it->id), "%s", id);
	cairn_api_puts(&it->head, "{\"id\":");
	cairn_api_put_string(&it->head, id, strlen(id));
	cairn_api_print(&it->head,
			",\"object\":\"response\",\"created_at\":%lld,\"error\":null,\"model\":",
			(long long)created);
	cairn_api_put_string(&it->head, r->model ? r->model : "", r->model ? strlen(r->model) : 0);
	put_given(&it->tail, r, "instructions", "null");
	put_given(&it->tail, r, "max_output_tokens", "null");
	put_given(&it->tail, r, "tools", "[]");
	put_given(&it->tail, r, "tool_choice", "\"auto\"");
	put_given(&it->tail, r, "text", "{\"format\":{\"type\":\"text\"}}");
	put_given(&it->tail, r, "reasoning", "{\"effort\":null,\"summary\":null}");
	put_given(&it->tail, r, "metadata", "{}");
	put_given(&it->tail, r, "user", "null");
	cairn_api_print(&it->tail, ",\"parallel_tool_calls\":%s",
			r->parallel_tool_calls ? "true" : "false");
	cairn_api_print(&it->tail, ",\"temperature\":%.9g,\"top_p\":%.9g", r->temperature, r->top_p);
	cairn_api_puts(&it->tail, ",\"previous_response_id\":null,\"store\":false,\"background\":false,"
				  "\"truncation\":\"disabled\",\"service_tier\":\"default\"}");
	if (!r->stream)
		return;
	put_response_event(it, "response.created", "in_progress", "null", NULL);
	put_response_event(it, "response.in_progress", "in_progress", "null", NULL);
}

void cairn_api_items_end(struct cairn_api_items *it, enum cairn_api_finish finish,
			 const struct cairn_api_usage *usage)
{
	bool ended = finish == CAIRN_API_STOP || finish == CAIRN_API_CALLS,
	     cut = finish == CAIRN_API_LENGTH;
	const char *status = ended ? "completed" : cut ? "incomplete" : "failed";
	const char *details = cut ? "{\"reason\":\"max_output_tokens\"}" : "null";
	char type[32];

	it->cut = !ended;
	close_item(it);
	snprintf(type, sizeof(type), "response.%s", status);
	if (it->stream)
		put_response_event(it, type, status, details, usage);
	else
		put_status(it, &it->out, status, details, usage);
}

bool cairn_api_items_failed(const struct cairn_api_items *it)
{
	return it->out.failed || it->head.failed || it->tail.failed || it->done.failed ||
	       it->text.failed || it->name.failed || it->call_id.failed;
}

void cairn_api_items_free(struct cairn_api_items *it)
{
	cairn_api_out_free(&it->out);
	cairn_api_out_free(&it->head);
	cairn_api_out_free(&it->tail);
	cairn_api_out_free(&it->done);
	cairn_api_out_free(&it->text);
	cairn_api_out_free(&it->name);
	cairn_api_out_free(&it->call_id);
}
