// SPDX-License-Identifier: Apache-2.0
/*
 * generate - `cairn generate`: continues a prompt, or measures the engine on a shape
 *
 * The time per token (TPOT) is the time between two tokens passed to the caller. The first WARM_UP tokens are
 * not counted, because they include loading kernels and capturing the graph. The bytes of a step are those of
 * model.h's cairn_model_step_bytes(); their rate is compared with a pure read of memory measured in the same
 * run.
 *
 * With --json the runs are repeated after the timed ones, on a card with an energy counter: whole runs, then
 * the prompts alone, each for a second. Their difference is the energy of the decoding steps.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/energy.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"
#include "serving/cli/commands.h"
#include "serving/cli/generate.h"
#include "serving/engine/engine.h"
#include "serving/model/checkpoint/generation.h"
#include "serving/cli/member_rank.h"
#include "serving/cli/session_ranks.h"
#include "serving/slices/sliced.h"

#define WARM_UP		4	/* tokens that are not measured */
#define ENERGY_NS	1000000000	/* repeated runs whose energy is measured */

static const char usage[] =
	"usage: cairn generate [OPTION]...\n"
	"\n"
	"Continues a prompt (--prompt, --prompt-file, else standard input) on standard output.\n"
	"\n"
	"  --impl NAME|PATH      cuda, cpu, ref, or a plug-in (cuda if there is a device, else cpu)\n"
	"  --device N            CUDA device (0)\n"
	"  --tp N                tensor parallelism over N processes, on CUDA devices --device and up (1)\n"
	"  --cp N                context parallelism: N processes with all weights share the rows of a\n"
	"                        pass; for long prompts. With --tp N, too, ranks share the rows of\n"
	"                        passes of --cp-rows or more, and the weights of others (1)\n"
	"  --cp-exchange WHAT    heads: ranks share the heads for attention, and N must divide them;\n"
	"                        ring: keys travel from rank to rank, and each has the whole cache;\n"
	"                        blocks: a ring of consecutive rows, which is slower, to compare;\n"
	"                        auto: heads if each rank then has KV heads of its own, else ring (auto)\n"
	"  --cp-rows N           rows of a pass that a ring, or --tp with --cp, shares out\n"
	"                        (half of a full pass)\n"
	"  --cp-keys N           keys of a decoding pass whose pages ranks share for attention, where\n"
	"                        each rank has all keys (32768)\n"
	"  --cp-stripes          each rank holds every Nth KV page instead of all, so that N GPUs hold N\n"
	"                        times the tokens; for a ring, or latent attention with --tp N (off)\n"
	CAIRN_PIPELINE_USAGE
	"  --collective-timeout S        how long a rank may be silent before all of them end (5, with --pp\n"
	"                        30)\n"
	"  --model DIR           Hugging Face checkpoint (the embedded model)\n"
	"  --prompt TEXT         the prompt\n"
	"  --prompt-file FILE    file with the prompt\n"
	"  --max-new-tokens N    maximum length of the answer (128)\n"
	"  --temperature X       0 is greedy (0)\n"
	"  --top-k N  --top-p X  --min-p X  --repetition-penalty X    0, 1, 0 and 1 are off (off)\n"
	"  --generation-config W auto: sampling options that are not given are taken from the checkpoint's\n"
	"                        generation_config.json, except with a prompt of random tokens;\n"
	"                        none: ignore it (auto)\n"
	"  --seed N              seed of sampling and of random weights (1)\n"
	"  --ignore-eos          continue after an end-of-sequence token\n"
	"  --json-schema FILE    the answer is JSON that follows the schema in FILE\n"
	"  --regex R             the answer matches R, in Rust's syntax\n"
	"  --speculative METHOD  off; ngram: where the last tokens occurred earlier in the text, draft the\n"
	"                        tokens that followed them; draft_model: draft with the model of\n"
	"                        --speculative-model; eagle3: with the EAGLE-3 head there; mtp: with the\n"
	"                        layer for multi-token prediction that a DeepSeek-V3 checkpoint stores\n"
	"                        after its last one. The answer is the same as with off (off)\n"
	"  --speculative-model DIR       checkpoint of a smaller model with the same tokenizer, or of an\n"
	"                                EAGLE-3 head for the model\n"
	"  --num-speculative-tokens N    maximum drafts of a step, 1 to 16 (5)\n"
	"  --speculative-branches N      up to N drafts for the same place: a token tree of the depth of\n"
	"                                --num-speculative-tokens; 1: a chain (1)\n"
	"  --speculative-tree-rows N     maximum drafts of a tree, 1 to 63 (depth times branches)\n"
	"  --prompt-lookup-max N  --prompt-lookup-min N    tokens that must have occurred earlier (4, 2)\n"
	"\n"
	CAIRN_NODES_USAGE
	"\n"
	"Measurements:\n"
	"  --shape NAME          random weights: llama2-7b, llama3-8b, llama31-8b, llama32-1b, qwen2-7b,\n"
	"                        mistral-7b, qwen3-8b, gemma2-9b, mixtral-8x7b, qwen3-30b-a3b, dsv2lite,\n"
	"                        dsv3, gpt-oss-20b\n"
	"  --prompt-tokens N     a prompt of N random tokens (512 with --shape)\n"
	"  --batch N             requests at once, all with this prompt (1)\n"
	"  --repeat N            runs; their tokens must be the same (1)\n"
	"  --prefill-rows N      prompt tokens of one pass (2048, on the host 256; with --pp eight chunks\n"
	"                        for each stage but one)\n"
	"  --page-size N         tokens of a KV page (16)\n"
	"  --decode PATH         auto: a decoding step is one operation if the table has it; graph,\n"
	"                        persistent: that form, or an error; unfused: a list of operations (auto)\n"
	"  --weights FORM        plain: 16 bits, or 4 if the checkpoint stores matrices so (AWQ, GPTQ,\n"
	"                        pack-quantized); fp8: 8-bit matrices with one scale per row; fp8-blocks:\n"
	"                        with one scale per 128 x 128 block; w8a8, w8a8-blocks: these, and products\n"
	"                        quantise their activations, too, which pays with many rows; w4: 4 bits of\n"
	"                        such a checkpoint, or random ones with --shape (plain)\n"
	"  --kv FORM             plain: keys and values in 16 bits; fp8: in 8 bits, with the scales of the\n"
	"                        checkpoint, else 1 (plain)\n"
	"  --lora NAME=DIR       answer with this adapter of PEFT\n"
	"  --slices FILE         run the forward pass in the slices of FILE, which cairn convert-slices\n"
	"                        wrote for this model; for --decode unfused\n"
	"  --attention-workers N attention by N processes, which this command starts, each with some of the\n"
	"                        KV heads or, if there are fewer heads, with some of a head's pages; latent\n"
	"                        attention counts as one head; with --impl cuda on the GPUs behind this\n"
	"                        process's, in turn (0: by this process)\n"
	"  --model-workers M     processes that run the rest of a pass, at most 3: this one, and M - 1 that\n"
	"                        it starts, or that join with cairn model-worker; each has all weights and\n"
	"                        runs one of the lanes, so there are at least M of these (1)\n"
	"  --workers-listen A    wait for them at this HOST:PORT, where cairn attention-worker joins\n"
	"                        or, if mpirun or srun has started this command several times, the\n"
	"                        other ranks do\n"
	"  --secret-file FILE    the secret that they must have; needed unless A is a loopback address\n"
	"  --attention-keys W    previous: workers attend to the keys before a pass, and this process to\n"
	"                        the pass's own; all: workers attend to all keys, which gives the bits of a\n"
	"                        run without workers, for at most as many workers as heads (previous)\n"
	"  --kv-journal GIB      a copy of all keys and values in memory of this process, at most GIB, from\n"
	"                        which those of a lost worker are restored instead of computed again (none)\n"
	"  --lanes N             1, 2, 3: batches whose passes are under way together, so that this process\n"
	"                        computes one while workers attend for another, which takes memory for as\n"
	"                        many passes; auto: as many as measured times ask for (1)\n"
	"  --no-graphs           launch operations one by one instead of as CUDA graphs\n"
	"  --plan PATH           run passes as nano-batches by this plan file of `cairn search`, or by the\n"
	"                        one for this GPU and model in this folder, where it was measured to gain;\n"
	"                        with --tp N, by one for N ranks; excludes --cp and --pp\n"
	"  --json FILE           append a bench record to FILE\n"
	"\n"
	"Exit status: 0 success, 1 the engine failed or the logits were NaN, 2 bad usage or input.\n";

