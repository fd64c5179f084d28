/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fhbn_gpunetio - runs NVIDIA's own device code (GPUNetIO, from NCCL's headers) on one of Cairn's queue pairs
 *
 * For tests: a third producer for the model, and a comparison for the cost of a post. GPUNetIO's queue
 * structure holds only pointers and counters, and its code never returns completion entries. This file
 * therefore writes the completion queue's doorbell record for it. Without the headers the functions return
 * -EOPNOTSUPP.
 */
#include "primitives/base/launch.h"
#include "rdma/fhbn/fhbn_drive.h"

#if __has_include("nccl_device/gin/gdaki/doca_gpunetio/doca_gpunetio_device.h")
#include <cuda.h>

#include "nccl_device/gin/gdaki/doca_gpunetio/doca_gpunetio_device.h"

#include "rdma/fhbn/fhbn.cuh"

#define ALONE	DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE
#define BY_SM	DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB
#define THREAD	DOCA_GPUNETIO_VERBS_EXEC_SCOPE_THREAD
#define ADD	DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD

struct gpunetio_args {
	struct doca_gpu_dev_verbs_qp *qp;
	struct fhbn_memory m;
	uint32_t *cq_record;
	uint32_t bytes;
	int count;
	uint64_t timeout_ns;
	struct fhbn_drive_result *result;
	int64_t *cycles;
	double *mhz;
};

/* GPUNetIO keeps keys in the byte order of the request. */
static __device__ struct doca_gpu_dev_verbs_addr place(uint64_t addr, uint32_t key)
{
	struct doca_gpu_dev_verbs_addr a = { addr, cairn_be32(key) };

	return a;
}

static __device__ int finish(const struct gpunetio_args *a, uint64_t ticket)
{
	int ret = doca_gpu_dev_verbs_poll_cq_at<ALONE>(&a->qp->cq_sq, ticket);

	fhbn_store_record(a->cq_record, cairn_cqe_dbrec(ticket + 1));
	return ret ? -EIO : 0;
}

static __global__ void put_kernel(const __grid_constant__ struct gpunetio_args a)
{
	uint64_t ticket;
	int ret = 0, torn = 0;

	for (uint64_t seq = 1; !ret && seq <= (uint64_t)a.count; seq++) {
		uint32_t bytes = 1 + fhbn_pattern_bytes(seq, a.bytes - 1);

		for (uint32_t i = 0; i < bytes; i++)
			a.m.gpu_from[i] = fhbn_pattern(seq, i);
		doca_gpu_dev_verbs_put<ALONE, BY_SM, THREAD>(a.qp, place(a.m.to, a.m.to_rkey),
							    place(a.m.from, a.m.from_lkey), bytes);
		doca_gpu_dev_verbs_p<uint64_t, ALONE, BY_SM, THREAD>(a.qp, place(a.m.flags, a.m.flags_rkey),
								    seq, &ticket);
		ret = cairn_fhbn_wait_signal(a.m.gpu_flags, seq, a.timeout_ns, &a.result->fault);
		for (uint32_t i = 0; !ret && i < bytes; i++)
			torn += a.m.gpu_to[i] != fhbn_pattern(seq, i);
		ret = ret ? ret : finish(&a, ticket);
		a.result->posted = seq;
	}
	a.result->ret = ret;
	a.result->torn = torn;
}

/* GPUNetIO's put with signal: a WRITE and an atomic addition, announced together. */
static __global__ void put_signal_kernel(const __grid_constant__ struct gpunetio_args a)
{
	uint64_t ns = ptx_globaltimer(), ticket;
	int64_t first = ptx_clock64(), t;
	int ret = 0;

	for (int i = 0; !ret && i < a.count; i++) {
		t = ptx_clock64();
		for (int k = 0; k < 4; k++)
			((uint4 *)a.m.gpu_from)[k] = make_uint4(i, i, i, i);
		doca_gpu_dev_verbs_put_signal<ADD, ALONE, BY_SM, THREAD>(a.qp, place(a.m.to, a.m.to_rkey),
			place(a.m.from, a.m.from_lkey), 64, place(a.m.flags, a.m.flags_rkey),
			place(a.m.from + 4096, a.m.from_lkey), 1, &ticket);
		a.cycles[i] = ptx_clock64() - t;
		ret = finish(&a, ticket);
	}
	ns = ptx_globaltimer() - ns;
	*a.mhz = ns ? (double)(ptx_clock64() - first) * 1e3 / (double)ns : 0;
	a.result->ret = ret;
}

