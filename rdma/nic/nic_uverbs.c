// SPDX-License-Identifier: Apache-2.0
/*
 * nic_uverbs.c - the kernel's side of the verbs commands, which are write()s to the device file
 *
 * libibverbs tries ioctl first and falls back to write() on ENOTTY. Extended commands are refused;
 * libmlx5 takes that for an old kernel and works without them.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include "rdma/nic/nic_model.h"

/* enum ib_qp_attr_mask */
enum {
	ATTR_STATE = 1 << 0, ATTR_CUR_STATE = 1 << 1, ATTR_ACCESS = 1 << 3, ATTR_PORT = 1 << 5,
	ATTR_PATH_MTU = 1 << 8,
	ATTR_TIMEOUT = 1 << 9, ATTR_RETRY = 1 << 10, ATTR_RNR_RETRY = 1 << 11, ATTR_RQ_PSN = 1 << 12,
	ATTR_RD_ATOMIC = 1 << 13, ATTR_MIN_RNR_TIMER = 1 << 15, ATTR_SQ_PSN = 1 << 16,
	ATTR_DEST_RD_ATOMIC = 1 << 17, ATTR_DEST_QPN = 1 << 20,
};

enum {
	PORT_ACTIVE = 4, PORT_LINK_UP = 5, MTU_4096 = 5, LINK_ETHERNET = 2, QPT_RC = 2,
	MAX_BLOCKS = 1 << 15, MAX_ENTRIES = 1 << 22, VENDOR_MELLANOX = 0x2c9, PART_CONNECTX7 = 0x1021,
};

struct command {
	const void *in;
	void *out;
	size_t out_bytes;
};

/* Truncates answers to the size of the caller's buffer, as the kernel does. */
static void answer(const struct command *c, const void *data, size_t bytes)
{
	memset(c->out, 0, c->out_bytes);
	memcpy(c->out, data, bytes < c->out_bytes ? bytes : c->out_bytes);
}

static int get_context(const struct command *c)
{
	struct {
		struct ib_uverbs_get_context_resp r;
		struct mlx5_ib_alloc_ucontext_resp m;
	} a = {
		.r = { .async_fd = (uint32_t)eventfd(0, EFD_CLOEXEC), .num_comp_vectors = 1 },
		.m = {
			.qp_tab_size = 1 << 16, .bf_reg_size = NIC_BF_REG,
			.tot_bfregs = NIC_NUM_UAR_PAGES * 2,
			.cache_line_size = 64, .max_sq_desc_sz = NIC_MAX_WQE, .max_rq_desc_sz = 512,
			.max_send_wqebb = MAX_BLOCKS, .max_recv_wr = MAX_BLOCKS,
			.max_srq_recv_wr = MAX_BLOCKS,
			.num_ports = 1, .cqe_version = 1, .log_uar_size = 12, .num_uars_per_page = 1,
			.response_length = sizeof(a.m),
		},
	};

	answer(c, &a, sizeof(a));
	return 0;
}

static int query_device(const struct command *c)
{
	struct ib_uverbs_query_device_resp r = {
		.vendor_id = VENDOR_MELLANOX, .vendor_part_id = PART_CONNECTX7, .max_mr_size = UINT64_MAX,
		.page_size_cap = ~(uint64_t)(NIC_PAGE - 1), .max_qp = NIC_MAX_QPS, .max_qp_wr = MAX_BLOCKS,
		.max_sge = 30,
		.max_cq = NIC_MAX_CQS, .max_cqe = MAX_ENTRIES, .max_mr = NIC_MAX_MRS, .max_pd = 1 << 16,
		.phys_port_cnt = 1,
		.max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16, .max_res_rd_atom = 16 * NIC_MAX_QPS,
		.atomic_cap = 1,
		.max_pkeys = 1,
	};

	answer(c, &r, sizeof(r));
	return 0;
}

