// SPDX-License-Identifier: Apache-2.0
/* bad_plugin - misbehaves in the way that $CAIRN_BAD_PLUGIN names; the runner must survive each way */
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/abi.h"
#include "conformance/tables/offer.h"

static void crash(void)
{
	signal(SIGSEGV, SIG_DFL);	/* a sanitizer's handler would end the process by exit() */
	raise(SIGSEGV);
}

static int embedding(const struct cairn_embedding_args *a, void *stream)
{
	const char *how = getenv("CAIRN_BAD_PLUGIN");

	if (how && !strncmp(how, "one_", 4) && a->rows != 99)
		return cairn_offer.cpu->embedding(a, stream);
	if (how && !strcmp(how, "one_crash"))
		crash();
	if (how && (!strcmp(how, "fini_crash") || !strcmp(how, "init_crash")))
		return cairn_offer.cpu->embedding(a, stream);
	if (how && !strcmp(how, "crash"))
		crash();
	if (how && !strcmp(how, "exit"))
		exit(0);
	if (how && !strcmp(how, "hang")) {
		if (write(1, "hanging\n", 8) == 8)
			alarm(60);	/* in case the runner does not kill it */
		for (;;)
			pause();
	}
	return -5;
}

static int crash_at_once(int device)
{
	(void)device;
	crash();
	return 0;
}

/* contains bytes that JSON or XML must escape */
static const char *odd_error(void)
{
	return "a \"quote\", a \\, <a&b>, \xff, \x01 and a new\nline";
}

static struct cairn_impl impl = {
	.size = sizeof(impl), .abi_version = CAIRN_ABI_VERSION, .flags = CAIRN_IMPL_HOST_MEM,
	.name = "bad", .version = "1", .embedding = embedding,
};

/* Poses as a device table: no CAIRN_IMPL_HOST_MEM, and its own functions for memory and streams. */
static void be_a_device(void)
{
	const size_t from = offsetof(struct cairn_impl, device_info);
	const size_t end = offsetof(struct cairn_impl, stream);

	memcpy((char *)&impl + from, (const char *)cairn_offer.host + from, end - from);
	impl.flags = 0;
}

const struct cairn_impl *cairn_impl_get(uint32_t abi_version)
{
	const char *how = getenv("CAIRN_BAD_PLUGIN");

	if (how && !strcmp(how, "refuse"))
		return NULL;
	if (how && !strcmp(how, "version"))
		impl.abi_version = abi_version + 1;
	if (how && !strncmp(how, "built_for_1", 11)) {
		if (abi_version != 1 && strcmp(how, "built_for_1_whatever_is_asked"))
			return NULL;
		impl.abi_version = 1;
		impl.name = strcmp(how, "built_for_1_nameless") ? "vendor" : NULL;
		impl.version = "1.2";
	}
	if (how && !strcmp(how, "quote"))
		impl.name = "a\"b";
	if (how && !strcmp(how, "version_newline"))
		impl.version = "1\n";
	if (how && !strcmp(how, "no_operation"))
		impl.embedding = NULL;
	if (how && !strcmp(how, "no_version"))
		impl.abi_version = 0;
	if (how && !strcmp(how, "no_size"))
		impl.size = 0;
	if (how && !strcmp(how, "no_name"))
		impl.name = NULL;
	if (how && !strcmp(how, "no_comm_error")) {
		impl.comm_open = cairn_offer.cpu->comm_open;
		impl.comm_abort = cairn_offer.cpu->comm_abort;
		impl.comm_close = cairn_offer.cpu->comm_close;
	}
	if (how && !strcmp(how, "fini_crash"))
		impl.fini = crash;
	if (how && !strcmp(how, "init_crash"))
		impl.init = crash_at_once;
	if (how && !strcmp(how, "one_odd_error"))
		impl.last_error = odd_error;
	if (how && !strcmp(how, "load_exit"))
		exit(0);
	if (how && !strcmp(how, "load_crash"))
		crash();
	if (how && !strcmp(how, "load_hang"))
		pause();
	if (how && !strcmp(how, "device"))
		be_a_device();
	return &impl;
}
