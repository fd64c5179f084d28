// SPDX-License-Identifier: Apache-2.0
/* api_logprobs - writes log-probabilities as JSON, in the forms for chats, completions and prompts */
#include <math.h>
#include <string.h>

#include "serving/api/api_response_impl.h"
#include "serving/base/utf8.h"

static void put_logprob(struct cairn_api_out *out, float logprob)
{
	if (isnan(logprob))
		cairn_api_puts(out, "null");
	else if (!isfinite(logprob))
		cairn_api_puts(out, "-9999.0");
	else
		cairn_api_print(out, "%.9g", (double)logprob);
}

static bool well_formed(const struct cairn_api_token *t)
{
	for (size_t i = 0; i < t->num_bytes;) {
		int truncated, n;
		uint32_t cp;

		n = cairn_utf8_next(t->bytes + i, t->num_bytes - i, &cp, &truncated);
		if (n < 0)
			return false;
		i += (size_t)n;
	}
	return true;
}

void cairn_api_put_token(struct cairn_api_out *out, const struct cairn_api_token *t)
{
	if (well_formed(t)) {
		cairn_api_put_string(out, t->bytes, t->num_bytes);
		return;
	}
	cairn_api_puts(out, "\"bytes:");
	for (size_t i = 0; i < t->num_bytes; i++)
		cairn_api_print(out, "\\\\x%02x", (unsigned char)t->bytes[i]);
	cairn_api_puts(out, "\"");
}

/* Writes the start of a token's object in the chat form: {"token":...,"logprob":...,"bytes":[...] */
static void put_chat_token(struct cairn_api_out *out, const struct cairn_api_token *t)
{
	cairn_api_puts(out, "{\"token\":");
	cairn_api_put_token(out, t);
	cairn_api_puts(out, ",\"logprob\":");
	put_logprob(out, t->logprob);
	cairn_api_puts(out, ",\"bytes\":[");
	for (size_t i = 0; i < t->num_bytes; i++)
		cairn_api_print(out, "%s%d", i ? "," : "", (unsigned char)t->bytes[i]);
	cairn_api_puts(out, "]");
}

void cairn_api_put_chat_logprobs(struct cairn_api_out *out, const struct cairn_api_choice *c)
{
	cairn_api_puts(out, "{\"content\":[");
	for (size_t i = 0; i < c->num_logprobs; i++) {
		const struct cairn_api_logprob *l = &c->logprobs[i];

		if (i)
			cairn_api_puts(out, ",");
		put_chat_token(out, &l->token);
		cairn_api_puts(out, ",\"top_logprobs\":[");
		for (int32_t k = 0; k < l->num_top; k++) {
			if (k)
				cairn_api_puts(out, ",");
			put_chat_token(out, &l->top[k]);
			cairn_api_puts(out, "}");
		}
		cairn_api_puts(out, "]}");
	}
	cairn_api_puts(out, "],\"refusal\":null}");
}

/* Returns whether an earlier, likelier token has the same bytes: a JSON object can hold only one of them. */
static bool seen_before(const struct cairn_api_logprob *l, int32_t k)
{
	for (int32_t i = 0; i < k; i++)
		if (l->top[i].num_bytes == l->top[k].num_bytes &&
		    !memcmp(l->top[i].bytes, l->top[k].bytes, l->top[k].num_bytes))
			return true;
	return false;
}

void cairn_api_put_text_logprobs(struct cairn_api_out *out, const struct cairn_api_choice *c)
{
	cairn_api_puts(out, "{\"tokens\":[");
	for (size_t i = 0; i < c->num_logprobs; i++) {
		cairn_api_puts(out, i ? "," : "");
		cairn_api_put_token(out, &c->logprobs[i].token);
	}
	cairn_api_puts(out, "],\"token_logprobs\":[");
	for (size_t i = 0; i < c->num_logprobs; i++) {
		cairn_api_puts(out, i ? "," : "");
		put_logprob(out, c->logprobs[i].token.logprob);
	}
	cairn_api_puts(out, "],\"top_logprobs\":[");
	for (size_t i = 0; i < c->num_logprobs; i++) {
		const struct cairn_api_logprob *l = &c->logprobs[i];

		cairn_api_puts(out, i ? "," : "");
		if (isnan(l->token.logprob)) {
			cairn_api_puts(out, "null");
			continue;
		}
		cairn_api_puts(out, "{");
		for (int32_t k = 0; k < l->num_top; k++) {
			if (seen_before(l, k))
				continue;
			cairn_api_puts(out, k ? "," : "");
			cairn_api_put_token(out, &l->top[k]);
			cairn_api_puts(out, ":");
			put_logprob(out, l->top[k].logprob);
		}
		cairn_api_puts(out, "}");
	}
	cairn_api_puts(out, "],\"text_offset\":[");
	for (size_t i = 0; i < c->num_logprobs; i++)
		cairn_api_print(out, "%s%lld", i ? "," : "", (long long)c->logprobs[i].text_offset);
	cairn_api_puts(out, "]}");
}

void cairn_api_put_ranked(struct cairn_api_out *out, int32_t id, int32_t rank,
			  const struct cairn_api_token *token)
{
	cairn_api_print(out, "\"%d\":{\"logprob\":", (int)id);
	put_logprob(out, token->logprob);
	if (rank)
		cairn_api_print(out, ",\"rank\":%d,\"decoded_token\":", (int)rank);
	else
		cairn_api_puts(out, ",\"rank\":null,\"decoded_token\":");
	cairn_api_put_string(out, token->bytes, token->num_bytes);
	cairn_api_puts(out, "}");
}
