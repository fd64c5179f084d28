// SPDX-License-Identifier: Apache-2.0
/*
 * attn_remote_epoch - begins an epoch: shares, transport, and what a journal restores
 *
 * Blobs of all ends are collected before any is sent, because model workers connect to all attention workers.
 * All ends connect in the same order, first the lead's process and then the other model workers, so that no
 * two wait for each other.
 *
 * At the start of an epoch, one byte is put to the end of each of a worker's buffers, so that a worker whose
 * memory is smaller than its share fails then, and not during a pass.
 */
#include "serving/remote/attention/attn_remote_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/attention/attn_restore.h"
#include "serving/remote/remote_fault.h"

#define MAX_ATTEMPTS	4	/* to begin an epoch */
#define WEIGHTS_MS	60000	/* for the weights of a layer to arrive */

void attn_remote_close(struct cairn_attn_remote *r)
{
	attn_stream_end(r);
	if (r->t)
		r->table->close(r->t);
	r->t = NULL;
	for (int32_t i = 0; i < r->num_peers; i++)
		r->peers[i].c = NULL;
}

int attn_remote_open_peer(struct cairn_attn_remote *r, struct remote_peer *p, struct cairn_attn_blob *blob)
{
	const struct cairn_transport_table *t = r->table;
	const size_t lanes = (size_t)r->limits.lanes;

	*blob = (struct cairn_attn_blob){ 0 };
	if (r->by_stream) {
		CAIRN_TRY(t->channel_create(r->t, &p->c));
		CAIRN_TRY(t->channel_address(p->c, &blob->channel));
		return t->region_key(r->results_region, &blob->q);
	}
	CAIRN_TRY(t->region_register(r->t, p->q, lanes * p->sizes.q_bytes, CAIRN_MEMORY_HOST, &p->q_region));
	CAIRN_TRY(t->region_register(r->t, p->kv, 2 * lanes * p->sizes.kv_bytes, CAIRN_MEMORY_HOST,
				     &p->kv_region));
	CAIRN_TRY(t->region_register(r->t, p->result, lanes * p->sizes.result_bytes, CAIRN_MEMORY_HOST,
				     &p->result_region));
	CAIRN_TRY(t->channel_create(r->t, &p->c));
	CAIRN_TRY(t->channel_address(p->c, &blob->channel));
	CAIRN_TRY(t->region_key(p->result_region, &blob->q));
	if (p->a.stripes == 1)
		return 0;
	p->relay = (struct cairn_relay){
		.table = t, .c = p->c, .page = p->relay.page, .bytes = p->sizes.page_bytes,
		.await = attn_remote_await_page, .ctx = p,
	};
	CAIRN_TRY(t->region_register(r->t, p->relay.page, p->relay.bytes, CAIRN_MEMORY_HOST,
				     &p->relay.region));
	return t->region_key(p->relay.region, &blob->page);
}

/* Writes one byte to the last place of a buffer; the worker's end refuses it if its memory is smaller. */
static int probe(struct cairn_attn_remote *r, struct remote_peer *p, struct cairn_region *from,
		 struct cairn_remote *to, size_t bytes, const char *what)
{
	const struct cairn_put put = {
		.local = r->by_stream ? r->results_region : from, .remote = to, .remote_offset = bytes - 1,
		.bytes = 1, .slot = CAIRN_NO_SIGNAL,
	};
	int ret = r->table->put(p->c, &put, PUT_MS);

	if (!ret)
		ret = r->table->flush(p->c, PUT_MS);
	return ret == -EINVAL || ret == -EACCES ?
	       cairn_error(EINVAL, "its memory for %s has not the %zu bytes of its share", what, bytes) : ret;
}

int attn_remote_connect_peer(struct cairn_attn_remote *r, struct remote_peer *p,
			     const struct cairn_attn_blob *theirs)
{
	CAIRN_TRY(r->table->remote_import(r->t, &theirs->q, &p->to_q));
	CAIRN_TRY(r->table->remote_import(r->t, &theirs->kv, &p->to_kv));
	if (p->sizes.weight_bytes)
		CAIRN_TRY(r->table->remote_import(r->t, &theirs->weights, &p->to_weights));
	if (p->relay.bytes)
		CAIRN_TRY(r->table->remote_import(r->t, &theirs->page, &p->relay.to));
	return r->table->channel_connect(p->c, &theirs->channel, CAIRN_EPOCH_CONNECT_MS);
}

