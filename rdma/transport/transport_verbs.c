// SPDX-License-Identifier: Apache-2.0
/* transport_verbs.c - the verbs back end: device, regions, queue pairs, channels; transport_proxy.c posts */
#include "rdma/transport/transport_verbs.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rdma/transport/transport_cuda.h"
#include "primitives/base/optional.h"

#define PORT		1
#define MAX_REQUESTS	256u
#define INLINE_BYTES	8u
#define RIGHTS		(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
#define TIMEOUT		14	/* 4.096 us << 14 = 67 ms; a dead peer is detected after half a second */
#define RETRIES		6	/* soft-RoCE takes 7 as infinite */

static struct verbs_functions functions;
static char load_error[256];

static void load(void)
{
	void *lib = cairn_optional_open(CAIRN_OPTIONAL_VERBS);

	if (!lib) {
		snprintf(load_error, sizeof(load_error), "%s", dlerror());
		return;
	}
#define F(name) functions.name = (__typeof__(functions.name))dlsym(lib, "ibv_" #name);			\
	if (!functions.name)										\
		snprintf(load_error, sizeof(load_error), "libibverbs.so.1 has no ibv_" #name);
	VERBS_FUNCTIONS(F)
#undef F
}

static int open_device(struct verbs *v)
{
	const char *want = v->base.options.device;
	struct ibv_device **list;
	int num = 0, i;

	list = v->lib->get_device_list(&num);
	if (!list)
		return cairn_error(ENODEV, "cannot list RDMA devices: %s", strerror(errno));
	for (i = 0; i < num && want && strcmp(v->lib->get_device_name(list[i]), want); i++)
		;
	if (i < num)
		v->ctx = v->lib->open_device(list[i]);
	v->lib->free_device_list(list);
	if (i >= num)
		return cairn_error(ENODEV, "options: device: no RDMA device%s%s among %d", want ? " " : "",
				   want ? want : "", num);
	return v->ctx ? 0 : cairn_error(EIO, "ibv_open_device: %s", strerror(errno));
}

/* Chooses the GID, which is the address on Ethernet. Prefers one with an IPv4 address, which RoCE v2 can
 * route. */
static int choose_gid(struct verbs *v)
{
	static const uint8_t ipv4[12] = { [10] = 0xff, [11] = 0xff };
	union ibv_gid gid;
	int i, found = 0;

	for (i = 0; i < v->port.gid_tbl_len && i < 256; i++) {
		int any = 0, k;

		if (v->lib->query_gid(v->ctx, PORT, i, &gid))
			break;
		for (k = 0; k < 16; k++)
			any |= gid.raw[k];
		if (!any || (found && memcmp(gid.raw, ipv4, sizeof(ipv4))))
			continue;
		found = 1;
		v->gid = gid;
		v->gid_index = (uint8_t)i;
	}
	return found || v->port.link_layer != IBV_LINK_LAYER_ETHERNET ? 0 :
		cairn_error(ENODEV, "port %d has no GID", PORT);
}

static int verbs_start(struct cairn_transport *t)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct verbs *v = (struct verbs *)t;

	transport_work_init(&v->work);
	pthread_once(&once, load);
	if (load_error[0])
		return cairn_error(ENODEV, "%s", load_error);
	v->lib = &functions;
	CAIRN_TRY(open_device(v));
	if (v->lib->query_port(v->ctx, PORT, (void *)&v->port))
		return cairn_error(EIO, "ibv_query_port: %s", strerror(errno));
	if (v->port.state != IBV_PORT_ACTIVE)
		return cairn_error(ENODEV, "port %d is not active (state %d)", PORT, v->port.state);
	CAIRN_TRY(choose_gid(v));
	v->max_message = v->port.max_msg_sz < 1u << 30 ? v->port.max_msg_sz : 1u << 30;
	v->pd = v->lib->alloc_pd(v->ctx);
	if (!v->pd)
		return cairn_error(EIO, "ibv_alloc_pd: %s", strerror(errno));
	return verbs_proxy_start(v);
}

static void verbs_stop(struct cairn_transport *t)
{
	struct verbs *v = (struct verbs *)t;

	verbs_proxy_stop(v);
	if (v->pd)
		v->lib->dealloc_pd(v->pd);
	if (v->ctx)
		v->lib->close_device(v->ctx);
	transport_work_destroy(&v->work);
}

