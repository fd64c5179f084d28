// SPDX-License-Identifier: Apache-2.0
/* ranks_load_test - times of prompts and of decoding steps on several ranks */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/threads.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "serving/base/clock.h"
#include "serving/bench/ranks_load_test.h"
#include "serving/cli/session_ranks.h"

#define SETTLE		4	/* steps before those that are timed */
#define MAX_RUNS	8
#define MAX_LOADS	4
#define TIMEOUT_S	60	/* of a wait for another rank, which may be as long as a pass */

/* Shared with the process that measures. */
struct outcome {
	int ret;
	char why[1024];
	struct ranks_times times[MAX_LOADS];
};

struct answer {
	int64_t *at;		/* time of each token */
	int32_t num;
};

/* ---- models ---- */

static int read_config(const struct ranks_model *m, int32_t positions, struct cairn_model_config *c)
{
	char dir[4096];

	snprintf(dir, sizeof(dir), "%s/serving/embedded", cairn_data_dir());
	CAIRN_TRY(m->shape ? cairn_model_shape(m->shape, c) : cairn_model_config_load(dir, c));
	if (c->max_position_embeddings < positions)	/* weights are random in any case */
		c->max_position_embeddings = positions;
	return 0;
}

/* Makes the model of this rank; tp NULL: the whole model. */
static int open_model(struct cairn_session *s, const struct cairn_common_options *o, struct cairn_tp *tp,
		      const struct ranks_model *m, int32_t positions)
{
	struct cairn_model_config c;

	CAIRN_TRY(cairn_session_start_rank(s, o, tp, m->shape ? m->shape : "embedded", 1));
	CAIRN_TRY(read_config(m, positions, &c));
	return tp ? cairn_session_random_rank(s, &c, 1) :
		    cairn_model_random_as(&s->model, &s->impl, &c, s->weights, s->kv, 1);
}

static void be_other_rank(const struct cairn_common_options *o, struct cairn_tp *tp,
			  const struct ranks_model *m, int32_t positions)
{
	struct cairn_session s = { 0 };

	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	if (open_model(&s, o, tp, m, positions) || cairn_tp_follow(tp, s.model, s.context, NULL))
		cairn_tp_fail(tp);
	_exit(0);
}

/* ---- runs ---- */

static int take_token(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct answer *a = ctx;

	(void)index;
	(void)token;
	a->at[a->num++] = cairn_clock_ns();
	return 0;
}

/* Early requests decode while the last prompts are computed, so they need this many tokens. */
static int32_t new_tokens(const struct ranks_load *l)
{
	const int64_t passes = ((int64_t)l->batch * l->tokens + l->rows - 1) / l->rows;

	return l->steps ? (int32_t)passes + SETTLE + l->steps + 1 : 2;
}