/* The output of one request of one run. */
struct output {
	struct cairn_token_stream *text;	/* NULL: not printed */
	int32_t *ids;
	double *at;				/* time of each token, seconds */
	int32_t num_ids;
	int failed;
	int no_numbers;				/* the logits of the next token are NaN */
	int no_token;				/* the constraint left none */
	uint64_t constraint;
};

struct run {
	struct output *out;
	int32_t batch;
	double start;
	struct generate_constraint *constraint;
};

static int parse(int argc, char **argv, struct generate_options *o)
{
	int64_t top_k = -1;
	const struct cairn_option options[] = {
		{ "prompt", CAIRN_OPT_TEXT, &o->prompt, 0, 0, NULL },
		{ "prompt-file", CAIRN_OPT_TEXT, &o->prompt_file, 0, 0, NULL },
		{ "max-new-tokens", CAIRN_OPT_INT, &o->max_new_tokens, 1, CAIRN_MAX_POSITIONS, NULL },
		{ "temperature", CAIRN_OPT_FLOAT, &o->sampling.temperature, 0, 1e6, NULL },
		{ "top-k", CAIRN_OPT_INT, &top_k, 0, CAIRN_MAX_VOCAB, NULL },
		{ "top-p", CAIRN_OPT_FLOAT, &o->sampling.top_p, 1e-6, 1, NULL },
		{ "min-p", CAIRN_OPT_FLOAT, &o->sampling.min_p, 0, 0.999999, NULL },
		{ "repetition-penalty", CAIRN_OPT_FLOAT, &o->sampling.repetition_penalty, 1e-6, 10, NULL },
		{ "generation-config", CAIRN_OPT_CHOICE, &o->no_defaults, 0, 0, cairn_generation_names },
		{ "seed", CAIRN_OPT_INT, &o->seed, 0, (double)INT64_MAX, NULL },
		{ "ignore-eos", CAIRN_OPT_FLAG, &o->ignore_eos, 0, 0, NULL },
		{ "json-schema", CAIRN_OPT_TEXT, &o->json_schema, 0, 0, NULL },
		{ "regex", CAIRN_OPT_TEXT, &o->regex, 0, 0, NULL },
		{ "shape", CAIRN_OPT_TEXT, &o->shape, 0, 0, NULL },
		{ "prompt-tokens", CAIRN_OPT_INT, &o->prompt_tokens, 1, CAIRN_MAX_POSITIONS, NULL },
		{ "repeat", CAIRN_OPT_INT, &o->repeat, 1, 1000, NULL },
		{ "prefill-rows", CAIRN_OPT_INT, &o->prefill_rows, 1, 1 << 20, NULL },
		{ "page-size", CAIRN_OPT_INT, &o->page_size, 1, 1 << 16, NULL },
		{ "lora", CAIRN_OPT_ADAPTER, &o->lora, 0, 0, NULL },
		{ "slices", CAIRN_OPT_TEXT, &o->slices, 0, 0, NULL },
		{ "no-graphs", CAIRN_OPT_FLAG, &o->no_graphs, 0, 0, NULL },
		{ "plan", CAIRN_OPT_TEXT, &o->plan, 0, 0, NULL },
		CAIRN_SPECULATIVE_OPTIONS(&o->speculative),
		CAIRN_ATTENTION_OPTIONS(&o->attention),
	};
	int ret = cairn_parse_options(argc, argv, &o->common, options, sizeof(options) / sizeof(options[0]),
				      usage);

	if (ret)
		return ret;
	CAIRN_TRY(cairn_check_speculative(&o->speculative));
	CAIRN_TRY(generate_constraint_check(o));
	CAIRN_TRY(cairn_check_attention(&o->attention, NULL));
	if (o->speculative.method && o->common.json)
		return cairn_error(EINVAL, "--json: not with --speculative; cairn bench writes its records");
	if (o->common.pp > 1 && o->common.json)
		return cairn_error(EINVAL, "--json: not with --pp; cairn bench serving.pp_prefill writes its "
				   "records");
	if (o->shape && o->speculative.model)
		return cairn_error(EINVAL, "--speculative-model: excludes --shape, which has no tokenizer");
	if (o->shape && o->speculative.method == CAIRN_SPECULATE_MTP)
		return cairn_error(EINVAL, "--speculative: mtp excludes --shape, which has no such layer");
	if (o->shape && (o->common.model || o->prompt || o->prompt_file))
		return cairn_error(EINVAL,
				   "--shape: has random weights and no tokenizer, and excludes --model "
				   "and prompts of text");
	if (o->slices && o->common.decode != CAIRN_DECODE_UNFUSED)
		return cairn_error(EINVAL, "--slices: needs --decode unfused");
	if (o->attention.workers && (cairn_num_ranks(&o->common) > 1 || o->plan))
		return cairn_error(EINVAL, "--attention-workers: excludes --tp, --cp, --pp and --plan");
	if (o->lora.num > 1)
		return cairn_error(EINVAL, "--lora: one prompt takes one adapter");
	if (o->lora.num && (cairn_num_ranks(&o->common) > 1 || o->plan || o->slices || o->attention.workers))
		return cairn_error(EINVAL, "--lora: excludes %s",
				   cairn_num_ranks(&o->common) > 1 ? cairn_ranks_option(&o->common) :
				   o->plan ? "--plan" : o->slices ? "--slices" : "--attention-workers");
	CAIRN_TRY(cairn_check_ranks(&o->common, o->plan, o->slices));
	CAIRN_TRY(cairn_check_rank_drafts(&o->common, o->speculative.method));
	if (!!o->prompt + !!o->prompt_file + !!o->prompt_tokens > 1)
		return cairn_error(EINVAL, "--prompt, --prompt-file, --prompt-tokens: give only one");
	if (o->shape && !o->prompt_tokens)
		o->prompt_tokens = 512;
	o->sampling.top_k = (int32_t)top_k;
	o->sampling.seed = (uint64_t)o->seed;
	return 0;
}

