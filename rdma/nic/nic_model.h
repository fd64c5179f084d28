/* SPDX-License-Identifier: Apache-2.0 */
/* nic_model - internals shared by the files of the NIC model; the public contract is nic.h */
#ifndef CAIRN_NIC_MODEL_H
#define CAIRN_NIC_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "rdma/nic/nic.h"
#include "rdma/nic/nic_wire.h"

enum {
	NIC_MAX_QPS = 120,		/* each has its own BlueFlame register */
	NIC_MAX_CQS = 256,
	NIC_MAX_MRS = 1024,
	NIC_FIRST_QPN = 0x100,
	NIC_FIRST_CQN = 0x40,
	NIC_FIRST_KEY = 0x18,		/* in bits 8 and up of a key */
	NIC_NUM_UAR_PAGES = 64,
	NIC_PAGE = 4096,
	NIC_BF_REG = 512,		/* bytes of a BlueFlame register: two buffers */
	NIC_BF_BUF = 256,
	NIC_BF_OFFSET = 0x800,		/* of the first register in its UAR page */
	NIC_REGS_PER_PAGE = 4,		/* in a UAR page; only the first two are used */
	NIC_MAX_WQE = 1024,		/* bytes */
	NIC_MAX_SEGS = NIC_MAX_WQE / 16,
	NIC_MAX_INFLIGHT = 64,		/* requests executed but not yet retired */
};

enum nic_state { NIC_RESET, NIC_INIT, NIC_RTR, NIC_RTS, NIC_SQD, NIC_SQE, NIC_ERR };

/* Access rights, with the bits of the verbs. */
enum { NIC_LOCAL_WRITE = 1, NIC_REMOTE_WRITE = 2, NIC_REMOTE_READ = 4, NIC_REMOTE_ATOMIC = 8 };

/* Addresses belong to process `pid`. */
struct nic_mr {
	pid_t pid;
	int used, revoked;
	uint32_t pd, key, access;
	uint64_t addr, bytes, iova;
};

struct nic_cq {
	pid_t pid;
	int used, failed;
	uint64_t buf, dbrec;
	uint32_t num, produced;		/* produced: also read by the engine without the lock */
	int any_solicited;
	uint32_t solicited;		/* entries up to the last one that is solicited or an error */
};

struct nic_qp {
	pid_t pid;
	int used, sq_sig_all;
	enum nic_state state;
	uint32_t qpn, pd, uidx;
	uint64_t sq, rq, dbrec;		/* dbrec: uint32_t[2]: receive, send */
	uint32_t sq_blocks, rq_entries, rq_shift;
	uint32_t send_cq, recv_cq, dest_qpn, access;
	uint8_t rnr_retry, min_rnr_timer, timeout, retry, mtu, rd_atomic, dest_rd_atomic, port;
	uint32_t rq_psn, sq_psn;
	uint16_t rq_head;		/* next receive to be consumed */
	uint32_t serial;		/* identifies this use of the slot */
	uint32_t caps[5];		/* requested: send wr, receive wr, send sge, receive sge, inline */
};

/* State that all processes on this NIC share; in a file, or private to this process. */
struct nic_tables {
	atomic_int ready;
	pthread_mutex_t lock;		/* robust, because a process may die while holding it */
	uint32_t next_qp, next_pd, serial, generation;
	struct nic_mr mrs[NIC_MAX_MRS];
	struct nic_cq cqs[NIC_MAX_CQS];
	struct nic_qp qps[NIC_MAX_QPS];
};

struct nic_segment {
	uint64_t addr;
	uint32_t bytes, key;
	const uint8_t *inline_bytes;	/* points into the request's own copy, or NULL */
};

/* A request as fetched from the ring: the copy, and its decoded fields. */
struct nic_request {
	uint8_t raw[NIC_MAX_WQE];
	uint16_t index;
	uint8_t opcode, flags, ds;
	int num_blocks, num_segments, syndrome;
	uint32_t imm, rkey;
	uint64_t remote, swap_add, compare, bytes;
	struct nic_segment segments[NIC_MAX_SEGS];
};

/* A request executed but not yet retired: its completion, and data that a READ has yet to place. */
struct nic_inflight {
	uint8_t first[CAIRN_WQE_BLOCK];	/* the ring's bytes when fetched, to detect reuse */
	int first_bytes, num_blocks;
	uint16_t index;
	uint8_t opcode, syndrome, signalled;
	uint32_t bytes;
	uint8_t *data;			/* malloc'ed data to be placed, or NULL */
	struct nic_request *request;	/* set if and only if data is */
	uint64_t due_ns;
};

