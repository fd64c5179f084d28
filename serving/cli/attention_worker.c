// SPDX-License-Identifier: Apache-2.0
/* attention_worker - `cairn attention-worker`: joins a lead and attends for it */
#include <stdio.h>
#include <stdlib.h>
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
	"  --device N            CUDA device of the worker (0)\n"
	"  --kv-mib N            refuse a share of keys and values that takes more memory (no limit)\n"
	CAIRN_MEMBER_USAGE_END;

#define MOST_DEVICES	64

/* Returns entry i of a list with commas, and its length; NULL: it has fewer. */
static const char *entry(const char *list, int64_t i, int *len)
{
	for (*len = (int)strcspn(list, ","); i && list[*len]; *len = (int)strcspn(list, ","), i--)
		list += *len + 1;
	return i || !*len ? NULL : list;
}

/*
 * Makes device N the first one that CUDA shows to this process: then it is that of every thread, and the
 * others, whose memory is to be mapped, stay visible.
 */
static int choose_device(int64_t device)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *at;
	char all[256], text[1024];
	int n = 0, len;

	if (!device)
		return 0;
	for (int i = 0; !visible && i < MOST_DEVICES; i++)
		n += snprintf(all + n, sizeof(all) - (size_t)n, "%s%d", i ? "," : "", i);
	visible = visible ? visible : all;
	at = entry(visible, device, &len);
	if (!at)
		return cairn_error(EINVAL, "--device: %lld: CUDA_VISIBLE_DEVICES is '%s'", (long long)device,
				   visible);
	n = snprintf(text, sizeof(text), "%.*s", len, at);
	for (int64_t i = 0; n < (int)sizeof(text) && (at = entry(visible, i, &len)); i++)
		if (i != device)
			n += snprintf(text + n, sizeof(text) - (size_t)n, ",%.*s", len, at);
	if (n >= (int)sizeof(text))
		return cairn_error(EINVAL, "--device: CUDA_VISIBLE_DEVICES is too long");
	setenv("CUDA_VISIBLE_DEVICES", text, 1);
	return 0;
}

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

static int work(const struct cairn_member_command *c, int64_t device)
{
	struct cairn_attn_worker_options o = { .member = c->o, .max_bytes = c->kv_mib << 20 };
	struct cairn_model_config config;
	struct cairn_session s = { 0 };
	int ret = choose_device(device);

	cairn_attention_environment();
	if (!ret)
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
	int64_t device = 0;
	const struct cairn_option options[] = {
		CAIRN_MEMBER_OPTIONS(&c),
		{ "kv-mib", CAIRN_OPT_INT, &c.kv_mib, 1, 1 << 30, NULL },
		{ "device", CAIRN_OPT_INT, &device, 0, MOST_DEVICES - 1, NULL },
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_member_begin(&c, CAIRN_MEMBER_ATTENTION);
	if (!ret)
		ret = work(&c, device);
	return cairn_member_status("attention-worker", ret);
}
