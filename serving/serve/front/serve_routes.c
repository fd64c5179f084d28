// SPDX-License-Identifier: Apache-2.0
/* serve_routes - HTTP routes and the requests that are answered at once */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/page/page.h"
#include "serving/serve/front/serve_front.h"

#define RETRY_LOADING_S	5
#define LATE_MS		2000	/* time to read the error after --request-timeout */
#define MAX_BODIES	(256ll << 20)	/* limit on the bytes of all bodies; 2 * --max-body if that is more */

int64_t serve_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t serve_end_ns(const struct serve_job *job)
{
	return job->s->opt.request_s ? job->begin_ns + job->s->opt.request_s * 1000000000 : INT64_MAX;
}

struct cairn_api_limits serve_limits(const struct serve *s)
{
	struct cairn_api_limits limits = s->limits;

	limits.max_context = atomic_load(&s->max_context);
	return limits;
}

void serve_refuse(struct cairn_http_exchange *x, const struct cairn_api_error *e)
{
	struct cairn_api_out out = { 0 };
	char seconds[16];
	struct cairn_http_field retry = { "Retry-After", seconds };

	snprintf(seconds, sizeof(seconds), "%d", e->retry_after_s);
	cairn_api_error_body(&out, e);
	if (out.failed || cairn_http_answer(x, e->status, "application/json", &retry, e->retry_after_s > 0,
					    out.s, out.len))
		cairn_http_abort(x);
	cairn_api_out_free(&out);
}

void serve_send_json(struct cairn_http_exchange *x, const struct cairn_api_out *out)
{
	int ret = out->failed ? -ENOMEM :
		  cairn_http_answer(x, 200, "application/json", NULL, 0, out->s, out->len);

	if (ret == -EAGAIN)
		cairn_http_error(x, 503, "server_error", NULL, "overloaded",
				 "this answer has %zu bytes, and clients have not read too many others",
				 out->len);
	else if (ret)
		cairn_http_error(x, 500, "server_error", NULL, NULL, "no memory for this answer");
}

void serve_refuse_ending(struct cairn_api_error *e)
{
	cairn_api_refuse(e, 503, "shutting_down", NULL, "the server is shutting down");
	e->retry_after_s = RETRY_LOADING_S;
}

void serve_refuse_late(const struct serve *s, struct cairn_api_error *e)
{
	cairn_api_refuse(e, 504, "deadline_exceeded", NULL, "the answer took longer than %lld s",
			 (long long)s->opt.request_s);
}

struct serve_job *serve_job_get(struct serve_job *job)
{
	atomic_fetch_add(&job->refs, 1);
	return job;
}

void serve_job_put(struct serve_job *job)
{
	if (atomic_fetch_sub(&job->refs, 1) != 1)
		return;
	atomic_fetch_sub(&job->s->num_jobs, 1);
	free(job);
}

void serve_drop_job(struct serve_job *job)
{
	for (int32_t i = 0; i < job->num_choices; i++) {
		cairn_token_stream_free(job->choices[i].stream);
		cairn_output_parser_free(job->choices[i].parser);
		cairn_output_free(&job->choices[i].out);
		free(job->choices[i].logprobs);
		free(job->choices[i].taken);
	}
	for (int32_t i = 0; i < job->num_parts; i++) {
		free(job->parts[i].ids);
		free(job->parts[i].offsets);
		free(job->parts[i].scored);
		cairn_api_out_free(&job->parts[i].echo);
		cairn_api_out_free(&job->parts[i].prompt_logprobs);
	}
	free(job->choices);
	free(job->parts);
	cairn_stop_set_free(job->stops);
	cairn_api_items_free(&job->items);
	cairn_api_answer_free(&job->answer);
	cairn_api_request_free(&job->req);
	json_decref(job->tools);
	serve_job_put(job);
}

static void job_gone(void *ctx)
{
	serve_gone(ctx);
}

static void job_done(void *ctx)
{
	serve_job_put(ctx);
}

/* Returns whether the server takes requests now; if not, it has already sent the refusal. */
static bool may_come(struct serve *s, struct cairn_http_exchange *x, bool needs_worker)
{
	struct cairn_api_error e;
	int state = atomic_load(&s->state);

	if (atomic_load(&s->draining)) {
		serve_refuse_ending(&e);
	} else if (needs_worker && state != SERVE_READY) {
		cairn_api_refuse(&e, 503, "not_ready", NULL, state == SERVE_LOADING ?
				 "the model is being loaded" :
				 "the worker has failed and is being restarted");
		e.retry_after_s = state == SERVE_LOADING ? RETRY_LOADING_S : 1;
	} else if (needs_worker && atomic_load(&s->num_queued) >= s->opt.max_queued) {
		cairn_api_refuse(&e, 429, "queue_full", NULL, "%lld prompts are queued, which is the limit",
				 atomic_load(&s->num_queued));
		e.retry_after_s = 1;
	} else {
		return true;
	}
	serve_refuse(x, &e);
	return false;
}

