/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn - work requests posted to an mlx5 network card from inside a GPU kernel
 *
 * A kernel forms WQEs in the send queue, writes the doorbell record and rings the card's register itself;
 * the receiving kernel polls a sequence number in its own memory. No CPU is on the way. The usual message is
 * one batch of two requests, announced by one doorbell: an RDMA WRITE of the data, and behind it an inline
 * WRITE of the 8-byte sequence number. One queue pair delivers in order, so who sees the number has the data.
 *
 *   file                part
 *   fhbn.h              this contract: structures, providers
 *   fhbn_post.h         the poster, one source for GPU and CPU; fhbn_wait.h: completions, numbers, failures
 *   fhbn.cuh            what they are made of on a GPU: stores, fences, loads; forms for a whole warp
 *   fhbn_host.h         the same on a CPU; every access can be tapped (fhbn_trace.h)
 *   fhbn_qp.c           queue pairs for a poster: bare on the NIC model, or ...
 *   fhbn_verbs.c        ... a verbs queue pair of libmlx5: a real card, or the model under stock libmlx5
 *   fhbn_memory.cu      memory that GPU and card share
 *
 * Order of stores. The card reads what the record announces, when the register tells it to:
 *   WQEs, payload < fence < record < fence < register
 * The fence's scope follows from where the card reads: all of it in GPU memory, gpu scope (the stores have to
 * reach the L2, where the card's reads are answered); ring, record or payload in host memory, sys scope
 * (CAIRN_FHBN_SYS), as stores to the host take another way than those to the card.
 *
 * Indices. Every request takes one block of the ring, so that indices count both; 64 bits here, 16 on the
 * wire. reserved >= ready >= rung; reserved - retired <= num_blocks for who may write.
 *
 * Several posters (CAIRN_FHBN_SHARED). Places are given out by an atomic addition and published in order:
 * who has formed its requests waits until `ready` has come to its first one. It is then alone: it announces
 * all up to its own last one and moves `ready` on. It may leave the announcing to its successor, if that one
 * has reserved already, needs no completion to go on (there is room for the largest batch), and not more
 * than CAIRN_FHBN_RING_EVERY requests would be waiting; so no request is left unannounced. Without the flag
 * a queue has one poster at a time, and no atomic instruction is executed.
 *
 * Completions. The queue is a full ring of num_cqes >= num_blocks entries and can never overrun: an entry
 * stands for a request whose place is not free before the entry was read. (A collapsed queue, one entry
 * overwritten for ever, is cheaper to look at, but plain verbs cannot make one, and the entry that says why
 * a queue failed is overwritten by those of the flushed requests behind it.) The last request of a batch is
 * signalled; with CAIRN_FHBN_QUIET only where a batch passes a half of the ring.
 *
 * Failure. Nothing traps and nothing waits for ever. The first failure of a queue is kept in its state's
 * fault, by then it is dead: each call returns that failure. -ETIMEDOUT: a wait was longer than timeout_ns;
 * the fault says who waited, for what, and what was seen last. -EIO: a request completed with an error.
 * cairn_fhbn_fault_error() makes a text of it.
 *
 * Not checked by the poster: keys, addresses, connection. A batch is 1 to CAIRN_FHBN_MAX_BATCH requests.
 */
#ifndef CAIRN_FHBN_H
#define CAIRN_FHBN_H

#include "rdma/wqe/cqe.h"
#include "rdma/wqe/wqe.h"

/* mode: a constant where it can be, so that one path is left of the poster */
#define CAIRN_FHBN_SYS		0x01u	/* the card reads ring, record or payload in host memory */
#define CAIRN_FHBN_SHARED	0x02u	/* several posters at once */
#define CAIRN_FHBN_BELL_WQE	0x04u	/* doorbell is the last request's first 8 bytes, as libmlx5's */
#define CAIRN_FHBN_BLUEFLAME	0x08u	/* the last request's 64 bytes go to the register */
#define CAIRN_FHBN_QUIET	0x10u	/* no completion but where one is needed to reclaim */

#define CAIRN_FHBN_MAX_BATCH	4	/* requests announced together by one call */
#define CAIRN_FHBN_RING_EVERY	16	/* requests left to a successor's doorbell, at most */
#define CAIRN_FHBN_MIN_BLOCKS	16

enum cairn_fhbn_fault_kind {
	CAIRN_FHBN_NO_FAULT,
	CAIRN_FHBN_NO_ROOM,		/* want: index beyond the batch, seen: retired */
	CAIRN_FHBN_NO_TURN,		/* want: own first index, seen: ready */
	CAIRN_FHBN_NOT_COMPLETED,	/* want: index beyond the last, seen: retired */
	CAIRN_FHBN_NO_SIGNAL,		/* want: sequence number, seen: the last one */
	CAIRN_FHBN_FAILED,		/* want: index of the request; syndrome */
};

struct cairn_fhbn_fault {
	uint32_t kind, written;		/* written: 1 when all else is there */
	uint32_t qpn;			/* 0: of a receiver */
	uint32_t block, thread;		/* who: of the grid; block ~0: a CPU */
	uint8_t syndrome, vendor_syndrome, opcode, reserved;
	uint64_t want, seen, waited_ns;
};

/* Counters of a queue, beside its poster: in GPU memory for a GPU. Zero when the queue is new. */
struct cairn_fhbn_state {
	uint64_t reserved;		/* places given out */
	uint64_t ready;			/* formed and published */
	uint64_t rung;			/* announced to the card */
	uint64_t retired;		/* completed; their places are free */
	uint64_t cq_next;		/* next completion to be read */
	uint32_t cq_lock, bf_half;
	struct cairn_fhbn_fault fault;
};

