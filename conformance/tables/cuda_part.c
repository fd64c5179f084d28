// SPDX-License-Identifier: Apache-2.0
#include "conformance/tables/cuda_part.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudaTypedefs.h>
#include <pthread.h>

#include "primitives/base/launch.h"

enum { MOST_CUTS = 32 };

/* The driver's functions; found at run time, because the program is not linked with libcuda. */
struct driver {
	PFN_cuDeviceGet_v2000 device;
	PFN_cuDeviceGetDevResource_v12040 resource;
	PFN_cuDevSmResourceSplitByCount_v12040 split;
	PFN_cuDevResourceGenerateDesc_v12040 describe;
	PFN_cuGreenCtxCreate_v12040 create;
	PFN_cuGreenCtxStreamCreate_v12050 stream;
};

struct cut {
	int device;
	int32_t sms;
	CUgreenCtx first, rest;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct driver driver;
static struct cut cuts[MOST_CUTS];
static int num_cuts;

static int find(void *fn, const char *name, unsigned version)
{
	enum cudaDriverEntryPointQueryResult found;
	void *at = NULL;

	CAIRN_CUDA(cudaGetDriverEntryPointByVersion(name, &at, version, cudaEnableDefault, &found));
	if (!at)
		return cairn_error(EOPNOTSUPP, "stream_create_part: the driver has no %s", name);
	*(void **)fn = at;
	return 0;
}

static int find_driver(struct driver *d)
{
	if (d->stream)
		return 0;
	CAIRN_TRY(find(&d->device, "cuDeviceGet", 2000));
	CAIRN_TRY(find(&d->resource, "cuDeviceGetDevResource", 12040));
	CAIRN_TRY(find(&d->split, "cuDevSmResourceSplitByCount", 12040));
	CAIRN_TRY(find(&d->describe, "cuDevResourceGenerateDesc", 12040));
	CAIRN_TRY(find(&d->create, "cuGreenCtxCreate", 12040));
	return find(&d->stream, "cuGreenCtxStreamCreate", 12050);
}

static int called(CUresult result, const char *what)
{
	return result == CUDA_SUCCESS ? 0 :
	       cairn_error(EIO, "stream_create_part: %s: CUDA driver error %d", what, (int)result);
}

static int create_context(CUgreenCtx *context, CUdevice device, CUdevResource *sms)
{
	CUdevResourceDesc desc;

	CAIRN_TRY(called(driver.describe(&desc, sms, 1), "cuDevResourceGenerateDesc"));
	return called(driver.create(context, desc, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate");
}

static int make_cut(struct cut *c)
{
	CUdevResource all, first, rest;
	unsigned groups = 1;
	CUdevice device;
	CUresult result;

	CAIRN_TRY(called(driver.device(&device, c->device), "cuDeviceGet"));
	CAIRN_TRY(called(driver.resource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource"));
	if (c->sms >= (int32_t)all.sm.smCount)
		return cairn_error(EINVAL, "stream_create_part: sms: %d of %u SMs leave none", c->sms,
				   all.sm.smCount);
	result = driver.split(&first, &groups, &all, &rest, 0, (unsigned)c->sms);
	if (result != CUDA_SUCCESS || groups != 1 || (int32_t)first.sm.smCount != c->sms)
		return cairn_error(EINVAL, "stream_create_part: sms: the device cannot be cut after %d SMs",
				   c->sms);
	CAIRN_TRY(create_context(&c->first, device, &first));
	return create_context(&c->rest, device, &rest);
}

/* Returns the cut after so many SMs, or NULL with the error in *ret. */
static const struct cut *find_cut(int device, int32_t sms, int *ret)
{
	struct cut c = { .device = device, .sms = sms };

	for (int i = 0; i < num_cuts; i++)
		if (cuts[i].device == device && cuts[i].sms == sms)
			return &cuts[i];
	*ret = num_cuts < MOST_CUTS ? make_cut(&c) :
	       cairn_error(ENOMEM, "stream_create_part: more than %d cuts", MOST_CUTS);
	if (*ret)
		return NULL;
	cuts[num_cuts] = c;
	return &cuts[num_cuts++];
}

static int create_stream(void **stream, int device, int32_t sms, int priority)
{
	const struct cut *c;
	int ret = 0;

	CAIRN_TRY(find_driver(&driver));
	c = find_cut(device, sms < 0 ? -sms : sms, &ret);
	if (!c)
		return ret;
	return called(driver.stream((CUstream *)stream, sms < 0 ? c->rest : c->first, CU_STREAM_NON_BLOCKING,
				    priority), "cuGreenCtxStreamCreate");
}

int cairn_cuda_stream_part(void **stream, int32_t sms, int32_t priority)
{
	int device, least, greatest, ret;

	if (priority < 0 || priority > 1)
		return cairn_error(EINVAL, "stream_create_part: priority is %d, not 0 or 1", priority);
	CAIRN_CUDA(cudaGetDevice(&device));
	CAIRN_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
	if (priority)
		least = greatest;
	if (!sms) {
		CAIRN_CUDA(cudaStreamCreateWithPriority((cudaStream_t *)stream, cudaStreamNonBlocking,
							least));
		return 0;
	}
	pthread_mutex_lock(&lock);
	ret = create_stream(stream, device, sms, least);
	pthread_mutex_unlock(&lock);
	return ret;
}
