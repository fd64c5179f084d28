// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_runtime - memory, streams, events and graphs of the tables that run on a GPU
 *
 * The CUDA runtime is linked statically and loads the driver at run time, so that this program starts on a
 * machine without CUDA and returns -ENODEV here.
 */
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/launch.h"
#include "conformance/tables/cuda_part.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"

static int cuda_init(int device)
{
	struct cudaDeviceProp prop;
	int count = 0;
	cudaError_t err = cudaGetDeviceCount(&count);

	if (err != cudaSuccess || count == 0)
		return cairn_error(ENODEV, "no CUDA device");
#ifdef CAIRN_QUICK_KERNELS
	return cairn_error(ENODEV, "this program was built where there is no GPU, and its kernels were not "
			   "optimised: build it again, with `make`");
#endif
	if (device < 0 || device >= count)
		return cairn_error(EINVAL, "--device: %d: this machine has CUDA devices 0 to %d", device,
				   count - 1);
	CAIRN_CUDA(cudaGetDeviceProperties(&prop, device));
	if (prop.major != 9 || prop.minor != 0)
		return cairn_error(ENODEV,
				   "CUDA device %d (%s) has compute capability %d.%d, these kernels need 9.0",
				   device, prop.name, prop.major, prop.minor);
	CAIRN_CUDA(cudaSetDevice(device));
	CAIRN_CUDA(cudaFree(NULL));
	return 0;
}

static int cuda_device_info(struct cairn_device_info *info)
{
	struct cudaDeviceProp prop;
	int device, khz = 0, version = 0;
	FILE *f;

	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	CAIRN_CUDA(cudaGetDevice(&device));
	CAIRN_CUDA(cudaGetDeviceProperties(&prop, device));
	cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device);
	cudaDriverGetVersion(&version);
	snprintf(info->name, sizeof(info->name), "%.63s", prop.name);
	f = fopen("/sys/module/nvidia/version", "r");
	if (!f || fscanf(f, "%31s", info->driver) != 1)
		snprintf(info->driver, sizeof(info->driver), "cuda-%d.%d", version / 1000,
			 version % 1000 / 10);
	if (f)
		fclose(f);
	info->num_sms = prop.multiProcessorCount;
	info->clock_mhz = khz / 1000;
	info->l2_bytes = prop.l2CacheSize;
	info->mem_bytes = (int64_t)prop.totalGlobalMem;
	return 0;
}

static int cuda_pci_bus_id(char *id, size_t len)
{
	struct cudaDeviceProp prop;
	int device;

	CAIRN_CUDA(cudaGetDevice(&device));
	CAIRN_CUDA(cudaGetDeviceProperties(&prop, device));
	if (strstr(prop.name, " MIG "))
		return cairn_error(EOPNOTSUPP, "a MIG instance has no energy counter of its own");
	CAIRN_CUDA(cudaDeviceGetPCIBusId(id, (int)len, device));
	return 0;
}

static int cuda_alloc(void **ptr, size_t bytes)
{
	void *p;
	cudaError_t err = cudaMalloc(&p, bytes ? bytes : 1);

	if (err == cudaErrorMemoryAllocation) {
		cudaGetLastError();
		return cairn_error(ENOMEM, "cudaMalloc: cannot allocate %zu bytes", bytes);
	}
	CAIRN_CUDA(err);
	*ptr = p;
	return 0;
}

static void cuda_free(void *ptr)
{
	cudaFree(ptr);
}

static int cuda_host_alloc(void **ptr, size_t bytes)
{
	CAIRN_CUDA(cudaMallocHost(ptr, bytes ? bytes : 1));
	return 0;
}

static void cuda_host_free(void *ptr)
{
	cudaFreeHost(ptr);
}

