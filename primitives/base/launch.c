// SPDX-License-Identifier: Apache-2.0
/* launch - launches kernels, queries occupancy and turns CUDA errors into Cairn errors */
#include "primitives/base/launch.h"

#include <string.h>

int cairn_cuda_error(cudaError_t err, const char *what, const char *file, int line)
{
	const char *slash = strrchr(file, '/');

	cudaGetLastError();	/* clears it: the next call must not report the same launch error */
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

int cairn_max_active_clusters(const void *kernel, const struct cairn_launch *launch)
{
	cudaLaunchAttribute attrs[2];
	cudaLaunchConfig_t config;
	int n = 0;

	CAIRN_TRY(fill_config(kernel, launch, &config, attrs));
	CAIRN_CUDA(cudaOccupancyMaxActiveClusters(&n, kernel, &config));
	return n;
}

int cairn_num_sms(void)
{
	static int num_sms;
	int device, n;

	if (num_sms)
		return num_sms;
	CAIRN_CUDA(cudaGetDevice(&device));
	CAIRN_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
	num_sms = n;
	return n;
}
