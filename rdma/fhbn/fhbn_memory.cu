/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_memory - memory that GPU and card share: allocation, mapping of host pages, copies while kernels run
 *
 * libmlx5 places several doorbell records in one page, but CUDA can register a page only once. Mappings are
 * therefore kept in a list of whole pages with reference counts.
 */
#include <pthread.h>
#include <string.h>

#include <cuda.h>

#include "primitives/base/launch.h"
#include "rdma/fhbn/fhbn_provider.h"

#define PAGE		4096ull
#define MAX_MAPPINGS	512

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping {
	uint64_t first, bytes, gpu;	/* whole pages */
	int users;			/* reference count; 0: free entry */
} mappings[MAX_MAPPINGS];

static int have_gpu(void)
{
	int count = 0;

	if (cudaGetDeviceCount(&count) != cudaSuccess || !count) {
		cudaGetLastError();
		return cairn_error(ENODEV, "no CUDA device");
	}
	return 0;
}

extern "C" int fhbn_gpu_alloc(size_t bytes, void **out)
{
	void *p;

	CAIRN_TRY(have_gpu());
	CAIRN_CUDA(cudaMalloc(&p, bytes));
	if (cudaMemset(p, 0, bytes) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
		cudaFree(p);
		return cairn_error(EIO, "fhbn: GPU memory cannot be cleared");
	}
	*out = p;
	return 0;
}

extern "C" void fhbn_gpu_free(void *p)
{
	cudaFree(p);
}

extern "C" int fhbn_gpu_is(const void *p)
{
	struct cudaPointerAttributes attr;

	if (cudaPointerGetAttributes(&attr, p) != cudaSuccess) {
		cudaGetLastError();
		return 0;
	}
	return attr.type == cudaMemoryTypeDevice;
}

/* One stream per copying thread, whether it is the model's or the program's. */
static thread_local cudaStream_t stream;

/* Writes 8 bytes by a stream memory operation, which does not occupy the copy engine. */
static int write_word(void *to, const void *from)
{
	static CUresult (*write)(CUstream, CUdeviceptr, cuuint64_t, unsigned int);
	cudaDriverEntryPointQueryResult found;
	cuuint64_t word;

	if (!write)
		CAIRN_CUDA(cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", (void **)&write, 12000,
							    cudaEnableDefault, &found));
	memcpy(&word, from, sizeof(word));
	if (!write || write(stream, (CUdeviceptr)(uintptr_t)to, word, CU_STREAM_WRITE_VALUE_DEFAULT))
		return cairn_error(EIO, "fhbn: cuStreamWriteValue64 failed");
	return 0;
}

extern "C" int fhbn_gpu_copy_async(void *to, const void *from, size_t bytes)
{
	if (!stream)
		CAIRN_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	if (bytes == sizeof(cuuint64_t) && (uintptr_t)to % 8 == 0 && fhbn_gpu_is(to) && !fhbn_gpu_is(from))
		return write_word(to, from);
	CAIRN_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
	return 0;
}

extern "C" int fhbn_gpu_settle(void)
{
	CAIRN_CUDA(cudaStreamSynchronize(stream));
	return 0;
}

extern "C" int fhbn_gpu_copy(void *to, const void *from, size_t bytes)
{
	CAIRN_TRY(fhbn_gpu_copy_async(to, from, bytes));
	return fhbn_gpu_settle();
}

static int map_pages(struct mapping *m, uint64_t first, uint64_t bytes, int is_io)
{
	unsigned int flags = cudaHostRegisterPortable | cudaHostRegisterMapped |
			     (is_io ? cudaHostRegisterIoMemory : 0);
	cudaError_t err = cudaHostRegister((void *)(uintptr_t)first, bytes, flags);
	void *gpu;

	if (err != cudaSuccess && is_io) {
		cudaGetLastError();
		return cairn_error(EPERM, "fhbn: the card's register cannot be mapped for the GPU (%s): the "
				   "driver needs NVreg_RegistryDwords=\"PeerMappingOverride=1\", or a "
				   "privileged user", cudaGetErrorName(err));
	}
	CAIRN_CUDA(err);
	err = cudaHostGetDevicePointer(&gpu, (void *)(uintptr_t)first, 0);
	if (err != cudaSuccess)
		cudaHostUnregister((void *)(uintptr_t)first);
	CAIRN_CUDA(err);
	*m = { first, bytes, (uint64_t)(uintptr_t)gpu, 1 };
	return 0;
}

extern "C" int fhbn_gpu_map(void *addr, size_t bytes, int is_io, void **out)
{
	uint64_t at = (uint64_t)(uintptr_t)addr, first = at / PAGE * PAGE;
	uint64_t length = (at + bytes - first + PAGE - 1) / PAGE * PAGE;
	struct mapping *m = NULL, *vacant = NULL;
	int ret = 0;

	CAIRN_TRY(have_gpu());
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX_MAPPINGS; i++) {
		struct mapping *known = &mappings[i];

		if (!known->users)
			vacant = vacant ? vacant : known;
		else if (first >= known->first && first + length <= known->first + known->bytes)
			m = known;
	}
	if (m) {
		m->users++;
	} else if (vacant) {
		m = vacant;
		ret = map_pages(m, first, length, is_io);
	} else {
		ret = cairn_error(ENOMEM, "fhbn: more than %d mappings", MAX_MAPPINGS);
	}
	if (!ret)
		*out = (void *)(uintptr_t)(m->gpu + (at - m->first));
	pthread_mutex_unlock(&lock);
	return ret;
}

extern "C" void fhbn_gpu_unmap(void *addr)
{
	uint64_t at = (uint64_t)(uintptr_t)addr;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX_MAPPINGS; i++) {
		struct mapping *m = &mappings[i];

		if (!m->users || at - m->first >= m->bytes)
			continue;
		if (--m->users == 0)
			cudaHostUnregister((void *)(uintptr_t)m->first);
		break;
	}
	pthread_mutex_unlock(&lock);
}
