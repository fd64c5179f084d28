/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic - a software mlx5 NIC under the system's own libibverbs and libmlx5
 *
 * build/cairn_nic.so, named in LD_PRELOAD, gives a process one RDMA device, mlx5_0. The vendor's library is
 * unchanged: it opens the device file, maps UAR pages, lays out rings and doorbell records and rings
 * doorbells as on hardware. The model is everything below that library: it answers the kernel's commands,
 * polls the UARs, reads doorbell records and work requests, checks each field, moves the bytes and writes
 * completion entries. A producer's bytes are therefore checked against the vendor's library, not only against
 * an interpretation of a manual.
 *
 *   file              part
 *   nic_preload.c     open, mmap, ioctl, write ... of the device file; the sysfs tree; load and unload
 *   nic_uverbs.c      the kernel's side of the verbs commands
 *   nic_device.c      tables of keys, completion queues and queue pairs; state machine; completions
 *   nic_engine.c      the thread: UARs, doorbell records, requests in order, fences, retries
 *   nic_events.c      completion channels
 *   nic_execute.c     one request: gather, key checks, movement, receive queue
 *   nic_rules.c       the rule checker
 *   nic_adversary.c   seeded delays, losses and failures
 *   nic_report.c      JSON lines
 *   nic_bare.c        queue pairs laid out by hand, without libibverbs; GPU memory
 *
 * Emulated: reliable connected queue pairs (RESET, INIT, RTR, RTS, SQD, SQE, ERR); NOP, WRITE, WRITE with
 * immediate, SEND, SEND with immediate, READ, compare-and-swap, fetch-and-add; inline data and up to 30
 * segments; receive queues, RNR with timer and retries; FENCE and small fence; completion channels, armed for
 * any or solicited entries; protection domains, keys, access rights and bounds; flush; syndromes; completion
 * queue overrun; 120 queue pairs in total, also between processes of one user (CAIRN_NIC_SHARED). Not
 * emulated: asynchronous events, shared receive queues, transports other than RC, memory windows, the ioctl
 * form of the commands (hence no DEVX), dynamic UARs, entries of 128 bytes, compressed entries, masked
 * atomics, packets, congestion, time. The time of a loop through the model is never a network latency. The
 * model sees states of memory, not stores: it misses a store that is undone or corrected within its polling
 * interval.
 *
 * Environment, read when the library is loaded:
 *   CAIRN_NIC_REPORT     file to which JSON lines are appended; unset: no report. Nothing is printed.
 *   CAIRN_NIC_SHARED     file with the tables that several processes share; created if absent
 *   CAIRN_NIC_ADVERSARY  list of NAME=VALUE, separated by commas; see nic_adversary.c
 *   CAIRN_NIC_SEED       seed of the adversary (1)
 *   TMPDIR               where the sysfs tree is created, in its own directory (/tmp); removed at exit,
 *                        but not if the process is killed
 *
 * Report, one object per line:
 *   {"event":"rule","rule":NAME,"pid":,"qpn":,"wqe":INDEX,"text":}        the first 32 of each rule
 *   {"event":"summary","pid":,"requests":,"bytes":,"completions":,"errors":,"flushed":,"doorbells":,
 *    "doorbell_wqe":,"doorbell_index":,"doorbell_early":,"blueflame":,"rnr":,"arms":,"events":,"rules":,
 *    "by_rule":{NAME:COUNT}}
 * doorbell_wqe: the doorbell was the first 8 bytes of the last request (libmlx5); doorbell_index: only
 * the index after it and the queue pair (NVSHMEM, DeepEP, GPUNetIO); doorbell_early: rung before the
 * doorbell record covered it, and rung again afterwards (GPUNetIO). blueflame: doorbells of more than 8
 * bytes, a lower bound. arms, events: of completion queues that are on a channel.
 */
#ifndef CAIRN_NIC_H
#define CAIRN_NIC_H

#include <stddef.h>
#include <stdint.h>

