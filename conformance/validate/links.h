/* SPDX-License-Identifier: Apache-2.0 */
/*
 * links - the links between the devices of a node, tested by all devices together
 *
 * After the tests of single devices a second process for each device opens a communicator with each peer and
 * copies known words into the peer's memory: one device alone, two both ways, all at once. Processes meet
 * before and after each step, so that nothing else moves. The parent judges the rates of all links.
 *
 * meet.c    where the processes meet: shared memory, made by the parent before it forks
 * links.c   what each process does; nccl.c: an all-reduce through NCCL
 * links_judge.c    the judges; nothing there calls a device
 */
#ifndef CAIRN_VALIDATE_LINKS_H
#define CAIRN_VALIDATE_LINKS_H

#include <stdatomic.h>
#include <stdint.h>

#include "conformance/validate/rates.h"
#include "conformance/validate/validate.h"

/* ---- meetings ---- */

struct validate_seat {
	_Atomic uint32_t posted;	/* number of the latest meeting that it has come to */
	uint8_t message[2][CAIRN_COMM_EXCHANGE];
};

/* Shared by all processes of a node. */
struct validate_node {
	int32_t num;			/* devices */
	int32_t timeout_s;		/* of a meeting; the parent waits twice as long for a line */
	/* set by the parent once a device's process has ended, and by a process that leaves */
	_Atomic int32_t gone[VALIDATE_MAX_DEVICES];
	struct validate_seat seats[];	/* [num] of all devices, then [num, num, 2] of pairs */
};

/* Devices that meet, as one of them sees it. */
struct validate_group {
	struct validate_node *node;
	int32_t members[VALIDATE_MAX_DEVICES], num;	/* indices of devices, ascending */
	int32_t me;			/* index among the members */
	int32_t first_seat;
};

/* Returns zeroed shared memory for num devices, or NULL. */
struct validate_node *validate_node_open(int32_t num);
void validate_node_close(struct validate_node *node);
/* Fills a group of all devices; `device` is one of them. */
void validate_group_all(struct validate_node *node, int32_t device, struct validate_group *g);
/* Fills the group of this device and a peer. */
void validate_group_pair(struct validate_node *node, int32_t device, int32_t peer, struct validate_group *g);
/*
 * Waits until all members have come, and gathers their messages: all[i * bytes] is that of member i. bytes is
 * at most CAIRN_COMM_EXCHANGE. -ECANCELED: a member has left, with its process or before; -ETIMEDOUT. With
 * `absent` a member that has left is no error: absent[i] is set, and its message is zero.
 */
int validate_meet(const struct validate_group *g, const void *mine, void *all, size_t bytes, int32_t *absent);

/* ---- the processes ---- */

enum validate_link_mode {
	VALIDATE_LINK_ALONE,		/* one device sends, and nothing else moves */
	VALIDATE_LINK_BOTH,		/* two devices send to each other */
	VALIDATE_LINK_TOGETHER,		/* all devices send at once, each to another one */
	VALIDATE_LINK_NUM_MODES
};

extern const char *const validate_link_modes[VALIDATE_LINK_NUM_MODES];	/* "alone", "both_ways", "together" */

/* In a device's second process: runs the tests of the node, until `end` (cairn_now()). */
void validate_links_run(FILE *out, const struct validate_options *opt, int number, struct validate_node *node,
			int32_t index, double end);
/* nccl.c: all-reduces with the members of a group. Adds findings to row, and sets its text. */
int validate_nccl(struct validate_device *d, const struct validate_group *g, json_t *row, double end);
/* nccl.c: returns 0 if there is an NCCL to load, else an error that names what is missing. */
int validate_nccl_check(void);

/* ---- the judges ---- */

/* A link that is slower than it should be. */
struct validate_slow_link {
	int32_t from, to;
	double worse;			/* share; 0.05: 5% */
	int32_t peers;			/* links that it was compared with */
	int lacking;			/* it is of a slower kind than its siblings */
	int fast;			/* it is of the fast kind */
};

/*
 * gbps: [rounds, n, n], from row to column, in the order of time; NAN: not measured. Links of at least half
 * the rate of the fastest are of one kind, the others of a slower kind (through PCIe, say). A device that has
 * fewer links of the fast kind than most devices has lacking links. Within a kind links are compared by the
 * rule of validate_slow(); two links, which have no siblings, with each other. Writes the findings, at most
 * `most`, and returns their number, or -ENOMEM.
 */
int32_t validate_slow_links(const double *gbps, int32_t rounds, int32_t n, struct validate_slow_link *out,
			    int32_t most);
/*
 * Returns the verdict on such a link. nvlink: both ends have active NVLinks. Other links warn at most,
 * because routes through PCIe switches and between sockets differ by design.
 */
enum validate_verdict validate_link_verdict(const struct validate_slow_link *l, int nvlink);
/*
 * Returns the verdict on a peer that cannot be reached. others: some devices of the node reach each other.
 * Without that and without NVLinks, the machine may not be made for it.
 */
enum validate_verdict validate_down_verdict(int others, int nvlink);

#endif
