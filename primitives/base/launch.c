// SPDX-License-Identifier: Apache-2.0
/* launch - launches kernels, queries occupancy and turns CUDA errors into Cairn errors */
#include "primitives/base/launch.h"

#include <cuda.h>
#include <string.h>

#include "primitives/base/device_cache.h"

int cairn_cuda_error(cudaError_t err, const char *what, const char *file, int line)
{
	const char *slash = strrchr(file, '/');

	cudaGetLastError();	/* clears the error, so that the next call does not report it again */
	return cairn_error(err == cudaErrorNoDevice ? ENODEV : EIO, "%s (%s): %s, at %s:%d",
			   cudaGetErrorName(err), cudaGetErrorString(err), what,
			   slash ? slash + 1 : file, line);
}

static int fill_config(const void *kernel, const struct cairn_launch *l, cudaLaunchConfig_t *config,
		       cudaLaunchAttribute attrs[2])
{
	memset(config, 0, sizeof(*config));
	config->gridDim.x = l->grid[0] ? l->grid[0] : 1;
	config->gridDim.y = l->grid[1] ? l->grid[1] : 1;
	config->gridDim.z = l->grid[2] ? l->grid[2] : 1;
	config->blockDim.x = l->block[0] ? l->block[0] : 1;
	config->blockDim.y = l->block[1] ? l->block[1] : 1;
	config->blockDim.z = l->block[2] ? l->block[2] : 1;
	config->dynamicSmemBytes = l->smem;
	config->stream = l->stream;
	config->attrs = attrs;
	if (l->cluster > 0) {
		cudaLaunchAttribute *a = &attrs[config->numAttrs++];

		memset(a, 0, sizeof(*a));
		a->id = cudaLaunchAttributeClusterDimension;
		a->val.clusterDim.x = (unsigned int)l->cluster;
		a->val.clusterDim.y = 1;
		a->val.clusterDim.z = 1;
	}
	if (l->pdl) {
		cudaLaunchAttribute *a = &attrs[config->numAttrs++];

		memset(a, 0, sizeof(*a));
		a->id = cudaLaunchAttributeProgrammaticStreamSerialization;
		a->val.programmaticStreamSerializationAllowed = 1;
	}
	if (l->smem > 48 * 1024)
		CAIRN_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
						(int)l->smem));
	if (l->cluster > 8)
		CAIRN_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
	return 0;
}

int cairn_launch(const void *kernel, const struct cairn_launch *launch, void **params)
{
	cudaLaunchAttribute attrs[2];
	cudaLaunchConfig_t config;

	CAIRN_TRY(fill_config(kernel, launch, &config, attrs));
	CAIRN_CUDA(cudaLaunchKernelExC(&config, kernel, params));
	return 0;
}

struct clusters_of {
	const void *kernel;
	const struct cairn_launch *launch;
};

static int ask_clusters(const void *arg, int32_t *answer)
{
	const struct clusters_of *of = arg;
	cudaLaunchAttribute attrs[2];
	cudaLaunchConfig_t config;

	CAIRN_TRY(fill_config(of->kernel, of->launch, &config, attrs));
	CAIRN_CUDA(cudaOccupancyMaxActiveClusters(answer, of->kernel, &config));
	return 0;
}

int cairn_max_active_clusters(const void *kernel, const struct cairn_launch *launch)
{
	const struct clusters_of of = { kernel, launch };
	const unsigned int *block = launch->block;
	struct cairn_device_question q = { .kernel = kernel };
	int32_t n;

	for (int i = 0; i < 3; i++)
		q.number[i] = (int32_t)(block[i] ? block[i] : 1);
	q.number[0] *= q.number[1] * q.number[2];
	q.number[1] = (int32_t)launch->smem;
	q.number[2] = launch->cluster;
	q.number[3] = 0;
	CAIRN_CUDA(cudaGetDevice(&q.device));
	CAIRN_TRY(cairn_device_ask(&q, &n, 1, ask_clusters, &of));
	return n;
}

static int ask_sms(const void *arg, int32_t *answer)
{
	CAIRN_CUDA(cudaDeviceGetAttribute(answer, cudaDevAttrMultiProcessorCount, *(const int *)arg));
	return 0;
}

int cairn_num_sms(void)
{
	struct cairn_device_question q = { .kernel = NULL };
	int32_t n;

	CAIRN_CUDA(cudaGetDevice(&q.device));
	CAIRN_TRY(cairn_device_ask(&q, &n, 1, ask_sms, &q.device));
	return n;
}

int cairn_sms_of(int32_t sms)
{
	int num_sms = cairn_num_sms();

	if (sms < 0)
		return cairn_error(EINVAL, "sms: must be >= 0");
	return sms && sms < num_sms ? sms : num_sms;
}

int cairn_stream_is_part(void *stream)
{
	static void *known;
	void *fn = __atomic_load_n(&known, __ATOMIC_RELAXED);
	enum cudaDriverEntryPointQueryResult found;
	CUgreenCtx part = NULL;
	CUresult ret;

	if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
		return 0;
	if (!fn) {
		CAIRN_CUDA(cudaGetDriverEntryPointByVersion("cuStreamGetGreenCtx", &fn, 12040,
							    cudaEnableDefault, &found));
		if (!fn)
			return 0;	/* a driver without parts */
		__atomic_store_n(&known, fn, __ATOMIC_RELAXED);
	}
	ret = ((CUresult (*)(CUstream, CUgreenCtx *))fn)(stream, &part);
	if (ret != CUDA_SUCCESS)
		return cairn_error(EIO, "cuStreamGetGreenCtx: error %d", (int)ret);
	return part != NULL;
}

int cairn_check_resident(const void *kernel, const struct cairn_launch *launch, const char *caller)
{
	struct cairn_launch l = *launch;
	int clusters;

	l.cluster = l.cluster ? l.cluster : 1;
	l.grid[0] = (unsigned int)l.cluster;
	clusters = cairn_max_active_clusters(kernel, &l);
	if (clusters < 0)
		return clusters;
	if ((int64_t)clusters * l.cluster < (int64_t)launch->grid[0])
		return cairn_error(EOPNOTSUPP, "%s: sms: needs %u CTAs at once, but this device holds %d",
				   caller, launch->grid[0], clusters * l.cluster);
	return 0;
}
