// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_module.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "conformance/peers/peers_folder.h"
#include "primitives/base/error.h"
#include "primitives/base/launch.h"

#define MAX_MODULES	16

static struct {
	void *lib;
	int (*set_stream)(int32_t device_type, int32_t device_id, void *stream, void **old);
	void (*take_error)(void **object);
	int (*release)(void *object);
} ffi;

static struct {
	int qk_dim, v_dim;
	struct fi_module module;
} modules[MAX_MODULES];
static int num_modules;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void path_of(char *path, size_t len, const char *file)
{
	const char *dir = getenv("CAIRN_FLASHINFER");

	if (dir)
		snprintf(path, len, "%s/%s", dir, file);
	else
		cairn_peers_path(path, len, file);
}

static int missing(const char *op, const char *path)
{
	return cairn_error(EOPNOTSUPP, "%s: FlashInfer (%s) is not on this machine: tools/peers.sh "
			   "flashinfer compiles it, $CAIRN_FLASHINFER names another folder", op, path);
}

/* Loads the library globally, because the modules look up its functions in the whole process. */
static int load_ffi(const char *op)
{
	char path[1024];

	if (ffi.lib)
		return 0;
	path_of(path, sizeof(path), "tvm_ffi/lib/libtvm_ffi.so");
	ffi.lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	if (!ffi.lib)
		return missing(op, path);
	*(void **)&ffi.set_stream = dlsym(ffi.lib, "TVMFFIEnvSetStream");
	*(void **)&ffi.take_error = dlsym(ffi.lib, "TVMFFIErrorMoveFromRaised");
	*(void **)&ffi.release = dlsym(ffi.lib, "TVMFFIObjectDecRef");
	if (ffi.set_stream && ffi.take_error && ffi.release)
		return 0;
	dlclose(ffi.lib);
	ffi.lib = NULL;
	return cairn_error(EOPNOTSUPP, "%s: FlashInfer: %s lacks a function", op, path);
}

static int load_module(const char *op, int qk_dim, int v_dim, struct fi_module *out)
{
	char file[64], path[1024];
	void *lib;

	snprintf(file, sizeof(file), "flashinfer_%d_%d_bf16.so", qk_dim, v_dim);
	path_of(path, sizeof(path), file);
	CAIRN_TRY(load_ffi(op));
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return missing(op, path);
	*(void **)&out->plan = dlsym(lib, "__tvm_ffi_plan");
	*(void **)&out->ragged_run = dlsym(lib, "__tvm_ffi_ragged_run");
	*(void **)&out->paged_run = dlsym(lib, "__tvm_ffi_paged_run");
	if (out->plan && out->ragged_run && out->paged_run)
		return 0;
	dlclose(lib);
	return cairn_error(EOPNOTSUPP, "%s: FlashInfer: %s lacks a function", op, path);
}

static int find(const char *op, int qk_dim, int v_dim, const struct fi_module **out)
{
	for (int i = 0; i < num_modules; i++)
		if (modules[i].qk_dim == qk_dim && modules[i].v_dim == v_dim) {
			*out = &modules[i].module;
			return 0;
		}
	if (num_modules == MAX_MODULES)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: more than %d modules", op, MAX_MODULES);
	CAIRN_TRY(load_module(op, qk_dim, v_dim, &modules[num_modules].module));
	modules[num_modules].qk_dim = qk_dim;
	modules[num_modules].v_dim = v_dim;
	*out = &modules[num_modules++].module;
	return 0;
}

int cairn_fi_load(const char *op, int qk_dim, int v_dim, const struct fi_module **out)
{
	int ret;

	pthread_mutex_lock(&lock);
	ret = find(op, qk_dim, v_dim, out);
	pthread_mutex_unlock(&lock);
	return ret;
}

int cairn_fi_call(const char *op, tvm_function *f, const struct tvm_any *args, int num_args, void *stream,
		  struct tvm_any *result)
{
	struct tvm_error *error = NULL;
	void *old = NULL;
	int device, ret;

	CAIRN_CUDA(cudaGetDevice(&device));
	ffi.set_stream(DL_CUDA, device, stream, &old);
	ret = f(NULL, args, num_args, result);
	ffi.set_stream(DL_CUDA, device, old, NULL);
	if (!ret)
		return 0;
	ffi.take_error((void **)&error);
	ret = cairn_error(EIO, "%s: FlashInfer: %.*s", op, error ? (int)error->message.size : 0,
			  error ? error->message.data : "");
	if (error)
		ffi.release(error);
	return ret;
}

void cairn_fi_release(struct tvm_any *value)
{
	if (value->type >= TVM_OBJECTS && value->p)
		ffi.release(value->p);
	*value = (struct tvm_any){ .type = TVM_NONE };
}
