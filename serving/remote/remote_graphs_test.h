/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_graphs_test - passes whose link is captured once and replayed, against a local worker
 *
 * The passes have one row for each request, so attention workers replay graphs, too. Include
 * remote_lanes_test.h first.
 */
#ifndef CAIRN_REMOTE_GRAPHS_TEST_H
#define CAIRN_REMOTE_GRAPHS_TEST_H

/* A lane: the rows of a pass, where graphs read them, and the results, where they write them. */
struct rig_replay {
	struct rig_flight f;
	uint16_t *got;			/* [layers, ...], as f.want */
	float *got_lse;
	void *graphs[RIG_REQUESTS + RIG_PADDING + 1][4];	/* by rows and side */
	int num_replayed;		/* passes of which the workers say so */
};

static inline int rig_enqueue_layers(struct rig *r, struct rig_replay *x, int32_t lane)
{
	const struct cairn_attn_link *link = cairn_attn_remote_link(r->remote, lane);
	const size_t q = rig_results(r, r->m.dims[CAIRN_D_ATTN]);
	const size_t heads = rig_results(r, r->m.config.num_attention_heads);

	for (int32_t layer = 0; layer < r->shape.layers; layer++) {
		const size_t i = (size_t)layer;

		x->f.layer = layer;
		CAIRN_TRY(rig_send(r, &x->f, link, r->streams[lane]));
		CAIRN_TRY(link->receive(link->ctx, layer, x->got + i * q, x->got_lse + i * heads,
					r->streams[lane]));
	}
	return 0;
}

/* Runs a pass of a lane as a graph. Returns as rig_pass(). */
static inline int64_t rig_replay(struct cairn_test *t, struct rig *r, struct rig_replay *x, int32_t lane)
{
	const size_t q = rig_results(r, r->m.dims[CAIRN_D_ATTN]);
	const size_t heads = rig_results(r, r->m.config.num_attention_heads);
	void *stream = r->streams[lane], **graph;
	int64_t bad = 0;

	rig_record(t, r, &x->f);
	graph = &x->graphs[x->f.padded][cairn_attn_remote_side(r->remote, lane)];
	memset(x->got, 0x7f, (size_t)r->shape.layers * q * sizeof(*x->got));
	CAIRN_TRY(cairn_attn_remote_begin(r->remote, lane, &r->p));
	CAIRN_TRY(cairn_attn_remote_number(r->remote, lane, x->f.padded, stream));
	if (!*graph) {
		CAIRN_TRY(r->impl.graph_begin(stream));
		bad = rig_enqueue_layers(r, x, lane);
		CAIRN_TRY(r->impl.graph_end(stream, graph));
	}
	CAIRN_TRY((int)bad);
	CAIRN_TRY(r->impl.graph_launch(*graph, stream));
	CAIRN_TRY(cairn_attn_remote_finish(r->remote, lane, stream));
	x->num_replayed += cairn_attn_remote_replayed(r->remote, lane);
	for (size_t i = 0; i < (size_t)r->shape.layers; i++) {
		memcpy(r->got, x->got + i * q, q * sizeof(*r->got));
		memcpy(r->got_lse, x->got_lse + i * heads, heads * sizeof(*r->got_lse));
		memcpy(r->want, x->f.want + i * q, q * sizeof(*r->want));
		memcpy(r->want_lse, x->f.lse + i * heads, heads * sizeof(*r->want_lse));
		bad += rig_compare(r, x->f.rows, x->f.padded);
	}
	return bad;
}

/* Runs so many passes, of all lanes in turn. Returns as rig_passes(), or 1 if no worker has replayed any. */
static inline int64_t rig_replays(struct cairn_test *t, struct rig *r, int num)
{
	const size_t layers = (size_t)r->shape.layers;
	struct rig_replay x[CAIRN_MAX_LANES] = { 0 };
	int64_t bad = 0;

	for (int32_t i = 0; i < r->shape.lanes; i++) {
		const size_t q = layers * rig_results(r, r->m.dims[CAIRN_D_ATTN]);
		const size_t heads = layers * rig_results(r, r->m.config.num_attention_heads);

		x[i].f.qkv = calloc(layers * rig_all(r->m.dims[CAIRN_D_QKV]), sizeof(*x->f.qkv));
		x[i].f.want = calloc(2 * q, sizeof(*x->got));
		x[i].f.lse = calloc(2 * heads, sizeof(*x->got_lse));
		x[i].got = x[i].f.want + q;
		x[i].got_lse = x[i].f.lse + heads;
	}
	for (int i = 0; i < num && !bad; i++)
		bad = rig_replay(t, r, &x[i % r->shape.lanes], i % r->shape.lanes);
	for (int32_t i = 0; i < r->shape.lanes; i++) {
		bad |= !bad && !x[i].num_replayed;
		rig_wait(r, r->streams[i]);	/* after an error, puts may still be under way */
		for (size_t k = 0; k < 4 * ARRAY_SIZE(x[i].graphs); k++)
			if (x[i].graphs[k / 4][k % 4])
				r->impl.graph_destroy(x[i].graphs[k / 4][k % 4]);
		free(x[i].f.qkv);
		free(x[i].f.want);
		free(x[i].f.lse);
	}
	return bad;
}

#endif
