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
#include "serving/cli/session_ranks.h"
#include "serving/engine/spec/draft_head.h"
#include "serving/lora/lora.h"
#include "serving/serve/worker/serve_worker.h"

#define STATS_NS	100000000	/* interval of STATS */
#define MAX_DRAFTED	256		/* drafted rows of a pass (engine.h) */
#define BEAT_MS		200		/* interval of STEP while idle; --hang-timeout may be 1 s */

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
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
				return worker_bad_frame(f, "malformed");
			CAIRN_TRY(worker_take(w, f));
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

static void say_events(struct worker *w)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_EVENTS };
	struct cairn_kv_events_stats s;

	if (!w->events)
		return;
	cairn_kv_events_stats(w->events, &s);
	f.events.published = s.published;
	f.events.lost = s.lost;
	cairn_wire_put(&w->out, &f);
}

static void say_pulls(struct worker *w, const struct cairn_engine_stats *s)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_PULLS, .pulls = {
		s->pull.workers, s->pull.completed, s->pull.pages, s->pull.bytes, s->pull.checksum_errors,
		s->pulls_recomputed } };

	if (!w->session.lead || !cairn_lead_prefill(w->session.lead))
		return;
	cairn_wire_put(&w->out, &f);
	cairn_session_say_prefill(&w->session, "serve", &w->told);
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

static void say_masks(struct worker *w)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_MASKS };
	struct cairn_grammar_stats s;

	if (!w->grammar)
		return;
	cairn_grammar_stats(w->grammar, &s);
	f.masks.compiled = s.compiled;
	f.masks.cache_hits = s.cache_hits;
	f.masks.refused = s.refused;
	f.masks.restarts = s.restarts;
	f.masks.masks = s.masks;
	f.masks.mask_ns = s.mask_ns;
	if (s.compiled || s.refused || s.restarts)
		cairn_wire_put(&w->out, &f);
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
		say_events(w);
		say_drafts(w, &s.speculation);
		say_pulls(w, &s);
		say_masks(w);
		w->stats_at = now + STATS_NS;
		say_power(w);
	}
	w->stats = s;
}

/*
 * Waits until the front sends or reads, a constraint is compiled, or a STEP is due. Call while there is
 * nothing to compute.
 */
static void wait_for_front(const struct worker *w)
{
	/* poll() ignores negative descriptors */
	struct pollfd p[2] = { { CAIRN_SERVE_FD, POLLIN, 0 },
			       { w->waiting ? cairn_grammar_fd(w->grammar) : -1, POLLIN, 0 } };

	if (cairn_out_waiting(&w->out))
		p[0].events |= POLLOUT;
	poll(p, 2, BEAT_MS);
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
		CAIRN_TRY(worker_admit(w));
		CAIRN_TRY(flush(w));
		if (cairn_out_waiting(&w->out) > CAIRN_WIRE_MAX_WAITING) {
			wait_for_front(w);
			continue;
		}
		was_busy = busy;
		CAIRN_TRY(cairn_engine_step(w->engine, &busy));
		cairn_engine_stats(w->engine, &stats);
		if (stats.recoveries > w->stats.recoveries)
			cairn_session_say_attention(&w->session, "serve", &w->lost);
		if (w->events)
			cairn_kv_events_flush(w->events);
		say_step(w, &stats, busy);
		CAIRN_TRY(flush(w));
		if (busy || was_busy)
			continue;
		if (w->tp)
			CAIRN_TRY(cairn_tp_beat(w->tp));
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
	const struct cairn_draft_head *head = w->session.head;
	struct cairn_device_info info = { .size = sizeof(info) };
	const int64_t longest = (w->max_context + w->page_size - 1) / w->page_size;
	int64_t all = longest * o->common.batch, bytes, room;

	bytes = token_bytes(m) * w->page_size;
	if (drafter)
		bytes += token_bytes(drafter) * w->page_size;
	if (head)
		bytes += (int64_t)cairn_draft_head_token_bytes(head) * w->page_size;
	if (m->impl->flags & CAIRN_IMPL_HOST_MEM || m->impl->device_info(&info) || bytes < 1)
		room = (int64_t)1 << 30;
	else
		room = info.mem_bytes / 10 * 9 - (int64_t)m->bytes - ((int64_t)4 << 30) -
		       (w->session.context ? (int64_t)w->session.context->bytes : 0) -
		       (m->lora ? (int64_t)m->lora->bytes : 0) - (drafter ? (int64_t)drafter->bytes : 0) -
		       (head ? (int64_t)head->bytes : 0);
	/* with stripes a rank holds some pages, and in addition gathers those of a layer of one request */
	if (o->common.stripes)
		room = (room - 2 * longest * bytes / m->config.num_hidden_layers) *
		       cairn_num_ranks(&o->common);
	room = bytes > 0 ? room / bytes : all;
	return all < room ? all : room > 0 ? room : 1;
}

