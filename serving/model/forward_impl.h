/* SPDX-License-Identifier: Apache-2.0 */
/* forward_impl - shared by forward.c and forward_check.c: the walk over the operations of a pass */
#ifndef CAIRN_FORWARD_IMPL_H
#define CAIRN_FORWARD_IMPL_H

#include "serving/graph/buffers.h"
#include "serving/model/forward.h"

struct cairn_scratch {
	const struct cairn_model *model;
	int32_t max_rows, max_logits;
	struct cairn_buffers buffers;		/* offsets of the activations from base */
	char *base;
	/* attn_workspace holds the plan that layers share, moe_workspace counters from call to call */
	void *workspace, *attn_workspace, *moe_workspace;
	size_t workspace_bytes, attn_bytes, moe_bytes;
};

struct walk {
	const struct cairn_model *m;
	const struct cairn_op_graph *g;
	struct cairn_scratch *s;
	const struct cairn_kv_store *kv;
	const struct cairn_batch *b;
	void *stream;
	int asking;		/* query workspaces; launch nothing */
	size_t workspace_bytes, attn_bytes, moe_bytes;	/* the largest answers so far */
	int has_plan;		/* attn_workspace holds the plan of attention with this window */
	int32_t plan_window;
};

/* Returns the sizes of a pass, for placing its activations. */
struct cairn_pass_sizes forward_sizes(const struct cairn_model *model, int32_t max_rows, int32_t max_logits);
/* Runs one operation, or with w->asking queries its workspace. */
int forward_run_op(struct walk *w, const struct cairn_graph_op *op);

#endif
