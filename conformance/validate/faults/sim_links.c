// SPDX-License-Identifier: Apache-2.0
/*
 * sim_links - the links between simulated devices
 *
 * Devices share host memory (comm_cpu.c). A copy into a peer's heap takes the time of a link of LINK_GBPS, by
 * a clock that only such copies advance and that events read, so that rates do not depend on the machine.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/validate/faults/sim.h"
#include "primitives/base/error.h"

#define LINK_GBPS	400.0

enum { MAX_PEERS = 16 };

/* A peer's heap in this process. */
struct peer {
	void *handle;			/* of the communicator; NULL: not used */
	const char *heap;
	size_t bytes;
	int device;
};

static struct peer peers[MAX_PEERS];
static double clock_ns;
static long long num_copies;

static int is_faulty(int from, int to)
{
	return from == sim_option("link_from", 0) && to == sim_option("link_to", 1);
}

int sim_comm_open(const struct cairn_comm_args *args, struct cairn_comm *comm)
{
	int32_t devices[CAIRN_COMM_MAX_RANKS];
	void *heap;
	int at = 0;

	CAIRN_TRY(cairn_comm_check_open(args, comm));
	CAIRN_TRY(args->exchange(args->arg, &sim_device, devices, sizeof(sim_device)));
	for (int32_t r = 0; r < args->ranks; r++)
		if (sim_option("link_down", 0) &&
		    (is_faulty(sim_device, devices[r]) || is_faulty(devices[r], sim_device)))
			return cairn_error(ENODEV, "sim: cannot map the memory of rank %d", r);
	CAIRN_TRY(cairn_comm_open_cpu(args, comm));
	for (int32_t r = 0; r < args->ranks; r++) {
		if (r == args->rank)
			continue;
		while (at < MAX_PEERS && peers[at].handle)
			at++;
		if (at == MAX_PEERS || cairn_comm_heap_cpu(comm, r, &heap)) {
			cairn_comm_close_cpu(comm);
			return cairn_error(ENOMEM, "sim: too many peers");
		}
		peers[at] = (struct peer){ comm->handle, heap, args->heap_bytes, devices[r] };
	}
	return 0;
}

void sim_comm_close(struct cairn_comm *comm)
{
	for (int i = 0; i < MAX_PEERS; i++)
		if (peers[i].handle == comm->handle)
			peers[i].handle = NULL;
	cairn_comm_close_cpu(comm);
}

static const struct peer *peer_of(const void *dst)
{
	const char *at = dst;

	for (int i = 0; i < MAX_PEERS; i++)
		if (peers[i].handle && at >= peers[i].heap && at < peers[i].heap + peers[i].bytes)
			return &peers[i];
	return NULL;
}

int sim_link_begin(const void *dst, size_t bytes)
{
	const struct peer *p = peer_of(dst);
	double slow = 0;

	if (!p)
		return 0;
	num_copies++;
	if (is_faulty(sim_device, p->device)) {
		slow = (double)sim_option("link_slow", 0) / 1000;
		if (sim_option("link_lost", 0) && num_copies >= sim_option("link_lost", 0))
			return cairn_error(EIO, "sim: the peer's memory cannot be reached");
		while (sim_option("link_hang", 0) && num_copies >= sim_option("link_hang", 0))
			pause();
	}
	/* up to 0.3% of noise, as copies over NVLink have */
	slow += 3e-6 * (double)(sim_hash((uint64_t)(num_copies * 64 + sim_device * 8 + p->device)) % 1000);
	clock_ns += (double)bytes / LINK_GBPS * (1 + slow);
	return 0;
}

void sim_link_end(void *dst, size_t bytes)
{
	const struct peer *p = peer_of(dst);
	size_t at = (size_t)sim_option("link_byte", 0);

	if (p && at && at < bytes && is_faulty(sim_device, p->device))
		((unsigned char *)dst)[at] ^= 0x10;
}

/* ---- events ---- */

int sim_event_create(void **event)
{
	*event = calloc(1, sizeof(double));
	return *event ? 0 : cairn_error(ENOMEM, "sim: no memory for an event");
}

void sim_event_destroy(void *event)
{
	free(event);
}

int sim_event_record(void *event, void *stream)
{
	(void)stream;
	*(double *)event = clock_ns;
	return 0;
}

int sim_event_sync(void *event)
{
	(void)event;
	return 0;
}

int sim_event_elapsed(float *ms, void *start, void *end)
{
	*ms = (float)((*(double *)end - *(double *)start) * 1e-6);
	return 0;
}
