// SPDX-License-Identifier: Apache-2.0
/* profile - measures the times that `cairn search` reads; `cairn profile` */
#include "serving/profile/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/cli/commands.h"
#include "serving/cli/session_ranks.h"

static const char usage[] =
	"usage: cairn profile --model DIR | --shape NAME --out FILE [OPTION]...\n"
	"\n"
	"Times the operations of a layer, with random weights: each alone, and products beside attention of\n"
	"decoding requests. Writes one JSON object a line, which `cairn search` reads.\n"
	"  --model DIR      a checkpoint; only its config.json is read\n"
	"  --shape NAME     a published shape, as llama3-8b\n"
	"  --out FILE       where to write the rows\n"
	"  --impl NAME|PATH the table (cuda if there is a GPU, else cpu)\n"
	"  --device N       CUDA device (0)\n"
	"  --tp N           the share of one of N ranks, on CUDA devices --device and up, and their sums,\n"
	"                   alone and beside products; all ranks take the times of rank 0 (1)\n"
	"  --short          fewer measurements, within 80 seconds instead of four minutes\n"
	"  --ops LIST       only these operations, as qkv,gate_up,attn; attn is attention, all_reduce the\n"
	"                   sum of the ranks (all)\n"
	"  --rows LIST      rows of products alone (128 to 2048 by 128; short: fewer)\n"
	"  --batches LIST   decoding requests of attention alone (96,192,384,768;\n"
	"                   short: 192,384,768)\n"
	"  --contexts LIST  keys of each; pairs take the first (1024,512,2048;\n"
	"                   short: 1024,2048)\n"
	"  --prompts LIST   rows of prompts (256,640,1280; short: 256,1280)\n"
	"  --pair-rows LIST     rows of products in pairs (512,1024; short: 512)\n"
	"  --pair-batches LIST  decoding requests in pairs (192,384; short: 192)\n"
	"  --how NAME       measure only pairs that run so: streams, priority or green (all)\n"
	"  --alone-seconds X    duration of a measurement of one operation (0.3; short: 0.25)\n"
	"  --pair-seconds X     duration of that of a pair; below 0.4 without energy (0.7; short: 0.6)\n"
	"  --seconds N      begin no measurement later (240; short: 60)\n";

enum { NUM_LISTS = 6 };

struct command {
	struct cairn_common_options common;	/* only impl, model, device and tp */
	const char *shape, *out, *ops, *lists[NUM_LISTS];
	int64_t seconds;
	float alone_s, pair_s;			/* negative: not given */
	int how, is_short;
	struct cairn_model_config config;	/* of the whole model */
	struct cairn_session session;
	struct profile_options opt;
	FILE *file;				/* NULL: this rank writes nothing */
};

static int write_row(void *ctx, const char *name, const char *members, double sm_mhz)
{
	struct command *c = ctx;
	char record[512];

	if (!c->file)
		return 0;
	cairn_session_record(&c->session, CAIRN_DECODE_AUTO, isnan(sm_mhz) ? 0 : sm_mhz, record,
			     sizeof(record));
	fprintf(c->file, "{\"v\":1,\"op\":\"interference\",\"case\":\"%s\",\"ok\":true,%s,%s}\n", name,
		members, record);
	return ferror(c->file) ? cairn_error(EIO, "--out: %s: cannot be written", c->out) : 0;
}

static int take_lists(struct command *c)
{
	static const struct {
		const char *option;
		int32_t hi;
	} of[NUM_LISTS] = { { "rows", 1 << 16 }, { "batches", 1 << 16 }, { "contexts", 1 << 20 },
			    { "prompts", 1 << 16 }, { "pair-rows", 1 << 16 }, { "pair-batches", 1 << 16 } };
	struct profile_list *const to[NUM_LISTS] = {
		&c->opt.rows, &c->opt.batches, &c->opt.contexts, &c->opt.prompts, &c->opt.pair_rows,
		&c->opt.pair_batches,
	};

	for (int i = 0; i < NUM_LISTS; i++)
		if (c->lists[i])
			CAIRN_TRY(cairn_parse_list(of[i].option, c->lists[i], 1, of[i].hi, to[i]->v,
						   PROFILE_LIST, &to[i]->num));
	return 0;
}

/* Takes the options, before ranks are forked, which have the same ones. */
static int prepare(struct command *c)
{
	static const enum cairn_search_how hows[] = { 0, CAIRN_SEARCH_STREAMS, CAIRN_SEARCH_PRIORITY,
						      CAIRN_SEARCH_GREEN };
	struct cairn_model_config share;

	c->opt = c->is_short ? profile_short : profile_full;
	c->opt.ops = c->ops;
	c->opt.hows = c->how ? 1u << hows[c->how] : 0;
	if (c->alone_s >= 0)
		c->opt.alone_s = (double)c->alone_s;
	if (c->pair_s >= 0)
		c->opt.pair_s = (double)c->pair_s;
	if (c->seconds)
		c->opt.limit_s = (double)c->seconds;
	CAIRN_TRY(take_lists(c));
	CAIRN_TRY(cairn_config_option(c->common.model, c->shape, &c->config));
	share = c->config;
	return cairn_share_option(&c->common, c->shape, &share);
}

