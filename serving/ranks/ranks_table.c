// SPDX-License-Identifier: Apache-2.0
/* ranks_table - the table of a rank: which ranks may join the group, and its collectives' communicator */
#include <stdio.h>
#include <string.h>

#include "serving/ranks/ranks_impl.h"

struct tp_table tp_table;

int cairn_tp_exchange(struct cairn_tp *tp, const void *mine, void *all, size_t bytes)
{
	const int64_t ms = CAIRN_TP_START_S * 1000;
	char *to = all;

	if (tp->rank) {
		CAIRN_TRY(tp_send(tp, 0, EXCHANGE, mine, bytes));
		return tp_receive(tp, 0, EXCHANGE, all, (size_t)tp->ranks * bytes, ms);
	}
	memcpy(to, mine, bytes);
	for (int32_t r = 1; r < tp->ranks; r++)
		CAIRN_TRY(tp_receive(tp, r, EXCHANGE, to + (size_t)r * bytes, bytes, ms));
	return tp_send_to_all(tp, EXCHANGE, all, (size_t)tp->ranks * bytes);
}

static int exchange(void *arg, const void *mine, void *all, size_t bytes)
{
	return cairn_tp_exchange(arg, mine, all, bytes);
}

/* Defines operation `op` with the communicator of this process, and with errors that name pass and rank. */
#define COLLECTIVE(name, op) \
	static int name(const struct cairn_##op##_args *args, void *stream) \
	{ \
		struct cairn_##op##_args a = *args; \
		\
		a.comm = tp_table.comm; \
		return tp_explain(tp_table.tp, tp_table.base.op(&a, stream), tp_table.tp->passes, #op); \
	}

COLLECTIVE(sum_norm, all_reduce_norm)
COLLECTIVE(exchange_rows, all_to_all)
COLLECTIVE(pass_on, send_recv)
COLLECTIVE(step, decode_step_ranks)

static int step_workspace(const struct cairn_decode_step_ranks_args *args, size_t *bytes)
{
	struct cairn_decode_step_ranks_args a = *args;

	a.comm = tp_table.comm;
	return tp_table.base.decode_step_ranks_workspace(&a, bytes);
}

static void tell_identity(struct identity *id, const struct cairn_impl *impl, const char *model)
{
	struct cairn_device_info info = { .size = sizeof(info) };
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");

	memset(id, 0, sizeof(*id));
	snprintf(id->table, sizeof(id->table), "%s", impl->name);
	if (!impl->device_info(&info))
		snprintf(id->device, sizeof(id->device), "%s", info.name);
	snprintf(id->model, sizeof(id->model), "%s", model);
	if (f && !fgets(id->host, sizeof(id->host), f))
		id->host[0] = 0;
	if (f)
		fclose(f);
}

static int compare_identity(int32_t r, const struct identity *theirs, const struct identity *mine)
{
	const struct { const char *what, *a, *b; size_t len; } members[] = {
		{ "table", theirs->table, mine->table, sizeof(mine->table) },
		{ "device", theirs->device, mine->device, sizeof(mine->device) },
		{ "model", theirs->model, mine->model, sizeof(mine->model) },
	};

	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
		if (memcmp(members[i].a, members[i].b, members[i].len))
			return cairn_error(EINVAL, "rank %d has another %s than rank 0: '%.*s', not '%s'", r,
					   members[i].what, (int)members[i].len - 1, members[i].a,
					   members[i].b);
	if (memcmp(theirs->host, mine->host, sizeof(mine->host)))
		return cairn_error(EOPNOTSUPP, "rank %d is on another host than rank 0; collectives of the "
				   "table %s reach the ranks of one host only", r, mine->table);
	return 0;
}

/* Rank 0 compares all ranks with itself, and tells one that differs. */
static int check_identity(struct cairn_tp *tp, const struct cairn_impl *impl, const char *model)
{
	struct identity mine, theirs;
	char why[TEXT];
	int ret;

	tell_identity(&mine, impl, model);
	if (tp->rank)
		return tp_send(tp, 0, IDENTITY, &mine, sizeof(mine));
	for (int32_t r = 1; r < tp->ranks; r++) {
		CAIRN_TRY(tp_receive(tp, r, IDENTITY, &theirs, sizeof(theirs), CAIRN_TP_START_S * 1000));
		ret = compare_identity(r, &theirs, &mine);
		if (!ret)
			continue;
		snprintf(why, sizeof(why), "%s", cairn_last_error());
		tp_send(tp, r, FAILED, why, strlen(why));
		return cairn_error(-ret, "%s", why);
	}
	return 0;
}

int cairn_tp_table(struct cairn_tp *tp, struct cairn_impl *impl, const char *model)
{
	const struct cairn_comm_args a = { .size = sizeof(a), .exchange = exchange, .arg = tp,
					   .rank = tp->rank, .ranks = tp->ranks,
					   .timeout_ms = tp->timeout_ms };
	int ret;

	if (tp_table.comm.handle)
		return cairn_error(EINVAL, "ranks: this process has such a table already");
	if (!impl->comm_open || !impl->comm_error || !impl->comm_abort || !impl->comm_close ||
	    !impl->all_reduce_norm)
		return cairn_error(EOPNOTSUPP, "%s: the table has no all_reduce_norm", impl->name);
	CAIRN_TRY(check_identity(tp, impl, model));
	ret = impl->comm_open(&a, &tp_table.comm);
	if (ret)
		return cairn_table_error(impl, ret, "comm_open");
	tp_table.base = *impl;
	tp_table.tp = tp;
	impl->all_reduce_norm = sum_norm;
	impl->all_to_all = impl->all_to_all ? exchange_rows : NULL;
	impl->send_recv = impl->send_recv ? pass_on : NULL;
	impl->decode_step_ranks = impl->decode_step_ranks ? step : NULL;
	impl->decode_step_ranks_workspace = impl->decode_step_ranks_workspace ? step_workspace : NULL;
	return tp_start_watcher(tp);
}

int tp_check_comm(struct cairn_tp *tp)
{
	return !tp_table.comm.handle ? 0 :
	       tp_explain(tp, tp_table.base.comm_error(&tp_table.comm), tp->collected, "collective");
}
