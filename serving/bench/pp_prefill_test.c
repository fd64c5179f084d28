// SPDX-License-Identifier: Apache-2.0
/*
 * pp_prefill_test - time to the first token on the stages of a pipeline: rows of `cairn bench`
 *
 *   llama3_8b_32k_n2_chunk1024   random weights of llama3-8b; a prompt of 32K tokens in one pass on two
 *                                GPUs, with a first chunk of 1024 rows. n1: one GPU, passes of so many rows
 *   simulated_ranks_...          the same counted, not timed: products and attention take the time of their
 *                                multiplications, communication takes none
 *
 * Each measure has a process of its own, which forks the stages before it starts a table.
 */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/threads.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "serving/base/clock.h"
#include "serving/cli/session_ranks.h"
#include "serving/model/model_graph.h"
#include "serving/pipeline/pipeline.h"

#define TRIALS	3	/* after a warm-up */

struct setting {
	const char *impl, *shape;	/* shape NULL: the embedded model's, with random weights */
	int32_t stages, tokens, chunk;
};

struct first {
	int64_t submitted, first_ns;
};

static int take_first(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct first *f = ctx;

	(void)index;
	(void)token;
	if (!f->first_ns)
		f->first_ns = cairn_clock_ns() - f->submitted;
	return 0;
}

static int read_config(const struct setting *s, struct cairn_model_config *c)
{
	char dir[4096];

	snprintf(dir, sizeof(dir), "%s/serving/embedded", cairn_data_dir());
	CAIRN_TRY(s->shape ? cairn_model_shape(s->shape, c) : cairn_model_config_load(dir, c));
	if (c->max_position_embeddings < s->tokens + 2)		/* weights are random in any case */
		c->max_position_embeddings = s->tokens + 2;
	return 0;
}

/* Makes the model of this rank; tp NULL: the whole model. */
static int open_model(struct cairn_session *s, const struct cairn_common_options *o, struct cairn_tp *tp,
		      const struct setting *setting)
{
	struct cairn_model_config c;

	CAIRN_TRY(cairn_session_start_rank(s, o, tp, setting->shape ? setting->shape : "embedded", 1));
	CAIRN_TRY(read_config(setting, &c));
	return tp ? cairn_model_random_stage(&s->model, &s->impl, &c, s->rank, s->ranks, s->weights, s->kv,
					     1) :
		    cairn_model_random_as(&s->model, &s->impl, &c, s->weights, s->kv, 1);
}

static void be_other_rank(const struct cairn_common_options *o, struct cairn_tp *tp, const struct setting *s)
{
	struct cairn_session session = { 0 };

	cairn_set_threads(1);	/* the threads of the calling process do not survive the fork */
	if (open_model(&session, o, tp, s) || cairn_tp_follow(tp, session.model, NULL, NULL))
		cairn_tp_fail(tp);
	_exit(0);
}

static int time_prompt(struct cairn_test *t, struct cairn_engine *e, int32_t vocab, const struct setting *s,
		       int64_t *ns)
{
	int32_t *prompt = malloc((size_t)s->tokens * sizeof(*prompt));
	struct first f = { 0 };
	const struct cairn_request r = {
		.prompt = prompt, .num_prompt = s->tokens, .max_new_tokens = 2, .ignore_eos = 1,
		.sampling = { .top_p = 1 }, .on_token = take_first, .ctx = &f,
	};
	int ret;

	if (!prompt)
		return cairn_error(ENOMEM, "no memory for a prompt");
	for (int32_t i = 0; i < s->tokens; i++)
		prompt[i] = (int32_t)(cairn_rand(t) % (uint64_t)vocab);
	f.submitted = cairn_clock_ns();
	ret = cairn_engine_submit(e, &r);
	if (!ret)
		ret = cairn_engine_run(e);
	*ns = f.first_ns;
	free(prompt);
	return ret;
}

