// SPDX-License-Identifier: Apache-2.0
/*
 * pipeline - runs the chunks of a pass through this stage, and passes them on
 *
 * A chunk is a pass of the stage's model without logits: its input is the residual stream that has arrived,
 * except in the first stage, and it leaves the stream with the last addition done. The last stage keeps the
 * normalised states of all rows of the pass, and computes the logits of the rows that want them at the end.
 *
 *   memory    arrived [chunk, hidden] | leaving [chunk, hidden] | normed [chunk or pass, hidden] | mail
 */
#include "serving/pipeline/pipeline.h"

#include <stdlib.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "serving/model/forward/forward_impl.h"

#define ALIGNMENT	256
#define MAIL_ROW	1024	/* bytes */

struct cairn_pipeline {
	struct cairn_scratch *scratch;
	const struct cairn_model *m;
	const struct cairn_impl *impl;
	int32_t stage, stages, max_rows;
	size_t row;			/* bytes of a row of the residual stream */
	size_t mail_bytes;		/* of one stage's mail: whole rows of MAIL_ROW */
	char *base, *arrived, *leaving, *normed;
	char *mail, *all_mail;		/* what cairn_pipeline_share() sends from here, and from all stages */
};

#define TABLE(p, fn, ...) CAIRN_TABLE((p)->impl, fn, __VA_ARGS__)

