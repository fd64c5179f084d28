// SPDX-License-Identifier: Apache-2.0
/* bench_serve - `cairn bench serve`: measures an OpenAI-compatible server */
#include "serving/bench/bench_serve.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

static const char usage[] =
	"usage: cairn bench serve --url http://ADDRESS:PORT [OPTION]...\n"
	"\n"
	"Sends requests to an OpenAI-compatible server and times the streamed answers. Addresses are\n"
	"numeric; no TLS.\n"
	"\n"
	"  --url URL             the server, with or without /v1\n"
	"  --model NAME          model to request (the first one that the server lists)\n"
	"  --api-key KEY         key to send (OPENAI_API_KEY of the environment, if set)\n"
	"  --chat                /v1/chat/completions with words, not /v1/completions with token ids\n"
	"\n"
	"Requests:\n"
	"  --num-prompts N       number of requests (100)\n"
	"  --input-len N  --output-len N      tokens of each prompt and answer (128, 128)\n"
	"  --lengths FIT         sharegpt, alpaca: log-normal, sigma 1, clamped to 1024, means 161 and 338,\n"
	"                        19 and 58 (vLLM's paper, SOSP 2023, section 6.1)\n"
	"  --trace FILE          two columns, tokens of prompt and answer, or a header that names them\n"
	"                        (ContextTokens, GeneratedTokens: the public traces of Azure)\n"
	"  --max-len N           truncate requests to this sum of prompt and answer\n"
	"  --shared-prefix N     length of a common prefix before each prompt (0)\n"
	"  --vocab N             token ids are less than N (256)\n"
	"  --temperature X       0 is greedy (0)\n"
	"  --respect-eos         allow shorter answers; else ignore_eos is sent and lengths must match\n"
	"  --count-tokens        request logprobs and check that no token is missing\n"
	"  --seed N              seed of lengths, arrivals, prompts and sampling (1)\n"
	"\n"
	"Schedule:\n"
	"  --rate X              mean requests per second, Poisson arrivals; without it, a closed loop\n"
	"  --concurrency N       maximum requests in flight (closed loop: 1, with --rate: no limit)\n"
	"  --duration S          stop sending after S seconds\n"
	"  --timeout S           seconds until a request fails (600)\n"
	"  --warm-up N           untimed requests, one by one, before the run (0)\n"
	"\n"
	"Additional load and output:\n"
	"  --idle N              idle connections, reopened when the server closes them\n"
	"  --stalled N           streams of --stalled-len tokens (2000) that are never read\n"
	"  --json FILE           append a record to FILE; --case, --impl: its names (serve, server)\n"
	"  --requests FILE       write a line for each request\n"
	"\n"
	"TTFT: time to the first token; TPOT: mean time of each later token; ITL: time between chunks.\n"
	"Latencies count from when a request was due: by the schedule or, in a closed loop, at the end of\n"
	"the previous request. For comparison with other tools they are also given from when it was sent.\n"
	"\n"
	"The first interrupt stops sending, waits for requests in flight and reports; the second exits.\n"
	"\n"
	"Exit status: 0 all answered, 1 some failed or none was sent, 2 bad usage or no server.\n";

struct options {
	const char *url, *api_key, *json, *case_name, *impl, *requests;
	struct bench_load load;
	int64_t concurrency, warm_up, idle, stalled, stalled_len, seed;
	float rate, duration, timeout, temperature;
	int chat, respect_eos, count_tokens;
};

static atomic_bool interrupted;

static void on_interrupt(int signal)
{
	(void)signal;
	atomic_store(&interrupted, true);
}

static int check_writable(const char *option, const char *path)
{
	FILE *f = path ? fopen(path, "a") : NULL;

	if (path && !f)
		return cairn_error(EINVAL, "--%s: %s: %s", option, path, strerror(errno));
	if (f)
		fclose(f);
	return 0;
}

static int is_name(const char *s)
{
	return *s &&
	       strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-") == strlen(s);
}

static int check(struct options *o)
{
	if (!o->url)
		return cairn_error(EINVAL, "--url: is missing");
	if (o->load.lengths && o->load.trace)
		return cairn_error(EINVAL, "--lengths, --trace: exclude each other");
	if (o->api_key && strpbrk(o->api_key, "\r\n"))
		return cairn_error(EINVAL, "--api-key: contains a line end");
	if (!is_name(o->case_name) || !is_name(o->impl))
		return cairn_error(EINVAL, "--case, --impl: only letters, digits and _ . : - are allowed");
	if (o->load.max_len == 1)
		return cairn_error(EINVAL, "--max-len: leaves no room for prompt and answer");
	CAIRN_TRY(check_writable("json", o->json));
	return check_writable("requests", o->requests);
}

