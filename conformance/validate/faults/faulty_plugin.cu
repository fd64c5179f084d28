// SPDX-License-Identifier: Apache-2.0
/*
 * faulty_plugin - the kernels that `cairn validate` uses, with injected faults, which it must find on GPUs
 *
 * It compiles the very source of the kernel, primitives/machine/screen.cu, and changes the results of a step
 * before they enter the digest. stream, dsmem, copies and communicators are ours, with a fault added after or
 * before the call. It is a table with these operations, and never part of the product. Before each call it
 * reads $CAIRN_FAULTY, NAME=NUMBER separated by blanks:
 *
 *   rate X	share of operations that are wrong (0): of wgmma instructions m64n128 in tensor programs,
 *		else of what cairn_screen_operations() counts
 *   sm N	the faulty SM, by %smid (0)
 *   part N	its faulty sub-partition (0); -1: all four
 *   mask N	bits that are flipped; 0: one bit, drawn each time (0)
 *   lanes 1	in all lanes of the warp, not in one that is drawn
 *   operands 1	whether a step is wrong follows from its inputs alone, so that replays repeat it
 *   rounds N	only in calls of at least N rounds: full load has 32, replays have 1
 *   after S	only from S seconds after the first call on
 *   slow N	each group of warps on the SM waits N cycles after a step, which other groups may hide
 *   cycles N	the SM reports N tenths of a percent more cycles; pair N: so do its reads from its neighbour's
 *		shared memory
 *   stuck N	byte N of buffers of 1 MiB and more, into which stream writes, is always 0xff
 *   arrived N	byte N of such buffers, into which copies write, is wrong when they are read
 *   link_from N, link_to N
 *		the faulty link (0, 1): link_slow N: it is N tenths of a percent slower, because the last part
 *		of each copy is copied again; link_byte N: byte N of each copy is wrong
 *   seed N	of what is drawn (1)
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct work;
template <int n> static __device__ __forceinline__ void inject(const struct work &w, int step,
							       uint32_t *word);
#define CAIRN_SCREEN_HOOK(n, w, step, word)	inject<n>(w, step, word)
#include "primitives/machine/screen.cu"
#undef CAIRN_SCREEN_HOOK

#include "conformance/abi.h"
#include "conformance/tables/tables.h"

#define LARGE	((size_t)1 << 20)

struct injection {
	/* by program: a step is wrong if a number drawn from 64 bits is below this */
	uint64_t threshold[CAIRN_SCREEN_NUM_PROGRAMS];
	uint64_t seed;
	uint32_t mask;
	int32_t sm, part, lanes, operands, slow;
};

static __constant__ struct injection injection;

/* All lanes of the warp draw the same numbers: of the inputs of the step, or of the time on lane 0. */
template <int n> static __device__ void inject(const struct work &w, int step, uint32_t *word)
{
	uint64_t from = w.key, drawn;
	uint32_t which, lane, mask;

	if (ptx_smid_now() != (uint32_t)injection.sm)
		return;
	for (uint64_t begun = ptx_clock64(); ptx_clock64() - begun < (uint64_t)injection.slow;)
		;
	if (injection.part >= 0 && injection.part != w.part)
		return;
	if (!injection.operands)
		from += __shfl_sync(~0u, ptx_clock64() + ptx_globaltimer(), 0);
	drawn = cairn_screen_key(injection.seed + from, w.part, step);
	if (drawn >= injection.threshold[w.program])
		return;
	drawn = cairn_screen_key(drawn, w.part, step);
	which = (uint32_t)drawn % n;
	lane = drawn >> 32 & 31;
	mask = injection.mask ? injection.mask : 1u << (drawn >> 40 & 31);
#pragma unroll
	for (int j = 0; j < n; j++)
		if (j == (int)which && (injection.lanes || w.lane == (int)lane))
			word[j] ^= mask;
}

static double option(const char *name, double otherwise)
{
	const char *at = getenv("CAIRN_FAULTY");
	size_t len = strlen(name);

	for (; at && *at; at += strcspn(at, " "), at += *at == ' ')
		if (!strncmp(at, name, len) && at[len] == '=')
			return atof(at + len + 1);
	return otherwise;
}

