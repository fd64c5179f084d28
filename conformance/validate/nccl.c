// SPDX-License-Identifier: Apache-2.0
/*
 * nccl - all-reduces through NCCL, whose results must have equal bits on all devices
 *
 * Inputs alternate. Small integers have a sum that is exact in any order, and the host knows every word of
 * it. The sum of fractions depends on the order, but NCCL computes each element once and passes it on, so
 * that all devices get the same bits. NVLink multicast, which adds in the switch, is turned off: not every
 * machine has it.
 *
 * The declarations are those of NCCL's documented interface. Its library is loaded at run time.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/tables.h"
#include "conformance/validate/links.h"
#include "primitives/base/error.h"
#include "primitives/base/optional.h"
#include "serving/cli/command.h"

enum { FLOAT32 = 7, SUM = 0 };		/* ncclFloat32, ncclSum */
enum { MIN_ROUNDS = 4 };
#define COUNT		((int64_t)4 << 20)
#define HOST_COUNT	((int64_t)1 << 16)

struct nccl_id {
	char internal[128];
};

struct nccl {
	void *lib, *comm;
	int (*get_id)(struct nccl_id *id);
	int (*init_rank)(void **comm, int ranks, struct nccl_id id, int rank);
	int (*all_reduce)(const void *in, void *out, size_t count, int type, int op, void *comm,
			  void *stream);
	int (*abort)(void *comm);
	const char *(*error_string)(int result);
	struct validate_device *d;
	const struct validate_group *g;
	int64_t count;
	float *host, *in, *out;			/* in and out on the device */
	uint64_t *device_sum, *sum;
	int found;				/* a wrong sum is named once */
};

static int load(struct nccl *n)
{
	const struct {
		void *at;
		const char *name;
	} functions[] = {
		{ &n->get_id, "ncclGetUniqueId" }, { &n->init_rank, "ncclCommInitRank" },
		{ &n->all_reduce, "ncclAllReduce" }, { &n->abort, "ncclCommAbort" },
		{ &n->error_string, "ncclGetErrorString" },
	};

	setenv("NCCL_NVLS_ENABLE", "0", 1);
	n->lib = cairn_optional_open(CAIRN_OPTIONAL_NCCL);
	if (!n->lib)
		return cairn_error(ENODEV, "--nccl: NCCL cannot be loaded: %s", dlerror());
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *f = dlsym(n->lib, functions[i].name);

		if (!f)
			return cairn_error(ENODEV, "--nccl: the library has no function %s",
					   functions[i].name);
		memcpy(functions[i].at, &f, sizeof(f));
	}
	return 0;
}

int validate_nccl_check(void)
{
	struct nccl n = { .lib = NULL };
	int ret = load(&n);

	if (n.lib)
		dlclose(n.lib);
	return ret;
}

static int failed(const struct nccl *n, int result, const char *what)
{
	return result ? cairn_error(EIO, "%s: %s", what, n->error_string(result)) : 0;
}

static int open_nccl(struct nccl *n)
{
	struct cairn_impl *impl = &n->d->impl;
	size_t bytes = (size_t)n->count * sizeof(float);
	size_t sums = (size_t)cairn_stream_num_blocks((int64_t)bytes) * 8;
	struct nccl_id id = { { 0 } }, all[VALIDATE_MAX_DEVICES];
	int status = load(n);

	if (!status && n->g->me == 0)
		status = failed(n, n->get_id(&id), "ncclGetUniqueId");
	/* returns on failure before the others meet, so that they do not wait in NCCL for this device */
	CAIRN_TRY(status);
	CAIRN_TRY(validate_meet(n->g, &id, all, sizeof(id), NULL));
	n->host = malloc(bytes);
	n->sum = malloc(sums);
	if (!n->host || !n->sum)
		return cairn_error(ENOMEM, "no memory for sums of %zu bytes", bytes);
	CAIRN_TRY(impl->mem_alloc((void **)&n->in, bytes));
	CAIRN_TRY(impl->mem_alloc((void **)&n->out, bytes));
	CAIRN_TRY(impl->mem_alloc((void **)&n->device_sum, sums));
	return failed(n, n->init_rank(&n->comm, n->g->num, all[0], n->g->me), "ncclCommInitRank");
}

static void close_nccl(struct nccl *n)
{
	struct cairn_impl *impl = &n->d->impl;

	if (n->comm)
		n->abort(n->comm);
	if (n->device_sum)
		impl->mem_free(n->device_sum);
	if (n->out)
		impl->mem_free(n->out);
	if (n->in)
		impl->mem_free(n->in);
	free(n->sum);
	free(n->host);
}

/* Element i of a rank's input in a round. */
static float element(const struct nccl *n, int exact, int round, int32_t rank, int64_t i)
{
	uint64_t x = (uint64_t)n->d->opt->seed + ((uint64_t)round << 48) + ((uint64_t)rank << 40) +
		     (uint64_t)i;

	x *= 0x9e3779b97f4a7c15ull;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	if (exact)
		return (float)(x >> 58) - 32;
	return (float)(int32_t)(x >> 32) * 0x1p-31f * (float)(1 << (x & 15));
}

