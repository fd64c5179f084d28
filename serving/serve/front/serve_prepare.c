// SPDX-License-Identifier: Apache-2.0
/*
 * serve_prepare - turns the body of a request into token ids
 *
 * Parsing JSON, rendering a template and tokenizing take milliseconds for a long prompt. Separate threads do
 * this work, so that neither the HTTP loop nor the link waits. They also answer /tokenize and /detokenize,
 * and write long answers (serve_body.c).
 *
 * Requests of more than LONG_BODY bytes wait in a queue of their own. One thread never serves that queue, so
 * that a short request need not wait for a long one. A text that cannot fit the context, however it is
 * tokenized, is refused without tokenizing it.
 */
#include <malloc.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "primitives/base/error.h"
#include "serving/serve/front/serve_front.h"

#define MAX_ECHOED	65536	/* limit of prompt tokens * n of a request, which bounds its answer */
#define MAX_LISTED	(1 << 18)	/* limit of prompt tokens * n * (1 + prompt_logprobs) */
#define LONG_BODY	(64 << 10)
#define TRIM_BODY	(1 << 20)

/* Turns an error of the tokenizer or the template into an API error. */
static int refuse_text(struct cairn_api_error *e, int ret, const char *param)
{
	if (ret == -ENOMEM)
		return cairn_api_refuse(e, 500, NULL, NULL, "no memory for this request");
	return cairn_api_refuse(e, 400, "invalid_value", param, "%s: %s", param, cairn_last_error());
}

/* Refuses a prompt's text that cannot fit the context, however it is tokenized. */
static int check_length(const struct serve_job *job, size_t num_bytes, const char *param,
			struct cairn_api_error *e)
{
	size_t longest = cairn_tokenizer_longest(job->s->tokenizer);
	int32_t max = serve_limits(job->s).max_context;

	if (job->kind == CAIRN_API_TOKENIZE || !longest || num_bytes / longest <= (size_t)max)
		return 0;
	return cairn_api_refuse(e, 400, "context_length_exceeded", param,
				"This model's maximum context length is %d tokens, but the %zu bytes of %s "
				"are at least %zu tokens", max, num_bytes, param, num_bytes / longest);
}

/* Renders the chat and encodes the text; special tokens are recognised only where the template wrote them. */
static int encode_messages(struct serve_job *job, int32_t **ids, size_t *num_ids, struct cairn_api_error *e)
{
	const struct cairn_api_request *r = &job->req;
	struct cairn_chat_input in = {
		.messages = r->messages, .extra = r->template_args,
		.tools = r->tool_choice == CAIRN_API_TOOL_NONE ? NULL : r->tools,
		.add_generation_prompt = r->add_generation_prompt, .now = time(NULL),
	};
	const char *param = cairn_api_prompt_name(r);
	struct cairn_chat_text text;
	int ret = cairn_chat_template_render(job->s->template, &in, &text);

	/* some templates, such as DeepSeek's, take the arguments of calls as text and fail with an object */
	if (ret == -EINVAL && cairn_api_arguments_as_text(&job->req) > 0)
		ret = cairn_chat_template_render(job->s->template, &in, &text);
	if (ret)
		return refuse_text(e, ret, param);
	job->prompt_end = cairn_prompt_end(job->s->reasoning, text.text, text.num_bytes);
	ret = check_length(job, text.num_bytes, param, e);
	if (ret) {
		cairn_chat_text_free(&text);
		return ret;
	}
	ret = cairn_tokenizer_encode_parts(job->s->tokenizer, text.text, text.num_bytes, text.user,
					   text.num_user, CAIRN_ENCODE_PARSE_SPECIAL |
					   (r->add_special_tokens ? CAIRN_ENCODE_ADD_SPECIAL : 0),
					   ids, num_ids);
	cairn_chat_text_free(&text);
	return ret ? refuse_text(e, ret, param) : 0;
}

