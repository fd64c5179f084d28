/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve - command line options of `cairn serve`, shared by its two processes
 *
 * The front (serve.c and the files listed in serve_front.h) holds the clients, the tokenizer and the limits
 * and never touches a device. The worker (serve_worker.c) holds the model, the engine and the device. The
 * front starts the worker as another process of this program with the same arguments. The worker may die at
 * any time: the front then reports the state in /health, starts another worker, and goes on with the
 * requests in flight there (serve_resume.c). serve_wire.h defines their protocol.
 */
#ifndef CAIRN_SERVE_H
#define CAIRN_SERVE_H

#include "serving/cli/command.h"
#include "serving/model/checkpoint/config.h"
#include "serving/model/checkpoint/generation.h"

#define CAIRN_SERVE_FD	3	/* the worker's end of the socket */

struct cairn_serve_options {
	struct cairn_common_options common;
	struct cairn_speculative_options speculative;
	struct cairn_attention_options attention;
	struct cairn_adapter_options lora;
	struct cairn_prefill_options prefill;
	/* the model */
	const char *shape;
	int64_t max_context, max_rows, page_size, num_pages, host_pages, disk_pages, seed;
	const char *disk_dir, *plan;
	const char *kv_events, *kv_events_replay, *kv_events_topic;	/* NULL: not given */
	int grain;		/* enum cairn_serve_cache */
	int no_graphs, repeatable;
	int no_defaults;	/* index into cairn_generation_names: ignore generation_config.json */
	/* clients and access */
	const char *host, *name, *key_file, *template_file, *allow_origin;
	const char *tool_parser, *reasoning_parser, *uds;
	int64_t port, threads;
	/* limits */
	int64_t max_queued, max_queued_tokens, max_body, max_connections, max_per_address, stream_buffer;
	int64_t request_s, header_s, stall_s, drain_s, hang_s, load_s;	/* seconds; request_s 0: none */
	int64_t resume_limit;	/* workers that may fail in a minute before their requests do */
	int quiet;
};

enum cairn_serve_cache { CAIRN_SERVE_CACHE_PAGE, CAIRN_SERVE_CACHE_TOKEN, CAIRN_SERVE_CACHE_OFF };

/* Returns 0, 1 after --help, or -EINVAL. */
int cairn_serve_parse(int argc, char **argv, struct cairn_serve_options *o);
/* If an error of engine or HTTP begins with a field's name, replaces it by the option's. Returns ret. */
int cairn_serve_name_option(int ret);
/*
 * Writes the model's directory to dir: that of the embedded model by default, and for --shape, which uses the
 * embedded tokenizer.
 */
void cairn_serve_dir(const struct cairn_serve_options *o, char *dir, size_t len);
/* Reads the config of the directory or shape; *max_context: --max-context, or the model's own limit. */
int cairn_serve_config(const struct cairn_serve_options *o, struct cairn_model_config *config,
		       int32_t *max_context);

int cairn_cmd_serve(int argc, char **argv);
int cairn_cmd_serve_worker(int argc, char **argv);	/* hidden command; started by the front */

#endif
