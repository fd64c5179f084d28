/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve - what `cairn serve` and its worker are told on the command line
 *
 * Two processes. The front (serve.c and what is named there) holds clients, tokenizer and limits and never
 * touches a device. The worker (serve_worker.c) holds model, engine and device; it is this program again,
 * started by the front with the same arguments, and may die at any time: the front then fails what was in
 * flight, says so in /health, and starts another one. serve_wire.h is what they speak.
 */
#ifndef CAIRN_SERVE_H
#define CAIRN_SERVE_H

#include "serving/cli/command.h"
#include "serving/model/config.h"

#define CAIRN_SERVE_FD	3	/* the worker's end of the socket */

struct cairn_serve_options {
	struct cairn_common_options common;
	/* the model */
	const char *shape;
	int64_t max_context, max_rows, page_size, num_pages, host_pages, disk_pages, seed;
	const char *disk_dir;
	int grain;		/* enum cairn_serve_cache */
	int no_graphs;
	/* whom it serves */
	const char *host, *name, *key_file, *template_file;
	int64_t port, threads;
	/* limits */
	int64_t max_queued, max_queued_tokens, max_body, max_connections, max_per_address, stream_buffer;
	int64_t request_s, header_s, stall_s, drain_s, hang_s, load_s;	/* 0: for ever */
	int quiet;
};

enum cairn_serve_cache { CAIRN_SERVE_CACHE_PAGE, CAIRN_SERVE_CACHE_TOKEN, CAIRN_SERVE_CACHE_OFF };

/* 0, 1 after --help, -EINVAL. */
int cairn_serve_parse(int argc, char **argv, struct cairn_serve_options *o);
/* The directory of the model; of the embedded one, too, which lends a shape its tokenizer. */
void cairn_serve_dir(const struct cairn_serve_options *o, char *dir, size_t len);
/* The model's config, of a directory or a shape; *max_context: the option's, or its own. */
int cairn_serve_config(const struct cairn_serve_options *o, struct cairn_model_config *config,
		       int32_t *max_context);

int cairn_cmd_serve(int argc, char **argv);
int cairn_cmd_serve_worker(int argc, char **argv);	/* hidden: the front starts it */

#endif
