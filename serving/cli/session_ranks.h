/* SPDX-License-Identifier: Apache-2.0 */
/* session_ranks - sessions of several ranks (ranks.h), for generate, eval and serve: --tp, --cp and --pp */
#ifndef CAIRN_SESSION_RANKS_H
#define CAIRN_SESSION_RANKS_H

#include "serving/cli/command.h"
#include "serving/ranks/ranks.h"

/* Time-out of collectives in measurements, whose ranks may take unequally long to allocate and load code. */
#define CAIRN_MEASURE_S	60

#define CAIRN_PIPELINE_USAGE \
	"  --pp N                pipeline parallelism: each of N processes has some of the layers, and\n" \
	"                        chunks of prompts pass through them one behind the other; for long\n" \
	"                        prompts, and for models that do not fit; excludes --tp and --cp (1)\n" \
	"  --pp-chunk N          tokens of the first chunk of a prompt; later ones, whose attention takes\n" \
	"                        longer, have fewer (1024, on the host 64)\n"
#define CAIRN_NODES_USAGE \
	"Ranks of several started programs (nodes), each with a part of --tp, --cp or --pp:\n" \
	"  --rendezvous HOST:PORT        address on which rank 0 listens until all ranks have come; with\n" \
	"                                LeaderWorkerSet, :PORT is enough\n" \
	"  --nodes N  --node-rank K      number of nodes, and this one's (from the variables of Open MPI,\n" \
	"                                PMI, PMIx, Slurm or LeaderWorkerSet)\n" \
	"  --rendezvous-key-file FILE    secret of all nodes, 16 to 4096 bytes that only its owner may\n" \
	"                                read; without it, HOST must be a loopback address\n" \
	"  --rendezvous-timeout S        for all ranks to come (--collective-timeout)\n"

/*
 * Checks that the options go together, and takes nodes and node from the environment if they are not given.
 * plan: --plan; slices: --slices; NULL: not given, or no such option.
 */
int cairn_check_ranks(struct cairn_common_options *o, const char *plan, const char *slices);
/* Refuses a method of drafts that does not go with the ranks. */
int cairn_check_rank_drafts(const struct cairn_common_options *o, int method);
/*
 * Sets the most rows of a step and, with --pp, the rows of a prompt's first chunk. max_rows: the rows that
 * the command was asked for; 0: the default. is_host: the table's memory is that of the host, for which the
 * defaults are smaller.
 */
void cairn_set_rows(struct cairn_engine_options *eo, const struct cairn_common_options *o, int64_t max_rows,
		    int is_host);
/* Returns the number of ranks, and the option that has set it. */
int32_t cairn_num_ranks(const struct cairn_common_options *o);
const char *cairn_ranks_option(const struct cairn_common_options *o);
/* Forks the ranks; *tp is NULL without --tp, --cp and --pp. Returns in all of them: see cairn_tp_fork(). */
int cairn_ranks_fork(struct cairn_tp **tp, const struct cairn_common_options *o);
/*
 * Starts the table of this rank on its device, and joins the others. tp NULL: the only rank. shape: NULL for
 * --model.
 */
int cairn_session_start_rank(struct cairn_session *s, const struct cairn_common_options *o,
			     struct cairn_tp *tp, const char *shape, uint64_t seed);
/*
 * Loads this rank's part of the model in s->dir: with --tp its share of the weights, with --cp the whole
 * model, with --tp and --cp both, with --pp its layers. cairn_session_random_rank() makes the same part of
 * random weights.
 */
int cairn_session_load_rank(struct cairn_session *s, cairn_progress progress, void *ctx);
/* Changes *config, that of --model or --shape, to the config of one rank's share with --tp. */
int cairn_share_option(const struct cairn_common_options *o, const char *shape,
		       struct cairn_model_config *config);
int cairn_session_random_rank(struct cairn_session *s, const struct cairn_model_config *config,
			      uint64_t seed);
/* Sets the engine's options for the ranks of the session; tp NULL: there is one. */
void cairn_session_lead_ranks(const struct cairn_session *s, const struct cairn_common_options *o,
			      struct cairn_tp *tp, struct cairn_engine_options *eo);
/*
 * Ends the session of a rank that has made the calls of all ranks by itself (cairn_tp_wait()). ret: its
 * error, or 0. Rank 0 ends the others and returns ret with its text. A rank other than 0 waits for that, and
 * exits. tp NULL: there is one rank.
 */
int cairn_session_end_rank(struct cairn_session *s, struct cairn_tp *tp, int ret);
/*
 * All that a rank other than 0 does. Errors go to standard error, after the name of the command, and to rank
 * 0. plan: --plan; NULL: not given. Returns the exit status.
 */
int cairn_session_follow(const struct cairn_common_options *o, struct cairn_tp *tp, const char *shape,
			 uint64_t seed, const char *plan, const char *command);

#endif