/* The requester's half of a queue pair in this process. Block indices wrap at 2^16. */
struct nic_sq {
	struct nic_qp *qp;		/* NULL: not of this process */
	uint16_t fetched, retired, producer;	/* producer: index that doorbells and record agree on */
	uint16_t early_index, unrung_index;
	int have_request, fetch_armed, rnr_left, num_inflight, first_inflight;
	uint64_t wait_ns;		/* no work before this time */
	uint64_t retry_ns;		/* end of the transport's retries; 0: not retrying */
	uint64_t early_ns, unrung_ns, lost_ns;	/* start times; 0: none */
	struct nic_request request;
	struct nic_inflight inflight[NIC_MAX_INFLIGHT];
	struct nic_delivery {		/* a WRITE that arrives in pieces */
		int active, piece, num_pieces;
		uint64_t to;
		uint8_t order[64];
	} delivery;
};

extern struct nic_tables *nic;
extern struct nic_stats nic_stats;	/* written with the lock held, read without it */

static inline void nic_count(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
			      memory_order_release);
}

extern uint8_t *nic_uar;		/* NIC_NUM_UAR_PAGES pages */

/* nic_uverbs.c: handles a write() to the device file */
ssize_t nic_command(const void *cmd, size_t bytes);

/* nic_device.c; all but nic_open and nic_lock must be called with the lock held */
int nic_open(const char *shared);
void nic_close(void);
void nic_lock(void);
void nic_unlock(void);
int nic_mr_add(uint32_t pd, uint64_t addr, uint64_t bytes, uint64_t iova, uint32_t access);
int nic_cq_add(uint64_t buf, uint64_t dbrec, uint32_t entries);
int nic_qp_add(const struct nic_qp *init);
void nic_qp_remove(int i);
int nic_qp_move(struct nic_qp *qp, enum nic_state to);
struct nic_qp *nic_qp_find(uint32_t qpn);
/* returns NULL if there is no such key, it has the wrong domain or rights, or the range is out of bounds */
const struct nic_mr *nic_mr_find(const struct nic_qp *qp, uint32_t key, uint64_t addr, uint64_t bytes,
				 uint32_t access);
uint64_t nic_mr_address(const struct nic_mr *mr, uint64_t addr);
/* Return 0, or -EFAULT if the other process or its memory is gone. The last bytes are stored last. */
int nic_copy_to(pid_t pid, uint64_t to, const void *from, size_t bytes);
int nic_copy_from(pid_t pid, void *to, uint64_t from, size_t bytes);
struct nic_completion {
	int receive, opcode, syndrome, solicited;
	uint8_t sent_opcode;
	uint16_t index;
	uint32_t bytes, imm;
};
void nic_complete(struct nic_qp *qp, const struct nic_completion *c);
void nic_qp_fail(struct nic_qp *qp);

/* nic_bare.c */
int nic_is_foreign(uint64_t addr);
int nic_copy_foreign(uint64_t to, uint64_t from, size_t bytes);	/* 0 or -EFAULT */
int nic_settle(void);

/* nic_engine.c */
uint32_t nic_bfreg(int i);		/* BlueFlame register of slot i, in every process */
_Atomic uint64_t *nic_register(int i, int half);
int nic_engine_start(void);
void nic_engine_stop(void);
void nic_engine_reset_qp(int i);
uint64_t nic_now_ns(void);

/* nic_events.c; call nic_channel_close and nic_events_poll without the lock, the others with it */
int nic_channel_open(void);
void nic_channel_close(int fd);
int nic_cq_watch(int cq, int fd, uint64_t user_handle);
uint32_t nic_cq_unwatch(int cq);
int nic_events_poll(void);
void nic_events_audit(uint64_t now);

/* nic_execute.c; returns 0 or a syndrome; -EAGAIN: not ready, retry at sq->wait_ns */
int nic_execute(struct nic_sq *sq, struct nic_request *r, struct nic_inflight *f);
void nic_place(struct nic_sq *sq, struct nic_inflight *f, const struct nic_request *r);

/* nic_rules.c */
void nic_broken(const struct nic_qp *qp, enum nic_rule rule, uint32_t index, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
int nic_decode(const struct nic_qp *qp, uint16_t expected, struct nic_request *r);	/* 0 or a syndrome */
int nic_record_check(const struct nic_qp *qp, uint32_t raw, uint16_t consumed);

/* nic_adversary.c */
int nic_adversary_init(void);
int nic_adversary_set(const char *list, uint64_t seed);
uint64_t nic_adversary_fetch_ns(void);
uint64_t nic_adversary_completion_ns(void);
uint64_t nic_adversary_read_ns(void);
uint64_t nic_adversary_piece_ns(void);
int nic_adversary_pieces(uint64_t bytes, uint8_t *order);
int nic_adversary_drops_doorbell(int is_blueflame);
int nic_adversary_revokes(void);
int nic_adversary_overruns(void);
int nic_adversary_collapses(void);

/* nic_report.c */
void nic_report_open(void);
void nic_report_rule(enum nic_rule rule, uint32_t qpn, uint32_t index, const char *text);
void nic_report_summary(void);
void nic_report_error(int ret);		/* the NIC failed to start */

#endif
