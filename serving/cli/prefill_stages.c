// SPDX-License-Identifier: Apache-2.0
/* prefill_stages - `cairn prefill-worker --pp`: a pipeline of processes, which is one worker for its lead */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/cli/member_command.h"
#include "serving/cli/session_ranks.h"
#include "serving/pipeline/pipeline.h"
#include "serving/remote/member/model_digest.h"
#include "serving/remote/prefill/prefill_group.h"
#include "serving/remote/prefill/prefill_worker.h"

#define HOST_CHUNK	64

/* Loads this process's stage, and computes the digest of all of them. */
static int load_stage(struct cairn_session *s, const struct cairn_common_options *o,
		      const struct cairn_member_model *m, struct cairn_tp *tp, struct cairn_prefill_group *g,
		      uint64_t *digest)
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
static int follow(const struct cairn_common_options *o, const struct cairn_member_model *m,
		  struct cairn_tp *tp, struct cairn_prefill_group *g)
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

int cairn_prefill_stages(const struct cairn_member_command *c, const struct cairn_member_model *m)
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
