// SPDX-License-Identifier: Apache-2.0
/*
 * attn_models - several model workers: the lead's end, and that of a model worker of its own process
 *
 *   the lead      ASSIGN, blobs, PLAN to attention workers | RUN --> model worker i
 *   model worker  Q, K, V of lane i --> attention workers  | result --> the lead's memory
 *
 * A model worker makes its shares by itself, from the same model and the limits in its ASSIGN, and so has
 * buffers and offsets of its own lane as the lead has those of the others.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/remote/attention/attn_remote_impl.h"
#include "serving/remote/models/model_blob.h"

#define SLOT_RESULT	0

/* ---- the lead's end ---- */

int attn_models_open(struct cairn_attn_remote *r)
{
	for (int32_t i = 1; i < r->num_models; i++) {
		r->models[i].pass = 0;
		CAIRN_TRY(r->table->channel_create(r->t, &r->models[i].c));
	}
	return 0;
}

int attn_models_assign(struct cairn_attn_remote *r)
{
	for (int32_t i = 1; i < r->num_models; i++) {
		struct cairn_control_assign a = r->peers[0].a;

		a.rank = (uint32_t)cairn_lead_model_rank(r->lead, i);
		a.lane = (uint32_t)i;
		a.workers = (uint32_t)r->num_peers;
		a.repeatable = r->limits.repeatable != 0;
		a.num_bytes = 0;		/* it has the scales of its model */
		CAIRN_TRY(cairn_lead_send(r->lead, (int32_t)a.rank, CAIRN_CONTROL_ASSIGN, &a, sizeof(a), NULL,
					  0));
	}
	return 0;
}

static int introduce_model(struct cairn_attn_remote *r, int32_t number, struct cairn_attn_blob *mine,
			   const struct cairn_attn_blob *theirs, struct cairn_model_blob *b)
{
	const int32_t rank = cairn_lead_model_rank(r->lead, number);
	const struct cairn_control_blob head = { .to = rank, .num_bytes = sizeof(*b), .epoch = r->epoch };
	struct remote_model *m = &r->models[number];
	struct cairn_region *region;

	CAIRN_TRY(cairn_lead_blob(r->lead, rank, b, sizeof(*b)));
	CAIRN_TRY(r->table->region_register(r->t, m->result, r->result_bytes, CAIRN_MEMORY_HOST, &region));
	m->address = b->channel;
	for (int32_t i = 0; i < r->num_peers; i++) {
		mine[i].channels[number - 1] = b->of[i].channel;
		mine[i].results[number - 1] = b->of[i].q;
		b->of[i].channel = theirs[i].channels[number - 1];
		b->of[i].q = theirs[i].q;
		b->of[i].kv = theirs[i].kv;
	}
	CAIRN_TRY(r->table->channel_address(m->c, &b->channel));
	CAIRN_TRY(r->table->region_key(region, &b->result));
	return cairn_lead_send(r->lead, rank, CAIRN_CONTROL_BLOB, &head, sizeof(head), b, sizeof(*b));
}

int attn_models_introduce(struct cairn_attn_remote *r, struct cairn_attn_blob *mine,
			  const struct cairn_attn_blob *theirs)
{
	struct cairn_model_blob *b = r->num_models > 1 ? malloc(sizeof(*b)) : NULL;
	int ret = b || r->num_models < 2 ? 0 : cairn_error(ENOMEM, "attn_remote: no memory");

	for (int32_t i = 1; i < r->num_models && !ret; i++)
		ret = introduce_model(r, i, mine, theirs, b);
	free(b);
	return ret;
}

/* Tells the lead that a model worker is lost, unless the call has succeeded. */
static int blame(struct cairn_attn_remote *r, int32_t number, int ret)
{
	return ret ? cairn_lead_report(r->lead, cairn_lead_model_rank(r->lead, number)) : 0;
}

int attn_models_connect(struct cairn_attn_remote *r)
{
	for (int32_t i = 1; i < r->num_models; i++)
		CAIRN_TRY(blame(r, i, r->table->channel_connect(r->models[i].c, &r->models[i].address,
								CAIRN_EPOCH_CONNECT_MS)));
	return 0;
}

int cairn_attn_remote_run(struct cairn_attn_remote *r, int32_t number, const void *plan, size_t bytes)
{
	const struct cairn_control_run head = { .pass = ++r->models[number].pass,
						.num_bytes = (uint32_t)bytes };

	if (bytes > CAIRN_CHANNEL_MAX - sizeof(head))
		return cairn_error(EOPNOTSUPP, "model_workers: a pass of %zu bytes does not fit a message of "
				   "%zu", bytes, CAIRN_CHANNEL_MAX);
	return cairn_lead_send(r->lead, cairn_lead_model_rank(r->lead, number), CAIRN_CONTROL_RUN, &head,
			       sizeof(head), plan, bytes);
}

/* Checks the tokens of a draw or a scored row. The numbers have no alignment in the result. */
static int check_tokens(const char *at, int32_t num, int32_t vocab, const char *what, int32_t row)
{
	for (int32_t i = 0; i < num; i++) {
		int32_t id;

		memcpy(&id, at + (size_t)i * sizeof(id), sizeof(id));
		if ((id < 0 || id >= vocab) && !FAULT(TOKENS_UNCHECKED))
			return cairn_error(EIO, "has sent token %d of a vocabulary of %d in %s %d", id,
					   vocab, what, row);
	}
	return 0;
}

