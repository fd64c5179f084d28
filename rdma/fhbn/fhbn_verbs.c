// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_verbs - queue pairs of libibverbs and libmlx5, their rings accessed through mlx5dv_init_obj
 *
 * Both libraries are opened at run time, never linked. With the NIC model preloaded this code runs on the
 * model. The only difference from a card is that the UAR page is memory, and is registered as memory for a
 * GPU. libmlx5 creates and connects queues and does not touch them afterwards.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "primitives/base/optional.h"
#include "rdma/fhbn/fhbn_provider.h"

#ifdef CONFIG_VERBS
#include <infiniband/mlx5dv.h>

/* The functions used, named as in the libraries. */
#define FUNCTIONS(F)									\
	F(ibv_get_device_list) F(ibv_free_device_list) F(ibv_get_device_name)		\
	F(ibv_open_device) F(ibv_close_device) F(ibv_alloc_pd) F(ibv_dealloc_pd)		\
	F(ibv_dereg_mr) F(ibv_create_cq) F(ibv_destroy_cq) F(ibv_create_qp)		\
	F(ibv_destroy_qp) F(ibv_modify_qp) F(ibv_query_gid)

enum { PORT = 1, RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			  IBV_ACCESS_REMOTE_ATOMIC };

static struct {
	void *verbs, *mlx5;
#define F(name) __typeof__(name) *name;
	FUNCTIONS(F)
#undef F
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
	int (*query_port)(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr);
	__typeof__(mlx5dv_init_obj) *init_obj;
	__typeof__(mlx5dv_is_supported) *is_supported;
} lib;

struct key {
	struct ibv_mr *mr;
	struct key *next;
};

struct verbs_card {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct key *keys;
	union ibv_gid gid;
	struct ibv_port_attr port;
	int gid_index;
};

struct verbs_qp {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static int load(void *so, const char *name, void *fn)
{
	void *p = dlsym(so, name);

