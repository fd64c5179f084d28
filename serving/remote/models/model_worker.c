// SPDX-License-Identifier: Apache-2.0
/* model_worker - joins the lead and computes passes for it (model_worker.h) */
#include "serving/remote/models/model_worker.h"

#include <errno.h>
#include <stdio.h>

#include "primitives/base/error.h"
#include "serving/model/forward/forward.h"
#include "serving/remote/attention/share.h"
#include "serving/remote/models/model_blob.h"
#include "serving/remote/models/model_epoch.h"

/* The lead has compared configuration and weights; the sizes that follow from them must agree, too. */
static int check(void *ctx, const struct cairn_control_assign *a)
{
	const struct cairn_model_worker_options *o = ctx;
	const struct cairn_model *m = o->model;
	const struct cairn_model_config *c = &m->config;

	if (!a->lane)
		return cairn_error(EINVAL, "the lead gives a model worker the share of another role");
	return a->config != cairn_share_digest(c) || a->num_layers != c->num_hidden_layers ||
	       a->num_kv_heads != cairn_share_heads(c) || a->dtype != m->dtype ||
	       a->kv_fp8 != (m->kv == CAIRN_KV_FP8) || a->max_context > c->max_position_embeddings ?
	       cairn_error(EINVAL, "the lead has another model, or another form of its cache") : 0;
}

static int create(void *ctx, void **epoch, const struct cairn_control_assign *a, const void *rest,
		  const char *address)
{
	const struct cairn_model_worker_options *o = ctx;
	struct cairn_model_epoch *e = NULL;

	(void)rest;
	CAIRN_TRY(cairn_model_epoch_create(&e, o->model, a, address));
	*epoch = e;
	return 0;
}

static struct cairn_epoch_life *life(void *epoch)
{
	return cairn_model_epoch_life(epoch);
}

static int message(void *epoch, const struct cairn_channel_message *m)
{
	return m->kind != CAIRN_CONTROL_RUN ?
	       cairn_error(EINVAL, "the lead sends %s to a model worker", cairn_control_kind_name(m->kind)) :
	       cairn_model_epoch_run(epoch, m->data, (const struct cairn_control_run *)m->data + 1);
}

static void destroy(void *epoch)
{
	cairn_model_epoch_destroy(epoch);
}

int cairn_model_worker_run(const struct cairn_model_worker_options *o)
{
	static const struct cairn_epoch_ops ops = {
		sizeof(struct cairn_model_blob), check, create, life, message, destroy,
	};
	struct cairn_control_join j = {
		.role = CAIRN_MEMBER_MODEL, .config = cairn_share_digest(&o->model->config),
		.weights = o->weights,
	};
	const struct cairn_impl *impl = o->model->impl;

	if (!(impl->flags & CAIRN_IMPL_HOST_MEM))
		return cairn_error(EOPNOTSUPP, "%s: model workers need a table with host memory so far",
				   impl->name);
	if (!cairn_forward_supported(o->model))
		return cairn_error(EOPNOTSUPP, "%s: has no operation list for this model", impl->name);
	snprintf(j.table, sizeof(j.table), "%s", impl->name);
	return cairn_member_run(&o->member, &j, &ops, (void *)o);
}
