// SPDX-License-Identifier: Apache-2.0
/*
 * generate - `cairn generate`: continues a prompt, or times the engine on a shape
 *
 * The time of a token (TPOT) is what a caller sees: the time between two tokens handed out. The first
 * few are left out: there operations load their code and the pass is captured. The bytes of a step are
 * those of model.h's cairn_model_step_bytes(), and their rate is set against a pure read of memory measured
 * in the same run.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../primitives/dtype.h"
#include "../primitives/error.h"
#include "command.h"
#include "engine.h"

#define WARM_UP		4	/* tokens */

int cairn_cmd_generate(int argc, char **argv);

static const char usage[] =
	"usage: cairn generate [OPTION]...\n"
	"\n"
	"Continues a prompt (--prompt, --prompt-file, else standard input) on standard output.\n"
	"\n"
	"  --impl NAME|PATH      cuda, cpu, ref, or a plug-in (cuda where there is a device, else cpu)\n"
	"  --device N            (0)\n"
	"  --model DIR           checkpoint in Hugging Face form (the embedded model)\n"
	"  --prompt TEXT         \n"
	"  --prompt-file FILE    \n"
	"  --max-new-tokens N    (128)\n"
	"  --temperature X       0 is greedy (0)\n"
	"  --top-k N  --top-p X  --min-p X    0, 1 and 0 are off (off)\n"
	"  --seed N              of sampling, and of random weights (1)\n"
	"  --ignore-eos          goes on after an end-of-sequence token\n"
	"\n"
	"To measure:\n"
	"  --shape NAME          random weights: llama2-7b, llama3-8b, llama32-1b\n"
	"  --prompt-tokens N     a prompt of random tokens (512 with --shape)\n"
	"  --batch N             so many requests at once, all with this prompt (1)\n"
	"  --repeat N            runs; their tokens must be the same (1)\n"
	"  --prefill-rows N      prompt tokens of one pass (2048, on the host 256)\n"
	"  --page-size N         tokens of a KV page (16)\n"
	"  --no-graphs           calls operations one by one\n"
	"  --json FILE           appends a bench record\n"
	"\n"
	"Exit status: 0 all well, 1 the engine failed, 2 bad usage or input.\n";

struct options {
	const char *impl, *model, *shape, *prompt, *prompt_file, *json;
	int64_t device, max_new_tokens, prompt_tokens, batch, repeat, prefill_rows, page_size, seed;
	int ignore_eos, no_graphs;
	struct cairn_sampling sampling;
};

/* One request of one run. */
struct output {
	struct cairn_token_stream *text;	/* NULL: not shown */
	int32_t *ids;
	double *at;				/* when each came */
	int32_t num_ids;
	int failed;
};

struct run {
	struct output *out;
	int32_t batch;
	double start;
};

