// SPDX-License-Identifier: Apache-2.0
/*
 * serve_body - writes whole answers
 *
 * A few KB of a request may make tens of MB of an answer, if it lists log-probabilities. The link passes such
 * an answer to the preparing threads, since it would serve no other request while it writes one. By then the
 * job is over: the engine has ended it and the link has left it, so the thread that takes it has it alone.
 */
#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/serve/front/serve_front.h"

#define LONG_ANSWER	(64 << 10)	/* bytes, estimated; the link takes less than 1 ms for as many */
#define TOKEN_BYTES	24		/* of a token with its log-probability */

bool serve_is_long_body(const struct serve_job *job)
{
	size_t bytes = 0;

	for (int32_t i = 0; i < job->num_choices; i++) {
		const struct serve_choice *c = &job->choices[i];

		bytes += c->out.text.len + job->parts[i / job->req.n].prompt_logprobs.len +
			 serve_unsent_logprobs(c) * (size_t)(job->req.logprobs + 1) * TOKEN_BYTES;
	}
	return bytes > LONG_ANSWER;
}

/* What the choices of a body point to. */
struct parts {
	struct serve_spelled *spelled;
	struct serve_message *messages;
};

static int fill(struct serve_job *job, struct cairn_token_stream *speller, const struct parts *parts,
		struct cairn_api_choice *choices)
{
	for (int32_t i = 0; i < job->num_parts && job->req.prompt_logprobs >= 0; i++) {
		struct cairn_api_out *list = &job->parts[i].prompt_logprobs;

		cairn_api_put(list, "]", 1);
		if (list->failed)
			return -ENOMEM;
	}
	for (int32_t i = 0; i < job->num_choices; i++) {
		struct serve_choice *c = &job->choices[i];

		CAIRN_TRY(serve_fill_choice(job, speller, c, serve_unsent_logprobs(c), &parts->spelled[i],
					    &choices[i]));
		CAIRN_TRY(serve_whole_message(job, c, &parts->messages[i], &choices[i]));
		choices[i].finish = c->finish;
		if (job->req.prompt_logprobs >= 0)
			choices[i].prompt_logprobs = &job->parts[i / job->req.n].prompt_logprobs;
	}
	return 0;
}

static int send_choices(struct serve_job *job, struct cairn_token_stream *speller)
{
	size_t num = (size_t)job->num_choices;
	struct cairn_api_choice *choices = calloc(num, sizeof(*choices));
	struct parts parts = { calloc(num, sizeof(*parts.spelled)), calloc(num, sizeof(*parts.messages)) };
	struct cairn_api_out out = { 0 };
	struct cairn_api_usage usage;
	int ret = choices && parts.spelled && parts.messages ? fill(job, speller, &parts, choices) : -ENOMEM;

	if (!ret) {
		serve_usage_of(job, &usage);
		cairn_api_body(&out, &job->answer, choices, num, &usage);
		serve_send_json(job->x, &out);
	}
	for (size_t i = 0; parts.spelled && i < num; i++)
		serve_free_spelled(&parts.spelled[i]);
	for (size_t i = 0; parts.messages && i < num; i++)
		serve_free_message(&parts.messages[i]);
	free(parts.messages);
	free(parts.spelled);
	free(choices);
	cairn_api_out_free(&out);
	return ret;
}

void serve_send_body(struct serve_job *job, struct cairn_token_stream *speller)
{
	if (job->kind == CAIRN_API_RESPONSES ? serve_send_items(job) : send_choices(job, speller))
		serve_fail_memory(job);
}

void serve_write_body(struct serve_job *job)
{
	struct cairn_token_stream *speller;

	if (cairn_token_stream_new(job->s->tokenizer, false, &speller)) {
		serve_fail_memory(job);
		return;
	}
	serve_send_body(job, speller);
	cairn_token_stream_free(speller);
}
