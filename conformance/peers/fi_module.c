// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_module.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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
	char name[32];
	void *lib;
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

/* The caller holds the lock. Sets *path to where the module lies, or should lie. */
static int open_module(const char *op, const char *name, char *path, size_t len, void **out)
{
	char file[64];

	snprintf(file, sizeof(file), "flashinfer_%s.so", name);
	path_of(path, len, file);
	for (int i = 0; i < num_modules; i++)
		if (!strcmp(modules[i].name, name)) {
			*out = modules[i].lib;
			return 0;
		}
	if (num_modules == MAX_MODULES)
		return cairn_error(EOPNOTSUPP, "%s: FlashInfer: more than %d modules", op, MAX_MODULES);
	CAIRN_TRY(load_ffi(op));
	*out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!*out)
		return missing(op, path);
	snprintf(modules[num_modules].name, sizeof(modules[0].name), "%s", name);
	modules[num_modules++].lib = *out;
	return 0;
}

int cairn_fi_load(const char *op, const char *name, const char *const *functions, int count,
		  tvm_function **out)
{
	char path[1024], symbol[64];
	void *lib = NULL;
	int ret;

	pthread_mutex_lock(&lock);
	ret = open_module(op, name, path, sizeof(path), &lib);
	pthread_mutex_unlock(&lock);
	for (int i = 0; !ret && i < count; i++) {
		snprintf(symbol, sizeof(symbol), "__tvm_ffi_%s", functions[i]);
		*(void **)&out[i] = dlsym(lib, symbol);
		if (!out[i])
			ret = cairn_error(EOPNOTSUPP, "%s: FlashInfer: %s lacks the function %s", op, path,
					  functions[i]);
	}
	return ret;
}

int cairn_fi_captured(void *stream, int *captured)
{
	enum cudaStreamCaptureStatus status;

	CAIRN_CUDA(cudaStreamIsCapturing(stream, &status));
	*captured = status != cudaStreamCaptureStatusNone;
	return 0;
}

int cairn_fi_sms(const char *op, int32_t sms)
{
	int all = cairn_num_sms(), use = cairn_sms_of(sms);

	if (all < 0 || use < 0)
		return all < 0 ? all : use;
	return use < all ? cairn_error(EOPNOTSUPP, "%s: FlashInfer: sms: uses all", op) : 0;
}

int cairn_fi_fetch(void *host, const void *array, size_t bytes, void *stream)
{
	CAIRN_CUDA(cudaMemcpyAsync(host, array, bytes, cudaMemcpyDeviceToHost, stream));
	CAIRN_CUDA(cudaStreamSynchronize(stream));
	return 0;
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
