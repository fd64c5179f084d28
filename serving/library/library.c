// SPDX-License-Identifier: Apache-2.0
/* library - the functions that only the library has (cairn.h) */
#include "serving/library/cairn.h"

#include <pthread.h>
#include <string.h>

#include "conformance/tables/plugin.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Room for operations that a program compiled against a newer header may look up: it finds them NULL. */
#define MORE_MEMBERS	256

static struct table {
	const struct cairn_impl *builtin;
	struct cairn_impl impl;		/* size 0: not filled in yet */
	void (*more[MORE_MEMBERS])(void);
} tables[] = {
	{ .builtin = &cairn_impl_ref }, { .builtin = &cairn_impl_cpu },
#ifdef CONFIG_CUDA
	{ .builtin = &cairn_impl_cuda },
#endif
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void stop_nothing(void)
{
}

static int fill(struct table *t)
{
	struct cairn_impl impl = *t->builtin;

	CAIRN_TRY(cairn_impl_add_runtime(&impl));
	if (!impl.fini)
		impl.fini = stop_nothing;
	if (!impl.last_error)
		impl.last_error = cairn_last_error;
	t->impl = impl;
	return 0;
}

const struct cairn_impl *cairn_table(const char *name, uint32_t abi)
{
	struct table *t = tables, *end = tables + ARRAY_SIZE(tables);
	int ret = 0;

	if (!name) {
		cairn_error(EINVAL, "table: its name is NULL");
		return NULL;
	}
	if (abi != CAIRN_ABI_VERSION) {
		cairn_error(EINVAL, "table: version %u was asked for, this library has version %d", abi,
			    CAIRN_ABI_VERSION);
		return NULL;
	}
	while (t < end && strcmp(t->builtin->name, name))
		t++;
	if (t == end) {
#ifndef CONFIG_CUDA
		if (!strcmp(name, "cuda")) {
			cairn_error(ENODEV, "table: cuda: this library was built without CUDA");
			return NULL;
		}
#endif
		cairn_error(EINVAL, "table: '%.64s' is none of ref, cpu, cuda", name);
		return NULL;
	}
	pthread_mutex_lock(&lock);
	if (!t->impl.size)
		ret = fill(t);
	pthread_mutex_unlock(&lock);
	return ret ? NULL : &t->impl;
}

const char *cairn_version(void)
{
	return CAIRN_VERSION;
}