static int assign(struct cairn_attn_remote *r, int32_t i)
{
	struct remote_peer *p = &r->peers[i];

	if (FAULT(SPARE_UNASSIGNED) && r->stats.restarts)
		return 0;
	p->a.epoch = r->epoch;
	p->a.rank = (uint32_t)i + 1;
	p->a.transport = r->transport;
	p->a.models = (uint32_t)r->num_models;
	return cairn_lead_send(r->lead, i + 1, CAIRN_CONTROL_ASSIGN, &p->a, sizeof(p->a), p->scales,
			       p->a.num_bytes);
}

/* Exchanges the blobs of all ends, and connects this one. */
static int introduce(struct cairn_attn_remote *r, struct cairn_attn_blob *mine,
		     struct cairn_attn_blob *theirs)
{
	for (int32_t i = 0; i < r->num_peers; i++)
		CAIRN_TRY(cairn_lead_blob(r->lead, i + 1, &theirs[i], sizeof(*theirs)));
	CAIRN_TRY(attn_models_introduce(r, mine, theirs));
	for (int32_t i = 0; i < r->num_peers; i++) {
		const struct cairn_control_blob head = {
			.to = i + 1, .num_bytes = sizeof(*mine), .epoch = r->epoch,
		};

		CAIRN_TRY(cairn_lead_send(r->lead, i + 1, CAIRN_CONTROL_BLOB, &head, sizeof(head), &mine[i],
					  sizeof(*mine)));
	}
	for (int32_t i = 0; i < r->num_peers; i++)
		CAIRN_TRY(attn_remote_blame(r, i, attn_remote_connect_peer(r, &r->peers[i], &theirs[i])));
	return attn_models_connect(r);
}

static int probe_peer(struct cairn_attn_remote *r, int32_t i)
{
	const size_t lanes = (size_t)r->limits.lanes;
	struct remote_peer *p = &r->peers[i];
	int ret = probe(r, p, p->q_region, p->to_q, lanes * p->sizes.q_bytes, "queries");

	if (!ret)
		ret = probe(r, p, p->kv_region, p->to_kv, 2 * lanes * p->sizes.kv_bytes, "keys and values");
	if (!ret && p->relay.bytes)
		ret = probe(r, p, p->relay.region, p->relay.to, p->relay.bytes, "a page");
	return attn_remote_blame(r, i, ret);
}

/* Puts the weights of one layer into a worker's memory. They lie in `from`. */
static int put_weights(struct cairn_attn_remote *r, struct remote_peer *p, struct cairn_region *from,
		       int32_t layer)
{
	const size_t bytes = p->sizes.weight_bytes;
	const struct cairn_put put = {
		.local = from, .remote = p->to_weights, .remote_offset = (size_t)layer * bytes,
		.bytes = bytes, .slot = CAIRN_NO_SIGNAL,
	};
	int ret = r->table->put(p->c, &put, PUT_MS);

	if (!ret)
		ret = r->table->flush(p->c, WEIGHTS_MS);
	return ret == -EINVAL || ret == -EACCES ?
	       cairn_error(EINVAL, "its memory for weights has not the %zu bytes of %d layers",
			   (size_t)p->a.num_layers * bytes, p->a.num_layers) : ret;
}

