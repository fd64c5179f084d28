// SPDX-License-Identifier: Apache-2.0
/*
 * cudnn_lib - finds and loads libcudnn.so.9
 *
 * The library loads its other parts from its own folder, and NVRTC, which compiles some of its kernels, from
 * the folders of the same Python environment. If NVRTC is not there, it is loaded from the toolkit's folder
 * first; the library then finds it by its name.
 */
#include "conformance/peers/cudnn_lib.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/peers/cudnn_graph.h"
#include "conformance/peers/peers_folder.h"
#include "primitives/base/error.h"
#include "primitives/base/launch.h"
#include "primitives/base/optional.h"

#define OLDEST		91600	/* older ones need other graphs for lengths that are not multiples of 128 */
#define MAX_DEVICES	16

struct cudnn_lib cairn_cudnn;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *handles[MAX_DEVICES];
static int version, found;

/* Opens a library and keeps it if it is new enough; otherwise notes its version. */
static void *open_one(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	size_t (*get_version)(void);

	if (!lib)
		return NULL;
	*(void **)&get_version = dlsym(lib, "cudnnGetVersion");
	if (get_version)
		version = (int)get_version();
	if (get_version && version >= OLDEST)
		return lib;
	dlclose(lib);
	return NULL;
}

/* Opens the first suitable file that matches the pattern; ~ is the user's home. */
static void *open_first(const char *pattern)
{
	glob_t files;
	void *lib = NULL;

	if (glob(pattern, GLOB_TILDE | GLOB_BRACE, NULL, &files))
		return NULL;
	for (size_t i = 0; i < files.gl_pathc && !lib; i++)
		lib = open_one(files.gl_pathv[i]);
	globfree(&files);
	return lib;
}

/* Looks into the packages of the Python environments whose programs are on the path. */
static void *open_in_python(void)
{
	const char *dir = getenv("PATH");
	char pattern[1024];
	void *lib = NULL;

	while (dir && *dir && !lib) {
		size_t n = strcspn(dir, ":");

		snprintf(pattern, sizeof(pattern), "%.*s/../lib/python3*/{site,dist}-packages/"
			 "nvidia/cudnn/lib/libcudnn.so.9", (int)n, dir);
		lib = open_first(pattern);
		dir += n + (dir[n] == ':');
	}
	return lib;
}

static void *open_library(void)
{
	const char *path = getenv("CAIRN_CUDNN");
	char own[1024];
	void *lib;

	if (path)
		return open_one(path);
	cairn_peers_path(own, sizeof(own), "nvidia/cudnn/lib/libcudnn.so.9");
	lib = open_one(own);
	if (!lib)
		lib = open_in_python();
	if (!lib)
		lib = open_first("~/.local/lib/python3*/site-packages/nvidia/cudnn/lib/libcudnn.so.9");
	if (!lib)
		lib = open_one("libcudnn.so.9");
	return lib;
}

static void load(void)
{
	static const char *const symbols[] = {
#define F(type, name, params) #name,
		CUDNN_FUNCTIONS(F)
#undef F
	};
	void **table = (void **)&cairn_cudnn, *lib = open_library();

	if (!lib)
		return;
	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
		table[i] = dlsym(lib, symbols[i]);
		if (!table[i])
			return;
	}
	found = 1;
	cairn_optional_open(CAIRN_OPTIONAL_NVRTC);	/* stays loaded */
}

int cairn_cudnn_load(const char *op)
{
	pthread_once(&once, load);
	if (found)
		return 0;
	if (version)
		return cairn_error(EOPNOTSUPP, "%s: cuDNN %d.%d.%d is older than 9.16: tools/peers.sh cudnn "
				   "fetches a newer one", op, version / 10000, version / 100 % 100,
				   version % 100);
	return cairn_error(EOPNOTSUPP, "%s: cuDNN (libcudnn.so.9) is not on this machine: tools/peers.sh "
			   "cudnn fetches it, $CAIRN_CUDNN names another", op);
}

int cairn_cudnn_version(void)
{
	return found ? version : 0;
}

int cairn_cudnn_error(const char *op, int status, const char *what)
{
	char text[300] = "";
	int err = status >= CUDNN_NOT_SUPPORTED && status < CUDNN_INTERNAL_ERROR ? EOPNOTSUPP : EIO;

	cairn_cudnn.cudnnGetLastErrorString(text, sizeof(text));
	text[strcspn(text, "\n")] = 0;
	return cairn_error(err, "%s: cuDNN: %s: status %d%s%s", op, what, status, *text ? ": " : "", text);
}

int cairn_cudnn_handle(const char *op, void **handle)
{
	int device, status;

	CAIRN_CUDA(cudaGetDevice(&device));
	if (device >= MAX_DEVICES)
		return cairn_error(EOPNOTSUPP, "%s: cuDNN: device %d is above %d", op, device,
				   MAX_DEVICES - 1);
	if (!handles[device]) {
		status = cairn_cudnn.cudnnCreate(&handles[device]);
		if (status != CUDNN_SUCCESS) {
			handles[device] = NULL;
			return cairn_cudnn_error(op, status, "cudnnCreate");
		}
	}
	*handle = handles[device];
	return 0;
}
