/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_front - structures shared by the source files of the front
 *
 *   serve.c		the command: start, signals, drain, exit
 *   serve_routes.c	paths and immediate answers; the HTTP loop's thread
 *   serve_prepare.c	turns a request's body into token ids, writes long answers; several threads
 *   serve_link.c	the link: requests in flight between clients and the worker; one thread
 *   serve_frames.c	handles frames from the worker; the link's thread
 *   serve_output.c	splits text into content, reasoning and calls; the link's thread
 *   serve_items.c	answers of /v1/responses; the link's thread
 *   serve_logprobs.c	log-probabilities and echoed prompts; the link's thread
 *   serve_answer.c	tokens to text, text to chunks; the link's thread
 *   serve_body.c	whole answers; the link's thread or, for long ones, a preparing thread, which also
 *			calls serve_output.c, serve_items.c and serve_logprobs.c
 *   serve_supervise.c	starts and ends workers; the link's thread
 *   resume/serve_resume.c	goes on with the answers of a worker that has failed; the link's thread
 *   serve_log.c	writes the log; a thread of its own, the only one that may block
 *
 * A job is one request of a client. The HTTP loop creates it and passes it to a preparing thread, which
 * passes it to the link, where it stays until its answer is written. A long answer that is complete goes back
 * to a preparing thread, which writes it. Threads pass jobs on in lists under a lock. Only the thread that
 * has a job uses it, so a job needs no lock of its own. Any thread may set the flag `gone` when the client
 * has disconnected; the thread that has the job acts on it. A job has two references: the exchange holds one
 * until watch.done; the other moves with the job. The thread that drops the latter frees what the job owns.
 * The HTTP loop, which may come last, finds only the struct to free.
 *
 * The parsed body may be a hundred times as long as the body. The preparing thread frees it when the job is
 * prepared: it is not kept while an answer is made, and no other thread spends time on it.
 *
 * A part is one prompt of a job. It is one request of the engine and has n answers (choices). Its slot in the
 * link's table stays occupied until the engine has ended all n answers, even if the job has ended earlier.
 * After a worker has failed, each answer that goes on is a request with a slot of its own.
 *
 * If a client reads slowly, its unsent answer is kept as text, not as events. max_tokens bounds the text,
 * which is then sent in fewer, longer chunks. The HTTP layer resets a connection whose client reads nothing
 * for --stall-timeout.
 */
#ifndef CAIRN_SERVE_FRONT_H
#define CAIRN_SERVE_FRONT_H

#include <pthread.h>
#include <stdatomic.h>

#include "serving/api/api_items.h"
#include "serving/engine/worker/sampling.h"
#include "serving/api/api_response.h"
#include "serving/formats/output_parser.h"
#include "serving/template/chat_template.h"
#include "serving/http/http.h"
#include "serving/serve/telemetry/metrics.h"
#include "serving/kv/prefix_tree.h"
#include "serving/serve/serve.h"
#include "serving/serve/telemetry/serve_log.h"
#include "serving/serve/serve_wire.h"

#define SERVE_CALL_ID_LEN	96

enum serve_state {
	SERVE_LOADING,		/* a worker is loading the model */
	SERVE_READY,
	SERVE_FAILED,		/* no worker runs: restart pending, or the first could not load */
};

/* Log-probabilities of a token that has not been sent. */
struct serve_logprob {
	int32_t id, num_top, rank;	/* rank: only for prompt tokens; 0: unknown */
	float logprob;
	int64_t text_offset;
	struct cairn_wire_pair top[CAIRN_API_MAX_LOGPROBS];
};