static int query_port(const struct command *c)
{
	struct ib_uverbs_query_port_resp r = {
		.state = PORT_ACTIVE, .max_mtu = MTU_4096, .active_mtu = MTU_4096, .gid_tbl_len = 2,
		.pkey_tbl_len = 1,
		.max_msg_sz = 1u << 30, .link_layer = LINK_ETHERNET, .phys_state = PORT_LINK_UP,
		.active_width = 2,
		.active_speed = 64,
	};

	answer(c, &r, sizeof(r));
	return 0;
}

static int alloc_pd(const struct command *c)
{
	struct {
		struct ib_uverbs_alloc_pd_resp r;
		struct mlx5_ib_alloc_pd_resp m;
	} a = { .r.pd_handle = ++nic->next_pd };

	a.m.pdn = a.r.pd_handle;
	answer(c, &a, sizeof(a));
	return 0;
}

static int reg_mr(const struct command *c)
{
	const struct ib_uverbs_reg_mr *q = c->in;
	struct ib_uverbs_reg_mr_resp r = { 0 };
	int i;

	if (q->access_flags & (NIC_REMOTE_WRITE | NIC_REMOTE_ATOMIC) && !(q->access_flags & NIC_LOCAL_WRITE))
		return -EINVAL;
	i = nic_mr_add(q->pd_handle, q->start, q->length, q->hca_va, q->access_flags);
	if (i < 0)
		return i;
	r.mr_handle = (uint32_t)i;
	r.lkey = r.rkey = nic->mrs[i].key;
	answer(c, &r, sizeof(r));
	return 0;
}

static int dereg_mr(const struct command *c)
{
	const struct ib_uverbs_dereg_mr *q = c->in;

	if (q->mr_handle >= NIC_MAX_MRS)
		return -EINVAL;
	nic->mrs[q->mr_handle].used = 0;
	return 0;
}

static int create_comp_channel(const struct command *c)
{
	struct ib_uverbs_create_comp_channel_resp r = { 0 };
	int fd = nic_channel_open();

	if (fd < 0)
		return fd;
	r.fd = (uint32_t)fd;
	answer(c, &r, sizeof(r));
	return 0;
}

static int create_cq(const struct command *c)
{
	const struct ib_uverbs_create_cq *q = c->in;
	const struct mlx5_ib_create_cq *m = (const void *)q->driver_data;
	struct {
		struct ib_uverbs_create_cq_resp r;
		struct mlx5_ib_create_cq_resp m;
	} a = { 0 };
	uint32_t entries = 1;
	int i, ret;

	if (m->cqe_size != sizeof(struct cairn_cqe) || m->cqe_comp_en || q->cqe >= MAX_ENTRIES)
		return -EINVAL;
	while (entries < q->cqe + 1)
		entries *= 2;
	i = nic_cq_add(m->buf_addr, m->db_addr, entries);
	if (i < 0)
		return i;
	ret = q->comp_channel < 0 ? 0 : nic_cq_watch(i, q->comp_channel, q->user_handle);
	if (ret) {
		nic->cqs[i].used = 0;
		return ret;
	}
	a.r.cq_handle = (uint32_t)i;
	a.r.cqe = entries - 1;
	a.m.cqn = NIC_FIRST_CQN + (uint32_t)i;
	answer(c, &a, sizeof(a));
	return 0;
}

static int destroy_cq(const struct command *c)
{
	const struct ib_uverbs_destroy_cq *q = c->in;
	struct ib_uverbs_destroy_cq_resp r = { 0 };
	uint32_t i;

	if (q->cq_handle >= NIC_MAX_CQS)
		return -EINVAL;
	for (i = 0; i < NIC_MAX_QPS; i++)
		if (nic->qps[i].used && (nic->qps[i].send_cq == q->cq_handle ||
					 nic->qps[i].recv_cq == q->cq_handle))
			return -EBUSY;
	r.comp_events_reported = nic_cq_unwatch((int)q->cq_handle);
	nic->cqs[q->cq_handle].used = 0;
	answer(c, &r, sizeof(r));
	return 0;
}

