// SPDX-License-Identifier: Apache-2.0
/* doctor_gpu - the CPU table, NVIDIA's driver, CUDA and the GPUs */
#include <math.h>
#include <string.h>
#ifdef CONFIG_CUDA
#include <cuda_runtime_api.h>
#endif

#include "conformance/doctor/doctor_find.h"
#include "conformance/tables/tables.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

/* Runs one operation of the CPU table and compares its result. */
static void try_cpu(FILE *out, void *arg)
{
	float x[8], weight[8], norm[8] = { 0 };
	struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = norm, .x = x, .weight = weight, .rows = 1, .dim = 8,
		.dtype = CAIRN_F32, .eps = 1e-6f,
	};
	struct cairn_device_info info = { .size = sizeof(info) };
	struct cairn_impl cpu;

	(void)arg;
	for (int i = 0; i < 8; i++) {
		x[i] = i % 2 ? 3 : -3;
		weight[i] = 2;
	}
	if (cairn_impl_open("cpu", &cpu) || cairn_impl_start(&cpu, 0) || cpu.rmsnorm(&args, NULL) ||
	    cpu.device_info(&info)) {
		fprintf(out, "%d\t%s\n", DOCTOR_BROKEN, cairn_last_error());
		return;
	}
	for (int i = 0; i < 8; i++)
		if (!(fabsf(norm[i] - (i % 2 ? 2 : -2)) < 1e-5f)) {
			fprintf(out, "%d\trmsnorm gives %g, not %d\n", DOCTOR_BROKEN, norm[i],
				i % 2 ? 2 : -2);
			return;
		}
	fprintf(out, "%d\truns on %s, %d processors\n", DOCTOR_OK, info.name, info.num_sms);
}

void doctor_look_cpu(struct doctor_findings *all)
{
	doctor_probe(all, "cpu table", "nothing runs here without a GPU", "make check shows what fails",
		     try_cpu, NULL);
	all->cpu_runs = all->num > 0 && all->list[all->num - 1].state == DOCTOR_OK;
}

#ifdef CONFIG_CUDA
static void try_device(FILE *out, int device)
{
	struct cudaDeviceProp prop;
	struct cairn_impl cuda;
	cudaError_t err = cudaGetDeviceProperties(&prop, device);

	if (err != cudaSuccess) {
		fprintf(out, "%d\tdevice %d: %s\n", DOCTOR_BROKEN, device, cudaGetErrorString(err));
		return;
	}
	if (prop.major != 9 || prop.minor != 0) {
		fprintf(out, "%d\tdevice %d: %s has compute capability %d.%d, the kernels need 9.0\n",
			DOCTOR_BROKEN, device, prop.name, prop.major, prop.minor);
		return;
	}
	if (cairn_impl_open("cuda", &cuda) || cairn_impl_start(&cuda, device)) {
		fprintf(out, "%d\tdevice %d: %s: %s\n", DOCTOR_BROKEN, device, prop.name, cairn_last_error());
		return;
	}
	fprintf(out, "%d\tdevice %d: %s, compute capability 9.0, %.1f GiB\n", DOCTOR_OK, device, prop.name,
		(double)prop.totalGlobalMem / (1 << 30));
}

static void try_gpus(FILE *out, void *arg)
{
	int count = 0, driver = 0;
	cudaError_t err;

	(void)arg;
	cudaDriverGetVersion(&driver);
	if (!driver) {
		/* CUDA itself would say that the driver is too old */
		fprintf(out, "%d\tnone without a driver\n", DOCTOR_MISSING);
		return;
	}
	err = cudaGetDeviceCount(&count);
	if (err != cudaSuccess || !count)
		fprintf(out, "%d\t%s\n", DOCTOR_MISSING,
			err == cudaSuccess ? "no CUDA device" : cudaGetErrorString(err));
	for (int i = 0; i < count; i++) {
		try_device(out, i);
		fflush(out);
	}
}

static void try_cuda(FILE *out, void *arg)
{
	int driver = 0, runtime = 0;

	(void)arg;
	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	if (!driver)
		fprintf(out, "%d\tthe program contains CUDA %d.%d; no driver answers it\n", DOCTOR_MISSING,
			runtime / 1000, runtime % 1000 / 10);
	else
		fprintf(out, "%d\tthe program contains CUDA %d.%d, the driver serves up to %d.%d\n",
			driver / 1000 < runtime / 1000 ? DOCTOR_BROKEN : DOCTOR_OK, runtime / 1000,
			runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
}
#endif

static void look_driver(struct doctor_findings *all)
{
	static const char costs[] = "no GPU can be used; the CPU table runs everything, slowly",
			  type[] = "install NVIDIA's driver (Debian: apt-get install nvidia-driver); in a "
				   "container: docker run --gpus all";
	char version[64] = "";
	FILE *f = fopen("/sys/module/nvidia/version", "r");

	if (f && fscanf(f, "%63s", version) == 1)
		doctor_add(all, "driver", DOCTOR_OK, NULL, NULL, "NVIDIA %s", version);
	else
		doctor_add(all, "driver", DOCTOR_MISSING, costs, type, "the module nvidia is not loaded");
	if (f)
		fclose(f);
}

void doctor_look_gpus(struct doctor_findings *all)
{
	static const char costs[] = "the CPU table runs everything, slowly";

	look_driver(all);
#ifdef CONFIG_CUDA
#ifdef CAIRN_QUICK_KERNELS
	static const char fix[] = "make, on this machine";
#else
	static const char fix[] = "none on this machine: the kernels need an NVIDIA H100 or H200";
#endif
	int first;

	doctor_probe(all, "CUDA", costs, "install a driver that serves this CUDA, or build with an older one",
		     try_cuda, NULL);
	first = all->num;
	doctor_probe(all, "GPU", costs, fix, try_gpus, NULL);
	for (int i = first; i < all->num; i++)
		all->usable_gpus += all->list[i].state == DOCTOR_OK;
#else
	doctor_add(all, "CUDA", DOCTOR_MISSING, costs, "install CUDA 12.4 or newer under /usr/local/cuda; "
		   "make", "this program was built without CUDA");
#endif
}
