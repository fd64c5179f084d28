/* SPDX-License-Identifier: Apache-2.0 */
/* nic_wire - constants that only the NIC's side needs beyond wqe.h and cqe.h, and big-endian access */
#ifndef CAIRN_NIC_WIRE_H
#define CAIRN_NIC_WIRE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "rdma/wqe/cqe.h"
#include "rdma/wqe/wqe.h"

enum {
	NIC_FLAG_CE = 0x0c,		/* when to complete: 0 on error only, SIGNALED always */
	NIC_FLAG_FM = 0xe0,		/* fence mode */
	NIC_FLAG_RESERVED = 0x11,
	NIC_INLINE_MASK = 0x3ff,	/* length of an inline segment */
	NIC_NO_KEY = 0x100,		/* ends a receive's segment list */
	NIC_SEGMENT = 16,
	NIC_VENDOR_ERROR = 0x88,
};

static inline uint32_t nic_get32(const void *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return be32toh(v);
}

static inline uint64_t nic_get64(const void *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return be64toh(v);
}

static inline int nic_blocks(unsigned ds)
{
	return (int)(ds * NIC_SEGMENT + CAIRN_WQE_BLOCK - 1) / CAIRN_WQE_BLOCK;
}

#endif
