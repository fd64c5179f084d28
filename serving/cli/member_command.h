/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member_command - what `cairn attention-worker`, `prefill-worker` and `model-worker` have in common
 *
 * A worker that a lead has started on its machine (--die-with) dies with that process, and is quiet about it.
 */
#ifndef CAIRN_MEMBER_COMMAND_H
#define CAIRN_MEMBER_COMMAND_H

#include "serving/cli/command.h"
#include "serving/remote/member/member.h"

struct cairn_member_command {
	struct cairn_member_options o;
	const char *impl, *transport, *model;	/* transport, model NULL: not given */
	int64_t device, parent, kv_mib, join_s, rejoin_s;	/* parent, kv_mib 0: not given */
};

#define CAIRN_MEMBER_DEVICES	64

#define CAIRN_MEMBER_DEFAULTS	{ .impl = "cpu", .join_s = 60, .rejoin_s = 60 }

/* Their rows in an array of struct cairn_option. */
#define CAIRN_MEMBER_OPTIONS(to) \
	{ "join", CAIRN_OPT_TEXT, &(to)->o.join, 0, 0, NULL }, \
	{ "secret-file", CAIRN_OPT_TEXT, &(to)->o.secret_file, 0, 0, NULL }, \
	{ "impl", CAIRN_OPT_TEXT, &(to)->impl, 0, 0, NULL }, \
	{ "transport", CAIRN_OPT_TEXT, &(to)->transport, 0, 0, NULL }, \
	{ "device", CAIRN_OPT_INT, &(to)->device, 0, CAIRN_MEMBER_DEVICES - 1, NULL }, \
	{ "address", CAIRN_OPT_TEXT, &(to)->o.address, 0, 0, NULL }, \
	{ "model", CAIRN_OPT_TEXT, &(to)->model, 0, 0, NULL }, \
	{ "join-timeout", CAIRN_OPT_INT, &(to)->join_s, 0, 1e6, NULL }, \
	{ "rejoin-timeout", CAIRN_OPT_INT, &(to)->rejoin_s, 0, 1e6, NULL }, \
	{ "die-with", CAIRN_OPT_INT, &(to)->parent, 1, 1 << 30, NULL }

#define CAIRN_MEMBER_USAGE \
	"  --join HOST:PORT      numeric address of the lead; [HOST]:PORT for IPv6\n" \
	"  --secret-file FILE    at least 16 bytes that only its owner may read, the same as the lead's;\n" \
	"                        needed unless the lead is on this machine\n" \
	"  --impl NAME|PATH      the lead's table; auto: as cairn serve chooses (cpu)\n" \
	"  --device N            CUDA device of the worker (0)\n" \
	"  --transport NAME      what carries keys and values: tcp; also verbs, fhbn for prefill workers;\n" \
	"                        nvlink between GPUs of a host. The lead takes the same (tcp; nvlink for\n" \
	"                        attention workers on a GPU)\n" \
	"  --address ADDRESS     with tcp: numeric address of this machine at which the lead can reach it\n" \
	"                        (that by which it reaches the lead)\n"
#define CAIRN_MEMBER_USAGE_END \
	"  --join-timeout S      how long to try to reach the lead (60)\n" \
	"  --rejoin-timeout S    when the lead has ended, how long to wait for the next one (60)\n" \
	"  --die-with PID        end when that process does; for leads that start workers themselves\n" \
	"\n" \
	"Exit status: 0 the lead has ended, 1 failed or lost the lead, 2 bad usage, or refused.\n"

/* Checks the options, and sets how this process takes signals. */
int cairn_member_begin(struct cairn_member_command *c, enum cairn_member_role role);
/* Prints the error, if any, after the command's name. Returns the exit status. */
int cairn_member_status(const char *command, int ret);

/* What a prefill or model worker is told of its model. */
struct cairn_member_model {
	const char *shape;
	int64_t seed;
	int weights, kv;
	int64_t stages, chunk;		/* of prefill workers: --pp, --pp-chunk; 0: not given */
};

/* prefill_stages.c: forks the stages of a prefill worker, whose rank 0 joins the lead. */
int cairn_prefill_stages(const struct cairn_member_command *c, const struct cairn_member_model *m);

#endif
