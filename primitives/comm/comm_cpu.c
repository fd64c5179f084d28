// SPDX-License-Identifier: Apache-2.0
/*
 * comm_cpu - communicators in shared host memory
 *
 * Each rank creates its segment as an anonymous file (memfd) and maps it. The others open the file through
 * /proc/PID/fd, which works between processes of one user, and check a random key in it. Nothing is left
 * behind when a process is killed. Ranks of one process use one mapping, so that a race detector sees their
 * accesses.
 *
 * segment   control words | mailbox 0 | mailbox 1 | heap
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "primitives/comm/comm_host.h"
#include "primitives/comm/comm_join.h"

/* What the ranks exchange when they open. */
struct hello {
	struct comm_hello common;
	int32_t fd;
	uint64_t key, address;
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int map(int fd, size_t bytes, struct comm_host_control **out)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return cairn_error(ENOMEM, "comm_open: cannot map %zu bytes: %s", bytes, strerror(errno));
	*out = p;
	return 0;
}

static int create(struct comm_host *h, struct hello *hello)
{
	struct comm_host_control *c = NULL;
	uint64_t key;

	hello->fd = memfd_create("cairn_comm", MFD_CLOEXEC);
	if (hello->fd < 0)
		return cairn_error(errno, "comm_open: no shared memory: %s", strerror(errno));
	if (ftruncate(hello->fd, (off_t)h->bytes))
		return cairn_error(ENOMEM, "comm_open: cannot allocate %zu bytes: %s", h->bytes,
				   strerror(errno));
	CAIRN_TRY(map(hello->fd, h->bytes, &c));
	h->segment[h->rank] = c;
	h->shared[h->rank] = 1;
	if (getrandom(&key, sizeof(key), 0) != sizeof(key))
		return cairn_error(EIO, "comm_open: no random numbers");
	c->key = hello->key = key;
	atomic_store(&c->posted, COMM_HOST_FIRST);
	atomic_store(&c->users, 1);
	hello->address = (uintptr_t)c;
	return 0;
}

static int attach(struct comm_host *h, int32_t r, const struct hello *theirs, const struct hello *mine)
{
	char path[64];
	int fd, ret;

	CAIRN_TRY(comm_check_hello(&theirs->common, r, &mine->common));
	if (comm_same_process(&theirs->common, &mine->common)) {
		h->segment[r] = (struct comm_host_control *)(uintptr_t)theirs->address;
		h->shared[r] = 1;
		atomic_fetch_add(&h->segment[r]->users, 1);
		return 0;
	}
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", theirs->common.pid, theirs->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return cairn_error(EIO, "comm_open: rank %d: %s: %s", r, path, strerror(errno));
	ret = map(fd, h->bytes, &h->segment[r]);
	close(fd);
	CAIRN_TRY(ret);
	if (h->segment[r]->key != theirs->key)
		return cairn_error(EINVAL, "comm_open: rank %d: %s is not its segment", r, path);
	return 0;
}

static int attach_all(struct comm_host *h, const struct hello *all)
{
	for (int32_t r = 0; r < h->ranks; r++)
		if (r != h->rank)
			CAIRN_TRY(attach(h, r, &all[r], &all[h->rank]));
	return 0;
}

static void drop(struct comm_host *h)
{
	for (int32_t r = 0; r < h->ranks; r++)
		if (h->segment[r] && (!h->shared[r] || atomic_fetch_sub(&h->segment[r]->users, 1) == 1))
			munmap(h->segment[r], h->bytes);
	free(h);
}

/* Exchanges the hellos, maps all segments, and waits until all ranks have mapped them. */
static int join(struct comm_host *h, const struct cairn_comm_args *a, struct hello *mine)
{
	struct hello all[CAIRN_COMM_MAX_RANKS];
	int status = create(h, mine);

	mine->common.status = status;
	CAIRN_TRY(a->exchange(a->arg, mine, all, sizeof(*mine)));
	return comm_agree(a, status ? status : attach_all(h, all));
}