static double seconds_since_first(void)
{
	static struct timespec first;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (!first.tv_sec)
		first = now;
	return (double)(now.tv_sec - first.tv_sec) + 1e-9 * (double)(now.tv_nsec - first.tv_nsec);
}

/* ---- screen and dsmem ---- */

/* Adds tenths of a percent to the cycles of the rounds that ran on the SM; n: cells of place. */
__global__ void add_cycles_kernel(const int32_t *place, int64_t *cycles, int n, int sm, int permille)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n || place[i] != sm)
		return;
	for (int p = 0; p < CAIRN_SCREEN_PARTS; p++)
		cycles[i * CAIRN_SCREEN_PARTS + p] += cycles[i * CAIRN_SCREEN_PARTS + p] * permille / 1000;
}

/* Adds them to the chase from a CTA on the SM through the shared memory of the SM's neighbour in its TPC. */
__global__ void add_pair_kernel(const int32_t *smid, int32_t *pair, int ctas, int size, int sm, int permille)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= ctas || smid[i] != sm)
		return;
	smid += i / size * size;
	pair += i * size;
	for (int owner = 0; owner < size; owner++)
		if (smid[owner] == (sm ^ 1))
			pair[owner] += (int32_t)((int64_t)pair[owner] * permille / 1000);
}

static int faulty_screen(const struct cairn_screen_args *args, void *stream)
{
	int active = seconds_since_first() >= option("after", 0) && args->rounds >= option("rounds", 0);
	int cycles = active ? (int)option("cycles", 0) : 0, cells = args->rounds * args->units;
	struct injection f = {};

	for (int p = 0; p < CAIRN_SCREEN_MIX && active; p++) {
		/* a part has its share of all wgmma of a step */
		double wrong = option("rate", 0) * (double)cairn_screen_operations(p);

		f.threshold[p] = wrong < 1 ? (uint64_t)(wrong * 0x1p64) : UINT64_MAX;
	}
	f.seed = (uint64_t)option("seed", 1);
	f.mask = (uint32_t)option("mask", 0);
	f.sm = (int32_t)option("sm", 0);
	f.part = (int32_t)option("part", 0);
	f.lanes = (int32_t)option("lanes", 0);
	f.operands = (int32_t)option("operands", 0);
	f.slow = active ? (int32_t)option("slow", 0) : 0;
	CAIRN_CUDA(cudaMemcpyToSymbolAsync(injection, &f, sizeof(f), 0, cudaMemcpyHostToDevice,
					   (cudaStream_t)stream));
	CAIRN_TRY(cairn_screen(args, stream));
	if (!cycles)
		return 0;
	add_cycles_kernel<<<(cells + 255) / 256, 256, 0, (cudaStream_t)stream>>>(
		args->place, args->cycles, cells, f.sm, cycles);
	CAIRN_CUDA(cudaPeekAtLastError());
	return 0;
}

static int faulty_dsmem(const struct cairn_dsmem_args *args, void *stream)
{
	int pair = (int)option("pair", 0), ctas = args->num_clusters * args->cluster_size;

	CAIRN_TRY(cairn_dsmem(args, stream));
	if (!pair || !args->pair_cycles)
		return 0;
	add_pair_kernel<<<(ctas + 255) / 256, 256, 0, (cudaStream_t)stream>>>(
		args->smid, args->pair_cycles, ctas, args->cluster_size, (int)option("sm", 0), pair);
	CAIRN_CUDA(cudaPeekAtLastError());
	return 0;
}

/* ---- memory and links ---- */

enum { MAX_PEERS = 16, MAX_WRITTEN = 512 };

static struct {
	void *handle;			/* of the communicator; NULL: not used */
	char *heap;
	size_t bytes;
	int device;
} peers[MAX_PEERS];

static const void *written[MAX_WRITTEN];	/* buffers that stream has written */
static int num_written, this_device;

static int was_written(const void *buffer)
{
	for (int i = 0; i < num_written; i++)
		if (written[i] == buffer)
			return 1;
	return 0;
}