/* Reads a whole file, or standard input if path is NULL. */
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
			ret = room <= CAIRN_MAX_TEXT ? cairn_error(ENOMEM, "no memory for the prompt") :
			      cairn_error(EINVAL, "%s: is over %u bytes", path ? path : "standard input",
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

static int make_prompt(const struct cairn_session *s, const struct generate_options *o, int32_t **ids,
		       size_t *num_ids)
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

static int take_token(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct output *out = ctx;
	const char *text;
	size_t len;

	(void)index;
	out->at[out->num_ids] = cairn_now();
	out->ids[out->num_ids++] = token->id;
	if (!out->text)
		return 0;
	out->failed = cairn_token_stream_push(out->text, token->id, &text, &len);
	if (out->failed || (len && (fwrite(text, 1, len, stdout) != len || fflush(stdout))))
		return 1;
	return 0;
}

static void take_finish(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	struct output *out = ctx;

	(void)index;
	(void)token;
	out->no_numbers = why == CAIRN_FINISH_FAILED;
	out->no_token = why == CAIRN_FINISH_CONSTRAINT;
}

static int create_run(struct run *r, const struct generate_options *o, struct generate_constraint *c)
{
	r->constraint = c;
	r->batch = (int32_t)o->common.batch;
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

static int submit(struct cairn_engine *e, const struct generate_options *o, const int32_t *ids,
		  size_t num_ids, struct run *r)
{
	struct cairn_request req = {
		.prompt = ids, .num_prompt = (int32_t)num_ids, .max_new_tokens = (int32_t)o->max_new_tokens,
		.ignore_eos = o->ignore_eos || o->shape, .sampling = o->sampling, .on_token = take_token,
		.on_finish = take_finish, .adapter = o->lora.num,
	};

	for (int32_t i = 0; i < r->batch; i++) {
		r->out[i].num_ids = 0;
		req.id = (uint64_t)i;
		req.ctx = &r->out[i];
		req.sampling.seed = o->sampling.seed + (uint64_t)i;
		CAIRN_TRY(generate_constraint_open(r->constraint, &r->out[i].constraint));
		req.constraint = r->out[i].constraint;
		CAIRN_TRY(cairn_engine_submit(e, &req));
	}
	return 0;
}

/* Returns an error if the answer of any request ended because the logits were NaN. */
static int check_numbers(const struct run *r)
{
	for (int32_t i = 0; i < r->batch; i++) {
		if (r->out[i].no_numbers)
			return cairn_error(EIO, CAIRN_NAN_TEXT, r->out[i].num_ids + 1);
		if (r->out[i].no_token)
			return cairn_error(EIO, "token %d: the constraint has failed, or leaves no token",
					   r->out[i].num_ids + 1);
	}
	return 0;
}

/*
 * Takes samples from the request that got its first token last: from then on all requests advance together,
 * until the first one finishes. A short run keeps all its samples.
 */
static void take_samples(struct generate_figures *f, const struct run *r, size_t num_prompt)
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
	f->new_tokens = num_ids;
	f->decode_s = num_ids ? out->at[num_ids - 1] - out->at[0] : 0;
	for (int32_t i = num_ids > 2 * WARM_UP ? WARM_UP : 1; i < num_ids; i++) {
		f->kv_tokens = (f->kv_tokens * f->n + (double)(num_prompt + (size_t)i)) / (f->n + 1);
		f->ns[f->n++] = (out->at[i] - out->at[i - 1]) * 1e9;
	}
}

/* A run that is repeated while its energy is measured. */
struct repeated {
	struct cairn_engine *engine;
	const struct generate_options *opt;
	const int32_t *ids;
	size_t num_ids;
	struct run *run;
};

static int run_once(void *arg)
{
	const struct repeated *r = arg;

	CAIRN_TRY(submit(r->engine, r->opt, r->ids, r->num_ids, r->run));
	return cairn_engine_run(r->engine);
}

static int measure_energy(struct repeated *r, const struct cairn_session *s, struct generate_figures *f)
{
	struct generate_options prompts = *r->opt;
	struct cairn_energy prompt;
	struct cairn_nvml *card;
	double prompt_s = 0;
	int32_t steps = 0;
	int ret;

	if (cairn_power_open(&card, &s->impl)) {
		cairn_energy_unknown(&f->run_energy);
		f->step_energy = f->run_energy;
		return 0;
	}
	ret = cairn_energy_of_runs(card, ENERGY_NS, run_once, r, &f->run_energy, &f->run_s);
	for (int32_t i = 0; i < r->run->batch; i++) {
		f->run_tokens += r->run->out[i].num_ids;
		steps = r->run->out[i].num_ids - 1 > steps ? r->run->out[i].num_ids - 1 : steps;
	}
	prompts.max_new_tokens = 1;
	r->opt = &prompts;
	if (!ret)
		ret = cairn_energy_of_runs(card, ENERGY_NS, run_once, r, &prompt, &prompt_s);
	if (!ret)
		cairn_energy_rest(&f->run_energy, f->run_s, &prompt, prompt_s, &f->step_energy);
	f->step_s = (f->run_s - prompt_s) / (steps ? steps : 1);
	cairn_nvml_close(card);
	return ret;
}

/* Executes all runs and compares the tokens of each with those of the first. */
static int run_all(struct cairn_session *s, struct cairn_engine *e, const struct generate_options *o,
		   const int32_t *ids, size_t num_ids, struct run runs[2], struct generate_figures *f)
{
	struct cairn_engine_stats stats;

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
		CAIRN_TRY(check_numbers(r));
		take_samples(f, r, num_ids);
		for (int32_t i = 0; k && i < r->batch; i++)
			f->same &= r->out[i].num_ids == runs[0].out[i].num_ids &&
				   !memcmp(r->out[i].ids, runs[0].out[i].ids,
					   (size_t)r->out[i].num_ids * sizeof(*r->out[i].ids));
	}
	cairn_engine_stats(e, &stats);
	f->fused = stats.fused_steps > 0;
	f->drafts = stats.speculation;
	f->steps = stats.steps;
	f->nano_steps = stats.nano_steps;
	cairn_session_say_recoveries(s, "generate", stats.recoveries);
	return 0;
}

