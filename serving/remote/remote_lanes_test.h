/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_lanes_test - the passes of several lanes take turns, layer by layer, against a local worker
 *
 * The local worker carries the passes out one after the other. The remote ones are in different layers of
 * several passes at a time, and must give the same bits, although a plan may copy pages that the plan before
 * still writes, and write pages that the plan before still reads. Include remote_rig_test.h first.
 *
 * With two model workers, lane 1 has a link of its own, whose rows overtake those of the plan before.
 */
#ifndef CAIRN_REMOTE_LANES_TEST_H
#define CAIRN_REMOTE_LANES_TEST_H

#include "serving/remote/models/model_blob.h"

/* A pass of a lane: the rows of all layers, and the local worker's results. */
struct rig_flight {
	int is_active;
	int32_t layer, rows, padded;
	uint16_t *qkv, *want;		/* [layers, ...] */
	float *lse;
};

/* Numbers of the rows of a layer. */
static inline size_t rig_all(int32_t columns)
{
	return (size_t)(RIG_ROWS + RIG_PADDING) * (size_t)columns;
}

/* Numbers of the results of a layer, of all stripes; every head has as many of these. */
static inline size_t rig_results(const struct rig *r, int32_t columns)
{
	return (size_t)(r->shape.all ? 1 : r->stripes[0]) * rig_all(columns);
}

/* Plans a pass, and carries it out locally. */
static inline void rig_record(struct cairn_test *t, struct rig *r, struct rig_flight *f)
{
	struct cairn_attn_past past[RIG_WORKERS];
	const size_t qkv = rig_all(r->m.dims[CAIRN_D_QKV]), q = rig_results(r, r->m.dims[CAIRN_D_ATTN]);
	const size_t heads = rig_results(r, r->m.config.num_attention_heads);
	struct cairn_batch b;
	int moved;

	rig_plan(t, r);
	*f = (struct rig_flight){
		.is_active = 1, .rows = r->p.num_rows, .qkv = f->qkv, .want = f->want, .lse = f->lse,
		.padded = r->p.num_rows + (int32_t)(cairn_rand(t) % (RIG_PADDING + 1)),
	};
	for (int32_t i = 0; i < r->p.num_moves; i++)
		rig_copy(r, r->moves[i][0], r->moves[i][1]);
	b = (struct cairn_batch){
		.positions = r->positions, .qo_indptr = r->qo_indptr, .kv_indptr = r->kv_indptr,
		.kv_indices = r->kv_indices, .kv_last_page_len = r->last_page_len, .num_rows = r->p.num_rows,
		.batch = r->p.batch, .max_qo_len = RIG_ROWS, .max_kv_len = RIG_CONTEXT,
	};
	rig_past(r, past, r->stripes[0]);
	EXPECT(t, cairn_attn_local_begin(r->locals[0], &b, past, r->stream, &moved) == 0);
	for (int32_t layer = 0; layer < r->shape.layers; layer++) {
		struct cairn_attn_rows rows = rig_rows(t, r, layer, f->padded);

		memcpy(f->qkv + (size_t)layer * qkv, r->qkv, qkv * sizeof(*f->qkv));
		rows.num_rows = f->rows;
		EXPECT(t, rig_layer(cairn_attn_local_link(r->locals[0]), &rows, r->want, r->want_lse,
				    r->stream) == 0 && rig_wait(r, r->stream) == 0);
		memcpy(f->want + (size_t)layer * q, r->want, q * sizeof(*f->want));
		memcpy(f->lse + (size_t)layer * heads, r->want_lse, heads * sizeof(*f->lse));
	}
}

static inline int rig_send(struct rig *r, const struct rig_flight *f, const struct cairn_attn_link *link,
			   void *stream)
{
	uint16_t *qkv = f->qkv + (size_t)f->layer * rig_all(r->m.dims[CAIRN_D_QKV]);
	const struct cairn_attn_rows rows = rig_view(r, qkv, f->layer, f->padded);

	CAIRN_TRY(link->send_q(link->ctx, &rows, stream));
	return link->send_kv(link->ctx, &rows, stream);
}