static int encode_prompt(struct serve_job *job, const struct cairn_api_prompt *p, int32_t **ids,
			 size_t *num_ids, struct cairn_api_error *e)
{
	unsigned flags = CAIRN_ENCODE_PARSE_SPECIAL |
			 (job->req.add_special_tokens ? CAIRN_ENCODE_ADD_SPECIAL : 0);
	int ret;

	if (p->text) {
		CAIRN_TRY(check_length(job, p->num_bytes, "prompt", e));
		ret = cairn_tokenizer_encode(job->s->tokenizer, p->text, p->num_bytes, flags, ids, num_ids);
		return ret ? refuse_text(e, ret, "prompt") : 0;
	}
	*ids = malloc(((size_t)p->num_ids + 1) * sizeof(**ids));
	if (!*ids)
		return cairn_api_refuse(e, 500, NULL, NULL, "no memory for this request");
	memcpy(*ids, p->ids, (size_t)p->num_ids * sizeof(**ids));
	*num_ids = (size_t)p->num_ids;
	return 0;
}

static int encode(struct serve_job *job, int32_t which, int32_t **ids, size_t *num_ids,
		  struct cairn_api_error *e)
{
	return job->req.messages ? encode_messages(job, ids, num_ids, e) :
	       encode_prompt(job, &job->req.prompts[which], ids, num_ids, e);
}

static void answer(struct serve_job *job, struct cairn_api_out *out)
{
	serve_send_json(job->x, out);
	cairn_api_out_free(out);
}

/* Decodes each token alone; the bytes are concatenated in *arena. */
static int spell(struct serve_job *job, const int32_t *ids, size_t num, struct cairn_api_token *tokens,
		 struct cairn_api_out *arena)
{
	struct cairn_token_stream *stream;
	const char *bytes;
	int ret = cairn_token_stream_new(job->s->tokenizer, false, &stream);

	for (size_t i = 0; i < num && !ret; i++) {
		ret = cairn_token_stream_bytes(stream, ids[i], &bytes, &tokens[i].num_bytes);
		if (!ret)
			cairn_api_put(arena, bytes, tokens[i].num_bytes);
	}
	cairn_token_stream_free(stream);
	if (!ret && arena->failed)
		ret = -ENOMEM;
	for (size_t i = 0, at = 0; i < num && !ret; at += tokens[i++].num_bytes)
		tokens[i].bytes = arena->s ? arena->s + at : "";
	return ret;
}

static int tokenize(struct serve_job *job, struct cairn_api_error *e)
{
	struct cairn_api_out out = { 0 }, arena = { 0 };
	struct cairn_api_token *tokens = NULL;
	int32_t *ids;
	size_t num;
	int ret;

	CAIRN_TRY(encode(job, 0, &ids, &num, e));
	if (job->req.return_token_strs && num > CAIRN_API_MAX_VALUES / 2) {
		ret = cairn_api_refuse(e, 413, NULL, "return_token_strs",
				       "return_token_strs: the prompt has %zu tokens, at most %d are spelled",
				       num, CAIRN_API_MAX_VALUES / 2);
		goto out_free;
	}
	if (job->req.return_token_strs) {
		tokens = calloc(num + 1, sizeof(*tokens));
		ret = tokens ? spell(job, ids, num, tokens, &arena) : -ENOMEM;
		if (ret) {
			cairn_api_refuse(e, 500, NULL, NULL, "no memory for this request");
			goto out_free;
		}
	}
	cairn_api_tokenize_body(&out, ids, num, tokens, serve_limits(job->s).max_context);
	answer(job, &out);
	ret = 0;
out_free:
	cairn_api_out_free(&arena);
	free(tokens);
	free(ids);
	return ret;
}

static int detokenize(struct serve_job *job, struct cairn_api_error *e)
{
	struct cairn_api_out out = { 0 };
	size_t n, spelled = 0, max = 2 * (size_t)job->s->opt.max_body;
	char *text;

	/* an id that takes three bytes in the request may stand for hundreds of bytes */
	for (size_t i = 0; i < job->req.num_ids && spelled <= max; i++) {
		n = 0;
		cairn_tokenizer_token(job->s->tokenizer, job->req.ids[i], &n);
		spelled += n;
	}
	if (spelled > max)
		return cairn_api_refuse(e, 413, NULL, "tokens", "tokens: their text is longer than %zu bytes",
					max);
	if (cairn_tokenizer_decode(job->s->tokenizer, job->req.ids, job->req.num_ids, false, &text, &n))
		return cairn_api_refuse(e, 500, NULL, NULL, "%s", cairn_last_error());
	cairn_api_detokenize_body(&out, text, n);
	free(text);
	answer(job, &out);
	return 0;
}