static int parse(int argc, char **argv, struct options *o)
{
	enum { O_IMPL = 256, O_DEVICE, O_MODEL, O_PROMPT, O_PROMPT_FILE, O_MAX_NEW_TOKENS, O_TEMPERATURE,
		O_TOP_K, O_TOP_P, O_MIN_P, O_SEED, O_IGNORE_EOS, O_SHAPE, O_PROMPT_TOKENS, O_BATCH, O_REPEAT,
		O_PREFILL_ROWS, O_PAGE_SIZE, O_NO_GRAPHS, O_JSON, O_HELP };
	static const struct option options[] = {
		{ "impl", required_argument, NULL, O_IMPL },
		{ "device", required_argument, NULL, O_DEVICE },
		{ "model", required_argument, NULL, O_MODEL },
		{ "prompt", required_argument, NULL, O_PROMPT },
		{ "prompt-file", required_argument, NULL, O_PROMPT_FILE },
		{ "max-new-tokens", required_argument, NULL, O_MAX_NEW_TOKENS },
		{ "temperature", required_argument, NULL, O_TEMPERATURE },
		{ "top-k", required_argument, NULL, O_TOP_K },
		{ "top-p", required_argument, NULL, O_TOP_P },
		{ "min-p", required_argument, NULL, O_MIN_P },
		{ "seed", required_argument, NULL, O_SEED },
		{ "ignore-eos", no_argument, NULL, O_IGNORE_EOS },
		{ "shape", required_argument, NULL, O_SHAPE },
		{ "prompt-tokens", required_argument, NULL, O_PROMPT_TOKENS },
		{ "batch", required_argument, NULL, O_BATCH },
		{ "repeat", required_argument, NULL, O_REPEAT },
		{ "prefill-rows", required_argument, NULL, O_PREFILL_ROWS },
		{ "page-size", required_argument, NULL, O_PAGE_SIZE },
		{ "no-graphs", no_argument, NULL, O_NO_GRAPHS },
		{ "json", required_argument, NULL, O_JSON },
		{ "help", no_argument, NULL, O_HELP },
		{ NULL, 0, NULL, 0 },
	};
	int64_t top_k = 0;
	int c, which;

	while ((c = getopt_long(argc, argv, "", options, &which)) != -1) {
		char name[32] = "--";

		if (c == '?')
			return -EINVAL;	/* getopt has named the option */
		strncat(name, options[which].name, sizeof(name) - 3);
		switch (c) {
		case O_IMPL:
			o->impl = optarg;
			break;
		case O_MODEL:
			o->model = optarg;
			break;
		case O_PROMPT:
			o->prompt = optarg;
			break;
		case O_PROMPT_FILE:
			o->prompt_file = optarg;
			break;
		case O_SHAPE:
			o->shape = optarg;
			break;
		case O_JSON:
			o->json = optarg;
			break;
		case O_IGNORE_EOS:
			o->ignore_eos = 1;
			break;
		case O_NO_GRAPHS:
			o->no_graphs = 1;
			break;
		case O_DEVICE:
			CAIRN_TRY(cairn_option_int(name, optarg, 0, 1023, &o->device));
			break;
		case O_MAX_NEW_TOKENS:
			CAIRN_TRY(cairn_option_int(name, optarg, 1, CAIRN_MAX_POSITIONS, &o->max_new_tokens));
			break;
		case O_PROMPT_TOKENS:
			CAIRN_TRY(cairn_option_int(name, optarg, 1, CAIRN_MAX_POSITIONS, &o->prompt_tokens));
			break;
		case O_BATCH:
			CAIRN_TRY(cairn_option_int(name, optarg, 1, 4096, &o->batch));
			break;
		case O_REPEAT:
			CAIRN_TRY(cairn_option_int(name, optarg, 1, 1000, &o->repeat));
			break;
		case O_PREFILL_ROWS:
			CAIRN_TRY(cairn_option_int(name, optarg, 1, 1 << 20, &o->prefill_rows));
			break;
		case O_PAGE_SIZE:
			CAIRN_TRY(cairn_option_int(name, optarg, 1, 1 << 16, &o->page_size));
			break;
		case O_SEED:
			CAIRN_TRY(cairn_option_int(name, optarg, 0, INT64_MAX, &o->seed));
			break;
		case O_TOP_K:
			CAIRN_TRY(cairn_option_int(name, optarg, 0, CAIRN_MAX_VOCAB, &top_k));
			break;
		case O_TEMPERATURE:
			CAIRN_TRY(cairn_option_float(name, optarg, 0, 1e6, &o->sampling.temperature));
			break;
		case O_TOP_P:
			CAIRN_TRY(cairn_option_float(name, optarg, 1e-6, 1, &o->sampling.top_p));
			break;
		case O_MIN_P:
			CAIRN_TRY(cairn_option_float(name, optarg, 0, 0.999999, &o->sampling.min_p));
			break;
		default:
			fputs(usage, stdout);
			return 1;
		}
	}
	if (optind < argc)
		return cairn_error(EINVAL, "'%.64s' is not an option; a prompt is given by --prompt",
				   argv[optind]);
	if (o->shape && (o->model || o->prompt || o->prompt_file))
		return cairn_error(
			EINVAL, "--shape: has random weights and no tokenizer: not with --model or a prompt");
	if (!!o->prompt + !!o->prompt_file + !!o->prompt_tokens > 1)
		return cairn_error(EINVAL, "--prompt, --prompt-file, --prompt-tokens: give one of them");
	if (o->json) {	/* better known now than after the run */
		FILE *json = fopen(o->json, "a");

		if (!json)
			return cairn_error(EINVAL, "--json: %s: %s", o->json, strerror(errno));
		fclose(json);
	}
	if (o->shape && !o->prompt_tokens)
		o->prompt_tokens = 512;
	o->sampling.top_k = (int32_t)top_k;
	o->sampling.seed = (uint64_t)o->seed;
	return 0;
}