static int cuda_copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	static const enum cudaMemcpyKind kinds[] = {
		[CAIRN_COPY_TO_DEVICE] = cudaMemcpyHostToDevice,
		[CAIRN_COPY_TO_HOST] = cudaMemcpyDeviceToHost,
		[CAIRN_COPY_ON_DEVICE] = cudaMemcpyDeviceToDevice,
	};

	if (kind < 0 || kind > CAIRN_COPY_ON_DEVICE)
		return cairn_error(EINVAL, "mem_copy: kind %d", kind);
	CAIRN_CUDA(cudaMemcpyAsync(dst, src, bytes, kinds[kind], stream));
	return 0;
}

static int cuda_set(void *dst, int byte, size_t bytes, void *stream)
{
	CAIRN_CUDA(cudaMemsetAsync(dst, byte, bytes, stream));
	return 0;
}

static int cuda_stream_create(void **stream)
{
	CAIRN_CUDA(cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking));
	return 0;
}

static void cuda_stream_destroy(void *stream)
{
	cudaStreamDestroy(stream);
}

static int cuda_stream_sync(void *stream)
{
	CAIRN_CUDA(cudaStreamSynchronize(stream));
	return 0;
}

static int cuda_event_create(void **event)
{
	CAIRN_CUDA(cudaEventCreate((cudaEvent_t *)event));
	return 0;
}

static void cuda_event_destroy(void *event)
{
	cudaEventDestroy(event);
}

static int cuda_event_record(void *event, void *stream)
{
	CAIRN_CUDA(cudaEventRecord(event, stream));
	return 0;
}

static int cuda_event_sync(void *event)
{
	CAIRN_CUDA(cudaEventSynchronize(event));
	return 0;
}

static int cuda_stream_wait(void *stream, void *event)
{
	CAIRN_CUDA(cudaStreamWaitEvent(stream, event, 0));
	return 0;
}

static int cuda_event_elapsed(float *ms, void *start, void *end)
{
	CAIRN_CUDA(cudaEventSynchronize(end));
	CAIRN_CUDA(cudaEventElapsedTime(ms, start, end));
	return 0;
}

static int cuda_graph_begin(void *stream)
{
	CAIRN_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	return 0;
}

static int cuda_graph_end(void *stream, void **graph)
{
	cudaGraphExec_t exec;
	cudaGraph_t g;
	cudaError_t err;

	CAIRN_CUDA(cudaStreamEndCapture(stream, &g));
	err = cudaGraphInstantiate(&exec, g, 0);
	cudaGraphDestroy(g);
	CAIRN_CUDA(err);
	*graph = exec;
	return 0;
}

static int cuda_graph_launch(void *graph, void *stream)
{
	CAIRN_CUDA(cudaGraphLaunch(graph, stream));
	return 0;
}

static void cuda_graph_destroy(void *graph)
{
	cudaGraphExecDestroy(graph);
}

void cairn_profiler(int on)
{
	if (on)
		cudaProfilerStart();
	else
		cudaProfilerStop();
}

const struct cairn_impl cairn_cuda_runtime = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.name = "cuda_runtime",
	.version = CAIRN_VERSION,
	.init = cuda_init,
	.device_info = cuda_device_info,
	.mem_alloc = cuda_alloc,
	.mem_free = cuda_free,
	.host_alloc = cuda_host_alloc,
	.host_free = cuda_host_free,
	.mem_copy = cuda_copy,
	.mem_set = cuda_set,
	.stream_create = cuda_stream_create,
	.stream_destroy = cuda_stream_destroy,
	.stream_sync = cuda_stream_sync,
	.event_create = cuda_event_create,
	.event_destroy = cuda_event_destroy,
	.event_record = cuda_event_record,
	.event_sync = cuda_event_sync,
	.event_elapsed = cuda_event_elapsed,
	.graph_begin = cuda_graph_begin,
	.graph_end = cuda_graph_end,
	.graph_launch = cuda_graph_launch,
	.graph_destroy = cuda_graph_destroy,
	.stream_wait = cuda_stream_wait,
	.pci_bus_id = cuda_pci_bus_id,
	.stream_create_part = cairn_cuda_stream_part,
};