static float or_default(float given, double value, double lo, double hi)
{
	return isnan(given) ? (float)fmin(fmax(value, lo), hi) : given;
}

/* Fills in the sampling options that were not given, clamping the checkpoint's values. */
static int take_defaults(const struct cairn_session *s, struct generate_options *o)
{
	struct cairn_generation g = { .top_p = 1, .repetition_penalty = 1 };
	struct cairn_sampling *to = &o->sampling;

	if (!o->no_defaults && !o->prompt_tokens) {
		CAIRN_TRY(cairn_generation_load(s->dir, &g));
		if (g.set[0])
			fprintf(stderr, "%s/generation_config.json: %s\n", s->dir, g.set);
	}
	to->temperature = or_default(to->temperature, g.temperature, 0, 2);
	to->top_p = or_default(to->top_p, g.top_p, 1e-6, 1);
	to->min_p = or_default(to->min_p, g.min_p, 0, 0.999999);
	to->repetition_penalty = or_default(to->repetition_penalty, g.repetition_penalty, 1e-6, 10);
	if (to->top_k < 0)
		to->top_k = g.top_k > CAIRN_MAX_VOCAB ? CAIRN_MAX_VOCAB : (int32_t)g.top_k;
	return 0;
}

static int check_context(const struct generate_options *o, int64_t num_ids, int32_t positions)
{
	if (num_ids + o->max_new_tokens > positions)
		return cairn_error(EINVAL, "--max-new-tokens: %lld and a prompt of %lld tokens exceed the %d "
				   "positions of the model", (long long)o->max_new_tokens, (long long)num_ids,
				   positions);
	return 0;
}

