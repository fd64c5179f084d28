/* SPDX-License-Identifier: Apache-2.0 */
/* plan_impl - the bytes of a plan, shared by plan.c and plan_read.c */
#ifndef CAIRN_PLAN_IMPL_H
#define CAIRN_PLAN_IMPL_H

#include "primitives/base/error.h"
#include "serving/engine/worker/plan.h"

#define PLAN_MAGIC	0x6e616c70u	/* "plan" */
#define PLAN_VERSION	2u
#define PLAN_ALIGN	8u

struct plan_header {
	uint32_t magic, version;
	uint64_t number, digest;	/* digest: of all bytes after the header */
	uint64_t len;			/* of the whole plan */
	uint32_t num_records, unused;
};

struct plan_lists {
	int32_t kind, num_bias, num_forbidden, bias_at, forbidden_at, unused;
	/* with LISTS: biases, [num_bias]; ids, [num_forbidden] */
};

struct plan_moves {
	int32_t kind, num_before, num, unused;
	/* moves, [num] */
};

/* A part, or a draw, of which only the sampling and the treatment count. */
struct plan_part {
	int32_t kind, row;		/* row: DRAW */
	uint64_t seed, offset;
	int32_t follows, num_rows, position, num_pages, decodes, chained;
	int32_t score_from, num_scored, score_k;
	int32_t draws, top_k;		/* draws: it has the sampling that follows */
	float temperature, top_p, min_p;
	int32_t treats;			/* it has the treatment that follows */
	int32_t slot, begins, num_prompt, forks, from, num_drafts;
	float repetition, frequency, presence;
	int32_t bias_at, num_bias, forbidden_at, num_forbidden, num_logprobs, late;
	/*
	 * ids, [num_rows] unless it follows a draw; pages, [num_pages]; targets, [num_scored]; of the
	 * treatment prompt, [num_prompt], and drafts, [num_drafts]
	 */
};

static inline size_t plan_padded(size_t bytes)
{
	return (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

static inline uint64_t plan_digest(const unsigned char *bytes, size_t len)
{
	uint64_t d = 0xcbf29ce484222325u;

	for (size_t i = 0; i < len; i++)
		d = (d ^ bytes[i]) * 0x100000001b3u;
	return d;
}

#endif
