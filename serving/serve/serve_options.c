// SPDX-License-Identifier: Apache-2.0
/* serve_options - parses the command line of `cairn serve` and prints its help */
#include <stdio.h>
#include <string.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/cli/session_ranks.h"
#include "serving/serve/serve.h"

static const char usage[] =
	"usage: cairn serve [OPTION]...\n"
	"\n"
	"Serves a model over HTTP with OpenAI's interface: /v1/completions, /v1/chat/completions,\n"
	"/v1/responses, /v1/models; /tokenize, /detokenize; /health, /ready, /metrics, /version; a chat\n"
	"page at /.\n"
	"\n"
	"The model:\n"
	"  --model DIR            Hugging Face checkpoint (the embedded model)\n"
	"  --shape NAME           random weights of this shape, for measurements; texts go through the\n"
	"                         embedded tokenizer, prompts of token ids are used unchanged\n"
	"  --impl NAME|PATH       cuda, cpu, ref, or a plug-in (cuda if there is a device, else cpu)\n"
	"  --device N             CUDA device (0)\n"
	"  --tp N                 tensor parallelism over N processes, on CUDA devices --device and up (1)\n"
	"  --cp N                 context parallelism over N processes, also with --tp N: see generate;\n"
	"                         excludes --plan (1)\n"
	"  --cp-exchange WHAT, --cp-rows N, --cp-keys N    how, and which passes: see generate\n"
	"  --cp-stripes           each of N ranks holds 1/N of the KV pages: see generate; excludes\n"
	"                         --repeatable and --host-pages (off)\n"
	"  --pp N                 pipeline parallelism over N processes: see generate; excludes --tp, --cp\n"
	"                         and --plan (1)\n"
	"  --pp-chunk N           tokens of a prompt's first chunk: see generate (1024, on the host 64)\n"
	"  --collective-timeout S how long a rank may be silent before all of them are restarted (5, with\n"
	"                         --pp 30)\n"
	"  --batch N              sequences running at once (64)\n"
	"  --max-context N        tokens of one sequence, prompt and answer (the model's limit)\n"
	"  --rows N               tokens of one step, prompts included (2048, on the host 256; with --pp\n"
	"                         eight chunks for each stage but one)\n"
	"  --page-size N          tokens of a KV page (64, on the host 16)\n"
	"  --pages N              KV pages (nine tenths of the device's memory, at most what --batch\n"
	"                         sequences of --max-context need)\n"
	"  --host-pages N         KV pages in host memory, for cached prefixes and preempted\n"
	"                         sequences (0)\n"
	"  --disk-pages N         KV pages on disk, for pages evicted from host memory (0)\n"
	"  --disk-dir DIR         directory of the disk pages (/tmp)\n"
	"  --prefix-cache WHAT    granularity of shared prefixes: page, token, off (page)\n"
	"  --rendezvous HOST:PORT, --rendezvous-key-file FILE, --rendezvous-timeout S, --nodes N,\n"
	"  --node-rank K          see generate; only node 0 takes requests\n"
	"  --decode PATH          auto, graph, persistent, unfused (auto)\n"
	"  --weights FORM         plain, fp8, fp8-blocks, w8a8, w8a8-blocks, w4: see generate (plain)\n"
	"  --kv FORM              plain, fp8: see generate (plain)\n"
	"  --repeatable           the same request gets the same bits whatever runs beside it, until the\n"
	"                         worker is restarted; slower: prompts are computed one by one, answers\n"
	"                         are not cached; excludes --prefix-cache token\n"
	"  --speculative METHOD   off, ngram, draft_model, eagle3, mtp: see generate (off)\n"
	"  --speculative-model DIR, --num-speculative-tokens N, --prompt-lookup-max N,\n"
	"  --prompt-lookup-min N, --speculative-branches N, --speculative-tree-rows N\n"
	"                         see generate (none, 5, 4, 2, 1, depth times branches)\n"
	"  --attention-workers N, --model-workers M, --workers-listen A, --secret-file FILE,\n"
	"  --attention-keys W, --lanes N, --kv-journal GIB\n"
	"                         attention by N other processes: see generate; excludes --plan and\n"
	"                         --host-pages; --speculative needs --attention-keys all and one lane (0)\n"
	"  --prefill-workers N    prompts of which --prefill-min tokens or more, and half or more, are not\n"
	"                         cached are computed by N other processes, which this command starts, or\n"
	"                         which join with cairn prefill-worker at --workers-listen; excludes --tp,\n"
	"                         --attention-workers, --repeatable and --prefix-cache off; workers that\n"
	"                         this command starts take the GPUs behind its own, in turn (0)\n"
	"  --prefill-pp N         processes of each worker that this command starts, on a GPU each: they\n"
	"                         share out the layers, and send a layer's keys and values when they have\n"
	"                         computed them (1)\n"
	"  --prefill-min N        fewest tokens not cached for which prefill workers compute a prompt\n"
	"                         (the tokens of a step, --rows)\n"
	"  --prefill-pages N      most KV pages that prompts may take while they are computed there (those\n"
	"                         of two prompts of --max-context)\n"
	"  --no-graphs            launch operations one by one instead of as CUDA graphs\n"
	"  --plan PATH            run passes as nano-batches by a plan file: see generate; excludes\n"
	"                         --repeatable\n"
	"  --seed N               seed of random weights (1)\n"
	"\n"
	"Clients and access:\n"
	"  --host ADDRESS         numeric address to listen on; 0.0.0.0 or :: for all (127.0.0.1)\n"
	"  --port N               0: any free port, printed on standard output (8000)\n"
	"  --uds PATH             listen on a Unix socket instead of --host and --port; its file has mode\n"
	"                         0660\n"
	"  --name NAME            the model's name in requests (the directory's or the shape's)\n"
	"  --lora NAME=DIR        an adapter of PEFT; requests choose it by its name as the model. May be\n"
	"                         repeated, up to 64 times; ranks up to 64\n"
	"  --key-file FILE        its first line is the key that requests must send; without it, the\n"
	"                         variable CAIRN_API_KEY, if set. /health, /ready and the page need none\n"
	"  --generation-config W  auto: requests that set no temperature, top_p, top_k, min_p or\n"
	"                         repetition_penalty take that of the checkpoint's\n"
	"                         generation_config.json; none: ignore it (auto)\n"
	"  --allow-origin LIST    origins whose web pages may use the server: https://a.b,http://c:81 or *;\n"
	"                         without it and without a key, a server on a loopback address answers\n"
	"                         only requests whose Host and Origin are this machine\n"
	"  --chat-template FILE   Jinja template (the checkpoint's)\n"
	"  --tool-call-parser W   how the model writes calls of tools: hermes, qwen3_coder, llama3_json,\n"
	"                         mistral, deepseek_v3, deepseek_v31, glm45, kimi_k2, openai, none;\n"
	"                         auto: as the chat template shows it (auto)\n"
	"  --reasoning-parser W   how it writes reasoning: qwen3, deepseek_r1, deepseek_v3, glm45, kimi_k2,\n"
	"                         mistral, openai_gptoss, none, auto (auto)\n"
	"  --kv-events ADDRESS    publish which prefixes are cached, for routers, in vLLM's format on a\n"
	"                         ZeroMQ socket at tcp://HOST:PORT; anyone who can connect reads users'\n"
	"                         tokens there, so keep it on a loopback or a private address (none)\n"
	"  --kv-events-replay ADDRESS, --kv-events-topic TOPIC\n"
	"                         address at which routers can ask for events that they missed (none);\n"
	"                         first frame of each message (empty)\n"
	"  --threads N            threads that parse and tokenize requests and write long answers; one more\n"
	"                         takes only requests of at most 64 KiB, which wait for nothing longer (2)\n"
	"  --quiet                do not log each request to standard error\n"
	"\n"
	"Limits; beyond the first two, requests get 429; beyond the others 503, 413 or a closed connection:\n"
	"  --max-queued N         prompts queued (1024)\n"
	"  --max-queued-tokens N  tokens of the queued prompts (4194304)\n"
	"  --max-body N           bytes of a request (8388608)\n"
	"  --max-connections N    connections at once (4096, or what the limit of open files allows)\n"
	"  --max-per-address N    connections of one client address; 0: no limit (0)\n"
	"  --stream-buffer N      bytes of an answer that its client has not read yet (262144)\n"
	"  --request-timeout S    from the last byte of a request to the end of its answer; 0: none (0)\n"
	"  --header-timeout S     from the first to the last byte of a request (30)\n"
	"  --stall-timeout S      how long a client may read nothing of its answer (30)\n"
	"  --drain-timeout S      for requests in flight after SIGTERM; a second one ends at once (30)\n"
	"  --hang-timeout S       a worker that is busy this long without a step is killed (60)\n"
	"  --load-timeout S       for a worker to load the model (1800)\n"
	"  --resume-limit N       when a worker fails, the next one continues its answers where they were;\n"
	"                         if more than N fail in a minute, they end with worker_failed (3)\n"
	"\n"
	"Exit status: 0 ended by a signal, 1 failed, 2 bad usage or a model that cannot be loaded.\n";