/* Checks the context of a shape before its weights are made, which takes long. */
static int check_shape(const struct generate_options *o)
{
	struct cairn_model_config config;

	CAIRN_TRY(cairn_shape_config(o->shape, &config));
	return check_context(o, o->prompt_tokens, config.max_position_embeddings);
}

/* *slices: for the engine, which uses them as long as it exists. */
static int prepare(struct cairn_session *s, struct generate_options *o, int32_t **ids, size_t *num_ids,
		   struct cairn_slices **slices, struct cairn_engine **e, struct cairn_tp *tp,
		   struct generate_constraint *c)
{
	static const char *const names[][2] = {
		{ "page_size", "page-size" }, { "stripes", "cp-stripes" }, { "num_pages", "page-size" },
		{ "max_batch", "batch" },
		{ "speculative", "speculative" }, { "num_speculative_tokens", "num-speculative-tokens" },
		{ "prompt_lookup_max", "prompt-lookup-max" }, { "prompt_lookup_min", "prompt-lookup-min" },
		{ "speculative_branches", "speculative-branches" },
		{ "speculative_tree_rows", "speculative-tree-rows" },
		{ "decode", "decode" }, { "attention_workers", "attention-workers" },
		{ "attention_keys", "attention-keys" }, { NULL, NULL },
	};
	int host, drafts = 0;
	int64_t lost = 0;
	struct cairn_engine_options eo = {
		.no_graphs = o->no_graphs, .page_size = (int32_t)o->page_size,
		.cache_grain = -1,	/* no prefix cache: each of the equal prompts must be computed */
		.decode = (enum cairn_decode_path)o->common.decode,
	};

