// SPDX-License-Identifier: Apache-2.0
/*
 * serve_worker - the process that holds the model, the engine and the device
 *
 * One thread repeats: read the front's frames, run one step of the engine, send the results. The thread waits
 * for the front only while there is nothing to compute, or while more than CAIRN_WIRE_MAX_WAITING bytes are
 * queued for the front. Any error of a step ends the worker: a device that has failed once is not trusted
 * again, and the front starts another worker. A second thread reads the card's power (serve_power.h).
 */
#include <execinfo.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/engine/engine.h"
#include "serving/serve/serve.h"
#include "serving/serve/serve_power.h"
#include "serving/serve/serve_wire.h"

#define STATS_NS	100000000	/* interval of STATS */
#define BEAT_MS		200		/* interval of STEP while idle; --hang-timeout may be 1 s */

/* A request whose frames are still arriving. */
struct incoming {
	struct cairn_request r;
	int32_t *ids, *stop_ids;
	struct cairn_logit_bias *bias;
	int64_t num_ids, num_stop_ids, num_bias;	/* received so far */
	int stage;				/* kind of the previous frame; 0: no request is open */
};

/* Context of the engine's callbacks for one request. */
struct client {
	struct worker *w;
	struct client *next, **from;
	uint64_t request;
	int32_t open;				/* number of answers that have not ended */
};

struct worker {
	struct cairn_session session;
	struct cairn_engine *engine;
	struct cairn_wire_out out;
	struct cairn_wire_in in;
	struct incoming next;
	struct client *clients;
	int32_t max_context, num_pages, page_size, max_batch;
	int keep;			/* cairn_request.keep of all requests: store KV in host memory */
	int64_t stats_at;
	int64_t lost;			/* attention workers whose loss has been told */
	struct cairn_engine_stats stats;
	struct cairn_serve_power *power;	/* NULL: no card whose power is known */
	int quit;
};

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void free_client(struct client *c)
{
	*c->from = c->next;
	if (c->next)
		c->next->from = c->from;
	free(c);
}

static int on_token(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct client *c = ctx;
	struct cairn_wire_frame f = {
		.kind = CAIRN_WIRE_TOKEN, .request = c->request, .count = token->num_top,
		.token = { index, token->id, token->logprob, 0 },
	};

	cairn_wire_put(&c->w->out, &f);
	cairn_wire_put_pairs(&c->w->out, CAIRN_WIRE_TOP, c->request, token->top, token->top_logprob,
			     token->num_top);
	return 0;
}

static void on_prompt(void *ctx, int32_t position, const struct cairn_token *token)
{
	struct client *c = ctx;
	struct cairn_wire_frame f = {
		.kind = CAIRN_WIRE_PROMPT, .request = c->request, .count = token->num_top,
		.token = { position, token->id, token->logprob, token->rank },
	};

	cairn_wire_put(&c->w->out, &f);
	cairn_wire_put_pairs(&c->w->out, CAIRN_WIRE_TOP, c->request, token->top, token->top_logprob,
			     token->num_top);
}

static void on_finish(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	struct client *c = ctx;
	struct cairn_wire_frame f = {
		.kind = CAIRN_WIRE_FINISH, .request = c->request, .finish = { index, (int32_t)why, token },
	};

	cairn_wire_put(&c->w->out, &f);
	if (!--c->open)
		free_client(c);
}

static void on_started(void *ctx, int32_t cached_tokens)
{
	struct client *c = ctx;
	struct cairn_wire_frame f = {
		.kind = CAIRN_WIRE_STARTED, .request = c->request, .cached_tokens = cached_tokens,
	};

	cairn_wire_put(&c->w->out, &f);
}

static void drop(struct incoming *n)
{
	free(n->ids);
	free(n->stop_ids);
	free(n->bias);
	*n = (struct incoming){ 0 };
}

static void refuse(struct worker *w, uint64_t request, int error)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_REFUSED, .request = request, .error = error };

	cairn_wire_put_text(&w->out, &f, cairn_last_error());
}

