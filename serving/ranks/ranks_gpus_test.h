/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_gpus_test - whether a machine has so many GPUs, for tests that fork ranks */
#ifndef CAIRN_RANKS_GPUS_TEST_H
#define CAIRN_RANKS_GPUS_TEST_H

#include <sys/wait.h>
#include <unistd.h>

#include "conformance/tables/tables.h"

/* Asks in a process of its own: ranks are forked before a table is started. */
static inline int has_gpus(int n)
{
	struct cairn_impl impl;
	const pid_t pid = fork();
	int status = 1;

	if (!pid)
		_exit(cairn_impl_open("cuda", &impl) || cairn_impl_start(&impl, n - 1));
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

#endif