	if (o->shape)
		CAIRN_TRY(check_shape(o));
	if (o->attention.workers)
		cairn_attention_environment();
	CAIRN_TRY(cairn_session_start_rank(s, &o->common, tp, o->shape, (uint64_t)o->seed));
	host = !!(s->impl.flags & CAIRN_IMPL_HOST_MEM);
	if (o->shape)
		CAIRN_TRY(cairn_session_shape(s, o->shape, (uint64_t)o->seed));
	else
		CAIRN_TRY(cairn_session_load(s, o->common.model));
	CAIRN_TRY(cairn_session_adapters(s, &o->lora));
	CAIRN_TRY(take_defaults(s, o));
	CAIRN_TRY(make_prompt(s, o, ids, num_ids));
	if (!*num_ids)
		return cairn_error(EINVAL, "prompt: is empty, and the tokenizer adds no token of its own");
	CAIRN_TRY(check_context(o, (int64_t)*num_ids, s->model->config.max_position_embeddings));
	eo.max_batch = eo.max_queued = (int32_t)o->common.batch;
	eo.max_context = (int32_t)((int64_t)*num_ids + o->max_new_tokens);
	cairn_set_rows(&eo, &o->common, o->prefill_rows, host);
	if (eo.max_rows > (int64_t)*num_ids * o->common.batch)
		eo.max_rows = (int32_t)((int64_t)*num_ids * o->common.batch);
	eo.nano = cairn_session_plans(s, o->plan, "generate");
	CAIRN_TRY(cairn_session_speculate(s, &o->speculative, &eo.speculation));
	if (eo.speculation.method)
		drafts = eo.max_batch * cairn_speculation_most(&eo.speculation);
	if (eo.max_rows < eo.max_batch + drafts)
		eo.max_rows = eo.max_batch + drafts;
	if (o->slices)
		CAIRN_TRY(cairn_sliced_load(slices, s->model, o->slices));
	eo.slices = *slices;
	cairn_session_lead_ranks(s, &o->common, tp, &eo);
	CAIRN_TRY(generate_constraint_create(c, o, s, &eo, drafts));
	CAIRN_TRY(cairn_session_lead(s, &o->attention, NULL, &o->common, NULL, 0));
	cairn_set_attention(&eo, &o->attention, s->lead);
	CAIRN_TRY(cairn_name_option(cairn_engine_create(e, s->model, &eo), names));
	cairn_session_say_attention(s, "generate", &lost);
	return 0;
}