/* Submits a request to the engine once all of its frames have arrived. */
static int submit(struct worker *w)
{
	struct incoming *n = &w->next;
	struct client *c = malloc(sizeof(*c));
	int ret;

	if (!c)
		return cairn_error(ENOMEM, "worker: no memory for a request");
	*c = (struct client){ w, w->clients, &w->clients, n->r.id, n->r.num_seqs };
	if (c->next)
		c->next->from = &c->next;
	w->clients = c;
	n->r.prompt = n->ids;
	n->r.stop_ids = n->stop_ids;
	n->r.sampling.bias = n->bias;
	n->r.on_token = on_token;
	n->r.on_finish = on_finish;
	n->r.on_started = on_started;
	n->r.on_prompt = on_prompt;
	n->r.ctx = c;
	ret = cairn_engine_submit(w->engine, &n->r);
	if (ret) {
		free_client(c);
		refuse(w, n->r.id, -ret);
	}
	drop(n);
	return ret == -ENOMEM ? ret : 0;
}

static int bad(const struct cairn_wire_frame *f, const char *what)
{
	return cairn_error(EINVAL, "worker: message %d of request %llu: %s", f->kind,
			   (unsigned long long)f->request, what);
}

static int begin(struct worker *w, const struct cairn_wire_frame *f)
{
	struct incoming *n = &w->next;

	if (n->stage)
		return bad(f, "the previous request is incomplete");
	if (f->submit.num_prompt < 1 || f->submit.num_prompt > w->max_context || f->submit.num_seqs < 1 ||
	    f->submit.num_seqs > 1024 || f->submit.num_stop_ids < 0 || f->submit.num_stop_ids > 1024 ||
	    f->submit.num_bias < 0 || f->submit.num_bias > 65536)
		return bad(f, "a number is out of range");
	n->r = (struct cairn_request){
		.id = f->request, .num_prompt = f->submit.num_prompt,
		.max_new_tokens = f->submit.max_new_tokens, .num_seqs = f->submit.num_seqs,
		.num_stop_ids = f->submit.num_stop_ids, .beam_width = f->submit.beam_width,
		.salt = { f->submit.salt_hi, f->submit.salt_lo }, .deadline_ns = f->submit.deadline_ns,
		.sampling = { .num_bias = f->submit.num_bias }, .keep = w->keep,
		.prompt_logprobs = f->count,
	};
	n->ids = malloc((size_t)f->submit.num_prompt * sizeof(*n->ids));
	n->stop_ids = malloc((size_t)(f->submit.num_stop_ids + 1) * sizeof(*n->stop_ids));
	n->bias = malloc((size_t)(f->submit.num_bias + 1) * sizeof(*n->bias));
	if (!n->ids || !n->stop_ids || !n->bias)
		return cairn_error(ENOMEM, "worker: no memory for a request");
	n->stage = CAIRN_WIRE_SUBMIT;
	return 0;
}

static void take_sampling(struct incoming *n, const struct cairn_wire_frame *f)
{
	struct cairn_sampling *s = &n->r.sampling;

	s->temperature = f->sampling.temperature;
	s->top_p = f->sampling.top_p;
	s->min_p = f->sampling.min_p;
	s->presence_penalty = f->sampling.presence;
	s->frequency_penalty = f->sampling.frequency;
	s->repetition_penalty = f->sampling.repetition;
	n->r.length_penalty = f->sampling.length_penalty;
	s->top_k = f->sampling.top_k;
	s->min_new_tokens = f->sampling.min_new_tokens;
	s->num_logprobs = f->sampling.num_logprobs;
	s->seed = f->sampling.seed;
	n->r.ignore_eos = f->count;
}

static int append(const struct cairn_wire_frame *f, int32_t *to, int64_t *have, int64_t want)
{
	if (*have + f->count > want)
		return bad(f, "more ids than were announced");
	memcpy(to + *have, f->ids, (size_t)f->count * sizeof(*to));
	*have += f->count;
	return 0;
}

