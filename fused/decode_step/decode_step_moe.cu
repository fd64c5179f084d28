// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_moe - models with latent attention or experts: a chain of programmatic dependent launches, two
 * per layer, or the single launch of decode_step_latent
 *
 *                 latent attention       without latent attention
 *   embedding     a kernel               the grid kernel looks up rows itself
 *   each layer    cluster_mla            the grid kernel's phases QKV, ATTN, OUT
 *                 moe; in the first dense_layers layers
 *                 moe without experts    the grid kernel's phases GATE_UP, DOWN
 *   head          as moe's first half    the grid kernel's last phase
 *
 * Each kernel takes all SMs and all of their shared memory, and starts on an SM when the preceding kernel's
 * CTA exits there. Its first weights (moe: 175 KB per SM) are in flight before the preceding kernel's last
 * CTA has written its result. x alternates between two buffers.
 *
 * The workspace holds the parts of moe and cluster_mla, sized for the largest batch, and then that of the
 * grid kernel. The parts contain LL words, whose memory may never hold other data, so their places do not
 * depend on the batch.
 *
 * Optimisation history: NOTES.md.
 */
#include "fused/decode_step/decode_step_moe.h"

#include "primitives/rows/embedding.h"
#include "primitives/base/launch.h"
#include "fused/decode_step/decode_step_grid.h"
#include "fused/decode_step/decode_step_latent.h"
#include "fused/moe/moe_launch.h"
#include "fused/decode_step/decode_step_parts.h"

#define CHAIN_BATCH	8		/* the largest batch */

struct chain {
	struct grid_args g;		/* without latent attention */
	struct latent_step l;		/* with latent attention; without it only moe and x are used */
	size_t bytes;
};