static void take_job(struct serve *s, struct cairn_http_exchange *x, const struct cairn_http_request *req,
		     enum cairn_api_kind kind)
{
	bool generates = kind != CAIRN_API_TOKENIZE && kind != CAIRN_API_DETOKENIZE;
	struct serve_job *job;

	if (!may_come(s, x, generates))
		return;
	job = calloc(1, sizeof(*job));
	if (!job) {
		cairn_http_error(x, 500, "server_error", NULL, NULL, "no memory for this request");
		return;
	}
	job->s = s;
	job->x = x;
	job->kind = kind;
	job->body = req->body;
	job->body_bytes = req->body_bytes;
	job->begin_ns = serve_now_ns();
	atomic_init(&job->refs, 1);
	atomic_init(&job->gone, false);
	atomic_fetch_add(&s->num_jobs, 1);
	cairn_http_watch(x, &(struct cairn_http_watch){ job_gone, job_done, job });
	serve_prepare(s, job);
}

static void completions(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	take_job(ctx, x, req, CAIRN_API_COMPLETION);
}

static void chat(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	take_job(ctx, x, req, CAIRN_API_CHAT);
}

static void responses(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	take_job(ctx, x, req, CAIRN_API_RESPONSES);
}

static void tokenize(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	take_job(ctx, x, req, CAIRN_API_TOKENIZE);
}

static void detokenize(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	take_job(ctx, x, req, CAIRN_API_DETOKENIZE);
}

static void answer(struct cairn_http_exchange *x, int status, const char *type, const char *text, size_t n)
{
	struct cairn_http_field retry = { "Retry-After", "1" };

	if (!text || cairn_http_answer(x, status, type, &retry, status == 503, text, n))
		cairn_http_error(x, 503, "server_error", NULL, "overloaded", "no memory for this answer");
}

static void models(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	struct serve *s = ctx;
	struct cairn_api_limits limits = serve_limits(s);
	struct cairn_api_out out = { 0 };

	(void)req;
	cairn_api_models_body(&out, &limits, s->created);
	answer(x, 200, "application/json", out.failed ? NULL : out.s, out.len);
	cairn_api_out_free(&out);
}

/* GET /v1/models/NAME; NAME may contain slashes. */
static void model(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	struct serve *s = ctx;
	const char *name = req->path + strlen("/v1/models/");
	struct cairn_api_limits limits = serve_limits(s);
	struct cairn_api_out out = { 0 };
	struct cairn_api_error e;
	int i = 0;

	while (i < limits.num_models && strcmp(name, limits.models[i]))
		i++;
	if (i == limits.num_models) {
		cairn_api_refuse(&e, 404, "model_not_found", "model", "the model '%.100s' does not exist",
				 name);
		serve_refuse(x, &e);
		return;
	}
	/* the only element of a list of this model, without the list around it */
	limits.models += i;
	limits.num_models = 1;
	cairn_api_models_body(&out, &limits, s->created);
	answer(x, 200, "application/json",
	       out.failed ? NULL : out.s + strlen("{\"object\":\"list\",\"data\":["),
	       out.len - strlen("{\"object\":\"list\",\"data\":[]}"));
	cairn_api_out_free(&out);
}

static void page(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	static const struct cairn_http_field fields[] = { CAIRN_PAGE_HEADERS };

	(void)ctx;
	(void)req;
	if (cairn_http_answer(x, 200, CAIRN_PAGE_TYPE, fields, sizeof(fields) / sizeof(fields[0]), cairn_page,
			      (size_t)(cairn_page_end - cairn_page)))
		cairn_http_abort(x);
}

/* Reports a worker as silent after half of --hang-timeout. After all of it, the worker is killed. */
static void health(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	static const char *const states[] = { "loading", "ready", "failed" };
	struct serve *s = ctx;
	int state = atomic_load(&s->state);
	int64_t now = serve_now_ns(), beat = now - atomic_load(&s->beat_ns), step = atomic_load(&s->step_ns);
	bool ok = state == SERVE_READY && beat < s->opt.hang_s * 500000000;
	char text[256], age[32] = "null", heard[32] = "null";
	int n;

	(void)req;
	if (step)
		snprintf(age, sizeof(age), "%.3f", (double)(now - step) * 1e-9);
	if (beat < now)
		snprintf(heard, sizeof(heard), "%.3f", (double)beat * 1e-9);
	n = snprintf(text, sizeof(text), "{\"status\":\"%s\",\"worker\":\"%s\",\"busy\":%s,"
		     "\"last_step_age_s\":%s,\"last_heard_of_s\":%s,\"restarts\":%d,\"draining\":%s}",
		     ok ? "ok" : "unavailable", ok || state != SERVE_READY ? states[state] : "silent",
		     atomic_load(&s->busy) ? "true" : "false", age, heard,
		     atomic_load(&s->restarts), atomic_load(&s->draining) ? "true" : "false");
	answer(x, ok ? 200 : 503, "application/json", text, (size_t)n);
}

