/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics - counters, gauges and histograms of the server, in Prometheus's text format
 *
 * Names, labels and meanings are vLLM's, so that its dashboards work; metrics.c has the table. Metrics that
 * vLLM does not have begin with "cairn:". Text format 0.0.4: families in a fixed order, each with HELP and
 * TYPE; counters end in _total; every sample has the labels model_name and engine. The power and the energy
 * of the GPU are absent while they are 0, which is always so without NVML, and so are the counters of KV
 * events without --kv-events.
 *
 * Threads: all functions may be called from any thread at any time and do not block. cairn_metrics_text()
 * reads the values one after the other. The buckets and the sum of a histogram may therefore differ by values
 * observed during the call; _count always equals the last bucket.
 */
#ifndef CAIRN_METRICS_H
#define CAIRN_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_metrics;

enum cairn_metric {
	/* gauges */
	CAIRN_NUM_REQUESTS_RUNNING,
	CAIRN_NUM_REQUESTS_WAITING,
	CAIRN_KV_CACHE_USAGE, /* fraction, 0 to 1 */
	CAIRN_TOKENS_QUEUED,
	CAIRN_GPU_POWER, /* W */
	CAIRN_PREFILL_WORKERS,
	/* counters */
	CAIRN_PREFIX_CACHE_QUERIES, /* tokens */
	CAIRN_PREFIX_CACHE_HITS,    /* tokens */
	CAIRN_NUM_PREEMPTIONS,
	CAIRN_PROMPT_TOKENS,
	CAIRN_GENERATION_TOKENS,
	CAIRN_WORKER_RESTARTS,
	CAIRN_LOG_LINES_LOST,
	CAIRN_GPU_ENERGY, /* mJ, shown in J */
	CAIRN_SPEC_DRAFTS,
	CAIRN_SPEC_DRAFT_TOKENS,
	CAIRN_SPEC_ACCEPTED,
	CAIRN_CONSTRAINTS_COMPILED,
	CAIRN_CONSTRAINT_CACHE_HITS,
	CAIRN_CONSTRAINTS_REFUSED,
	CAIRN_GRAMMAR_RESTARTS,
	CAIRN_MASKS_COMPUTED,
	CAIRN_MASK_TIME, /* ms, shown in s */
	CAIRN_KV_EVENTS_PUBLISHED,
	CAIRN_KV_EVENTS_LOST,
	CAIRN_PULLED_PROMPTS,
	CAIRN_PULLED_PAGES, /* of all layers */
	CAIRN_PULLED_BYTES,
	CAIRN_PULL_CHECKSUM_ERRORS,
	CAIRN_PULLS_RECOMPUTED,
	/* counters with a label: place of a draft, enum cairn_finished, enum cairn_refused */
	CAIRN_SPEC_ACCEPTED_PER_POS,
	CAIRN_REQUEST_SUCCESS,
	CAIRN_REQUESTS_REFUSED,
	/* histograms, of tokens or seconds */
	CAIRN_ITERATION_TOKENS,
	CAIRN_TIME_TO_FIRST_TOKEN,
	CAIRN_INTER_TOKEN_LATENCY,
	CAIRN_TIME_PER_OUTPUT_TOKEN,
	CAIRN_E2E_LATENCY,
	CAIRN_QUEUE_TIME,
	CAIRN_PREFILL_TIME,
	CAIRN_DECODE_TIME,
	CAIRN_INFERENCE_TIME,
	CAIRN_REQUEST_PROMPT_TOKENS,
	CAIRN_REQUEST_GENERATION_TOKENS,
	CAIRN_REQUEST_PARAMS_N,
	CAIRN_REQUEST_PARAMS_MAX_TOKENS,
	CAIRN_NUM_METRICS
};

enum cairn_finished {
	CAIRN_FINISHED_STOP,
	CAIRN_FINISHED_LENGTH,
	CAIRN_FINISHED_ABORT,
	CAIRN_FINISHED_ERROR,
	CAIRN_NUM_FINISHED
};
enum cairn_refused {
	CAIRN_REFUSED_INVALID,
	CAIRN_REFUSED_AUTH,
	CAIRN_REFUSED_QUEUE,
	CAIRN_REFUSED_UNAVAILABLE,
	CAIRN_NUM_REFUSED
};

#define CAIRN_NUM_SPEC_POSITIONS 16

/* model_name may hold any bytes; max_context bounds the buckets of token counts. Returns 0 or -ENOMEM. */
int cairn_metrics_new(const char *model_name, const char *engine, int32_t max_context,
		      struct cairn_metrics **out);
void cairn_metrics_free(struct cairn_metrics *m); /* NULL is fine */

/* Adds to a counter. label: 0 if the metric has none. */
void cairn_metric_add(struct cairn_metrics *m, enum cairn_metric which, int label, uint64_t by);
void cairn_metric_set(struct cairn_metrics *m, enum cairn_metric which, double value);
/* Adds a value to a histogram. NaN and negative values count as 0. */
void cairn_metric_observe(struct cairn_metrics *m, enum cairn_metric which, double value);

uint64_t cairn_metric_count(const struct cairn_metrics *m, enum cairn_metric which, int label);
double cairn_metric_gauge(const struct cairn_metrics *m, enum cairn_metric which);

/* Sets what vllm:cache_config_info says; without a call it is absent. Both numbers are at least 1. */
void cairn_metrics_set_cache(struct cairn_metrics *m, int32_t block_size, int32_t num_blocks,
			     bool prefix_caching, const char *dtype);	/* dtype: a literal */

#define CAIRN_METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Writes all metrics to *text, NUL-terminated, which the caller frees. Returns 0 or -ENOMEM. */
int cairn_metrics_text(const struct cairn_metrics *m, char **text, size_t *num_bytes);

#endif
