/* SPDX-License-Identifier: Apache-2.0 */
/* api_response_impl - declarations shared by the files that write answers */
#ifndef CAIRN_API_RESPONSE_IMPL_H
#define CAIRN_API_RESPONSE_IMPL_H

#include "serving/api/api_response.h"

/* Append JSON verbatim; cairn_api_print() appends at most 127 bytes. */
void cairn_api_puts(struct cairn_api_out *out, const char *json);
void cairn_api_print(struct cairn_api_out *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * Writes a token as text, or as "bytes:\xe2\x80" if it is not UTF-8, so that distinct tokens stay distinct.
 */
void cairn_api_put_token(struct cairn_api_out *out, const struct cairn_api_token *t);

/* Writes s as the inside of a JSON string. */
void cairn_api_put_escaped(struct cairn_api_out *out, const char *s, size_t n);

/* Write the member "delta" of a chunk, "message" of a body (api_chat.c). */
void cairn_api_put_delta(struct cairn_api_out *out, const struct cairn_api_choice *c, bool first);
void cairn_api_put_message(struct cairn_api_out *out, const struct cairn_api_choice *c);

/* Write the member "logprobs" of a choice. */
void cairn_api_put_chat_logprobs(struct cairn_api_out *out, const struct cairn_api_choice *c);
void cairn_api_put_text_logprobs(struct cairn_api_out *out, const struct cairn_api_choice *c);

#endif
