// SPDX-License-Identifier: Apache-2.0
/*
 * fake_nccl - a library with the part of NCCL's interface that validate uses, for host memory
 *
 * The ranks of a communicator share memory, in which each leaves its input and reads those of all. With
 * CAIRN_FAKE_NCCL=N rank N gets a wrong bit in each result.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_RANKS = 8, MAX_COUNT = 1 << 16, TIMEOUT_TURNS = 400000 };	/* turns of 50 us */

struct nccl_id {
	char internal[128];
};

struct shared {
	_Atomic unsigned int came[MAX_RANKS];
	float in[MAX_RANKS][MAX_COUNT];
};

struct comm {
	struct shared *shared;
	unsigned int meetings;
	int rank, ranks;
};

int ncclGetUniqueId(struct nccl_id *id);
int ncclCommInitRank(void **out, int ranks, struct nccl_id id, int rank);
int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *comm, void *stream);
int ncclCommAbort(void *comm);
const char *ncclGetErrorString(int result);

static int meet(struct comm *c)
{
	unsigned int number = ++c->meetings;

	atomic_store(&c->shared->came[c->rank], number);
	for (int r = 0; r < c->ranks; r++)
		for (int turn = 0; atomic_load(&c->shared->came[r]) < number; turn++) {
			if (turn == TIMEOUT_TURNS)
				return 6;	/* ncclRemoteError */
			usleep(50);
		}
	return 0;
}

int ncclGetUniqueId(struct nccl_id *id)
{
	snprintf(id->internal, sizeof(id->internal), "/cairn_fake_nccl_%d", (int)getpid());
	return 0;
}

int ncclCommInitRank(void **out, int ranks, struct nccl_id id, int rank)
{
	int fd = shm_open(id.internal, O_RDWR | O_CREAT, 0600), ret;
	struct comm *c = calloc(1, sizeof(*c));

	if (fd < 0 || !c || ranks > MAX_RANKS || ftruncate(fd, sizeof(struct shared)))
		return 2;		/* ncclSystemError */
	c->shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (c->shared == MAP_FAILED)
		return 2;
	c->rank = rank;
	c->ranks = ranks;
	*out = c;
	ret = meet(c);
	if (rank == 0)
		shm_unlink(id.internal);
	return ret;
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *comm, void *stream)
{
	const char *wrong = getenv("CAIRN_FAKE_NCCL");
	struct comm *c = comm;
	float *sum = out;
	int ret;

	(void)stream;
	if (type != 7 || op || count > MAX_COUNT)
		return 4;		/* ncclInvalidArgument */
	memcpy(c->shared->in[c->rank], in, count * sizeof(float));
	ret = meet(c);
	if (ret)
		return ret;
	memset(sum, 0, count * sizeof(float));
	for (int r = 0; r < c->ranks; r++)
		for (size_t i = 0; i < count; i++)
			sum[i] += c->shared->in[r][i];
	if (wrong && atoi(wrong) == c->rank)
		((unsigned char *)out)[5000] ^= 1;
	return meet(c);
}

int ncclCommAbort(void *comm)
{
	struct comm *c = comm;

	munmap(c->shared, sizeof(struct shared));
	free(c);
	return 0;
}

const char *ncclGetErrorString(int result)
{
	return result == 6 ? "remote error" : "an error";
}
