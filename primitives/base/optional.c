// SPDX-License-Identifier: Apache-2.0
#include "primitives/base/optional.h"

#include <dlfcn.h>
#include <stdlib.h>

#define TOOLKIT	"/usr/local/cuda/lib64/"

const struct cairn_optional_library cairn_optional[CAIRN_NUM_OPTIONAL] = {
	[CAIRN_OPTIONAL_NVML] = {
		.title = "NVML", .files = { "libnvidia-ml.so.1" },
		.needs = "nvmlDeviceGetTotalEnergyConsumption",
		.lack = "records and /metrics have no energy, power and clocks",
		.install = "it is part of NVIDIA's driver; a container needs NVIDIA_DRIVER_CAPABILITIES=all",
	},
	[CAIRN_OPTIONAL_CUBLASLT] = {
		.title = "cuBLASLt",
		.files = { "libcublasLt.so.13", "libcublasLt.so.12", TOOLKIT "libcublasLt.so.13",
			   TOOLKIT "libcublasLt.so.12" },
		.needs = "cublasLtMatmulAlgoGetHeuristic",
		.lack = "all products run on our own kernels, which are slower for some large shapes",
		.install = "apt-get install libcublas-13-0 (from NVIDIA's repository)",
	},
	[CAIRN_OPTIONAL_NVRTC] = {
		.title = "NVRTC", .variable = "CAIRN_NVRTC",
		.files = { "libnvrtc.so.13", "libnvrtc.so.12", TOOLKIT "libnvrtc.so.13",
			   TOOLKIT "libnvrtc.so.12",
			   "/usr/local/cuda/targets/x86_64-linux/lib/libnvrtc.so" },
		.needs = "nvrtcGetCUBIN",
		.lack = "cairn attn-variant and attn_variant cannot compile a variant's C text for a GPU",
		.install = "apt-get install cuda-nvrtc-13-0 (from NVIDIA's repository)",
	},
	[CAIRN_OPTIONAL_CUDNN] = {
		.title = "cuDNN", .variable = "CAIRN_CUDNN", .files = { "libcudnn.so.9" },
		.needs = "cudnnBackendExecute",
		.lack = "cairn bench cannot compare our attention with that of cuDNN",
		.install = "pip install --user nvidia-cudnn-cu13, or tools/peers.sh cudnn in the source tree",
	},
	[CAIRN_OPTIONAL_NCCL] = {
		.title = "NCCL", .variable = "CAIRN_NCCL", .files = { "libnccl.so.2" },
		.needs = "ncclCommInitRankConfig",
		.lack = "the transport nccl is skipped, and cairn validate --nccl is refused",
		.install = "apt-get install libnccl2 (from NVIDIA's repository)",
	},
	[CAIRN_OPTIONAL_VERBS] = {
		.title = "libibverbs", .files = { "libibverbs.so.1" }, .needs = "ibv_query_device",
		.lack = "no RDMA card can be used; the tests of rdma/ run on the model of a card",
		.install = "apt-get install libibverbs1",
	},
	[CAIRN_OPTIONAL_MLX5] = {
		.title = "libmlx5", .files = { "libmlx5.so.1" }, .needs = "mlx5dv_init_obj",
		.lack = "kernels cannot post to an RDMA card",
		.install = "apt-get install ibverbs-providers",
	},
	[CAIRN_OPTIONAL_SODIUM] = {
		.title = "libsodium", .files = { "libsodium.so.23", "libsodium.so.26", "libsodium.so" },
		.needs = "crypto_secretstream_xchacha20poly1305_init_push",
		.lack = "remote workers cannot be used, because libsodium encrypts their control channel",
		.install = "apt-get install libsodium23",
	},
	[CAIRN_OPTIONAL_ZMQ] = {
		.title = "ZeroMQ", .files = { "libzmq.so.5" }, .needs = "zmq_poll",
		.lack = "cairn serve --kv-events is refused",
		.install = "apt-get install libzmq5",
	},
};

void *cairn_optional_open(enum cairn_optional which)
{
	const struct cairn_optional_library *l = &cairn_optional[which];
	const char *own = l->variable ? getenv(l->variable) : NULL;
	void *lib = NULL;

	if (own && own[0])
		return dlopen(own, RTLD_NOW | RTLD_LOCAL);
	for (int i = 0; !lib && l->files[i]; i++)
		lib = dlopen(l->files[i], RTLD_NOW | RTLD_LOCAL);
	return lib;
}