static size_t aligned(size_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int allocate(struct cairn_pipeline *p, size_t share_bytes)
{
	const size_t chunk = aligned((size_t)p->scratch->max_rows * p->row);
	const size_t pass = aligned((size_t)p->max_rows * p->row);
	void *at, *stream;
	int ret;

	p->mail_bytes = (share_bytes + MAIL_ROW - 1) / MAIL_ROW * MAIL_ROW;
	CAIRN_TRY(TABLE(p, mem_alloc, &at, 2 * chunk + (pass > chunk ? pass : chunk) +
			(size_t)(1 + p->stages) * p->mail_bytes));
	p->base = p->arrived = at;
	p->leaving = p->arrived + chunk;
	p->normed = p->leaving + chunk;
	p->mail = p->normed + (pass > chunk ? pass : chunk);
	p->all_mail = p->mail + p->mail_bytes;
	/* stages other than the last one send their mail, too, and nobody reads it */
	CAIRN_TRY(TABLE(p, stream_create, &stream));
	ret = TABLE(p, mem_set, p->mail, 0, p->mail_bytes, stream);
	if (!ret)
		ret = TABLE(p, stream_sync, stream);
	p->impl->stream_destroy(stream);
	return ret;
}

int cairn_pipeline_create(struct cairn_pipeline **out, struct cairn_scratch *scratch, int32_t max_rows,
			  size_t share_bytes)
{
	const struct cairn_model *m = scratch->model;
	struct cairn_pipeline *p = calloc(1, sizeof(*p));
	int ret;

	if (!p)
		return cairn_error(ENOMEM, "pipeline: no memory");
	p->scratch = scratch;
	p->m = m;
	p->impl = m->impl;
	p->stage = m->config.stage;
	p->stages = m->config.stages;
	p->row = (size_t)m->dims[CAIRN_D_HIDDEN] * cairn_dtype_bytes(m->dtype);
	p->max_rows = cairn_stage_is_last(m) ? max_rows : 0;
	ret = allocate(p, share_bytes);
	if (ret)
		cairn_pipeline_destroy(p);
	else
		*out = p;
	return ret;
}

void cairn_pipeline_destroy(struct cairn_pipeline *p)
{
	if (p && p->base)
		p->impl->mem_free(p->base);
	free(p);
}

/* ---- logits ---- */

static const struct cairn_graph_op *op_of_kind(const struct cairn_op_graph *g, enum cairn_op_kind kind)
{
	const struct cairn_graph_op *op = g->ops;

	while (op->kind != kind)
		op++;
	return op;
}

static struct walk head_walk(struct cairn_pipeline *p, const struct cairn_pipeline_pass *pass, void *stream)
{
	return (struct walk){
		.m = p->m, .g = p->m->graph, .s = p->scratch, .b = &pass->whole,
		.buffers = &p->scratch->buffers, .stream = stream,
	};
}

/* Runs the output matrix and what follows it, or with w->asking queries their workspace. */
static int run_output(struct walk *w)
{
	const struct cairn_graph_op *op = op_of_kind(w->g, CAIRN_OP_LM_HEAD);

	for (; op < w->g->ops + w->g->num_ops; op++)
		CAIRN_TRY(forward_run_op(w, op));
	return 0;
}

/* Takes the normalised states of the rows whose logits are wanted, instead of the norm of picked rows. */
static int run_head(struct cairn_pipeline *p, const struct cairn_pipeline_pass *pass, void *stream)
{
	struct walk w = head_walk(p, pass, stream);
	const struct cairn_batch *b = &pass->whole;
	struct cairn_embedding_args pick = {
		.size = sizeof(pick), .out = forward_at(&w, op_of_kind(w.g, CAIRN_OP_LM_HEAD)->in[0]),
		.table = p->normed, .ids = b->logit_rows, .rows = b->num_logits,
		.dim = p->m->dims[CAIRN_D_HIDDEN], .vocab = p->max_rows, .dtype = p->m->dtype,
	};

	if (!b->num_logits)
		return 0;
	if (b->logit_rows)
		CAIRN_TRY(TABLE(p, embedding, &pick, stream));
	else
		CAIRN_TRY(TABLE(p, mem_copy, pick.out, p->normed, (size_t)b->num_logits * p->row,
				CAIRN_COPY_ON_DEVICE, stream));
	return run_output(&w);
}

/* ---- the pass ---- */

/* Returns the number of the chunk that a stage computes in a step, or -1. */
static int32_t chunk_of(const struct cairn_pipeline_pass *pass, int32_t step, int32_t stage)
{
	const int32_t c = step - stage;

	return c >= 0 && c < pass->num_chunks ? c : -1;
}

static int run_chunk(struct cairn_pipeline *p, const struct cairn_kv_store *kv,
		     const struct cairn_batch *chunk, size_t first_row, void *stream)
{
	struct cairn_batch b = *chunk;

	b.inputs = p->stage ? p->arrived : NULL;
	b.states = p->leaving;
	b.taps = b.num_taps ? b.taps + first_row * p->row : NULL;
	b.normed = p->normed + (cairn_stage_is_last(p->m) ? first_row * p->row : 0);
	return cairn_forward(p->scratch, kv, &b, stream);
}

/* Gives what this stage has computed in the step to the next stage. All stages send equally many bytes. */
static int pass_on(struct cairn_pipeline *p, const struct cairn_pipeline_pass *pass, int32_t step,
		   void *stream)
{
	const int sends = p->stage < p->stages - 1 && chunk_of(pass, step, p->stage) >= 0;
	const int receives = p->stage && chunk_of(pass, step, p->stage - 1) >= 0;
	struct cairn_send_recv_args args = {
		.size = sizeof(args), .out = p->arrived, .x = p->leaving, .to = sends ? p->stage + 1 : -1,
		.from = receives ? p->stage - 1 : -1,
	};
	int32_t rows = 0;

	for (int32_t s = 0; s < p->stages - 1; s++) {
		const int32_t c = chunk_of(pass, step, s);

		if (c >= 0 && pass->chunks[c].num_rows > rows)
			rows = pass->chunks[c].num_rows;
	}
	args.bytes = (int64_t)rows * (int64_t)p->row;
	return TABLE(p, send_recv, &args, stream);
}

int cairn_pipeline_reserve(struct cairn_pipeline *p, const struct cairn_kv_store *kv,
			   const struct cairn_pipeline_pass *pass, void *stream, int *moved)
{
	struct walk w = head_walk(p, pass, stream);

	for (int32_t c = 0; c < pass->num_chunks; c++)
		CAIRN_TRY(cairn_scratch_reserve(p->scratch, kv, &pass->chunks[c], stream, moved));
	if (!cairn_stage_is_last(p->m) || !pass->whole.num_logits)
		return 0;
	w.asking = 1;
	CAIRN_TRY(run_output(&w));
	return forward_reserve(p->impl, &p->scratch->lane[0], w.workspace_bytes, stream, moved);
}

int cairn_pipeline_forward(struct cairn_pipeline *p, const struct cairn_kv_store *kv,
			   const struct cairn_pipeline_pass *pass, void *stream)
{
	const int32_t steps = pass->num_chunks + p->stages - 1;
	size_t first_row = 0;

	for (int32_t step = 0; step < steps; step++) {
		const int32_t c = chunk_of(pass, step, p->stage);

		if (c >= 0) {
			CAIRN_TRY(run_chunk(p, kv, &pass->chunks[c], first_row, stream));
			first_row += (size_t)pass->chunks[c].num_rows;
		}
		if (step < steps - 1)
			CAIRN_TRY(pass_on(p, pass, step, stream));
	}
	return cairn_stage_is_last(p->m) ? run_head(p, pass, stream) : 0;
}

const char *cairn_pipeline_normed(const struct cairn_pipeline *p)
{
	return p->normed;
}

int cairn_pipeline_share(struct cairn_pipeline *p, const struct cairn_pipeline_span *spans, int num,
			 void *stream)
{
	const int is_last = cairn_stage_is_last(p->m);
	struct cairn_all_to_all_args args = {
		.size = sizeof(args), .out = p->all_mail, .x = p->mail, .out_stride = MAIL_ROW,
		.x_stride = MAIL_ROW, .row_bytes = MAIL_ROW,
	};
	size_t bytes = 0, at = 0;

	for (int i = 0; i < num; i++)
		bytes += spans[i].bytes;
	if (bytes > p->mail_bytes)
		return cairn_error(EINVAL, "pipeline: %zu bytes to share, at most %zu", bytes, p->mail_bytes);
	args.rows = (int32_t)((bytes + MAIL_ROW - 1) / MAIL_ROW);
	args.out_block = (int64_t)args.rows * MAIL_ROW;
	for (int i = 0; is_last && i < num; at += spans[i++].bytes)
		CAIRN_TRY(TABLE(p, mem_copy, p->mail + at, spans[i].at, spans[i].bytes, CAIRN_COPY_ON_DEVICE,
				stream));
	CAIRN_TRY(TABLE(p, all_to_all, &args, stream));
	at = (size_t)(p->stages - 1) * (size_t)args.out_block;
	for (int i = 0; !is_last && i < num; at += spans[i++].bytes)
		CAIRN_TRY(TABLE(p, mem_copy, spans[i].at, p->all_mail + at, spans[i].bytes,
				CAIRN_COPY_ON_DEVICE, stream));
	return 0;
}
