/* SPDX-License-Identifier: Apache-2.0 */
/* session_ranks - sessions of several ranks (ranks.h), for generate, eval and serve: --tp */
#ifndef CAIRN_SESSION_RANKS_H
#define CAIRN_SESSION_RANKS_H

#include "serving/cli/command.h"
#include "serving/ranks/ranks.h"

/* Checks that the options go together. plan: --plan; slices: --slices; NULL: not given, or no such option. */
int cairn_check_ranks(const struct cairn_common_options *o, const char *plan, const char *slices);
/* Forks the ranks; *tp is NULL without --tp. Returns in all of them: see cairn_tp_fork(). */
int cairn_ranks_fork(struct cairn_tp **tp, const struct cairn_common_options *o);
/* Starts the table of this rank on its device, and joins the others. tp NULL: the only rank. */
int cairn_session_start_rank(struct cairn_session *s, const struct cairn_common_options *o,
			     struct cairn_tp *tp);
/*
 * All that a rank other than 0 does. Errors go to standard error, after the name of the command, and to rank
 * 0. shape: NULL for --model. Returns the exit status.
 */
int cairn_session_follow(const struct cairn_common_options *o, struct cairn_tp *tp, const char *shape,
			 uint64_t seed, const char *command);

#endif
