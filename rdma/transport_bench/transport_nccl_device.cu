// SPDX-License-Identifier: Apache-2.0
/*
 * transport_nccl_device.cu - ping-pong with NCCL's own device API, for comparison
 *
 * LL: ncclLLA2ASession, in which a 16-byte store holds 8 bytes of data and the epoch twice; each epoch has
 * one message each way; rank 1 sends its message after it has received rank 0's. LSA: each CTA stores its
 * share of the payload through ncclGetLsaPointer and synchronises with the same CTA of the other end through
 * an LSA barrier session with release and acquire. That is one way; then the other end does the same. The
 * slowest CTA's time counts.
 */
#include <dlfcn.h>
#include <nccl_device.h>
#include <stdlib.h>

#include "primitives/base/launch.h"
#include "primitives/ptx/ptx.cuh"
#include "rdma/transport_bench/transport_nccl_device.h"

#define THREADS	256

struct nccl_device {
	const struct nccl_functions *n;
	ncclComm_t comm;
	int gpu, has_dev_comm;
	ncclWindow_t window;
	ncclDevComm dev_comm;
	ncclLLA2AHandle ll;
};

__global__ void __launch_bounds__(32) nccl_ll_kernel(const __grid_constant__ ncclDevComm comm,
						     ncclLLA2AHandle handle,
						     uint64_t rounds, uint32_t num_samples,
						     struct bench_result *result)
{
	ncclLLA2ASession<ncclCoopThread> session(ncclCoopThread(), comm, ncclTeamLsa(comm), handle, 0, 1);
	int rank = comm.lsaRank, peer = !rank;
	uint64_t i = 1, got, begin;

	for (uint32_t k = 0; k < num_samples; k++) {
		begin = ptx_globaltimer();
		for (uint64_t r = 0; r < rounds; r++, i++) {
			if (!rank)
				session.send(peer, 0, i * 3);
			got = session.template recv<uint64_t>(0);
			if (rank)
				session.send(peer, 0, i * 5);
			result->errors += got != i * (rank ? 3 : 5);
			session.endEpoch(ncclCoopThread());
		}
		result->ns[k] = ptx_globaltimer() - begin;
	}
}

__global__ void __launch_bounds__(THREADS) nccl_lsa_kernel(const __grid_constant__ ncclDevComm comm,
							   ncclWindow_t window, uint64_t bytes, uint64_t half,
							   uint64_t rounds, uint32_t num_samples,
							   struct bench_result *result)
{
	ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
	uint64_t thread = (uint64_t)blockIdx.x * THREADS + threadIdx.x,
		threads = (uint64_t)gridDim.x * THREADS;
	int rank = comm.lsaRank;
	uint4 *to = (uint4 *)ncclGetLsaPointer(window, half, !rank),
		*from = (uint4 *)ncclGetLocalPointer(window, 0);
	uint64_t *in = (uint64_t *)ncclGetLocalPointer(window, half), i = 1, begin, words = bytes / 8;

	uint64_t word = 0, want = 0, wrong = 0;
	/* the first and the last word are checked by the CTA that synchronised with their writer */
	int looks = !blockIdx.x && threadIdx.x == 32 ? 1 :
		threadIdx.x == 64 && words > 1 && blockIdx.x == (words / 2 - 1) % threads / THREADS ? 2 : 0;

	for (uint32_t k = 0; k < num_samples; k++) {
		begin = ptx_globaltimer();
		for (uint64_t turn = 0; turn < 2 * rounds; turn++) {
			if ((turn & 1) == (uint64_t)rank) {
				if (bytes < 16 && !thread)
					*(uint64_t *)to = i;
				for (uint64_t u = thread; u < bytes / 16; u += threads) {
					uint4 v = from[u];

					if (!u)
						v.x = (uint32_t)i, v.y = (uint32_t)(i >> 32);
					to[u] = v;
				}
			}
			barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
			/* the load is compared one round later, as in transport_bench.cu */
			if ((turn & 1) != (uint64_t)rank && looks) {
				wrong += word != want;
				word = *(volatile uint64_t *)(in + (looks == 1 ? 0 : words - 1));
				want = looks == 1 ? i : 7 * words;
			}
			i += turn & 1;
		}
		if (!threadIdx.x)
			atomicMax((unsigned long long *)&result->ns[k],
				  (unsigned long long)(ptx_globaltimer() - begin));
	}
	if (wrong + (word != want))
		atomicAdd((unsigned long long *)&result->errors, (unsigned long long)wrong + (word != want));
}

__global__ void nccl_fill_kernel(uint64_t *p, uint64_t words)
{
	for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
		p[i] = 7 * (i + 1);
}

#define LOOK_UP(name) __typeof__(name) *name##_ = (__typeof__(name) *)dlsym(n->lib, #name)