static void lay_out(struct doca_gpu_dev_verbs_qp *d, const struct cairn_fhbn_qp *q)
{
	uint32_t qpn = q->sq.qpn << 8;

	memset(d, 0, sizeof(*d));
	d->sq_num = q->sq.qpn;
	d->sq_num_shift8 = qpn;
	d->sq_num_shift8_be = cairn_be32(qpn);
	d->sq_num_shift8_be_1ds = cairn_be32(qpn | 1);
	d->sq_num_shift8_be_2ds = cairn_be32(qpn | 2);
	d->sq_num_shift8_be_3ds = cairn_be32(qpn | 3);
	d->sq_num_shift8_be_4ds = cairn_be32(qpn | 4);
	d->sq_wqe_num = (uint16_t)q->sq.num_blocks;
	d->sq_wqe_mask = (uint16_t)(q->sq.num_blocks - 1);
	d->sq_wqe_daddr = (uint8_t *)q->sq.segs;
	d->sq_dbrec = (__be32 *)q->record;
	d->sq_db = q->reg[0];
	d->cq_sq.cqe_daddr = (uint8_t *)q->cq;
	d->cq_sq.cqe_num = q->num_cqes;
	d->cq_sq.cqe_mask = q->num_cqes - 1;
	d->cq_sq.cqe_size = sizeof(struct cairn_cqe);
	d->nic_handler = BY_SM;
	d->mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
}

struct shared {
	struct doca_gpu_dev_verbs_qp qp;
	struct fhbn_drive_result result;
	double mhz;
};

/* Runs one of the two kernels on a fresh queue. */
static int run(const void *kernel, const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, uint32_t bytes,
	       int count, struct shared *shared, int64_t *cycles)
{
	struct gpunetio_args a = { NULL, *m, q->cq_record, bytes, count, q->timeout_ns };
	struct cairn_launch launch = { .grid = { 1 }, .block = { 1 } };
	struct shared *dev = NULL;
	void *params[] = { &a };
	int ret = 0;

	lay_out(&shared->qp, q);
	/* GPUNetIO polls completions by the owner bit alone: unused entries must have the opposite bit */
	CAIRN_CUDA(cudaMemset((void *)q->cq, 0xff, (size_t)q->num_cqes * sizeof(*q->cq)));
	if (cudaMalloc((void **)&dev, sizeof(*dev)) != cudaSuccess ||
	    cudaMalloc((void **)&a.cycles, (size_t)count * sizeof(*cycles)) != cudaSuccess ||
	    cudaMemcpy(dev, shared, sizeof(*dev), cudaMemcpyHostToDevice) != cudaSuccess)
		ret = cairn_error(EIO, "fhbn_gpunetio: no device memory");
	a.qp = &dev->qp;
	a.result = &dev->result;
	a.mhz = &dev->mhz;
	if (!ret)
		ret = cairn_launch(kernel, &launch, params);
	if (!ret && (cudaDeviceSynchronize() != cudaSuccess ||
		     cudaMemcpy(shared, dev, sizeof(*dev), cudaMemcpyDeviceToHost) != cudaSuccess ||
		     (cycles && cudaMemcpy(cycles, a.cycles, (size_t)count * sizeof(*cycles),
					   cudaMemcpyDeviceToHost) != cudaSuccess)))
		ret = cairn_error(EIO, "fhbn_gpunetio: %s", cudaGetErrorString(cudaGetLastError()));
	cudaFree(a.cycles);
	cudaFree(dev);
	return ret;
}

extern "C" int fhbn_drive_gpunetio(const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, uint32_t bytes,
				   int count, struct fhbn_drive_result *result)
{
	struct shared s = {};
	int ret = run((const void *)put_kernel, q, m, bytes, count, &s, NULL);

	*result = s.result;
	return ret;
}

extern "C" int fhbn_cost_gpunetio(const struct cairn_fhbn_qp *q, const struct fhbn_memory *m, int num,
				  int64_t *cycles, double *mhz)
{
	struct shared s = {};
	int ret = run((const void *)put_signal_kernel, q, m, 0, num, &s, cycles);

	*mhz = s.mhz;
	if (!ret && s.result.ret)
		ret = cairn_error(EIO, "fhbn_gpunetio: the kernel returned %d", s.result.ret);
	return ret;
}

#else

extern "C" int fhbn_drive_gpunetio(const struct cairn_fhbn_qp *, const struct fhbn_memory *, uint32_t, int,
				   struct fhbn_drive_result *)
{
	return cairn_error(EOPNOTSUPP, "built without NCCL's GPUNetIO headers");
}

extern "C" int fhbn_cost_gpunetio(const struct cairn_fhbn_qp *, const struct fhbn_memory *, int, int64_t *,
				  double *)
{
	return cairn_error(EOPNOTSUPP, "built without NCCL's GPUNetIO headers");
}

#endif
