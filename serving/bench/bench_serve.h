/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_serve - interfaces within `cairn bench serve`, a load generator for OpenAI-compatible servers
 *
 *   bench_serve.c           the command: options, run, output
 *   bench_serve_load.c      lengths, arrivals, prompts and bodies, generated from seeds
 *   bench_serve_target.c    the server's address; single requests
 *   bench_serve_client.c    connections and the schedule; one thread with epoll
 *   bench_serve_answer.c    turns an answer (HTTP, SSE, JSON) into times and token counts
 *   bench_serve_stats.c     percentiles, throughput, table and record
 *
 * Times are nanoseconds of CLOCK_MONOTONIC since the start of the run. The schedule says when a request is
 * due. Poisson arrivals are drawn before the run and do not depend on earlier answers. In a closed loop a
 * request is due when the previous request of its slot has ended. Latency counts from the due time, so that
 * it includes the delays that a slow server causes to later requests (no coordinated omission). Latency from
 * the time of sending is reported as well.
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

/* The outcome of a request. STATUS and EVENT are errors reported as the API specifies; later ones are not. */
enum bench_outcome {
	BENCH_UNSENT, /* the run ended before the request was sent */
	BENCH_OK,
	BENCH_STATUS,    /* an HTTP status other than 200 */
	BENCH_EVENT,     /* an error object within the stream */
	BENCH_CONNECT,   /* the connection failed */
	BENCH_CUT,       /* the connection ended before the answer did */
	BENCH_NO_DONE,   /* the HTTP body is complete but lacks [DONE] */
	BENCH_BAD_HTTP,  /* not an HTTP response */
	BENCH_BAD_EVENT, /* not an event stream, or an event that is not a JSON object */
	BENCH_EMPTY,     /* a stream without a token */
	BENCH_LOST,      /* the counts of received, reported and requested tokens differ */
	BENCH_TIMEOUT,
	BENCH_NUM_OUTCOMES
};
extern const char *const bench_outcome_names[BENCH_NUM_OUTCOMES];

struct bench_request {
	int32_t prompt_tokens, max_tokens;                  /* lengths of prompt and answer requested */
	int64_t due_ns, sent_ns, first_ns, last_ns, end_ns; /* first, last: of its tokens; -1: never */
	int64_t used_prompt, used_cached;                   /* the server's counts; -1: not reported */
	int64_t output_tokens; /* the server's count; if not reported, the number of chunks */
	int64_t counted; /* tokens received; number of chunks if tokens cannot be counted */
	enum bench_outcome outcome;
	int status; /* HTTP status; 0: none received */
};

/* A growing list of samples. */
struct bench_samples {
	double *v;
	size_t n, cap;
};
int bench_sample(struct bench_samples *s, double v); /* appends v; 0 or -ENOMEM */

/*
 * bench_serve_answer.c: reads the successive answers of one connection. `why` describes a failure.
 */
struct bench_answer {
	struct bench_request *req;
	struct bench_samples *itl;           /* ns between chunks with tokens; NULL: not recorded */
	bool count_tokens;                   /* count tokens by their logprobs entries */
	bool exact_length;                   /* fewer tokens than requested are an error */
	bool plain;                          /* not a stream: keep the body in buf */
	bool complete, keep_alive, any_byte; /* out */
	int64_t start_ns;                    /* CLOCK_MONOTONIC at the start of the run */
	char why[200];
	/* private */
	llhttp_t parser;
	char *buf; /* a plain body, or an event's data */
	size_t len, cap;
	char line[16]; /* start of the current line, enough to see its kind; data goes to buf */
	int64_t now_ns;
	int line_len;
	bool in_data, cr, done, named, is_events;
	char field[16], value[20];
	int field_len, value_len;
};
void bench_answer_begin(struct bench_answer *a, struct bench_request *req);
/* now_ns: when the bytes arrived, CLOCK_MONOTONIC. Returns true if the answer has ended; its outcome is
 * then set. */
