/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_step_draw - how a step on the GPU draws its tokens: argmax, or sampling with a workspace
 */
#ifndef CAIRN_DECODE_STEP_DRAW_H
#define CAIRN_DECODE_STEP_DRAW_H

#include "fused/decode_step/decode_step.h"
#include "primitives/base/dtype.h"
#include "primitives/draw/argmax.h"
#include "primitives/draw/sample.h"

static inline struct cairn_sample_args decode_step_sample(const struct cairn_decode_step_args *args)
{
	struct cairn_sample_args s = {};

	s.size = sizeof(s);
	s.out = args->tokens;
	s.logits = args->logits;
	s.temperature = args->temperature;
	s.top_k = args->top_k;
	s.top_p = args->top_p;
	s.min_p = args->min_p;
	s.seed = args->seed;
	s.offset = args->offset;
	s.rows = args->kv.batch;
	s.vocab = args->vocab;
	return s;
}

/* Sets *bytes to the workspace that drawing needs. */
static inline int decode_step_draw_workspace(const struct cairn_decode_step_args *args, size_t *bytes)
{
	struct cairn_sample_args s = decode_step_sample(args);

	*bytes = 0;
	return args->temperature ? cairn_sample_workspace(&s, bytes) : 0;
}

/* Draws the tokens from the logits. workspace: of `bytes` bytes. */
static inline int decode_step_draw(const struct cairn_decode_step_args *args, void *workspace, size_t bytes,
				   void *stream)
{
	struct cairn_sample_args s = decode_step_sample(args);
	struct cairn_argmax_args a = {};

	if (!args->tokens)
		return 0;
	if (args->temperature) {
		s.workspace = bytes ? workspace : NULL;
		s.workspace_bytes = bytes;
		return cairn_sample(&s, stream);
	}
	a.size = sizeof(a);
	a.out = args->tokens;
	a.logits = args->logits;
	a.rows = args->kv.batch;
	a.vocab = args->vocab;
	a.dtype = CAIRN_F32;
	return cairn_argmax(&a, stream);
}

#endif
