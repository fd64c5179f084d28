// SPDX-License-Identifier: Apache-2.0
/* search - searches how to overlap the operations of a pass; `cairn search` */
#include "serving/cli/commands.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/cli/session_ranks.h"
#include "serving/cli/search_measure.h"
#include "serving/plan/plan_file.h"
#include "serving/search/search_print.h"

static const char usage[] =
	"usage: cairn search --model DIR | --shape NAME --profile FILE [OPTION]...\n"
	"\n"
	"Cuts the rows of a pass into nano-batches and schedules their operations so that those bound by\n"
	"arithmetic run beside those bound by memory, by two mixed-integer programs over measured times.\n"
	"Prints the schedules and writes a plan file. Needs the solver cbc (package coinor-cbc).\n"
	"  --model DIR      a checkpoint; only its config.json is read\n"
	"  --shape NAME     a published shape, as llama3-8b\n"
	"  --profile FILE   measured times, JSON lines (serving/search/search_profile.h)\n"
	"  --rows LIST      rows of the passes (1024,1536,2048)\n"
	"  --decode LIST    how many eighths of the rows are decoding requests (3)\n"
	"  --context LIST   cached tokens of each decoding request, powers of two (1024)\n"
	"  --how NAME       use only pairs measured so: streams, priority, green, queue, coresident (all)\n"
	"  --tp N           for one of N ranks of tensor parallelism; the profile must be that of such a\n"
	"                   rank (cairn profile --tp N), which has the sums of all ranks, too (1)\n"
	"  --nanos N        most nano-batches (4)\n"
	"  --gap PERCENT    stop once the best schedule found is within this percentage of the optimum (1)\n"
	"  --seconds N      time limit of the solver for each pass (95)\n"
	"  --dump-lp DIR    also write every program in LP format to this folder\n"
	"  --anyway         also write plans that are predicted to lose, in order to measure them\n"
	"  --out FILE       the plan file (plans/GPU_SHAPE_tpRANKS.json)\n"
	"  --json FILE      append a record of each search, or of each measurement\n"
	"\n"
	"With --measure FILE it searches nothing, but measures the plans of the file on this machine:\n"
	"sequential passes, passes that are cut only, and the plan, in turns. It writes the times into the\n"
	"file; an engine runs a plan only if it was measured to gain at least 2%.\n"
	"  --impl NAME|PATH the table (cuda if there is a GPU, else cpu)\n"
	"  --device N       CUDA device (0)\n"
	"  --turns N        turns of each (4)\n"
	"  --turn-seconds X seconds of a turn (0.5)\n";

enum { MOST_LIST = 16 };

struct list {
	int32_t values[MOST_LIST];
	int num;
};

struct search {
	const char *model, *shape, *profile, *rows, *decode, *context, *dump, *output, *json;
	int how, anyway;
	int64_t tp, nanos, seconds;
	float gap;
	struct cairn_model_config config;
	struct cairn_search_pipeline pipeline;
	struct cairn_search_profile *measured;
	struct cairn_plan_file *plan;
	FILE *records;			/* --json; NULL: none */
};

static int take_list(const char *option, const char *text, int32_t lo, int32_t hi, struct list *list)
{
	return cairn_parse_list(option, text, lo, hi, list->values, MOST_LIST, &list->num);
}

static void write_gap(FILE *f, double gap)
{
	if (isfinite(gap))
		fprintf(f, "%.5f", gap);
	else
		fprintf(f, "null");
}

static void write_record(const struct search *s, const struct cairn_search_pass *pass, int32_t eighths,
			 const struct cairn_search_found *found)
{
	const struct cairn_search_try *best = &found->tries[found->best];
	double seconds = 0;

	for (int32_t i = 0; i < found->num_tries; i++)
		seconds += found->tries[i].stage1_s + found->tries[i].stage2_s;
	fprintf(s->records,
		"{\"v\":1,\"op\":\"search\",\"case\":\"%.32s_rows%d_dec%d_kv%d\",\"impl\":\"%s\","
		"\"ok\":true,\"profile_s\":%.1f,\"search_s\":%.2f,\"nanos\":%d,\"stage1_gap\":",
		s->pipeline.shape, pass->rows, eighths, pass->context, s->measured->impl,
		s->measured->seconds, seconds, best->nanos);
	write_gap(s->records, best->stage1_gap);
	fprintf(s->records, ",\"gap\":");
	write_gap(s->records, best->stage2_gap);
	fprintf(s->records,
		",\"sequential_ms\":%.4f,\"predicted_ms\":%.4f,\"predicted_gain\":%.4f,\"fluid_ms\":%.4f,"
		"\"kernels\":\"%s\",\"gpu\":\"%s\",\"source\":\"%s\"}\n", found->sequential_ms, best->pass_ms,
		found->sequential_ms / best->pass_ms, best->fluid_ms, s->measured->kernels, s->measured->gpu,
		cairn_source_digest());
}

