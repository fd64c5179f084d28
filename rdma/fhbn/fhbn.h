/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn - work requests posted to an mlx5 network card from inside a GPU kernel
 *
 * FHBN is the "fully host-bypassed network" of Lamina, section 4.1. A kernel builds WQEs in the send
 * queue, writes the doorbell record and rings the card's UAR itself; the receiving kernel polls a
 * sequence number in its own memory. No CPU is on the critical path. The usual message is one batch of
 * two requests, announced by one doorbell: an RDMA WRITE of the data, then an inline WRITE of the 8-byte
 * sequence number. One queue pair delivers in order, so a receiver that sees the number also sees the
 * data.
 *
 *   file                part
 *   fhbn.h              this contract: structures, providers
 *   fhbn_post.h         the poster, one source for GPU and CPU; fhbn_wait.h: completions, signals, failures
 *   fhbn.cuh            its memory accesses on a GPU: stores, fences, loads; variants for a whole warp
 *   fhbn_host.h         its memory accesses on a CPU; every access can be tapped (fhbn_trace.h)
 *   fhbn_qp.c           queue pairs for a poster, on one of two providers:
 *   fhbn_bare.c         rings laid out by hand, on the NIC model's engine
 *   fhbn_verbs.c        a libmlx5 queue pair: a real card, or the model under stock libmlx5
 *   fhbn_memory.cu      memory that GPU and card share
 *
 * Order of stores. After a doorbell the card reads all that the doorbell record covers, so the order is:
 *   WQEs, payload < fence < doorbell record < fence < doorbell
 * The fence's scope depends on where the card reads. If everything is in GPU memory, gpu scope is enough: the
 * stores must reach the L2, which answers the card's reads. If the ring, the record or the payload is in host
 * memory, sys scope is needed (CAIRN_FHBN_SYS), because stores to the host and stores to the card take
 * different paths.
 *
 * Indices. Every request takes one block of the ring, so an index counts both. It has 64 bits here and 16 on
 * the wire. Always reserved >= ready >= rung. Blocks may be written once reserved - retired <= num_blocks.
 *
 * Several posters (CAIRN_FHBN_SHARED). An atomic addition reserves blocks, and they are published in order: a
 * poster that has built its requests waits until `ready` reaches its first one. It is then the only poster in
 * the critical section: it announces everything up to its own last request and advances `ready`. It may leave
 * the doorbell to its successor if the successor has already reserved blocks and needs no completion to
 * proceed (there is room for the largest batch), and if at most CAIRN_FHBN_RING_EVERY requests would be
 * pending. So no request stays unannounced. Without the flag a queue has one poster at a time, which executes
 * no atomic instruction.
 *
 * Completions. The completion queue is a full ring of num_cqes >= num_blocks entries and cannot overrun: each
 * entry belongs to a request whose block is reused only after the entry was read. (A collapsed queue, in
 * which all completions overwrite one entry, is cheaper to poll. But plain verbs cannot create one, and the
 * completions of flushed requests would overwrite the entry that says why the queue failed.) The last request
 * of a batch is signalled; with CAIRN_FHBN_QUIET only batches that cross the middle or the end of the ring
 * are.
 *
 * Failure. Nothing traps, and every wait ends. The fault in a queue's state keeps its first failure; from
 * then on the queue is dead, and every call returns that failure. -ETIMEDOUT: a wait took longer than
 * timeout_ns; the fault says which thread waited, for what, and which value it saw last. -EIO: a request
 * completed with an error. cairn_fhbn_fault_error() turns the fault into a text.
 *
 * The poster does not check keys, addresses or the connection. A batch is 1 to CAIRN_FHBN_MAX_BATCH requests.
 */
#ifndef CAIRN_FHBN_H
#define CAIRN_FHBN_H

#include "rdma/wqe/cqe.h"
#include "rdma/wqe/wqe.h"

/* mode: pass a compile-time constant where possible, so that only one path of the poster is compiled */
#define CAIRN_FHBN_SYS		0x01u	/* the card reads ring, record or payload in host memory */
#define CAIRN_FHBN_SHARED	0x02u	/* several posters at the same time */
#define CAIRN_FHBN_BELL_WQE	0x04u	/* doorbell: the last request's first 8 bytes, as in libmlx5 */
#define CAIRN_FHBN_BLUEFLAME	0x08u	/* store the last request's 64 bytes to the UAR */
#define CAIRN_FHBN_QUIET	0x10u	/* signal only where a completion is needed to free blocks */

#define CAIRN_FHBN_MAX_BATCH	4	/* maximum requests per batch */
#define CAIRN_FHBN_RING_EVERY	16	/* maximum requests left to a successor's doorbell */
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
	uint32_t kind, written;		/* written: 1 once all other members are stored */
	uint32_t qpn;			/* 0: the fault of a receiver */
	uint32_t block, thread;		/* thread in the grid that found it; block ~0: a CPU thread */
	uint8_t syndrome, vendor_syndrome, opcode, reserved;
	uint64_t want, seen, waited_ns;
};

/* Counters of a queue, near its poster: in GPU memory for a GPU. All zero when the queue is created. */
struct cairn_fhbn_state {
	uint64_t reserved;		/* blocks reserved by posters */
	uint64_t ready;			/* built and published */
	uint64_t rung;			/* announced to the card */
	uint64_t retired;		/* completed; their blocks are free */
	uint64_t cq_next;		/* index of the next completion to be read */
	uint32_t cq_lock, bf_half;
	struct cairn_fhbn_fault fault;
};