/* Takes the results of a layer. Returns how many numbers differ, or -errno. */
static inline int64_t rig_take(struct rig *r, struct rig_flight *f, const struct cairn_attn_link *link,
			       void *stream)
{
	const size_t q = rig_results(r, r->m.dims[CAIRN_D_ATTN]);
	const size_t heads = rig_results(r, r->m.config.num_attention_heads);

	memset(r->got, 0x7f, q * sizeof(*r->got));
	CAIRN_TRY(link->receive(link->ctx, f->layer, r->got, link->previous ? r->got_lse : NULL, stream));
	CAIRN_TRY(rig_wait(r, stream));
	memcpy(r->want, f->want + (size_t)f->layer * q, q * sizeof(*f->want));
	memcpy(r->want_lse, f->lse + (size_t)f->layer * heads, heads * sizeof(*f->lse));
	f->layer++;
	return rig_compare(r, f->rows, f->padded);
}

/* A turn of a lane: takes a result, and sends the next layer, of the next pass if need be. */
static inline int64_t rig_turn(struct cairn_test *t, struct rig *r, struct rig_flight *f, int32_t lane)
{
	const struct cairn_attn_link *link = cairn_attn_remote_link(r->remote, lane);
	int64_t bad = f->is_active ? rig_take(r, f, link, r->streams[lane]) : 0;

	if (!bad && (!f->is_active || f->layer == r->shape.layers)) {
		rig_record(t, r, f);
		bad = cairn_attn_remote_begin(r->remote, lane, &r->p);
	}
	return bad ? bad : rig_send(r, f, link, r->streams[lane]);
}

/* Takes so many turns, then the results under way. Returns as rig_passes(). */
static inline int64_t rig_turns(struct cairn_test *t, struct rig *r, int num)
{
	const int32_t lanes = r->shape.lanes;
	struct rig_flight f[CAIRN_MAX_LANES] = { 0 };
	int64_t bad = 0;

	for (int32_t i = 0; i < lanes; i++) {
		const size_t layers = (size_t)r->shape.layers;

		f[i].qkv = calloc(layers * rig_all(r->m.dims[CAIRN_D_QKV]), sizeof(*f->qkv));
		f[i].want = calloc(layers * rig_results(r, r->m.dims[CAIRN_D_ATTN]), sizeof(*f->want));
		f[i].lse = calloc(layers * rig_results(r, r->m.config.num_attention_heads),
				  sizeof(*f->lse));
	}
	for (int i = 0; i < num && !bad; i++)
		bad = rig_turn(t, r, &f[i % lanes], i % lanes);
	for (int i = num; i < num + lanes && !bad; i++)
		bad = rig_take(r, &f[i % lanes], cairn_attn_remote_link(r->remote, i % lanes),
			       r->streams[i % lanes]);
	for (int32_t i = 0; i < lanes; i++) {
		rig_wait(r, r->streams[i]);	/* after an error, puts may still be under way */
		free(f[i].qkv);
		free(f[i].want);
		free(f[i].lse);
	}
	return bad;
}

/* ---- two model workers ---- */

/* The second one, which joins in a thread and then is a link that the test uses. */
struct rig_model {
	struct rig *r;
	pthread_t thread;
	struct rig_guest g;
	struct cairn_control_assign a;
	struct cairn_attn_remote *remote;
	atomic_int stop;
	int ret;
};

static inline void *rig_join_model(void *arg)
{
	struct {
		struct cairn_control_blob head;
		struct cairn_model_blob b;
	} *said = calloc(1, sizeof(*said));
	struct cairn_control_join j = rig_join();
	struct cairn_channel_message got;
	struct cairn_control_epoch ready;
	struct rig_model *m = arg;

	j.role = CAIRN_MEMBER_MODEL;
	m->ret = rig_knock(m->r, &m->g);
	if (!m->ret)
		m->ret = rig_say(&m->g, CAIRN_CONTROL_JOIN, &j, sizeof(j), CAIRN_CONTROL_ASSIGN, &got, 60000);
	if (!m->ret) {
		memcpy(&m->a, got.data, sizeof(m->a));
		m->ret = cairn_attn_remote_follow(&m->remote, &m->r->m, &m->a, "127.0.0.1", &m->stop);
	}
	said->head = (struct cairn_control_blob){
		.from = (int32_t)m->a.rank, .num_bytes = sizeof(said->b), .epoch = m->a.epoch,
	};
	if (!m->ret)
		m->ret = cairn_attn_remote_blob(m->remote, &said->b);
	if (!m->ret)
		m->ret = rig_say(&m->g, CAIRN_CONTROL_BLOB, said, sizeof(*said), CAIRN_CONTROL_BLOB, &got,
				 60000);
	if (!m->ret) {
		memcpy(said, got.data, sizeof(*said));
		m->ret = cairn_attn_remote_connect(m->remote, &said->b);
	}
	ready = (struct cairn_control_epoch){ .epoch = m->a.epoch };
	if (!m->ret)
		m->ret = cairn_channel_send(m->g.c, CAIRN_CONTROL_READY, &ready, sizeof(ready), 5000);
	free(said);
	return NULL;
}

