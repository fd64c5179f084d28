// SPDX-License-Identifier: Apache-2.0
/*
 * plugin - loads a table from a shared object, after a child process has shown that loading it does no harm
 */
#include "conformance/tables/plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/tables/tables.h"
#include "primitives/base/error.h"

#define AFTER_RUNTIME	offsetof(struct cairn_impl, stream)

/* An older table is shorter and a newer one longer than ours; only the common members are copied. */
static void copy_table(struct cairn_impl *out, const struct cairn_impl *in)
{
	memset(out, 0, sizeof(*out));
	memcpy(out, in, in->size < sizeof(*out) ? in->size : sizeof(*out));
	out->size = sizeof(*out);
}

/* Returns the table for this ABI version or, if there is none, for the newest older one; else NULL. */
static const struct cairn_impl *newest(const struct cairn_impl *(*get)(uint32_t))
{
	const struct cairn_impl *impl = NULL;

	for (uint32_t v = CAIRN_ABI_VERSION; v > 0 && !impl; v--)
		impl = get(v);
	return impl;
}

#ifdef __aarch64__
#define OWN_MACHINE	EM_AARCH64
#else
#define OWN_MACHINE	EM_X86_64
#endif

/*
 * Refuses a file that is not a shared object for this machine, because dlopen()'s message would name the
 * wrong cause for some of these files.
 */
static int check_file(const char *path)
{
	struct stat st;
	Elf64_Ehdr h;
	size_t n;
	FILE *f;

	if (stat(path, &st))
		return cairn_error(EINVAL, "%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return cairn_error(EINVAL, "%s: is %s, not a shared object", path,
				   S_ISDIR(st.st_mode) ? "a directory" : "no regular file");
	f = fopen(path, "rb");
	if (!f)
		return cairn_error(EINVAL, "%s: %s", path, strerror(errno));
	n = fread(&h, 1, sizeof(h), f);
	fclose(f);
	if (n < sizeof(h) || memcmp(h.e_ident, ELFMAG, SELFMAG))
		return cairn_error(EINVAL, "%s: is not a shared object (it has no ELF header)", path);
	if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_machine != OWN_MACHINE)
		return cairn_error(EINVAL, "%s: was built for another architecture (ELF machine %d, %d bits)",
				   path, h.e_machine, h.e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32);
	if (h.e_type == ET_REL)
		return cairn_error(EINVAL, "%s: is an object file: link it with gcc -shared", path);
	return 0;
}

/* Returns dlerror() without the path that it begins with. */
static const char *load_error(const char *path)
{
	const char *text = dlerror();
	size_t n = strlen(path);

	if (!text)
		return "does not load";
	return !strncmp(text, path, n) && !strncmp(text + n, ": ", 2) ? text + n + 2 : text;
}

enum { LOADED = 99, LOAD_TIMEOUT_S = 60 };

/* Loading runs the file's own code, so a child process, which may crash, loads it first. */
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
			newest(get);
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

/* Returns whether text can go into messages and JSON records without escaping. */
static int is_plain(const char *text)
{
	size_t n = 0;

	for (; text[n]; n++)
		if (text[n] < 0x20 || text[n] > 0x7e || text[n] == '"' || text[n] == '\\')
			return 0;
	return n > 0 && n < 64;
}

static int check_version(const char *path, const struct cairn_impl *impl)
{
	char name[160] = "";

	if (impl->name && impl->version && is_plain(impl->name) && is_plain(impl->version))
		snprintf(name, sizeof(name), "\"%s\" %s ", impl->name, impl->version);
	if (impl->abi_version > CAIRN_ABI_VERSION)
		return cairn_error(EINVAL, "%s: abi_version: is %u, this suite has %d", path,
				   impl->abi_version, CAIRN_ABI_VERSION);
	if (!impl->abi_version)
		return cairn_error(EINVAL, "%s: %sabi_version: is 0; set it to CAIRN_ABI_VERSION", path,
				   name);
	if (impl->abi_version < CAIRN_ABI_VERSION)
		return cairn_error(EINVAL, "%s: %swas built for ABI version %u; this suite needs version "
				   "%d: build it again against conformance/abi.h", path, name,
				   impl->abi_version, CAIRN_ABI_VERSION);
	return 0;
}

/*
 * Gives plug-ins at least two threads, since races do not show with one. A plug-in has an OpenMP runtime of
 * its own, which reads the environment when it is loaded.
 */
static void give_two_threads(void)
{
	cpu_set_t cpus;

	if (!sched_getaffinity(0, sizeof(cpus), &cpus) && CPU_COUNT(&cpus) < 2)
		setenv("OMP_NUM_THREADS", "2", 0);
}

int cairn_plugin_open(const char *path, struct cairn_impl *out)
{
	const struct cairn_impl *(*get)(uint32_t);
	const struct cairn_impl *impl;
	void *so;

	CAIRN_TRY(check_file(path));
	CAIRN_TRY(try_plugin(path));
	give_two_threads();
	so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!so)
		return cairn_error(EINVAL, "%s: %s", path, load_error(path));
	*(void **)&get = dlsym(so, "cairn_impl_get");
	if (!get) {
		int ret = cairn_error(EINVAL, "%s: no symbol cairn_impl_get: a plug-in exports it, with the "
				      "declaration of conformance/abi.h", path);

		dlclose(so);
		return ret;
	}
	impl = newest(get);
	if (!impl) {
		dlclose(so);
		return cairn_error(EINVAL, "%s: cairn_impl_get: does not serve ABI version %d", path,
				   CAIRN_ABI_VERSION);
	}
	CAIRN_TRY(check_version(path, impl));
	if (impl->size < AFTER_RUNTIME || impl->size > (1 << 16))
		return cairn_error(EINVAL, "%s: size: %zu is not the size of a table; set it to "
				   "sizeof(struct cairn_impl)", path, impl->size);
	if (!impl->name || !impl->version)
		return cairn_error(EINVAL, "%s: name, version: must be given", path);
	if (!is_plain(impl->name) || !is_plain(impl->version))
		return cairn_error(EINVAL, "%s: name, version: must be 1 to 63 characters of ASCII "
				   "without quotes and backslashes", path);
	copy_table(out, impl);
	if (out->comm_open && !(out->comm_error && out->comm_abort && out->comm_close))
		return cairn_error(EINVAL, "%s: comm_open: comes with comm_error, comm_abort and comm_close, "
				   "of which the table lacks some", path);
	return cairn_impl_add_runtime(out);
}