static size_t padded(size_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

/* ws may be NULL. */
static int plan(struct chain *c, const struct cairn_decode_step_args *args, char *ws)
{
	const int most = CHAIN_BATCH * args->hidden <= 32768 ? CHAIN_BATCH : 32768 / args->hidden;
	const size_t x_bytes = padded((size_t)CHAIN_BATCH * args->hidden * 2);
	size_t at = 0, bytes = 0;

	if (args->form == CAIRN_DECODE_STEP_PERSISTENT && !args->kv_lora_rank)
		return cairn_error(EOPNOTSUPP,
				"decode_step: form: no PERSISTENT form for experts without latent attention");
	c->l.mla = decode_step_mla(args, 0);
	c->l.mla.cluster_size = 1;
	c->l.dense = decode_step_dense_of(args, 0);
	c->l.moe = decode_step_moe_of(args, args->dense_layers);
	c->l.moe.norm_weight = args->mlp_norm; /* every layer has one, so it starts at layer 0 */
	c->l.moe.batch = c->l.dense.batch = most;
	bytes = args->num_experts ? moe_workspace(&c->l.moe) : 0;
	/* both may share this memory, because it holds only LL words, whose numbers never repeat */
	bytes += args->kv_lora_rank ? moe_workspace(&c->l.dense) : 0;
	c->l.moe.batch = c->l.dense.batch = args->kv.batch;
	c->l.moe.workspace = c->l.dense.workspace = ws;
	at += padded(bytes);
	if (args->kv_lora_rank) {
		c->l.mla.kv.batch = CHAIN_BATCH;
		CAIRN_TRY(cairn_cluster_mla_workspace(&c->l.mla, &bytes));
		c->l.mla.kv.batch = args->kv.batch;
		c->l.mla.workspace = ws + at;
		c->l.mla.workspace_bytes = bytes;
		at += padded(bytes);
		c->l.counters = (uint32_t *)(ws + at);
		at += padded(2 * sizeof(uint32_t));
	}
	for (int i = 0; i < 2; i++, at += x_bytes)
		c->l.x[i] = ws + at;
	bytes = 0;
	c->g.s = decode_step_grid(args);
	if (!args->kv_lora_rank)
		CAIRN_TRY(grid_plan(&c->g, ws + at, &bytes));
	c->bytes = at + bytes;
	return 0;
}

int decode_step_moe_workspace(const struct cairn_decode_step_args *args, size_t *bytes)
{
	struct chain c = {};

	CAIRN_TRY(plan(&c, args, NULL));
	*bytes = c.bytes;
	return 0;
}

static int run_mla(struct chain *c, const struct cairn_decode_step_args *args, int layer, void *stream)
{
	struct cairn_cluster_mla_args m = decode_step_mla(args, layer);

	m.x = c->l.x[0];
	m.out = c->l.x[1];
	m.workspace = c->l.mla.workspace;
	m.workspace_bytes = c->l.mla.workspace_bytes;
	m.cluster_size = c->l.mla.cluster_size;
	return cairn_cluster_mla(&m, stream);
}

/* Runs moe from x[1] to x[0]. */
static int run_moe(struct chain *c, const struct cairn_decode_step_args *args, int layer, void *stream)
{
	struct cairn_moe_args m = decode_step_has_experts(args, layer) ? decode_step_moe_of(args, layer) :
				  decode_step_dense_of(args, layer);

	m.x = c->l.x[1];
	m.out = c->l.x[0];
	m.workspace = c->l.moe.workspace;
	return moe_launch(&m, stream);
}

/*
 * Runs phases [first, end) as one launch. x NULL: rows of the embedding; out NULL: the last phase writes
 * logits.
 */
static int run_grid(struct chain *c, int first, int end, const void *x, void *out, void *stream)
{
	c->g.x = x;
	c->g.out = out;
	return grid_launch(&c->g, first, end, 1, stream);
}

static int run_embedding(struct chain *c, const struct cairn_decode_step_args *args, void *stream)
{
	struct cairn_embedding_args e = {};

	e.size = sizeof(e);
	e.out = c->l.x[0];
	e.table = args->embed;
	e.ids = args->ids;
	e.rows = args->kv.batch;
	e.dim = args->hidden;
	e.vocab = args->vocab;
	e.dtype = args->dtype;
	return cairn_embedding(&e, stream);
}

static int run_latent(struct chain *c, const struct cairn_decode_step_args *args, void *stream)
{
	CAIRN_TRY(run_embedding(c, args, stream));
	for (int layer = 0; layer < args->num_layers; layer++) {
		CAIRN_TRY(run_mla(c, args, layer, stream));
		CAIRN_TRY(run_moe(c, args, layer, stream));
	}
	return decode_step_head(args, &c->l.dense, c->l.x[0], stream);
}

/* Returns whether to run the persistent form. The threshold of AUTO was measured on an H200, see NOTES.md. */
static int is_persistent(const struct cairn_decode_step_args *args)
{
	if (args->form == CAIRN_DECODE_STEP_AUTO)
		return (int64_t)args->kv.batch * args->kv.max_len > 8192;
	return args->form == CAIRN_DECODE_STEP_PERSISTENT;
}

int decode_step_moe(const struct cairn_decode_step_args *args, void *stream)
{
	const int head = args->num_layers * GRID_KINDS;
	struct chain c = {};

	CAIRN_TRY(plan(&c, args, (char *)args->workspace));
	if (args->kv_lora_rank)
		return is_persistent(args) ? decode_step_latent(args, &c.l, stream) :
		       run_latent(&c, args, stream);
	for (int layer = 0; layer < args->num_layers; layer++) {
		const int phase = layer * GRID_KINDS;

		CAIRN_TRY(run_grid(&c, phase + GRID_QKV, phase + GRID_OUT + 1,
				   layer ? c.l.x[0] : NULL, c.l.x[1], stream));
		if (layer >= args->dense_layers)
			CAIRN_TRY(run_moe(&c, args, layer, stream));
		else
			CAIRN_TRY(run_grid(&c, phase + GRID_GATE_UP, phase + GRID_DOWN + 1,
					   c.l.x[1], c.l.x[0], stream));
	}
	return run_grid(&c, head, head + 1, c.l.x[0], NULL, stream);
}
