/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_response - answers as OpenAI clients expect them, written as bytes
 *
 * Everything is appended to a struct cairn_api_out, which is emptied and used again for the next answer:
 * once it has grown to the size of a chunk, chunks cost no allocation. What is the same for every chunk of
 * an answer is rendered once, into struct cairn_api_answer.
 *
 * Text goes out as JSON strings: ill-formed UTF-8 becomes U+FFFD, and besides what JSON demands U+007F,
 * U+0085, U+2028 and U+2029 are escaped, as some clients take them for ends of lines of the event stream.
 *
 *   stream   chunk, chunk, ..., chunk with finish_reason (for each choice), [usage chunk], done
 *            or, when something fails on the way, error event and nothing more, no done
 *   else     one body
 *
 * An out that could not grow remembers it (failed) and takes nothing more: one look at the end is enough.
 */
#ifndef CAIRN_API_RESPONSE_H
#define CAIRN_API_RESPONSE_H

#include "serving/api/api_request.h"

struct cairn_api_out {
	char *s; /* a NUL behind len bytes, or NULL while empty */
	size_t len, cap;
	bool failed; /* no memory */
};

void cairn_api_out_free(struct cairn_api_out *out);

#define CAIRN_API_ID_LEN 48

/* "cmpl-" or "chatcmpl-" and 32 hex digits. */
void cairn_api_id(enum cairn_api_kind kind, const uint64_t random[2], char id[CAIRN_API_ID_LEN]);

struct cairn_api_answer {
	enum cairn_api_kind kind;
	bool include_usage;    /* "usage": null in every chunk */
	bool continuous_usage; /* or what has been used so far */
	char *head, *chunk_head;
	size_t head_len, chunk_head_len;
};

/* created: seconds since 1970. -ENOMEM. */
int cairn_api_answer_init(struct cairn_api_answer *a, const struct cairn_api_request *request, const char *id,
			  int64_t created);
void cairn_api_answer_free(struct cairn_api_answer *a);

/* One token and its probability; of a token cut inside a character the bytes are incomplete UTF-8. */
struct cairn_api_token {
	const char *bytes;
	size_t num_bytes;
	float logprob; /* -INFINITY goes out as -9999 */
};

struct cairn_api_logprob {
	struct cairn_api_token token;
	const struct cairn_api_token *top; /* [num_top], likeliest first */
	int32_t num_top;
	int64_t text_offset; /* completions: characters of text before it */
};

enum cairn_api_finish {
	CAIRN_API_GOES_ON,
	CAIRN_API_STOP,
	CAIRN_API_LENGTH,
	CAIRN_API_ABORT,
	CAIRN_API_ERROR
};

struct cairn_api_choice {
	int32_t index;
	const char *text; /* [num_bytes] */
	size_t num_bytes;
	enum cairn_api_finish finish;
	const struct cairn_stop_string *stop;     /* what stopped it, or NULL */
	int32_t stop_id;                          /* the token that did, or -1 */
	const struct cairn_api_logprob *logprobs; /* [num_logprobs]; NULL: null */
	size_t num_logprobs;
};

struct cairn_api_usage {
	int64_t prompt_tokens, completion_tokens, cached_tokens;
};

/*
 * One event: `data: {...}` and an empty line. first: chat, the one that carries the role. usage: so far, for
 * those who asked for it in every chunk; NULL: not known.
 */
void cairn_api_chunk(struct cairn_api_out *out, const struct cairn_api_answer *a,
		     const struct cairn_api_choice *choice, bool first, const struct cairn_api_usage *usage);
void cairn_api_usage_chunk(struct cairn_api_out *out, const struct cairn_api_answer *a,
			   const struct cairn_api_usage *usage);
void cairn_api_done(struct cairn_api_out *out);
/* A comment, which clients skip: keeps proxies from giving up while a request waits. */
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

/* For what else the server has to say: a JSON string with its quotes; JSON that is written out. */
void cairn_api_put_string(struct cairn_api_out *out, const char *s, size_t num_bytes);
void cairn_api_put(struct cairn_api_out *out, const char *json, size_t num_bytes);

#endif