static int faulty_stream(const struct cairn_stream_args *args, void *stream)
{
	double stuck = option("stuck", -1), arrived = option("arrived", -1);
	int large = args->bytes >= (int64_t)LARGE, reads = args->op == CAIRN_STREAM_READ;

	if (large && reads && arrived >= 0 && !was_written(args->src)) {
		char *byte = (char *)args->src + (size_t)arrived;

		/* the byte after it, from which it differs in nearly all words */
		CAIRN_CUDA(cudaMemcpyAsync(byte, byte + 1, 1, cudaMemcpyDeviceToDevice,
					   (cudaStream_t)stream));
	}
	CAIRN_TRY(cairn_stream(args, stream));
	if (!large || reads)
		return 0;
	if (!was_written(args->dst) && num_written < MAX_WRITTEN)
		written[num_written++] = args->dst;
	if (stuck >= 0)
		CAIRN_CUDA(cudaMemsetAsync((char *)args->dst + (size_t)stuck, 0xff, 1, (cudaStream_t)stream));
	return 0;
}

static int faulty_copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	size_t again = (size_t)((double)bytes * option("link_slow", 0) / 1000) / 16 * 16;
	size_t wrong = (size_t)option("link_byte", 0);
	char *to = (char *)dst;
	int i = 0;

	CAIRN_TRY(cairn_cuda_runtime.mem_copy(dst, src, bytes, kind, stream));
	while (i < MAX_PEERS && !(peers[i].handle && to >= peers[i].heap &&
				  to < peers[i].heap + peers[i].bytes))
		i++;
	if (i == MAX_PEERS || this_device != (int)option("link_from", 0) ||
	    peers[i].device != (int)option("link_to", 1))
		return 0;
	if (again)
		CAIRN_TRY(cairn_cuda_runtime.mem_copy(to + bytes - again, (const char *)src + bytes - again,
						      again, kind, stream));
	if (wrong && wrong < bytes - 1)
		CAIRN_TRY(cairn_cuda_runtime.mem_copy(to + wrong, (const char *)src + wrong + 1, 1, kind,
						      stream));
	return 0;
}

static int faulty_comm_open(const struct cairn_comm_args *args, struct cairn_comm *comm)
{
	int32_t devices[CAIRN_COMM_MAX_RANKS];
	void *heap;
	int at = 0;

	CAIRN_TRY(args->exchange(args->arg, &this_device, devices, sizeof(this_device)));
	CAIRN_TRY(cairn_comm_open(args, comm));
	for (int32_t r = 0; r < args->ranks; r++) {
		if (r == args->rank)
			continue;
		while (at < MAX_PEERS && peers[at].handle)
			at++;
		if (at == MAX_PEERS || cairn_comm_heap(comm, r, &heap))
			return cairn_error(ENOMEM, "faulty: too many peers");
		peers[at].handle = comm->handle;
		peers[at].heap = (char *)heap;
		peers[at].bytes = args->heap_bytes;
		peers[at].device = devices[r];
	}
	return 0;
}

static void faulty_comm_close(struct cairn_comm *comm)
{
	for (int i = 0; i < MAX_PEERS; i++)
		if (peers[i].handle == comm->handle)
			peers[i].handle = NULL;
	cairn_comm_close(comm);
}

static int start(int device)
{
	this_device = device;
	return cairn_cuda_runtime.init(device);
}

extern "C" __attribute__((visibility("default"))) const struct cairn_impl *
cairn_impl_get(uint32_t abi_version)
{
	static struct cairn_impl impl;

	/* memory and streams are this library's, because its CUDA runtime is not the program's */
	impl = cairn_cuda_runtime;
	impl.name = "faulty";
	impl.version = "1";
	impl.init = start;
	impl.last_error = cairn_last_error;
	impl.mem_copy = faulty_copy;
	impl.screen = faulty_screen;
	impl.stream = faulty_stream;
	impl.dsmem = faulty_dsmem;
	impl.comm_open = faulty_comm_open;
	impl.comm_heap = cairn_comm_heap;
	impl.comm_error = cairn_comm_error;
	impl.comm_abort = cairn_comm_abort;
	impl.comm_close = faulty_comm_close;
	return abi_version == CAIRN_ABI_VERSION ? &impl : NULL;
}
