// SPDX-License-Identifier: Apache-2.0
/* attention_worker - `cairn attention-worker`: joins a lead and attends for it */
#include "serving/cli/commands.h"
#include "serving/cli/member_command.h"
#include "serving/remote/attention/attn_worker.h"

static const char usage[] =
	"usage: cairn attention-worker --join HOST:PORT [OPTION]...\n"
	"\n"
	"Joins a cairn generate or cairn serve that has --attention-workers and --workers-listen, holds the\n"
	"keys and values of some heads of its model, or of some pages of a head, and attends for it. A\n"
	"worker that comes when all ranks are taken is a spare, and takes the place of one that is lost.\n"
	"\n"
	CAIRN_MEMBER_USAGE
	"  --model DIR           refuse a lead that has another model than this checkpoint's\n"
	"  --kv-mib N            refuse a share of keys and values that takes more memory (no limit)\n"
	CAIRN_MEMBER_USAGE_END;

static int work(const struct cairn_member_command *c)
{
	struct cairn_attn_worker_options o = { .member = c->o, .max_bytes = c->kv_mib << 20 };
	struct cairn_model_config config;
	struct cairn_session s = { 0 };
	int ret = cairn_session_start(&s, c->impl, 0);

	if (!ret && c->model)
		ret = cairn_model_config_load(c->model, &config);
	o.impl = &s.impl;
	o.config = c->model ? &config : NULL;
	if (!ret)
		ret = cairn_attn_worker_run(&o);
	cairn_session_close(&s);
	return ret;
}

int cairn_cmd_attention_worker(int argc, char **argv)
{
	struct cairn_member_command c = CAIRN_MEMBER_DEFAULTS;
	const struct cairn_option options[] = { CAIRN_MEMBER_OPTIONS(&c) };
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_member_begin(&c, 1);
	if (!ret)
		ret = work(&c);
	return cairn_member_status("attention-worker", ret);
}
