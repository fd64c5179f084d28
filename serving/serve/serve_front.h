/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_front - what the parts of the front share
 *
 *   serve.c		the command: start, signals, drain, end
 *   serve_routes.c	paths and what answers at once; the HTTP loop's thread
 *   serve_prepare.c	JSON, template and tokenizer of a request; threads of their own
 *   serve_link.c	the link: requests in flight, between clients and the worker; one thread
 *   serve_frames.c	what the worker says; the link's thread
 *   serve_answer.c	tokens to text, text to chunks and bodies; the link's thread
 *   serve_supervise.c	start and end of workers; the link's thread
 *
 * A job is one request of a client. It goes from the HTTP loop (which makes it) to a preparing thread, from
 * there to the link, and stays there until its answer is written; each hand-over is a list under a lock.
 * That its client is gone is told by a flag that anybody may set and the link alone acts on. So whoever holds
 * a job need not lock it. Two references keep it: the exchange's, until watch.done, and that of the way.
 *
 * A part is one prompt of a job and one request of the engine, with the answers (choices) to it. Its slot in
 * the link's table stays taken until the engine has ended all of them, whatever became of the job.
 *
 * What a slow client has not taken is kept as text, not as events: an answer is no longer than max_tokens,
 * and goes out in fewer, longer chunks. HTTP cuts who takes nothing at all.
 */
#ifndef CAIRN_SERVE_FRONT_H
#define CAIRN_SERVE_FRONT_H

#include <pthread.h>
#include <stdatomic.h>

#include "serving/api/api_response.h"
#include "serving/template/chat_template.h"
#include "serving/http/http.h"
#include "serving/serve/metrics.h"
#include "serving/kv/prefix_tree.h"
#include "serving/serve/serve.h"
#include "serving/serve/serve_wire.h"

enum serve_state {
	SERVE_LOADING,		/* the first worker, or one after another */
	SERVE_READY,
	SERVE_FAILED,		/* none runs: a moment until the next, or the first could not load */
};

/* A token with log-probabilities that has not gone out. */
struct serve_logprob {
	int32_t id, num_top;
	float logprob;
	int64_t text_offset;
	struct cairn_wire_pair top[CAIRN_API_MAX_LOGPROBS];
};

/* One answer. */
struct serve_choice {
	struct cairn_token_stream *stream;
	struct cairn_stop_match match;
	struct cairn_api_out text;	/* not gone out */
	struct serve_logprob *logprobs;	/* not gone out */
	size_t num_logprobs, room_logprobs;
	int64_t num_chars;		/* of all its text */
	int32_t num_tokens, new_tokens;	/* in all; not gone out */
	enum cairn_api_finish finish;
	int stop;			/* which stop string, or -1 */
	int32_t stop_id;
	bool began, ended;		/* its first, its last chunk has gone out */
	int64_t first_ns, last_ns;	/* its first, its last token */
};

/* One prompt. */
struct serve_part {
	struct serve_job *job;
	uint64_t request;		/* of the wire; 0: not submitted */
	int32_t *ids;
	size_t num_ids;
	int32_t max_tokens, cached;
	bool queued, started;
	int64_t submit_ns, start_ns, first_ns;
};

struct serve_job {
	struct serve *s;
	struct cairn_http_exchange *x;
	atomic_int refs;
	atomic_bool gone;
	enum cairn_api_kind kind;
	const char *body;		/* the exchange's, until the answer begins */
	size_t body_bytes;
	struct serve_job *next;		/* of the list it is on its way in */
	struct serve_job *next_gone;
	int64_t begin_ns;

	/* from the preparing thread on */
	struct cairn_api_request req;
	struct cairn_api_answer answer;
	struct cairn_stop_set *stops;
	struct cairn_cache_salt salt;
	uint64_t seed;
	struct serve_part *parts;	/* [num_parts] */
	struct serve_choice *choices;	/* [num_parts * req.n] */
	int32_t num_parts, num_choices;
	int64_t num_prompt_tokens;

	/* the link's */
	struct serve_job *prev_live, *next_live;
	bool live, streaming, blocked, refused, over;
	int64_t last_ns, said_ns;	/* last token; last byte of a stream */
};

/* A request of the engine. */
struct serve_slot {
	uint64_t request;		/* 0: free */
	struct serve_part *part;	/* NULL: nobody waits for it any more */
	int32_t num_seqs, num_open;
	uint64_t open[CAIRN_API_MAX_N / 64];	/* answers that have not ended */
};

struct serve {
	struct cairn_serve_options opt;
	int argc;
	char **argv;
	struct cairn_http *http;
	struct cairn_metrics *metrics;
	struct cairn_tokenizer *tokenizer;
	struct cairn_token_stream *speller;	/* the link's: bytes of single tokens */
	struct cairn_chat_template *template;	/* NULL: none */
	struct cairn_model_config config;
	struct cairn_api_limits limits;
	const char *names[1];
	char name[256], key[1024];
	int64_t created;