static struct cairn_cache_salt digest(const char *text)
{
	uint8_t bytes[SHA256_DIGEST_LENGTH];
	struct cairn_cache_salt salt = { 0, 0 };
	SHA2_CTX ctx;

	if (!text || !*text)
		return salt;
	SHA256Init(&ctx);
	SHA256Update(&ctx, (const uint8_t *)text, strlen(text));
	SHA256Final(bytes, &ctx);
	memcpy(&salt.hi, bytes, sizeof(salt.hi));
	memcpy(&salt.lo, bytes + sizeof(salt.hi), sizeof(salt.lo));
	return salt;
}

/*
 * Writes the text of a prompt that its answers begin with. The text is not copied to the answers yet: a
 * request may wait long, and with n answers it would take n times the memory.
 */
static int echo(struct serve_job *job, struct serve_part *p)
{
	const struct cairn_api_prompt *prompt = &job->req.prompts[p - job->parts];
	struct cairn_token_stream *stream;
	const char *text;
	size_t n;
	int ret = cairn_token_stream_new(job->s->tokenizer, job->req.skip_special_tokens, &stream);

	if (!ret && job->req.logprobs >= 0) {
		p->offsets = calloc(p->num_ids, sizeof(*p->offsets));
		ret = p->offsets ? 0 : cairn_error(ENOMEM, "no memory for this request");
	}
	for (size_t i = 0; !ret && i <= p->num_ids; i++) {
		ret = i < p->num_ids ? cairn_token_stream_push(stream, p->ids[i], &text, &n) :
				       cairn_token_stream_finish(stream, &text, &n);
		if (!ret && i < p->num_ids && p->offsets)
			p->offsets[i] = (int32_t)p->num_chars;
		if (!ret && !prompt->text)
			cairn_api_put(&p->echo, text, n);
		if (!ret)
			p->num_chars += serve_count_chars(text, n);
	}
	if (!ret && prompt->text) {	/* the decoded tokens may differ from the text in their spaces */
		cairn_api_put(&p->echo, prompt->text, prompt->num_bytes);
		p->num_chars = serve_count_chars(prompt->text, prompt->num_bytes);
	}
	cairn_token_stream_free(stream);
	return ret || !p->echo.failed ? ret : cairn_error(ENOMEM, "no memory for this request");
}

static int make_choices(struct serve_job *job)
{
	struct cairn_api_request *r = &job->req;
	int32_t num = job->num_parts * (int32_t)r->n;
	uint64_t random[2];
	char id[CAIRN_API_ID_LEN];

	job->choices = calloc((size_t)num, sizeof(*job->choices));
	if (!job->choices)
		return cairn_error(ENOMEM, "no memory for this request");
	job->num_choices = num;
	CAIRN_TRY(cairn_stop_set_new(r->stop, (size_t)r->num_stop, &job->stops));
	if (r->tools && job->s->tool_format) {
		job->tools = cairn_tool_outline(job->s->tool_format, r->tools);
		if (!job->tools)
			return cairn_error(ENOMEM, "no memory for this request");
	}
	for (int32_t i = 0; i < job->num_parts && r->echo; i++)
		CAIRN_TRY(echo(job, &job->parts[i]));
	for (int32_t i = 0; i < job->num_choices; i++) {
		struct serve_choice *c = &job->choices[i];

		c->stop = c->stop_id = -1;
		cairn_stop_match_init(&c->match, job->stops, r->include_stop);
		CAIRN_TRY(serve_open_parser(job, c));
		/* marks are special tokens; the others are left out one by one */
		CAIRN_TRY(cairn_token_stream_new(job->s->tokenizer, r->skip_special_tokens && !c->parser,
						 &c->stream));
	}
	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return cairn_error(EIO, "getrandom: %s", strerror(errno));
	cairn_api_id(job->kind, random, id);
	job->seed = r->has_seed ? (uint64_t)r->seed : random[0] ^ random[1];
	job->call_seed = random[1];
	job->salt = digest(r->cache_salt);
	for (int i = 1; r->model && i < job->s->limits.num_models; i++)	/* name 0 is the model's */
		if (!strcmp(r->model, job->s->names[i]))
			job->adapter = i;
	if (r->given) {
		cairn_api_items_begin(&job->items, r, id, (int64_t)time(NULL));
		return cairn_api_items_failed(&job->items) ?
			       cairn_error(ENOMEM, "no memory for this request") : 0;
	}
	return cairn_api_answer_init(&job->answer, r, id, (int64_t)time(NULL));
}