static int run_profile(struct command *c, struct cairn_tp *tp)
{
	const struct profile_sink sink = { write_row, c };
	struct profile_result result;
	int ret;

	CAIRN_TRY(cairn_session_start_rank(&c->session, &c->common, tp, c->shape, 1));
	c->opt.ranks = c->session.ranks;
	c->file = c->session.rank ? NULL : fopen(c->out, "w");
	if (!c->session.rank && !c->file)
		return cairn_error(EIO, "--out: %s: cannot be written", c->out);
	ret = profile_run(&c->session.impl, &c->config, &c->opt, &sink, &result);
	if (c->file && fclose(c->file) && !ret)
		ret = cairn_error(EIO, "--out: %s: cannot be written", c->out);
	if (ret || c->session.rank)
		return ret;
	printf("%d rows in %.1f s\n", result.num_rows, result.seconds);
	if (result.num_late)
		printf("%d measurements left out: the time was over\n", result.num_late);
	if (result.num_starved)
		printf("%d pairs left out: one operation kept the other one from running\n",
		       result.num_starved);
	if (result.num_disturbed)
		printf("%d pairs left out: other work disturbed the measurement\n", result.num_disturbed);
	return 0;
}

int cairn_cmd_profile(int argc, char **argv)
{
	static const char *const hows[] = { "all", "streams", "priority", "green", NULL };
	struct command c = { .alone_s = -1, .pair_s = -1,
			     .common = { .node = -1, .collective_s = CAIRN_MEASURE_S } };
	struct cairn_tp *tp = NULL;
	const struct cairn_option options[] = {
		{ .name = "model", .kind = CAIRN_OPT_TEXT, .to = &c.common.model },
		{ .name = "shape", .kind = CAIRN_OPT_TEXT, .to = &c.shape },
		{ .name = "out", .kind = CAIRN_OPT_TEXT, .to = &c.out },
		{ .name = "impl", .kind = CAIRN_OPT_TEXT, .to = &c.common.impl },
		{ .name = "device", .kind = CAIRN_OPT_INT, .to = &c.common.device, .lo = 0, .hi = 1023 },
		{ .name = "tp", .kind = CAIRN_OPT_INT, .to = &c.common.tp, .lo = 1,
		  .hi = CAIRN_COMM_MAX_RANKS },
		{ .name = "short", .kind = CAIRN_OPT_FLAG, .to = &c.is_short },
		{ .name = "ops", .kind = CAIRN_OPT_TEXT, .to = &c.ops },
		{ .name = "rows", .kind = CAIRN_OPT_TEXT, .to = &c.lists[0] },
		{ .name = "batches", .kind = CAIRN_OPT_TEXT, .to = &c.lists[1] },
		{ .name = "contexts", .kind = CAIRN_OPT_TEXT, .to = &c.lists[2] },
		{ .name = "prompts", .kind = CAIRN_OPT_TEXT, .to = &c.lists[3] },
		{ .name = "pair-rows", .kind = CAIRN_OPT_TEXT, .to = &c.lists[4] },
		{ .name = "pair-batches", .kind = CAIRN_OPT_TEXT, .to = &c.lists[5] },
		{ .name = "how", .kind = CAIRN_OPT_CHOICE, .to = &c.how, .names = hows },
		{ .name = "alone-seconds", .kind = CAIRN_OPT_FLOAT, .to = &c.alone_s, .lo = 0, .hi = 60 },
		{ .name = "pair-seconds", .kind = CAIRN_OPT_FLOAT, .to = &c.pair_s, .lo = 0, .hi = 60 },
		{ .name = "seconds", .kind = CAIRN_OPT_INT, .to = &c.seconds, .lo = 1, .hi = 86400 },
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret && !c.out)
		ret = cairn_error(EINVAL, "--out is required");
	if (!ret)
		ret = prepare(&c);
	if (!ret)
		ret = cairn_ranks_fork(&tp, &c.common);
	if (!ret)
		ret = run_profile(&c, tp);
	ret = cairn_session_end_rank(&c.session, tp, ret);
	if (!ret)
		return CAIRN_EXIT_OK;
	if (*cairn_last_error())
		fprintf(stderr, "cairn profile: %s\n", cairn_last_error());
	return ret == -EINVAL || ret == -EOPNOTSUPP ? CAIRN_EXIT_USAGE : CAIRN_EXIT_FAILED;
}
