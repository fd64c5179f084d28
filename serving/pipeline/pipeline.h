/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline - passes through the stages of a model, one process a stage
 *
 * A stage is consecutive layers (cairn_model_load_stage()), and the cache holds their keys and values. A pass
 * is cut into chunks of consecutive rows, which follow each other through the stages:
 *
 *   step       0          1          2          3
 *   stage 0    chunk 0    chunk 1    chunk 2
 *   stage 1               chunk 0    chunk 1    chunk 2, logits
 *
 * After each step, every stage but the last one gives the residual stream of its chunk to the next stage, by
 * send_recv: with chunks of equal time, no stage waits for another one. m chunks on n stages take m + n - 1
 * steps, so a pass should have many chunks. The last stage computes the logits and draws. The drawn tokens
 * then go to all stages (cairn_pipeline_share()), since the first one embeds them in the next pass.
 *
 * The operations that communicate name no communicator: the table adds it (serving/ranks/ranks.h).
 *
 * Results: those of cairn_forward() for the whole model, bitwise, on tables on which the results of a row do
 * not depend on the other rows of a call (ref, cpu). The residual stream is rounded to the model's dtype in
 * any case, so passing it on changes no bit.
 *
 * Errors: -EINVAL, -ENOMEM, and those of the table's operations.
 */
#ifndef CAIRN_PIPELINE_H
#define CAIRN_PIPELINE_H

#include "serving/model/forward/forward.h"

#define CAIRN_PIPELINE_ROWS	1024	/* rows of the first chunk of a prompt, unless others are asked for */

/* ---- stages ---- */

/* Returns the first layer of a stage. Of layers that are left over, the first stages have one more. */
static inline int32_t cairn_stage_first(int32_t layers, int32_t stage, int32_t stages)
{
	const int32_t left = layers % stages;

	return stage * (layers / stages) + (stage < left ? stage : left);
}

static inline int cairn_stage_is_last(const struct cairn_model *m)
{
	return m->config.stage == m->config.stages - 1;
}

/* ---- chunks ---- */

/* The index arrays of a pass in host memory; members as in struct cairn_batch. */
struct cairn_pipeline_host {
	const int32_t *qo_indptr, *kv_indptr, *positions;
	int32_t num_rows, batch, page_size;
};

/*
 * Returns the time of a row's products as a multiple of the time of its attention to one key, for the whole
 * model. Windows are ignored.
 */
int64_t cairn_pipeline_row_keys(const struct cairn_model *model);

/* Rows of a chunk. */
struct cairn_pipeline_sizes {
	int32_t most;		/* >= page_size */
	int32_t least;		/* of a chunk that another one follows; at most `most` */
	int32_t even;		/* chunks have multiples of so many rows; 1: any number */
};
/*
 * Returns the sizes for a model on a device with so many SMs; 0: on the host. On a device, a chunk has at
 * least 1024 rows, or `most` if that is less, since shorter products take longer for each row. Chunks there
 * are multiples of as many rows as occupy all SMs in attention, where 128 rows of a query head occupy one SM.
 */
struct cairn_pipeline_sizes cairn_pipeline_sizes(const struct cairn_model *model, int32_t most, int32_t sms);
/*
 * Cuts a pass into chunks of about equal time. A row of position p takes the time of row_keys + p + 1 keys,
 * so a chunk of c rows after L others takes (row_keys + 1/2) c + ((L + c)^2 - L^2) / 2. There are so many
 * chunks that each takes about the time of sizes->most rows at the beginning of a prompt, or less; then the
 * sizes apply. A cut within a request is at the beginning of a page. Writes the row after each chunk to ends,
 * which has room for num_rows; returns the number of chunks.
 */
int32_t cairn_pipeline_cut(const struct cairn_pipeline_host *host, int64_t row_keys,
			   const struct cairn_pipeline_sizes *sizes, int32_t *ends);

/* Returns the int32s that the index arrays of all chunks of a pass take at most. */
static inline size_t cairn_pipeline_index_room(int32_t batch, int32_t max_rows)
{
	return 3 * (size_t)batch + 5 * (size_t)max_rows;
}

/*
 * Makes *chunk the rows first .. end - 1 of the pass `whole`. Writes its index arrays to `index`, whose copy
 * on the device will be at `device`. Returns the number of int32s written.
 */
int32_t cairn_pipeline_chunk(struct cairn_batch *chunk, const struct cairn_pipeline_host *host,
			     const struct cairn_batch *whole, int32_t first, int32_t end, int32_t *index,
			     const int32_t *device);

/* ---- passes ---- */

struct cairn_pipeline_pass {
	struct cairn_batch whole;
	const struct cairn_batch *chunks;	/* [num_chunks], in order; together all rows of `whole` */
	int32_t num_chunks;
};

struct cairn_pipeline;

/*
 * Makes memory for the passes of a stage. scratch: for the rows of one chunk and the logits of a pass; it
 * must outlive the pipeline. max_rows: of a pass. share_bytes: most that cairn_pipeline_share() gives.
 */
int cairn_pipeline_create(struct cairn_pipeline **out, struct cairn_scratch *scratch, int32_t max_rows,
			  size_t share_bytes);
void cairn_pipeline_destroy(struct cairn_pipeline *pipeline);		/* NULL is legal */
/* As cairn_scratch_reserve(). */
int cairn_pipeline_reserve(struct cairn_pipeline *pipeline, const struct cairn_kv_store *kv,
			   const struct cairn_pipeline_pass *pass, void *stream, int *moved);
/* Runs the pass; all stages call it with equal passes. The last stage writes whole.logits. */
int cairn_pipeline_forward(struct cairn_pipeline *pipeline, const struct cairn_kv_store *kv,
			   const struct cairn_pipeline_pass *pass, void *stream);

/* In the last stage: the normalised states of all rows of the last pass, [num_rows, hidden]. */
const char *cairn_pipeline_normed(const struct cairn_pipeline *pipeline);

struct cairn_pipeline_span {
	void *at;
	size_t bytes;
};

/* Overwrites the spans of all stages with those of the last one. All stages call it with equal sizes. */
int cairn_pipeline_share(struct cairn_pipeline *pipeline, const struct cairn_pipeline_span *spans, int num,
			 void *stream);

#endif