/* Handles SAMPLING and the lists that follow a SUBMIT. */
static int go_on(struct worker *w, const struct cairn_wire_frame *f)
{
	struct incoming *n = &w->next;

	if (!n->stage || f->request != n->r.id ||
	    (f->kind == CAIRN_WIRE_SAMPLING) != (n->stage == CAIRN_WIRE_SUBMIT))
		return bad(f, "out of order");
	if (f->kind == CAIRN_WIRE_SAMPLING) {
		take_sampling(n, f);
	} else if (f->kind == CAIRN_WIRE_IDS) {
		CAIRN_TRY(append(f, n->ids, &n->num_ids, n->r.num_prompt));
	} else if (f->kind == CAIRN_WIRE_STOP_IDS) {
		CAIRN_TRY(append(f, n->stop_ids, &n->num_stop_ids, n->r.num_stop_ids));
	} else {
		if (n->num_bias + f->count > n->r.sampling.num_bias)
			return bad(f, "more pairs than were announced");
		for (int32_t i = 0; i < f->count; i++)
			n->bias[n->num_bias++] =
				(struct cairn_logit_bias){ f->pairs[i].id, f->pairs[i].value };
	}
	n->stage = f->kind;
	if (n->num_ids < n->r.num_prompt || n->num_stop_ids < n->r.num_stop_ids ||
	    n->num_bias < n->r.sampling.num_bias)
		return 0;
	return submit(w);
}

static int take(struct worker *w, const struct cairn_wire_frame *f)
{
	int ret = 0;

	switch (f->kind) {
	case CAIRN_WIRE_SUBMIT:
		return begin(w, f);
	case CAIRN_WIRE_SAMPLING:
	case CAIRN_WIRE_IDS:
	case CAIRN_WIRE_STOP_IDS:
	case CAIRN_WIRE_BIAS:
		return go_on(w, f);
	case CAIRN_WIRE_CANCEL:
		ret = cairn_engine_cancel(w->engine, f->request);
		break;
	case CAIRN_WIRE_STOP:
		ret = cairn_engine_stop(w->engine, f->request, f->index);
		break;
	case CAIRN_WIRE_QUIT:
		w->quit = 1;
		break;
	default:
		return bad(f, "not for a worker");
	}
	return ret == -ENOENT ? 0 : ret;	/* -ENOENT: the answer has ended meanwhile */
}

/* Handles every frame that has arrived. Returns -EPIPE if the front is gone. */
static int listen_to_front(struct worker *w)
{
	const struct cairn_wire_frame *f;
	int more, is_bad = 0;

	do {
		more = cairn_wire_fill(&w->in, CAIRN_SERVE_FD);
		if (more < 0)
			return more;
		while ((f = cairn_wire_next(&w->in, &is_bad))) {
			if (is_bad)
				return bad(f, "malformed");
			CAIRN_TRY(take(w, f));
		}
	} while (more && !w->quit);
	return 0;
}

static void say_power(struct worker *w)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_POWER };

	if (w->power && cairn_serve_power_take(w->power, &f.power.energy_mj, &f.power.power_mw))
		cairn_wire_put(&w->out, &f);
}

static void say_drafts(struct worker *w, const struct cairn_speculation_stats *s)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_DRAFTS, .drafts = { s->drafts, s->draft_tokens,
									    s->accepted_tokens } };

	if (!s->drafts)
		return;
	cairn_wire_put(&w->out, &f);
	for (int k = 0; k < CAIRN_MAX_DRAFTS; k += 6) {
		f = (struct cairn_wire_frame){ .kind = CAIRN_WIRE_ACCEPTED, .count = k };
		for (int i = 0; i < 6 && k + i < CAIRN_MAX_DRAFTS; i++)
			f.accepted[i] = s->accepted_per_position[k + i];
		cairn_wire_put(&w->out, &f);
	}
}

static void say_step(struct worker *w, const struct cairn_engine_stats *stats, int busy)
{
	const struct cairn_engine_stats s = *stats;
	int64_t now = now_ns();
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_STEP };

	f.step.rows = (int32_t)(s.scheduler.rows - w->stats.scheduler.rows);
	f.step.running = s.scheduler.num_running;
	f.step.waiting = s.scheduler.num_waiting;
	f.step.used_pages = s.scheduler.device.table_pages;
	f.step.num_pages = w->num_pages;
	f.step.busy = busy;
	f.step.queued_tokens = s.scheduler.queued_tokens;
	f.step.num_steps = s.steps;
	f.step.now_ns = now;
	cairn_wire_put(&w->out, &f);
	if (!busy || now >= w->stats_at) {
		struct cairn_wire_frame g = { .kind = CAIRN_WIRE_STATS, .stats = {
			s.scheduler.prompt_tokens, s.scheduler.hit_tokens + s.scheduler.loaded_tokens,
			s.scheduler.swapped + s.scheduler.recomputed, s.scheduler.evicted_pages,
			s.host_ns, s.wait_ns } };

		cairn_wire_put(&w->out, &g);
		say_drafts(w, &s.speculation);
		w->stats_at = now + STATS_NS;
		say_power(w);
	}
	w->stats = s;
}