/* One answer to a prompt. */
struct serve_choice {
	struct cairn_token_stream *stream;
	struct cairn_stop_match match;
	struct cairn_output_parser *parser;	/* NULL: all text is content */
	struct cairn_output out;	/* not yet sent */
	int32_t sent_calls;		/* calls whose first chunk has been sent */
	/* [room_logprobs] of the answer's tokens; from first_logprob on, num_logprobs are not yet sent */
	struct serve_logprob *logprobs;
	size_t first_logprob, num_logprobs, room_logprobs;
	size_t num_prompt;		/* the last of the prompt's list, which are to be sent before */
	int64_t num_chars;		/* length of the whole text so far; with echo, with the prompt */
	int32_t num_tokens, new_tokens;	/* tokens in total; not yet sent */
	int32_t num_reasoning;		/* those of num_tokens that are reasoning, with its marks */
	int32_t *taken;			/* [num_taken] ids of them, but of the one that ends it */
	size_t num_taken, room_taken;
	enum cairn_api_finish finish;
	int stop;			/* index of the stop string that ended it, or -1 */
	int32_t stop_id;
	bool echoed;			/* with echo: out has had the prompt */
	bool began, ended;		/* the first chunk has been sent; the last chunk has been sent */
	int64_t first_ns, last_ns;	/* time of the first and of the last token */
};

/* One prompt of a job. */
struct serve_part {
	struct serve_job *job;
	uint64_t request;		/* number used on the wire; 0: not submitted */
	int32_t *ids;
	size_t num_ids;
	int32_t max_tokens, cached;
	size_t num_scored;		/* prompt tokens whose log-probabilities have arrived */
	struct cairn_api_out prompt_logprobs;	/* their JSON, if requested */
	struct cairn_api_out echo;	/* with echo: the prompt's text */
	int64_t num_chars;		/* its length in characters */
	int32_t *offsets;		/* [num_ids] with echo and logprobs: characters before each token */
	struct serve_logprob *scored;	/* [num_ids] the same; NULL until the first has arrived */
	bool queued, started;
	bool resumed;			/* its answers have slots of their own, perhaps */
	int64_t submit_ns, start_ns, first_ns;
};

struct serve_job {
	struct serve *s;
	struct cairn_http_exchange *x;
	atomic_int refs;
	atomic_bool gone;
	enum cairn_api_kind kind;
	const char *body;		/* owned by the exchange; valid until the answer begins */
	size_t body_bytes;
	struct serve_job *next;		/* in the unprepared, prepared or unwritten list */
	struct serve_job *next_gone;
	int64_t begin_ns;

	/* written by the preparing thread */
	struct cairn_api_request req;	/* without the body */
	json_t *tools;			/* their outline, for the parsers; or NULL */
	struct cairn_api_answer answer;
	struct cairn_api_items items;	/* /v1/responses: the answer */
	size_t items_sent;		/* bytes of items.out that are sent */
	struct cairn_stop_set *stops;
	struct cairn_cache_salt salt;
	int32_t adapter;		/* 1 + its number; 0: none */
	uint64_t seed, call_seed;	/* call_seed: ids of calls are made of it */
	enum cairn_prompt_end prompt_end;
	struct serve_part *parts;	/* [num_parts] */
	struct serve_choice *choices;	/* [num_parts * req.n] */
	int32_t num_parts, num_choices;
	int64_t num_prompt_tokens;

	/* used by the link only */
	struct serve_job *prev_live, *next_live;
	bool live, streaming, refused, over;
	bool blocked, paused;		/* the stream has more to write; paused: not because of its client */
	bool unwritten;			/* the answer is complete, but a preparing thread is to write it */
	int futile;			/* workers that have failed since its last token */
	int64_t last_ns, said_ns;	/* time of the last token; of the last write to the stream */
};

/* A request that the engine has not ended yet. */
struct serve_slot {
	uint64_t request;		/* 0: the slot is free */
	struct serve_part *part;	/* NULL: the job has ended */
	int32_t first;			/* the part's answer that is answer 0 of the request */
	int32_t num_seqs, num_open;	/* answers; answers that have not ended */
	uint64_t open[CAIRN_API_MAX_N / 64];	/* bit set: the answer has not ended */
};

/* What an answer that goes on already has. */
struct serve_given {
	const int32_t *ids;		/* [num] */
	int32_t num, max_tokens;	/* max_tokens: still to come */
	uint64_t seed;
};

#define SERVE_MOST_RESUMES	100	/* of --resume-limit */

struct serve_queue {
	struct serve_job *first, **tail;
};

