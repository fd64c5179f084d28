/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_request - parses and checks the JSON body of a request
 *
 *   POST /v1/completions, /v1/chat/completions     generate
 *   POST /v1/responses                             generate: items become messages (api_responses.c)
 *   POST /tokenize, /detokenize                    compatible with vLLM
 *
 * Every member of the body is either supported or rejected by name; user, metadata, safety_identifier and
 * prompt_cache_key are accepted but have no effect. null counts as absent, and an integer may be spelled as a
 * float (16.0). A member that only other servers support is accepted if its value asks for nothing beyond the
 * default (api_neutral.c): functions [], store false, service_tier "auto", priority 0 (requests are
 * served in order of arrival) and the like. Members and bounds:
 *
 *   model                       one of the server's names; absent: the first
 *   prompt                      completions, tokenize: text, [texts], [ids], [[ids]]; 256 prompts at most
 *   messages                    chat, tokenize: [{role: system|developer|user|assistant|tool, content:
 *                               text or [{"type": "text", "text"}], name, reasoning_content or
 *                               reasoning, annotations [], type "text"}]; developer counts as system.
 *                               assistant: tool_calls [{id, type "function", function {name, arguments:
 *                               text}}], 128 at most, with which content may be absent; tool:
 *                               tool_call_id
 *   tools                       chat, tokenize: [{type "function", function {name of 1 to 64 letters,
 *                               digits, dots, _ or -, description, parameters: a JSON schema, strict:
 *                               without effect}}], 128 at most
 *   tool_choice                 chat: auto, none (the template is not told of the tools); required or
 *                               {type "function", function {name}} if answers can be constrained
 *   parallel_tool_calls         chat: false ends the answer after its first call
 *   include_reasoning           chat: false leaves out what the model thought
 *   reasoning_effort            chat: handed to the template, if it has this variable
 *   add_generation_prompt, chat_template_kwargs (scalars)        with messages
 *   add_special_tokens          adds bos and eos to the prompt (default true; with messages, false)
 *   n 1..128                    prompts * n <= 1024; best_of must equal n
 *   max_tokens, max_completion_tokens >= 1; with echo or prompt_logprobs also 0: no answer. Default: what the
 *                               context has room for; of completions, at most 16, or min_tokens if more
 *   echo                        completions: the prompt is repeated before the answer, and with logprobs its
 *                               tokens are listed with their log-probabilities, the first with null; prompt
 *                               tokens * n <= 65536; no logprobs with beam search. If the only token of the
 *                               answer is an end token (max_tokens 1), it is listed too: lm-eval expects that
 *   prompt_logprobs 0..20       as in vLLM: for each prompt token but the first, {id: {logprob, rank,
 *                               decoded_token}} of this token and of the likeliest ones at its position.
 *                               rank is null beyond 32. Prompt tokens * n * (1 + prompt_logprobs) <= 262144;
 *                               no stream, no beam search
 *   min_tokens <= max_tokens    the text of these tokens matches no stop string
 *   temperature 0..2, top_p (0, 1], top_k >= -1 (-1, 0: off), min_p 0..1, seed 64 bits
 *   presence_penalty, frequency_penalty -2..2, repetition_penalty (0, 10]
 *                               temperature, top_p, top_k, min_p and repetition_penalty default to the
 *                               checkpoint's values (generation.h) or, if it has none, to 1, 1, 0, 0, 1
 *   logit_bias                  {"id": -100..100}, 1024 at most
 *   logprobs                    completions: 0..20; chat: true, with top_logprobs 0..20 (0 alone: none)
 *   stop                        text or up to 32 texts, each of 1 to 1024 bytes; stop_token_ids 64 at most
 *   ignore_eos, include_stop_str_in_output, skip_special_tokens (default true)
 *   stream, stream_options {include_usage, continuous_usage_stats}, user, cache_salt,
 *   metadata (an object), safety_identifier, prompt_cache_key (texts)
 *   use_beam_search             n is the beam width, 16 at most; length_penalty; no sampling, no stream,
 *                               log-probabilities of the chosen tokens only; at most 32 stop_token_ids and
 *                               end tokens of the model together
 *   response_format             {"type": "text" | "json_object"}, or {"type": "json_schema", "json_schema":
 *                               {"schema", name, description, strict}}; a schema is always followed
 *   structured_outputs          one of json (a schema, or its text), regex, choice [texts], grammar (Lark),
 *                               json_object true; 64 KiB; no beam search, ignore_eos, min_tokens or echo.
 *                               What it replaced, guided_*, is refused with the new name
 *   tokens                      detokenize: ids;  return_token_strs: tokenize
 *
 * The body is UTF-8 JSON without duplicate members, with depth at most 64 and at most 2^20 values, where an
 * empty array or object counts as two. Numbers that JSON parsers read differently (1e999, 2^64, NaN) are
 * rejected with the name of their member.
 */
#ifndef CAIRN_API_REQUEST_H
#define CAIRN_API_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serving/grammar/grammar.h"
#include "serving/model/checkpoint/generation.h"
#include "serving/tokenizer/stop_match.h"

#define CAIRN_API_MAX_PROMPTS 256
#define CAIRN_API_MAX_N 128
#define CAIRN_API_MAX_SEQUENCES 1024 /* prompts * n */
#define CAIRN_API_MAX_BEAMS 16
#define CAIRN_API_MAX_LOGPROBS 20
#define CAIRN_API_MAX_BIAS 1024
#define CAIRN_API_MAX_STOP_IDS 64
#define CAIRN_API_MAX_MESSAGES 4096
#define CAIRN_API_MAX_TOOLS 128 /* definitions; calls of one message */
#define CAIRN_API_MAX_DEPTH 64
#define CAIRN_API_MAX_VALUES (1 << 20) /* JSON values in a body; bounds the parser's memory */