/* A queue pair as its poster sees it; passed to kernels by value. */
struct cairn_fhbn_qp {
	struct cairn_wqe_ring sq;	/* num_blocks >= CAIRN_FHBN_MIN_BLOCKS */
	uint32_t *record;		/* the send queue's word of the doorbell record */
	uint64_t *reg[2];		/* in a UAR page; BlueFlame alternates between the two buffers */
	const struct cairn_cqe *cq;
	uint32_t *cq_record;
	struct cairn_fhbn_state *state;
	uint64_t timeout_ns;
	uint32_t num_cqes, mode;	/* mode: as requested, plus SYS if the ring's location needs it */
};

/* One request; fhbn_post.h builds them. */
struct cairn_fhbn_request {
	uint32_t opcode, flags;		/* flags: CAIRN_WQE_FENCE, CAIRN_WQE_SOLICITED */
	uint64_t remote, local, value;	/* value: used instead of local if is_inline */
	uint32_t rkey, lkey, bytes, imm_be, is_inline;
};

#ifdef __cplusplus
extern "C" {
#endif

/* ---- providers: one structure for all; the poster need not know which one it uses ---- */

enum cairn_fhbn_provider {
	CAIRN_FHBN_BARE,	/* rings laid out by hand, on the NIC model's engine; no libibverbs */
	CAIRN_FHBN_VERBS,	/* libibverbs and libmlx5: a card, or the model if it is preloaded */
};

enum cairn_fhbn_poster {
	CAIRN_FHBN_BY_CPU,
	CAIRN_FHBN_BY_GPU,		/* ring, record and completion queue in host memory */
	/* in GPU memory; BARE only: verbs allocates its rings in host memory */
	CAIRN_FHBN_BY_GPU_LOCAL,
};

struct cairn_fhbn_open_args {
	enum cairn_fhbn_provider provider;
	const char *device;		/* VERBS: such as mlx5_0; NULL: the first */
	int gid_index;			/* VERBS */
	const char *adversary;		/* BARE: same syntax as CAIRN_NIC_ADVERSARY; NULL: none */
	uint64_t seed;
};

struct cairn_fhbn_qp_args {
	enum cairn_fhbn_poster poster;
	uint32_t num_blocks;		/* power of two, 16 to 32768 (VERBS: a minimum; may be raised) */
	uint32_t mode;			/* SHARED, BELL_WQE, BLUEFLAME, QUIET; SYS is added as needed */
	uint64_t timeout_ns;		/* limit of each wait */
};

/* Address of a queue pair for its peer. It is plain bytes and may be sent between processes. */
struct cairn_fhbn_address {
	uint8_t gid[16];
	uint32_t qpn, lid;
};

struct cairn_fhbn_nic;		/* an open card */
struct cairn_fhbn_queue;	/* a queue pair of the card */

/*
 * Errors: -EINVAL (texts name the field), -ENODEV (no card; no cairn_nic.so, libibverbs or libmlx5; no
 * GPU for a GPU poster), -EOPNOTSUPP, -ENOMEM, -EPERM (the UAR cannot be mapped for the GPU: see the
 * text), -EIO (verbs or CUDA failed). Out parameters are written on success only.
 */
int cairn_fhbn_open(const struct cairn_fhbn_open_args *args, struct cairn_fhbn_nic **out);
void cairn_fhbn_close(struct cairn_fhbn_nic *nic);	/* destroy its queues and keys first */

/* Registers host or GPU memory for local and remote use (WRITE, READ, atomics). Unregister it by lkey. */
int cairn_fhbn_register(struct cairn_fhbn_nic *nic, void *addr, size_t bytes, uint32_t *lkey, uint32_t *rkey);
int cairn_fhbn_unregister(struct cairn_fhbn_nic *nic, uint32_t lkey);

int cairn_fhbn_queue_create(struct cairn_fhbn_nic *nic, const struct cairn_fhbn_qp_args *args,
			    struct cairn_fhbn_queue **out);
int cairn_fhbn_queue_address(struct cairn_fhbn_queue *queue, struct cairn_fhbn_address *out);
int cairn_fhbn_queue_connect(struct cairn_fhbn_queue *queue, const struct cairn_fhbn_address *peer);
void cairn_fhbn_queue_destroy(struct cairn_fhbn_queue *queue);
/* Returns the queue pair for the poster; pass it to kernels by value. */
const struct cairn_fhbn_qp *cairn_fhbn_queue_view(const struct cairn_fhbn_queue *queue);
/* Copies the current counters. No kernel that uses the queue may be running; a CPU poster may. */
int cairn_fhbn_queue_state(const struct cairn_fhbn_queue *queue, struct cairn_fhbn_state *out);
/* Returns 0, or the queue's failure with its text. The restriction of cairn_fhbn_queue_state() applies. */
int cairn_fhbn_queue_error(const struct cairn_fhbn_queue *queue);

/* Returns -ETIMEDOUT or -EIO with a text for cairn_last_error(), or 0 if there is no fault. */
int cairn_fhbn_fault_error(const struct cairn_fhbn_fault *fault);

/* ---- the poster on a CPU: fhbn_post.h compiled for the host ---- */

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