/* All of a file, or of standard input (path NULL). */
static int read_text(const char *path, char **text, size_t *len)
{
	FILE *f = path ? fopen(path, "rb") : stdin;
	size_t room = 0, n = 0, got;
	char *buf = NULL, *grown;
	int ret = 0;

	if (!f)
		return cairn_error(EINVAL, "--prompt-file: %s: %s", path, strerror(errno));
	do {
		room = room ? 2 * room : 1 << 16;
		grown = room <= CAIRN_MAX_TEXT ? realloc(buf, room) : NULL;
		if (!grown) {
			ret = cairn_error(EINVAL, "%s: is over %u bytes", path ? path : "standard input",
					  CAIRN_MAX_TEXT);
			break;
		}
		buf = grown;
		got = fread(buf + n, 1, room - n, f);
		n += got;
	} while (n == room);
	if (!ret && ferror(f))
		ret = cairn_error(EINVAL, "%s: %s", path ? path : "standard input", strerror(errno));
	if (path)
		fclose(f);
	if (ret) {
		free(buf);
		return ret;
	}
	*text = buf;
	*len = n;
	return 0;
}

static int make_prompt(const struct cairn_session *s, const struct options *o, int32_t **ids, size_t *num_ids)
{
	char *text = NULL;
	size_t len = 0;
	int ret;

	if (o->prompt_tokens) {
		uint64_t x = (uint64_t)o->seed;

		*ids = malloc((size_t)o->prompt_tokens * sizeof(**ids));
		if (!*ids)
			return cairn_error(ENOMEM, "prompt: no memory");
		*num_ids = (size_t)o->prompt_tokens;
		for (size_t i = 0; i < *num_ids; i++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			(*ids)[i] = (int32_t)((x >> 33) % (uint64_t)s->model->config.vocab_size);
		}
		return 0;
	}
	if (o->prompt)
		return cairn_tokenizer_encode(s->tokenizer, o->prompt, strlen(o->prompt),
					      CAIRN_ENCODE_ADD_SPECIAL, ids, num_ids);
	CAIRN_TRY(read_text(o->prompt_file, &text, &len));
	ret = cairn_tokenizer_encode(s->tokenizer, text, len, CAIRN_ENCODE_ADD_SPECIAL, ids, num_ids);
	free(text);
	return ret;
}

static int take_token(void *ctx, int32_t token)
{
	struct output *out = ctx;
	const char *text;
	size_t len;

	out->at[out->num_ids] = cairn_now();
	out->ids[out->num_ids++] = token;
	if (!out->text)
		return 0;
	out->failed = cairn_token_stream_push(out->text, token, &text, &len);
	if (out->failed || (len && (fwrite(text, 1, len, stdout) != len || fflush(stdout))))
		return 1;
	return 0;
}

static int create_run(struct run *r, const struct options *o)
{
	r->batch = (int32_t)o->batch;
	r->out = calloc((size_t)r->batch, sizeof(*r->out));
	for (int32_t i = 0; r->out && i < r->batch; i++) {
		r->out[i].ids = malloc((size_t)o->max_new_tokens * sizeof(*r->out->ids));
		r->out[i].at = malloc((size_t)o->max_new_tokens * sizeof(*r->out->at));
		if (!r->out[i].ids || !r->out[i].at)
			return cairn_error(ENOMEM, "generate: no memory");
	}
	return r->out ? 0 : cairn_error(ENOMEM, "generate: no memory");
}

static void destroy_run(struct run *r)
{
	for (int32_t i = 0; r->out && i < r->batch; i++) {
		cairn_token_stream_free(r->out[i].text);
		free(r->out[i].ids);
		free(r->out[i].at);
	}
	free(r->out);
}

static int submit(struct cairn_engine *e, const struct options *o, const int32_t *ids, size_t num_ids,
		  struct run *r)
{
	struct cairn_request req = {
		.prompt = ids, .num_prompt = (int32_t)num_ids, .max_new_tokens = (int32_t)o->max_new_tokens,
		.ignore_eos = o->ignore_eos || o->shape, .sampling = o->sampling, .on_token = take_token,
	};