static int create_qp(const struct command *c)
{
	const struct ib_uverbs_create_qp *q = c->in;
	const struct mlx5_ib_create_qp *m = (const void *)q->driver_data;
	uint64_t receive_bytes = (uint64_t)m->rq_wqe_count << m->rq_wqe_shift;
	struct nic_qp init = {
		.pd = q->pd_handle, .uidx = m->uidx, .rq = m->buf_addr, .sq = m->buf_addr + receive_bytes,
		.dbrec = m->db_addr, .sq_blocks = m->sq_wqe_count, .rq_entries = m->rq_wqe_count,
		.rq_shift = m->rq_wqe_shift, .send_cq = q->send_cq_handle, .recv_cq = q->recv_cq_handle,
		.sq_sig_all = q->sq_sig_all,
		.caps = { q->max_send_wr, q->max_recv_wr, q->max_send_sge, q->max_recv_sge,
			  q->max_inline_data },
	};
	struct {
		struct ib_uverbs_create_qp_resp r;
		struct mlx5_ib_create_qp_resp m;
	} a = { 0 };
	int i;

	if (q->qp_type != QPT_RC || q->is_srq)
		return -EOPNOTSUPP;
	if (q->send_cq_handle >= NIC_MAX_CQS || q->recv_cq_handle >= NIC_MAX_CQS || !m->sq_wqe_count ||
	    m->sq_wqe_count > MAX_BLOCKS || m->sq_wqe_count & (m->sq_wqe_count - 1))
		return -EINVAL;
	i = nic_qp_add(&init);
	if (i < 0)
		return i;
	if (nic_engine_start()) {
		nic_qp_remove(i);
		return -EAGAIN;
	}
	a.r.qp_handle = (uint32_t)i;
	a.r.qpn = nic->qps[i].qpn;
	a.r.max_send_wr = q->max_send_wr;
	a.r.max_recv_wr = q->max_recv_wr;
	a.r.max_send_sge = q->max_send_sge;
	a.r.max_recv_sge = q->max_recv_sge;
	a.r.max_inline_data = q->max_inline_data;
	a.m.bfreg_index = nic_bfreg(i);
	answer(c, &a, sizeof(a));
	return 0;
}

static struct nic_qp *own_qp(uint32_t handle)
{
	return handle < NIC_MAX_QPS && nic->qps[handle].used && nic->qps[handle].pid == getpid() ?
	       &nic->qps[handle] : NULL;
}

static int modify_qp(const struct command *c)
{
	const struct ib_uverbs_modify_qp *q = c->in;
	struct nic_qp *qp = own_qp(q->qp_handle);
	int ret = 0;

	if (!qp)
		return -EINVAL;
	if (q->attr_mask & ATTR_CUR_STATE && q->cur_qp_state != qp->state)
		return -EINVAL;
	if (q->attr_mask & ATTR_STATE)
		ret = nic_qp_move(qp, q->qp_state);
	if (ret)
		return ret;
#define SET(bit, field, value) do { if (q->attr_mask & (bit)) qp->field = (value); } while (0)
	SET(ATTR_ACCESS, access, q->qp_access_flags);
	SET(ATTR_PORT, port, q->port_num);
	SET(ATTR_PATH_MTU, mtu, q->path_mtu);
	SET(ATTR_TIMEOUT, timeout, q->timeout & 31);
	SET(ATTR_RETRY, retry, q->retry_cnt & 7);
	SET(ATTR_RNR_RETRY, rnr_retry, q->rnr_retry & 7);
	SET(ATTR_RQ_PSN, rq_psn, q->rq_psn);
	SET(ATTR_SQ_PSN, sq_psn, q->sq_psn);
	SET(ATTR_RD_ATOMIC, rd_atomic, q->max_rd_atomic);
	SET(ATTR_DEST_RD_ATOMIC, dest_rd_atomic, q->max_dest_rd_atomic);
	SET(ATTR_MIN_RNR_TIMER, min_rnr_timer, q->min_rnr_timer);
	SET(ATTR_DEST_QPN, dest_qpn, q->dest_qp_num);
#undef SET
	return 0;
}