int cairn_cmd_generate(int argc, char **argv)
{
	struct generate_options o = {
		.common = { .batch = 1 }, .max_new_tokens = 128, .repeat = 1, .page_size = 16, .seed = 1,
		.sampling = { .temperature = NAN, .top_p = NAN, .min_p = NAN, .repetition_penalty = NAN },
	};
	struct cairn_session s = { 0 };
	struct cairn_slices *slices = NULL;
	struct cairn_engine *e = NULL;
	struct run runs[2] = { { 0 }, { 0 } };
	struct generate_figures f = { 0 };
	struct generate_constraint constraint = { 0 };
	int32_t *ids = NULL;
	size_t num_ids = 0;
	int ret, status = CAIRN_EXIT_USAGE;
	struct cairn_tp *tp = NULL;

	cairn_clear_error();
	ret = parse(argc, argv, &o);
	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_exec_member(&o.attention, NULL, &o.common, NULL, 0);
	if (!ret)
		ret = cairn_ranks_fork(&tp, &o.common);
	if (tp && cairn_tp_rank(tp))
		return cairn_session_follow(&o.common, tp, o.shape, (uint64_t)o.seed, o.plan, "generate");
	if (!ret)
		ret = prepare(&s, &o, &ids, &num_ids, &slices, &e, tp, &constraint);
	if (!ret) {
		status = CAIRN_EXIT_FAILED;
		ret = create_run(&runs[0], &o, &constraint);
	}
	if (!ret)
		ret = create_run(&runs[1], &o, &constraint);
	if (!ret) {
		f.ns = malloc((size_t)(o.repeat * o.max_new_tokens) * sizeof(*f.ns));
		ret = f.ns ? 0 : cairn_error(ENOMEM, "generate: no memory");
	}
	if (!ret)
		ret = run_all(&s, e, &o, ids, num_ids, runs, &f);
	if (!ret && o.common.json && s.impl.pci_bus_id) {
		struct repeated r = { e, &o, ids, num_ids, &runs[1] };

		ret = measure_energy(&r, &s, &f);
	}
	if (!ret)
		ret = generate_report(&s, &o, &f, num_ids);
	if (!ret && f.same)
		status = CAIRN_EXIT_OK;
	if (ret && *cairn_last_error())
		fprintf(stderr, "cairn generate: %s\n", cairn_last_error());
	free(f.ns);
	destroy_run(&runs[0]);
	destroy_run(&runs[1]);
	free(ids);
	cairn_engine_destroy(e);
	generate_constraint_destroy(&constraint);
	cairn_slices_destroy(slices);
	cairn_tp_close(tp);
	cairn_session_close(&s);
	return status;
}