int cairn_serve_parse(int argc, char **argv, struct cairn_serve_options *o)
{
	static const char *const caches[] = { "page", "token", "off", NULL };
	const double big = 1e12;
	const struct cairn_option options[] = {
		{ "shape", CAIRN_OPT_TEXT, &o->shape, 0, 0, NULL },
		{ "max-context", CAIRN_OPT_INT, &o->max_context, 2, CAIRN_MAX_POSITIONS, NULL },
		{ "rows", CAIRN_OPT_INT, &o->max_rows, 1, 1 << 20, NULL },
		{ "page-size", CAIRN_OPT_INT, &o->page_size, 1, 1 << 16, NULL },
		{ "pages", CAIRN_OPT_INT, &o->num_pages, 1, 1 << 30, NULL },
		{ "host-pages", CAIRN_OPT_INT, &o->host_pages, 0, 1 << 30, NULL },
		{ "disk-pages", CAIRN_OPT_INT, &o->disk_pages, 0, 1 << 30, NULL },
		{ "disk-dir", CAIRN_OPT_TEXT, &o->disk_dir, 0, 0, NULL },
		{ "prefix-cache", CAIRN_OPT_CHOICE, &o->grain, 0, 0, caches },
		{ "repeatable", CAIRN_OPT_FLAG, &o->repeatable, 0, 0, NULL },
		CAIRN_SPECULATIVE_OPTIONS(&o->speculative),
		CAIRN_ATTENTION_OPTIONS(&o->attention),
		CAIRN_PREFILL_OPTIONS(&o->prefill),
		{ "no-graphs", CAIRN_OPT_FLAG, &o->no_graphs, 0, 0, NULL },
		{ "plan", CAIRN_OPT_TEXT, &o->plan, 0, 0, NULL },
		{ "seed", CAIRN_OPT_INT, &o->seed, 0, (double)INT64_MAX, NULL },
		{ "host", CAIRN_OPT_TEXT, &o->host, 0, 0, NULL },
		{ "port", CAIRN_OPT_INT, &o->port, 0, 65535, NULL },
		{ "uds", CAIRN_OPT_TEXT, &o->uds, 0, 0, NULL },
		{ "name", CAIRN_OPT_TEXT, &o->name, 0, 0, NULL },
		{ "lora", CAIRN_OPT_ADAPTER, &o->lora, 0, 0, NULL },
		{ "key-file", CAIRN_OPT_TEXT, &o->key_file, 0, 0, NULL },
		{ "generation-config", CAIRN_OPT_CHOICE, &o->no_defaults, 0, 0, cairn_generation_names },
		{ "allow-origin", CAIRN_OPT_TEXT, &o->allow_origin, 0, 0, NULL },
		{ "chat-template", CAIRN_OPT_TEXT, &o->template_file, 0, 0, NULL },
		{ "tool-call-parser", CAIRN_OPT_TEXT, &o->tool_parser, 0, 0, NULL },
		{ "reasoning-parser", CAIRN_OPT_TEXT, &o->reasoning_parser, 0, 0, NULL },
		{ "kv-events", CAIRN_OPT_TEXT, &o->kv_events, 0, 0, NULL },
		{ "kv-events-replay", CAIRN_OPT_TEXT, &o->kv_events_replay, 0, 0, NULL },
		{ "kv-events-topic", CAIRN_OPT_TEXT, &o->kv_events_topic, 0, 0, NULL },
		{ "threads", CAIRN_OPT_INT, &o->threads, 1, 64, NULL },
		{ "quiet", CAIRN_OPT_FLAG, &o->quiet, 0, 0, NULL },
		{ "max-queued", CAIRN_OPT_INT, &o->max_queued, 1, 1 << 20, NULL },
		{ "max-queued-tokens", CAIRN_OPT_INT, &o->max_queued_tokens, 1, big, NULL },
		{ "max-body", CAIRN_OPT_INT, &o->max_body, 1024, 1 << 30, NULL },
		{ "max-connections", CAIRN_OPT_INT, &o->max_connections, 1, 1 << 20, NULL },
		{ "max-per-address", CAIRN_OPT_INT, &o->max_per_address, 0, 1 << 20, NULL },
		{ "stream-buffer", CAIRN_OPT_INT, &o->stream_buffer, 65536, 1 << 30, NULL },
		{ "request-timeout", CAIRN_OPT_INT, &o->request_s, 0, 1e6, NULL },
		{ "header-timeout", CAIRN_OPT_INT, &o->header_s, 1, 1e6, NULL },
		{ "stall-timeout", CAIRN_OPT_INT, &o->stall_s, 1, 1e6, NULL },
		{ "drain-timeout", CAIRN_OPT_INT, &o->drain_s, 0, 1e6, NULL },
		{ "hang-timeout", CAIRN_OPT_INT, &o->hang_s, 1, 1e6, NULL },
		{ "load-timeout", CAIRN_OPT_INT, &o->load_s, 1, 1e6, NULL },
		{ "resume-limit", CAIRN_OPT_INT, &o->resume_limit, 0, 100, NULL },
	};

	*o = (struct cairn_serve_options){
		.common = { .batch = 64, .no_json = 1 }, .seed = 1, .host = "127.0.0.1", .port = 8000,
		.tool_parser = "auto", .reasoning_parser = "auto",
		.threads = 2, .max_queued = 1024, .max_queued_tokens = 4 << 20, .max_body = 8 << 20,
		.max_connections = 4096, .stream_buffer = 256 << 10, .header_s = 30, .stall_s = 30,
		.drain_s = 30, .hang_s = 60, .load_s = 1800, .resume_limit = 3,
	};
	CAIRN_TRY(cairn_parse_options(argc, argv, &o->common, options, sizeof(options) / sizeof(options[0]),
				      usage));
	CAIRN_TRY(cairn_check_speculative(&o->speculative));
	CAIRN_TRY(cairn_check_attention(&o->attention, &o->prefill));
	if (o->common.model && !*o->common.model)
		return cairn_error(EINVAL, "--model: is empty");
	if (o->shape && o->common.model)
		return cairn_error(EINVAL, "--shape: excludes --model: a shape has random weights");
	if (o->shape && o->speculative.model)
		return cairn_error(EINVAL, "--speculative-model: excludes --shape, which has no tokenizer");
	if (o->shape && o->speculative.method == CAIRN_SPECULATE_MTP)
		return cairn_error(EINVAL, "--speculative: mtp excludes --shape, which has no such layer");
	if (o->attention.workers && (o->plan || o->host_pages || cairn_num_ranks(&o->common) > 1))
		return cairn_error(EINVAL, "--attention-workers: excludes %s", o->plan ? "--plan" :
				   o->host_pages ? "--host-pages" : cairn_ranks_option(&o->common));
	if (o->lora.num &&
	    (cairn_num_ranks(&o->common) > 1 || o->plan || o->attention.workers || o->prefill.workers))
		return cairn_error(EINVAL, "--lora: excludes %s",
				   cairn_num_ranks(&o->common) > 1 ? cairn_ranks_option(&o->common) :
				   o->plan ? "--plan" :
				   o->attention.workers ? "--attention-workers" : "--prefill-workers");
	if (o->prefill.workers && (cairn_num_ranks(&o->common) > 1 || o->repeatable ||
				   o->grain == CAIRN_SERVE_CACHE_OFF))
		return cairn_error(EINVAL, "--prefill-workers: excludes %s",
				   cairn_num_ranks(&o->common) > 1 ? cairn_ranks_option(&o->common) :
				   o->repeatable ? "--repeatable" : "--prefix-cache off");
	CAIRN_TRY(cairn_check_ranks(&o->common, o->plan, NULL));
	CAIRN_TRY(cairn_check_rank_drafts(&o->common, o->speculative.method));
	if (o->disk_pages && !o->host_pages)
		return cairn_error(EINVAL, "--disk-pages: needs --host-pages, which evicts pages to disk");
	if (o->repeatable && (o->common.decode == CAIRN_DECODE_GRAPH ||
			      o->common.decode == CAIRN_DECODE_PERSISTENT))
		return cairn_error(EINVAL, "--decode: %s excludes --repeatable, which decodes by separate "
				   "kernels", cairn_decode_path_names[o->common.decode]);
	if (o->repeatable && o->plan)
		return cairn_error(EINVAL, "--plan: excludes --repeatable: which plan a pass takes depends "
				   "on other requests");
	if ((o->kv_events_replay || o->kv_events_topic) && !o->kv_events)
		return cairn_error(EINVAL, "--kv-events-%s: needs --kv-events",
				   o->kv_events_replay ? "replay" : "topic");
	if (o->kv_events && (o->grain != CAIRN_SERVE_CACHE_PAGE || o->repeatable))
		return cairn_error(EINVAL, "--kv-events: needs --prefix-cache page, and excludes "
				   "--repeatable");
	if (o->max_rows && o->max_rows < o->common.batch)
		return cairn_error(EINVAL, "--rows: %lld is less than --batch, %lld", (long long)o->max_rows,
				   (long long)o->common.batch);
	return 0;
}

