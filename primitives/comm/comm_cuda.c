// SPDX-License-Identifier: Apache-2.0
/*
 * comm_cuda - communicators in the memory of GPUs of one host
 *
 * Each rank allocates its segment (comm_device.h) on its current device. Ranks in other processes map it by
 * CUDA IPC, those of the same process by peer access; several ranks may share a device. A segment is a whole
 * number of 2 MiB granules, because an IPC handle covers all of its granule.
 *
 * Within a process, a segment is freed by its last user, since the others may still abort.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/launch.h"
#include "primitives/comm/comm_device.h"
#include "primitives/comm/comm_join.h"

#define GRANULE	((size_t)2 << 20)

static const char *const op_names[COMM_NUM_OPS] = { "all_reduce_norm", "all_to_all", "send_recv",
						    "decode_step_ranks" };

struct hello {
	struct comm_hello common;
	int32_t device;
	uint64_t address;
	cudaIpcMemHandle_t handle;
};

/* A segment in this process. */
struct segment {
	struct segment *next;		/* of those allocated here */
	char *base;
	int users, is_mapped;
};

/* Host memory that the GPU writes, and a word for the copies of comm_abort(). */
struct pinned {
	struct comm_record record;
	uint32_t zero;
};

struct comm_cuda {
	struct comm_device d;
	struct segment *segment[CAIRN_COMM_MAX_RANKS];
	struct pinned *pinned;
	cudaStream_t stream;		/* of comm_abort() */
	size_t stages_at, heap_at, bytes;
	uint32_t staged;		/* messages that went through stages so far */
	int device;
};

static pthread_mutex_t segments_lock = PTHREAD_MUTEX_INITIALIZER;
static struct segment *segments;	/* those allocated in this process */

static struct segment *new_segment(char *base, int is_mapped)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	*s = (struct segment){ .base = base, .users = 1, .is_mapped = is_mapped };
	pthread_mutex_lock(&segments_lock);
	s->next = segments;
	segments = s;
	pthread_mutex_unlock(&segments_lock);
	return s;
}

/* Adds a user to a segment that this process has allocated. NULL: there is none at this address. */
static struct segment *share_segment(const char *base)
{
	struct segment *s;

	pthread_mutex_lock(&segments_lock);
	for (s = segments; s && (s->base != base || s->is_mapped); s = s->next)
		;
	if (s)
		s->users++;
	pthread_mutex_unlock(&segments_lock);
	return s;
}

static void drop_segment(struct segment *s)
{
	struct segment **at;
	int last;

	if (!s)
		return;
	pthread_mutex_lock(&segments_lock);
	last = --s->users == 0;
	for (at = &segments; *at && *at != s; at = &(*at)->next)
		;
	if (last && *at)
		*at = s->next;
	pthread_mutex_unlock(&segments_lock);
	if (!last)
		return;
	if (s->is_mapped)
		cudaIpcCloseMemHandle(s->base);
	else
		cudaFree(s->base);
	free(s);
}

