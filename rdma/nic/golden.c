// SPDX-License-Identifier: Apache-2.0
/*
 * golden NUMBER [SEED] - random work requests: compares Cairn's bytes with those of the vendor's own library
 *
 * Posts requests through stock libmlx5 on a queue pair of the NIC model (LD_PRELOAD=cairn_nic.so). At each
 * post it compares the entries in the send queue, the doorbell record and the doorbell; at each completion it
 * compares what libmlx5 and cqe.h read from the same entry. Both rings are filled with different junk
 * beforehand, so a byte that neither side writes differs, too. Every defective builder of wqe_mutants.c is
 * compared in the same way and must differ somewhere. Two requests that must fail come last.
 *
 * Exit status 0: no difference, all mutants caught; 1: a difference or a surviving mutant; 77: no device.
 */
#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "rdma/wqe/cqe.h"
#include "rdma/nic/nic.h"
#include "rdma/wqe/wqe_trial.h"

enum {
	AREA = 16384,			/* bytes of memory at each end */
	RECEIVE = AREA / 2,		/* upper bound of a message's bytes */
	MAX_SEND = 64, MAX_RECEIVE = 256,
	CHAIN = 4,			/* maximum requests in one post: a random 2-bit number plus 1 */
	MAX_MUTANTS = 128,
	/* bytes of a UAR page, and of one of the two buffers of its BlueFlame register */
	PAGE = 4096, BUFFER = 256,
};

struct queue {				/* a completion queue with this program's own consumer index */
	struct ibv_cq *cq;
	struct mlx5dv_cq dv;
	uint64_t index;
};

struct golden {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *local_mr, *remote_mr, *recv_mr;
	struct queue send, recv;
	struct ibv_qp *qp, *peer;
	struct mlx5dv_qp dv;
	struct cairn_wqe_ring theirs, ours;
	struct cairn_wqe_area area;
	uint64_t rng, index;		/* index of the next WQE */
	uint64_t wr, retired;		/* requests posted, and requests known to be complete */
	uint64_t at[MAX_SEND];		/* WQE index of request i, at i % MAX_SEND */
	uint64_t receives, received, consumers;
	char *model_page;		/* the model's UAR page, moved to where libmlx5 does not write */
	uint32_t half;			/* offset of the buffer that libmlx5 uses next */
	int failing;			/* errors are expected from now on */
	long differ, requests, across, records, doorbells, blueflames, completions;
	int caught[MAX_MUTANTS];
	uint8_t local[AREA], remote[AREA], receive[RECEIVE];
};

static void die(const char *what)
{
	printf("golden: %s\n", what);
	exit(1);
}

static void differ(struct golden *g, const char *what, uint64_t ours, uint64_t theirs)
{
	if (g->differ++ < 10)
		printf("golden: request %llu: %s: 0x%llx, libmlx5 has 0x%llx\n",
		       (unsigned long long)g->wr, what, (unsigned long long)ours, (unsigned long long)theirs);
}

static void same(struct golden *g, const char *what, uint64_t ours, uint64_t theirs)
{
	if (ours != theirs)
		differ(g, what, ours, theirs);
}

static const struct nic_stats *model_stats(void)
{
	const struct nic_stats *(*stats)(void);

	*(void **)&stats = dlsym(RTLD_DEFAULT, "cairn_nic_stats");
	return stats ? stats() : NULL;
}

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *other)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = other->qp_num,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1, .sgid_index = 1 } },
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16,
	};

	if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	    ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		die("a queue pair cannot be connected");
}

static struct ibv_mr *region(struct golden *g, void *p, size_t bytes)
{
	struct ibv_mr *mr = ibv_reg_mr(g->pd, p, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);

	if (!mr)
		die("memory cannot be registered");
	return mr;
}

static void open_queue(struct golden *g, struct queue *q, int entries)
{
	struct mlx5dv_obj obj = { .cq = { .out = &q->dv } };

	q->cq = ibv_create_cq(g->ctx, entries, NULL, NULL, 0);
	obj.cq.in = q->cq;
	if (!q->cq || mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ) || q->dv.cqe_size != sizeof(struct cairn_cqe))
		die("no completion queue with entries of 64 bytes");
}