static int query_qp(const struct command *c)
{
	const struct ib_uverbs_query_qp *q = c->in;
	const struct nic_qp *qp = own_qp(q->qp_handle);
	struct ib_uverbs_query_qp_resp r = { 0 };

	if (!qp)
		return -EINVAL;
	r.qp_state = r.cur_qp_state = (uint8_t)qp->state;
	r.max_send_wr = qp->caps[0];
	r.max_recv_wr = qp->caps[1];
	r.max_send_sge = qp->caps[2];
	r.max_recv_sge = qp->caps[3];
	r.max_inline_data = qp->caps[4];
	r.rq_psn = qp->rq_psn;
	r.sq_psn = qp->sq_psn;
	r.dest_qp_num = qp->dest_qpn;
	r.qp_access_flags = qp->access;
	r.path_mtu = qp->mtu;
	r.max_rd_atomic = qp->rd_atomic;
	r.max_dest_rd_atomic = qp->dest_rd_atomic;
	r.min_rnr_timer = qp->min_rnr_timer;
	r.port_num = qp->port;
	r.timeout = qp->timeout;
	r.retry_cnt = qp->retry;
	r.rnr_retry = qp->rnr_retry;
	r.sq_sig_all = (uint8_t)qp->sq_sig_all;
	answer(c, &r, sizeof(r));
	return 0;
}

static int destroy_qp(const struct command *c)
{
	const struct ib_uverbs_destroy_qp *q = c->in;
	struct ib_uverbs_destroy_qp_resp r = { 0 };

	if (!own_qp(q->qp_handle))
		return -EINVAL;
	nic_qp_remove((int)q->qp_handle);
	answer(c, &r, sizeof(r));
	return 0;
}

static int dispatch(uint32_t number, const struct command *c)
{
	switch (number) {
	case IB_USER_VERBS_CMD_GET_CONTEXT:
		return get_context(c);
	case IB_USER_VERBS_CMD_QUERY_DEVICE:
		return query_device(c);
	case IB_USER_VERBS_CMD_QUERY_PORT:
		return query_port(c);
	case IB_USER_VERBS_CMD_ALLOC_PD:
		return alloc_pd(c);
	case IB_USER_VERBS_CMD_DEALLOC_PD:
		return 0;
	case IB_USER_VERBS_CMD_REG_MR:
		return reg_mr(c);
	case IB_USER_VERBS_CMD_DEREG_MR:
		return dereg_mr(c);
	case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
		return create_comp_channel(c);
	case IB_USER_VERBS_CMD_CREATE_CQ:
		return create_cq(c);
	case IB_USER_VERBS_CMD_DESTROY_CQ:
		return destroy_cq(c);
	case IB_USER_VERBS_CMD_CREATE_QP:
		return create_qp(c);
	case IB_USER_VERBS_CMD_MODIFY_QP:
		return modify_qp(c);
	case IB_USER_VERBS_CMD_QUERY_QP:
		return query_qp(c);
	case IB_USER_VERBS_CMD_DESTROY_QP:
		return destroy_qp(c);
	default:
		return -EOPNOTSUPP;
	}
}

/* Every command that has an answer begins with the answer's address. */
ssize_t nic_command(const void *cmd, size_t bytes)
{
	const struct ib_uverbs_cmd_hdr *h = cmd;
	struct command c = { .in = h + 1 };
	uint64_t out;
	int ret;

	if (bytes < sizeof(*h) || h->command & IB_USER_VERBS_CMD_FLAG_EXTENDED) {
		errno = bytes < sizeof(*h) ? EINVAL : EOPNOTSUPP;
		return -1;
	}
	if (h->out_words && bytes >= sizeof(*h) + sizeof(out)) {
		memcpy(&out, c.in, sizeof(out));
		c.out = (void *)(uintptr_t)out;
		c.out_bytes = (size_t)h->out_words * 4;
	}
	nic_lock();
	ret = dispatch(h->command & IB_USER_VERBS_CMD_COMMAND_MASK, &c);
	nic_unlock();
	if (ret) {
		errno = -ret;
		return -1;
	}
	return (ssize_t)bytes;
}