static int create(struct comm_cuda *c, struct hello *hello)
{
	char *base;
	void *p;

	CAIRN_CUDA(cudaGetDevice(&c->device));
	CAIRN_CUDA(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
	CAIRN_CUDA(cudaHostAlloc(&p, sizeof(*c->pinned), cudaHostAllocMapped | cudaHostAllocPortable));
	c->pinned = memset(p, 0, sizeof(*c->pinned));
	if (cudaMalloc(&p, c->bytes) != cudaSuccess) {
		cudaGetLastError();
		return cairn_error(ENOMEM, "comm_open: cannot allocate %zu bytes", c->bytes);
	}
	base = p;
	c->segment[c->d.rank] = new_segment(base, 0);
	if (!c->segment[c->d.rank]) {
		cudaFree(p);
		return cairn_error(ENOMEM, "comm_open: no memory");
	}
	CAIRN_CUDA(cudaMemsetAsync(base, 0xff, c->heap_at, c->stream));
	CAIRN_CUDA(cudaMemsetAsync(base + c->heap_at, 0, c->bytes - c->heap_at, c->stream));
	CAIRN_CUDA(cudaStreamSynchronize(c->stream));
	hello->device = c->device;
	hello->address = (uintptr_t)base;
	/* Not needed within a process, and not every kind of machine has it. */
	if (cudaIpcGetMemHandle(&hello->handle, base) != cudaSuccess)
		memset(&hello->handle, 0, sizeof(hello->handle));
	cudaGetLastError();
	return 0;
}

static int reach(int device, int peer)
{
	cudaError_t err;
	int can = 0;

	if (device == peer)
		return 0;
	CAIRN_CUDA(cudaDeviceCanAccessPeer(&can, device, peer));
	if (!can)
		return cairn_error(ENODEV, "comm_open: GPU %d cannot access the memory of GPU %d", device,
				   peer);
	err = cudaDeviceEnablePeerAccess(peer, 0);
	cudaGetLastError();
	if (err != cudaErrorPeerAccessAlreadyEnabled)
		CAIRN_CUDA(err);
	return 0;
}

static int attach(struct comm_cuda *c, int32_t r, const struct hello *theirs, const struct hello *mine)
{
	void *p;

	CAIRN_TRY(comm_check_hello(&theirs->common, r, &mine->common));
	if (comm_same_process(&theirs->common, &mine->common)) {
		CAIRN_TRY(reach(c->device, theirs->device));
		c->segment[r] = share_segment((const char *)(uintptr_t)theirs->address);
		return c->segment[r] ? 0 : cairn_error(EINVAL, "comm_open: rank %d has no segment", r);
	}
	if (cudaIpcOpenMemHandle(&p, theirs->handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
		return cairn_error(ENODEV, "comm_open: cannot map the memory of rank %d: %s", r,
				   cudaGetErrorString(cudaGetLastError()));
	c->segment[r] = new_segment(p, 1);
	if (!c->segment[r]) {
		cudaIpcCloseMemHandle(p);
		return cairn_error(ENOMEM, "comm_open: no memory");
	}
	return 0;
}

static int attach_all(struct comm_cuda *c, const struct hello *all)
{
	for (int32_t r = 0; r < c->d.ranks; r++) {
		if (r != c->d.rank)
			CAIRN_TRY(attach(c, r, &all[r], &all[c->d.rank]));
		c->d.mail[r] = c->segment[r]->base + COMM_CONTROL;
	}
	c->d.words = (struct comm_words *)(void *)c->segment[c->d.rank]->base;
	c->d.record = &c->pinned->record;
	return 0;
}

static void drop(struct comm_cuda *c)
{
	if (c->stream) {
		cudaStreamSynchronize(c->stream);
		cudaStreamDestroy(c->stream);
	}
	for (int32_t r = 0; r < c->d.ranks; r++)
		drop_segment(c->segment[r]);
	if (c->pinned)
		cudaFreeHost(c->pinned);
	free(c);
}

/* Exchanges the hellos, maps all segments, and waits until all ranks have mapped them. */
static int join(struct comm_cuda *c, const struct cairn_comm_args *a)
{
	struct hello all[CAIRN_COMM_MAX_RANKS], mine;
	int status;

	memset(&mine, 0, sizeof(mine));
	comm_greet(&mine.common, a, COMM_TABLE_CUDA);
	status = create(c, &mine);
	mine.common.status = status;
	CAIRN_TRY(a->exchange(a->arg, &mine, all, sizeof(mine)));
	return comm_agree(a, status ? status : attach_all(c, all));
}

int cairn_comm_open(const struct cairn_comm_args *a, struct cairn_comm *comm)
{
	struct comm_cuda *c;
	int ret;

	CAIRN_TRY(cairn_comm_check_open(a, comm));
	c = calloc(1, sizeof(*c));
	if (!c)
		return cairn_error(ENOMEM, "comm_open: no memory");
	c->d.rank = a->rank;
	c->d.ranks = a->ranks;
	c->d.timeout_ns = (uint64_t)(a->timeout_ms ? a->timeout_ms : CAIRN_COMM_TIMEOUT_MS) * 1000000u;
	c->stages_at = COMM_CONTROL + 2 * (size_t)a->ranks * (COMM_WORDS * 16 + COMM_BOX);
	c->heap_at = c->stages_at + 2 * (size_t)COMM_STAGE;
	c->bytes = (c->heap_at + a->heap_bytes + GRANULE - 1) / GRANULE * GRANULE;
	ret = join(c, a);
	if (ret) {
		drop(c);
		return ret;
	}
	*comm = (struct cairn_comm){ c, a->rank, a->ranks };
	return 0;
}

int cairn_comm_heap(const struct cairn_comm *comm, int32_t rank, void **base)
{
	const struct comm_cuda *c;

	CAIRN_TRY(cairn_comm_check(comm, "comm_heap"));
	c = comm->handle;
	if (rank < 0 || rank >= c->d.ranks || !base)
		return cairn_error(EINVAL, "comm_heap: rank %d of %d, or base is null", rank, c->d.ranks);
	*base = c->segment[rank]->base + c->heap_at;
	return 0;
}

int cairn_comm_error(const struct cairn_comm *comm)
{
	const struct comm_record *r;
	uint32_t code;

	CAIRN_TRY(cairn_comm_check(comm, "comm_error"));
	r = &((const struct comm_cuda *)comm->handle)->pinned->record;
	code = __atomic_load_n(&r->code, __ATOMIC_ACQUIRE);
	if (!code)
		return 0;
	return cairn_error((int)code, "%s: call %u: rank %u %s",
			   r->op < COMM_NUM_OPS ? op_names[r->op] : "a collective", r->number + 1, r->rank,
			   code == ECANCELED ? "was awaited when the communicator was aborted" :
			   "did not come in time");
}

void cairn_comm_abort(const struct cairn_comm *comm)
{
	struct comm_cuda *c = comm->handle;
	int previous;

	if (!c || cudaGetDevice(&previous) != cudaSuccess)
		return;
	cudaSetDevice(c->device);
	for (int32_t r = 0; r < c->d.ranks; r++) {
		struct comm_words *words = (struct comm_words *)(void *)c->segment[r]->base;

		cudaMemcpyAsync(&words->aborted, &c->pinned->zero, sizeof(words->aborted), cudaMemcpyDefault,
				c->stream);
	}
	cudaSetDevice(previous);
}

void cairn_comm_close(struct cairn_comm *comm)
{
	struct comm_cuda *c = comm->handle;
	int previous;

	if (c && cudaGetDevice(&previous) == cudaSuccess) {
		cudaSetDevice(c->device);
		drop(c);
		cudaSetDevice(previous);
	}
	memset(comm, 0, sizeof(*comm));
}

int comm_cuda_device(const struct cairn_comm *comm, const char *op, struct comm_device *d)
{
	const struct comm_cuda *c = comm->handle;

	CAIRN_TRY(cairn_comm_error(comm));
	if (comm->rank != c->d.rank || comm->ranks != c->d.ranks)
		return cairn_error(EINVAL, "%s: comm: the handle is that of rank %d of %d", op, c->d.rank,
				   c->d.ranks);
	*d = c->d;
	return 0;
}

void comm_cuda_stage(const struct cairn_comm *comm, int32_t to, char **mine, char **theirs)
{
	struct comm_cuda *c = comm->handle;
	const size_t at = c->stages_at + (c->staged++ & 1) * (size_t)COMM_STAGE;

	*mine = c->segment[comm->rank]->base + at;
	*theirs = to < 0 ? NULL : c->segment[to]->base + at;
}
