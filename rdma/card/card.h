/* SPDX-License-Identifier: Apache-2.0 */
/*
 * card - which RDMA device the tests use, and whether this machine is ready for it
 *
 * Without CAIRN_RDMA_DEVICE in the environment tests run on the NIC model (nic.h). With it, families that
 * can use a real card open the device of that name: `cairn check rdma --device mlx5_0` looks at what the card
 * needs, one thing after another, and sets it when all is there. What is looked at:
 *
 *   device     /sys/class/infiniband/NAME
 *   driver     the device is driven by mlx5_core
 *   port       port 1 is ACTIVE
 *   uverbs     its file /dev/infiniband/uverbsN may be read and written
 *   libraries  libibverbs.so.1 and libmlx5.so.1 can be loaded
 *   memlock    64 MiB may be locked (ulimit -l), as registered memory is
 *   gpu        an NVIDIA driver with a GPU
 *   peer       nvidia_peermem is loaded: the card may read and write GPU memory
 *   register   the driver's option PeerMappingOverride=1: the GPU may store to the card's register
 *   root       (a remark) whether card and GPU hang on one PCIe root
 */
#ifndef CAIRN_CARD_H
#define CAIRN_CARD_H

#include <stddef.h>
#include <stdint.h>

enum cairn_card_state { CAIRN_CARD_THERE, CAIRN_CARD_MISSING, CAIRN_CARD_REMARK };

/* Where to look; zeroes are this machine. Others are for tests. */
struct cairn_card_where {
	const char *root;		/* before /sys, /proc, /dev; NULL: $CAIRN_CARD_ROOT, or nothing */
	const char *libraries[2];	/* NULL: the two named above */
	uint64_t memlock_bytes;		/* 0: asks the system; who may lock at will is not limited */
};

/*
 * Calls line() for each precondition in the order above, with what it found or how to mend it. All are looked
 * at but when there is no such device: then that line names those there are, and is the only one. Returns
 * how many are missing.
 */
int cairn_card_check(const struct cairn_card_where *where, const char *name,
		     void (*line)(enum cairn_card_state state, const char *what, const char *text, void *arg),
		     void *arg);

/* Could it be the name of an RDMA device? A letter first, then letters, digits, '_', '-', '.'. */
int cairn_card_is_name(const char *text);

/* The device to be used instead of the model, or NULL. */
const char *cairn_card_device(void);
/* $CAIRN_RDMA_GID_INDEX (1): the entry of the port's table by which the card addresses itself. */
int cairn_card_gid_index(void);

#endif