/*
 * The model clears a doorbell from its UAR page as soon as it sees it. This function puts an ordinary page in
 * the UAR's place, so that the stores of libmlx5 can be read.
 */
static void take_register(struct golden *g)
{
	char *page = (char *)((uintptr_t)g->dv.bf.reg & ~(uintptr_t)(PAGE - 1));

	g->model_page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (g->dv.bf.size != BUFFER || g->model_page == MAP_FAILED ||
	    mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, g->model_page) == MAP_FAILED ||
	    mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != page)
		die("the register's page cannot be replaced");
}

static void open_pair(struct golden *g)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = MAX_SEND, .max_recv_wr = MAX_RECEIVE, .max_recv_sge = 1,
			 .max_send_sge = CAIRN_WQE_TRIAL_SGES, .max_inline_data = CAIRN_WQE_TRIAL_INLINE },
	};
	struct mlx5dv_obj obj = { .qp = { .out = &g->dv } };
	size_t bytes;

	if (!model_stats() || !devices || !devices[0]) {
		printf("golden: %s\n", devices && devices[0] ? "not on the NIC model" : "no RDMA device");
		exit(77);
	}
	g->ctx = ibv_open_device(devices[0]);
	if (!g->ctx)
		die("the device cannot be opened");
	ibv_free_device_list(devices);
	g->pd = ibv_alloc_pd(g->ctx);
	if (!g->pd)
		die("no protection domain");
	g->local_mr = region(g, g->local, AREA);
	g->remote_mr = region(g, g->remote, AREA);
	g->recv_mr = region(g, g->receive, RECEIVE);
	open_queue(g, &g->send, 2 * MAX_SEND);
	open_queue(g, &g->recv, 2 * MAX_RECEIVE);
	attr.send_cq = g->send.cq;
	attr.recv_cq = g->recv.cq;
	g->qp = ibv_create_qp(g->pd, &attr);
	g->peer = ibv_create_qp(g->pd, &attr);
	if (!g->qp || !g->peer)
		die("no queue pairs");
	/* prefer a queue pair number that is not a palindrome in bytes, so that swapped bytes show */
	if (cairn_be32(g->qp->qp_num) >> 8 == g->qp->qp_num) {
		struct ibv_qp *qp = g->qp;

		g->qp = g->peer;
		g->peer = qp;
	}
	connect_to(g->qp, g->peer);
	connect_to(g->peer, g->qp);
	obj.qp.in = g->qp;
	if (mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) || g->dv.sq.stride != CAIRN_WQE_BLOCK)
		die("mlx5dv_init_obj: no send queue with 64-byte blocks");
	take_register(g);
	g->theirs = (struct cairn_wqe_ring){ g->dv.sq.buf, g->dv.sq.wqe_cnt, g->qp->qp_num };
	g->ours = g->theirs;
	bytes = (size_t)g->dv.sq.wqe_cnt * CAIRN_WQE_BLOCK;
	g->ours.segs = aligned_alloc(CAIRN_WQE_BLOCK, bytes);
	if (!g->ours.segs)
		die("no memory");
	g->area = (struct cairn_wqe_area){
		.local = (uintptr_t)g->local, .remote = (uintptr_t)g->remote, .bytes = AREA,
		.lkey = g->local_mr->lkey, .rkey = g->remote_mr->rkey,
	};
}

