// SPDX-License-Identifier: Apache-2.0
/*
 * impl_ladder - tables of the steps of fused/attention/ladder: table ladderN has step N of the forward pass
 * as attn_dense and, up to N = 4, step N of decoding as attn_paged
 *
 * Table cuda:ladderN, for models, is table cuda with step N of decoding: it shows what attention is worth to
 * an engine. Passes of prompts, which no step supports, keep their kernel. decode_step, which contains
 * attention, is left out.
 */
#include "conformance/tables/tables.h"

#include <string.h>

#include "fused/attention/ladder/ladder.h"
#include "primitives/base/error.h"

#define TABLE(name_, ...) { \
	.size = sizeof(struct cairn_impl), .abi_version = CAIRN_ABI_VERSION, .name = name_, .version = "1", \
	.last_error = cairn_last_error, __VA_ARGS__ }

const struct cairn_impl cairn_impl_ladder[] = {
	TABLE("ladder1", .attn_dense = ladder_attn1, .attn_paged = ladder_decode1),
	TABLE("ladder2", .attn_dense = ladder_attn2, .attn_paged = ladder_decode2),
	TABLE("ladder3", .attn_dense = ladder_attn3, .attn_paged = ladder_decode3,
	      .attn_paged_workspace = ladder_decode_workspace),
	TABLE("ladder4", .attn_dense = ladder_attn4, .attn_paged = ladder_decode4,
	      .attn_paged_workspace = ladder_decode_workspace),
	TABLE("ladder5", .attn_dense = ladder_attn5),
};

static int step_workspace(const struct cairn_attn_paged_args *args, size_t *bytes)
{
	return args->max_qo_len > 1 ? cairn_attn_paged_workspace(args, bytes) :
				      ladder_decode_workspace(args, bytes);
}

#define STEP(n) \
	static int step##n(const struct cairn_attn_paged_args *args, void *stream) \
	{ \
		return args->max_qo_len > 1 ? cairn_attn_paged(args, stream) : \
					      ladder_decode##n(args, stream); \
	}
STEP(1)
STEP(2)
STEP(3)
STEP(4)

int cairn_impl_with_step(const char *name, struct cairn_impl *out)
{
	static const struct {
		const char *name;
		int (*attn_paged)(const struct cairn_attn_paged_args *args, void *stream);
	} steps[] = {
		{ "cuda:ladder1", step1 }, { "cuda:ladder2", step2 }, { "cuda:ladder3", step3 },
		{ "cuda:ladder4", step4 },
	};

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		if (strcmp(steps[i].name, name))
			continue;
		*out = cairn_impl_cuda;
		out->name = steps[i].name;
		out->attn_paged = steps[i].attn_paged;
		out->attn_paged_workspace = step_workspace;
		out->attn_plan = NULL;
		out->decode_step = NULL;
		out->decode_step_workspace = NULL;
		out->decode_step_ranks = NULL;
		out->decode_step_ranks_workspace = NULL;
		return 1;
	}
	return 0;
}
