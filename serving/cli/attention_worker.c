// SPDX-License-Identifier: Apache-2.0
/* attention_worker - `cairn attention-worker`: joins a lead and attends for it */
#include <string.h>

#include "primitives/base/error.h"
#include "serving/cli/commands.h"
#include "serving/cli/member_command.h"
#include "serving/remote/attention/attn_worker.h"
#include "serving/remote/attention/share.h"

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

/* Keys and values of a device's table go over nvlink, those of a host's over tcp. */
static int choose_transport(struct cairn_member_options *o, const struct cairn_impl *impl)
{
	const char *name = cairn_share_by_stream(impl) ? cairn_share_streams_over : "tcp";

	if (o->transport && strcmp(o->transport, name))
		return cairn_error(EINVAL, "--transport: table %s needs %s, not '%s'", impl->name, name,
				   o->transport);
	o->transport = name;
	return 0;
}

static int work(const struct cairn_member_command *c)
{
	struct cairn_attn_worker_options o = { .member = c->o, .max_bytes = c->kv_mib << 20 };
	struct cairn_model_config config;
	struct cairn_session s = { 0 };
	int ret;

	cairn_attention_environment();
	ret = cairn_session_start(&s, c->impl, 0);
	if (!ret)
		ret = choose_transport(&o.member, &s.impl);
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
	const struct cairn_option options[] = {
		CAIRN_MEMBER_OPTIONS(&c),
		{ "kv-mib", CAIRN_OPT_INT, &c.kv_mib, 1, 1 << 30, NULL },
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_member_begin(&c, CAIRN_MEMBER_ATTENTION);
	if (!ret)
		ret = work(&c);
	return cairn_member_status("attention-worker", ret);
}