	for (int32_t i = 0; i < r->batch; i++) {
		r->out[i].num_ids = 0;
		req.ctx = &r->out[i];
		req.sampling.seed = o->sampling.seed + (uint64_t)i;
		CAIRN_TRY(cairn_engine_submit(e, &req));
	}
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

struct figures {
	double *ns;		/* between tokens, sorted */
	int n;
	double first_s;		/* to the first token, the last run's */
	double kv_tokens;	/* mean length of a request over the samples */
	int same;		/* all runs gave the same tokens */
};

/*
 * Of the request that got its first token last: from there on all advance together, until the first to finish
 * leaves. Short runs keep all they have.
 */
static void take_samples(struct figures *f, const struct run *r, size_t num_prompt)
{
	const struct output *out = &r->out[r->batch - 1];
	int32_t num_ids = out->num_ids;
	double end = out->num_ids ? out->at[num_ids - 1] : 0;

	for (int32_t i = 0; i < r->batch; i++) {
		if (r->out[i].num_ids)
			end = fmin(end, r->out[i].at[r->out[i].num_ids - 1]);
	}
	while (num_ids > 2 && out->at[num_ids - 1] > end)
		num_ids--;
	f->first_s = out->num_ids ? out->at[0] - r->start : 0;
	for (int32_t i = num_ids > 2 * WARM_UP ? WARM_UP : 1; i < num_ids; i++) {
		f->kv_tokens = (f->kv_tokens * f->n + (double)(num_prompt + (size_t)i)) / (f->n + 1);
		f->ns[f->n++] = (out->at[i] - out->at[i - 1]) * 1e9;
	}
}

static int write_record(const struct cairn_session *s, const struct options *o, const struct figures *f,
			size_t num_prompt, double bytes, double roof)
{
	char name[96], device[320];
	double median = f->ns[f->n / 2];
	FILE *json = fopen(o->json, "a");
	const char *base = strrchr(s->dir, '/');
	/* two for each weight and request; attention is left out */
	double weights = (double)cairn_model_step_bytes(s->model, 0, 0) /
			 (double)cairn_dtype_bytes(s->model->dtype), flops = 2 * weights * (double)o->batch;

	if (!json)
		return cairn_error(EINVAL, "--json: %s: %s", o->json, strerror(errno));
	snprintf(name, sizeof(name), "%.48s_b%lld_kv%zu", o->shape ? o->shape : base ? base + 1 : s->dir,
		 (long long)o->batch, num_prompt);
	for (char *p = name; *p; p++) {
		if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789_", *p))
			*p = '_';
	}
	cairn_session_record(s, device, sizeof(device));
	fprintf(json,
		"{\"v\":1,\"op\":\"generate\",\"case\":\"%s\",\"ok\":%s,\"err_over_bound\":0,\"n\":%d,"
		"\"min_ns\":%.0f,\"median_ns\":%.0f,\"p95_ns\":%.0f,\"first_token_ns\":%.0f,\"bytes\":%.0f,"
		"\"flops\":%.0f,\"gbps\":%.1f,\"roof_pct\":%.1f,\"seed\":%lld,%s}\n",
		name, f->same ? "true" : "false", f->n, f->ns[0], median, f->ns[f->n * 95 / 100],
		f->first_s * 1e9, bytes, flops, bytes / median, roof > 0 ? 100 * bytes / median / roof : 0,
		(long long)o->seed, device);
	return fclose(json) ? cairn_error(EIO, "--json: %s: %s", o->json, strerror(errno)) : 0;
}

static int report(const struct cairn_session *s, const struct options *o, struct figures *f,
		  size_t num_prompt)
{
	FILE *to = o->shape ? stdout : stderr;
	double median, bytes, roof = 0;

	if (!f->n) {
		fprintf(to, "prompt of %zu tokens; too few new ones to time\n", num_prompt);
		return 0;
	}
	qsort(f->ns, (size_t)f->n, sizeof(*f->ns), by_value);
	median = f->ns[f->n / 2];
	bytes = (double)cairn_model_step_bytes(s->model, (int32_t)o->batch,
					       (int64_t)(f->kv_tokens * (double)o->batch));
	fprintf(to, "prompt of %zu tokens: first token after %.1f ms; then %.3f ms a token (p95 %.3f), "
		"%.1f tokens/s\n", num_prompt, f->first_s * 1e3, median * 1e-6, f->ns[f->n * 95 / 100] * 1e-6,
		(double)o->batch * 1e9 / median);
	if (o->shape || o->json) {
		roof = cairn_session_read_gbps(s);
		fprintf(to, "a step reads %.3f GB, %.1f GB/s", bytes * 1e-9, bytes / median);
		fprintf(to, roof > 0 ? ": %.1f%% of the read stream, %.1f GB/s\n" : "\n",
			100 * bytes / median / roof, roof);
	}
	if (!f->same)
		fprintf(to, "the runs gave different tokens\n");
	if (o->json)
		CAIRN_TRY(write_record(s, o, f, num_prompt, bytes, roof));
	return 0;
}

/* Runs, and compares each with the first. */
static int run_all(struct cairn_session *s, struct cairn_engine *e, const struct options *o,
		   const int32_t *ids, size_t num_ids, struct run runs[2], struct figures *f)
{
	f->same = 1;
	for (int64_t k = 0; k < o->repeat; k++) {
		struct run *r = &runs[k > 0];
		struct output *out = &r->out[0];
		const char *text;
		size_t len;

		CAIRN_TRY(submit(e, o, ids, num_ids, r));
		if (s->tokenizer && !k)
			CAIRN_TRY(cairn_token_stream_new(s->tokenizer, true, &out->text));
		r->start = cairn_now();
		CAIRN_TRY(cairn_engine_run(e));
		if (out->failed)
			return out->failed;
		if (out->text) {
			CAIRN_TRY(cairn_token_stream_finish(out->text, &text, &len));
			fwrite(text, 1, len, stdout);
			putchar('\n');
			if (fflush(stdout) || ferror(stdout))
				return cairn_error(EIO, "standard output: %s", strerror(errno));
		}
		take_samples(f, r, num_ids);
		for (int32_t i = 0; k && i < r->batch; i++)
			f->same &= r->out[i].num_ids == runs[0].out[i].num_ids &&
				   !memcmp(r->out[i].ids, runs[0].out[i].ids,
					   (size_t)r->out[i].num_ids * sizeof(*r->out[i].ids));
	}
	return 0;
}

static int prepare(struct cairn_session *s, const struct options *o, int32_t **ids, size_t *num_ids,
		   struct cairn_engine **e)
{
	int host;
	struct cairn_engine_options eo = { .no_graphs = o->no_graphs, .page_size = (int32_t)o->page_size };

