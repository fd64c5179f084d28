// SPDX-License-Identifier: Apache-2.0
/* doctor_library - the libraries of optional.h, and the programs that commands start */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/doctor/doctor_find.h"
#ifdef CONFIG_CUDA
#include "conformance/peers/cudnn_graph.h"
#include "conformance/peers/cudnn_lib.h"
#endif
#include "primitives/base/error.h"
#include "primitives/base/optional.h"
#ifdef CONFIG_NCCL
#include "rdma/transport/transport_nccl.h"
#endif
#include "serving/events/zeromq.h"
#include "serving/grammar/llguidance.h"
#include "serving/remote/control/sodium.h"

static int load_sodium(void)
{
	const struct sodium *functions;

	return sodium_load(&functions);
}

static int load_zmq(void)
{
	const struct zeromq *functions;

	return zeromq_load(&functions);
}

#ifdef CONFIG_NCCL
static int load_nccl(void)
{
	const struct nccl_functions *functions;

	return nccl_load(&functions);
}
#endif

#ifdef CONFIG_CUDA
static int load_cudnn(void)
{
	return cairn_cudnn_load("cuDNN");
}
#endif

/* How this build uses each library: the loader of the module that calls it, if others can call that. */
static const struct use {
	const char *unused;		/* why this build does not use it; NULL: it does */
	int (*load)(void);
} uses[CAIRN_NUM_OPTIONAL] = {
	[CAIRN_OPTIONAL_SODIUM] = { NULL, load_sodium },
	[CAIRN_OPTIONAL_ZMQ] = { NULL, load_zmq },
#ifdef CONFIG_CUDA
	[CAIRN_OPTIONAL_CUDNN] = { NULL, load_cudnn },
#else
	[CAIRN_OPTIONAL_CUBLASLT] = { "this program was built without CUDA", NULL },
	[CAIRN_OPTIONAL_NVRTC] = { "this program was built without CUDA", NULL },
	[CAIRN_OPTIONAL_CUDNN] = { "this program was built without CUDA", NULL },
#endif
#ifdef CONFIG_NCCL
	[CAIRN_OPTIONAL_NCCL] = { NULL, load_nccl },
#else
	[CAIRN_OPTIONAL_NCCL] = { "this program was built without NCCL's headers", NULL },
#endif
#ifndef CONFIG_VERBS
	[CAIRN_OPTIONAL_VERBS] = { "this program was built without the headers of libibverbs", NULL },
	[CAIRN_OPTIONAL_MLX5] = { "this program was built without the headers of libibverbs", NULL },
#endif
};

/* Says why none of the files could be loaded: a file that is there is named before those that are not. */
static void say_unloaded(FILE *out, const struct cairn_optional_library *l)
{
	const char *own = l->variable ? getenv(l->variable) : NULL;

	if (own && own[0]) {
		fprintf(out, "%d\t$%s: %s\n", DOCTOR_BROKEN, l->variable,
			dlopen(own, RTLD_NOW | RTLD_LOCAL) ? own : dlerror());
		return;
	}
	for (int i = 0; l->files[i]; i++) {
		const char *why = dlopen(l->files[i], RTLD_NOW | RTLD_LOCAL) ? NULL : dlerror();

		if (why && !strstr(why, "No such file")) {
			fprintf(out, "%d\t%s\n", DOCTOR_BROKEN, why);
			return;
		}
	}
	fprintf(out, "%d\t%s is not on this machine\n", DOCTOR_MISSING, l->files[0]);
}

/* Names the file that has the function at `symbol`; its real name often has the version. */
static void say_loaded(FILE *out, const void *symbol)
{
	char real[PATH_MAX];
	Dl_info info;

	if (!dladdr(symbol, &info) || !info.dli_fname)
		fprintf(out, "%d\tloaded\n", DOCTOR_OK);
	else
		fprintf(out, "%d\t%s\n", DOCTOR_OK, realpath(info.dli_fname, real) ? real : info.dli_fname);
}

static void try_library(FILE *out, void *arg)
{
	enum cairn_optional which = *(const enum cairn_optional *)arg;
	const struct cairn_optional_library *l = &cairn_optional[which];
	void *lib = NULL, *symbol = NULL;

#ifdef CONFIG_CUDA
	/* its loader looks in more places */
	if (which == CAIRN_OPTIONAL_CUDNN && !load_cudnn()) {
		say_loaded(out, *(void **)&cairn_cudnn);
		return;
	}
#endif
	lib = cairn_optional_open(which);
	if (!lib) {
		say_unloaded(out, l);
		return;
	}
	symbol = dlsym(lib, l->needs);
	if (!symbol) {
		struct link_map *map = NULL;

		dlinfo(lib, RTLD_DI_LINKMAP, &map);
		fprintf(out, "%d\t%s: has no function %s: another or too old a library\n", DOCTOR_BROKEN,
			map ? map->l_name : l->files[0], l->needs);
	} else if (uses[which].load && uses[which].load()) {
		fprintf(out, "%d\t%s\n", DOCTOR_BROKEN, cairn_last_error());
	} else {
		say_loaded(out, symbol);
	}
}

/* This library is beside the program, and refers to symbols that its loader must provide. */
static void try_llguidance(FILE *out, void *arg)
{
	struct llguidance functions;
	char path[PATH_MAX];

	(void)arg;
	if (llguidance_find(path, sizeof(path)))
		fprintf(out, "%d\tlibllguidance.so is not beside the program\n", DOCTOR_MISSING);
	else if (llguidance_load(&functions))
		fprintf(out, "%d\t%s\n", DOCTOR_BROKEN, cairn_last_error());
	else
		fprintf(out, "%d\t%s\n", DOCTOR_OK, path);
}

/* Looks for a program as a shell does. */
static void look_program(struct doctor_findings *all, const char *name, const char *variable,
			 const char *program, const char *costs, const char *type)
{
	const char *own = variable ? getenv(variable) : NULL, *dir = getenv("PATH");
	char path[PATH_MAX];

	program = own ? own : program;
	if (strchr(program, '/'))
		dir = "";
	while (dir) {
		size_t n = strcspn(dir, ":");

		snprintf(path, sizeof(path), "%.*s%s%s", (int)n, dir, n ? "/" : "", program);
		if (!access(path, X_OK)) {
			doctor_add(all, name, DOCTOR_OK, costs, type, "%s", path);
			return;
		}
		dir = dir[n] ? dir + n + 1 : NULL;
	}
	doctor_add(all, name, DOCTOR_MISSING, costs, type, "no program %s", program);
}

void doctor_look_libraries(struct doctor_findings *all)
{
	for (enum cairn_optional i = 0; i < CAIRN_NUM_OPTIONAL; i++) {
		const struct cairn_optional_library *l = &cairn_optional[i];

		if (uses[i].unused)
			doctor_add(all, l->title, DOCTOR_UNUSED, NULL, NULL, "%s", uses[i].unused);
		else
			doctor_probe(all, l->title, l->lack, l->install, try_library, &i);
	}
	doctor_probe(all, "llguidance", "structured outputs and forced calls of tools are refused",
		     "tools/setup.sh grammar in the source tree; if the program is installed, make install "
		     "again", try_llguidance, NULL);
	look_program(all, "CBC", "CAIRN_CBC", "cbc", "cairn search cannot run", "apt-get install coinor-cbc");
	look_program(all, "C compiler", NULL, "cc", "cairn attn-variant has no reference to judge by",
		     "apt-get install gcc");
}
