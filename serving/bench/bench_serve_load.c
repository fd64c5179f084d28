// SPDX-License-Identifier: Apache-2.0
/*
 * bench_serve_load - generates lengths, arrivals, prompts and bodies from seeds
 *
 * Lengths are fixed, read from a file, or drawn from a fit. The fit is log-normal with sigma = 1, each length
 * clamped to [1, 1024]. Its means are those that vLLM's paper (Kwon et al., SOSP 2023, section 6.1) gives for
 * prompts and answers of two data sets: ShareGPT 161 and 338, Alpaca 19 and 58. Arrivals are a Poisson
 * process. Prompts are random token ids, so that no two share pages of a prefix cache except for
 * --shared-prefix.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "primitives/base/error.h"
#include "serving/bench/bench_serve.h"

#define MAX_LEN (1 << 20)

enum stream { GAPS, PROMPT_LENGTHS, ANSWER_LENGTHS, SHARED, SEEDS, PROMPTS }; /* request i uses PROMPTS + i */

static const struct fit {
	const char *name;
	double prompt, answer;
} fits[] = { { "sharegpt", 161, 338 }, { "alpaca", 19, 58 } };

uint64_t bench_random(uint64_t seed, uint64_t stream, uint64_t i)
{
	uint64_t x = seed;

	/* applies splitmix64's finaliser for each argument in turn */
	for (int k = 0; k < 3; k++) {
		x += 0x9e3779b97f4a7c15u * (k == 0 ? 1 : k == 1 ? stream + 1 : i + 1);
		x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
		x = (x ^ x >> 27) * 0x94d049bb133111ebu;
		x ^= x >> 31;
	}
	return x;
}

/* Returns a uniform number in (0, 1). */
static double uniform(uint64_t seed, uint64_t stream, uint64_t i)
{
	return ((double)(bench_random(seed, stream, i) >> 11) + 0.5) * 0x1p-53;
}

static int32_t draw_length(uint64_t seed, uint64_t stream, uint64_t i, double mean)
{
	double normal = sqrt(-2 * log(uniform(seed, stream, 2 * i))) *
			cos(2 * M_PI * uniform(seed, stream, 2 * i + 1));
	double len = mean * exp(normal - 0.5); /* the mean of exp(normal) is exp(1/2) */

	return len < 1 ? 1 : len > 1024 ? 1024 : (int32_t)len;
}

static int is_one_of(const char *name, const char *const *names)
{
	for (; *names; names++) {
		if (!strcasecmp(name, *names))
			return 1;
	}
	return 0;
}

/* Finds the columns of prompt and answer lengths in a header line. */
static int read_header(const char *line, int *prompt, int *answer)
{
	static const char *const prompts[] = { "ContextTokens", "prompt_tokens", "prompt_len",
					       "input_tokens",  "input_len",     NULL };
	static const char *const answers[] = { "GeneratedTokens", "completion_tokens", "output_tokens",
					       "output_len", NULL };
	char name[64];
	int column = 0, n, p = -1, a = -1;

	for (; sscanf(line, " %63[^,; \t\r\n]%n", name, &n) == 1; column++) {
		line += n;
		line += strspn(line, ",; \t\r\n");
		if (is_one_of(name, prompts))
			p = column;
		else if (is_one_of(name, answers))
			a = column;
	}
	if (p < 0 || a < 0)
		return 0;
	*prompt = p;
	*answer = a;
	return 1;
}

/*
 * Reads an integer from a column. Columns are separated by commas or semicolons, or by blanks if neither
 * occurs.
 */
static int read_column(const char *line, int column, int32_t *out)
{
	const char *by = strpbrk(line, ",;") ? ",;" : " \t";
	char *end;
	long v;

	for (; column > 0; column--) {
		line += strcspn(line, by);
		line += *line ? 1 : 0;
		if (*by == ' ')
			line += strspn(line, by);
	}
	v = strtol(line, &end, 10);
	if (end == line || !strchr(",; \t\r\n", *end) || v < 1 || v > MAX_LEN)
		return -EINVAL;
	*out = (int32_t)v;
	return 0;
}

static int read_trace(const char *path, struct bench_request *reqs, size_t num)
{
	FILE *f = fopen(path, "r");
	int prompt = 0, answer = 1, number = 0, ret = 0; /* no header: the first two columns */
	bool first = true;
	char *line = NULL;
	size_t cap = 0, n = 0;

	if (!f)
		return cairn_error(EINVAL, "--trace: %s: %s", path, strerror(errno));
	while (!ret && n < num && getline(&line, &cap, f) > 0) {
		number++;
		if (line[0] == '#' || !line[strspn(line, " \t\r\n")])
			continue;
		if (first) {
			first = false;
			if (read_header(line, &prompt, &answer))
				continue;
		}
		if (read_column(line, prompt, &reqs[n].prompt_tokens) ||
		    read_column(line, answer, &reqs[n].max_tokens))
			ret = cairn_error(EINVAL, "%s: line %d: needs two lengths from 1 to %d", path, number,
					  MAX_LEN);
		n++;
	}
	if (!ret && !n)
		ret = cairn_error(EINVAL, "%s: has no lengths", path);
	for (size_t i = n; !ret && i < num; i++) { /* a short trace is repeated */
		reqs[i].prompt_tokens = reqs[i - n].prompt_tokens;
		reqs[i].max_tokens = reqs[i - n].max_tokens;
	}
	free(line);
	fclose(f);
	return ret;
}

