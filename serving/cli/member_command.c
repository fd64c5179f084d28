// SPDX-License-Identifier: Apache-2.0
/* member_command - what commands of workers have in common (member_command.h) */
#include "serving/cli/member_command.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/remote/pull/run.h"

/* Ends with the process that started this one, even if that has ended already. */
static int die_with(int64_t parent)
{
	if (parent && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != (pid_t)parent))
		return cairn_error(ECONNRESET, "the lead is gone");
	return 0;
}

int cairn_member_begin(struct cairn_member_command *c, int only_tcp)
{
	signal(SIGPIPE, SIG_IGN);
	if (c->parent) {		/* the lead alone handles ^C and SIGTERM */
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
	}
	c->o.join_ms = (int32_t)(c->join_s > 1000000 ? 1000000 : c->join_s) * 1000;
	c->o.rejoin_ms = c->parent ? 0 : (int32_t)(c->rejoin_s > 1000000 ? 1000000 : c->rejoin_s) * 1000;
	if (!c->o.join)
		return cairn_error(EINVAL, "--join: is missing");
	if (!cairn_run_transport(c->transport))
		return cairn_error(EINVAL, "--transport: '%s' carries no host memory between processes; "
				   "tcp does", c->transport);
	if (only_tcp && strcmp(c->transport, "tcp"))
		return cairn_error(EINVAL, "--transport: attention and model workers have tcp alone so "
				   "far, not '%s'", c->transport);
	c->o.transport = c->transport;
	if (!strcmp(c->impl, "auto"))
		c->impl = NULL;		/* as for a command without --impl */
	return die_with(c->parent);
}

int cairn_member_status(const char *command, int ret)
{
	if (!ret)
		return CAIRN_EXIT_OK;
	if (*cairn_last_error())
		fprintf(stderr, "cairn %s: %s\n", command, cairn_last_error());
	return ret == -EINVAL || ret == -EACCES || ret == -EPERM || ret == -EOPNOTSUPP ? CAIRN_EXIT_USAGE :
	       CAIRN_EXIT_FAILED;
}
