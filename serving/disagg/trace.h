/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace - reads traces of requests: how long each prompt and each answer was
 *
 * Two public formats are recognised by their first byte:
 *
 *   Azure 2023, CSV:       TIMESTAMP,ContextTokens,GeneratedTokens
 *                          2023-11-16 18:15:46.6805900,374,44
 *   Mooncake, JSON lines:  {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}
 *
 * Only lengths are used; time stamps and hashes must be present, but are not interpreted. Lines may end with
 * CR LF, and the last line may lack its end.
 *
 * Errors: -EINVAL: the text names file, line and field. -EIO, -ENOMEM.
 */
#ifndef CAIRN_DISAGG_TRACE_H
#define CAIRN_DISAGG_TRACE_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_TRACE_MOST_TOKENS	(1 << 24)	/* of a prompt or an answer */
#define CAIRN_TRACE_MOST_BYTES	((size_t)1 << 30)

struct cairn_trace_request {
	int32_t prompt, answer;		/* tokens, at least 1 each */
};

struct cairn_trace {
	struct cairn_trace_request *requests;
	int32_t num_requests, longest_answer, longest;	/* longest: prompt and answer together */
	double mean_prompt, mean_answer;
};

/* Reads at most `most` requests, from the first one on; at least one must be there. */
int cairn_trace_read(struct cairn_trace **out, const char *path, int32_t most);
/* The same for a file in memory that ends with a NUL; path: its name in messages. text is changed. */
int cairn_trace_parse(struct cairn_trace **out, char *text, size_t num_bytes, const char *path, int32_t most);
void cairn_trace_free(struct cairn_trace *trace);	/* NULL is legal */

#endif