static int by_ns(const void *a, const void *b)
{
	const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* Sorts the times of all trials to ns. */
static int time_all(struct cairn_test *t, struct cairn_session *session, struct cairn_tp *tp,
		    const struct setting *s, int64_t ns[TRIALS])
{
	const struct cairn_engine_options eo = {
		.max_batch = 1, .max_context = s->tokens + 2, .max_rows = tp ? s->tokens : s->chunk,
		.chunk_rows = s->chunk, .page_size = s->shape ? 64 : 16, .cache_grain = -1,
		.tap = tp ? cairn_tp_tap(tp) : NULL,
	};
	struct cairn_engine *e = NULL;
	int64_t warm_up;
	int ret = cairn_engine_create(&e, session->model, &eo);

	if (!ret)
		ret = time_prompt(t, e, session->model->config.vocab_size, s, &warm_up);
	for (int i = 0; i < TRIALS && !ret; i++)
		ret = time_prompt(t, e, session->model->config.vocab_size, s, &ns[i]);
	cairn_engine_destroy(e);
	qsort(ns, TRIALS, sizeof(*ns), by_ns);
	return ret;
}

/* Asks in another process, because a process that has started a table cannot be forked. */
static int have_devices(const struct setting *s)
{
	const int last = s->shape ? s->stages - 1 : 0;
	struct cairn_impl impl;
	pid_t pid = fork();
	int status = -1;

	if (!pid)
		_exit(cairn_impl_open(s->impl, &impl) || cairn_impl_start(&impl, last));
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

/* Returns 0 with the times, or nonzero if the test is skipped or has failed. */
static int run(struct cairn_test *t, const struct setting *s, int64_t ns[TRIALS])
{
	const struct cairn_common_options o = { .impl = s->impl, .pp = s->stages, .collective_s = 60 };
	struct cairn_session session = { 0 };
	struct cairn_tp *tp = NULL;
	int ret;

	if (!have_devices(s)) {
		cairn_skip(t, "needs %d GPU%s", s->stages, s->stages > 1 ? "s" : "");
		return -1;
	}
	if (!EXPECT(t, cairn_ranks_fork(&tp, &o) == 0))
		return -1;
	if (tp && cairn_tp_rank(tp))
		be_other_rank(&o, tp, s);
	cairn_set_threads(1);
	ret = open_model(&session, &o, tp, s);
	if (!ret)
		ret = time_all(t, &session, tp, s, ns);
	EXPECT(t, !ret && ns[0] > 0);
	cairn_tp_close(tp);
	cairn_session_close(&session);
	return ret;
}

static void name_case(char *name, size_t len, const struct setting *s, const char *before)
{
	snprintf(name, len, "%s_%dk_n%d_chunk%d", before, s->tokens >> 10, s->stages, s->chunk);
}

static void measure(struct cairn_test *t, int32_t stages, int32_t tokens, int32_t chunk)
{
	const struct setting s = { "cuda", "llama3-8b", stages, tokens, chunk };
	int64_t ns[TRIALS];
	char name[64];

	name_case(name, sizeof(name), &s, "llama3_8b");
	if (!run(t, &s, ns))
		cairn_row(t, name, "cuda", "\"prompt_tokens\":%d,\"stages\":%d,\"chunk_rows\":%d,"
			  "\"first_token_ns\":%lld,\"min_ns\":%lld", tokens, stages, chunk,
			  (long long)ns[TRIALS / 2], (long long)ns[0]);
}

/* On the CPU: the two stages of a small model and the whole one give a first token. */
static void small(struct cairn_test *t)
{
	struct setting s = { "cpu", NULL, 2, 200, 32 };
	int64_t ns[TRIALS];

	run(t, &s, ns);
	s.stages = 1;
	run(t, &s, ns);
}

/* ---- simulated ---- */

static double time_of(int64_t keys, int32_t first, int32_t end)
{
	const double c = end - first, l = first;

	return (double)keys * c + ((l + c) * (l + c) - l * l + c) / 2;
}

/* Returns how many times faster the stages are than one. Each step takes the time of its longest chunk. */
static double speedup(const int32_t *ends, int32_t num, int32_t stages, int64_t keys)
{
	double whole = 0, steps = 0;

	for (int32_t step = 0; step < num + stages - 1; step++) {
		double longest = 0;

		for (int32_t c = step < stages ? 0 : step - stages + 1; c <= step && c < num; c++) {
			const double time = time_of(keys, c ? ends[c - 1] : 0, ends[c]);

			longest = time > longest ? time : longest;
		}
		steps += longest / stages;
		whole += step < num ? time_of(keys, step ? ends[step - 1] : 0, ends[step]) : 0;
	}
	return whole / steps;
}

/* Simulates chunks of equal time, and for comparison chunks of equally many rows. */
static int simulate(const struct setting *s, double *equal_time, double *equal_rows, int32_t *num)
{
	int32_t *ends = malloc(2 * (size_t)s->tokens * sizeof(*ends)), *positions = ends + s->tokens;
	const int32_t qo_indptr[2] = { 0, s->tokens };
	const struct cairn_pipeline_host host = {
		.qo_indptr = qo_indptr, .positions = positions, .num_rows = s->tokens, .batch = 1,
		.page_size = 64,
	};
	struct cairn_model m = { 0 };
	int32_t rows = 0;
	int64_t keys;

	if (!ends)
		return cairn_error(ENOMEM, "no memory");
	cairn_model_shape(s->shape, &m.config);
	cairn_model_dims(&m.config, m.whole);
	keys = cairn_pipeline_row_keys(&m);
	for (int32_t i = 0; i < s->tokens; i++)
		positions[i] = i;
	*num = cairn_pipeline_cut(&host, keys, s->chunk, ends);
	*equal_time = speedup(ends, *num, s->stages, keys);
	for (int32_t end = s->chunk; end <= s->tokens; end += s->chunk)
		ends[rows++] = end;
	*equal_rows = speedup(ends, rows, s->stages, keys);
	free(ends);
	return 0;
}

/* The model of the design, with chunks of equal rows, predicts 1.83 and 1.91 for 32K on two GPUs. */
static void simulated(struct cairn_test *t)
{
	static const int32_t stages[] = { 2, 4, 8 }, tokens[] = { 32768, 131072 }, chunks[] = { 2048, 1024 };

	for (size_t i = 0; i < ARRAY_SIZE(stages) * ARRAY_SIZE(tokens) * ARRAY_SIZE(chunks); i++) {
		const struct setting s = { NULL, "llama3-8b", stages[i / 4], tokens[i / 2 % 2],
					   chunks[i % 2] };
		double equal_time = 0, equal_rows = 0;
		int32_t num = 0;
		char name[64];

		EXPECT(t, !simulate(&s, &equal_time, &equal_rows, &num));
		EXPECT(t, equal_time > equal_rows && equal_time < s.stages);
		name_case(name, sizeof(name), &s, "simulated_ranks_llama3_8b");
		cairn_host_row(t, name, "host", "\"prompt_tokens\":%d,\"stages\":%d,\"chunk_rows\":%d,"
			       "\"chunks\":%d,\"speedup\":%.3f,\"equal_rows_speedup\":%.3f,"
			       "\"simulated\":true", s.tokens, s.stages, s.chunk, num, equal_time,
			       equal_rows);
	}
}

#define MEASURE(stages, tokens, chunk) \
	static void n##stages##_##tokens##k_chunk##chunk(struct cairn_test *t) \
	{ \
		measure(t, stages, tokens << 10, chunk); \
	}

MEASURE(1, 32, 2048)
MEASURE(1, 128, 2048)
MEASURE(2, 32, 1024)
MEASURE(2, 32, 2048)
MEASURE(2, 32, 4096)
MEASURE(2, 128, 1024)
MEASURE(2, 128, 2048)
MEASURE(2, 128, 4096)
MEASURE(4, 32, 1024)
MEASURE(4, 128, 2048)
MEASURE(8, 128, 2048)

static const struct cairn_unit units[] = {
	{ "small", small },
};

#define ROW(stages, tokens, chunk) \
	{ "n" #stages "_" #tokens "k_chunk" #chunk, n##stages##_##tokens##k_chunk##chunk }

static const struct cairn_unit measures[] = {
	ROW(1, 32, 2048), ROW(1, 128, 2048), ROW(2, 32, 1024), ROW(2, 32, 2048), ROW(2, 32, 4096),
	ROW(2, 128, 1024), ROW(2, 128, 2048), ROW(2, 128, 4096), ROW(4, 32, 1024), ROW(4, 128, 2048),
	ROW(8, 128, 2048), { "simulated", simulated },
};

const struct cairn_family cairn_pp_prefill_family = {
	.stage = "serving", .name = "pp_prefill",
	.units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
};