struct serve {
	struct cairn_serve_options opt;
	int argc;
	char **argv;
	struct cairn_http *http;
	struct cairn_metrics *metrics;
	struct serve_log *log;		/* standard error; the only way to write to it */
	uint64_t told_lost;		/* HTTP loop only: dropped lines already in the metrics */
	struct cairn_tokenizer *tokenizer;
	struct cairn_token_stream *speller;	/* link only: decodes single tokens to bytes */
	struct cairn_chat_template *template;	/* NULL: none */
	const struct cairn_tool_format *tool_format;	/* NULL: none, as the next */
	const struct cairn_reasoning_format *reasoning;
	struct cairn_model_config config;
	struct cairn_api_limits limits;
	struct cairn_generation defaults;	/* sampling defaults */
	const char *names[1 + CAIRN_MAX_LORA];	/* the model's and the adapters' */
	char name[256], key[1024];
	int64_t created;

	/* also read by threads other than the link's */
	atomic_int state;		/* enum serve_state */
	atomic_bool draining;
	atomic_bool busy;
	atomic_llong beat_ns, step_ns;	/* time of the last sign of life (idle or a step); of the last step */
	atomic_int num_jobs;		/* jobs that use the model and are not freed */
	atomic_llong num_queued, queued_tokens;
	atomic_int restarts;
	atomic_int max_context;		/* tokens of one request: the model's limit, or all KV pages */
	char why[512];			/* why the first worker could not load; read only after cannot_load */
	atomic_bool was_ready, cannot_load;	/* a worker has loaded; the first one could not load */
	atomic_bool give_up, stop_link;		/* end all answers as errors now; end the link's thread */

	/* lists of jobs being handed over; under the lock */
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct serve_queue unprepared[2];	/* short requests, long requests */
	struct serve_queue unwritten;	/* long answers */
	int64_t num_long;		/* threads that prepare a long request or write a long answer */
	struct serve_job *prepared, **prepared_tail;
	struct serve_job *gone;
	bool stop_preparing;
	pthread_t *threads, link;
	int num_threads;
	bool link_runs;
	int wake_fd;			/* eventfd that wakes the link */

	/* used by the link only */
	int fd;				/* socket to the worker; -1: no worker */
	int pid;			/* worker; -1: none, or already reaped */
	int group;			/* its process group, with its ranks; -1: none, or all reaped */
	bool killed;			/* the front has killed the worker and reported why */
	int64_t kill_ns;		/* when a failed worker that still runs is killed */
	int64_t stopped_ns;		/* since when the worker has been stopped; 0: it is not */
	struct serve_log_pipe said;	/* what the worker writes to stdout and stderr */
	struct cairn_out_queue out;
	struct cairn_wire_in *in;
	struct serve_slot *slots;	/* [num_slots] */
	uint32_t *free_slots;
	uint32_t num_slots, num_free;
	uint64_t generation;
	struct serve_job *live;		/* submitted and not ended */
	int64_t restart_ns, spawn_ns, delay_ns;
	int64_t failed_ns[SERVE_MOST_RESUMES];	/* times of the last failures, a ring */
	uint64_t num_failures;
	bool has_served;		/* this worker has produced a token */
	struct cairn_wire_frame head;	/* first frame of a message in several frames */
	int32_t missing;		/* pairs or bytes of the message still to come; 0: no open message */
	struct serve_logprob token;
	char text[CAIRN_WIRE_MAX_TEXT + 1];
	size_t num_text;
	struct cairn_wire_frame stats, drafts, masks, events, pulls;	/* this worker's latest ones */
	int64_t accepted[CAIRN_NUM_SPEC_POSITIONS];
	int64_t energy_mj;		/* of the latest POWER of any worker; 0: none yet */
	struct cairn_api_out event;	/* buffer for the event being written; shared by all jobs */
};

int64_t serve_now_ns(void);
int64_t serve_end_ns(const struct serve_job *job);	/* when --request-timeout ends; INT64_MAX: never */
void serve_refuse_late(const struct serve *s, struct cairn_api_error *e);	/* 504: that time is over */

