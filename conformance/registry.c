// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../primitives/error.h"
#include "harness.h"

/* CAIRN_FAMILIES comes from the Kbuild files: F(rmsnorm) F(rope) ... */
#define F(name) extern const struct cairn_family cairn_##name##_family;
CAIRN_FAMILIES
#undef F
#define F(name) &cairn_##name##_family,
static const struct cairn_family *const families[] = { CAIRN_FAMILIES NULL };
#undef F

const struct cairn_family *const *cairn_families(void)
{
	return families;
}

extern const struct cairn_mutant cairn_mutants_attn[], cairn_mutants_cluster[], cairn_mutants_cluster_attn[],
	cairn_mutants_engine[], cairn_mutants_fp8[], cairn_mutants_gemm[], cairn_mutants_latent[],
	cairn_mutants_mla[], cairn_mutants_moe[], cairn_mutants_rope[], cairn_mutants_rows[],
	cairn_mutants_step[];
extern const int cairn_num_mutants_attn, cairn_num_mutants_cluster, cairn_num_mutants_cluster_attn,
	cairn_num_mutants_engine, cairn_num_mutants_fp8, cairn_num_mutants_gemm, cairn_num_mutants_latent,
	cairn_num_mutants_mla, cairn_num_mutants_moe, cairn_num_mutants_rope, cairn_num_mutants_rows,
	cairn_num_mutants_step;

const struct cairn_mutant *cairn_mutant_at(int i)
{
	const struct cairn_mutant *const lists[] = { cairn_mutants_attn, cairn_mutants_cluster,
		cairn_mutants_cluster_attn, cairn_mutants_engine, cairn_mutants_fp8, cairn_mutants_gemm,
		cairn_mutants_latent, cairn_mutants_mla, cairn_mutants_moe, cairn_mutants_rope,
		cairn_mutants_rows, cairn_mutants_step };
	const int counts[] = { cairn_num_mutants_attn, cairn_num_mutants_cluster,
		cairn_num_mutants_cluster_attn, cairn_num_mutants_engine, cairn_num_mutants_fp8,
		cairn_num_mutants_gemm, cairn_num_mutants_latent, cairn_num_mutants_mla,
		cairn_num_mutants_moe, cairn_num_mutants_rope, cairn_num_mutants_rows,
		cairn_num_mutants_step };

	for (size_t k = 0; k < ARRAY_SIZE(lists); k++) {
		if (i < counts[k])
			return &lists[k][i];
		i -= counts[k];
	}
	return NULL;
}

/* An older table is shorter, a newer one longer: what both know is what counts. */
static void copy_table(struct cairn_impl *out, const struct cairn_impl *in)
{
	memset(out, 0, sizeof(*out));
	memcpy(out, in, in->size < sizeof(*out) ? in->size : sizeof(*out));
	out->size = sizeof(*out);
}

#define FIRST_RUNTIME	offsetof(struct cairn_impl, mem_alloc)
#define AFTER_RUNTIME	offsetof(struct cairn_impl, stream)

#ifndef CONFIG_CUDA
void cairn_profiler(int on)
{
	(void)on;
}
#endif

static int add_runtime(struct cairn_impl *impl)
{
	const struct cairn_impl *rt = &cairn_host_runtime;

	if (impl->mem_alloc)
		return 0;
	if (!(impl->flags & CAIRN_IMPL_HOST_MEM)) {
#ifdef CONFIG_CUDA
		rt = &cairn_cuda_runtime;
#else
		return cairn_error(ENODEV, "%s: takes device memory, and this build has no CUDA", impl->name);
#endif
	}
	memcpy((char *)impl + FIRST_RUNTIME, (const char *)rt + FIRST_RUNTIME,
	       AFTER_RUNTIME - FIRST_RUNTIME);
	impl->stream_wait = rt->stream_wait;
	if (!impl->device_info)
		impl->device_info = rt->device_info;
	if (!impl->init)
		impl->init = rt->init;
	return 0;
}

enum { LOADED = 99, LOAD_TIMEOUT_S = 60 };