static int parse(int argc, char **argv, struct options *o)
{
	const struct cairn_option options[] = {
		{ "url", CAIRN_OPT_TEXT, &o->url, 0, 0, NULL },
		{ "model", CAIRN_OPT_TEXT, &o->load.model, 0, 0, NULL },
		{ "api-key", CAIRN_OPT_TEXT, &o->api_key, 0, 0, NULL },
		{ "chat", CAIRN_OPT_FLAG, &o->chat, 0, 0, NULL },
		{ "num-prompts", CAIRN_OPT_INT, &o->load.num, 1, 10000000, NULL },
		{ "input-len", CAIRN_OPT_INT, &o->load.input_len, 1, 1 << 20, NULL },
		{ "output-len", CAIRN_OPT_INT, &o->load.output_len, 1, 1 << 20, NULL },
		{ "lengths", CAIRN_OPT_TEXT, &o->load.lengths, 0, 0, NULL },
		{ "trace", CAIRN_OPT_TEXT, &o->load.trace, 0, 0, NULL },
		{ "max-len", CAIRN_OPT_INT, &o->load.max_len, 1, 1 << 21, NULL },
		{ "shared-prefix", CAIRN_OPT_INT, &o->load.shared_prefix, 0, 1 << 20, NULL },
		{ "vocab", CAIRN_OPT_INT, &o->load.vocab, 1, 1 << 24, NULL },
		{ "temperature", CAIRN_OPT_FLOAT, &o->temperature, 0, 2, NULL },
		{ "respect-eos", CAIRN_OPT_FLAG, &o->respect_eos, 0, 0, NULL },
		{ "count-tokens", CAIRN_OPT_FLAG, &o->count_tokens, 0, 0, NULL },
		{ "seed", CAIRN_OPT_INT, &o->seed, 0, 1e15, NULL },
		{ "rate", CAIRN_OPT_FLOAT, &o->rate, 1e-3, 1e5, NULL },
		{ "concurrency", CAIRN_OPT_INT, &o->concurrency, 1, 100000, NULL },
		{ "duration", CAIRN_OPT_FLOAT, &o->duration, 1e-3, 1e6, NULL },
		{ "timeout", CAIRN_OPT_FLOAT, &o->timeout, 1e-3, 1e5, NULL },
		{ "warm-up", CAIRN_OPT_INT, &o->warm_up, 0, 100000, NULL },
		{ "idle", CAIRN_OPT_INT, &o->idle, 0, 100000, NULL },
		{ "stalled", CAIRN_OPT_INT, &o->stalled, 0, 100000, NULL },
		{ "stalled-len", CAIRN_OPT_INT, &o->stalled_len, 1, 1 << 20, NULL },
		{ "json", CAIRN_OPT_TEXT, &o->json, 0, 0, NULL },
		{ "case", CAIRN_OPT_TEXT, &o->case_name, 0, 0, NULL },
		{ "impl", CAIRN_OPT_TEXT, &o->impl, 0, 0, NULL },
		{ "requests", CAIRN_OPT_TEXT, &o->requests, 0, 0, NULL },
	};
	int ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);

	if (ret)
		return ret;
	o->load.seed = (uint64_t)o->seed;
	o->load.rate = o->rate;
	o->load.temperature = o->temperature;
	o->load.chat = o->chat;
	o->load.respect_eos = o->respect_eos;
	o->load.count_tokens = o->count_tokens;
	if (!o->concurrency && o->rate == 0)
		o->concurrency = 1;
	return check(o);
}

/* Asks the server for its models and copies the name of the first one. */
static int ask_model(const struct bench_target *target, char *name, size_t len)
{
	char *body = NULL;
	const char *id;
	json_t *root;

	CAIRN_TRY(bench_fetch(target, "/v1/models", 10000, &body));
	root = json_loads(body, 0, NULL);
	free(body);
	id = json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
	snprintf(name, len, "%s", id ? id : "");
	json_decref(root);
	return *name ? 0
		     : cairn_error(EIO, "http://%s%s/v1/models: lists no model; name one with --model",
				   target->host, target->base);
}

static int warm_up(const struct options *o, const struct bench_target *target)
{
	struct bench_load load = o->load;
	struct bench_run run = {
		.target = target,
		.load = &load,
		.num = (size_t)o->warm_up,
		.concurrency = 1,
		.timeout_ns = (int64_t)((double)o->timeout * 1e9),
	};
	int ret;

	if (!run.num)
		return 0;
	load.num = o->warm_up;
	load.rate = 0;
	load.seed += 0x5eed; /* other prompts than the timed ones, which must not be cached */
	CAIRN_TRY(bench_load_plan(&load, &run.reqs));
	ret = bench_run(&run);
	for (size_t i = 0; !ret && i < run.num; i++) {
		if (run.reqs[i].outcome != BENCH_OK)
			ret = cairn_error(EIO, "--warm-up: %s", run.first_error);
	}
	free(run.reqs);
	free(run.itl.v);
	return ret;
}

