// SPDX-License-Identifier: Apache-2.0
/* transport_tcp_mutants.c - the tcp back end compiled again, with one check or step wrong each */
enum {
	DEFECT_none, DEFECT_token, DEFECT_key, DEFECT_bounds, DEFECT_order, DEFECT_signal_first,
	DEFECT_early_done, DEFECT_early_ack,
	DEFECT_old_token, DEFECT_late_bytes, DEFECT_swap, DEFECT_pace, DEFECT_own_link,
};
static int defect;

#define TCP_DEFECT(name)	(defect == DEFECT_##name)
#define tcp_net_start		mutant_net_start
#define tcp_net_stop		mutant_net_stop
#define tcp_random		mutant_random
#define tcp_tune		mutant_tune
#define tcp_conn_add		mutant_conn_add
#define tcp_conn_cut		mutant_conn_cut
#define tcp_push		mutant_push
#define tcp_sleep		mutant_sleep
#define tcp_watch		mutant_watch
#define tcp_end			mutant_end
#define tcp_take		mutant_take
#define tcp_set			mutant_set
#define tcp_frames		mutant_frames
#define tcp_acks		mutant_acks
#define tcp_acknowledge		mutant_acknowledge
#define tcp_pace_keep		mutant_pace_keep
#define tcp_pace_show		mutant_pace_show
#define cairn_transport_tcp	mutant_transport_tcp
extern const struct cairn_transport_table mutant_transport_tcp;
#include "rdma/transport/transport_tcp.c"
#include "rdma/transport/transport_tcp_move.c"
#include "rdma/transport/transport_tcp_net.c"
#include "rdma/transport/transport_tcp_pace.c"

#include "rdma/transport_cases/transport_end.h"

const struct cairn_transport_table *transport_tcp_mutant(int i, const char **what, const char **by)
{
	static const struct {
		const char *name, *what, *by;
		int defect;
	} mutants[] = {
		{ "token", "any hello is accepted", "strangers", DEFECT_token },
		{ "key", "an unknown key names any region", "frames", DEFECT_key },
		{ "bounds", "the receiver checks no bounds", "bounds_at_the_far_end", DEFECT_bounds },
		{ "order", "the receiver does not check the index", "frames", DEFECT_order },
		{ "swap", "puts are numbered in the wrong order", "payload_before_signal", DEFECT_swap },
		{ "signal_first", "signal before payload", "payload_before_signal", DEFECT_signal_first },
		{ "early_done", "a sent put counts as visible", "flush_is_done", DEFECT_early_done },
		{ "early_ack", "a put may be acknowledged before its end", "early_acks", DEFECT_early_ack },
		{ "old_token", "a reset keeps the token", "old_address", DEFECT_old_token },
		{ "late_bytes", "a reset keeps the peer's connection", "late_bytes", DEFECT_late_bytes },
		{ "pace", "a paced signal shows at once", END_PACED, DEFECT_pace },
		{ "own_link", "paced puts do not follow each other", END_PACED, DEFECT_own_link },
	};
	static struct cairn_transport_table table;

	if (i < 0 || i >= (int)(sizeof(mutants) / sizeof(mutants[0])))
		return NULL;
	defect = mutants[i].defect;
	*what = mutants[i].what;
	*by = mutants[i].by;
	table = mutant_transport_tcp;
	table.name = mutants[i].name;
	return &table;
}