static int search_pass(struct search *s, const struct cairn_search_pass *pass, int32_t eighths)
{
	static struct cairn_search_problem problem;
	static struct cairn_search_found found;
	char dump[PATH_MAX];
	struct cairn_search_options options = { (double)s->seconds, s->gap / 100, (int32_t)s->nanos, NULL };
	unsigned hows = s->how ? 1u << s->how : ~0u;

	if (s->dump) {
		snprintf(dump, sizeof(dump), "%s/rows%d_decode%d_context%d", s->dump, pass->rows, eighths,
			 pass->context);
		options.dump = dump;
	}
	CAIRN_TRY(cairn_search_problem(&problem, &s->pipeline, &s->config, s->measured, pass, hows));
	printf("\n%d rows, %d of them decoding, context %d\n", pass->rows, pass->decode, pass->context);
	cairn_search_print_ops(&problem, stdout);
	if (pass->decode < pass->rows && !problem.row_ms)
		printf("  the profile lacks attention of prompts (pre_mROWS_kvCONTEXT), which is left out\n");
	CAIRN_TRY(cairn_search(&problem, &options, &found));
	cairn_search_print_found(&problem, &found, stdout);
	if (s->records)
		write_record(s, pass, eighths, &found);
	if (!(found.tries[found.best].pass_ms < found.sequential_ms)) {
		printf("  sequential is faster%s\n", s->anyway ? "" : ": no plan");
		if (!s->anyway)
			return 0;
	}
	return cairn_plan_file_add(s->plan, &problem, &found);
}

static int search_passes(struct search *s)
{
	struct list rows, decode, context;

	CAIRN_TRY(take_list("rows", s->rows, 2 * CAIRN_SEARCH_TILE, 1 << 16, &rows));
	CAIRN_TRY(take_list("decode", s->decode, 0, 8, &decode));
	CAIRN_TRY(take_list("context", s->context, 1, 1 << 28, &context));
	for (int k = 0; k < context.num; k++)
		if (context.values[k] & (context.values[k] - 1))
			return cairn_error(EINVAL, "--context: %d is no power of two", context.values[k]);
	for (int i = 0; i < rows.num; i++)
		for (int j = 0; j < decode.num; j++)
			for (int k = 0; k < context.num; k++) {
				struct cairn_search_pass pass = { rows.values[i],
								rows.values[i] * decode.values[j] / 8,
								context.values[k] };

				CAIRN_TRY(search_pass(s, &pass, decode.values[j]));
			}
	return 0;
}

static int write_plan(struct search *s)
{
	char path[PATH_MAX], name[256];

	if (s->output) {
		snprintf(path, sizeof(path), "%s", s->output);
	} else {
		cairn_plan_file_name(s->plan->gpu, s->plan->shape, s->plan->ranks, name, sizeof(name));
		snprintf(path, sizeof(path), "plans/%s", name);
		if (mkdir("plans", 0777) && errno != EEXIST)
			return cairn_error(EIO, "plans: %s", strerror(errno));
	}
	CAIRN_TRY(cairn_plan_file_write(s->plan, path));
	printf("\nwrote %s\n", path);
	return 0;
}

static int run_search(struct search *s)
{
	CAIRN_TRY(cairn_config_option(s->model, s->shape, &s->config));
	CAIRN_TRY(cairn_share_option(&(struct cairn_common_options){ .model = s->model, .tp = s->tp },
				     s->shape, &s->config));
	CAIRN_TRY(cairn_search_pipeline(&s->pipeline, &s->config));
	CAIRN_TRY(cairn_search_profile_read(&s->measured, s->profile));
	CAIRN_TRY(cairn_plan_file_create(&s->plan, s->measured, &s->pipeline));
	if (*s->measured->shape && strcmp(s->measured->shape, s->pipeline.shape))
		return cairn_error(EINVAL, "%s: shape: the profile is of %s, not of %s", s->profile,
				   s->measured->shape, s->pipeline.shape);
	printf("model %s on %s, kernels %s of table %s\n", s->pipeline.shape, s->measured->gpu,
	       s->measured->kernels, s->measured->impl);
	if (strcmp(s->measured->kernels, cairn_kernel_digest()))
		printf("this program's kernels are %s, and it will refuse the plan\n",
		       cairn_kernel_digest());
	if (s->json && !(s->records = fopen(s->json, "a")))
		return cairn_error(EIO, "--json: %s: cannot be written", s->json);
	CAIRN_TRY(search_passes(s));
	return write_plan(s);
}