static inline void rig_add_model(struct rig *r, void *model)
{
	struct rig_model *m = model;

	m->r = r;
	pthread_create(&m->thread, NULL, rig_join_model, m);
}

/* Begins the lane's next pass if its last one has ended, at both ends. Sets *later then. */
static inline int rig_go_on(struct cairn_test *t, struct rig *r, struct rig_model *m, struct rig_flight *f,
			    int32_t lane, int32_t *later)
{
	if (f->is_active && f->layer < r->shape.layers)
		return 0;
	rig_record(t, r, f);
	*later = lane;
	CAIRN_TRY(cairn_attn_remote_begin(r->remote, lane, &r->p));
	return lane ? cairn_attn_remote_begin(m->remote, lane, &r->p) : 0;
}

/*
 * A round: both lanes send a layer, the one with the later plan first, and then take the results, the earlier
 * plan's first. behind: the later plan waits for the next round.
 */
static inline int64_t rig_round(struct cairn_test *t, struct rig *r, struct rig_model *m,
				struct rig_flight f[2], int32_t *later, int behind)
{
	const struct cairn_attn_link *links[] = { cairn_attn_remote_link(r->remote, 0),
						  cairn_attn_remote_link(m->remote, 1) };
	const int32_t first = !*later;
	int64_t bad = 0;

	for (int32_t i = 0; i < 2 && !bad; i++)
		bad = rig_go_on(t, r, m, &f[i ^ first], i ^ first, later);
	for (int32_t i = !behind; i >= 0 && !bad; i--) {
		bad = rig_send(r, &f[i ^ !*later], links[i ^ !*later], r->streams[i ^ !*later]);
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);	/* the worker could take it */
	}
	for (int32_t i = 0; i < 2 - behind && !bad; i++)
		bad = rig_take(r, &f[i ^ !*later], links[i ^ !*later], r->streams[i ^ !*later]);
	return bad;
}

/* Two model workers and as many attention workers. Returns as rig_passes(). */
static inline int64_t rig_models(struct cairn_test *t, struct rig *r, int rounds)
{
	struct rig_model m = { 0 };
	const struct rig_shape shape = {
		.workers = 2, .kv_heads = 2, .group = 1, .layers = 3, .lanes = 2, .models = 2,
		.add_model = rig_add_model, .model = &m,
	};
	struct rig_flight f[2] = { 0 };
	int64_t bad = rig_open(t, r, &shape);
	int32_t later = 1;

	pthread_join(m.thread, NULL);
	for (int i = 0; i < 2 && !bad; i++) {
		const size_t layers = (size_t)shape.layers;

		f[i].qkv = calloc(layers * rig_all(r->m.dims[CAIRN_D_QKV]), sizeof(*f->qkv));
		f[i].want = calloc(layers * rig_results(r, r->m.dims[CAIRN_D_ATTN]), sizeof(*f->want));
		f[i].lse = calloc(layers * rig_results(r, r->m.config.num_attention_heads),
				  sizeof(*f->lse));
	}
	for (int k = 0; k < rounds && !bad; k++)
		bad = rig_round(t, r, &m, f, &later, k % 7 == 1);
	for (int i = 0; i < 2; i++) {
		free(f[i].qkv);
		free(f[i].want);
		free(f[i].lse);
	}
	atomic_store(&m.stop, 1);
	cairn_attn_remote_destroy(m.remote);
	rig_close(r);
	cairn_channel_close(m.g.c);
	return bad;
}

#endif