static int by_ns(const void *a, const void *b)
{
	const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* The median of the steps in which all requests took part: those of the request that came last. */
static int64_t median_step(const struct answer *answers, const struct ranks_load *l)
{
	const struct answer *last = &answers[l->batch - 1];
	int64_t *ns = malloc((size_t)l->steps * sizeof(*ns)), median = 0;
	int32_t n = 0;

	for (int32_t i = SETTLE + 1; ns && n < l->steps && i < last->num; i++)
		ns[n++] = last->at[i] - last->at[i - 1];
	if (n) {
		qsort(ns, (size_t)n, sizeof(*ns), by_ns);
		median = ns[n / 2];
	}
	free(ns);
	return median;
}

/* Prompts are random, and the same for all requests. */
static int run_once(struct cairn_engine *e, const struct ranks_load *l, const int32_t *prompt,
		    struct answer *answers, int64_t *first_ns, int64_t *all_ns)
{
	const int64_t begin = cairn_clock_ns();

	*first_ns = 0;
	for (int32_t i = 0; i < l->batch; i++) {
		const struct cairn_request r = {
			.id = (uint64_t)i, .prompt = prompt, .num_prompt = l->tokens,
			.max_new_tokens = new_tokens(l), .ignore_eos = 1, .sampling = { .top_p = 1 },
			.on_token = take_token, .ctx = &answers[i],
		};

		answers[i].num = 0;
		CAIRN_TRY(cairn_engine_submit(e, &r));
	}
	CAIRN_TRY(cairn_engine_run(e));
	*all_ns = cairn_clock_ns() - begin;
	for (int32_t i = 0; i < l->batch; i++) {
		if (answers[i].num < new_tokens(l))
			return cairn_error(EIO, "request %d ended after %d tokens", i, answers[i].num);
		if (answers[i].at[0] - begin > *first_ns)
			*first_ns = answers[i].at[0] - begin;
	}
	return 0;
}

static int time_runs(struct cairn_engine *e, const struct ranks_load *l, int32_t vocab,
		     struct ranks_times *to)
{
	const int32_t room = new_tokens(l);
	int32_t *prompt = malloc((size_t)l->tokens * sizeof(*prompt));
	struct answer *answers = calloc((size_t)l->batch, sizeof(*answers));
	int64_t *at = malloc((size_t)l->batch * (size_t)room * sizeof(*at)), ns[MAX_RUNS];
	const int counted = l->runs > 1 ? l->runs - 1 : 1;
	struct cairn_engine_stats stats;
	uint64_t x = 1;
	int ret = prompt && answers && at ? 0 : cairn_error(ENOMEM, "no memory for requests");

	for (int32_t i = 0; !ret && i < l->tokens; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		prompt[i] = (int32_t)((x >> 33) % (uint64_t)vocab);
	}
	for (int32_t i = 0; !ret && i < l->batch; i++)
		answers[i].at = at + (size_t)i * (size_t)room;
	for (int i = 0; i < l->runs && !ret; i++)
		ret = run_once(e, l, prompt, answers, &ns[i && l->runs > 1 ? i - 1 : 0], &to->all_ns);
	if (!ret) {
		qsort(ns, (size_t)counted, sizeof(*ns), by_ns);
		to->first_ns = ns[counted / 2];
		to->first_min_ns = ns[0];
		to->step_ns = l->steps ? median_step(answers, l) : 0;
		to->all_tokens = (int64_t)l->batch * (l->tokens + room);
		cairn_engine_stats(e, &stats);
		to->fused = stats.fused_steps > 0;
	}
	free(at);
	free(answers);
	free(prompt);
	return ret;
}

static int time_load(struct cairn_session *s, struct cairn_tp *tp, const struct cairn_common_options *ranks,
		     const struct ranks_load *l, struct ranks_times *to)
{
	struct cairn_common_options o = *ranks;
	struct cairn_engine_options eo = {
		.max_batch = l->batch, .max_queued = l->batch, .max_context = l->tokens + new_tokens(l),
		.max_rows = l->rows > l->batch ? l->rows : l->batch, .chunk_rows = l->chunk,
		.page_size = l->page_size, .cache_grain = -1,
	};
	struct cairn_engine *e = NULL;
	int ret;

	o.context_rows = o.cp > 1 ? l->rows / 4 : 0;
	cairn_session_lead_ranks(s, &o, tp, &eo);
	ret = cairn_engine_create(&e, s->model, &eo);
	if (!ret)
		ret = time_runs(e, l, s->model->config.vocab_size, to);
	cairn_engine_destroy(e);
	return ret;
}

/* ---- processes ---- */

static struct cairn_common_options options_of(const struct ranks_model *m)
{
	return (struct cairn_common_options){
		.impl = m->impl, .tp = m->tp, .cp = m->cp, .pp = m->pp, .exchange = m->exchange,
		.context_keys = m->context_keys, .stripes = m->stripes, .collective_s = TIMEOUT_S,
	};
}

/* Asks in another process, because a process that has started a table cannot be forked. */
static int have_devices(const char *name, int32_t ranks)
{
	struct cairn_impl impl;
	pid_t pid = fork();
	int status = -1;

	if (!pid)
		_exit(cairn_impl_open(name, &impl) ||
		      cairn_impl_start(&impl, impl.flags & CAIRN_IMPL_HOST_MEM ? 0 : ranks - 1));
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

static int measure(const struct ranks_model *m, const struct ranks_load *loads, int num,
		   struct ranks_times *times)
{
	const struct cairn_common_options o = options_of(m);
	struct cairn_session session = { 0 };
	struct cairn_tp *tp = NULL;
	int32_t positions = 0;
	int ret;

	for (int i = 0; i < num; i++)
		if (positions < loads[i].tokens + new_tokens(&loads[i]))
			positions = loads[i].tokens + new_tokens(&loads[i]);
	CAIRN_TRY(cairn_ranks_fork(&tp, &o));
	if (tp && cairn_tp_rank(tp))
		be_other_rank(&o, tp, m, positions);
	cairn_set_threads(1);
	ret = open_model(&session, &o, tp, m, positions);
	for (int i = 0; i < num && !ret; i++)
		ret = time_load(&session, tp, &o, &loads[i], &times[i]);
	return cairn_session_end_rank(&session, tp, ret);
}

static void measure_apart(struct outcome *o, pid_t parent, const struct ranks_model *m,
			  const struct ranks_load *loads, int num)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
		_exit(1);
	cairn_clear_error();
	o->ret = measure(m, loads, num, o->times);
	snprintf(o->why, sizeof(o->why), "%s", cairn_last_error());
	_exit(0);
}

int ranks_measure(struct cairn_test *t, const struct ranks_model *m, const struct ranks_load *loads, int num,
		  struct ranks_times *times)
{
	const struct cairn_common_options options = options_of(m);
	const int32_t ranks = cairn_num_ranks(&options);
	const char *plural = ranks > 1 ? "s" : "";
	const pid_t self = getpid();
	struct outcome *o;
	pid_t pid;
	int ret;

	if (!have_devices(m->impl, ranks)) {
		cairn_skip(t, "needs %d GPU%s", ranks, plural);
		return -ENODEV;
	}
	o = mmap(NULL, sizeof(*o), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!EXPECT(t, num <= MAX_LOADS && o != MAP_FAILED))
		return -ENOMEM;
	o->ret = -ECHILD;
	snprintf(o->why, sizeof(o->why), "the process that measures has died");
	pid = fork();
	if (!pid)
		measure_apart(o, self, m, loads, num);
	EXPECT(t, pid > 0 && waitpid(pid, NULL, 0) == pid);
	ret = o->ret;
	if (ret == -ENOMEM && m->shape)
		cairn_skip(t, "%s does not fit %d GPU%s: %s", m->shape, ranks, plural, o->why);
	else if (!EXPECT(t, ret == 0))
		cairn_note(t, "%s", o->why);
	if (!ret)
		memcpy(times, o->times, (size_t)num * sizeof(*times));
	munmap(o, sizeof(*o));
	return ret;
}