int cairn_comm_open_cpu(const struct cairn_comm_args *a, struct cairn_comm *comm)
{
	struct hello mine = { .fd = -1 };
	struct comm_host *h;
	int ret;

	CAIRN_TRY(cairn_comm_check_open(a, comm));
	h = calloc(1, sizeof(*h));
	if (!h)
		return cairn_error(ENOMEM, "comm_open: no memory");
	h->rank = a->rank;
	h->ranks = a->ranks;
	h->bytes = sizeof(struct comm_host_control) + 2 * COMM_HOST_MAIL + a->heap_bytes;
	h->number = COMM_HOST_FIRST;
	h->timeout_ns = (uint64_t)(a->timeout_ms ? a->timeout_ms : CAIRN_COMM_TIMEOUT_MS) * 1000000u;
	comm_greet(&mine.common, a, COMM_TABLE_HOST);
	ret = join(h, a, &mine);
	if (mine.fd >= 0)
		close(mine.fd);
	if (ret) {
		drop(h);
		return ret;
	}
	*comm = (struct cairn_comm){ h, a->rank, a->ranks };
	return 0;
}

int cairn_comm_heap_cpu(const struct cairn_comm *comm, int32_t rank, void **base)
{
	const struct comm_host *h;

	CAIRN_TRY(cairn_comm_check(comm, "comm_heap"));
	h = comm->handle;
	if (rank < 0 || rank >= h->ranks || !base)
		return cairn_error(EINVAL, "comm_heap: rank %d of %d, or base is null", rank, h->ranks);
	*base = comm_host_mail(h, rank, 0) + 2 * COMM_HOST_MAIL;
	return 0;
}

int cairn_comm_error_cpu(const struct cairn_comm *comm)
{
	struct comm_host *h;
	int error;

	CAIRN_TRY(cairn_comm_check(comm, "comm_error"));
	h = comm->handle;
	error = atomic_load(&h->error);
	return error ? cairn_error(-error, "%s", h->text) : 0;
}

void cairn_comm_abort_cpu(const struct cairn_comm *comm)
{
	struct comm_host *h = comm->handle;

	for (int32_t r = 0; h && r < h->ranks; r++)
		atomic_store(&h->segment[r]->aborted, 1);
}

void cairn_comm_close_cpu(struct cairn_comm *comm)
{
	if (comm->handle)
		drop(comm->handle);
	memset(comm, 0, sizeof(*comm));
}

/* ---- rounds ---- */

static int fail(struct comm_host *h, int error, const char *op, int32_t rank, const char *why)
{
	snprintf(h->text, sizeof(h->text), "%s: call %u: rank %d %s", op, h->number - COMM_HOST_FIRST, rank,
		 why);
	atomic_store(&h->error, -error);
	return cairn_error(error, "%s", h->text);
}

int comm_host_check(const struct cairn_comm *comm, const char *op)
{
	const struct comm_host *h = comm->handle;

	CAIRN_TRY(cairn_comm_error_cpu(comm));
	if (comm->rank != h->rank || comm->ranks != h->ranks)
		return cairn_error(EINVAL, "%s: comm: the handle is that of rank %d of %d", op, h->rank,
				   h->ranks);
	return 0;
}

int comm_host_begin(const struct cairn_comm *comm, const char *op, void **mine)
{
	struct comm_host *h = comm->handle;

	CAIRN_TRY(comm_host_check(comm, op));
	h->number++;
	*mine = comm_host_mail(h, h->rank, h->number);
	return 0;
}

void comm_host_post(const struct cairn_comm *comm)
{
	struct comm_host *h = comm->handle;

	atomic_store_explicit(&h->segment[h->rank]->posted, h->number, memory_order_release);
}

/* Gives the processor away, in the end for 50 us at a time: ranks may outnumber processors. */
static void idle(uint32_t turn)
{
	if (turn < 64)
		__builtin_ia32_pause();
	else if (turn < 256)
		sched_yield();
	else
		usleep(50);
}

int comm_host_await(const struct cairn_comm *comm, int32_t rank, const char *op, const void **mail)
{
	struct comm_host *h = comm->handle;
	_Atomic uint32_t *posted = &h->segment[rank]->posted;
	uint64_t until = 0;

	for (uint32_t turn = 0;; turn++) {
		/* the difference, because numbers wrap around */
		if ((int32_t)(atomic_load_explicit(posted, memory_order_acquire) - h->number) >= 0)
			break;
		if (atomic_load(&h->segment[h->rank]->aborted))
			return fail(h, ECANCELED, op, rank, "was awaited when the communicator was aborted");
		idle(turn);
		if (turn < 64)
			continue;
		until = until ? until : now_ns() + h->timeout_ns;
		if (now_ns() > until)
			return fail(h, ETIMEDOUT, op, rank, "did not come in time");
	}
	*mail = comm_host_mail(h, rank, h->number);
	return 0;
}