static int generate(struct serve_job *job, struct cairn_api_error *e)
{
	struct cairn_api_limits limits = serve_limits(job->s);
	struct cairn_api_request *r = &job->req;
	int32_t num = r->messages ? 1 : r->num_prompts;

	if (r->n > job->s->opt.common.batch)
		return cairn_api_refuse(e, 400, "invalid_value", "n", "n is %lld, but this server runs "
					"%lld sequences at once", (long long)r->n,
					(long long)job->s->opt.common.batch);
	if (num > job->s->opt.max_queued)
		return cairn_api_refuse(e, 400, "invalid_value", "prompt", "prompt has %d prompts, but "
					"this server queues at most %lld", (int)num,
					(long long)job->s->opt.max_queued);
	job->parts = calloc((size_t)num, sizeof(*job->parts));
	if (!job->parts)
		return cairn_api_refuse(e, 500, NULL, NULL, "no memory for this request");
	job->num_parts = num;
	for (int32_t i = 0; i < job->num_parts; i++) {
		struct serve_part *p = &job->parts[i];

		p->job = job;
		if (r->prompt_logprobs >= 0)
			cairn_api_put(&p->prompt_logprobs, "[null", 5);
		CAIRN_TRY(encode(job, i, &p->ids, &p->num_ids, e));
		CAIRN_TRY(cairn_api_fit(r, &limits, p->num_ids, &p->max_tokens, e));
		job->num_prompt_tokens += (int64_t)p->num_ids;
	}
	CAIRN_TRY(serve_constrain(job, e));
	if (r->echo && job->num_prompt_tokens * r->n > MAX_ECHOED)
		return cairn_api_refuse(e, 400, "invalid_value", "echo", "echo: %lld prompt tokens times n, "
					"%lld, are more than %d", (long long)job->num_prompt_tokens,
					(long long)r->n, MAX_ECHOED);
	if (job->num_prompt_tokens * r->n * (r->prompt_logprobs + 1) > MAX_LISTED)
		return cairn_api_refuse(e, 400, "invalid_value", "prompt_logprobs", "prompt_logprobs: %lld "
					"prompt tokens times n, %lld, times 1 + %lld are more than %d",
					(long long)job->num_prompt_tokens, (long long)r->n,
					(long long)r->prompt_logprobs, MAX_LISTED);
	if (make_choices(job))
		return cairn_api_refuse(e, 500, NULL, NULL, "%s", cairn_last_error());
	if (cairn_api_request_detach(r))
		return cairn_api_refuse(e, 500, NULL, NULL, "no memory for this request");
	return 0;
}

static void prepare(struct serve_job *job)
{
	const size_t body_bytes = job->body_bytes;
	struct cairn_api_error e;
	int ret = cairn_api_request_parse(job->kind, job->body, job->body_bytes, &job->s->limits, &job->req,
					  &e);

	if (!ret && job->kind == CAIRN_API_TOKENIZE)
		ret = tokenize(job, &e);
	else if (!ret && job->kind == CAIRN_API_DETOKENIZE)
		ret = detokenize(job, &e);
	else if (!ret)
		ret = generate(job, &e);
	if (ret)
		serve_refuse(job->x, &e);
	if (ret || job->kind == CAIRN_API_TOKENIZE || job->kind == CAIRN_API_DETOKENIZE)
		serve_drop_job(job);
	else
		serve_submit(job->s, job);
	/* the parsed body lies below what the job keeps, so free() alone does not return it to the system */
	if (body_bytes > TRIM_BODY)
		malloc_trim(0);
}