	memcpy(fn, &p, sizeof(p));
	return p ? 0 : cairn_error(ENODEV, "fhbn: %s: not found in the library", name);
}

static int load_libraries(void)
{
	if (lib.is_supported)
		return 0;
	lib.verbs = cairn_optional_open(CAIRN_OPTIONAL_VERBS);
	lib.mlx5 = lib.verbs ? cairn_optional_open(CAIRN_OPTIONAL_MLX5) : NULL;
	if (!lib.mlx5)
		return cairn_error(ENODEV, "fhbn: %s", dlerror());
#define F(name) CAIRN_TRY(load(lib.verbs, #name, &lib.name));
	FUNCTIONS(F)
#undef F
	CAIRN_TRY(load(lib.verbs, "ibv_reg_mr", &lib.reg_mr));
	CAIRN_TRY(load(lib.verbs, "ibv_query_port", &lib.query_port));
	CAIRN_TRY(load(lib.mlx5, "mlx5dv_init_obj", &lib.init_obj));
	return load(lib.mlx5, "mlx5dv_is_supported", &lib.is_supported);
}

static int failed(const char *what)
{
	int err = errno;

	return cairn_error(err == ENOMEM || err == ENODEV || err == EPERM ? err : EIO, "fhbn: %s: %s", what,
			   strerror(err));
}

static int find_device(const char *name, struct ibv_context **ctx)
{
	int num = 0, seen = 0;
	struct ibv_device **list = lib.ibv_get_device_list(&num);

	*ctx = NULL;
	for (int i = 0; list && i < num && !*ctx; i++) {
		if (!lib.is_supported(list[i]) || (name && strcmp(name, lib.ibv_get_device_name(list[i]))))
			continue;
		seen = 1;
		*ctx = lib.ibv_open_device(list[i]);
	}
	if (list)
		lib.ibv_free_device_list(list);
	if (*ctx)
		return 0;
	return seen ? failed("ibv_open_device") :
	       cairn_error(ENODEV, "fhbn: no mlx5 device%s%s", name ? " named " : "", name ? name : "");
}

static void verbs_close(void *opaque)
{
	struct verbs_card *c = opaque;

	if (c->pd)
		lib.ibv_dealloc_pd(c->pd);
	if (c->ctx)
		lib.ibv_close_device(c->ctx);
	free(c);
}

static int verbs_open(const struct cairn_fhbn_open_args *args, void **card)
{
	struct verbs_card *c;
	int ret;

	CAIRN_TRY(load_libraries());
	c = calloc(1, sizeof(*c));
	if (!c)
		return cairn_error(ENOMEM, "fhbn: no memory");
	c->gid_index = args->gid_index;
	ret = find_device(args->device, &c->ctx);
	if (ret)
		goto out_close;
	c->pd = lib.ibv_alloc_pd(c->ctx);
	if (!c->pd) {
		ret = failed("ibv_alloc_pd");
		goto out_close;
	}
	if (lib.ibv_query_gid(c->ctx, PORT, args->gid_index, &c->gid) ||
	    lib.query_port(c->ctx, PORT, (struct _compat_ibv_port_attr *)&c->port)) {
		ret = failed("ibv_query_port");
		goto out_close;
	}
	*card = c;
	return 0;

out_close:
	verbs_close(c);
	return ret;
}

static int verbs_add_key(void *opaque, void *addr, size_t bytes, int is_gpu, uint32_t *lkey, uint32_t *rkey)
{
	struct verbs_card *c = opaque;
	struct key *k = calloc(1, sizeof(*k));

	if (!k)
		return cairn_error(ENOMEM, "fhbn: no memory");
	k->mr = lib.reg_mr(c->pd, addr, bytes, RIGHTS);
	if (!k->mr) {
		free(k);
		return failed(is_gpu ? "ibv_reg_mr of GPU memory (is nvidia-peermem loaded?)" : "ibv_reg_mr");
	}
	k->next = c->keys;
	c->keys = k;
	*lkey = k->mr->lkey;
	*rkey = k->mr->rkey;
	return 0;
}

static int verbs_remove_key(void *opaque, uint32_t lkey)
{
	struct verbs_card *c = opaque;

	for (struct key **at = &c->keys; *at; at = &(*at)->next) {
		struct key *k = *at;

		if (k->mr->lkey != lkey)
			continue;
		*at = k->next;
		lib.ibv_dereg_mr(k->mr);
		free(k);
		return 0;
	}
	return cairn_error(EINVAL, "fhbn: lkey: %#x is no key", lkey);
}

static void verbs_destroy(void *card, void *opaque)
{
	struct verbs_qp *q = opaque;

	(void)card;
	if (q->qp)
		lib.ibv_destroy_qp(q->qp);
	if (q->cq)
		lib.ibv_destroy_cq(q->cq);
	free(q);
}

static int lay_open(struct verbs_qp *q, struct fhbn_layout *l)
{
	struct mlx5dv_qp qp = { 0 };
	struct mlx5dv_cq cq = { 0 };
	struct mlx5dv_obj obj = { .qp = { q->qp, &qp }, .cq = { q->cq, &cq } };

	if (lib.init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ))
		return failed("mlx5dv_init_obj");
	if (qp.sq.stride != CAIRN_WQE_BLOCK || cq.cqe_size != sizeof(struct cairn_cqe))
		return cairn_error(EOPNOTSUPP, "fhbn: blocks of %u bytes, completions of %u", qp.sq.stride,
				   cq.cqe_size);
	*l = (struct fhbn_layout) {
		.sq = qp.sq.buf, .record = (uint32_t *)qp.dbrec + 1, .cq = cq.buf, .cq_record = cq.dbrec,
		.reg = { qp.bf.reg, (uint64_t *)(void *)((char *)qp.bf.reg + qp.bf.size) },
		.reg_bytes = qp.bf.size ? qp.bf.size + CAIRN_WQE_BLOCK : sizeof(uint64_t),
		.num_blocks = qp.sq.wqe_cnt, .num_cqes = cq.cqe_cnt, .qpn = q->qp->qp_num,
		.reg_is_io = !dlsym(RTLD_DEFAULT, "cairn_nic_stats"),	/* the model's page is memory */
	};
	return 0;
}