bool bench_answer_push(struct bench_answer *a, const char *bytes, size_t n, int64_t now_ns);
/* Reports that the connection has ended; sets the request's outcome. */
void bench_answer_eof(struct bench_answer *a, int64_t now_ns);
void bench_answer_free(struct bench_answer *a);

/* bench_serve_load.c */
struct bench_load {
	uint64_t seed;
	int64_t num, input_len, output_len, shared_prefix, vocab;
	double rate;                 /* requests per second; 0: closed loop */
	const char *lengths, *trace; /* name of the fit, name of the file; both NULL: fixed lengths */
	int64_t max_len;             /* tokens of prompt and answer together; 0: no limit */
	bool chat, respect_eos, count_tokens;
	double temperature;
	const char *model;
};
uint64_t bench_random(uint64_t seed, uint64_t stream, uint64_t i); /* stateless: a hash of its arguments */
/* Allocates *out, [load->num] requests with due times and lengths. Returns 0, -EINVAL or -ENOMEM. */
int bench_load_plan(const struct bench_load *load, struct bench_request **out);
/* Makes the JSON body of request i; the caller frees *body. */
int bench_load_body(const struct bench_load *load, const struct bench_request *req, size_t i, char **body,
		    size_t *bytes);

/* bench_serve_target.c */
struct bench_target {
	struct sockaddr_storage addr;
	socklen_t addr_len;
	char host[80], base[256]; /* "127.0.0.1:8000"; path before /v1, "" or "/x" */
	const char *api_key;      /* NULL: none */
};
/* Parses http://ADDRESS[:PORT][/PATH] with a numeric address. Returns 0 or -EINVAL. */
int bench_target_parse(const char *url, struct bench_target *out);
/*
 * Sends a GET for path. *body: the answer's body, NUL-terminated, freed by the caller. -EIO: no valid answer.
 */
int bench_fetch(const struct bench_target *target, const char *path, int timeout_ms, char **body);

/* Returns the bytes of a POST, or of a GET if body is NULL. The caller frees them; NULL: no memory. */
char *bench_request_text(const struct bench_target *t, const char *path, const char *body, size_t body_len,
			 size_t *len);

/* bench_serve_client.c */
struct bench_run {
	const struct bench_target *target;
	const struct bench_load *load;
	struct bench_request *reqs;
	size_t num;
	int concurrency;                   /* maximum in flight; 0: no limit */
	int64_t timeout_ns, duration_ns;   /* limit of a request; of the sending phase (0: no limit) */
	int idle, stalled;                 /* connections that send nothing; that read nothing */
	const atomic_bool *stop;           /* no request is sent once it is true; may be NULL */
	int64_t stalled_len;               /* tokens that a stalled connection requests */
	/* out */
	struct bench_samples itl;
	int64_t end_ns; /* end of the last request */
	int max_in_flight;
	uint64_t connections, idle_closed, stalled_closed;
	char first_error[256];
};
int bench_run(struct bench_run *run);

/* bench_serve_stats.c */
struct bench_summary {
	size_t n;
	double mean, p50, p90, p95, p99, min, max; /* 0 if n is 0 */
};
/* Sorts v. Percentiles are interpolated linearly between samples. */
void bench_summarise(double *v, size_t n, struct bench_summary *out);

struct bench_report {
	struct bench_summary ttft, ttft_sent, tpot, itl, e2e, e2e_sent, late; /* ns */
	size_t by_outcome[BENCH_NUM_OUTCOMES];
	struct {
		int status;
		size_t n;
	} by_status[16]; /* the statuses of BENCH_STATUS; the last one also counts the rest */
	int num_status;
	size_t sent, ok, uncounted; /* uncounted: answers without usage, whose chunks count as tokens */
	int64_t prompt_tokens, cached_tokens, output_tokens, duration_ns;
};
int bench_report_make(struct bench_run *run, struct bench_report *out);
void bench_report_print(const struct bench_run *run, const struct bench_report *r, FILE *to);
/* Prints the members of a JSON record, without braces. */
void bench_report_members(const struct bench_run *run, const struct bench_report *r, FILE *to);

#endif
