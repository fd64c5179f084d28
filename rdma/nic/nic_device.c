// SPDX-License-Identifier: Apache-2.0
/* nic_device.c - the NIC model's tables, queue pair state machine, completion entries, memory access */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "rdma/nic/nic_model.h"

struct nic_tables *nic;
struct nic_stats nic_stats;

static pid_t self;

static int init_tables(void)
{
	pthread_mutexattr_t attr;
	int ret;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	ret = -pthread_mutex_init(&nic->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	atomic_store(&nic->ready, ret ? -1 : 1);
	return ret;
}

/*
 * A forked child keeps a copy of the tables but has no engine. Unless the tables are shared, it is a separate
 * machine.
 */
static void after_fork(void)
{
	self = getpid();
}

/* Maps the tables. The process that creates the file initialises them; the others wait for that. */
int nic_open(const char *shared)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	int fd = -1, maker = 1, tries;

	self = getpid();
	pthread_atfork(NULL, NULL, after_fork);
	if (shared) {
		fd = (int)syscall(SYS_openat, AT_FDCWD, shared, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd < 0 && errno == EEXIST) {
			maker = 0;
			fd = (int)syscall(SYS_openat, AT_FDCWD, shared, O_RDWR | O_CLOEXEC, 0);
		}
		if (fd < 0 || ftruncate(fd, sizeof(*nic)) < 0)
			return -EIO;
		/* Let every process of this user access this one's memory, because it acts as the NIC of
		 * the other end. */
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	}
	nic = mmap(NULL, sizeof(*nic), PROT_READ | PROT_WRITE,
		   fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	if (fd >= 0)
		close(fd);
	if (nic == MAP_FAILED) {
		nic = NULL;
		return -ENOMEM;
	}
	if (maker)
		return init_tables();
	for (tries = 0; !atomic_load(&nic->ready) && tries < 1000; tries++)
		nanosleep(&pause, NULL);
	return atomic_load(&nic->ready) == 1 ? 0 : -ETIMEDOUT;
}

void nic_lock(void)
{
	if (pthread_mutex_lock(&nic->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&nic->lock);
}

void nic_unlock(void)
{
	pthread_mutex_unlock(&nic->lock);
}

/* Removes all that this process has on the network. The retries of its peers will run out. */
void nic_close(void)
{
	int i;

	nic_lock();
	for (i = 0; i < NIC_MAX_QPS; i++)
		if (nic->qps[i].used && nic->qps[i].pid == self)
			nic->qps[i].used = 0;
	for (i = 0; i < NIC_MAX_CQS; i++)
		if (nic->cqs[i].used && nic->cqs[i].pid == self)
			nic->cqs[i].used = 0;
	for (i = 0; i < NIC_MAX_MRS; i++)
		if (nic->mrs[i].used && nic->mrs[i].pid == self)
			nic->mrs[i].used = 0;
	nic_unlock();
}

int nic_mr_add(uint32_t pd, uint64_t addr, uint64_t bytes, uint64_t iova, uint32_t access)
{
	int i;

	for (i = 0; i < NIC_MAX_MRS && nic->mrs[i].used; i++)
		;
	if (i == NIC_MAX_MRS)
		return -ENOMEM;
	/* the low byte of a key: the key of a removed region must not become valid again */
	nic->generation++;
	nic->mrs[i] = (struct nic_mr) {
		.used = 1, .pid = self, .pd = pd, .addr = addr, .bytes = bytes, .iova = iova,
		.access = access,
		.key = (uint32_t)(NIC_FIRST_KEY + i) << 8 | (nic->generation & 0xff),
	};
	return i;
}

int nic_cq_add(uint64_t buf, uint64_t dbrec, uint32_t entries)
{
	struct nic_cq *cq;
	int i;

	for (i = 0; i < NIC_MAX_CQS && nic->cqs[i].used; i++)
		;
	if (i == NIC_MAX_CQS)
		return -ENOMEM;
	cq = &nic->cqs[i];
	cq->used = 1;
	cq->pid = self;
	cq->buf = buf;
	cq->dbrec = dbrec;
	cq->num = entries;
	cq->failed = cq->any_solicited = 0;
	cq->solicited = 0;
	__atomic_store_n(&cq->produced, 0, __ATOMIC_RELEASE);
	return i;
}

/* Slots are used in rotation, so that a number is reused late and a stale one is detected. */
int nic_qp_add(const struct nic_qp *init)
{
	int i, tries;

	for (tries = 0; tries < NIC_MAX_QPS; tries++) {
		i = (int)(nic->next_qp++ % NIC_MAX_QPS);
		if (!nic->qps[i].used)
			break;
	}
	if (tries == NIC_MAX_QPS)
		return -ENOMEM;
	nic->qps[i] = *init;
	nic->qps[i].pid = self;
	nic->qps[i].used = 1;
	nic->qps[i].state = NIC_RESET;
	nic->qps[i].serial = ++nic->serial;
	nic->qps[i].qpn = NIC_FIRST_QPN + (uint32_t)i;
	nic_engine_reset_qp(i);
	return i;
}

void nic_qp_remove(int i)
{
	nic->qps[i].used = 0;
	nic_engine_reset_qp(i);
}

int nic_qp_move(struct nic_qp *qp, enum nic_state to)
{
	static const uint8_t next[] = {		/* transitions; RESET and ERR are allowed from every state */
		[NIC_RESET] = 1 << NIC_INIT, [NIC_INIT] = 1 << NIC_INIT | 1 << NIC_RTR,
		[NIC_RTR] = 1 << NIC_RTS,
		[NIC_RTS] = 1 << NIC_RTS | 1 << NIC_SQD, [NIC_SQD] = 1 << NIC_SQD | 1 << NIC_RTS,
		[NIC_SQE] = 1 << NIC_RTS, [NIC_ERR] = 0,
	};

	if (to > NIC_ERR || (to != NIC_RESET && to != NIC_ERR && !(next[qp->state] & 1 << to)))
		return -EINVAL;
	qp->state = to;
	if (to == NIC_RESET) {
		qp->rq_head = 0;
		nic_engine_reset_qp((int)(qp - nic->qps));
	}
	return 0;
}

/* Called by the engine: outstanding requests will be flushed. */
void nic_qp_fail(struct nic_qp *qp)
{
	if (qp->used && qp->state != NIC_RESET)
		qp->state = NIC_ERR;
}

struct nic_qp *nic_qp_find(uint32_t qpn)
{
	struct nic_qp *qp;

	if (qpn < NIC_FIRST_QPN || qpn >= NIC_FIRST_QPN + NIC_MAX_QPS)
		return NULL;
	qp = &nic->qps[qpn - NIC_FIRST_QPN];
	return qp->used ? qp : NULL;
}

const struct nic_mr *nic_mr_find(const struct nic_qp *qp, uint32_t key, uint64_t addr, uint64_t bytes,
				 uint32_t access)
{
	uint32_t i = (key >> 8) - NIC_FIRST_KEY;
	const struct nic_mr *mr = &nic->mrs[i % NIC_MAX_MRS];

	if (i >= NIC_MAX_MRS || !mr->used || mr->revoked || mr->key != key || mr->pid != qp->pid ||
	    mr->pd != qp->pd || (mr->access & access) != access)
		return NULL;
	if (addr < mr->iova || bytes > mr->bytes || addr - mr->iova > mr->bytes - bytes)
		return NULL;
	return mr;
}

uint64_t nic_mr_address(const struct nic_mr *mr, uint64_t addr)
{
	return mr->addr + (addr - mr->iova);
}

/*
 * Consumers poll the last bytes of a message. These are stored last, the final 8 bytes in one store, like a
 * NIC's last write of a cache line.
 */
static void copy_local(void *to, const void *from, size_t bytes)
{
	size_t last = bytes < 8 ? bytes : 8, body = bytes - last;
	uint64_t word;

	memcpy(to, from, body);
	atomic_thread_fence(memory_order_release);
	if (last == 8 && ((uintptr_t)to + body) % 8 == 0) {
		memcpy(&word, (const char *)from + body, sizeof(word));
		__atomic_store_n((uint64_t *)(void *)((char *)to + body), word, __ATOMIC_RELEASE);
	} else {
		memcpy((char *)to + body, (const char *)from + body, last);
	}
}

int nic_copy_to(pid_t pid, uint64_t to, const void *from, size_t bytes)
{
	struct iovec local = { (void *)(uintptr_t)from, bytes };
	struct iovec remote = { (void *)(uintptr_t)to, bytes };

	if (!bytes)
		return 0;
	if (nic_is_foreign(to) || nic_is_foreign((uintptr_t)from))
		return pid == self ? nic_copy_foreign(to, (uintptr_t)from, bytes) : -EFAULT;
	if (nic_settle())
		return -EFAULT;
	if (pid == self) {
		copy_local((void *)(uintptr_t)to, from, bytes);
		return 0;
	}
	return process_vm_writev(pid, &local, 1, &remote, 1, 0) == (ssize_t)bytes ? 0 : -EFAULT;
}

int nic_copy_from(pid_t pid, void *to, uint64_t from, size_t bytes)
{
	struct iovec local = { to, bytes };
	struct iovec remote = { (void *)(uintptr_t)from, bytes };

	if (!bytes)
		return 0;
	if (nic_is_foreign(from))
		return nic_copy_foreign((uintptr_t)to, from, bytes);
	if (pid == self) {
		memcpy(to, (const void *)(uintptr_t)from, bytes);
		return 0;
	}
	return process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)bytes ? 0 : -EFAULT;
}

static void fail_cq(uint32_t cq)
{
	int i;

	nic->cqs[cq].failed = 1;
	for (i = 0; i < NIC_MAX_QPS; i++)
		if (nic->qps[i].used && (nic->qps[i].send_cq == cq || nic->qps[i].recv_cq == cq))
			nic_qp_fail(&nic->qps[i]);
}

/*
 * Writes a completion entry. Its last byte, with opcode and owner, makes it valid and is therefore written
 * last. A full queue fails together with all queue pairs on it, as on hardware.
 */
void nic_complete(struct nic_qp *qp, const struct nic_completion *c)
{
	uint32_t number = c->receive ? qp->recv_cq : qp->send_cq, consumed, index;
	struct nic_cq *cq = &nic->cqs[number];
	struct cairn_cqe e;
	uint64_t at;

	if (!cq->used || cq->failed)
		return;
	if (nic_copy_from(cq->pid, &consumed, cq->dbrec, sizeof(consumed)))
		return;
	consumed = be32toh(consumed);
	if (consumed >> 24)
		nic_broken(qp, NIC_RULE_cq_record_upper, c->index, "consumer index %#x", consumed);
	if (((cq->produced - consumed) & 0xffffff) >= cq->num || nic_adversary_overruns()) {
		if (((cq->produced - consumed) & 0xffffff) >= cq->num)
			nic_broken(qp, NIC_RULE_cq_overrun, c->index,
				   "%u entries, produced %u, consumed %u", cq->num,
				   cq->produced & 0xffffff, consumed & 0xffffff);
		fail_cq(number);
		return;
	}
	/* A collapsed queue has one entry, always overwritten; its owner bit does not flip. */
	index = nic_adversary_collapses() ? 0 : cq->produced;
	e = cairn_cqe_build(&(struct cairn_cqe_result) {
		.opcode = (uint8_t)c->opcode, .syndrome = (uint8_t)c->syndrome,
		.vendor_syndrome = c->syndrome ? NIC_VENDOR_ERROR : 0, .solicited = (uint8_t)c->solicited,
		.sent_opcode = c->sent_opcode, .wqe_counter = c->index, .qpn = qp->qpn,
		.user_index = qp->uidx,
		.byte_count = c->syndrome ? 0 : c->bytes, .imm_be = c->syndrome ? 0 : c->imm,
	}, index, cq->num);
	at = cq->buf + (uint64_t)(index & (cq->num - 1)) * sizeof(e);
	if (nic_copy_to(cq->pid, at, &e, offsetof(struct cairn_cqe, op_own)))
		return;
	atomic_thread_fence(memory_order_release);
	if (nic_copy_to(cq->pid, at + offsetof(struct cairn_cqe, op_own), &e.op_own, 1))
		return;
	if (c->solicited || c->syndrome) {
		cq->solicited = cq->produced + 1;
		cq->any_solicited = 1;
	}
	__atomic_store_n(&cq->produced, cq->produced + 1, __ATOMIC_RELEASE);
	nic_count(&nic_stats.completions, 1);
	if (c->syndrome == CAIRN_CQE_FLUSHED)
		nic_count(&nic_stats.flushed, 1);
	else if (c->syndrome)
		nic_count(&nic_stats.errors, 1);
}