/* Loading runs code of the file: a process that may die of it goes first. */
static int try_plugin(const char *path)
{
	const char *seconds = getenv("CAIRN_TIMEOUT");
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return cairn_error(ENOMEM, "%s: no process to load it in", path);
	if (pid == 0) {
		const struct cairn_impl *(*get)(uint32_t);
		void *so;

		alarm(seconds ? (unsigned)atoi(seconds) : LOAD_TIMEOUT_S);
		so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		*(void **)&get = so ? dlsym(so, "cairn_impl_get") : NULL;
		if (get)
			get(CAIRN_ABI_VERSION);
		_exit(LOADED);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		return cairn_error(EINVAL, "%s: being loaded it was ended by signal %d (%s)", path,
				   WTERMSIG(status), strsignal(WTERMSIG(status)));
	if (WEXITSTATUS(status) != LOADED)
		return cairn_error(EINVAL, "%s: being loaded it exited with status %d", path,
				   WEXITSTATUS(status));
	return 0;
}

/* It goes into messages and, as it is, into records. */
static int is_plain(const char *text)
{
	size_t n = 0;

	for (; text[n]; n++)
		if (text[n] < 0x20 || text[n] > 0x7e || text[n] == '"' || text[n] == '\\')
			return 0;
	return n > 0 && n < 64;
}

static int open_plugin(const char *path, struct cairn_impl *out)
{
	const struct cairn_impl *(*get)(uint32_t);
	const struct cairn_impl *impl;
	void *so;

	CAIRN_TRY(try_plugin(path));
	so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!so)
		return cairn_error(EINVAL, "%s: %s", path, dlerror());
	*(void **)&get = dlsym(so, "cairn_impl_get");
	if (!get) {
		dlclose(so);
		return cairn_error(EINVAL, "%s: no symbol cairn_impl_get", path);
	}
	impl = get(CAIRN_ABI_VERSION);
	if (!impl) {
		dlclose(so);
		return cairn_error(EINVAL, "%s: cairn_impl_get: does not serve ABI version %d", path,
				   CAIRN_ABI_VERSION);
	}
	if (impl->abi_version != CAIRN_ABI_VERSION)
		return cairn_error(EINVAL, "%s: abi_version: is %u, this suite has %d", path,
				   impl->abi_version, CAIRN_ABI_VERSION);
	if (impl->size < AFTER_RUNTIME || impl->size > (1 << 16))
		return cairn_error(EINVAL, "%s: size: %zu is not the size of a table", path, impl->size);
	if (!impl->name || !impl->version)
		return cairn_error(EINVAL, "%s: name, version: must be given", path);
	if (!is_plain(impl->name) || !is_plain(impl->version))
		return cairn_error(EINVAL, "%s: name, version: must be 1 to 63 characters of ASCII "
				   "without quotes and backslashes", path);
	copy_table(out, impl);
	return add_runtime(out);
}

int cairn_impl_open(const char *name, struct cairn_impl *out)
{
	static const struct cairn_impl *const builtin[] = {
		&cairn_impl_ref, &cairn_impl_cpu,
#ifdef CONFIG_CUDA
		&cairn_impl_cuda, &cairn_impl_peers, &cairn_impl_unfused,
#endif
	};

	if (strchr(name, '/'))
		return open_plugin(name, out);
	for (size_t i = 0; i < ARRAY_SIZE(builtin); i++) {
		if (strcmp(builtin[i]->name, name))
			continue;
		copy_table(out, builtin[i]);
		return add_runtime(out);
	}
	if (!strcmp(name, "cuda") || !strcmp(name, "peers") || !strcmp(name, "unfused"))
		return cairn_error(ENODEV, "%s: this build has no CUDA", name);
	return cairn_error(EINVAL,
			   "--impl: '%s' is none of ref, cpu, cuda, peers, unfused, nor a path with a '/'",
			   name);
}

int cairn_impl_start(const struct cairn_impl *impl, int device)
{
	cairn_clear_error();
	return impl->init ? impl->init(device) : 0;
}

void cairn_impl_stop(const struct cairn_impl *impl)
{
	if (impl->fini)
		impl->fini();
}

const char *cairn_impl_error(const struct cairn_impl *impl)
{
	const char *text = impl->last_error ? impl->last_error() : NULL;

	return text && *text ? text : cairn_last_error();
}

static int has_data(const char *dir)
{
	char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/serving/embedded/config.json", dir);
	return access(path, R_OK) == 0;
}

const char *cairn_data_dir(void)
{
	static char dir[PATH_MAX];
	const char *env = getenv("CAIRN_DATA");
	ssize_t n;
	char *slash;

	if (dir[0])
		return dir;
	if (env && *env)
		return env;
	n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
	if (n > 0) {
		dir[n] = 0;
		for (int up = 0; up < 3 && (slash = strrchr(dir, '/')) && slash != dir; up++) {
			*slash = 0;
			if (has_data(dir))
				return dir;
		}
	}
	snprintf(dir, sizeof(dir), "%s", CAIRN_SRCDIR);
	return dir;
}

const char *cairn_srcdir(void)
{
	return cairn_data_dir();
}

const char *cairn_source_digest(void)
{
	return CAIRN_SOURCE_DIGEST;
}
