/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic - a software mlx5 NIC under the system's own libibverbs and libmlx5
 *
 * build/cairn_nic.so, named in LD_PRELOAD, gives a process one RDMA device, mlx5_0. The vendor's library is
 * not changed: it opens the device file, maps register pages, lays out rings and doorbell records and
 * rings the register as on hardware. The model is what is below that line: it answers the kernel's
 * commands, polls the registers, reads doorbell records and work requests, checks each field, moves the
 * bytes and writes completion entries. So the bytes a producer writes are judged against the vendor's
 * library and not against our reading of a manual.
 *
 *   file              part
 *   nic_preload.c     open, mmap, ioctl, write ... of the device file; the sysfs tree; begin and end
 *   nic_uverbs.c      the kernel's side of the verbs commands
 *   nic_device.c      tables of keys, completion queues and queue pairs; state machine; completions
 *   nic_engine.c      the thread: registers, doorbell records, requests in order, fences, retries
 *   nic_events.c      completion channels
 *   nic_execute.c     one request: gather, key checks, movement, receive queue
 *   nic_rules.c       the rule checker        nic_adversary.c  seeded trouble       nic_report.c  JSON lines
 *   nic_bare.c        queue pairs laid out by hand, without libibverbs; memory of a GPU
 *
 * Emulated: reliable connected queue pairs (RESET, INIT, RTR, RTS, SQD, SQE, ERR); NOP, WRITE, WRITE with
 * immediate, SEND, SEND with immediate, READ, compare-and-swap, fetch-and-add; inline and up to 30 segments;
 * receive queues, RNR with timer and retries; FENCE and small fence; completion channels, armed for any or
 * solicited entries; protection domains, keys, access rights and bounds; flush; syndromes; overrun of a
 * completion queue; 120 queue pairs in all, between processes of one user as well (CAIRN_NIC_SHARED).
 * Not emulated: asynchronous events, shared receive queues, other transports than RC, memory windows, the
 * ioctl form of the commands (so no DEVX), dynamic registers, entries of 128 bytes, compressed entries,
 * masked atomics, packets, congestion, time. A loop through the model is never a network latency.
 * Sees states, not stores: a store that is undone or completed within the model's polling interval goes
 * unseen.
 *
 * Environment, read when the library is loaded:
 *   CAIRN_NIC_REPORT     file that gets JSON lines, appended; else nothing is. Nothing is printed.
 *   CAIRN_NIC_SHARED     file with the tables that several processes share; made when absent
 *   CAIRN_NIC_ADVERSARY  list of NAME=VALUE, comma between; see nic_adversary.c
 *   CAIRN_NIC_SEED       seed of the adversary (1)
 *   TMPDIR               where the sysfs tree is laid, in a directory of its own, removed at exit but not by
 *                        a kill (/tmp)
 *
 * Report, one object a line:
 *   {"event":"rule","rule":NAME,"pid":,"qpn":,"wqe":INDEX,"text":}        the first 32 of each rule
 *   {"event":"summary","pid":,"requests":,"bytes":,"completions":,"errors":,"flushed":,"doorbells":,
 *    "doorbell_wqe":,"doorbell_index":,"doorbell_early":,"blueflame":,"rnr":,"arms":,"events":,"rules":,
 *    "by_rule":{NAME:COUNT}}
 * doorbell_wqe: the register got the last request's own first 8 bytes (libmlx5); doorbell_index: index after
 * it and queue pair alone (NVSHMEM, DeepEP, GPUNetIO); doorbell_early: rung before the doorbell record said
 * so and rung again after (GPUNetIO). blueflame: more than 8 bytes were stored; a lower bound. arms, events:
 * of completion queues that are on a channel.
 */
#ifndef CAIRN_NIC_H
#define CAIRN_NIC_H

#include <stddef.h>
#include <stdint.h>

/* One line for each rule: NAME in the report, then what is wrong. */
#define NIC_RULES(R)								\
	R(wqe_index, "index field is not the request's own")			\
	R(wqe_qpn, "queue pair number is not the queue's")			\
	R(wqe_ds, "number of segments is zero or beyond the largest request")	\
	R(wqe_ds_reserved, "reserved bits beside ds are set")			\
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

/* Counters of this process, readable by dlsym(RTLD_DEFAULT, "cairn_nic_stats"). Single words, no lock. */
struct nic_stats {
	_Atomic uint64_t requests, bytes, completions, errors, flushed;
	_Atomic uint64_t doorbells, doorbell_wqe, doorbell_index, doorbell_early, blueflame;
	_Atomic uint64_t rnr, arms, events, rules, by_rule[NIC_NUM_RULES];
};

/*
 * Queue pairs without libibverbs, for a program that opens the library with dlopen() and takes
 * cairn_nic_bare by dlsym(); NULL when the model did not come up. Addresses are this process's. Memory that
 * the CPU cannot touch (of a GPU) is declared foreign; the model moves it by the functions set with
 * set_copy, called on the model's thread: copies happen in the order of the calls, and when settle has
 * returned 0 they have happened. Errors are -errno.
 */
struct cairn_nic_ring {
	void *sq;		/* [num_blocks][64]: a power of two, at most 32768 */
	void *record;		/* uint32_t[2]: receive (unused), send; zero */
	void *cq;		/* [num_cqes][64]: a power of two; op_own CAIRN_CQE_UNUSED */
	void *cq_record;	/* uint32_t; zero */
	uint32_t num_blocks, num_cqes;
};

struct cairn_nic_bare {
	size_t size;
	/* reg: the two buffers of its register, in the pages that register_pages gives */
	int (*attach)(const struct cairn_nic_ring *r, uint32_t *qpn, uint64_t *reg[2]);
	int (*connect)(uint32_t qpn, uint32_t peer);
	void (*detach)(uint32_t qpn);
	/* access as the verbs number it: 1 local write, 2 remote write, 4 remote read, 8 atomics */
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