static void ready(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	struct serve *s = ctx;
	bool ok = atomic_load(&s->state) == SERVE_READY && !atomic_load(&s->draining);
	const char *text = ok ? "{\"ready\":true}" : "{\"ready\":false}";

	(void)req;
	answer(x, ok ? 200 : 503, "application/json", text, strlen(text));
}

static void metrics(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	struct serve *s = ctx;
	char *text = NULL;
	uint64_t lost;
	size_t n = 0;

	(void)req;
	lost = serve_log_lost(s->log);
	cairn_metric_add(s->metrics, CAIRN_LOG_LINES_LOST, 0, lost - s->told_lost);
	s->told_lost = lost;
	cairn_metric_set(s->metrics, CAIRN_TOKENS_QUEUED, (double)atomic_load(&s->queued_tokens));
	if (cairn_metrics_text(s->metrics, &text, &n))
		text = NULL;
	answer(x, 200, CAIRN_METRICS_TYPE, text, n);
	free(text);
}

static void log_line(void *ctx, const struct cairn_http_log *e)
{
	struct serve *s = ctx;
	int why = e->status == 401 ? CAIRN_REFUSED_AUTH : e->status == 429 ? CAIRN_REFUSED_QUEUE :
		  e->status == 503 ? CAIRN_REFUSED_UNAVAILABLE : CAIRN_REFUSED_INVALID;
	bool open = !strcmp(e->path, "/health") || !strcmp(e->path, "/ready");

	if (!open && ((e->status >= 400 && e->status < 500) || e->status == 503))
		cairn_metric_add(s->metrics, CAIRN_REQUESTS_REFUSED, why, 1);
	if (!s->opt.quiet)
		serve_log_print(s->log, "%s %s \"%s %s\" %d %s in %llu out %llu first %.3f total %.3f ms",
				e->peer, e->id, e->method, e->path, e->status,
				cairn_http_outcome_names[e->outcome], (unsigned long long)e->bytes_in,
				(unsigned long long)e->bytes_out, (double)e->first_us * 1e-3,
				(double)e->total_us * 1e-3);
}

static void version(void *ctx, struct cairn_http_exchange *x, const struct cairn_http_request *req)
{
	char text[96];
	int n = snprintf(text, sizeof(text), "{\"version\":\"%s\",\"source\":\"%s\"}", CAIRN_VERSION,
			 cairn_source_digest());

	(void)ctx;
	(void)req;
	answer(x, 200, "application/json", text, (size_t)n);
}

int serve_open_http(struct serve *s)
{
	const struct cairn_http_route routes[] = {
		{ "POST", "/v1/completions", CAIRN_HTTP_JSON, 0, completions, s },
		{ "POST", "/v1/chat/completions", CAIRN_HTTP_JSON, 0, chat, s },
		{ "POST", "/v1/responses", CAIRN_HTTP_JSON, 0, responses, s },
		{ "GET", "/v1/models", 0, 0, models, s },
		{ "GET", "/v1/models/*", 0, 0, model, s },
		{ "POST", "/tokenize", CAIRN_HTTP_JSON, 0, tokenize, s },
		{ "POST", "/detokenize", CAIRN_HTTP_JSON, 0, detokenize, s },
		{ "GET", "/health", CAIRN_HTTP_OPEN, 0, health, s },
		{ "GET", "/ready", CAIRN_HTTP_OPEN, 0, ready, s },
		{ "GET", "/metrics", 0, 0, metrics, s },
		{ "GET", "/version", 0, 0, version, s },
		{ "GET", "/", CAIRN_HTTP_OPEN, 0, page, s },	/* the page asks its user for the key */
	};
	const struct cairn_serve_options *o = &s->opt;
	struct cairn_http_options options = {
		.address = o->host, .port = (int)o->port, .unix_path = o->uds,
		.api_key = s->key[0] ? s->key : NULL,
		.check_host = true, .allow_origin = o->allow_origin,
		.max_connections = (int)o->max_connections, .max_per_address = (int)o->max_per_address,
		/* more than can be queued and running, so that excess prompts get a 429 instead of a 503 */
		.max_requests = (int)(o->max_queued + o->common.batch + 256),
		.max_body = (size_t)o->max_body,
		.max_body_total = (size_t)(2 * o->max_body > MAX_BODIES ? 2 * o->max_body : MAX_BODIES),
		.stream_buffer = (size_t)o->stream_buffer,
		.request_timeout_ms = (int)o->header_s * 1000, .stall_timeout_ms = (int)o->stall_s * 1000,
		/* the link ends late answers; this limits how long clients may read what it has sent */
		.answer_timeout_ms = o->request_s ? (int)o->request_s * 1000 + LATE_MS : 0,
		.log = log_line, .log_ctx = s,
	};

	return cairn_http_create(&s->http, &options, routes, sizeof(routes) / sizeof(routes[0]));
}