static int draw_lengths(const struct bench_load *load, struct bench_request *reqs)
{
	const struct fit *fit = NULL;

	for (size_t k = 0; load->lengths && k < sizeof(fits) / sizeof(fits[0]); k++) {
		if (!strcmp(load->lengths, fits[k].name))
			fit = &fits[k];
	}
	if (load->trace)
		return read_trace(load->trace, reqs, (size_t)load->num);
	if (load->lengths && !fit)
		return cairn_error(EINVAL, "--lengths: '%.64s' is neither sharegpt nor alpaca",
				   load->lengths);
	for (uint64_t i = 0; i < (uint64_t)load->num; i++) {
		reqs[i].prompt_tokens = fit ? draw_length(load->seed, PROMPT_LENGTHS, i, fit->prompt)
					    : (int32_t)load->input_len;
		reqs[i].max_tokens = fit ? draw_length(load->seed, ANSWER_LENGTHS, i, fit->answer)
					 : (int32_t)load->output_len;
	}
	return 0;
}

int bench_load_plan(const struct bench_load *load, struct bench_request **out)
{
	struct bench_request *reqs = calloc((size_t)load->num, sizeof(*reqs));
	double at = 0;
	int ret;

	if (!reqs)
		return cairn_error(ENOMEM, "bench serve: no memory");
	ret = draw_lengths(load, reqs);
	if (ret) {
		free(reqs);
		return ret;
	}
	for (int64_t i = 0; i < load->num; i++) {
		struct bench_request *r = &reqs[i];

		r->prompt_tokens += (int32_t)load->shared_prefix;
		if (load->max_len && r->max_tokens >= load->max_len)
			r->max_tokens = (int32_t)load->max_len - 1;
		if (load->max_len && r->prompt_tokens > load->max_len - r->max_tokens)
			r->prompt_tokens = (int32_t)load->max_len - r->max_tokens;
		if (load->rate > 0 && i)
			at += -log(uniform(load->seed, GAPS, (uint64_t)i)) / load->rate;
		r->due_ns = (int64_t)(at * 1e9);
		r->sent_ns = r->first_ns = r->last_ns = r->end_ns = -1;
		r->used_prompt = r->used_cached = r->output_tokens = -1;
	}
	*out = reqs;
	return 0;
}

/* Writes one common word per token; most tokenizers encode each as one token. */
static void put_words(FILE *f, const struct bench_load *load, const struct bench_request *req, size_t i)
{
	static const char *const words[32] = { "the", "of",  "and", "to",   "in",    "is",   "that", "for",
					       "it",  "as",  "was", "with", "be",    "by",   "on",   "not",
					       "he",  "his", "but", "at",   "are",   "this", "have", "from",
					       "or",  "had", "an",  "they", "which", "one",  "you",  "were" };

	fputc('"', f);
	for (int32_t k = 0; k < req->prompt_tokens; k++) {
		uint64_t stream = k < load->shared_prefix ? SHARED : PROMPTS + i;

		fprintf(f, "%s%s", k ? " " : "", words[bench_random(load->seed, stream, (uint64_t)k) % 32]);
	}
	fputc('"', f);
}

static void put_ids(FILE *f, const struct bench_load *load, const struct bench_request *req, size_t i)
{
	fputc('[', f);
	for (int32_t k = 0; k < req->prompt_tokens; k++) {
		uint64_t stream = k < load->shared_prefix ? SHARED : PROMPTS + i;

		fprintf(f, "%s%llu", k ? "," : "",
			(unsigned long long)(bench_random(load->seed, stream, (uint64_t)k) %
					     (uint64_t)load->vocab));
	}
	fputc(']', f);
}

int bench_load_body(const struct bench_load *load, const struct bench_request *req, size_t i, char **body,
		    size_t *bytes)
{
	json_t *name = load->model ? json_string(load->model) : NULL;
	char *model = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
	FILE *f = open_memstream(body, bytes);
	int failed;

	json_decref(name);
	if (!f || (load->model && !model)) {
		free(model);
		if (f) {
			fclose(f);
			free(*body);
		}
		return cairn_error(load->model && !model ? EINVAL : ENOMEM,
				   "--model: not UTF-8, or no memory");
	}
	fprintf(f, "{%s%s%s", model ? "\"model\":" : "", model ? model : "", model ? "," : "");
	if (load->chat) {
		fprintf(f, "\"messages\":[{\"role\":\"user\",\"content\":");
		put_words(f, load, req, i);
		fprintf(f, "}],\"max_completion_tokens\":%d", req->max_tokens);
	} else {
		fprintf(f, "\"prompt\":");
		put_ids(f, load, req, i);
		fprintf(f, ",\"max_tokens\":%d", req->max_tokens);
	}
	if (load->count_tokens)
		fprintf(f, load->chat ? ",\"logprobs\":true" : ",\"logprobs\":0");
	if (!load->respect_eos)
		fprintf(f, ",\"ignore_eos\":true");
	fprintf(f,
		",\"temperature\":%g,\"seed\":%llu,\"stream\":true,"
		"\"stream_options\":{\"include_usage\":true}}",
		load->temperature, (unsigned long long)(bench_random(load->seed, SEEDS, i) >> 33));
	free(model);
	failed = ferror(f);
	if (fclose(f) || failed) {
		free(*body);
		return cairn_error(ENOMEM, "bench serve: no memory");
	}
	return 0;
}
