// SPDX-License-Identifier: Apache-2.0
/* attn_worker - the main thread of an attention worker: joins the lead and serves it (attn_worker.h) */
#include "serving/remote/attention/attn_worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/remote/attention/attn_epoch.h"

#define SEND_MS		CAIRN_MEMBER_SEND_MS
#define LOOK_MS		5		/* while an epoch is being set up */

struct worker {
	const struct cairn_attn_worker_options *opt;
	struct cairn_member member;
	struct cairn_attn_epoch *epoch;	/* NULL: spare */
	struct cairn_control_assign *next;	/* begins when the epoch is over; NULL: none */
	uint32_t number;		/* of the epoch */
	int32_t rank;
	enum cairn_epoch_state said;	/* how far the lead knows the epoch to be */
};

/* ---- messages ---- */

static int check_share(const struct cairn_attn_worker_options *o, const struct cairn_control_assign *a)
{
	const double bytes = 2.0 * a->num_layers * a->num_pages * a->page_size * a->num_heads * a->head_dim *
			     (a->kv_fp8 ? 1 : 2);

	if (o->config && cairn_share_digest(o->config) != a->config)
		return cairn_error(EINVAL, "the lead has another model: its configuration has the digest "
				   "%016llx, this worker's %016llx", (unsigned long long)a->config,
				   (unsigned long long)cairn_share_digest(o->config));
	if (o->config && (o->config->num_hidden_layers != a->num_layers ||
			  o->config->num_key_value_heads != a->num_kv_heads ||
			  o->config->head_dim != a->head_dim))
		return cairn_error(EINVAL, "the lead's geometry is not that of this worker's model");
	if (o->max_bytes && bytes > (double)o->max_bytes)
		return cairn_error(ENOMEM, "keys and values of %d pages take %.0f MiB, this worker has %lld",
				   a->num_pages, bytes / (1 << 20), (long long)(o->max_bytes >> 20));
	return 0;
}

/* Ends the epoch and keeps the next assignment; the epoch's thread may take a while to end. */
static int keep_assignment(struct worker *w, const struct cairn_channel_message *m)
{
	CAIRN_TRY(check_share(w->opt, m->data));
	free(w->next);
	w->next = malloc(m->num_bytes);
	if (!w->next)
		return cairn_error(ENOMEM, "no memory for an assignment");
	memcpy(w->next, m->data, m->num_bytes);
	if (w->epoch)
		cairn_attn_epoch_stop(w->epoch);
	return 0;
}

static int begin_epoch(struct worker *w)
{
	const struct cairn_control_assign *a = w->next;
	int ret;

	cairn_attn_epoch_destroy(w->epoch);
	w->epoch = NULL;
	w->said = CAIRN_EPOCH_PREPARING;
	w->number = a->epoch;
	w->rank = (int32_t)a->rank;
	ret = cairn_attn_epoch_create(&w->epoch, w->opt->impl, a, a + 1, w->member.address);
	free(w->next);
	w->next = NULL;
	return ret;
}

static int no_epoch(const struct cairn_channel_message *m)
{
	return cairn_error(EINVAL, "the lead sends %s without an epoch", cairn_control_kind_name(m->kind));
}

static int take_blob(struct worker *w, const struct cairn_control_blob *head)
{
	struct cairn_attn_blob blob;

	if (head->to != w->rank || head->epoch != w->number || head->num_bytes != sizeof(blob))
		return cairn_error(EINVAL, "the lead sends a blob of %u bytes for rank %d", head->num_bytes,
				   head->to);
	memcpy(&blob, head + 1, sizeof(blob));
	return cairn_attn_epoch_connect(w->epoch, &blob);
}

static int take(struct worker *w, const struct cairn_channel_message *m)
{
	CAIRN_TRY(cairn_control_check(m, 0));
	CAIRN_TRY(cairn_member_check_refusal(m));
	if (m->kind == CAIRN_CONTROL_ASSIGN)
		return keep_assignment(w, m);
	if (!w->epoch || w->next)
		return no_epoch(m);
	if (m->kind == CAIRN_CONTROL_STATUS) {	/* the epoch is over: wait for the next */
		cairn_attn_epoch_stop(w->epoch);
		return 0;
	}
	if (m->kind == CAIRN_CONTROL_BLOB)
		return take_blob(w, m->data);
	return m->kind != CAIRN_CONTROL_PLAN ?
	       cairn_error(EINVAL, "the lead sends %s to an attention worker",
			   cairn_control_kind_name(m->kind)) :
	       cairn_attn_epoch_plan(w->epoch, m->data, (const struct cairn_control_plan *)m->data + 1);
}

/* Says how far the epoch is, and begins the next one when it is over. */
static int look_at_epoch(struct worker *w)
{
	const struct cairn_control_epoch ready = { .epoch = w->number };
	const struct cairn_control_blob head = { .from = w->rank, .num_bytes = sizeof(struct cairn_attn_blob),
						 .epoch = w->number };
	struct cairn_attn_blob blob;
	char why[CAIRN_CONTROL_TEXT];
	enum cairn_epoch_state state = w->epoch ? cairn_attn_epoch_state(w->epoch, &blob, why, sizeof(why)) :
				       CAIRN_EPOCH_OVER;

	if (w->next)
		return state == CAIRN_EPOCH_OVER || state == CAIRN_EPOCH_FAILED ? begin_epoch(w) : 0;
	if (state == CAIRN_EPOCH_FAILED)
		return cairn_error(EIO, "%s", why);
	if (state == w->said || state == CAIRN_EPOCH_OVER)
		return 0;
	w->said = state;
	return state == CAIRN_EPOCH_PREPARED ?
	       cairn_control_send(w->member.c, CAIRN_CONTROL_BLOB, &head, sizeof(head), &blob, sizeof(blob),
				  SEND_MS) :
	       cairn_control_send(w->member.c, CAIRN_CONTROL_READY, &ready, sizeof(ready), NULL, 0, SEND_MS);
}

static int serve(struct worker *w)
{
	struct cairn_channel_message m;
	int ret, begins;

	for (;;) {
		begins = w->next || (w->epoch && w->said != CAIRN_EPOCH_CONNECTED);
		CAIRN_TRY(look_at_epoch(w));
		CAIRN_TRY(cairn_member_beat(&w->member, w->epoch ? cairn_attn_epoch_passes(w->epoch) : 0));
		ret = cairn_channel_receive(w->member.c, &m, begins ? LOOK_MS : CAIRN_MEMBER_LOOK_MS);
		if (!ret)
			ret = take(w, &m);
		if (ret && ret != -ETIMEDOUT)
			return ret;
	}
}

int cairn_attn_worker_run(const struct cairn_attn_worker_options *options)
{
	struct cairn_control_join j = {
		.role = CAIRN_MEMBER_ATTENTION,
		.config = options->config ? cairn_share_digest(options->config) : 0,
	};
	struct worker w = { .opt = options };
	int ret;

	snprintf(j.table, sizeof(j.table), "%s", options->impl->name);
	CAIRN_TRY(cairn_member_join(&w.member, &options->member, &j));
	ret = cairn_member_leave(&w.member, serve(&w));
	cairn_attn_epoch_destroy(w.epoch);
	free(w.next);
	return ret;
}