static int write_requests(const char *path, const struct bench_run *run)
{
	FILE *f = fopen(path, "w");

	if (!f)
		return cairn_error(EINVAL, "--requests: %s: %s", path, strerror(errno));
	/* requests that were never sent have no line */
	for (size_t i = 0; i < run->num && run->reqs[i].outcome != BENCH_UNSENT; i++) {
		const struct bench_request *q = &run->reqs[i];

		fprintf(f,
			"{\"i\":%zu,\"outcome\":\"%s\",\"status\":%d,\"prompt_tokens\":%d,\"max_tokens\":%d,"
			"\"output_tokens\":%lld,\"counted\":%lld,\"cached\":%lld,\"due_ns\":%lld,"
			"\"sent_ns\":%lld,\"first_ns\":%lld,\"last_ns\":%lld,\"end_ns\":%lld}\n",
			i, bench_outcome_names[q->outcome], q->status, q->prompt_tokens, q->max_tokens,
			(long long)q->output_tokens, (long long)q->counted, (long long)q->used_cached,
			(long long)q->due_ns, (long long)q->sent_ns, (long long)q->first_ns,
			(long long)q->last_ns, (long long)q->end_ns);
	}
	return fclose(f) ? cairn_error(EIO, "--requests: %s: %s", path, strerror(errno)) : 0;
}

static int write_record(const struct options *o, const struct bench_run *run, const struct bench_report *r)
{
	FILE *f = fopen(o->json, "a");

	if (!f)
		return cairn_error(EINVAL, "--json: %s: %s", o->json, strerror(errno));
	fprintf(f, "{\"v\":1,\"op\":\"bench_serve\",\"case\":\"%s\",\"impl\":\"%s\",\"ok\":%s,", o->case_name,
		o->impl, r->ok && r->ok == r->sent ? "true" : "false");
	bench_report_members(run, r, f);
	fprintf(f, ",\"seed\":%lld,\"source\":\"%s\"}\n", (long long)o->seed, cairn_source_digest());
	return fclose(f) ? cairn_error(EIO, "--json: %s: %s", o->json, strerror(errno)) : 0;
}

static int report(const struct options *o, struct bench_run *run, int *all_ok)
{
	struct bench_report r;

	CAIRN_TRY(bench_report_make(run, &r));
	printf("server        http://%s%s, %s\n", run->target->host, run->target->base, run->load->model);
	bench_report_print(run, &r, stdout);
	*all_ok = r.ok && r.ok == r.sent;
	if (o->requests)
		CAIRN_TRY(write_requests(o->requests, run));
	return o->json ? write_record(o, run, &r) : 0;
}

int cairn_cmd_bench_serve(int argc, char **argv)
{
	struct options o = {
		.api_key = getenv("OPENAI_API_KEY"),
		.case_name = "serve",
		.impl = "server",
		.stalled_len = 2000,
		.seed = 1,
		.timeout = 600,
		.load = { .num = 100, .input_len = 128, .output_len = 128, .vocab = 256 },
	};
	struct bench_target target;
	struct bench_run run = { .target = &target, .load = &o.load };
	char model[256];
	int ret, all_ok = 0, status = CAIRN_EXIT_USAGE;

	cairn_clear_error();
	ret = parse(argc, argv, &o);
	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)	/* before connecting, so that a bad --trace is reported first */
		ret = bench_load_plan(&o.load, &run.reqs);
	if (!ret)
		ret = bench_target_parse(o.url, &target);
	target.api_key = o.api_key && *o.api_key ? o.api_key : NULL;
	if (!ret && !o.load.model) {
		ret = ask_model(&target, model, sizeof(model));
		o.load.model = model;
	}
	if (!ret) {
		status = CAIRN_EXIT_FAILED;
		ret = warm_up(&o, &target);
	}
	run.num = (size_t)o.load.num;
	run.concurrency = (int)o.concurrency;
	run.timeout_ns = (int64_t)((double)o.timeout * 1e9);
	run.duration_ns = (int64_t)((double)o.duration * 1e9);
	run.idle = (int)o.idle;
	run.stalled = (int)o.stalled;
	run.stalled_len = o.stalled_len;
	run.stop = &interrupted;
	sigaction(SIGINT, &(struct sigaction) { .sa_handler = on_interrupt, .sa_flags = SA_RESETHAND }, NULL);
	if (!ret)
		ret = bench_run(&run);
	if (!ret)
		ret = report(&o, &run, &all_ok);
	if (!ret && all_ok)
		status = CAIRN_EXIT_OK;
	if (ret && *cairn_last_error())
		fprintf(stderr, "cairn bench serve: %s\n", cairn_last_error());
	free(run.reqs);
	free(run.itl.v);
	return status;
}
