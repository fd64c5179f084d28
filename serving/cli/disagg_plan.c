// SPDX-License-Identifier: Apache-2.0
/* disagg_plan - advises how to split GPUs between model and attention workers; `cairn disagg-plan` */
#include "serving/cli/commands.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/cli/command.h"
#include "serving/disagg/figures.h"

static const char usage[] =
	"usage: cairn disagg-plan --trace FILE --prices FILE --model DIR | --shape NAME [OPTION]...\n"
	"\n"
	"Simulates decoding of a trace of requests on whole engines, and on model workers apart from\n"
	"attention workers (a, b) with 1 to 3 lanes, with measured costs of operations. Prints which gives\n"
	"the most tokens per dollar, or \"do not\" if that is a whole engine. Nothing runs.\n"
	"  --trace FILE     requests: an Azure 2023 CSV or a Mooncake JSON lines file\n"
	"  --prices FILE    GPUs with prices, memory and costs, and the link (serving/disagg/hardware.h)\n"
	"  --model DIR      a checkpoint; only its config.json is read\n"
	"  --shape NAME     a published shape, as llama3-70b\n"
	"  --requests N     replay only the first N of the trace (1000)\n"
	"  --max-gpus N     most GPUs together (8)\n"
	"  --model-workers N, --attention-workers N     only these degrees (all)\n"
	"  --model-gpu NAME, --attention-gpu NAME       only these kinds of --prices (all)\n"
	"  --lanes N        most lanes (3)\n"
	"  --tbt MS         bound of the p99 of the time between two tokens (none)\n"
	"  --batch N        most requests of a lane (1024)\n"
	"  --page N         tokens of a KV page (16)\n"
	"  --memory-share X share of a GPU's memory for weights and KV (0.9)\n"
	"  --top N          lines to print of each kind (8)\n"
	"  --json FILE      append the result as a row of op disagg_sim\n"
	"  --figures        to --json, also rows of the source's figures 4, 8 and 9\n"
	"  --ways           to --json, also the best way to use each set of GPUs (figure 11)\n";

struct plan {
	const char *trace_path, *prices, *model, *shape, *json, *model_gpu, *attn_gpu;
	int64_t requests, most_gpus, a, b, lanes, batch, page, top;
	float tbt, memory_share;
	int figures, ways;
	struct cairn_trace *trace;
	struct cairn_disagg_hardware hardware;
	struct cairn_disagg_model priced;
	struct cairn_disagg_advice advice;
};

/* Makes part of a case's name of a path's last component: lower case, digits and _. */
static void name_of(const char *path, char *name, size_t len)
{
	const char *slash = strrchr(path, '/'), *dot;
	size_t n = 0;

	path = slash ? slash + 1 : path;
	dot = strchr(path, '.');
	for (; *path && path != dot && n + 1 < len; path++)
		name[n++] = isalnum((unsigned char)*path) ? (char)tolower((unsigned char)*path) : '_';
	name[n] = 0;
}

static void print_way(const struct cairn_disagg_way *w)
{
	char gpus[96], how[48];

	if (w->b) {
		snprintf(gpus, sizeof(gpus), "%d %s + %d %s", w->a, w->model_gpu->name, w->b,
			 w->attn_gpu->name);
		snprintf(how, sizeof(how), "%d lane%s, %d replica%s", w->lanes, w->lanes > 1 ? "s" : "",
			 w->replicas, w->replicas > 1 ? "s" : "");
	} else {
		snprintf(gpus, sizeof(gpus), "%d %s", w->a, w->model_gpu->name);
		snprintf(how, sizeof(how), "one engine");
	}
	printf("  %-24s %-20s", gpus, how);
	if (w->runs)
		printf(" %8.0f %9.1f %8.2f %8.2f %8.2f %10.0f\n", w->result.tokens_per_s, w->result.batch,
		       w->result.tbt_ms, w->result.p99_tbt_ms, w->dollars_per_hour, w->tokens_per_dollar);
	else
		printf(" %s\n", w->why);
}

