// SPDX-License-Identifier: Apache-2.0
/* api_chat - writes the message of a chat: content, reasoning, calls of tools */
#include <string.h>

#include "serving/api/api_response_impl.h"

/* Reasoning goes out under the names of vLLM's newer and older versions. */
static void put_reasoning(struct cairn_api_out *out, const struct cairn_api_choice *c)
{
	cairn_api_puts(out, "\"reasoning\":");
	cairn_api_put_string(out, c->reasoning, c->num_reasoning);
	cairn_api_puts(out, ",\"reasoning_content\":");
	cairn_api_put_string(out, c->reasoning, c->num_reasoning);
}

static void put_call(struct cairn_api_out *out, const struct cairn_api_call *call, bool indexed)
{
	cairn_api_puts(out, "{");
	if (indexed)
		cairn_api_print(out, "\"index\":%d,", (int)call->index);
	if (call->id) {
		cairn_api_puts(out, "\"id\":");
		cairn_api_put_string(out, call->id, strlen(call->id));
		cairn_api_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
		cairn_api_put_string(out, call->name, call->name_len);
		cairn_api_puts(out, ",\"arguments\":");
	} else {
		cairn_api_puts(out, "\"function\":{\"arguments\":");
	}
	cairn_api_put_string(out, call->arguments, call->num_arguments);
	cairn_api_puts(out, "}}");
}

static void put_calls(struct cairn_api_out *out, const struct cairn_api_choice *c, bool indexed)
{
	cairn_api_puts(out, "\"tool_calls\":[");
	for (size_t i = 0; i < c->num_calls; i++) {
		cairn_api_puts(out, i ? "," : "");
		put_call(out, &c->calls[i], indexed);
	}
	cairn_api_puts(out, "]");
}

void cairn_api_put_delta(struct cairn_api_out *out, const struct cairn_api_choice *c, bool first)
{
	bool other = c->num_reasoning || c->num_calls;

	cairn_api_puts(out, "\"delta\":{");
	if (first)
		cairn_api_puts(out, "\"role\":\"assistant\",");
	if ((first && !other) || c->num_bytes) {
		cairn_api_puts(out, "\"content\":");
		cairn_api_put_string(out, c->text, c->num_bytes);
	} else if (first) {
		cairn_api_puts(out, "\"content\":null,");
	}
	if (c->num_reasoning)
		put_reasoning(out, c);
	else if (c->num_calls)
		put_calls(out, c, true);
	cairn_api_puts(out, "}");
}

void cairn_api_put_message(struct cairn_api_out *out, const struct cairn_api_choice *c)
{
	cairn_api_puts(out, "\"message\":{\"role\":\"assistant\",\"refusal\":null,\"content\":");
	if (!c->num_bytes && c->num_calls)
		cairn_api_puts(out, "null");
	else
		cairn_api_put_string(out, c->text, c->num_bytes);
	if (c->num_reasoning) {
		cairn_api_puts(out, ",");
		put_reasoning(out, c);
	}
	if (c->num_calls) {
		cairn_api_puts(out, ",");
		put_calls(out, c, false);
	}
	cairn_api_puts(out, "}");
}
