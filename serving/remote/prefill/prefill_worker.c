// SPDX-License-Identifier: Apache-2.0
/* prefill_worker - a prefill worker: joins the lead and serves it (prefill_worker.h) */
#include "serving/remote/prefill/prefill_worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/model/forward/forward.h"
#include "serving/remote/attention/share.h"
#include "serving/remote/prefill/prefill_epoch.h"
#include "serving/remote/prefill/prefill_group.h"

/* Returns the config of the whole model. */
static const struct cairn_model_config *config_of(const struct cairn_prefill_worker_options *o)
{
	return o->group ? cairn_prefill_group_config(o->group) : &o->model->config;
}

/* The lead has compared configuration and weights; the sizes that follow from them must agree, too. */
static int check(void *ctx, const struct cairn_control_assign *a)
{
	const struct cairn_prefill_worker_options *o = ctx;
	const struct cairn_model *m = o->model;
	const struct cairn_model_config *c = config_of(o);
	const double bytes = (double)cairn_model_key_bytes(m) * (cairn_model_is_latent(m) ? 1 : 2) *
			     c->num_hidden_layers * a->page_size * a->num_pages;

	if (a->config != cairn_share_digest(c) || a->num_layers != c->num_hidden_layers ||
	    a->num_kv_heads != cairn_share_heads(c) || a->num_heads != a->num_kv_heads ||
	    a->head_dim != c->head_dim || a->dtype != m->dtype || a->kv_fp8 != (m->kv == CAIRN_KV_FP8))
		return cairn_error(EINVAL, "the lead has another model, or another form of its cache");
	if (a->max_rows % a->page_size || a->max_context > c->max_position_embeddings ||
	    (int64_t)a->num_pages * a->page_size < (int64_t)CAIRN_PULL_JOBS * a->max_context)
		return cairn_error(EINVAL, "the lead wants passes of %d rows and %d pages of %d for prompts "
				   "of %d tokens", a->max_rows, a->num_pages, a->page_size, a->max_context);
	if (o->max_bytes && bytes > (double)o->max_bytes)
		return cairn_error(ENOMEM, "keys and values of %d prompts of %d tokens take %.0f MiB, this "
				   "worker has %lld", CAIRN_PULL_JOBS, a->max_context, bytes / (1 << 20),
				   (long long)(o->max_bytes >> 20));
	return 0;
}

static int create(void *ctx, void **epoch, const struct cairn_control_assign *a, const void *rest,
		  const char *address)
{
	const struct cairn_prefill_worker_options *o = ctx;
	struct cairn_prefill_epoch *e = NULL;

	(void)rest;	/* scales of an 8-bit cache, which are those of the model */
	CAIRN_TRY(cairn_prefill_epoch_create(&e, o->model, o->group, a,
					     o->member.transport ? o->member.transport : "tcp", address));
	*epoch = e;
	return 0;
}

static struct cairn_epoch_life *life(void *epoch)
{
	return cairn_prefill_epoch_life(epoch);
}

static int message(void *epoch, const struct cairn_channel_message *m)
{
	return cairn_prefill_epoch_message(epoch, m);
}

static void destroy(void *epoch)
{
	cairn_prefill_epoch_destroy(epoch);
}

int cairn_prefill_worker_run(const struct cairn_prefill_worker_options *o)
{
	static const struct cairn_epoch_ops ops = {
		sizeof(struct cairn_pull_blob), check, create, life, message, destroy,
	};
	struct cairn_control_join j = {
		.role = CAIRN_MEMBER_PREFILL, .config = cairn_share_digest(config_of(o)),
		.weights = o->weights,
	};

	if (!cairn_forward_supported(o->model))
		return cairn_error(EOPNOTSUPP, "%s: has no operation list for this model",
				   o->model->impl->name);
	snprintf(j.table, sizeof(j.table), "%s", o->model->impl->name);
	return cairn_member_run(&o->member, &j, &ops, (void *)o);
}