int cairn_serve_name_option(int ret)
{
	static const char *const names[][2] = {
		{ "unix_path", "uds" },
		{ "address", "host" }, { "allow_origin", "allow-origin" }, { "max_batch", "batch" },
		{ "max_context", "max-context" }, { "max_rows", "rows" }, { "page_size", "page-size" },
		{ "num_pages", "pages" }, { "stripes", "cp-stripes" }, { "host_pages", "host-pages" },
		{ "disk_pages", "disk-pages" }, { "disk_dir", "disk-dir" }, { "cache_grain", "prefix-cache" },
		{ "repeatable", "repeatable" }, { "speculative", "speculative" },
		{ "num_speculative_tokens", "num-speculative-tokens" }, { "decode", "decode" },
		{ "attention_workers", "attention-workers" },
		{ "attention_keys", "attention-keys" }, { "prefill_workers", "prefill-workers" },
		{ "model_workers", "model-workers" },
		{ "prompt_lookup_max", "prompt-lookup-max" }, { "prompt_lookup_min", "prompt-lookup-min" },
		{ "speculative_branches", "speculative-branches" },
		{ "speculative_tree_rows", "speculative-tree-rows" },
		{ NULL, NULL },
	};

	return cairn_name_option(ret, names);
}

void cairn_serve_dir(const struct cairn_serve_options *o, char *dir, size_t len)
{
	if (o->common.model)
		snprintf(dir, len, "%s", o->common.model);
	else
		snprintf(dir, len, "%s/serving/embedded", cairn_data_dir());
}

int cairn_serve_config(const struct cairn_serve_options *o, struct cairn_model_config *config,
		       int32_t *max_context)
{
	char dir[4096];

	cairn_serve_dir(o, dir, sizeof(dir));
	if (o->shape)
		CAIRN_TRY(cairn_shape_config(o->shape, config));
	else
		CAIRN_TRY(cairn_model_config_load(dir, config));
	if (o->max_context > config->max_position_embeddings)
		return cairn_error(EINVAL, "--max-context: %lld exceeds the %d positions of the model",
				   (long long)o->max_context, config->max_position_embeddings);
	*max_context = o->max_context ? (int32_t)o->max_context : config->max_position_embeddings;
	return 0;
}