int cairn_attn_result_check(const struct cairn_attn_result *r, const struct cairn_attn_wants *w)
{
	const char *tokens = (const char *)(r + 1), *top;

	if (r->num_tokens != w->num_tokens || r->num_scored != w->num_scored || r->k < 0 ||
	    r->k > CAIRN_LOGPROBS_MAX)
		return cairn_error(EIO, "has drawn %d tokens and scored %d, with %d others, instead of %d "
				   "and %d", r->num_tokens, r->num_scored, r->k, w->num_tokens,
				   w->num_scored);
	top = tokens + (size_t)w->num_tokens * sizeof(int32_t) +
	      (size_t)(w->num_tokens + w->num_scored) * sizeof(float);
	for (int32_t i = 0; i < w->num_tokens; i++)
		CAIRN_TRY(check_tokens(tokens + (size_t)i * sizeof(int32_t), 1, w->vocab, "draw", i));
	for (int32_t i = 0; i < w->num_tokens + w->num_scored; i++) {
		const int is_draw = i < w->num_tokens;

		if (is_draw && !w->wanted[w->rows[i]] && !w->late[w->rows[i]])
			continue;
		CAIRN_TRY(check_tokens(top + (size_t)i * (size_t)r->k * sizeof(int32_t), r->k, w->vocab,
				       is_draw ? "the list of draw" : "the list of scored row",
				       is_draw ? i : i - w->num_tokens));
	}
	return 0;
}

int cairn_attn_remote_result(struct cairn_attn_remote *r, int32_t number, int wait_ms,
			     const struct cairn_attn_wants *wants, const struct cairn_attn_result **result)
{
	struct remote_model *m = &r->models[number];
	int ret;

	if (cairn_attn_remote_lost(r))
		return cairn_lead_why(r->lead);
	ret = r->table->wait(m->c, SLOT_RESULT, cairn_share_number(r->epoch, m->pass), (uint32_t)wait_ms,
			     NULL);
	if (ret == -ETIMEDOUT)
		return ret;
	/* The worker may put to its result again at any time, so what is checked and used is a copy. */
	memcpy(m->copy, m->result, r->result_bytes);
	*result = (const struct cairn_attn_result *)(const void *)(FAULT(RESULT_IN_PLACE) ? m->result :
								   m->copy);
	if (!ret && (*result)->pass != m->pass)
		ret = cairn_error(EIO, "has sent the result of pass %llu, not %llu",
				  (unsigned long long)(*result)->pass, (unsigned long long)m->pass);
	if (!ret)
		ret = cairn_attn_result_check(*result, wants);
	return blame(r, number, ret);
}

int cairn_attn_remote_overdue(struct cairn_attn_remote *r, int32_t number)
{
	return blame(r, number, cairn_error(ETIMEDOUT, "does not end a pass in time"));
}

/* ---- the end of a model worker ---- */

int cairn_attn_remote_follow(struct cairn_attn_remote **out, const struct cairn_model *model,
			     const struct cairn_control_assign *a, const char *address,
			     const atomic_int *stop)
{
	const struct cairn_remote_limits limits = cairn_share_limits(a);
	struct cairn_attn_remote *r;

	CAIRN_TRY(attn_remote_make(&r, NULL, model, &limits, a->previous, (int32_t)a->workers));
	r->stop = stop;
	r->address = address;
	r->epoch = a->epoch;
	r->models[0].result = calloc(1, r->result_bytes);
	if (!r->models[0].result) {
		cairn_attn_remote_destroy(r);
		return cairn_error(ENOMEM, "no memory for results");
	}
	*out = r;
	return 0;
}

int cairn_attn_remote_blob(struct cairn_attn_remote *r, struct cairn_model_blob *mine)
{
	const struct cairn_transport_options o = { .size = sizeof(o), .device = r->address, .gpu = -1 };

	CAIRN_TRY(r->table->open(&o, &r->t));
	for (int32_t i = 0; i < r->num_peers; i++) {
		struct cairn_attn_blob b;

		CAIRN_TRY(attn_remote_open_peer(r, &r->peers[i], &b));
		mine->of[i].channel = b.channel;
		mine->of[i].q = b.q;
	}
	CAIRN_TRY(r->table->channel_create(r->t, &r->models[0].c));
	CAIRN_TRY(r->table->region_register(r->t, r->models[0].result, r->result_bytes, CAIRN_MEMORY_HOST,
					    &r->models[0].region));
	return r->table->channel_address(r->models[0].c, &mine->channel);
}

int cairn_attn_remote_connect(struct cairn_attn_remote *r, const struct cairn_model_blob *theirs)
{
	for (int32_t i = 0; i < r->num_peers; i++) {
		struct cairn_attn_blob b = { .channel = theirs->of[i].channel, .q = theirs->of[i].q,
					     .kv = theirs->of[i].kv };

		CAIRN_TRY(attn_remote_connect_peer(r, &r->peers[i], &b));
	}
	CAIRN_TRY(r->table->remote_import(r->t, &theirs->result, &r->models[0].to));
	return r->table->channel_connect(r->models[0].c, &theirs->channel, CAIRN_EPOCH_CONNECT_MS);
}

/* The lead gives the next pass after it has read this result, so the buffer is free again by then. */
int cairn_attn_remote_answer(struct cairn_attn_remote *r, const struct cairn_attn_result *result,
			     size_t bytes)
{
	const struct cairn_put put = {
		.local = r->models[0].region, .remote = r->models[0].to, .bytes = bytes,
		.value = cairn_share_number(r->epoch, result->pass), .slot = SLOT_RESULT,
	};

	memcpy(r->models[0].result, result, bytes);
	return r->table->put(r->models[0].c, &put, PUT_MS);
}