/* Compares the blocks of an exact sum with those that the host computes. */
static void check_exact(struct nccl *n, int round, json_t *row)
{
	const int64_t floats = CAIRN_STREAM_BLOCK / (int64_t)sizeof(float);
	uint64_t want = 0, word;
	float pair[2];

	for (int64_t i = 0; i < n->count && !n->found; i++) {
		pair[i % 2] = 0;
		for (int32_t r = 0; r < n->g->num; r++)
			pair[i % 2] += element(n, 1, round, r, i);
		if (i % 2) {
			memcpy(&word, pair, sizeof(word));
			want += word;
		}
		if (i % floats != floats - 1)
			continue;
		if (n->sum[i / floats] != want) {
			n->found = 1;
			validate_finding(row, VALIDATE_FAIL, NULL, "the block at byte %lld of a sum of exact "
					 "numbers is wrong", (long long)(i / floats * CAIRN_STREAM_BLOCK));
		}
		want = 0;
	}
}

/* All devices must have the digest that this one has. */
static int compare(struct nccl *n, json_t *row)
{
	/* mine[2]: this device's exact sums are wrong, so its other sums do not count in the majority */
	uint64_t mine[3] = { 0, 0, (uint64_t)n->found }, all[VALIDATE_MAX_DEVICES][3];
	int64_t blocks = n->count * (int64_t)sizeof(float) / CAIRN_STREAM_BLOCK;
	int32_t equal = 0, peers = 0;

	for (int64_t b = 0; b < blocks; b++) {
		mine[0] += n->sum[b];
		mine[1] += n->sum[b] * (2 * (uint64_t)b + 1);
	}
	CAIRN_TRY(validate_meet(n->g, mine, all, sizeof(mine), NULL));
	for (int32_t i = 0; i < n->g->num; i++) {
		peers += !all[i][2];
		equal += !memcmp(all[i], mine, sizeof(mine));
	}
	/* the majority is right; without one, all are named */
	if (!n->found && validate_outvoted(equal, peers)) {
		n->found = 1;
		validate_finding(row, VALIDATE_FAIL, NULL, "a sum of fractions has other bits than on %d of "
				 "the %d other devices", peers - equal, peers - 1);
	}
	return 0;
}

static int run_round(struct nccl *n, int round, json_t *row)
{
	const struct cairn_impl *impl = &n->d->impl;
	size_t bytes = (size_t)n->count * sizeof(float);
	struct cairn_stream_args read = { .size = sizeof(read), .sum = n->device_sum, .src = n->out,
		.bytes = (int64_t)bytes, .op = CAIRN_STREAM_READ };
	int exact = round % 2 == 0;

	for (int64_t i = 0; i < n->count; i++)
		n->host[i] = element(n, exact, round, n->g->me, i);
	CAIRN_TRY(impl->mem_copy(n->in, n->host, bytes, CAIRN_COPY_TO_DEVICE, n->d->stream));
	CAIRN_TRY(failed(n, n->all_reduce(n->in, n->out, (size_t)n->count, FLOAT32, SUM, n->comm,
					  n->d->stream), "ncclAllReduce"));
	CAIRN_TRY(impl->stream(&read, n->d->stream));
	CAIRN_TRY(impl->mem_copy(n->sum, n->device_sum, (size_t)cairn_stream_num_blocks((int64_t)bytes) * 8,
				 CAIRN_COPY_TO_HOST, n->d->stream));
	CAIRN_TRY(validate_sync(n->d));
	if (!exact)
		return compare(n, row);
	check_exact(n, round, row);
	return 0;
}

static int run_rounds(struct nccl *n, json_t *row, double end, int *rounds)
{
	CAIRN_TRY(open_nccl(n));
	for (;; ++*rounds) {
		uint8_t mine = *rounds < MIN_ROUNDS || cairn_now() < end, all[VALIDATE_MAX_DEVICES];

		CAIRN_TRY(validate_meet(n->g, &mine, all, 1, NULL));
		if (!all[0])
			return 0;
		CAIRN_TRY(run_round(n, *rounds, row));
	}
}

int validate_nccl(struct validate_device *d, const struct validate_group *g, json_t *row, double end)
{
	struct nccl n = { .d = d, .g = g, .count = d->on_host ? HOST_COUNT : COUNT };
	const char *own = getenv("CAIRN_NCCL");
	int rounds = 0, ret;

	/* a test names a library for host memory; all devices have the same table */
	if (d->on_host && !(own && *own)) {
		validate_set(row, VALIDATE_NOT_RUN, "NCCL moves the memory of GPUs alone");
		return 0;
	}
	ret = run_rounds(&n, row, end, &rounds);
	validate_set(row, validate_verdict_of(row), "%d sums of %lld floats on %d devices", rounds,
		     (long long)n.count, g->num);
	close_nccl(&n);
	return ret;
}
