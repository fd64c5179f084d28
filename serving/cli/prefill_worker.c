// SPDX-License-Identifier: Apache-2.0
/* prefill_worker - `cairn prefill-worker`: joins a lead and computes long prompts for it */
#include <stdio.h>
#include <stdlib.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/cli/commands.h"
#include "serving/cli/member_command.h"
#include "serving/cli/session_ranks.h"
#include "serving/pipeline/pipeline.h"
#include "serving/remote/member/model_digest.h"
#include "serving/remote/prefill/prefill_group.h"
#include "serving/remote/prefill/prefill_worker.h"

static const char usage[] =
	"usage: cairn prefill-worker --join HOST:PORT [OPTION]...\n"
	"\n"
	"Joins a cairn serve that has --prefill-workers and --workers-listen, computes long prompts for it,\n"
	"and sends it their keys and values. Model, weights and forms must be the server's. A worker that\n"
	"comes when there are enough is a spare, and takes the place of one that is lost.\n"
	"\n"
	CAIRN_MEMBER_USAGE
	"  --model DIR           the checkpoint (the embedded model)\n"
	"  --shape NAME          random weights of this shape, as with cairn serve; --seed N (1)\n"
	"  --weights FORM        plain, fp8, fp8-blocks: see generate (plain)\n"
	"  --kv FORM             plain, fp8: see generate (plain)\n"
	"  --pp N                N processes with some of the layers each, on CUDA devices 0 and up; chunks\n"
	"                        of a prompt pass through them one behind the other, and the keys and\n"
	"                        values of a layer are sent when it is computed (1)\n"
	"  --pp-chunk N          tokens of a prompt's first chunk: see generate (1024, on the host 64)\n"
	"  --kv-mib N            refuse a server whose prompts' keys and values take more memory (no limit)\n"
	CAIRN_MEMBER_USAGE_END;

struct model {
	const char *shape;
	int64_t seed;
	int weights, kv;
	int64_t stages, chunk;		/* 0: not given */
};

#define HOST_CHUNK	64

/* Loads this process's stage, and computes the digest of all of them. */
static int load_stage(struct cairn_session *s, const struct cairn_common_options *o, const struct model *m,
		      struct cairn_tp *tp, struct cairn_prefill_group *g, uint64_t *digest)
{
	uint64_t mine;

	CAIRN_TRY(cairn_session_start_rank(s, o, tp, m->shape, (uint64_t)m->seed));
	CAIRN_TRY(m->shape ? cairn_session_shape(s, m->shape, (uint64_t)m->seed) :
		  cairn_session_load(s, o->model));
	CAIRN_TRY(cairn_model_digest(s->model, &mine));
	cairn_prefill_group_join(g, tp, s->model, (int32_t)(o->pp_chunk ? o->pp_chunk :
				 s->impl.flags & CAIRN_IMPL_HOST_MEM ? HOST_CHUNK : CAIRN_PIPELINE_ROWS));
	return cairn_prefill_group_sum(g, mine, digest);
}

/* All that a rank other than 0 does. */
static int follow(const struct cairn_common_options *o, const struct model *m, struct cairn_tp *tp,
		  struct cairn_prefill_group *g)
{
	struct cairn_session s = { 0 };
	uint64_t digest;
	int ret = load_stage(&s, o, m, tp, g, &digest);

	if (!ret)
		ret = cairn_prefill_group_follow(g);
	if (ret && ret != -ECONNRESET) {
		fprintf(stderr, "cairn prefill-worker: rank %d: %s\n", cairn_tp_rank(tp), cairn_last_error());
		cairn_tp_fail(tp);
	}
	cairn_tp_close(tp);
	cairn_prefill_group_destroy(g);
	cairn_session_close(&s);
	return ret ? CAIRN_EXIT_FAILED : CAIRN_EXIT_OK;
}

static int read_config(const char *dir, const char *shape, struct cairn_model_config *config)
{
	char embedded[4096];

	if (shape)
		return cairn_shape_config(shape, config);
	snprintf(embedded, sizeof(embedded), "%.4000s/serving/embedded", cairn_data_dir());
	return cairn_model_config_load(dir ? dir : embedded, config);
}

/* Forks the stages; rank 0 joins the lead. */
static int work_in_stages(const struct cairn_member_command *c, const struct model *m)
{
	struct cairn_prefill_worker_options o = { .member = c->o, .max_bytes = c->kv_mib << 20 };
	struct cairn_common_options co = {
		.impl = c->impl, .model = c->model, .pp = m->stages, .pp_chunk = m->chunk,
		.weights = m->weights, .kv = m->kv,
		.node = -1,
	};
	struct cairn_session s = { 0 };
	struct cairn_model_config config;
	struct cairn_tp *tp = NULL;
	int ret;

	CAIRN_TRY(read_config(c->model, m->shape, &config));
	CAIRN_TRY(cairn_prefill_group_create(&o.group, &config));
	ret = cairn_ranks_fork(&tp, &co);
	if (!ret && cairn_tp_rank(tp))
		exit(follow(&co, m, tp, o.group));
	if (!ret)
		ret = load_stage(&s, &co, m, tp, o.group, &o.weights);
	o.model = s.model;
	if (!ret)
		ret = cairn_prefill_worker_run(&o);
	cairn_tp_close(tp);
	cairn_prefill_group_destroy(o.group);
	cairn_session_close(&s);
	return ret;
}

static int work(const struct cairn_member_command *c, const struct model *m)
{
	struct cairn_prefill_worker_options o = { .member = c->o, .max_bytes = c->kv_mib << 20 };
	struct cairn_session s = {
		.weights = (enum cairn_weights)m->weights, .kv = (enum cairn_kv_form)m->kv,
	};
	int ret = cairn_session_start(&s, c->impl, 0);

	if (!ret)
		ret = m->shape ? cairn_session_shape(&s, m->shape, (uint64_t)m->seed) :
		      cairn_session_load(&s, c->model);
	o.model = s.model;
	if (!ret)
		ret = cairn_model_digest(s.model, &o.weights);
	if (!ret)
		ret = cairn_prefill_worker_run(&o);
	cairn_session_close(&s);
	return ret;
}

int cairn_cmd_prefill_worker(int argc, char **argv)
{
	struct cairn_member_command c = CAIRN_MEMBER_DEFAULTS;
	struct model m = { .seed = 1 };
	const struct cairn_option options[] = {
		CAIRN_MEMBER_OPTIONS(&c),
		{ "shape", CAIRN_OPT_TEXT, &m.shape, 0, 0, NULL },
		{ "seed", CAIRN_OPT_INT, &m.seed, 0, (double)INT64_MAX, NULL },
		{ "weights", CAIRN_OPT_CHOICE, &m.weights, 0, 0, cairn_weights_names },
		{ "kv", CAIRN_OPT_CHOICE, &m.kv, 0, 0, cairn_kv_names },
		{ "pp", CAIRN_OPT_INT, &m.stages, 1, CAIRN_COMM_MAX_RANKS, NULL },
		{ "pp-chunk", CAIRN_OPT_INT, &m.chunk, 1, 1 << 20, NULL },
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_member_begin(&c, 0);
	if (!ret && m.shape && c.model)
		ret = cairn_error(EINVAL, "--shape: excludes --model: a shape has random weights");
	if (!ret && m.chunk && m.stages < 2)
		ret = cairn_error(EINVAL, "--pp-chunk: needs --pp");
	if (!ret)
		ret = m.stages > 1 ? work_in_stages(&c, &m) : work(&c, &m);
	return cairn_member_status("prefill-worker", ret);
}
