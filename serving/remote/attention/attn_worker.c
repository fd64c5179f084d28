// SPDX-License-Identifier: Apache-2.0
/* attn_worker - an attention worker: joins the lead and serves it (attn_worker.h) */
#include "serving/remote/attention/attn_worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/remote/attention/attn_epoch.h"
#include "serving/remote/attention/lists.h"

static int check(void *ctx, const struct cairn_control_assign *a)
{
	const struct cairn_attn_worker_options *o = ctx;
	const struct cairn_share_sizes sizes = cairn_share_sizes(a);
	const int32_t pages = cairn_stripe_pages(a->num_pages, a->stripe, a->stripes);
	const double bytes = (double)a->num_layers * ((double)pages * (double)sizes.page_bytes +
						      (double)sizes.weight_bytes);

	if (o->config && cairn_share_digest(o->config) != a->config)
		return cairn_error(EINVAL, "the lead has another model: its configuration has the digest "
				   "%016llx, this worker's %016llx", (unsigned long long)a->config,
				   (unsigned long long)cairn_share_digest(o->config));
	if (o->config && (o->config->num_hidden_layers != a->num_layers ||
			  cairn_share_heads(o->config) != a->num_kv_heads ||
			  o->config->head_dim != a->head_dim))
		return cairn_error(EINVAL, "the lead's geometry is not that of this worker's model");
	if (o->max_bytes && bytes > (double)o->max_bytes)
		return cairn_error(ENOMEM, "keys and values of %d pages take %.0f MiB, this worker has %lld",
				   pages, bytes / (1 << 20), (long long)(o->max_bytes >> 20));
	return 0;
}

static int create(void *ctx, void **epoch, const struct cairn_control_assign *a, const void *rest,
		  const char *address)
{
	const struct cairn_attn_worker_options *o = ctx;
	struct cairn_attn_epoch *e = NULL;

	CAIRN_TRY(cairn_attn_epoch_create(&e, o->impl, a, rest, address));
	*epoch = e;
	return 0;
}

static struct cairn_epoch_life *life(void *epoch)
{
	return cairn_attn_epoch_life(epoch);
}

static int message(void *epoch, const struct cairn_channel_message *m)
{
	return m->kind != CAIRN_CONTROL_PLAN ?
	       cairn_error(EINVAL, "the lead sends %s to an attention worker",
			   cairn_control_kind_name(m->kind)) :
	       cairn_attn_epoch_plan(epoch, m->data, (const struct cairn_control_plan *)m->data + 1);
}

static void destroy(void *epoch)
{
	cairn_attn_epoch_destroy(epoch);
}

int cairn_attn_worker_run(const struct cairn_attn_worker_options *options)
{
	static const struct cairn_epoch_ops ops = {
		sizeof(struct cairn_attn_blob), check, create, life, message, destroy,
	};
	struct cairn_control_join j = {
		.role = CAIRN_MEMBER_ATTENTION,
		.config = options->config ? cairn_share_digest(options->config) : 0,
	};

	snprintf(j.table, sizeof(j.table), "%s", options->impl->name);
	return cairn_member_run(&options->member, &j, &ops, (void *)options);
}
