// SPDX-License-Identifier: Apache-2.0
/*
 * faulty_plugin - the kernel of screen with injected faults, which `cairn validate` must find on a GPU
 *
 * It compiles the very source of the kernel, primitives/machine/screen.cu, and changes the results of a step
 * before they enter the digest. It is a table with this one operation, and never part of the product. Before
 * each call it reads $CAIRN_FAULTY, NAME=NUMBER separated by blanks:
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
 *   slow N	each step of the SM takes N cycles longer
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

static int faulty_screen(const struct cairn_screen_args *args, void *stream)
{
	int active = seconds_since_first() >= option("after", 0) && args->rounds >= option("rounds", 0);
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
	return cairn_screen(args, stream);
}

/* The program's runtime and this one's both use device 0 unless they are told otherwise. */
static int start(int device)
{
	if (device)
		return cairn_error(ENODEV, "faulty: runs on device 0 alone; CUDA_VISIBLE_DEVICES chooses it");
	CAIRN_CUDA(cudaSetDevice(0));
	return 0;
}

extern "C" __attribute__((visibility("default"))) const struct cairn_impl *
cairn_impl_get(uint32_t abi_version)
{
	static struct cairn_impl impl;

	impl.size = sizeof(impl);
	impl.abi_version = CAIRN_ABI_VERSION;
	impl.name = "faulty";
	impl.version = "1";
	impl.init = start;
	impl.last_error = cairn_last_error;
	impl.screen = faulty_screen;
	return abi_version == CAIRN_ABI_VERSION ? &impl : NULL;
}