enum cairn_api_kind {
	CAIRN_API_COMPLETION,
	CAIRN_API_CHAT,
	CAIRN_API_TOKENIZE,
	CAIRN_API_DETOKENIZE,
	CAIRN_API_RESPONSES /* parsed as a chat */
};

enum cairn_api_tool_choice {
	CAIRN_API_TOOL_AUTO,
	CAIRN_API_TOOL_NONE,
	CAIRN_API_TOOL_REQUIRED,
	CAIRN_API_TOOL_NAMED
};

/* An error to be sent as the answer; see cairn_api_error_body(). */
struct cairn_api_error {
	int status;        /* HTTP status */
	const char *type;  /* "invalid_request_error", ... */
	const char *code;  /* or NULL */
	char param[96];    /* member at fault; "": none */
	char message[512]; /* UTF-8, printable */
	int retry_after_s; /* Retry-After header; 0: none */
};

struct cairn_api_limits {
	size_t max_body; /* bytes; 0: 8 MiB */
	int32_t vocab_size, max_context;
	const char *const *models; /* [num_models], the first is the default */
	int num_models;
	bool adds_bos;     /* the tokenizer encodes an empty text to at least one token, such as bos */
	bool has_template; /* the checkpoint has a chat template */
	bool has_tools;    /* the format of tool calls is known */
	bool has_grammar;  /* answers can be constrained, so that calls can be forced */
	bool takes_effort; /* the chat template reads reasoning_effort */
	const struct cairn_generation *defaults; /* sampling defaults; NULL: those of OpenAI's API */
};

struct cairn_api_prompt {
	const char *text; /* NULL: the prompt is ids */
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
	json_t *root; /* owns the strings below */
	json_t *given; /* /v1/responses: the body as it came; else NULL. kind is CAIRN_API_CHAT then */
	const char *model;

	struct cairn_api_prompt *prompts; /* [num_prompts]; 0 with messages */
	int32_t num_prompts;
	int32_t *ids; /* [num_ids] ids of all prompts, or of detokenize */
	size_t num_ids;
	json_t *messages;      /* for cairn_chat_template_render(), each content a string or null; or NULL */
	json_t *template_args; /* object or NULL */
	json_t *tools;	       /* [{"type": "function", "function": {name, description, ...}}] or NULL */
	enum cairn_api_tool_choice tool_choice;
	const char *tool_name; /* with CAIRN_API_TOOL_NAMED */
	bool parallel_tool_calls, include_reasoning;
	bool add_generation_prompt, add_special_tokens;

	int64_t n, best_of, max_tokens, min_tokens; /* max_tokens, best_of 0: not given */
	double temperature, top_p, min_p;
	int64_t top_k; /* 0: off */
	int64_t seed;
	bool has_seed;
	double presence_penalty, frequency_penalty, repetition_penalty;
	struct cairn_api_bias *bias; /* [num_bias] */
	int32_t num_bias;
	int64_t logprobs; /* alternatives per token besides the chosen one; -1: no log-probabilities */
	int64_t prompt_logprobs; /* the same for the prompt's tokens */

	struct cairn_stop_string stop[CAIRN_MAX_STOPS];
	int32_t num_stop, num_stop_ids;
	int32_t stop_ids[CAIRN_API_MAX_STOP_IDS];
	bool ignore_eos, include_stop, skip_special_tokens;

	bool stream, include_usage, continuous_usage;
	bool use_beam_search;
	double length_penalty;
	bool echo, no_answer; /* no_answer: the body says max_tokens 0; max_tokens here is 1 */
	bool return_token_strs;
	const char *user, *cache_salt; /* or NULL */
	/* kind NONE: none; its text is owned by the body or is in constraint_text */
	struct cairn_constraint constraint;
	const char *constraint_param; /* the member that it comes from */
	char *constraint_text; /* memory of the texts that are not owned by the body */
};

/*
 * Parses body, [num_bytes]. Returns 0, or -EINVAL with *error filled in (no memory: status 500). On success
 * the caller must call cairn_api_request_free(); *out does not point into body.
 */
int cairn_api_request_parse(enum cairn_api_kind kind, const char *body, size_t num_bytes,
			    const struct cairn_api_limits *limits, struct cairn_api_request *out,
			    struct cairn_api_error *error);
void cairn_api_request_free(struct cairn_api_request *request);

/* Returns the member of the body that the prompt is made of, for errors: prompt, messages or input. */
const char *cairn_api_prompt_name(const struct cairn_api_request *request);

/*
 * Frees the body, which may take hundreds of bytes for each of its own, once the prompt has been made: the
 * messages, tools, prompts and texts, and ids. Numbers, bias, stop strings and the constraint stay. Returns 0
 * or -ENOMEM, after which nothing has changed.
 */
int cairn_api_request_detach(struct cairn_api_request *request);

/*
 * Checks whether a prompt of num_tokens ids fits the context. Returns 0 and in *max_tokens, >= 1, how many
 * tokens may follow, or -EINVAL if the prompt is empty or too long (context_length_exceeded).
 */
int cairn_api_fit(const struct cairn_api_request *request, const struct cairn_api_limits *limits,
		  size_t num_tokens, int32_t *max_tokens, struct cairn_api_error *error);

/*
 * Replaces the arguments of all calls in messages, which are objects, by texts with their JSON, as the
 * templates of some models expect. Returns the number of calls, or -ENOMEM.
 */
int cairn_api_arguments_as_text(struct cairn_api_request *request);

/* Fills in an error; param NULL: none. Returns -EINVAL. */
int cairn_api_refuse(struct cairn_api_error *error, int status, const char *code, const char *param,
		     const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
