/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health - judges what the driver's counters and the kernel's log say of a card during a run
 *
 * Counters are judged by how much they grew. A power cap is normal under load.
 */
#ifndef CAIRN_VALIDATE_HEALTH_H
#define CAIRN_VALIDATE_HEALTH_H

#include <stdint.h>

#include "conformance/tables/nvml.h"
#include "conformance/validate/judge.h"

/* Bits of the reasons that hold a clock down, as NVML numbers them. */
enum {
	VALIDATE_POWER_CAP = 0x4, VALIDATE_HW_SLOWDOWN = 0x8, VALIDATE_SW_THERMAL = 0x20,
	VALIDATE_HW_THERMAL = 0x40, VALIDATE_POWER_BRAKE = 0x80
};

struct validate_health {
	struct cairn_nvml_health before, after;
	uint64_t reasons;		/* all that were seen during the run */
	uint32_t max_celsius, max_mw, min_mhz, max_mhz;		/* 0: unknown */
	int32_t xid;			/* the latest hardware Xid in the log, 0: none */
	int32_t own_xid;		/* the latest Xid that an application, such as this program, causes */
};

struct validate_finding {
	enum validate_verdict verdict;
	char text[160];
};

/* Writes the findings, at most `most`; returns their number. */
int32_t validate_health_judge(const struct validate_health *h, struct validate_finding *out, int32_t most);

/* Returns the number of the Xid that a line of the kernel's log reports of the card at pci, or 0. */
int32_t validate_xid(const char *line, const char *pci);
/* Returns whether an application causes this Xid, not the hardware. */
int validate_xid_is_own(int32_t xid);

#endif
