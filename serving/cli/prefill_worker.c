// SPDX-License-Identifier: Apache-2.0
/* prefill_worker - `cairn prefill-worker`: joins a lead and computes long prompts for it */
#include "primitives/base/error.h"
#include "serving/cli/commands.h"
#include "serving/cli/member_command.h"
#include "serving/remote/member/model_digest.h"
#include "serving/remote/prefill/prefill_worker.h"
#include "serving/remote/pull/run.h"

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
	"  --kv-mib N            refuse a server whose prompts' keys and values take more memory (no limit)\n"
	CAIRN_MEMBER_USAGE_END;

struct model {
	const char *shape;
	int64_t seed;
	int weights, kv;
};

static int work(const struct cairn_member_command *c, const struct model *m)
{
	struct cairn_prefill_worker_options o = { .member = c->o, .max_bytes = c->kv_mib << 20 };
	struct cairn_session s = {
		.weights = (enum cairn_weights)m->weights, .kv = (enum cairn_kv_form)m->kv,
	};
	int ret = cairn_session_start(&s, c->impl, 0);

	if (!ret && c->o.transport) {
		ret = cairn_run_check(cairn_run_transport(c->o.transport), &s.impl);
		if (ret)
			cairn_error_prefix(ret, "--transport");
	}
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
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_member_begin(&c, 0);
	if (!ret && m.shape && c.model)
		ret = cairn_error(EINVAL, "--shape: excludes --model: a shape has random weights");
	if (!ret)
		ret = work(&c, &m);
	return cairn_member_status("prefill-worker", ret);
}
