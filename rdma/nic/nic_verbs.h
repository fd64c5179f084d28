/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_verbs - two connected ends in one process, for programs over libibverbs; each wait has a time-out
 */
#ifndef CAIRN_NIC_VERBS_H
#define CAIRN_NIC_VERBS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define END_BYTES	(128 << 10)
#define ALL_RIGHTS	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
			 IBV_ACCESS_REMOTE_ATOMIC)

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buf;			/* [END_BYTES] */
	union ibv_gid gid;
	struct ibv_port_attr port;
};

static int gid_index = 1;

static inline double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void must(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(2);
}

static inline void end_open(struct end *e, struct ibv_device *dev, int num_cqes)
{
	e->ctx = ibv_open_device(dev);
	must(!!e->ctx, "ibv_open_device");
	e->pd = ibv_alloc_pd(e->ctx);
	must(!!e->pd, "ibv_alloc_pd");
	e->cq = ibv_create_cq(e->ctx, num_cqes, NULL, NULL, 0);
	must(!!e->cq, "ibv_create_cq");
	e->buf = aligned_alloc(4096, END_BYTES);
	must(!!e->buf, "aligned_alloc");
	memset(e->buf, 0, END_BYTES);
	e->mr = ibv_reg_mr(e->pd, e->buf, END_BYTES, ALL_RIGHTS);
	must(!!e->mr, "ibv_reg_mr");
	must(!ibv_query_gid(e->ctx, 1, gid_index, &e->gid), "ibv_query_gid");
	must(!ibv_query_port(e->ctx, 1, &e->port), "ibv_query_port");
}

static inline void end_close(struct end *e)
{
	must(!e->qp || !ibv_destroy_qp(e->qp), "ibv_destroy_qp");
	must(!ibv_dereg_mr(e->mr), "ibv_dereg_mr");
	must(!ibv_destroy_cq(e->cq), "ibv_destroy_cq");
	must(!ibv_dealloc_pd(e->pd), "ibv_dealloc_pd");
	must(!ibv_close_device(e->ctx), "ibv_close_device");
	free(e->buf);
}

static inline void end_make_qp(struct end *e)
{
	struct ibv_qp_init_attr a = {
		.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 32, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2,
			 .max_inline_data = 64 },
	};

	must(!e->qp || !ibv_destroy_qp(e->qp), "ibv_destroy_qp");
	e->qp = ibv_create_qp(e->pd, &a);
	must(!!e->qp, "ibv_create_qp");
}

static inline int end_modify(struct end *e, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = { .qp_state = state };

	return ibv_modify_qp(e->qp, &a, IBV_QP_STATE);
}

static inline void end_init(struct end *e, int access)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1,
	.qp_access_flags = (unsigned)access };

	must(!ibv_modify_qp(e->qp, &a,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
}

static inline void end_connect(struct end *e, const struct end *peer)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR, .path_mtu = e->port.active_mtu, .dest_qp_num = peer->qp->qp_num,
		.rq_psn = 100, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = peer->gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 4 } },
	};

	must(!ibv_modify_qp(e->qp, &a,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	a = (struct ibv_qp_attr) {	/* 6 retries: for soft-RoCE 7 means infinite, as for rnr_retry */
		.qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 6, .rnr_retry = 1, .sq_psn = 100,
		.max_rd_atomic = 1,
	};
	must(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/*
 * Lets other threads run during a wait: the model's engine may need this core, and would otherwise get it
 * only when this thread's slice ends. After 10 ms a wait sleeps. If a yield let another program run for long,
 * all waits sleep for some time after it.
 */
static inline void relax(double begun)
{
	static _Thread_local double crowded_until;
	double before = now_s();

	if (before - begun > 0.01 || before < crowded_until) {
		usleep(50);
		return;
	}
	sched_yield();
	if (now_s() - before > 0.0002)
		crowded_until = before + 0.2;
}

/* Returns 1 with a completion, or 0 after the time-out. */
static inline int end_wait(struct end *e, struct ibv_wc *wc, double seconds)
{
	double begun = now_s();
	int n;

	for (;;) {
		n = ibv_poll_cq(e->cq, 1, wc);
		must(n >= 0, "ibv_poll_cq");
		if (n || now_s() >= begun + seconds)
			return n;
		relax(begun);
	}
}

static inline int end_state(struct end *e)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	must(!ibv_query_qp(e->qp, &a, IBV_QP_STATE, &init), "ibv_query_qp");
	return (int)a.qp_state;
}

static inline struct ibv_sge end_sge(const struct end *e, size_t at, uint32_t bytes)
{
	return (struct ibv_sge) { (uintptr_t)(e->buf + at), bytes, e->mr->lkey };
}

/* Gives both ends fresh, connected queue pairs. Completions of the old ones are discarded. */
static inline void ends_reset(struct end *a, struct end *b, int access_b)
{
	struct ibv_wc wc;

	end_make_qp(a);
	end_make_qp(b);
	while (end_wait(a, &wc, 0) || end_wait(b, &wc, 0))
		;
	end_init(a, ALL_RIGHTS);
	end_init(b, access_b);
	end_connect(a, b);
	end_connect(b, a);
}

#endif