static int verbs_create(void *card, const struct cairn_fhbn_qp_args *args, void **out, struct fhbn_layout *l)
{
	struct verbs_card *c = card;
	struct verbs_qp *q;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = args->num_blocks, .max_recv_wr = 1,
						.max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 12 },
	};
	int ret;

	if (args->poster == CAIRN_FHBN_BY_GPU_LOCAL)
		return cairn_error(EOPNOTSUPP, "fhbn: libmlx5 allocates its rings in host memory");
	q = calloc(1, sizeof(*q));
	if (!q)
		return cairn_error(ENOMEM, "fhbn: no memory");
	setenv("MLX5_SCATTER_TO_CQE", "0", 0);	/* completions must not contain data */
	/* one entry for every block of the ring, which libmlx5 may make four times as large */
	q->cq = lib.ibv_create_cq(c->ctx, (int)args->num_blocks * 4, NULL, NULL, 0);
	if (!q->cq) {
		ret = failed("ibv_create_cq");
		goto out_destroy;
	}
	init.send_cq = init.recv_cq = q->cq;
	q->qp = lib.ibv_create_qp(c->pd, &init);
	if (!q->qp) {
		ret = failed("ibv_create_qp");
		goto out_destroy;
	}
	ret = lay_open(q, l);
	if (ret)
		goto out_destroy;
	if (l->num_blocks > l->num_cqes) {
		ret = cairn_error(EOPNOTSUPP, "fhbn: a ring of %u blocks with %u completions", l->num_blocks,
				  l->num_cqes);
		goto out_destroy;
	}
	if (args->mode & CAIRN_FHBN_BLUEFLAME && l->reg[0] == l->reg[1]) {
		ret = cairn_error(EOPNOTSUPP, "fhbn: this UAR does not support BlueFlame");
		goto out_destroy;
	}
	*out = q;
	return 0;

out_destroy:
	verbs_destroy(card, q);
	return ret;
}

static int verbs_address(void *card, void *qp, struct cairn_fhbn_address *out)
{
	struct verbs_card *c = card;

	(void)qp;
	memcpy(out->gid, c->gid.raw, sizeof(out->gid));
	out->lid = c->port.lid;
	return 0;
}

static int verbs_connect(void *card, void *opaque, const struct cairn_fhbn_address *peer)
{
	struct verbs_card *c = card;
	struct verbs_qp *q = opaque;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = RIGHTS };

	if (lib.ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			      IBV_QP_ACCESS_FLAGS))
		return failed("ibv_modify_qp to INIT");
	a = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR, .path_mtu = c->port.active_mtu, .dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = c->port.link_layer == IBV_LINK_LAYER_ETHERNET, .port_num = PORT,
			     .dlid = (uint16_t)peer->lid,
			     .grh = { .sgid_index = (uint8_t)c->gid_index, .hop_limit = 64 } },
	};
	memcpy(a.ah_attr.grh.dgid.raw, peer->gid, sizeof(peer->gid));
	if (lib.ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return failed("ibv_modify_qp to RTR");
	a = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	if (lib.ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		return failed("ibv_modify_qp to RTS");
	return 0;
}

const struct fhbn_ops fhbn_verbs_ops = {
	.open = verbs_open, .close = verbs_close, .add_key = verbs_add_key, .remove_key = verbs_remove_key,
	.create = verbs_create, .address = verbs_address, .connect = verbs_connect, .destroy = verbs_destroy,
};

#else

static int verbs_open(const struct cairn_fhbn_open_args *args, void **card)
{
	(void)args;
	(void)card;
	return cairn_error(ENODEV, "fhbn: built without <infiniband/mlx5dv.h>");
}

const struct fhbn_ops fhbn_verbs_ops = { .open = verbs_open };

#endif