static void print_ways(const char *title, const struct cairn_disagg_way *ways, int32_t num, int64_t top)
{
	printf("\n%-47s %8s %9s %8s %8s %8s %10s\n", title, "tokens/s", "batch", "TBT ms", "p99", "$/h",
	       "tokens/$");
	for (int32_t i = 0; i < num && i < top; i++)
		print_way(&ways[i]);
}

static void print_verdict(const struct plan *p)
{
	const struct cairn_disagg_advice *v = &p->advice;
	const struct cairn_disagg_way *w = v->apart, *whole = v->whole;

	if (!w) {
		printf("\ndo not: no disaggregated system runs\n");
		return;
	}
	if (!whole)
		printf("\nbest: a %d x %s, b %d x %s, lanes %d: no whole engine runs\n", w->a,
		       w->model_gpu->name, w->b, w->attn_gpu->name, w->lanes);
	else if (v->do_it)
		printf("\nbest: a %d x %s, b %d x %s, lanes %d: %.2f times the tokens per dollar of %d x %s "
		       "as one engine\n", w->a, w->model_gpu->name, w->b, w->attn_gpu->name, w->lanes,
		       w->tokens_per_dollar / whole->tokens_per_dollar, whole->a, whole->model_gpu->name);
	else
		printf("\ndo not: %d x %s as one engine gives %.2f times the tokens per dollar of the best "
		       "disaggregated system\n", whole->a, whole->model_gpu->name,
		       whole->tokens_per_dollar / w->tokens_per_dollar);
	if (v->same_tokens_per_s > 0)
		printf("the same GPUs as whole engines (%s): %.0f tokens/s; apart %.2f times that\n", v->same,
		       v->same_tokens_per_s, w->result.tokens_per_s / v->same_tokens_per_s);
	else
		printf("the same GPUs hold no whole engine\n");
}

static int write_rows(const struct plan *p, const struct cairn_disagg_limits *limits)
{
	char trace[64], model[64];
	FILE *f = fopen(p->json, "a");

	if (!f)
		return cairn_error(EIO, "--json: %s: cannot be written", p->json);
	name_of(p->trace_path, trace, sizeof(trace));
	name_of(p->shape ? p->shape : p->model, model, sizeof(model));
	if (p->figures)
		cairn_disagg_write_figures(f, trace, model, p->trace, &p->priced, &p->hardware,
					   limits);
	cairn_disagg_write_advice(f, trace, model, &p->advice, p->ways);
	if (ferror(f) | fclose(f))
		return cairn_error(EIO, "--json: %s: cannot be written", p->json);
	return 0;
}

static int check_gpu(const struct plan *p, const char *option, const char *name)
{
	for (int32_t i = 0; name && i < p->hardware.num_gpus; i++)
		if (!strcmp(name, p->hardware.gpus[i].name))
			return 0;
	return name ? cairn_error(EINVAL, "--%s: %s has no %s", option, p->prices, CAIRN_QUOTED(name)) : 0;
}