/* ---- regions ---- */

static int verbs_add_region(struct cairn_region *base)
{
	struct verbs_region *r = (struct verbs_region *)base;
	struct verbs *v = (struct verbs *)base->t;
	int gpu = base->t->options.gpu;

	if (base->memory == CAIRN_MEMORY_HOST)
		CAIRN_TRY(transport_host_map(gpu, base->addr, base->bytes, &r->mapped));
	r->mr = v->lib->reg_mr(v->pd, base->addr, base->bytes, RIGHTS);
	if (r->mr)
		return 0;
	if (r->mapped)
		transport_host_unmap(gpu, base->addr);
	return cairn_error(errno == ENOMEM ? ENOMEM : EIO, "ibv_reg_mr of %llu bytes of %s memory: %s%s",
			   (unsigned long long)base->bytes, base->memory == CAIRN_MEMORY_HOST ? "host" :
				   "device",
			   strerror(errno),
			   base->memory == CAIRN_MEMORY_HOST ? "" : " (is nvidia-peermem loaded?)");
}

static int verbs_key(const struct cairn_region *base, void *key)
{
	uint64_t words[3] = { (uintptr_t)base->addr, base->bytes,
		((const struct verbs_region *)base)->mr->rkey };

	memcpy(key, words, sizeof(words));
	return 0;
}

static void verbs_remove_region(struct cairn_region *base)
{
	struct verbs_region *r = (struct verbs_region *)base;

	((struct verbs *)base->t)->lib->dereg_mr(r->mr);
	if (r->mapped)
		transport_host_unmap(base->t->options.gpu, base->addr);
}

static int verbs_import(struct cairn_remote *base, const void *key)
{
	struct verbs_remote *remote = (struct verbs_remote *)base;
	uint64_t words[3];

	memcpy(words, key, sizeof(words));
	remote->addr = words[0];
	base->bytes = words[1];
	remote->rkey = (uint32_t)words[2];
	return 0;
}

/* ---- channels ---- */