/* Sets where masks come from. Without the library, requests with constraints are refused with the reason. */
static int prepare_grammar(struct worker *w, const struct cairn_serve_options *o,
			   const struct cairn_model_config *config, struct cairn_engine_options *eo)
{
	char dir[4096];
	struct cairn_grammar_options go = {
		.model_dir = dir, .vocab_size = config->vocab_size, .eos = config->eos_token_ids,
		.num_eos = config->num_eos, .max_masks = eo->max_batch + MAX_DRAFTED,
	};
	int ret;

	if (w->tp || o->attention.workers) {
		snprintf(w->no_grammar, sizeof(w->no_grammar), "structured_outputs: not supported with %s",
			 w->tp ? cairn_ranks_option(&o->common) : "--attention-workers");
		return 0;
	}
	cairn_serve_dir(o, dir, sizeof(dir));
	ret = cairn_grammar_create(&w->grammar, &go);
	if (ret && ret != -EOPNOTSUPP)
		return ret;
	if (ret)
		snprintf(w->no_grammar, sizeof(w->no_grammar), "%s", cairn_last_error());
	else
		eo->masks = cairn_grammar_masks(w->grammar);
	return 0;
}

/* Opens the sockets of --kv-events. Its standard error is a pipe to the front, which prints the lines. */
static int open_events(struct worker *w, const struct cairn_serve_options *o, struct cairn_engine_options *eo)
{
	struct cairn_kv_events_options ko = { o->kv_events, o->kv_events_replay, o->kv_events_topic,
					      w->page_size };
	static const char *const names[][2] = { { "address", "kv-events" }, { "replay", "kv-events-replay" },
						{ "topic", "kv-events-topic" }, { NULL, NULL } };
	const char *replay;

	if (!o->kv_events)
		return 0;
	CAIRN_TRY(cairn_name_option(cairn_kv_events_open(&w->events, &ko), names));
	replay = cairn_kv_events_replay(w->events);
	fprintf(stderr, "cairn serve: KV events at %s%s%s\n", cairn_kv_events_address(w->events),
		*replay ? ", replays at " : "", replay);
	if (!cairn_kv_events_is_local(o->kv_events) || (*replay && !cairn_kv_events_is_local(replay)))
		fprintf(stderr, "cairn serve: KV events contain users' tokens, and anyone who can connect "
			"reads them\n");
	eo->listener = cairn_kv_events_listener(w->events);
	return 0;
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
	if (o->attention.workers)
		cairn_attention_environment();
	CAIRN_TRY(cairn_session_start_rank(&w->session, &o->common, w->tp, o->shape,
					   (uint64_t)o->seed));
	w->session.progress_lines = 1;	/* its standard error is a pipe to the front */
	if (o->shape)
		CAIRN_TRY(cairn_session_shape(&w->session, o->shape, (uint64_t)o->seed));
	else
		CAIRN_TRY(cairn_session_load(&w->session, o->common.model));
	CAIRN_TRY(cairn_session_adapters(&w->session, &o->lora));
	CAIRN_TRY(cairn_session_speculate(&w->session, &o->speculative, &eo.speculation));
	host = !!(w->session.impl.flags & CAIRN_IMPL_HOST_MEM);
	w->max_batch = eo.max_batch = (int32_t)o->common.batch;
	eo.max_context = w->max_context;
	cairn_set_rows(&eo, &o->common, o->max_rows, host);
	if (eo.max_rows < eo.max_batch)
		eo.max_rows = eo.max_batch;
	/* an attention tile on the device has 64 keys; with this page size they are contiguous */
	w->page_size = eo.page_size = (int32_t)(o->page_size ? o->page_size : host ? 16 : 64);
	w->num_pages = eo.num_pages = (int32_t)(o->num_pages ? o->num_pages : count_pages(w, o));
	room = (int64_t)w->num_pages * w->page_size;
	w->keep = eo.host_pages > 0 && eo.cache_grain >= 0;
	CAIRN_TRY(prepare_grammar(w, o, &config, &eo));
	eo.nano = cairn_session_plans(&w->session, o->plan, "serve");
	CAIRN_TRY(open_events(w, o, &eo));
	cairn_session_lead_ranks(&w->session, &o->common, w->tp, &eo);
	CAIRN_TRY(cairn_session_lead(&w->session, &o->attention, &o->prefill, &o->common, o->shape,
				     o->seed));
	cairn_set_attention(&eo, &o->attention, w->session.lead);
	eo.prefill = o->prefill.workers ? w->session.lead : NULL;
	eo.prefill_min = (int32_t)o->prefill.min_tokens;
	eo.pulled_pages = (int32_t)o->prefill.pages;
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

/* A rank other than 0. Its standard error is a pipe to the front, which takes each line into the log. */
static int follow(struct worker *w, const struct cairn_serve_options *o)
{
	struct cairn_tp *tp = w->tp;

	if (o->common.node < 1)		/* only rank 0 speaks to the front, which sees at once when it ends */
		close(CAIRN_SERVE_FD);
	free(w);
	fprintf(stderr, "cairn serve: rank %d is process %d\n", cairn_tp_rank(tp), getpid());
	return cairn_session_follow(&o->common, tp, o->shape, (uint64_t)o->seed, o->plan, "serve");
}

int cairn_cmd_serve_worker(int argc, char **argv)
{
	struct cairn_serve_options o;
	struct worker *w = calloc(1, sizeof(*w));
	int ret, loaded = 0;

	ret = w ? cairn_serve_parse(argc, argv, &o) : cairn_error(ENOMEM, "worker: no memory");
	if (ret || o.common.node < 1) {		/* a node without rank 0 has no front */
		/* die with the front, however it ends; the front alone handles ^C and SIGTERM */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
	}
	signal(SIGPIPE, SIG_IGN);
	watch_for_crashes();
	if (!ret)
		ret = cairn_ranks_fork(&w->tp, &o.common);
	if (!ret && w->tp && cairn_tp_rank(w->tp))
		return follow(w, &o);
	if (!ret)
		ret = cairn_serve_name_option(load(w, &o));
	if (!ret) {
		loaded = 1;
		ret = serve(w);
	}
	if (ret < 0 && w && o.common.node > 0)
		fprintf(stderr, "cairn serve: %s\n", cairn_last_error());
	else if (ret < 0 && ret != -EPIPE && w)
		say_failed(w);
	if (w) {
		cairn_serve_power_stop(w->power);
		cairn_engine_destroy(w->engine);
		worker_drop_requests(w);
		cairn_grammar_destroy(w->grammar);
		cairn_kv_events_close(w->events);
		cairn_tp_close(w->tp);
		cairn_session_close(&w->session);
		free(w->out.data);
		free(w);
	}
	return ret == 0 || ret == -EPIPE ? CAIRN_EXIT_OK : loaded ? CAIRN_EXIT_FAILED : CAIRN_EXIT_USAGE;
}
