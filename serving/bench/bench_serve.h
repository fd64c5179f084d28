/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_serve - the parts of `cairn bench serve`, a load generator for OpenAI-compatible servers
 *
 *   bench_serve.c           the command: options, run, what is printed
 *   bench_serve_load.c      lengths, arrivals, prompts and bodies, from seeds
 *   bench_serve_target.c    where the server is, one question to it
 *   bench_serve_client.c    one thread and epoll: connections, when what is sent
 *   bench_serve_answer.c    bytes of an answer (HTTP, SSE, JSON) to times and counts of tokens
 *   bench_serve_stats.c     percentiles, throughput, table and record
 *
 * Times are nanoseconds of CLOCK_MONOTONIC since the run began. A request is due when the schedule says so,
 * whatever became of those before it: with Poisson arrivals the schedule is drawn before the run, in a closed
 * loop a request is due when the one before it in its place ended. Latency counts from there, so that a
 * server that makes the client late is not excused (no coordinated omission); what counts from the moment of
 * sending is reported beside it.
 */
#ifndef CAIRN_BENCH_SERVE_H
#define CAIRN_BENCH_SERVE_H

#include <jansson.h>
#include <llhttp.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

int cairn_cmd_bench_serve(int argc, char **argv);

/* What became of a request. STATUS and EVENT: refused or failed in good order; what follows: not so. */
enum bench_outcome {
	BENCH_UNSENT, /* the run's time was over before it was due */
	BENCH_OK,
	BENCH_STATUS,    /* a status of HTTP other than 200 */
	BENCH_EVENT,     /* an error object within the stream */
	BENCH_CONNECT,   /* no connection to be had */
	BENCH_CUT,       /* the connection ended before the answer did */
	BENCH_NO_DONE,   /* the stream ended in good order without [DONE] */
	BENCH_BAD_HTTP,  /* no HTTP response */
	BENCH_BAD_EVENT, /* no stream of events, or one that is no JSON object */
	BENCH_EMPTY,     /* a stream without a token */
	BENCH_LOST,      /* tokens that came, those said to have come, those asked for: not all the same */
	BENCH_TIMEOUT,
	BENCH_NUM_OUTCOMES
};
extern const char *const bench_outcome_names[BENCH_NUM_OUTCOMES];

struct bench_request {
	int32_t prompt_tokens, max_tokens;                  /* asked for */
	int64_t due_ns, sent_ns, first_ns, last_ns, end_ns; /* first and last token; -1: never */
	int64_t used_prompt, used_cached;                   /* by the server's count; -1: it said nothing */
	int64_t output_tokens;                              /* by the server's count, else chunks */
	int64_t counted; /* tokens seen; chunks where they cannot be counted */
	enum bench_outcome outcome;
	int status; /* of HTTP; 0: none came */
};

/* A growing list of samples. */
struct bench_samples {
	double *v;
	size_t n, cap;
};
int bench_sample(struct bench_samples *s, double v); /* -ENOMEM */

/*
 * bench_serve_answer.c. One answer after another from one connection. Text of what went wrong: `why`.
 */
struct bench_answer {
	struct bench_request *req;
	struct bench_samples *itl;           /* ns between chunks with tokens; NULL: not wanted */
	bool count_tokens;                   /* each token has an entry of logprobs */
	bool exact_length;                   /* as many tokens as asked for, no fewer */
	bool plain;                          /* no stream: the body is kept */
	bool complete, keep_alive, any_byte; /* out */
	int64_t start_ns;                    /* of the run */
	char why[200];
	/* private */
	llhttp_t parser;
	char *buf; /* a plain body, or an event's data */
	size_t len, cap;
	char line[16]; /* of a line, what decides its kind; `data:` goes to buf */
	int64_t now_ns;
	int line_len;
	bool in_data, cr, done, named, is_events;
	char field[16], value[20];
	int field_len, value_len;
};
void bench_answer_begin(struct bench_answer *a, struct bench_request *req);
/* now_ns: absolute, when the bytes came. True: the answer is over, req->outcome set. */
bool bench_answer_push(struct bench_answer *a, const char *bytes, size_t n, int64_t now_ns);
/* The connection ended (n bytes never came): what the request's outcome is then. */
void bench_answer_eof(struct bench_answer *a, int64_t now_ns);
void bench_answer_free(struct bench_answer *a);