/* Waits until the front sends or reads, or a STEP is due. Call while there is nothing to compute. */
static void wait_for_front(const struct worker *w)
{
	struct pollfd p = { CAIRN_SERVE_FD, POLLIN, 0 };

	if (cairn_wire_waiting(&w->out))
		p.events |= POLLOUT;
	poll(&p, 1, BEAT_MS);
}

static int flush(struct worker *w)
{
	int ret = cairn_wire_flush(&w->out, CAIRN_SERVE_FD);

	return ret < 0 ? ret : 0;
}

static int serve(struct worker *w)
{
	struct cairn_engine_stats stats;
	int busy = 0, was_busy;

	while (!w->quit) {
		CAIRN_TRY(listen_to_front(w));
		CAIRN_TRY(flush(w));
		if (cairn_wire_waiting(&w->out) > CAIRN_WIRE_MAX_WAITING) {
			wait_for_front(w);
			continue;
		}
		was_busy = busy;
		CAIRN_TRY(cairn_engine_step(w->engine, &busy));
		cairn_engine_stats(w->engine, &stats);
		if (stats.recoveries > w->stats.recoveries)
			cairn_session_say_attention(&w->session, "serve", &w->lost);
		say_step(w, &stats, busy);
		CAIRN_TRY(flush(w));
		if (!busy && !was_busy)
			wait_for_front(w);
	}
	return 0;
}

/* Returns the bytes of a token's keys and values. */
static int64_t token_bytes(const struct cairn_model *m)
{
	return (cairn_model_step_bytes(m, 0, 1000) - cairn_model_step_bytes(m, 0, 0)) / 1000;
}

/*
 * Returns the number of pages that a full batch may need, limited to the memory left by weights and passes.
 */
static int64_t count_pages(const struct worker *w, const struct cairn_serve_options *o)
{
	const struct cairn_model *m = w->session.model, *drafter = w->session.drafter;
	struct cairn_device_info info = { .size = sizeof(info) };
	int64_t all = (w->max_context + w->page_size - 1) / w->page_size * o->common.batch, bytes, room;

	bytes = token_bytes(m) * w->page_size;
	if (drafter)
		bytes += token_bytes(drafter) * w->page_size;
	if (m->impl->flags & CAIRN_IMPL_HOST_MEM || m->impl->device_info(&info) || bytes < 1)
		room = (int64_t)1 << 30;
	else
		room = info.mem_bytes / 10 * 9 - (int64_t)m->bytes - ((int64_t)4 << 30) -
		       (drafter ? (int64_t)drafter->bytes : 0);
	room = bytes > 0 ? room / bytes : all;
	return all < room ? all : room > 0 ? room : 1;
}

