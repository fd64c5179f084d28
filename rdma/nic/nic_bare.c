// SPDX-License-Identifier: Apache-2.0
/*
 * nic_bare.c - queue pairs laid out by hand, without libibverbs, and memory that the CPU cannot access
 *
 * For a poster on a GPU on a machine without a card. Rings, records and completions may be in GPU memory,
 * which the model reaches only through the program's copy function, as a card does over the bus.
 */
#include <errno.h>
#include <string.h>

#include "rdma/nic/nic_model.h"

#define MAX_FOREIGN	64

static struct {
	uint64_t addr, bytes;
} foreign[MAX_FOREIGN];
static atomic_int num_foreign;		/* entries ever used; one of 0 bytes is free */
static int (*copy)(void *to, const void *from, size_t bytes), (*settle)(void);
static int under_way;			/* copies to foreign memory in flight; engine thread only */

int nic_is_foreign(uint64_t addr)
{
	int i, n = atomic_load_explicit(&num_foreign, memory_order_acquire);

	for (i = 0; i < n; i++)
		if (addr - foreign[i].addr < foreign[i].bytes)
			return 1;
	return 0;
}

/* Waits for copies to foreign memory, so that later writes to host memory happen after them. */
int nic_settle(void)
{
	if (!under_way)
		return 0;
	under_way = 0;
	return settle() ? -EFAULT : 0;
}

/* Copies to foreign memory may still be in flight on return, so that a payload and its number need only
 * one wait. */
int nic_copy_foreign(uint64_t to, uint64_t from, size_t bytes)
{
	if (!copy || copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes))
		return -EFAULT;
	under_way = 1;
	return nic_is_foreign(to) ? 0 : nic_settle();
}

static int declare_foreign(const void *addr, size_t bytes)
{
	int i;

	nic_lock();
	for (i = 0; i < MAX_FOREIGN && foreign[i].bytes; i++)
		;
	if (i < MAX_FOREIGN) {
		foreign[i].addr = (uintptr_t)addr;
		foreign[i].bytes = bytes;
		if (i >= num_foreign)
			atomic_store_explicit(&num_foreign, i + 1, memory_order_release);
	}
	nic_unlock();
	return i < MAX_FOREIGN ? 0 : -ENOMEM;
}

static void forget_foreign(const void *addr)
{
	int i;

	nic_lock();
	for (i = 0; i < num_foreign; i++)
		if (foreign[i].bytes && foreign[i].addr == (uintptr_t)addr)
			foreign[i].bytes = 0;
	nic_unlock();
}

static void set_copy(int (*fn)(void *to, const void *from, size_t bytes), int (*wait)(void))
{
	nic_lock();
	copy = fn;
	settle = wait;
	nic_unlock();
}

static int add_key(const void *addr, size_t bytes, uint32_t access, uint32_t *key)
{
	int i;

	nic_lock();
	i = nic_mr_add(0, (uintptr_t)addr, bytes, (uintptr_t)addr, access);
	if (i >= 0)
		*key = nic->mrs[i].key;
	nic_unlock();
	return i < 0 ? i : 0;
}

static int change_key(uint32_t key, int remove)
{
	uint32_t i = (key >> 8) - NIC_FIRST_KEY;
	int ret = -EINVAL;

	nic_lock();
	if (i < NIC_MAX_MRS && nic->mrs[i].used && nic->mrs[i].key == key) {
		nic->mrs[i].used = !remove;
		nic->mrs[i].revoked = 1;
		ret = 0;
	}
	nic_unlock();
	return ret;
}

static int remove_key(uint32_t key)
{
	return change_key(key, 1);
}

static int revoke_key(uint32_t key)
{
	return change_key(key, 0);
}

static int ring_is_wrong(const struct cairn_nic_ring *r)
{
	return !r->sq || !r->record || !r->cq || !r->cq_record || !r->num_blocks || !r->num_cqes ||
	       r->num_blocks > 32768 || r->num_blocks & (r->num_blocks - 1) ||
	       r->num_cqes & (r->num_cqes - 1);
}

static int attach(const struct cairn_nic_ring *r, uint32_t *qpn, uint64_t *reg[2])
{
	struct nic_qp init = {
		.sq = (uintptr_t)r->sq, .dbrec = (uintptr_t)r->record, .sq_blocks = r->num_blocks,
	};
	int cq, i = -ENOMEM;

	if (ring_is_wrong(r))
		return -EINVAL;
	nic_lock();
	cq = nic_cq_add((uintptr_t)r->cq, (uintptr_t)r->cq_record, r->num_cqes);
	if (cq >= 0) {
		init.send_cq = init.recv_cq = (uint32_t)cq;
		i = nic_qp_add(&init);
		if (i >= 0 && nic_engine_start()) {
			nic_qp_remove(i);
			i = -EAGAIN;
		}
		if (i < 0)
			nic->cqs[cq].used = 0;
	}
	if (i >= 0) {
		*qpn = nic->qps[i].qpn;
		reg[0] = (uint64_t *)(void *)nic_register(i, 0);
		reg[1] = (uint64_t *)(void *)nic_register(i, 1);
	}
	nic_unlock();
	return i < 0 ? i : 0;
}

/* Moves the queue pair directly to RTS. It may be its own peer. */
static int connect_to(uint32_t qpn, uint32_t peer)
{
	static const enum nic_state way[] = { NIC_RESET, NIC_INIT, NIC_RTR, NIC_RTS };
	struct nic_qp *qp;
	unsigned k;
	int ret = -EINVAL;

	nic_lock();
	qp = nic_qp_find(qpn);
	if (qp) {
		for (k = 0, ret = 0; !ret && k < sizeof(way) / sizeof(way[0]); k++)
			ret = nic_qp_move(qp, way[k]);
		qp->dest_qpn = peer;
		qp->access = NIC_LOCAL_WRITE | NIC_REMOTE_WRITE | NIC_REMOTE_READ | NIC_REMOTE_ATOMIC;
		qp->timeout = 10;
		qp->retry = 7;
		qp->rnr_retry = 1;
		qp->min_rnr_timer = 1;
	}
	nic_unlock();
	return ret;
}

static void detach(uint32_t qpn)
{
	struct nic_qp *qp;

	nic_lock();
	qp = nic_qp_find(qpn);
	if (qp) {
		nic->cqs[qp->send_cq].used = 0;
		nic_qp_remove((int)(qp - nic->qps));
	}
	nic_unlock();
}

static int set_adversary(const char *list, uint64_t seed)
{
	int ret;

	nic_lock();
	ret = nic_adversary_set(list, seed);
	nic_unlock();
	return ret;
}

static uint8_t *pages(size_t *bytes)
{
	*bytes = (size_t)NIC_NUM_UAR_PAGES * NIC_PAGE;
	return nic_uar;
}

const struct cairn_nic_bare *cairn_nic_bare(void)
{
	static const struct cairn_nic_bare table = {
		.size = sizeof(table), .attach = attach, .connect = connect_to, .detach = detach,
		.add_key = add_key, .remove_key = remove_key, .revoke_key = revoke_key,
		.declare_foreign = declare_foreign, .forget_foreign = forget_foreign, .set_copy = set_copy,
		.set_adversary = set_adversary, .register_pages = pages, .stats = cairn_nic_stats,
		.report = cairn_nic_report,
	};

	return nic && nic_uar ? &table : NULL;
}
