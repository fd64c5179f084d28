/* SPDX-License-Identifier: Apache-2.0 */
/* wqe_all.cu - runs the WQE and CQE builders on a GPU, one thread per trial */
#include "primitives/base/launch.h"
#include "rdma/wqe/wqe_all.h"

static __global__ void wqe_all_kernel(const struct cairn_wqe_all_in *in, struct cairn_wqe_all_out *out, int n)
{
	int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

	if (i < n)
		cairn_wqe_all(&in[i], &out[i]);
}

static int run(const struct cairn_wqe_all_in *in, struct cairn_wqe_all_out *out, int n, void *dev_in,
	       void *dev_out)
{
	struct cairn_launch launch = { .grid = { (unsigned int)(n + 127) / 128 }, .block = { 128 } };
	void *params[] = { &dev_in, &dev_out, &n };

	CAIRN_CUDA(cudaMemcpy(dev_in, in, (size_t)n * sizeof(*in), cudaMemcpyHostToDevice));
	CAIRN_CUDA(cudaMemcpy(dev_out, out, (size_t)n * sizeof(*out), cudaMemcpyHostToDevice));
	CAIRN_TRY(cairn_launch((const void *)wqe_all_kernel, &launch, params));
	CAIRN_CUDA(cudaMemcpy(out, dev_out, (size_t)n * sizeof(*out), cudaMemcpyDeviceToHost));
	return 0;
}

extern "C" int cairn_wqe_all_device(const struct cairn_wqe_all_in *in, struct cairn_wqe_all_out *out, int n)
{
	void *dev_in = NULL, *dev_out = NULL;
	int count = 0, ret;

	if (cudaGetDeviceCount(&count) != cudaSuccess || !count)
		return cairn_error(ENODEV, "no CUDA device");
	if (cudaMalloc(&dev_in, (size_t)n * sizeof(*in)) != cudaSuccess ||
	    cudaMalloc(&dev_out, (size_t)n * sizeof(*out)) != cudaSuccess)
		ret = cairn_error(ENOMEM, "wqe_all: no device memory for %d trials", n);
	else
		ret = run(in, out, n, dev_in, dev_out);
	cudaFree(dev_out);
	cudaFree(dev_in);
	return ret;
}