static void add_last(struct serve_queue *q, struct serve_job *job)
{
	job->next = NULL;
	*q->tail = job;
	q->tail = &job->next;
}

static struct serve_job *take_first(struct serve_queue *q)
{
	struct serve_job *job = q->first;

	q->first = job->next;
	if (!q->first)
		q->tail = &q->first;
	return job;
}

static void end_late(struct serve_job *job)
{
	struct cairn_api_error e;

	serve_refuse_late(job->s, &e);
	serve_refuse(job->x, &e);
	serve_drop_job(job);
}

int64_t serve_end_unprepared(struct serve *s)
{
	int64_t now = serve_now_ns(), next = INT64_MAX;
	struct serve_job *late = NULL, *job;

	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < 2; i++) {	/* the first of each queue has come first */
		struct serve_queue *q = &s->unprepared[i];

		while (q->first && serve_end_ns(q->first) <= now) {
			job = take_first(q);
			job->next = late;
			late = job;
		}
		if (q->first && serve_end_ns(q->first) < next)
			next = serve_end_ns(q->first);
	}
	pthread_mutex_unlock(&s->lock);
	while ((job = late)) {
		late = job->next;
		end_late(job);
	}
	return next;
}

/*
 * Takes a short job or, if there is none and another thread is left for short jobs, a long one: first those
 * that only have to be written. Returns NULL if there is none to take. Call with the lock held.
 */
static struct serve_job *take_job(struct serve *s, bool *is_long)
{
	struct serve_queue *q = &s->unprepared[0];

	if (!q->first && s->num_long < s->opt.threads)
		q = s->unwritten.first ? &s->unwritten : &s->unprepared[1];
	if (!q->first)
		return NULL;
	*is_long = q != &s->unprepared[0];
	s->num_long += *is_long;
	return take_first(q);
}

static void *prepare_all(void *arg)
{
	struct serve *s = arg;
	struct serve_job *job;
	bool stopped, is_long;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		while (!(job = take_job(s, &is_long)) && !s->stop_preparing)
			pthread_cond_wait(&s->more, &s->lock);
		if (!job)
			break;
		stopped = s->stop_preparing;
		pthread_mutex_unlock(&s->lock);
		if (stopped || atomic_load(&job->gone)) {
			cairn_http_abort(job->x);
			serve_drop_job(job);
		} else if (serve_now_ns() >= serve_end_ns(job)) {
			end_late(job);
		} else if (job->unwritten) {
			serve_write_body(job);
			serve_drop_job(job);
		} else {
			prepare(job);
		}
		pthread_mutex_lock(&s->lock);
		s->num_long -= is_long;
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void serve_prepare(struct serve *s, struct serve_job *job)
{
	struct serve_queue *q = &s->unprepared[job->body_bytes > LONG_BODY];

	serve_job_get(job);
	pthread_mutex_lock(&s->lock);
	add_last(q, job);
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
}

void serve_pass_body(struct serve *s, struct serve_job *job)
{
	bool stopped;

	pthread_mutex_lock(&s->lock);
	stopped = s->stop_preparing;	/* then no thread may be left */
	if (!stopped)
		add_last(&s->unwritten, job);
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
	if (!stopped)
		return;
	cairn_http_abort(job->x);
	serve_drop_job(job);
}

int serve_start_preparing(struct serve *s)
{
	int64_t num = s->opt.threads + 1;	/* one thread is always free for short requests */

	s->threads = calloc((size_t)num, sizeof(*s->threads));
	if (!s->threads)
		return cairn_error(ENOMEM, "serve: no memory for threads");
	for (; s->num_threads < num; s->num_threads++) {
		int ret = pthread_create(&s->threads[s->num_threads], NULL, prepare_all, s);

		if (ret)
			return cairn_error(EIO, "serve: no thread: %s", strerror(ret));
	}
	return 0;
}

void serve_stop_preparing(struct serve *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop_preparing = true;
	pthread_cond_broadcast(&s->more);
	pthread_mutex_unlock(&s->lock);
	for (int i = 0; i < s->num_threads; i++)
		pthread_join(s->threads[i], NULL);
	free(s->threads);
	s->threads = NULL;
	s->num_threads = 0;
}