/* bench_serve_load.c */
struct bench_load {
	uint64_t seed;
	int64_t num, input_len, output_len, shared_prefix, vocab;
	double rate;                 /* requests a second; 0: closed loop */
	const char *lengths, *trace; /* fit's name, file's name; NULL: fixed */
	int64_t max_len;             /* of prompt and answer together; 0: no limit */
	bool chat, respect_eos, count_tokens;
	double temperature;
	const char *model;
};
uint64_t bench_random(uint64_t seed, uint64_t stream, uint64_t i); /* a function of its arguments */
/* out: [load->num], due times and lengths filled in. -EINVAL, -ENOMEM. */
int bench_load_plan(const struct bench_load *load, struct bench_request **out);
/* JSON of request i, malloc()ed. */
int bench_load_body(const struct bench_load *load, const struct bench_request *req, size_t i, char **body,
		    size_t *bytes);

/* bench_serve_target.c */
struct bench_target {
	struct sockaddr_storage addr;
	socklen_t addr_len;
	char host[80], base[256]; /* "127.0.0.1:8000"; path before /v1, "" or "/x" */
	const char *api_key;      /* NULL: none */
};
/* http://ADDRESS[:PORT][/PATH], the address numeric. -EINVAL. */
int bench_target_parse(const char *url, struct bench_target *out);
/* GET path, one answer: its body, malloc()ed, NUL-terminated. -EIO says why. */
int bench_fetch(const struct bench_target *target, const char *path, int timeout_ms, char **body);

/* The bytes of a POST, or of a GET where body is NULL; malloc()ed, NULL for want of memory. */
char *bench_request_text(const struct bench_target *t, const char *path, const char *body, size_t body_len,
			 size_t *len);

/* bench_serve_client.c */
struct bench_run {
	const struct bench_target *target;
	const struct bench_load *load;
	struct bench_request *reqs;
	size_t num;
	int concurrency;                   /* most in flight; 0: no limit */
	int64_t timeout_ns, duration_ns;   /* of a request; in which requests are sent (0: no limit) */
	int idle, stalled;                 /* connections that say nothing; that read nothing */
	const atomic_bool *stop;           /* once it is set, by anybody, no more is sent; NULL: never */
	int64_t stalled_len;               /* tokens those ask for */
	/* out */
	struct bench_samples itl;
	int64_t end_ns; /* of the last request */
	int max_in_flight;
	uint64_t connections, idle_closed, stalled_closed;
	char first_error[256];
};
int bench_run(struct bench_run *run);

/* bench_serve_stats.c */
struct bench_summary {
	size_t n;
	double mean, p50, p90, p95, p99, min, max; /* 0 where n is 0 */
};
/* Sorts v. Percentiles between two samples are taken on the line between them. */
void bench_summarise(double *v, size_t n, struct bench_summary *out);

struct bench_report {
	struct bench_summary ttft, ttft_sent, tpot, itl, e2e, e2e_sent, late; /* ns */
	size_t by_outcome[BENCH_NUM_OUTCOMES];
	struct {
		int status;
		size_t n;
	} by_status[16]; /* of BENCH_STATUS; what does not fit counts in the last */
	int num_status;
	size_t sent, ok, uncounted; /* uncounted: no usage came, chunks were taken for tokens */
	int64_t prompt_tokens, cached_tokens, output_tokens, duration_ns;
};
int bench_report_make(struct bench_run *run, struct bench_report *out);
void bench_report_print(const struct bench_run *run, const struct bench_report *r, FILE *to);
/* The members of a record, without braces. */
void bench_report_members(const struct bench_run *run, const struct bench_report *r, FILE *to);

#endif