/* serve_routes.c */
int serve_open_http(struct serve *s);
struct cairn_api_limits serve_limits(const struct serve *s);	/* the current limits */
void serve_refuse(struct cairn_http_exchange *x, const struct cairn_api_error *e);
/*
 * Answers with JSON, or with an error if there is no memory for it or clients have too many answers still to
 * read.
 */
void serve_send_json(struct cairn_http_exchange *x, const struct cairn_api_out *out);
void serve_refuse_ending(struct cairn_api_error *e);	/* 503: the server is shutting down */
struct serve_job *serve_job_get(struct serve_job *job);
void serve_job_put(struct serve_job *job);
void serve_drop_job(struct serve_job *job);	/* drops the reference that moves with the job */

/* serve_prepare.c */
int serve_start_preparing(struct serve *s);
void serve_stop_preparing(struct serve *s);
void serve_prepare(struct serve *s, struct serve_job *job);	/* passes on the job with a new reference */
/* Ends the jobs that have waited too long to be prepared. Returns when the next one will have; any thread. */
int64_t serve_end_unprepared(struct serve *s);
void serve_pass_body(struct serve *s, struct serve_job *job);	/* passes on the job and its reference */

/* serve_link.c: the first six may be called from any thread, the others from the link's only */
int serve_create_link(struct serve *s);	/* from here on jobs may be submitted */
int serve_start_link(struct serve *s);		/* starts its thread and the first worker */
void serve_give_up(struct serve *s);		/* ends all waiting requests with a shutting-down error */
void serve_stop_link(struct serve *s);		/* returns after the worker has exited */
void serve_submit(struct serve *s, struct serve_job *job);	/* passes on the job and its reference */
void serve_gone(struct serve_job *job);
struct serve_slot *serve_slot_of(struct serve *s, uint64_t request);	/* NULL: no such request */
void serve_free_slot(struct serve *s, struct serve_slot *slot);
void serve_unqueue(struct serve *s, struct serve_part *p);	/* p has left the engine's queue */
void serve_end_job(struct serve *s, struct serve_job *job);	/* call after its exchange is finished */
void serve_fail_all(struct serve *s, const char *why);	/* fails every live job: the worker is gone */
void serve_free_slots(struct serve *s);		/* of a worker that is gone */
/* A slot for a request of n answers of the part, from answer `first` on; NULL: all are taken. */
struct serve_slot *serve_take_slot(struct serve *s, struct serve_part *p, int32_t first, int32_t n);
/* Sends the request of a slot to the worker. given: of an answer that goes on; NULL: all answers begin. */
void serve_put_request(struct serve *s, const struct serve_part *p, const struct serve_slot *slot,
		       const struct serve_given *given);

/* resume/serve_resume.c */
/* Keeps the live jobs for the next worker, or fails them: the worker is gone. */
void serve_hold_all(struct serve *s, const char *why);
void serve_resume_all(struct serve *s);		/* the next worker is ready: submits them */

/* serve_frames.c: returns 0, or -EINVAL if the frame is malformed or out of order. */
int serve_take_frame(struct serve *s, const struct cairn_wire_frame *f);

/* serve_output.c */
int serve_open_parser(struct serve_job *job, struct serve_choice *c);	/* if the answer needs one */
/* Returns whether the text of a token is left out: a special token that is no mark of a format. */
bool serve_is_hidden(const struct serve_job *job, const struct serve_choice *c, int32_t token);
bool serve_reasons(const struct serve_choice *c);	/* whether the model reasons after the text so far */
void serve_add_text(struct serve_choice *c, const char *text, size_t n);
void serve_end_text(struct serve_job *job, struct serve_choice *c);	/* call when c->finish is set */

/*
 * Completes the request's constraint: the grammar of calls if tool_choice forces one; a constraint sleeps
 * while the model reasons. Call when the prompt has been rendered.
 */
int serve_constrain(struct serve_job *job, struct cairn_api_error *e);

/* The whole of an answer, in the API's form. */
struct serve_message {
	struct cairn_api_out content, reasoning;
	struct cairn_api_call *calls;	/* [num_calls] */
	size_t num_calls;
	char *ids;
};
int serve_whole_message(const struct serve_job *job, const struct serve_choice *c, struct serve_message *m,
			struct cairn_api_choice *out);