static int load(struct worker *w, const struct cairn_serve_options *o)
{
	static const int grains[] = { 0, 1, -1 };
	struct cairn_engine_options eo = {
		.no_graphs = o->no_graphs, .repeatable = o->repeatable,
		.decode = (enum cairn_decode_path)o->common.decode, .cache_grain = grains[o->grain],
		.host_pages = (int32_t)o->host_pages, .disk_pages = (int32_t)o->disk_pages,
		.disk_dir = o->disk_dir, .max_queued = INT_MAX, .max_passes = 32,
	};
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_READY };
	struct cairn_model_config config;
	int64_t room;
	int host;

	CAIRN_TRY(cairn_serve_config(o, &config, &w->max_context));
	CAIRN_TRY(cairn_session_start(&w->session, o->common.impl, (int)o->common.device));
	w->session.weights = (enum cairn_weights)o->common.weights;
	w->session.kv = (enum cairn_kv_form)o->common.kv;
	w->session.progress_lines = 1;	/* its standard error is a pipe to the front */
	if (o->shape)
		CAIRN_TRY(cairn_session_shape(&w->session, o->shape, (uint64_t)o->seed));
	else
		CAIRN_TRY(cairn_session_load(&w->session, o->common.model));
	CAIRN_TRY(cairn_session_speculate(&w->session, &o->speculative, &eo.speculation));
	host = !!(w->session.impl.flags & CAIRN_IMPL_HOST_MEM);
	w->max_batch = eo.max_batch = (int32_t)o->common.batch;
	eo.max_context = w->max_context;
	eo.max_rows = (int32_t)(o->max_rows ? o->max_rows : host ? 256 : 2048);
	if (eo.max_rows < eo.max_batch)
		eo.max_rows = eo.max_batch;
	/* an attention tile on the device has 64 keys; with this page size they are contiguous */
	w->page_size = eo.page_size = (int32_t)(o->page_size ? o->page_size : host ? 16 : 64);
	w->num_pages = eo.num_pages = (int32_t)(o->num_pages ? o->num_pages : count_pages(w, o));
	room = (int64_t)w->num_pages * w->page_size;
	w->keep = eo.host_pages > 0 && eo.cache_grain >= 0;
	eo.nano = cairn_session_plans(&w->session, o->plan, "serve");
	CAIRN_TRY(cairn_session_lead(&w->session, &o->attention, o->common.impl));
	eo.attention = w->session.lead;
	eo.attends_all = o->attention.keys;
	CAIRN_TRY(cairn_engine_create(&w->engine, w->session.model, &eo));
	cairn_session_say_attention(&w->session, "serve", &w->lost);
	f.ready.vocab_size = config.vocab_size;
	f.ready.max_context = room < w->max_context ? (int32_t)room : w->max_context;
	f.ready.num_pages = w->num_pages;
	f.ready.page_size = w->page_size;
	f.ready.max_batch = w->max_batch;
	cairn_wire_put(&w->out, &f);
	w->power = cairn_serve_power_start(&w->session.impl);
	return 0;
}

/* Sends FAILED. If the front cannot read it, the front still sees the exit status. */
static void say_failed(struct worker *w)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_FAILED };

	cairn_wire_put_text(&w->out, &f, cairn_last_error());
	for (int i = 0; i < 10 && cairn_wire_flush(&w->out, CAIRN_SERVE_FD) == 1; i++)
		wait_for_front(w);
}

#ifdef CAIRN_SANITIZED
static void watch_for_crashes(void) {}	/* the sanitizer reports crashes in more detail */
#else
/* Signal handler: prints a backtrace to standard error, then lets the same signal kill the process. */
static void say_where(int sig)
{
	static const char head[] = "cairn serve: the worker crashed at:\n";
	void *at[64];
	ssize_t n = write(STDERR_FILENO, head, sizeof(head) - 1);

	(void)n;
	backtrace_symbols_fd(at, backtrace(at, 64), STDERR_FILENO);
	raise(sig);
}

static void watch_for_crashes(void)
{
	static const int signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };
	struct sigaction sa = { .sa_handler = say_where, .sa_flags = SA_RESETHAND | SA_NODEFER };
	void *at[1];

	backtrace(at, 1);	/* load backtrace()'s library now: a signal handler must not */
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		sigaction(signals[i], &sa, NULL);
}
#endif

int cairn_cmd_serve_worker(int argc, char **argv)
{
	struct cairn_serve_options o;
	struct worker *w = calloc(1, sizeof(*w));
	int ret, loaded = 0;

	/* die with the front, however it ends; the front alone handles ^C and SIGTERM */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	watch_for_crashes();
	ret = w ? cairn_serve_parse(argc, argv, &o) : cairn_error(ENOMEM, "worker: no memory");
	if (!ret)
		ret = cairn_serve_name_option(load(w, &o));
	if (!ret) {
		loaded = 1;
		ret = serve(w);
	}
	if (ret < 0 && ret != -EPIPE && w)
		say_failed(w);
	if (w) {
		cairn_serve_power_stop(w->power);
		drop(&w->next);
		cairn_engine_destroy(w->engine);
		while (w->clients)
			free_client(w->clients);
		cairn_session_close(&w->session);
		free(w->out.data);
		free(w);
	}
	return ret == 0 || ret == -EPIPE ? CAIRN_EXIT_OK : loaded ? CAIRN_EXIT_FAILED : CAIRN_EXIT_USAGE;
}