static int make_queue_pair(struct verbs_channel *c)
{
	struct verbs *v = (struct verbs *)c->base.t;
	struct ibv_qp_init_attr a = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = MAX_REQUESTS, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = INLINE_BYTES },
	};
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	uint64_t seed = transport_now();

	c->cq = v->lib->create_cq(v->ctx, MAX_REQUESTS, NULL, NULL, 0);
	if (!c->cq)
		return cairn_error(EIO, "ibv_create_cq: %s", strerror(errno));
	a.send_cq = a.recv_cq = c->cq;
	c->qp = v->lib->create_qp(v->pd, &a);
	if (!c->qp)
		return cairn_error(EIO, "ibv_create_qp: %s", strerror(errno));
	c->max_requests = MAX_REQUESTS;
	c->psn = (uint32_t)transport_random(&seed) & 0xffffff;
	if (v->lib->modify_qp(c->qp, &init,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return cairn_error(EIO, "ibv_modify_qp to INIT: %s", strerror(errno));
	return 0;
}

static void drop_queue_pair(struct verbs_channel *c)
{
	struct verbs *v = (struct verbs *)c->base.t;

	if (c->qp)
		v->lib->destroy_qp(c->qp);
	if (c->cq)
		v->lib->destroy_cq(c->cq);
	c->qp = NULL;
	c->cq = NULL;
}

static uint64_t slots_bytes(const struct verbs_channel *c)
{
	return (c->base.t->options.num_slots + 1) * sizeof(*c->slots);
}

static uint64_t queue_bytes(const struct verbs_channel *c)
{
	return c->base.t->options.depth * 64ull;
}

static int verbs_create(struct cairn_channel *base)
{
	struct verbs_channel *c = (struct verbs_channel *)base;
	const struct cairn_transport_options *o = &base->t->options;
	struct verbs *v = (struct verbs *)base->t;

	CAIRN_TRY(transport_host_alloc(o->gpu, slots_bytes(c), (void **)&c->slots));
	CAIRN_TRY(transport_host_alloc(o->gpu, queue_bytes(c), (void **)&c->queue));
	CAIRN_TRY(transport_host_alloc(o->gpu, 64, (void **)&c->done));
#ifdef CONFIG_CUDA
	if (o->gpu >= 0)
		CAIRN_TRY(transport_device_alloc(o->gpu, 64, (void **)&c->next));
#endif
	c->words = calloc(o->num_slots, sizeof(*c->words));
	if (!c->words)
		return cairn_error(ENOMEM, "no memory for %u slots", o->num_slots);
	c->slots_mr = v->lib->reg_mr(v->pd, c->slots, slots_bytes(c), RIGHTS);
	if (!c->slots_mr)
		return cairn_error(EIO, "ibv_reg_mr of the slots: %s", strerror(errno));
	CAIRN_TRY(make_queue_pair(c));
	transport_work_stop(&v->work);
	c->next_of_all = v->first;
	v->first = c;
	transport_work_go(&v->work);
	return 0;
}

static void verbs_destroy(struct cairn_channel *base)
{
	struct verbs_channel *c = (struct verbs_channel *)base, **at;
	struct verbs *v = (struct verbs *)base->t;
	int gpu = base->t->options.gpu;

	transport_work_stop(&v->work);
	for (at = &v->first; *at && *at != c; at = &(*at)->next_of_all)
		;
	if (*at)
		*at = c->next_of_all;
	transport_work_go(&v->work);
	drop_queue_pair(c);
	if (c->slots_mr)
		v->lib->dereg_mr(c->slots_mr);
	transport_host_free(gpu, c->slots, slots_bytes(c));
	transport_host_free(gpu, c->queue, queue_bytes(c));
	transport_host_free(gpu, (void *)c->done, 64);
#ifdef CONFIG_CUDA
	if (c->next)
		transport_device_free(gpu, c->next);
#endif
	free(c->words);
}

static int verbs_address(struct cairn_channel *base, void *address)
{
	const struct verbs_channel *c = (const struct verbs_channel *)base;
	const struct verbs *v = (const struct verbs *)base->t;
	struct verbs_address a = {
		.slots = (uintptr_t)c->slots, .slots_rkey = c->slots_mr->rkey,
		.num_slots = base->t->options.num_slots, .qpn = c->qp->qp_num, .psn = c->psn,
		.lid = v->port.lid,
		.mtu = (uint8_t)v->port.active_mtu, .gid = v->gid, .pid = (uint64_t)getpid(),
		.is_global = v->port.link_layer == IBV_LINK_LAYER_ETHERNET,
	};

	memcpy(address, &a, sizeof(a));
	return 0;
}

static int verbs_connect(struct cairn_channel *base, const void *address, uint64_t deadline)
{
	struct verbs_channel *c = (struct verbs_channel *)base;
	struct verbs *v = (struct verbs *)base->t;
	struct verbs_address *p = &c->peer;
	struct ibv_qp_attr a;

	(void)deadline;		/* connecting does not wait: only the first message reaches the peer */
	memcpy(p, address, sizeof(*p));
	if (p->num_slots != base->t->options.num_slots)
		return cairn_error(EINVAL, "num_slots: the peer has %u, this end %u", p->num_slots,
				   base->t->options.num_slots);
	a = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR, .dest_qp_num = p->qpn, .rq_psn = p->psn,
		.path_mtu = p->mtu < v->port.active_mtu ? (enum ibv_mtu)p->mtu : v->port.active_mtu,
		.ah_attr = { .port_num = PORT, .dlid = p->lid, .is_global = p->is_global,
			     .grh = { .dgid = p->gid, .sgid_index = v->gid_index, .hop_limit = 64 } },
	};
	if (v->lib->modify_qp(c->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return cairn_error(EIO, "ibv_modify_qp to RTR: %s", strerror(errno));
	a = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS, .timeout = TIMEOUT, .retry_cnt = RETRIES, .sq_psn = c->psn,
	};
	if (v->lib->modify_qp(c->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		return cairn_error(EIO, "ibv_modify_qp to RTS: %s", strerror(errno));
	snprintf(base->peer, sizeof(base->peer), "qp 0x%x of process %llu", p->qpn,
		 (unsigned long long)p->pid);
	return 0;
}

/* Creates a new queue pair, so that the device refuses messages still addressed to the old one. */
static int verbs_reset(struct cairn_channel *base)
{
	struct verbs_channel *c = (struct verbs_channel *)base;
	struct verbs *v = (struct verbs *)base->t;
	int ret;

	transport_work_stop(&v->work);
	drop_queue_pair(c);
	memset(c->slots, 0, slots_bytes(c));
	memset(c->queue, 0, queue_bytes(c));
	memset((void *)c->done, 0, 64);
	memset(c->words, 0, base->t->options.num_slots * sizeof(*c->words));
	c->posted = c->taken = c->bytes_at = c->probed = 0;
	c->requests = c->unsignalled = 0;
	c->kernels_put = 0;
	atomic_store(&c->probe, 0);
	ret = make_queue_pair(c);
	transport_work_go(&v->work);
	return ret;
}

static int verbs_look(struct cairn_channel *base, uint32_t slot, struct cairn_signal *found)
{
	struct cairn_signal *s = &((struct verbs_channel *)base)->slots[slot];

	found->value = __atomic_load_n(&s->value, __ATOMIC_ACQUIRE);
	found->word = __atomic_load_n(&s->word, __ATOMIC_RELAXED);
	return 0;
}

/* ---- for kernels ---- */

static int verbs_channel_device(struct cairn_channel *base, struct cairn_device_channel *d)
{
	struct verbs_channel *c = (struct verbs_channel *)base;

#ifdef CONFIG_CUDA
	uint64_t next[2] = { c->posted, 0 };

	if (!c->kernels_put)
		CAIRN_TRY(transport_device_copy(base->t->options.gpu, c->next, next, sizeof(next)));
	c->kernels_put = 1;
#endif
	*d = (struct cairn_device_channel) {
		.kind = CAIRN_DEVICE_QUEUE, .num_slots = base->t->options.num_slots,
		.depth = base->t->options.depth, .mine = c->slots, .queue = c->queue, .next = c->next,
		.done = (const uint64_t *)c->done,
	};
	return 0;
}

static int verbs_region_device(const struct cairn_region *r, struct cairn_device_region *d)
{
	*d = (struct cairn_device_region) {
		.addr = (uintptr_t)r->addr, .bytes = r->bytes,
		.key = ((const struct verbs_region *)r)->mr->lkey,
	};
	return 0;
}

static int verbs_remote_device(const struct cairn_remote *base, struct cairn_device_region *d)
{
	const struct verbs_remote *remote = (const struct verbs_remote *)base;

	*d = (struct cairn_device_region) { .addr = remote->addr, .bytes = base->bytes, .key = remote->rkey };
	return 0;
}

/* Device memory requires a driver that registers it (nvidia-peermem), which the NIC model does not do. */
#define FEATURES (CAIRN_TRANSPORT_HOST_MEMORY | CAIRN_TRANSPORT_DEVICE_PUT | CAIRN_TRANSPORT_PROCESSES | \
		  CAIRN_TRANSPORT_ONE_PROCESS | CAIRN_TRANSPORT_ONE_DEVICE | CAIRN_TRANSPORT_PEER_DEATH | \
		  CAIRN_TRANSPORT_CHECKS | CAIRN_TRANSPORT_ONE_SIDED)

static const struct transport_ops verbs_ops = {
	.name = "verbs", .features = FEATURES,
	.transport_bytes = sizeof(struct verbs), .region_bytes = sizeof(struct verbs_region),
	.remote_bytes = sizeof(struct verbs_remote), .channel_bytes = sizeof(struct verbs_channel),
	.start = verbs_start, .stop = verbs_stop,
	.add_region = verbs_add_region, .key = verbs_key, .remove_region = verbs_remove_region,
	.import = verbs_import,
	.create = verbs_create, .address = verbs_address, .connect = verbs_connect, .reset = verbs_reset,
	.destroy = verbs_destroy,
	.put = verbs_put, .flush = verbs_flush, .look = verbs_look, .probe = verbs_probe,
	.channel_device = verbs_channel_device, .region_device = verbs_region_device,
	.remote_device = verbs_remote_device,
};

static int verbs_open(const struct cairn_transport_options *o, struct cairn_transport **t)
{
	return transport_open(&verbs_ops, o, t);
}

const struct cairn_transport_table cairn_transport_verbs = TRANSPORT_TABLE("verbs", FEATURES, verbs_open);