	/* what others than the link's thread look at */
	atomic_int state;		/* enum serve_state */
	atomic_bool draining;
	atomic_bool busy;
	atomic_llong beat_ns, step_ns;	/* the worker was idle, or made a step; it made a step */
	atomic_int num_jobs;		/* of models: made, not freed */
	atomic_llong num_queued, queued_tokens;
	atomic_int restarts;
	atomic_int max_context;		/* of one request: the model's, or what the worker's pages hold */
	atomic_bool was_ready, cannot_load;	/* a worker has loaded; the first one could not */
	atomic_bool give_up, stop_link;		/* answers end now, as errors; the thread does */

	/* lists of jobs on their way, and whether any more is made of them: under the lock */
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct serve_job *unprepared, **unprepared_tail;
	struct serve_job *prepared, **prepared_tail;
	struct serve_job *gone;
	bool stop_preparing;
	pthread_t *threads, link;
	int num_threads;
	bool link_runs;
	int wake_fd;			/* eventfd: the link has something to do */

	/* the link's */
	int fd;				/* -1: no worker */
	int pid;			/* -1: none, or reaped */
	struct cairn_wire_out out;
	struct cairn_wire_in *in;
	struct serve_slot *slots;	/* [num_slots] */
	uint32_t *free_slots;
	uint32_t num_slots, num_free;
	uint64_t generation;
	struct serve_job *live;		/* submitted, not over */
	int64_t restart_ns, spawn_ns, delay_ns;
	bool has_served;		/* this worker: a token */
	struct cairn_wire_frame head;	/* of a message in several frames */
	int32_t missing;		/* pairs or bytes of it still to come; 0: none is on its way */
	struct serve_logprob token;
	char text[CAIRN_WIRE_MAX_TEXT + 1];
	size_t num_text;
	struct cairn_wire_frame stats;	/* of this worker, the last */
	struct cairn_api_out event;	/* the one being written: grown once, used by all */
};

int64_t serve_now_ns(void);

/* serve_routes.c */
int serve_open_http(struct serve *s);
struct cairn_api_limits serve_limits(const struct serve *s);	/* as they are now */
void serve_refuse(struct cairn_http_exchange *x, const struct cairn_api_error *e);
void serve_refuse_ending(struct cairn_api_error *e);	/* 503: the server is shutting down */
struct serve_job *serve_job_get(struct serve_job *job);
void serve_job_put(struct serve_job *job);

/* serve_prepare.c */
int serve_start_preparing(struct serve *s);
void serve_stop_preparing(struct serve *s);
void serve_prepare(struct serve *s, struct serve_job *job);	/* hands it over; takes a reference */

/* serve_link.c: all but the first five are for its thread */
int serve_start_link(struct serve *s);
void serve_give_up(struct serve *s);		/* who still waits is told that the server ends */
void serve_stop_link(struct serve *s);		/* the worker has ended when this returns */
void serve_submit(struct serve *s, struct serve_job *job);	/* hands it over; the reference goes along */
void serve_gone(struct serve_job *job);
struct serve_slot *serve_slot_of(struct serve *s, uint64_t request);	/* NULL: there is none */
void serve_free_slot(struct serve *s, struct serve_slot *slot);
void serve_unqueue(struct serve *s, struct serve_part *p);	/* it does not wait any more */
void serve_end_job(struct serve *s, struct serve_job *job);	/* its exchange is finished */
void serve_fail_all(struct serve *s, const char *why);	/* their worker is gone */

/* serve_frames.c: 0, or -EINVAL: it is not one that may come now. */
int serve_take_frame(struct serve *s, const struct cairn_wire_frame *f);

/* serve_answer.c. true: the exchange is finished, the job is to be ended. */
bool serve_take_token(struct serve_job *job, int32_t choice, const struct serve_logprob *token,
		      bool *stopped);
bool serve_take_finish(struct serve_job *job, int32_t choice, enum cairn_api_finish why, int32_t token);
bool serve_flush(struct serve_job *job);	/* writes what is there to a stream */
/* A comment, to a stream that begins with it if need be: could it be said? */
bool serve_keep_alive(struct serve_job *job);
void serve_fail(struct serve_job *job, const struct cairn_api_error *e);	/* finishes the exchange */

/* serve_supervise.c */
void serve_supervise(struct serve *s);		/* starts, judges and reaps; often */
int64_t serve_next_ns(const struct serve *s);	/* when it has something to do by time */
int serve_worker_ready(struct serve *s, const struct cairn_wire_frame *f);
void serve_worker_broken(struct serve *s, const char *why);
void serve_worker_quit(struct serve *s);	/* until it has ended */

#endif
