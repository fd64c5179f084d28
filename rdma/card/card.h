/* SPDX-License-Identifier: Apache-2.0 */
/*
 * card - selects the RDMA device for the tests and checks whether this machine is ready for it
 *
 * Without CAIRN_RDMA_DEVICE in the environment the tests run on the NIC model (nic.h). With it, families that
 * can use a real card open the device of that name. `cairn check rdma --device mlx5_0` checks the
 * preconditions below, one after another, and sets the variable if all are met:
 *
 *   device     /sys/class/infiniband/NAME exists
 *   driver     the device's driver is mlx5_core
 *   port       port 1 is ACTIVE
 *   uverbs     its file /dev/infiniband/uverbsN may be read and written
 *   libraries  libibverbs.so.1 and libmlx5.so.1 can be loaded
 *   memlock    64 MiB may be locked (ulimit -l), because registering memory locks it
 *   gpu        an NVIDIA driver with a GPU is present
 *   peer       nvidia_peermem is loaded, so that the card may read and write GPU memory
 *   register   the driver's option PeerMappingOverride=1 is set, so that the GPU may store to the card's UAR
 *   root       (only a remark) whether card and GPU are below one PCIe root
 */
#ifndef CAIRN_CARD_H
#define CAIRN_CARD_H

#include <stddef.h>
#include <stdint.h>

enum cairn_card_state { CAIRN_CARD_THERE, CAIRN_CARD_MISSING, CAIRN_CARD_REMARK };

/* Where to look. All zeros mean this machine; other values are for tests. */
struct cairn_card_where {
	const char *root;		/* prefix of /sys, /proc, /dev; NULL: $CAIRN_CARD_ROOT, or none */
	const char *libraries[2];	/* NULL: the two named above */
	/*
	 * limit of locked memory; 0: ask the system; a process with the right to lock any amount has no limit
	 */
	uint64_t memlock_bytes;
};

/*
 * Calls line() for each precondition in the order above, with the value found or with how to fix it. If the
 * device does not exist, there is one line, which names the devices that do. Returns the number of missing
 * preconditions.
 */
int cairn_card_check(const struct cairn_card_where *where, const char *name,
		     void (*line)(enum cairn_card_state state, const char *what, const char *text, void *arg),
		     void *arg);

/* Returns whether text can be the name of an RDMA device: a letter, then letters, digits, '_', '-', '.'. */
int cairn_card_is_name(const char *text);

/* Returns the name of the device to use instead of the model, or NULL. */
const char *cairn_card_device(void);
/*
 * Returns $CAIRN_RDMA_GID_INDEX (default 1), the index of the port's GID that the card uses as its address.
 */
int cairn_card_gid_index(void);

#endif
