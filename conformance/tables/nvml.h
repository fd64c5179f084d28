/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml - the counters of one card: energy, power, SM clock, time at the power limit, errors
 *
 * NVML comes with the driver. It is loaded at run time, so that the program starts on a machine without it.
 * A card is found by its PCI address, because NVML numbers cards without regard to CUDA_VISIBLE_DEVICES.
 *
 * A query may take milliseconds. Any thread may make one, also at the same time as others.
 */
#ifndef CAIRN_NVML_H
#define CAIRN_NVML_H

#include <stdint.h>

struct cairn_nvml;

/*
 * pci: "0000:1b:00.0", as cairn_impl.pci_bus_id gives it. library: NULL: the driver's, libnvidia-ml.so.1.
 * -ENODEV: there is no library, driver or card. -EOPNOTSUPP: the library or the card has no energy counter.
 */
int cairn_nvml_open(struct cairn_nvml **out, const char *library, const char *pci);
void cairn_nvml_close(struct cairn_nvml *n);	/* NULL is fine */

/* -EOPNOTSUPP: the library or the card lacks the figure. -ENODEV: the card is gone. -EIO: another failure. */
int cairn_nvml_energy(struct cairn_nvml *n, uint64_t *mj);	/* since the driver was loaded */
int cairn_nvml_power(struct cairn_nvml *n, uint32_t *mw);	/* on Hopper the mean of the last second */
int cairn_nvml_sm_clock(struct cairn_nvml *n, uint32_t *mhz);
/* Time that the power limit has held the SM clock below the requested one, since the driver was loaded. */
int cairn_nvml_capped(struct cairn_nvml *n, uint64_t *ns);

/* What tells whether a card is sound. ECC errors count since the driver was loaded. */
enum cairn_nvml_item {
	CAIRN_NVML_ECC_CORRECTED, CAIRN_NVML_ECC_UNCORRECTED,
	CAIRN_NVML_REMAP_PENDING, CAIRN_NVML_REMAP_FAILED,	/* 0 or 1 */
	CAIRN_NVML_REASONS,		/* bits of what holds the clock down now (nvmlClocksEventReason...) */
	CAIRN_NVML_CELSIUS,
	CAIRN_NVML_PCIE_WIDTH, CAIRN_NVML_PCIE_MAX_WIDTH,	/* lanes */
	CAIRN_NVML_PCIE_REPLAYS,
	CAIRN_NVML_LINKS_UP,		/* NVLinks that are active */
	CAIRN_NVML_NUM_ITEMS
};

struct cairn_nvml_health {
	uint32_t has;				/* bit i: the library and the card have item i */
	uint64_t value[CAIRN_NVML_NUM_ITEMS];
};

/* How a card is set up; -1: unknown. */
struct cairn_nvml_settings {
	int64_t limit_mw;		/* power limit */
	int32_t ecc, mig;		/* 1: on */
};

void cairn_nvml_settings(struct cairn_nvml *n, struct cairn_nvml_settings *out);

/* Reads the items whose bits are set in `items`; ~0u: all. -ENODEV: the card is gone. */
int cairn_nvml_health(struct cairn_nvml *n, uint32_t items, struct cairn_nvml_health *h);
/* Returns the number of processes that compute on the card, or -errno. */
int cairn_nvml_processes(struct cairn_nvml *n);
int cairn_nvml_uuid(struct cairn_nvml *n, char *uuid, unsigned int len);

#endif
