// SPDX-License-Identifier: Apache-2.0
/* member_rank - roles of processes that are started together (member_rank.h) */
#include "serving/cli/member_rank.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/ranks/rendezvous.h"
#include "serving/remote/control/address.h"

#define MAX_ARGS	32

/* Returns the number of this process; 0: it is the first one, or the only one. */
static int rank_of_process(int32_t *rank)
{
	struct cairn_rendezvous r = { 0 };
	const int ret = cairn_rendezvous_from_env(&r, getenv);

	*rank = r.node;
	if (ret && r.nodes)
		return ret;
	cairn_clear_error();
	return 0;
}

/* The other ranks must know the port, and the address must not be one that stands for all of a machine. */
static int check_address(const char *option, const char *listen)
{
	union cairn_address a;
	const char *port = listen ? strrchr(listen, ':') : NULL;

	if (!listen)
		return cairn_error(EINVAL, "%s: with mpirun or srun, needs --workers-listen: the address at "
				   "which rank 0 waits for the others", option);
	CAIRN_TRY(cairn_address_parse(&a, listen));
	if (!strtol(port + 1, NULL, 10) || !strncmp(listen, "0.0.0.0:", 8) || !strncmp(listen, "[::]:", 5))
		return cairn_error(EINVAL, "--workers-listen: the other ranks cannot join %s", listen);
	return 0;
}

int cairn_exec_member(const struct cairn_attention_options *a, const struct cairn_prefill_options *p,
		      const struct cairn_common_options *c, const char *shape, int64_t seed)
{
	int32_t rank = 0;
	const int ret = !a->workers && !(p && p->workers) ? 0 : rank_of_process(&rank);
	const int computes = rank < a->model_workers;	/* as a model worker, before those that attend */
	const int attends = a->workers > 0 && !computes;
	const char *args[MAX_ARGS] = {
		"cairn", computes ? "model-worker" : attends ? "attention-worker" : "prefill-worker",
		"--join", a->listen, "--impl", c->impl ? c->impl : "auto",
	};
	const struct {
		const char *option, *value;
	} more[] = {
		{ "--secret-file", a->secret_file }, { "--model", c->model },
		/* a server may start its engine again, and with it the lead */
		{ "--rejoin-timeout", p ? NULL : "0" },
		{ "--shape", attends ? NULL : shape },
		{ "--weights", attends ? NULL : cairn_weights_names[c->weights] },
		{ "--kv", attends ? NULL : cairn_kv_names[c->kv] },
	};
	char number[32], stages[8];
	sigset_t none;
	int n = 6;

	if (ret || !rank)
		return ret;
	CAIRN_TRY(check_address(a->workers ? "--attention-workers" : "--prefill-workers", a->listen));
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
		if (!more[i].value)
			continue;
		args[n++] = more[i].option;
		args[n++] = more[i].value;
	}
	if (!attends && p->stages > 1) {
		snprintf(stages, sizeof(stages), "%d", (int)p->stages);
		args[n++] = "--pp";
		args[n++] = stages;
	}
	if (shape && !attends) {
		snprintf(number, sizeof(number), "%lld", (long long)seed);
		args[n++] = "--seed";
		args[n++] = number;
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv("/proc/self/exe", (char *const *)args);
	return cairn_error(errno, "rank %d: %s", rank, strerror(errno));
}