static int run(struct plan *p)
{
	struct cairn_model_config config;
	struct cairn_disagg_limits limits = {
		.most_gpus = (int32_t)p->most_gpus, .most_lanes = (int32_t)p->lanes, .a = (int32_t)p->a,
		.b = (int32_t)p->b, .model_gpu = p->model_gpu, .attn_gpu = p->attn_gpu,
		.replay = { .page_size = (int32_t)p->page, .most_rows = (int32_t)p->batch, .tbt_ms = p->tbt,
			    .memory_share = p->memory_share },
	};

	if (!p->trace_path || !p->prices)
		return cairn_error(EINVAL, "--%s is required", p->trace_path ? "prices" : "trace");
	if ((p->figures || p->ways) && !p->json)
		return cairn_error(EINVAL, "--%s: needs --json", p->figures ? "figures" : "ways");
	if ((p->a ? p->a : 1) + (p->b ? p->b : 1) > p->most_gpus)
		return cairn_error(EINVAL, "--max-gpus: is less than both kinds of workers together");
	CAIRN_TRY(cairn_config_option(p->model, p->shape, &config));
	CAIRN_TRY(cairn_disagg_hardware_read(&p->hardware, p->prices));
	CAIRN_TRY(check_gpu(p, "model-gpu", p->model_gpu));
	CAIRN_TRY(check_gpu(p, "attention-gpu", p->attn_gpu));
	CAIRN_TRY(cairn_trace_read(&p->trace, p->trace_path, (int32_t)p->requests));
	CAIRN_TRY(cairn_disagg_model_open(&p->priced, &config));
	CAIRN_TRY(cairn_disagg_advise(&p->advice, p->trace, &p->priced, &p->hardware, &limits));
	printf("%d requests, mean prompt %.1f, mean answer %.1f tokens; weights %.1f GB, KV %.1f KB a token; "
	       "simulated\n", p->trace->num_requests, p->trace->mean_prompt, p->trace->mean_answer,
	       (double)p->priced.weights * 1e-9, (double)p->priced.token_bytes * 1e-3);
	print_ways("whole engines", p->advice.ways, p->advice.num_whole, p->top);
	print_ways("disaggregated", p->advice.ways + p->advice.num_whole,
		   p->advice.num_ways - p->advice.num_whole, p->top);
	print_verdict(p);
	return p->json ? write_rows(p, &limits) : 0;
}

int cairn_cmd_disagg_plan(int argc, char **argv)
{
	struct plan p = { .requests = 1000, .most_gpus = 8, .lanes = 3, .batch = 1024, .page = 16, .top = 8,
			  .memory_share = 0.9f };
	const struct cairn_option options[] = {
		{ "trace", CAIRN_OPT_TEXT, &p.trace_path, 0, 0, NULL },
		{ "prices", CAIRN_OPT_TEXT, &p.prices, 0, 0, NULL },
		{ "model", CAIRN_OPT_TEXT, &p.model, 0, 0, NULL },
		{ "shape", CAIRN_OPT_TEXT, &p.shape, 0, 0, NULL },
		{ "requests", CAIRN_OPT_INT, &p.requests, 1, 1 << 24, NULL },
		{ "max-gpus", CAIRN_OPT_INT, &p.most_gpus, 2, 64, NULL },
		{ "model-workers", CAIRN_OPT_INT, &p.a, 1, 63, NULL },
		{ "attention-workers", CAIRN_OPT_INT, &p.b, 1, 63, NULL },
		{ "model-gpu", CAIRN_OPT_TEXT, &p.model_gpu, 0, 0, NULL },
		{ "attention-gpu", CAIRN_OPT_TEXT, &p.attn_gpu, 0, 0, NULL },
		{ "lanes", CAIRN_OPT_INT, &p.lanes, 1, 3, NULL },
		{ "tbt", CAIRN_OPT_FLOAT, &p.tbt, 1e-3, 1e6, NULL },
		{ "batch", CAIRN_OPT_INT, &p.batch, 1, 1 << 16, NULL },
		{ "page", CAIRN_OPT_INT, &p.page, 1, 1024, NULL },
		{ "memory-share", CAIRN_OPT_FLOAT, &p.memory_share, 0.01, 1, NULL },
		{ "top", CAIRN_OPT_INT, &p.top, 1, 1 << 16, NULL },
		{ "json", CAIRN_OPT_TEXT, &p.json, 0, 0, NULL },
		{ "figures", CAIRN_OPT_FLAG, &p.figures, 0, 0, NULL },
		{ "ways", CAIRN_OPT_FLAG, &p.ways, 0, 0, NULL },
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = run(&p);
	if (ret && *cairn_last_error())
		fprintf(stderr, "cairn disagg-plan: %s\n", cairn_last_error());
	cairn_disagg_advice_free(&p.advice);
	cairn_disagg_model_close(&p.priced);
	cairn_trace_free(p.trace);
	if (!ret)
		return CAIRN_EXIT_OK;
	return ret == -EIO || ret == -ENOMEM ? CAIRN_EXIT_FAILED : CAIRN_EXIT_USAGE;
}
