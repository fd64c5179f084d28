// SPDX-License-Identifier: Apache-2.0
/* attn_worker - the main thread of an attention worker: joins the lead and serves it (attn_worker.h) */
#include "serving/remote/attention/attn_worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/remote/control/address.h"
#include "serving/remote/attention/attn_epoch.h"
#include "serving/remote/lead/lead.h"

#define SHAKE_MS	CAIRN_LEAD_SHAKE_MS
#define SEND_MS		1000
#define LOOK_MS		5		/* while an epoch is being set up */
#define RETRY_NS	50000000	/* between two attempts to reach the lead */

struct worker {
	const struct cairn_attn_worker_options *opt;
	struct cairn_control_channel *c;
	char host[64];			/* for the transport */
	struct cairn_attn_epoch *epoch;	/* NULL: spare */
	struct cairn_control_assign *next;	/* begins when the epoch is over; NULL: none */
	uint32_t number;		/* of the epoch */
	int32_t rank;
	enum cairn_epoch_state said;	/* how far the lead knows the epoch to be */
	int64_t beat_ns;		/* when the next beat is due */
};

/* ---- joining ---- */

/* Dials until the lead listens. */
static int dial(const struct cairn_attn_worker_options *o, int *fd)
{
	const struct timespec nap = { 0, RETRY_NS };
	const int64_t until = cairn_clock_ns() + o->join_ms * 1000000ll;
	int ret;

	while ((ret = cairn_address_dial(fd, o->join, SHAKE_MS)) && ret != -EINVAL &&
	       cairn_clock_ns() < until)
		nanosleep(&nap, NULL);
	return ret;
}

static int open_channel(struct worker *w, int fd)
{
	uint8_t secret[CAIRN_SECRET_BYTES];
	int ret = w->opt->secret_file ? cairn_secret_load(secret, w->opt->secret_file) : 0;

	if (!ret && !w->opt->address)
		ret = cairn_address_own(fd, w->host, sizeof(w->host));
	if (ret) {
		close(fd);
		return ret;
	}
	ret = cairn_channel_open(&w->c, fd, CAIRN_CHANNEL_MEMBER, w->opt->secret_file ? secret : NULL,
				 SHAKE_MS);
	explicit_bzero(secret, sizeof(secret));
	return ret;
}

static int say_join(struct worker *w)
{
	struct cairn_control_join j = {
		.version = CAIRN_CONTROL_VERSION, .role = CAIRN_MEMBER_ATTENTION, .rank = -1,
		.digest = strtoull(cairn_source_digest(), NULL, 16), .pid = (int32_t)getpid(),
	};

	for (int i = 0; i < 32 && cairn_transport_get(i); i++)
		if (!strcmp(cairn_transport_get(i)->name, "tcp"))
			j.transports |= 1u << i;
	snprintf(j.table, sizeof(j.table), "%s", w->opt->impl->name);
	return cairn_control_send(w->c, CAIRN_CONTROL_JOIN, &j, sizeof(j), NULL, 0, SEND_MS);
}

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
	ret = cairn_attn_epoch_create(&w->epoch, w->opt->impl, a, a + 1,
				      w->opt->address ? w->opt->address : w->host);
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
	if (m->kind == CAIRN_CONTROL_REFUSE)
		return cairn_error(EPERM, "the lead refuses this worker: %.*s", (int)m->num_bytes,
				   (const char *)m->data);
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
	return cairn_attn_epoch_plan(w->epoch, m->data, (const struct cairn_control_plan *)m->data + 1);
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
	       cairn_control_send(w->c, CAIRN_CONTROL_BLOB, &head, sizeof(head), &blob, sizeof(blob),
				  SEND_MS) :
	       cairn_control_send(w->c, CAIRN_CONTROL_READY, &ready, sizeof(ready), NULL, 0, SEND_MS);
}

static int beat(struct worker *w)
{
	struct cairn_control_beat beat = { .now_ns = cairn_clock_ns() };

	if (beat.now_ns < w->beat_ns)
		return 0;
	w->beat_ns = beat.now_ns + CAIRN_LEAD_BEAT_MS * 1000000ll;
	beat.passes = w->epoch ? cairn_attn_epoch_passes(w->epoch) : 0;
	return cairn_control_send(w->c, CAIRN_CONTROL_BEAT, &beat, sizeof(beat), NULL, 0, SEND_MS);
}

static int serve(struct worker *w)
{
	struct cairn_channel_message m;
	int ret, begins;

	for (;;) {
		begins = w->next || (w->epoch && w->said != CAIRN_EPOCH_CONNECTED);
		CAIRN_TRY(look_at_epoch(w));
		CAIRN_TRY(beat(w));
		ret = cairn_channel_receive(w->c, &m, begins ? LOOK_MS : CAIRN_LEAD_BEAT_MS / 2);
		if (!ret)
			ret = take(w, &m);
		if (ret && ret != -ETIMEDOUT)
			return ret;
	}
}

/* Tells the lead why the worker ends; the lead may have gone first. */
static void say_failed(struct worker *w)
{
	char text[CAIRN_CONTROL_TEXT];

	snprintf(text, sizeof(text), "%s", cairn_last_error());
	cairn_control_send(w->c, CAIRN_CONTROL_FAILED, NULL, 0, text, strlen(text), SEND_MS);
	cairn_error(EIO, "%s", text);
}

int cairn_attn_worker_run(const struct cairn_attn_worker_options *options)
{
	struct worker w = { .opt = options };
	int fd, ret;

	CAIRN_TRY(dial(options, &fd));
	CAIRN_TRY(open_channel(&w, fd));
	ret = say_join(&w);
	if (!ret)
		ret = serve(&w);
	if (ret == -ECONNRESET && cairn_channel_was_closed(w.c))
		ret = 0;
	else if (ret != -ECONNRESET && ret != -EPERM)
		say_failed(&w);
	cairn_attn_epoch_destroy(w.epoch);
	cairn_channel_close(w.c);
	free(w.next);
	return ret;
}
