// SPDX-License-Identifier: Apache-2.0
/* member_command - what commands of workers have in common (member_command.h) */
#include "serving/cli/member_command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
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
	for (int i = 0; !visible && i < CAIRN_MEMBER_DEVICES; i++)
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

int cairn_member_begin(struct cairn_member_command *c, enum cairn_member_role role)
{
	const char *const t = c->transport;

	signal(SIGPIPE, SIG_IGN);
	if (c->parent) {		/* the lead alone handles ^C and SIGTERM */
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
	}
	c->o.join_ms = (int32_t)(c->join_s > 1000000 ? 1000000 : c->join_s) * 1000;
	c->o.rejoin_ms = c->parent ? 0 : (int32_t)(c->rejoin_s > 1000000 ? 1000000 : c->rejoin_s) * 1000;
	if (!c->o.join)
		return cairn_error(EINVAL, "--join: is missing");
	if (role == CAIRN_MEMBER_ATTENTION && t && strcmp(t, "tcp") && strcmp(t, "nvlink"))
		return cairn_error(EINVAL, "--transport: attention workers have tcp and nvlink, not '%s'", t);
	if (role != CAIRN_MEMBER_ATTENTION && t && !cairn_run_transport(t))
		return cairn_error(EINVAL, "--transport: '%s' carries no host memory between processes; "
				   "tcp does", t);
	if (role == CAIRN_MEMBER_MODEL && t && strcmp(t, "tcp"))
		return cairn_error(EINVAL, "--transport: model workers have tcp alone so far, not '%s'", t);
	c->o.transport = t;
	if (!strcmp(c->impl, "auto"))
		c->impl = NULL;		/* as for a command without --impl */
	CAIRN_TRY(choose_device(c->device));
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
