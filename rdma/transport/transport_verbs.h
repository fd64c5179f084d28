/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_verbs - RC queue pairs of any RDMA device, posted by a proxy thread; private to
 * transport_verbs.c and transport_proxy.c
 *
 * Host and kernels write descriptors into a channel's queue (transport_queue.h). The transport's proxy thread
 * takes them in order and posts each as one list: a WRITE of the payload (several if it exceeds the port's
 * longest message), an inline WRITE of the word if it has changed, and an inline WRITE of the value. One
 * queue pair delivers in order, so the value arrives last. The last request of each descriptor is signalled.
 * Its completion advances `done`, which the queue's writers poll; the descriptor's place and its source are
 * then free.
 *
 * Queue, done and slots are in host memory, mapped for the GPU if there is one. libibverbs is opened at
 * run time.
 */
#ifndef CAIRN_TRANSPORT_VERBS_H
#define CAIRN_TRANSPORT_VERBS_H

#include <infiniband/verbs.h>

#include "rdma/transport/transport_impl.h"

/* Members have the names of libibverbs' functions; macros of the same names must not expand. */
#undef ibv_reg_mr
#undef ibv_query_port
#define VERBS_FUNCTIONS(F)	\
	F(get_device_list) F(free_device_list) F(get_device_name) F(open_device) F(close_device)	\
	F(alloc_pd) F(dealloc_pd) F(reg_mr) F(dereg_mr) F(create_cq) F(destroy_cq) F(create_qp)	\
	F(destroy_qp) F(modify_qp) F(query_port) F(query_gid) F(wc_status_str)

struct verbs_functions {
#define F(name) __typeof__(ibv_##name) *name;
	VERBS_FUNCTIONS(F)
#undef F
};

struct verbs {
	struct cairn_transport base;
	const struct verbs_functions *lib;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint8_t gid_index;
	uint64_t max_message;
	pthread_t thread;
	int has_thread;
	atomic_int stop;
	struct transport_work work;	/* protects the list below; the proxy holds it during a round */
	struct verbs_channel *first;
};

struct verbs_region {
	struct cairn_region base;
	struct ibv_mr *mr;
	int mapped;
};

struct verbs_remote {
	struct cairn_remote base;
	uint64_t addr;
	uint32_t rkey;
};

struct verbs_address {
	uint64_t slots;
	uint32_t slots_rkey, num_slots, qpn, psn;
	uint16_t lid;
	uint8_t mtu, is_global;
	union ibv_gid gid;
	uint64_t pid;			/* used in texts */
};

struct verbs_channel {
	struct cairn_channel base;
	struct verbs_channel *next_of_all;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *slots_mr;
	/* [num_slots + 1], written by the peer; the last one receives probes */
	struct cairn_signal *slots;
	uint64_t *queue;			/* [depth][8] */
	_Atomic uint64_t *done;			/* [0]: descriptors completed, [1]: errno */
	uint64_t *next;				/* for kernels, in device memory: index, done as last seen */
	uint64_t posted;			/* index of the host's next descriptor */
	/* channel_device was called, so `posted` must be read from `next` */
	int kernels_put;
	uint32_t psn;
	struct verbs_address peer;

	/* the proxy's own state */
	uint64_t taken;
	uint64_t bytes_at;			/* bytes of the descriptor's payload posted so far */
	uint32_t requests, max_requests;	/* outstanding in the queue pair */
	uint32_t unsignalled;			/* number of unsignalled requests since the last signalled */
	uint64_t *words;			/* [num_slots], last sent */
	atomic_int probe;			/* 1: requested; 2: posted */
	uint64_t probed;			/* time in ns */
};

int verbs_proxy_start(struct verbs *v);
void verbs_proxy_stop(struct verbs *v);
int verbs_put(struct cairn_channel *c, const struct cairn_put *p, uint64_t deadline);
int verbs_flush(struct cairn_channel *c, uint64_t deadline);
void verbs_probe(struct cairn_channel *c);

#endif
