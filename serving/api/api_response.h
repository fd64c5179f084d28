/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_response - writes answers in the format that OpenAI clients expect
 *
 * All functions append to a struct cairn_api_out. The caller empties and reuses it, so that chunks need no
 * allocation once it has grown to the size of a chunk. The parts that all chunks of an answer share are
 * rendered once, into struct cairn_api_answer.
 *
 * Text is written as JSON strings. Malformed UTF-8 becomes U+FFFD. Besides the characters that JSON requires,
 * U+007F, U+0085, U+2028 and U+2029 are escaped, since some clients treat them as line ends of the event
 * stream.
 *
 *   stream      chunk, chunk, ..., chunk with finish_reason (for each choice), [usage chunk], done;
 *               after a failure, an error event ends the stream, and there is no done
 *   otherwise   one body
 *
 * If a cairn_api_out cannot grow, it sets `failed` and ignores further appends, so one check at the end is
 * enough.
 */
#ifndef CAIRN_API_RESPONSE_H
#define CAIRN_API_RESPONSE_H

#include "serving/api/api_request.h"

struct cairn_api_out {
	char *s; /* NUL-terminated after len bytes; NULL before the first append */
	size_t len, cap;
	bool failed; /* no memory */
};

void cairn_api_out_free(struct cairn_api_out *out);

#define CAIRN_API_ID_LEN 48

/* Writes "cmpl-" or "chatcmpl-" and 32 hex digits to id. */
void cairn_api_id(enum cairn_api_kind kind, const uint64_t random[2], char id[CAIRN_API_ID_LEN]);

struct cairn_api_answer {
	enum cairn_api_kind kind;
	bool include_usage;    /* every chunk has "usage", which is null until the last one */
	bool continuous_usage; /* or the usage so far */
	char *head, *chunk_head;
	size_t head_len, chunk_head_len;
};

/* created: seconds since 1970. Returns 0 or -ENOMEM. */
int cairn_api_answer_init(struct cairn_api_answer *a, const struct cairn_api_request *request, const char *id,
			  int64_t created);
void cairn_api_answer_free(struct cairn_api_answer *a);

/* One token and its log-probability; if the token ends inside a character, its bytes are incomplete UTF-8. */
struct cairn_api_token {
	const char *bytes;
	size_t num_bytes;
	float logprob; /* -INFINITY is written as -9999, NAN as null */
};

struct cairn_api_logprob {
	struct cairn_api_token token;
	const struct cairn_api_token *top; /* [num_top], likeliest first */
	int32_t num_top;
	int64_t text_offset; /* completions: characters of text before the token */
};

enum cairn_api_finish {
	CAIRN_API_GOES_ON,
	CAIRN_API_STOP,
	CAIRN_API_LENGTH,
	CAIRN_API_ABORT,
	CAIRN_API_ERROR,
	CAIRN_API_CALLS /* the answer ended and calls tools */
};

/* A call of a tool, or in a chunk a part of it. */
struct cairn_api_call {
	int32_t index;
	const char *id;	  /* NULL: an earlier chunk has id and name */
	const char *name; /* [name_len] */
	size_t name_len;
	const char *arguments; /* [num_arguments] */
	size_t num_arguments;
};

struct cairn_api_choice {
	int32_t index;
	const char *text; /* [num_bytes] */
	size_t num_bytes;
	enum cairn_api_finish finish;
	const struct cairn_stop_string *stop;     /* the stop string that ended it, or NULL */
	int32_t stop_id;                          /* the stop token that ended it, or -1 */
	const struct cairn_api_logprob *logprobs; /* [num_logprobs]; NULL is written as null */
	size_t num_logprobs;
	const struct cairn_api_out *prompt_logprobs; /* JSON, used only in a body; NULL: not requested */
	const char *reasoning; /* [num_reasoning] chat: what the model thought */
	size_t num_reasoning;
	const struct cairn_api_call *calls; /* [num_calls] chat */
	size_t num_calls;
};

struct cairn_api_usage {
	int64_t prompt_tokens, completion_tokens, cached_tokens;
	int64_t reasoning_tokens; /* those of completion_tokens that are reasoning; only /v1/responses */
};

/*
 * Writes one event: `data: {...}` and an empty line. A chunk has text, reasoning or one call. first: in chat,
 * the chunk that carries the role. usage: the usage so far, for continuous_usage; NULL: unknown.
 */
void cairn_api_chunk(struct cairn_api_out *out, const struct cairn_api_answer *a,
		     const struct cairn_api_choice *choice, bool first, const struct cairn_api_usage *usage);
void cairn_api_usage_chunk(struct cairn_api_out *out, const struct cairn_api_answer *a,
			   const struct cairn_api_usage *usage);
void cairn_api_done(struct cairn_api_out *out);
/* Writes a comment, which clients skip; it keeps proxies from closing the connection of a waiting request. */
void cairn_api_keep_alive(struct cairn_api_out *out);
void cairn_api_error_event(struct cairn_api_out *out, const struct cairn_api_error *error);

void cairn_api_body(struct cairn_api_out *out, const struct cairn_api_answer *a,
		    const struct cairn_api_choice *choices, size_t num_choices,
		    const struct cairn_api_usage *usage);
void cairn_api_error_body(struct cairn_api_out *out, const struct cairn_api_error *error);
void cairn_api_models_body(struct cairn_api_out *out, const struct cairn_api_limits *limits, int64_t created);
/* strs: [num_ids] or NULL. */
void cairn_api_tokenize_body(struct cairn_api_out *out, const int32_t *ids, size_t num_ids,
			     const struct cairn_api_token *strs, int32_t max_context);
void cairn_api_detokenize_body(struct cairn_api_out *out, const char *text, size_t num_bytes);

/* Appends a member of one prompt token's object in prompt_logprobs; rank 0 is written as null. */
void cairn_api_put_ranked(struct cairn_api_out *out, int32_t id, int32_t rank,
			  const struct cairn_api_token *token);

/* For the server's other answers: append a JSON string with its quotes, or JSON verbatim. */
void cairn_api_put_string(struct cairn_api_out *out, const char *s, size_t num_bytes);
void cairn_api_put(struct cairn_api_out *out, const char *json, size_t num_bytes);

#endif