int cairn_cmd_search(int argc, char **argv)
{
	static const char *const hows[] = { "all", "streams", "green", "queue", "coresident", "priority",
					    NULL };
	struct search s = { .rows = "1024,1536,2048", .decode = "3", .context = "1024", .tp = 1,
			    .nanos = CAIRN_SEARCH_MOST_SPLIT, .seconds = 95, .gap = 1 };
	struct cairn_measure_options measure = { .turns = 4, .seconds = 0.5f };
	const struct cairn_option options[] = {
		{ .name = "model", .kind = CAIRN_OPT_TEXT, .to = &s.model },
		{ .name = "shape", .kind = CAIRN_OPT_TEXT, .to = &s.shape },
		{ .name = "profile", .kind = CAIRN_OPT_TEXT, .to = &s.profile },
		{ .name = "rows", .kind = CAIRN_OPT_TEXT, .to = &s.rows },
		{ .name = "decode", .kind = CAIRN_OPT_TEXT, .to = &s.decode },
		{ .name = "context", .kind = CAIRN_OPT_TEXT, .to = &s.context },
		{ .name = "how", .kind = CAIRN_OPT_CHOICE, .to = &s.how, .names = hows },
		{ .name = "tp", .kind = CAIRN_OPT_INT, .to = &s.tp, .lo = 1, .hi = CAIRN_COMM_MAX_RANKS },
		{ .name = "nanos", .kind = CAIRN_OPT_INT, .to = &s.nanos, .lo = 2,
		  .hi = CAIRN_SEARCH_MOST_SPLIT },
		{ .name = "gap", .kind = CAIRN_OPT_FLOAT, .to = &s.gap, .lo = 0, .hi = 100 },
		{ .name = "seconds", .kind = CAIRN_OPT_INT, .to = &s.seconds, .lo = 1, .hi = 86400 },
		{ .name = "dump-lp", .kind = CAIRN_OPT_TEXT, .to = &s.dump },
		{ .name = "anyway", .kind = CAIRN_OPT_FLAG, .to = &s.anyway },
		{ .name = "out", .kind = CAIRN_OPT_TEXT, .to = &s.output },
		{ .name = "json", .kind = CAIRN_OPT_TEXT, .to = &s.json },
		{ .name = "measure", .kind = CAIRN_OPT_TEXT, .to = &measure.plan },
		{ .name = "impl", .kind = CAIRN_OPT_TEXT, .to = &measure.impl },
		{ .name = "device", .kind = CAIRN_OPT_INT, .to = &measure.device, .lo = 0, .hi = 1023 },
		{ .name = "turns", .kind = CAIRN_OPT_INT, .to = &measure.turns, .lo = 1, .hi = 15 },
		{ .name = "turn-seconds", .kind = CAIRN_OPT_FLOAT, .to = &measure.seconds, .lo = 0,
		  .hi = 60 },
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	measure.model = s.model;
	measure.shape = s.shape;
	measure.json = s.json;
	measure.tp = s.tp;
	if (!ret && !s.profile == !measure.plan)
		ret = cairn_error(EINVAL, "one of --profile and --measure is required");
	if (!ret)
		ret = measure.plan ? cairn_search_measure(&measure) : run_search(&s);
	if (s.records && fclose(s.records) && !ret)
		ret = cairn_error(EIO, "--json: %s: cannot be written", s.json);
	cairn_search_profile_free(s.measured);
	cairn_plan_file_free(s.plan);
	if (!ret)
		return CAIRN_EXIT_OK;
	if (*cairn_last_error())
		fprintf(stderr, "cairn search: %s\n", cairn_last_error());
	return ret == -EINVAL || ret == -EOPNOTSUPP || ret == -ERANGE ? CAIRN_EXIT_USAGE : CAIRN_EXIT_FAILED;
}