	CAIRN_TRY(cairn_session_start(s, o->impl, (int)o->device));
	host = !!(s->impl.flags & CAIRN_IMPL_HOST_MEM);
	if (o->shape)
		CAIRN_TRY(cairn_session_shape(s, o->shape, (uint64_t)o->seed));
	else
		CAIRN_TRY(cairn_session_load(s, o->model));
	CAIRN_TRY(make_prompt(s, o, ids, num_ids));
	if (!*num_ids)
		return cairn_error(EINVAL, "prompt: is empty, and the tokenizer adds no token of its own");
	if ((int64_t)*num_ids + o->max_new_tokens > s->model->config.max_position_embeddings)
		return cairn_error(EINVAL, "--max-new-tokens: %lld and a prompt of %zu tokens exceed the %d "
				   "positions of the model", (long long)o->max_new_tokens, *num_ids,
				   s->model->config.max_position_embeddings);
	eo.max_batch = (int32_t)o->batch;
	eo.max_context = (int32_t)((int64_t)*num_ids + o->max_new_tokens);
	eo.max_rows = (int32_t)(o->prefill_rows ? o->prefill_rows : host ? 256 : 2048);
	if (eo.max_rows > (int64_t)*num_ids * o->batch)
		eo.max_rows = (int32_t)((int64_t)*num_ids * o->batch);
	if (eo.max_rows < eo.max_batch)
		eo.max_rows = eo.max_batch;
	return cairn_engine_create(e, s->model, &eo);
}

int cairn_cmd_generate(int argc, char **argv)
{
	struct options o = {
		.max_new_tokens = 128, .batch = 1, .repeat = 1, .page_size = 16, .seed = 1,
		.sampling = { .top_p = 1 },
	};
	struct cairn_session s = { 0 };
	struct cairn_engine *e = NULL;
	struct run runs[2] = { { 0 }, { 0 } };
	struct figures f = { 0 };
	int32_t *ids = NULL;
	size_t num_ids = 0;
	int ret, status = CAIRN_EXIT_USAGE;

	cairn_clear_error();
	ret = parse(argc, argv, &o);
	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = prepare(&s, &o, &ids, &num_ids, &e);
	if (!ret) {
		status = CAIRN_EXIT_FAILED;
		ret = create_run(&runs[0], &o);
	}
	if (!ret)
		ret = create_run(&runs[1], &o);
	if (!ret) {
		f.ns = malloc((size_t)(o.repeat * o.max_new_tokens) * sizeof(*f.ns));
		ret = f.ns ? 0 : cairn_error(ENOMEM, "generate: no memory");
	}
	if (!ret)
		ret = run_all(&s, e, &o, ids, num_ids, runs, &f);
	if (!ret)
		ret = report(&s, &o, &f, num_ids);
	if (!ret && f.same)
		status = CAIRN_EXIT_OK;
	if (ret && *cairn_last_error())
		fprintf(stderr, "cairn generate: %s\n", cairn_last_error());
	free(f.ns);
	destroy_run(&runs[0]);
	destroy_run(&runs[1]);
	free(ids);
	cairn_engine_destroy(e);
	cairn_session_close(&s);
	return status;
}