void serve_free_message(struct serve_message *m);

/* Memory for the part of a message that a chunk has. */
struct serve_chunk {
	struct cairn_api_call call;
	char id[SERVE_CALL_ID_LEN];
};
/*
 * Fills the text, reasoning or call of *out with the beginning of what has not been sent, and returns its
 * length: whole characters, at most max bytes, or all of a call's name.
 */
size_t serve_next_chunk(const struct serve_job *job, const struct serve_choice *c, size_t max,
			struct serve_chunk *chunk, struct cairn_api_choice *out);
void serve_drop_chunk(struct serve_choice *c, size_t num_bytes);	/* it has been sent */

/* serve_items.c: answers of /v1/responses, one choice each */
int serve_push_items(struct serve_job *job);	/* returns as push_all() of serve_answer.c */
int serve_send_items(struct serve_job *job);	/* whole; returns 0 or -ENOMEM */

/* serve_logprobs.c: int functions return 0 or -ENOMEM */
/* Log-probabilities in the API's form; the bytes of all tokens are concatenated in arena. */
struct serve_spelled {
	struct cairn_api_logprob *v;
	struct cairn_api_token *top;
	struct cairn_api_out arena;
};
bool serve_is_scored(const struct serve_part *p);	/* its log-probabilities are wanted */
int serve_score_prompt(struct serve_part *p, const struct serve_logprob *token);
int serve_echo(const struct serve_job *job, struct serve_choice *c);	/* call when the answer begins */
int serve_keep_logprob(struct serve_choice *c, const struct serve_logprob *token);
size_t serve_unsent_logprobs(const struct serve_choice *c);
/* Converts the first num of those not sent; call serve_free_spelled() even after a failure. */
int serve_spell(const struct serve_job *job, struct cairn_token_stream *speller, const struct serve_choice *c,
		size_t num, struct serve_spelled *sp);
void serve_free_spelled(struct serve_spelled *sp);
void serve_drop_logprobs(struct serve_choice *c, size_t num);	/* they have been sent */

/* serve_body.c: these finish the exchange. speller: the calling thread's */
bool serve_is_long_body(const struct serve_job *job);
void serve_send_body(struct serve_job *job, struct cairn_token_stream *speller);
void serve_write_body(struct serve_job *job);	/* any thread that has the job */

/* serve_answer.c. take and flush return true if the exchange is finished; the caller must end the job. */
void serve_usage_of(const struct serve_job *job, struct cairn_api_usage *u);
/* Fills *out, but for its message, with the first num_logprobs log-probabilities not yet sent. */
int serve_fill_choice(const struct serve_job *job, struct cairn_token_stream *speller,
		      const struct serve_choice *c, size_t num_logprobs, struct serve_spelled *sp,
		      struct cairn_api_choice *out);
int64_t serve_count_chars(const char *s, size_t n);
bool serve_take_prompt(struct serve_part *p, const struct serve_logprob *token);
bool serve_take_token(struct serve_job *job, int32_t choice, const struct serve_logprob *token,
		      bool *stopped);
bool serve_take_finish(struct serve_job *job, int32_t choice, enum cairn_api_finish why, int32_t token);
bool serve_flush(struct serve_job *job);	/* writes pending text to the stream */
/* Sends a comment and begins the stream if needed. Returns whether the comment was queued. */
bool serve_keep_alive(struct serve_job *job);
void serve_fail(struct serve_job *job, const struct cairn_api_error *e);	/* finishes the exchange */
void serve_fail_memory(struct serve_job *job);

/* serve_supervise.c */
void serve_supervise(struct serve *s);		/* starts, checks and reaps workers; call often */
int64_t serve_next_ns(const struct serve *s);	/* time by which serve_supervise() must be called */
int serve_worker_ready(struct serve *s, const struct cairn_wire_frame *f);
void serve_worker_broken(struct serve *s, const char *why);	/* kills the worker */
void serve_worker_gone(struct serve *s, const char *why);	/* lets it end by itself */
void serve_worker_quit(struct serve *s);	/* ends the worker and waits for its exit */

#endif