/* One line per rule: its NAME in the report, then what is wrong. */
#define NIC_RULES(R)								\
	R(wqe_index, "index field is not the request's own")			\
	R(wqe_qpn, "queue pair number is not the queue's")			\
	R(wqe_ds, "number of segments is zero or beyond the largest request")	\
	R(wqe_ds_reserved, "reserved bits next to ds are set")			\
	R(wqe_opcode, "operation unknown to the model")				\
	R(wqe_opmod, "opcode modifier is not zero")				\
	R(wqe_signature, "signature is not zero")				\
	R(wqe_stream, "stream channel is not zero")				\
	R(wqe_flags_reserved, "reserved bits of fm_ce_se are set")		\
	R(wqe_too_short, "ds leaves no room for the operation's segments")	\
	R(raddr_reserved, "reserved word of the remote address is set")		\
	R(data_zero_length, "data segment of zero bytes means 2 GiB")		\
	R(inline_reserved, "reserved bits of the inline length are set")	\
	R(inline_overrun, "inline data runs past ds")				\
	R(inline_misplaced, "inline segment in an operation that returns data")	\
	R(atomic_length, "atomic with a buffer that is not 8 bytes")		\
	R(wqe_reuse, "request was overwritten before it completed")		\
	R(ring_overrun, "more requests outstanding than the ring holds")	\
	R(doorbell_qpn, "doorbell names another queue pair")			\
	R(doorbell_beyond_record, "doorbell beyond the record, and not rung again")	\
	R(record_not_rung, "record advanced and no doorbell followed")		\
	R(record_upper_half, "upper half of the doorbell record is not zero")	\
	R(record_native_endian, "doorbell record in the machine's byte order")	\
	R(cq_overrun, "completion queue overrun by its consumer")		\
	R(cq_record_upper, "upper byte of the consumer index is not zero")	\
	R(arm_cqn, "arming doorbell names no completion queue with a channel")	\
	R(arm_record, "arming doorbell is later than its record")		\
	R(arm_not_rung, "arm record changed and no doorbell followed")

enum nic_rule {
#define R(name, text) NIC_RULE_##name,
	NIC_RULES(R)
#undef R
	NIC_NUM_RULES
};

/* Counters of this process, found by dlsym(RTLD_DEFAULT, "cairn_nic_stats"). They are read without a lock. */
struct nic_stats {
	_Atomic uint64_t requests, bytes, completions, errors, flushed;
	_Atomic uint64_t doorbells, doorbell_wqe, doorbell_index, doorbell_early, blueflame;
	_Atomic uint64_t rnr, arms, events, rules, by_rule[NIC_NUM_RULES];
};

/*
 * Queue pairs without libibverbs, for a program that opens the library with dlopen() and looks up
 * cairn_nic_bare by dlsym(); it returns NULL if the model failed to start. Addresses are this process's.
 * Memory that the CPU cannot access (a GPU's) is declared foreign. The model moves it with the functions
 * given to set_copy, which it calls on its own thread. They execute copies in the order of the calls; all
 * copies are complete once settle has returned 0. Errors are -errno.
 */
struct cairn_nic_ring {
	void *sq;		/* [num_blocks][64]; num_blocks is a power of two, at most 32768 */
	void *record;		/* uint32_t[2]: receive (unused), send; initially zero */
	/* [num_cqes][64]; num_cqes is a power of two; op_own initially CAIRN_CQE_UNUSED */
	void *cq;
	void *cq_record;	/* uint32_t; initially zero */
	uint32_t num_blocks, num_cqes;
};

struct cairn_nic_bare {
	size_t size;
	/* reg: the two buffers of its BlueFlame register, in the UAR pages that register_pages returns */
	int (*attach)(const struct cairn_nic_ring *r, uint32_t *qpn, uint64_t *reg[2]);
	int (*connect)(uint32_t qpn, uint32_t peer);
	void (*detach)(uint32_t qpn);
	/* bits as in the verbs: 1 local write, 2 remote write, 4 remote read, 8 atomics */
	int (*add_key)(const void *addr, size_t bytes, uint32_t access, uint32_t *key);
	int (*remove_key)(uint32_t key);
	int (*revoke_key)(uint32_t key);
	int (*declare_foreign)(const void *addr, size_t bytes);
	void (*forget_foreign)(const void *addr);
	void (*set_copy)(int (*copy)(void *to, const void *from, size_t bytes), int (*settle)(void));
	int (*set_adversary)(const char *list, uint64_t seed);	/* NULL: none */
	uint8_t *(*register_pages)(size_t *bytes);
	const struct nic_stats *(*stats)(void);
	void (*report)(void);
};

const struct cairn_nic_bare *cairn_nic_bare(void);

const struct nic_stats *cairn_nic_stats(void);
void cairn_nic_report(void);		/* appends the summary line now */

#endif
