// SPDX-License-Identifier: Apache-2.0
/*
 * attention_worker - `cairn attention-worker`: joins a lead and attends for it
 *
 * A worker that a lead has started on its machine (--die-with) dies with that process, and is quiet about it.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/cli/command.h"
#include "serving/cli/commands.h"
#include "serving/remote/attention/attn_worker.h"

static const char usage[] =
	"usage: cairn attention-worker --join HOST:PORT [OPTION]...\n"
	"\n"
	"Joins a cairn generate or cairn serve that has --attention-workers and --workers-listen, holds the\n"
	"keys and values of some heads of its model, and attends for it. A worker that comes when all ranks\n"
	"are taken is a spare, and takes the place of one that is lost.\n"
	"\n"
	"  --join HOST:PORT      numeric address of the lead; [HOST]:PORT for IPv6\n"
	"  --secret-file FILE    at least 16 bytes that only its owner may read, the same as the lead's;\n"
	"                        needed unless the lead is on this machine\n"
	"  --impl NAME|PATH      cpu, ref, or a plug-in with host memory; the lead's table (cpu)\n"
	"  --transport NAME      tcp; other transports carry no host memory between processes (tcp)\n"
	"  --address ADDRESS     numeric address of this machine at which the lead can reach it (that by\n"
	"                        which it reaches the lead)\n"
	"  --model DIR           refuse a lead that has another model than this checkpoint's\n"
	"  --kv-mib N            refuse a share of keys and values that takes more memory (no limit)\n"
	"  --join-timeout S      how long to try to reach the lead (60)\n"
	"  --die-with PID        end when that process does; for leads that start workers themselves\n"
	"\n"
	"Exit status: 0 the lead has ended, 1 failed or lost the lead, 2 bad usage, or refused.\n";

/* Ends with the process that started this one, even if that has ended already. */
static int die_with(int64_t parent)
{
	if (parent && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != (pid_t)parent))
		return cairn_error(ECONNRESET, "the lead is gone");
	return 0;
}

static int work(const struct cairn_attn_worker_options *options, const char *impl, const char *model)
{
	struct cairn_attn_worker_options o = *options;
	struct cairn_model_config config;
	struct cairn_session s = { 0 };
	int ret = cairn_session_start(&s, impl, 0);

	if (!ret && model)
		ret = cairn_model_config_load(model, &config);
	o.impl = &s.impl;
	o.config = model ? &config : NULL;
	if (!ret)
		ret = cairn_attn_worker_run(&o);
	cairn_session_close(&s);
	return ret;
}

int cairn_cmd_attention_worker(int argc, char **argv)
{
	struct cairn_attn_worker_options o = { 0 };
	const char *impl = "cpu", *transport = "tcp", *model = NULL;
	int64_t parent = 0, kv_mib = 0, join_s = 60;
	const struct cairn_option options[] = {
		{ .name = "join", .kind = CAIRN_OPT_TEXT, .to = &o.member.join },
		{ .name = "secret-file", .kind = CAIRN_OPT_TEXT, .to = &o.member.secret_file },
		{ .name = "impl", .kind = CAIRN_OPT_TEXT, .to = &impl },
		{ .name = "transport", .kind = CAIRN_OPT_TEXT, .to = &transport },
		{ .name = "address", .kind = CAIRN_OPT_TEXT, .to = &o.member.address },
		{ .name = "model", .kind = CAIRN_OPT_TEXT, .to = &model },
		{ "kv-mib", CAIRN_OPT_INT, &kv_mib, 1, 1 << 30, NULL },
		{ "join-timeout", CAIRN_OPT_INT, &join_s, 0, 1e6, NULL },
		{ "die-with", CAIRN_OPT_INT, &parent, 1, 1 << 30, NULL },
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	signal(SIGPIPE, SIG_IGN);
	if (parent) {		/* the lead alone handles ^C and SIGTERM */
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
	}
	o.max_bytes = kv_mib << 20;
	o.member.join_ms = (int32_t)(join_s > 1000000 ? 1000000 : join_s) * 1000;
	if (!ret && !o.member.join)
		ret = cairn_error(EINVAL, "--join: is missing");
	if (!ret && strcmp(transport, "tcp"))
		ret = cairn_error(EINVAL, "--transport: '%s' carries no host memory between processes; "
				  "tcp does", transport);
	if (!ret)
		ret = die_with(parent);
	if (!ret)
		ret = work(&o, impl, model);
	if (!ret)
		return CAIRN_EXIT_OK;
	if (*cairn_last_error())
		fprintf(stderr, "cairn attention-worker: %s\n", cairn_last_error());
	return ret == -EINVAL || ret == -EACCES || ret == -EPERM || ret == -EOPNOTSUPP ? CAIRN_EXIT_USAGE :
	       CAIRN_EXIT_FAILED;
}