/* Creates window, requirements and device communicator, in the order NCCL requires. */
static int make(struct nccl_device *d, void *memory, uint64_t bytes)
{
	const struct nccl_functions *n = d->n;
	LOOK_UP(ncclCommWindowRegister);
	LOOK_UP(ncclLLA2ACreateRequirement);
	LOOK_UP(ncclDevCommCreate);
	ncclDevCommRequirements want = {};
	ncclDevResourceRequirements ll = {};
	ncclResult_t result;

	if (!ncclCommWindowRegister_ || !ncclLLA2ACreateRequirement_ || !ncclDevCommCreate_)
		return cairn_error(ENODEV, "libnccl.so.2 has no device API");
	result = ncclCommWindowRegister_(d->comm, memory, bytes, &d->window, NCCL_WIN_COLL_SYMMETRIC);
	if (result != ncclSuccess)
		return nccl_failed(n, result, "ncclCommWindowRegister");
	result = ncclLLA2ACreateRequirement_(1, 4, &d->ll, &ll);
	if (result != ncclSuccess)
		return nccl_failed(n, result, "ncclLLA2ACreateRequirement");
	want.resourceRequirementsList = &ll;
	want.lsaBarrierCount = NCCL_DEVICE_MAX_CTAS;
	result = ncclDevCommCreate_(d->comm, &want, &d->dev_comm);
	if (result != ncclSuccess)
		return nccl_failed(n, result, "ncclDevCommCreate");
	d->has_dev_comm = 1;
	return d->window ? 0 : cairn_error(EOPNOTSUPP, "NCCL did not register this memory as a window");
}

static int load(const void *kernel)
{
	struct cudaFuncAttributes attributes;

	CAIRN_CUDA(cudaFuncGetAttributes(&attributes, kernel));
	return 0;
}

extern "C" int nccl_device_open(const struct nccl_functions *n, ncclComm_t comm, int gpu, void *memory,
				uint64_t bytes, struct nccl_device **out)
{
	struct nccl_device *d = (struct nccl_device *)calloc(1, sizeof(*d));
	struct cairn_launch launch = { .grid = { 1 }, .block = { THREADS } };
	int version = 0, ret;

	if (!d)
		return cairn_error(ENOMEM, "no memory");
	d->n = n;
	d->comm = comm;
	d->gpu = gpu;
	ret = n->GetVersion(&version) == ncclSuccess && version / 100 == NCCL_VERSION_CODE / 100 ? 0 :
		cairn_error(ENODEV, "libnccl.so.2 is %d, the headers of its device API are %d", version,
			    NCCL_VERSION_CODE);
	if (!ret)
		ret = cudaSetDevice(gpu) == cudaSuccess ? 0 : cairn_error(EIO, "cudaSetDevice(%d)", gpu);
	if (!ret)
		ret = load((const void *)nccl_ll_kernel);
	if (!ret)
		ret = load((const void *)nccl_lsa_kernel);
	if (!ret)
		ret = make(d, memory, bytes);
	if (!ret) {
		uint64_t words = bytes / 2 / 8;
		void *params[] = { &memory, &words };

		ret = cairn_launch((const void *)nccl_fill_kernel, &launch, params);
		cudaStreamSynchronize(NULL);
	}
	if (ret) {
		nccl_device_close(d);
		return ret;
	}
	*out = d;
	return 0;
}

extern "C" void nccl_device_close(struct nccl_device *d)
{
	if (!d)
		return;
	const struct nccl_functions *n = d->n;
	LOOK_UP(ncclDevCommDestroy);
	LOOK_UP(ncclCommWindowDeregister);

	cudaSetDevice(d->gpu);
	if (d->has_dev_comm && ncclDevCommDestroy_)
		ncclDevCommDestroy_(d->comm, &d->dev_comm);
	if (d->window && ncclCommWindowDeregister_)
		ncclCommWindowDeregister_(d->comm, d->window);
	free(d);
}

extern "C" int nccl_device_start(struct nccl_device *d, int way, uint64_t bytes, uint64_t half,
				 uint32_t num_ctas,
				 uint64_t rounds, uint32_t num_samples, struct bench_result *result,
				 void *stream)
{
	struct cairn_launch launch = { .grid = { way ? num_ctas : 1 }, .block = { way ? THREADS : 1u },
		.stream = stream };
	void *ll[] = { &d->dev_comm, &d->ll, &rounds, &num_samples, &result };
	void *lsa[] = { &d->dev_comm, &d->window, &bytes, &half, &rounds, &num_samples, &result };

	CAIRN_CUDA(cudaSetDevice(d->gpu));
	return cairn_launch(way ? (const void *)nccl_lsa_kernel : (const void *)nccl_ll_kernel, &launch,
			    way ? lsa : ll);
}