/* A queue pair as its poster sees it; passed to kernels by value. */
struct cairn_fhbn_qp {
	struct cairn_wqe_ring sq;	/* num_blocks: CAIRN_FHBN_MIN_BLOCKS or more */
	uint32_t *record;		/* doorbell record, word of the send queue */
	uint64_t *reg[2];		/* register; [1]: its other buffer, in turn with [0] by BlueFlame */
	const struct cairn_cqe *cq;
	uint32_t *cq_record;
	struct cairn_fhbn_state *state;
	uint64_t timeout_ns;
	uint32_t num_cqes, mode;	/* mode: what was asked for, and SYS as the ring's place demands */
};

/* One request: forms in fhbn_post.h */
struct cairn_fhbn_request {
	uint32_t opcode, flags;		/* flags: CAIRN_WQE_FENCE, CAIRN_WQE_SOLICITED */
	uint64_t remote, local, value;	/* value: in the place of local, when is_inline */
	uint32_t rkey, lkey, bytes, imm_be, is_inline;
};

#ifdef __cplusplus
extern "C" {
#endif

/* ---- providers: one structure for all, the poster does not know which it is on ---- */

enum cairn_fhbn_provider {
	CAIRN_FHBN_BARE,	/* rings laid out by hand, on the NIC model's engine; no libibverbs */
	CAIRN_FHBN_VERBS,	/* libibverbs and libmlx5: a card, or the model where it is preloaded */
};

enum cairn_fhbn_poster {
	CAIRN_FHBN_BY_CPU,
	CAIRN_FHBN_BY_GPU,		/* ring, record and completions in host memory */
	CAIRN_FHBN_BY_GPU_LOCAL,	/* in GPU memory; BARE alone: verbs has its rings in host memory */
};

struct cairn_fhbn_open_args {
	enum cairn_fhbn_provider provider;
	const char *device;		/* VERBS: mlx5_0 ...; NULL: the first */
	int gid_index;			/* VERBS */
	const char *adversary;		/* BARE: as CAIRN_NIC_ADVERSARY; NULL: none */
	uint64_t seed;
};

struct cairn_fhbn_qp_args {
	enum cairn_fhbn_poster poster;
	uint32_t num_blocks;		/* power of two, 16 to 32768 (VERBS: at least; may become more) */
	uint32_t mode;			/* SHARED, BELL_WQE, BLUEFLAME, QUIET; SYS is added as needed */
	uint64_t timeout_ns;		/* of each wait */
};

/* What the other end has to know; crosses processes as bytes. */
struct cairn_fhbn_address {
	uint8_t gid[16];
	uint32_t qpn, lid;
};

struct cairn_fhbn_nic;		/* an open card */
struct cairn_fhbn_queue;	/* a queue pair of it */

/*
 * Errors: -EINVAL (texts name the field), -ENODEV (no card; no cairn_nic.so, libibverbs or libmlx5; no GPU
 * for a poster on one), -EOPNOTSUPP, -ENOMEM, -EPERM (the register cannot be mapped for the GPU: see the
 * text), -EIO (verbs or CUDA failed). Out parameters are written on success only.
 */
int cairn_fhbn_open(const struct cairn_fhbn_open_args *args, struct cairn_fhbn_nic **out);
void cairn_fhbn_close(struct cairn_fhbn_nic *nic);	/* its queues and keys first */

/* Memory of host or GPU: keys for local and remote use (WRITE, READ, atomics). Unregister by lkey. */
int cairn_fhbn_register(struct cairn_fhbn_nic *nic, void *addr, size_t bytes, uint32_t *lkey, uint32_t *rkey);
int cairn_fhbn_unregister(struct cairn_fhbn_nic *nic, uint32_t lkey);

int cairn_fhbn_queue_create(struct cairn_fhbn_nic *nic, const struct cairn_fhbn_qp_args *args,
			    struct cairn_fhbn_queue **out);
int cairn_fhbn_queue_address(struct cairn_fhbn_queue *queue, struct cairn_fhbn_address *out);
int cairn_fhbn_queue_connect(struct cairn_fhbn_queue *queue, const struct cairn_fhbn_address *peer);
void cairn_fhbn_queue_destroy(struct cairn_fhbn_queue *queue);
/* For the poster: pass to kernels by value. */
const struct cairn_fhbn_qp *cairn_fhbn_queue_view(const struct cairn_fhbn_queue *queue);
/* The counters as they are now. No kernel of the queue may be running, unless it is a CPU's. */
int cairn_fhbn_queue_state(const struct cairn_fhbn_queue *queue, struct cairn_fhbn_state *out);
/* 0, or the queue's failure with its text. As above. */
int cairn_fhbn_queue_error(const struct cairn_fhbn_queue *queue);

/* -ETIMEDOUT or -EIO with a text for cairn_last_error(); 0 when there was no fault. */
int cairn_fhbn_fault_error(const struct cairn_fhbn_fault *fault);

/* ---- the poster on a CPU: fhbn_post.h compiled for it ---- */

int cairn_fhbn_host_post(const struct cairn_fhbn_qp *q, const struct cairn_fhbn_request *r, uint32_t num,
			 uint64_t *end);
int cairn_fhbn_host_put_signal(const struct cairn_fhbn_qp *q, const struct cairn_fhbn_request *put,
			       uint64_t signal_remote, uint32_t signal_rkey, uint64_t sequence);
int cairn_fhbn_host_flush(const struct cairn_fhbn_qp *q);
int cairn_fhbn_host_wait_signal(const uint64_t *flag, uint64_t sequence, uint64_t timeout_ns,
				struct cairn_fhbn_fault *fault);

#ifdef __cplusplus
}
#endif
#endif