static void refill(struct golden *g)
{
	struct ibv_sge sge = { (uintptr_t)g->receive, RECEIVE, g->recv_mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	while (g->receives - g->received < MAX_RECEIVE) {
		wr.wr_id = g->receives++;
		if (ibv_post_recv(g->peer, &wr, &bad))
			die("a receive is refused");
	}
}

static int wc_opcode(const struct cairn_cqe_result *r)
{
	switch (r->opcode) {
	case CAIRN_CQE_RESP_WRITE_IMM:
		return IBV_WC_RECV_RDMA_WITH_IMM;
	case CAIRN_CQE_RESP_SEND:
	case CAIRN_CQE_RESP_SEND_IMM:
		return IBV_WC_RECV;
	}
	switch (r->sent_opcode) {
	case CAIRN_WQE_WRITE:
	case CAIRN_WQE_WRITE_IMM:
		return IBV_WC_RDMA_WRITE;
	case CAIRN_WQE_SEND:
	case CAIRN_WQE_SEND_IMM:
		return IBV_WC_SEND;
	case CAIRN_WQE_READ:
		return IBV_WC_RDMA_READ;
	case CAIRN_WQE_ATOMIC_CS:
		return IBV_WC_COMP_SWAP;
	case CAIRN_WQE_ATOMIC_FA:
		return IBV_WC_FETCH_ADD;
	}
	return -1;
}

static int wc_status(uint8_t syndrome)
{
	switch (syndrome) {
	case 0:
		return IBV_WC_SUCCESS;
	case CAIRN_CQE_FLUSHED:
		return IBV_WC_WR_FLUSH_ERR;
	case CAIRN_CQE_REMOTE_ACCESS:
		return IBV_WC_REM_ACCESS_ERR;
	}
	return -1;
}

static void judge_completion(struct golden *g, const struct cairn_cqe_result *r, const struct ibv_wc *wc)
{
	int of_send = r->opcode == CAIRN_CQE_REQ || r->opcode == CAIRN_CQE_REQ_ERR;

	g->completions++;
	same(g, "completion: queue pair", r->qpn, wc->qp_num);
	same(g, "completion: status", (uint64_t)wc_status(r->syndrome), wc->status);
	if (of_send)
		same(g, "completion: index", cairn_cqe_index(g->at[g->retired % MAX_SEND], r->wqe_counter),
		     g->at[wc->wr_id % MAX_SEND]);
	else
		same(g, "completion: receive", r->wqe_counter % MAX_RECEIVE, wc->wr_id % MAX_RECEIVE);
	if (cairn_cqe_is_error(r)) {
		same(g, "completion: vendor's syndrome", r->vendor_syndrome, wc->vendor_err);
		return;
	}
	same(g, "completion: opcode", (uint64_t)wc_opcode(r), wc->opcode);
	if (!of_send || r->sent_opcode == CAIRN_WQE_READ)
		same(g, "completion: bytes", r->byte_count, wc->byte_len);
	if (r->opcode == CAIRN_CQE_RESP_WRITE_IMM || r->opcode == CAIRN_CQE_RESP_SEND_IMM)
		same(g, "completion: immediate", r->imm_be, wc->imm_data);
}

/* Reads one completion with cqe.h and with libmlx5; returns 0 if there is none. */
static int poll_one(struct golden *g, struct queue *q, struct ibv_wc *wc)
{
	const struct cairn_cqe *e = (const struct cairn_cqe *)q->dv.buf + (q->index & (q->dv.cqe_cnt - 1));
	const volatile uint8_t *op_own = &e->op_own;
	int before = cairn_cqe_valid(*op_own, q->index, q->dv.cqe_cnt);
	int n = ibv_poll_cq(q->cq, 1, wc), after = cairn_cqe_valid(*op_own, q->index, q->dv.cqe_cnt);
	struct cairn_cqe_result r;

	if (n < 0)
		die("ibv_poll_cq fails");
	if ((before && !n) || (n && !after))
		differ(g, "completion: valid", (uint64_t)before, (uint64_t)n);
	if (!n)
		return 0;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	r = cairn_cqe_parse(e);
	q->index++;
	judge_completion(g, &r, wc);
	same(g, "completion queue's doorbell record", cairn_cqe_dbrec(q->index), q->dv.dbrec[0]);
	if (wc->status && !g->failing) {
		printf("golden: %s (syndrome 0x%x: %s)\n", ibv_wc_status_str(wc->status), r.syndrome,
		       cairn_cqe_syndrome_name(r.syndrome));
		die("a request failed");
	}
	return 1;
}

static int poll_all(struct golden *g)
{
	struct ibv_wc wc;
	int any = 0;

	for (; poll_one(g, &g->send, &wc); any = 1)
		g->retired = wc.wr_id + 1;
	for (; poll_one(g, &g->recv, &wc); any = 1)
		g->received++;
	if (!g->failing)
		refill(g);
	return any;
}

static void give_up(const struct golden *g)
{
	const struct nic_stats *stats = model_stats();

	printf("golden: time-out after 20 s: %llu requests posted, %llu completed; %llu need a "
	       "receive, %llu consumed one; doorbell record %u; the model took %llu requests and "
	       "%llu doorbells, completed %llu\n",
	       (unsigned long long)g->wr, (unsigned long long)g->retired, (unsigned long long)g->consumers,
	       (unsigned long long)g->received, cairn_be32(g->dv.dbrec[MLX5_SND_DBR]),
	       (unsigned long long)stats->requests, (unsigned long long)stats->doorbells,
	       (unsigned long long)stats->completions);
	exit(1);
}

/* Waits until at most `requests` requests and `receives` consumed receives are outstanding. */
static void drain(struct golden *g, uint64_t requests, uint64_t receives)
{
	double end = now_s() + 20;

	while (g->wr - g->retired > requests || g->consumers - g->received > receives) {
		if (poll_all(g))
			end = now_s() + 20;
		else if (now_s() > end)
			give_up(g);
		else
			sched_yield();	/* the model's thread may need this core */
	}
}

static int consumes_receive(uint32_t opcode)
{
	return opcode == CAIRN_WQE_SEND || cairn_wqe_has_imm(opcode);
}

static void to_verbs(const struct cairn_wqe_trial *t, uint64_t wr_id, struct ibv_send_wr *wr,
		     struct ibv_sge *sge)
{
	static const uint8_t opcodes[] = {
		[CAIRN_WQE_WRITE] = IBV_WR_RDMA_WRITE, [CAIRN_WQE_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
		[CAIRN_WQE_SEND] = IBV_WR_SEND, [CAIRN_WQE_SEND_IMM] = IBV_WR_SEND_WITH_IMM,
		[CAIRN_WQE_READ] = IBV_WR_RDMA_READ, [CAIRN_WQE_ATOMIC_CS] = IBV_WR_ATOMIC_CMP_AND_SWP,
		[CAIRN_WQE_ATOMIC_FA] = IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	const struct cairn_wqe_req *r = &t->req;

	*wr = (struct ibv_send_wr){
		.wr_id = wr_id, .sg_list = sge, .num_sge = (int)r->num_sge, .opcode = opcodes[r->opcode],
		.imm_data = r->imm_be,
		.send_flags = (r->flags & CAIRN_WQE_SIGNALED ? IBV_SEND_SIGNALED : 0) |
			      (r->flags & CAIRN_WQE_SOLICITED ? IBV_SEND_SOLICITED : 0) |
			      (r->flags & CAIRN_WQE_FENCE ? IBV_SEND_FENCE : 0),
	};
	memcpy(sge, t->sge, r->num_sge * sizeof(*sge));
	if (!r->num_sge && r->opcode != CAIRN_WQE_READ) {
		*sge = (struct ibv_sge){ (uintptr_t)t->data, r->inline_bytes, 0 };
		wr->num_sge = 1;
		wr->send_flags |= IBV_SEND_INLINE;
	}
	if (cairn_wqe_is_atomic(r->opcode)) {
		wr->wr.atomic.remote_addr = r->remote_addr;
		wr->wr.atomic.rkey = r->rkey;
		wr->wr.atomic.swap = r->swap_add;
		wr->wr.atomic.compare_add = r->opcode == CAIRN_WQE_ATOMIC_CS ? r->compare : r->swap_add;
	} else {
		wr->wr.rdma.remote_addr = r->remote_addr;
		wr->wr.rdma.rkey = r->rkey;
	}
}

static void junk(const struct cairn_wqe_ring *q, uint64_t index, int ds, uint32_t word)
{
	for (int k = 0; k < ds; k++)
		for (int w = 0; w < 4; w++)
			cairn_wqe_at(q, index, (uint32_t)k)->w[w] = word;
}

/* Returns whether the WQE that builder b forms at this index differs from libmlx5's. last: whether the
 * doorbell record and the doorbell belong to this WQE. */
static int entry_differs(struct golden *g, const struct cairn_wqe_builder *b, const struct cairn_wqe_req *r,
			 uint64_t index, int last)
{
	struct cairn_wqe_bells bells;

	junk(&g->ours, index, cairn_wqe_ds(r), 0x33333333);
	if (cairn_wqe_builder_build(b, &g->ours, index, r, &bells) < 0 ||
	    cairn_wqe_differs(&g->ours, &g->theirs, index, r) >= 0)
		return 1;
	return last && (bells.dbrec != g->dv.dbrec[MLX5_SND_DBR] ||
			bells.doorbell != *(uint64_t *)((char *)g->dv.bf.reg + g->half));
}

static void show(const struct golden *g, const struct cairn_wqe_req *r, uint64_t index)
{
	const struct cairn_wqe_ring *rings[] = { &g->ours, &g->theirs };

	printf("golden: opcode 0x%x, %u segments, %u bytes inline, index %llu, byte %d\n", r->opcode,
	       r->num_sge, r->inline_bytes, (unsigned long long)index,
	       cairn_wqe_differs(&g->ours, &g->theirs, index, r));
	for (int i = 0; i < 2; i++) {
		printf("%s", i ? "  libmlx5" : "  ours   ");
		for (int k = 0; k < 4 * cairn_wqe_ds(r); k++)
			printf("%s%08x", k % 4 ? " " : " | ",
			       cairn_be32(cairn_wqe_at(rings[i], index, (uint32_t)k / 4)->w[k % 4]));
		printf("\n");
	}
}

/*
 * libmlx5 alternates between the register's two buffers and stores 8 bytes, or all blocks of a lone WQE that
 * fits ("BlueFlame"). The stores go to the ordinary page; they are checked and then passed on to the model.
 */
static void judge_doorbell(struct golden *g, uint64_t index, const struct cairn_wqe_req *r, int lone)
{
	char *reg = (char *)g->dv.bf.reg + g->half;
	volatile uint64_t *to = (volatile uint64_t *)(g->model_page + ((uintptr_t)reg & (PAGE - 1)));
	uint64_t got[BUFFER / 8];
	uint32_t bytes = 16 * (uint32_t)cairn_wqe_ds(r), copied = 8;

	memcpy(got, reg, BUFFER);
	memset(reg, 0, BUFFER);
	g->half ^= g->dv.bf.size;
	g->doorbells++;
	same(g, "doorbell", cairn_wqe_doorbell(*cairn_wqe_at(&g->ours, index, 0)), got[0]);
	if (lone && bytes > 16 && bytes <= BUFFER) {
		g->blueflames++;
		copied = (bytes + 63) / 64 * 64;
		for (uint32_t i = 0; i < copied; i += 16)
			if (memcmp(got + i / 8, cairn_wqe_at(&g->theirs, index, i / 16), 16))
				differ(g, "BlueFlame copy: from byte", i, i);
	}
	for (uint32_t i = copied / 8; i < BUFFER / 8; i++)
		same(g, "after the doorbell", 0, got[i]);
	for (uint32_t i = copied / 8; i-- > 1; )
		to[i] = got[i];
	__atomic_thread_fence(__ATOMIC_RELEASE);
	to[0] = got[0];
}

/* Posts 1 to CHAIN requests in one call; half of the calls post one. */
static void post_chain(struct golden *g, long left)
{
	struct cairn_wqe_trial t[CHAIN];
	struct ibv_sge sge[CHAIN][CAIRN_WQE_TRIAL_SGES];
	struct ibv_send_wr wr[CHAIN], *bad;
	int n = cairn_wqe_random(&g->rng) & 1 ? 1 : 1 + (int)(cairn_wqe_random(&g->rng) >> 62);
	uint64_t index = g->index;

	if (n > left)
		n = (int)left;
	drain(g, MAX_SEND - CHAIN - 1, MAX_RECEIVE - CHAIN);
	for (int i = 0; i < n; i++) {
		int ds;

		cairn_wqe_trial_random(&t[i], &g->area, &g->rng);
		/* an unsignalled request is known to be complete once a later signalled one is */
		if (g->wr % 16 == 15 || (i == n - 1 && n == left))
			t[i].req.flags |= CAIRN_WQE_SIGNALED;
		ds = cairn_wqe_ds(&t[i].req);
		to_verbs(&t[i], g->wr, &wr[i], sge[i]);
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		junk(&g->theirs, index, ds, 0xcccccccc);
		g->consumers += consumes_receive(t[i].req.opcode);
		g->at[g->wr++ % MAX_SEND] = index;
		index += cairn_wqe_blocks((uint32_t)ds);
	}
	if (ibv_post_send(g->qp, wr, &bad))
		die("libmlx5 refuses a request");
	for (int i = 0; i < n; i++) {
		struct cairn_wqe_req *r = &t[i].req;
		uint64_t at = g->index;
		int last = i == n - 1;

		for (int m = 0; cairn_wqe_mutant(m); m++)
			if (!g->caught[m])
				g->caught[m] = entry_differs(g, cairn_wqe_mutant(m), r, at, last);
		if (entry_differs(g, NULL, r, at, last)) {
			if (g->differ < 10)
				show(g, r, at);
			differ(g, "entry or doorbell record", cairn_wqe_dbrec(index),
			       g->dv.dbrec[MLX5_SND_DBR]);
		}
		g->requests++;
		g->across += (at & (g->ours.num_blocks - 1)) * 4 + (uint64_t)cairn_wqe_ds(r) >
			     4 * (uint64_t)g->ours.num_blocks;
		g->index += cairn_wqe_blocks((uint32_t)cairn_wqe_ds(r));
		if (last)
			judge_doorbell(g, at, r, n == 1);
	}
	g->records++;
}

/*
 * Posts a request with a wrong key and one more. The results must be a remote access error and a flush; the
 * peer fails as well, so that each receive it still holds is flushed, too.
 */
static void fail(struct golden *g)
{
	struct cairn_wqe_trial t = {
		.req = { .opcode = CAIRN_WQE_WRITE, .flags = CAIRN_WQE_SIGNALED, .num_sge = 1,
			 .remote_addr = g->area.remote, .rkey = g->area.rkey ^ 0xabcd00 },
		.sge = { { g->area.local, 64, g->area.lkey } },
	};
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;

	t.req.sge = t.sge;
	g->failing = 1;
	g->consumers = g->receives;
	for (int i = 0; i < 2; i++) {
		to_verbs(&t, g->wr, &wr, &sge);
		g->at[g->wr++ % MAX_SEND] = g->index++;
		if (ibv_post_send(g->qp, &wr, &bad))
			die("libmlx5 refuses a request");
		entry_differs(g, NULL, &t.req, g->index - 1, 1);
		judge_doorbell(g, g->index - 1, &t.req, 1);
		t.req.rkey = g->area.rkey;
	}
	drain(g, 0, 0);
}

int main(int argc, char **argv)
{
	long number = argc > 1 ? atol(argv[1]) : 1000000;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	unsigned long long rules;
	int mutants = 0, caught = 0;
	struct golden *g;

	setvbuf(stdout, NULL, _IOLBF, 0);
	g = aligned_alloc(PAGE, (sizeof(*g) + PAGE - 1) / PAGE * PAGE);
	if (number < 1)
		die("usage: golden NUMBER [SEED]");
	if (!g || cairn_wqe_mutant(MAX_MUTANTS))
		die("out of memory, or more mutants than MAX_MUTANTS");
	memset(g, 0, sizeof(*g));
	g->rng = seed * 0x9e3779b97f4a7c15u | 1;
	open_pair(g);
	refill(g);
	while (g->requests < number)
		post_chain(g, number - g->requests);
	drain(g, 0, 0);
	fail(g);
	for (; cairn_wqe_mutant(mutants); mutants++) {
		caught += g->caught[mutants];
		if (!g->caught[mutants])
			printf("wqe mutants: %s is not caught\n",
			       cairn_wqe_builder_name(cairn_wqe_mutant(mutants)));
	}
	rules = model_stats()->rules;
	printf("golden: seed %llu: %llu blocks, %llu wraps of the 16-bit index, %llu of a ring of %u blocks, "
	       "%ld entries across its end\n", (unsigned long long)seed, (unsigned long long)g->index,
	       (unsigned long long)g->index >> 16, (unsigned long long)g->index / g->ours.num_blocks,
	       g->ours.num_blocks, g->across);
	printf("golden: %ld doorbell records, %ld doorbells, %ld BlueFlame copies, %ld completions\n",
	       g->records, g->doorbells, g->blueflames, g->completions);
	printf("golden: %ld work requests: %ld differ; the model saw %llu rules broken\n", g->requests,
	       g->differ, rules);
	printf("wqe mutants: %d of %d caught\n", caught, mutants);
	return g->differ || caught != mutants || rules;
}
