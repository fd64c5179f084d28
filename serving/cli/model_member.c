// SPDX-License-Identifier: Apache-2.0
/*
 * model_member - workers that have the lead's model: `cairn prefill-worker` computes long prompts for it,
 * `cairn model-worker` the passes of a lane
 */
#include "primitives/base/error.h"
#include "serving/cli/commands.h"
#include "serving/cli/member_command.h"
#include "serving/remote/member/model_digest.h"
#include "serving/remote/models/model_worker.h"
#include "serving/remote/prefill/prefill_worker.h"
#include "serving/remote/pull/run.h"

#define MODEL_USAGE \
	"  --model DIR           the checkpoint (the embedded model)\n" \
	"  --shape NAME          random weights of this shape, as with cairn serve; --seed N (1)\n" \
	"  --weights FORM        plain, fp8, fp8-blocks, w8a8, w8a8-blocks: see generate (plain)\n" \
	"  --kv FORM             plain, fp8: see generate (plain)\n"

static const char prefill_usage[] =
	"usage: cairn prefill-worker --join HOST:PORT [OPTION]...\n"
	"\n"
	"Joins a cairn serve that has --prefill-workers and --workers-listen, computes long prompts for it,\n"
	"and sends it their keys and values. Model, weights and forms must be the server's. A worker that\n"
	"comes when there are enough is a spare, and takes the place of one that is lost.\n"
	"\n"
	CAIRN_MEMBER_USAGE
	MODEL_USAGE
	"  --pp N                N processes with some of the layers each, on CUDA devices --device and up;\n"
	"                        chunks of a prompt pass through them one behind the other, and the keys\n"
	"                        and values of a layer are sent when it is computed (1)\n"
	"  --pp-chunk N          tokens of a prompt's first chunk: see generate (1024, on the host 64)\n"
	"  --kv-mib N            refuse a server whose prompts' keys and values take more memory (no limit)\n"
	CAIRN_MEMBER_USAGE_END;

static const char model_usage[] =
	"usage: cairn model-worker --join HOST:PORT [OPTION]...\n"
	"\n"
	"Joins a cairn generate or cairn serve that has --model-workers above 1 and --workers-listen, and\n"
	"computes the passes of a part of its requests, with attention by the same attention workers.\n"
	"Model, weights and forms must be the lead's. A worker that comes when there are enough is a spare,\n"
	"and takes the place of one that is lost.\n"
	"\n"
	CAIRN_MEMBER_USAGE
	MODEL_USAGE
	CAIRN_MEMBER_USAGE_END;

static int serve_as(enum cairn_member_role role, const struct cairn_member_command *c, struct cairn_model *m,
		    uint64_t weights)
{
	const struct cairn_prefill_worker_options prefill = {
		.member = c->o, .model = m, .weights = weights, .max_bytes = c->kv_mib << 20,
	};
	const struct cairn_model_worker_options model = { c->o, m, weights };

	return role == CAIRN_MEMBER_PREFILL ? cairn_prefill_worker_run(&prefill) :
	       cairn_model_worker_run(&model);
}

static int work(enum cairn_member_role role, const struct cairn_member_command *c,
		const struct cairn_member_model *m)
{
	struct cairn_session s = { 0 };
	uint64_t weights = 0;
	int ret = cairn_session_start(&s, c->impl, 0);

	if (!ret && role == CAIRN_MEMBER_PREFILL && c->o.transport) {
		ret = cairn_run_check(cairn_run_transport(c->o.transport), &s.impl);
		if (ret)
			cairn_error_prefix(ret, "--transport");
	}
	s.weights = (enum cairn_weights)m->weights;
	s.kv = (enum cairn_kv_form)m->kv;
	s.without_text = 1;
	if (!ret)
		ret = m->shape ? cairn_session_shape(&s, m->shape, (uint64_t)m->seed) :
		      cairn_session_load(&s, c->model);
	if (!ret)
		ret = cairn_model_digest(s.model, &weights);
	if (!ret)
		ret = serve_as(role, c, s.model, weights);
	cairn_session_close(&s);
	return ret;
}

static int run(enum cairn_member_role role, const char *name, const char *usage, int argc, char **argv)
{
	struct cairn_member_command c = CAIRN_MEMBER_DEFAULTS;
	struct cairn_member_model m = { .seed = 1 };
	const struct cairn_option options[] = {
		CAIRN_MEMBER_OPTIONS(&c),
		{ "shape", CAIRN_OPT_TEXT, &m.shape, 0, 0, NULL },
		{ "seed", CAIRN_OPT_INT, &m.seed, 0, (double)INT64_MAX, NULL },
		{ "weights", CAIRN_OPT_CHOICE, &m.weights, 0, 0, cairn_weights_names },
		{ "kv", CAIRN_OPT_CHOICE, &m.kv, 0, 0, cairn_kv_names },
		/* of prefill workers alone: */
		{ "kv-mib", CAIRN_OPT_INT, &c.kv_mib, 1, 1 << 30, NULL },
		{ "pp", CAIRN_OPT_INT, &m.stages, 1, CAIRN_COMM_MAX_RANKS, NULL },
		{ "pp-chunk", CAIRN_OPT_INT, &m.chunk, 1, 1 << 20, NULL },
	};
	const size_t num = sizeof(options) / sizeof(options[0]) - 3 * (role != CAIRN_MEMBER_PREFILL);
	int ret = cairn_parse_options(argc, argv, NULL, options, num, usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_member_begin(&c, role);
	if (!ret && m.shape && c.model)
		ret = cairn_error(EINVAL, "--shape: excludes --model: a shape has random weights");
	if (!ret && m.chunk && m.stages < 2)
		ret = cairn_error(EINVAL, "--pp-chunk: needs --pp");
	if (!ret)
		ret = m.stages > 1 ? cairn_prefill_stages(&c, &m) : work(role, &c, &m);
	return cairn_member_status(name, ret);
}

int cairn_cmd_prefill_worker(int argc, char **argv)
{
	return run(CAIRN_MEMBER_PREFILL, "prefill-worker", prefill_usage, argc, argv);
}

int cairn_cmd_model_worker(int argc, char **argv)
{
	return run(CAIRN_MEMBER_MODEL, "model-worker", model_usage, argc, argv);
}