/* Sends the weights of latent attention to all workers, layer by layer. */
static int send_weights(struct cairn_attn_remote *r)
{
	const struct cairn_impl *impl = r->m->impl;
	const size_t bytes = r->peers[0].sizes.weight_bytes;
	struct cairn_region *region = NULL;
	void *stream = NULL;
	char *room = bytes ? malloc(bytes) : NULL;
	int ret = 0;

	if (bytes && !room)
		ret = cairn_error(ENOMEM, "attn_remote: no memory for the weights of a layer");
	if (bytes && !ret)
		ret = CAIRN_TABLE(impl, stream_create, &stream);
	if (bytes && !ret)		/* host memory may be the source of any transport's host puts */
		ret = r->table->region_register(r->t, room, bytes, CAIRN_MEMORY_HOST, &region);
	for (int32_t layer = 0; bytes && layer < r->peers[0].a.num_layers && !ret; layer++) {
		ret = CAIRN_TABLE(impl, mem_copy, room, cairn_model_weight(r->m, FAULT(WEIGHTS_OF_LAYER_0) ?
									   0 : layer, CAIRN_W_KV_B),
				  bytes, CAIRN_COPY_TO_HOST, stream);
		if (!ret)
			ret = CAIRN_TABLE(impl, stream_sync, stream);
		for (int32_t i = 0; i < r->num_peers && !ret; i++)
			ret = attn_remote_blame(r, i, put_weights(r, &r->peers[i], region, layer));
	}
	if (region)
		r->table->region_release(region);
	if (stream)
		impl->stream_destroy(stream);
	free(room);
	return ret;
}

static int begin_epoch(struct cairn_attn_remote *r)
{
	char address[CAIRN_LEAD_ADDRESS];
	const struct cairn_transport_options o = {
		.size = sizeof(o), .device = strcmp(r->table->name, "tcp") ? NULL : address,
		.gpu = r->by_stream ? CAIRN_GPU_OF_THREAD : -1,
	};
	struct cairn_attn_blob *mine = calloc(2 * (size_t)r->num_peers, sizeof(*mine));
	uint32_t epoch = 0;
	int ret = mine ? 0 : cairn_error(ENOMEM, "attn_remote: no memory");

	attn_remote_close(r);
	if (!ret)
		ret = cairn_lead_gather(r->lead, &epoch);
	r->epoch = FAULT(EPOCH_KEPT) ? 1 : epoch;
	r->pass = r->turn = 0;
	for (int32_t i = 0; i < CAIRN_MAX_LANES; i++)
		r->lanes[i].layers = r->lanes[i].next_layers = 0;
	cairn_lead_address(r->lead, 0, address);
	if (!ret)
		ret = r->table->open(&o, &r->t);
	if (!ret)
		ret = attn_stream_begin(r);
	for (int32_t i = 0; i < r->num_peers && !ret; i++)
		ret = attn_remote_open_peer(r, &r->peers[i], &mine[i]);
	if (!ret)
		ret = attn_models_open(r);
	for (int32_t i = 0; i < r->num_peers && !ret; i++)
		ret = assign(r, i);
	if (!ret)
		ret = attn_models_assign(r);
	if (!ret)
		ret = introduce(r, mine, mine + r->num_peers);
	for (int32_t i = 0; i < r->num_peers && !ret; i++)
		ret = cairn_lead_ready(r->lead, i + 1);
	for (int32_t i = 1; i < r->num_models && !ret; i++)
		ret = cairn_lead_ready(r->lead, cairn_lead_model_rank(r->lead, i));
	for (int32_t i = 0; i < r->num_peers && !ret; i++)
		ret = probe_peer(r, i);
	if (!ret)
		ret = send_weights(r);
	if (!ret)
		ret = attn_stream_watch(r);
	free(mine);
	if (ret)
		attn_remote_close(r);
	return ret;
}

/* Gives the workers of a new epoch the keys and values of the journal. */
static int restore(struct cairn_attn_remote *r)
{
	const int64_t begin = cairn_clock_ns();
	int64_t bytes = 0;
	int ret;

	if (!r->journal)
		return 0;
	for (int32_t i = 0; i < r->limits.lanes; i++)	/* these passes will begin again */
		cairn_journal_drop(r->journal, i);
	CAIRN_TRY(cairn_journal_drain(r->journal));
	r->is_restoring = 1;
	ret = attn_restore(r, r->journal, r->m, &r->limits, &bytes);
	r->is_restoring = 0;
	r->stats.restored_bytes += bytes;
	r->stats.restore_ns += cairn_clock_ns() - begin;
	return ret;
}

int attn_remote_epoch(struct cairn_attn_remote *r)
{
	int ret, attempt = 0;

	do {
		ret = begin_epoch(r);
		if (!ret)
			ret = restore(r);
	} while (ret == -ECONNRESET && ++attempt < MAX_ATTEMPTS);
	return ret;
}
