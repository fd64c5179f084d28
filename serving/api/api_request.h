/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_request - the JSON body of a request, checked and plain
 *
 *   POST /v1/completions, /v1/chat/completions     generate
 *   POST /tokenize, /detokenize                    as vLLM has them
 *
 * Every member of the body is either understood or refused by name: none is ignored. null is the same as
 * absent. Members and bounds:
 *
 *   model                       one of the server's names; absent: the first
 *   prompt                      completions, tokenize: text, [texts], [ids], [[ids]]; 256 prompts at most
 *   messages                    chat, tokenize: [{role: system|user|assistant, content: text or
 *                               [{"type": "text", "text"}], name, reasoning_content}]
 *   add_generation_prompt, chat_template_kwargs (scalars)        with messages
 *   add_special_tokens          bos and eos round the prompt (true; with messages false)
 *   n 1..128                    prompts * n <= 1024
 *   max_tokens, max_completion_tokens >= 1; min_tokens <= max_tokens: what they say is no
 *                               stop string, either
 *   temperature 0..2, top_p (0, 1], top_k -1, 0 (off) or more, min_p 0..1, seed 64 bit
 *   presence_penalty, frequency_penalty -2..2, repetition_penalty (0, 10]
 *   logit_bias                  {"id": -100..100}, 1024 at most
 *   logprobs                    completions: 0..20; chat: true, with top_logprobs 0..20
 *   stop                        text or 4 texts of 1 to 1024 bytes; stop_token_ids 64 at most
 *   ignore_eos, include_stop_str_in_output, skip_special_tokens (true)
 *   stream, stream_options {include_usage, continuous_usage_stats}, user, cache_salt, priority
 *   use_beam_search             n is the width, 16 at most; length_penalty; no sampling, no stream, no
 *                               log-probabilities but the chosen tokens'; with stop_token_ids and the
 *                               model's ends 32 at most in all
 *   tokens                      detokenize: ids;  return_token_strs: tokenize
 *
 * The body is UTF-8 JSON without duplicate members, depth 64 and a million values at most. Numbers that JSON
 * readers disagree about (1e999, 2^64, NaN) are refused with the name of the member they are in.
 */
#ifndef CAIRN_API_REQUEST_H
#define CAIRN_API_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serving/tokenizer/stop_match.h"

#define CAIRN_API_MAX_PROMPTS 256
#define CAIRN_API_MAX_N 128
#define CAIRN_API_MAX_SEQUENCES 1024 /* prompts * n */
#define CAIRN_API_MAX_BEAMS 16
#define CAIRN_API_MAX_LOGPROBS 20
#define CAIRN_API_MAX_BIAS 1024
#define CAIRN_API_MAX_STOP_IDS 64
#define CAIRN_API_MAX_MESSAGES 4096
#define CAIRN_API_MAX_DEPTH 64
#define CAIRN_API_MAX_VALUES (1 << 20) /* of a body: bounds what reading it needs */

enum cairn_api_kind { CAIRN_API_COMPLETION, CAIRN_API_CHAT, CAIRN_API_TOKENIZE, CAIRN_API_DETOKENIZE };

/* What the answer to a refused request is made of; see cairn_api_error_body(). */
struct cairn_api_error {
	int status;        /* of HTTP */
	const char *type;  /* "invalid_request_error", ... */
	const char *code;  /* or NULL */
	char param[96];    /* "" : none */
	char message[512]; /* UTF-8, printable */
	int retry_after_s; /* 0: no such header */
};

struct cairn_api_limits {
	size_t max_body; /* bytes; 0: 8 MiB */
	int32_t vocab_size, max_context;
	const char *const *models; /* [num_models], the first is the default */
	int num_models;
	bool adds_bos;     /* the tokenizer puts something before an empty text */
	bool has_template; /* the checkpoint has a chat template */
};

struct cairn_api_prompt {
	const char *text; /* NULL: ids */
	size_t num_bytes;
	const int32_t *ids;
	int32_t num_ids;
};

struct cairn_api_bias {
	int32_t id;
	float bias;
};

struct cairn_api_request {
	enum cairn_api_kind kind;
	json_t *root; /* owns the texts below */
	const char *model;

	struct cairn_api_prompt *prompts; /* [num_prompts]; 0 with messages */
	int32_t num_prompts;
	int32_t *ids; /* of all prompts, or of detokenize: [num_ids] */
	size_t num_ids;
	json_t *messages;      /* for cairn_chat_template_render(): contents are texts; or NULL */
	json_t *template_args; /* object or NULL */
	bool add_generation_prompt, add_special_tokens;

	int64_t n, max_tokens, min_tokens; /* max_tokens 0: not given */
	double temperature, top_p, min_p;
	int64_t top_k; /* 0: off */
	int64_t seed;
	bool has_seed;
	double presence_penalty, frequency_penalty, repetition_penalty;
	struct cairn_api_bias *bias; /* [num_bias] */
	int32_t num_bias;
	int64_t logprobs; /* how many besides the chosen; -1: none wanted */

	struct cairn_stop_string stop[CAIRN_MAX_STOPS];
	int32_t num_stop, num_stop_ids;
	int32_t stop_ids[CAIRN_API_MAX_STOP_IDS];
	bool ignore_eos, include_stop, skip_special_tokens;

	bool stream, include_usage, continuous_usage;
	bool use_beam_search;
	double length_penalty;
	bool return_token_strs;
	const char *user, *cache_salt; /* or NULL */
	int64_t priority;              /* lower first */
};

/*
 * body: [num_bytes]. 0, or -EINVAL with *error filled in (-ENOMEM as status 500). On success the caller
 * calls cairn_api_request_free().
 */
int cairn_api_request_parse(enum cairn_api_kind kind, const char *body, size_t num_bytes,
			    const struct cairn_api_limits *limits, struct cairn_api_request *out,
			    struct cairn_api_error *error);
void cairn_api_request_free(struct cairn_api_request *request);

/*
 * Once the prompt (which: its number, or 0) has become num_tokens ids: may it be served? *max_tokens is
 * then how many tokens may follow, >= 1. Else -EINVAL: empty, or context_length_exceeded.
 */
int cairn_api_fit(const struct cairn_api_request *request, const struct cairn_api_limits *limits,
		  size_t num_tokens, int32_t *max_tokens, struct cairn_api_error *error);

/* Fills in an error; param NULL: none. Returns -EINVAL. */
int cairn_api_refuse(struct cairn_api_error *error, int status, const char *code, const char *param,
		     const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
