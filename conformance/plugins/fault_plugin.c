// SPDX-License-Identifier: Apache-2.0
/*
 * fault_plugin - the cpu table on a device that fails on demand
 *
 * Before each pass the plug-in reads the file that $CAIRN_FAULT names, if there is one:
 *
 *   slow MS    this pass and all later ones take MS milliseconds longer, until the file changes
 *   error      the operation fails, as a launch does after a sticky device error
 *   crash      the process dies by SIGSEGV, as in a driver
 *   hang       the pass never returns
 *   nan        the pass computes with NaN
 *   late MS    this pass takes MS milliseconds longer
 *
 * Every fault except `slow` occurs once, because the plug-in removes the file before it causes the fault.
 *
 * If $CAIRN_FAULT_LOAD is set, each copy to the device takes that many milliseconds longer, so that a model
 * loads slowly. $CAIRN_FAULT_PCI is the PCI address of the device; without it the device has none.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/abi.h"
#include "conformance/tables/offer.h"

static const char *last_error(void)
{
	return "the device has failed, as it was told to";
}

/* The members for memory, streams and graphs; a table has all of them or none. */
#define MEMORY	offsetof(struct cairn_impl, device_info)
#define END	offsetof(struct cairn_impl, stream)

static int slow_copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	if (kind == CAIRN_COPY_TO_DEVICE)
		usleep((useconds_t)atoi(getenv("CAIRN_FAULT_LOAD")) * 1000);
	return cairn_offer.host->mem_copy(dst, src, bytes, kind, stream);
}

static int pci_bus_id(char *id, size_t len)
{
	snprintf(id, len, "%s", getenv("CAIRN_FAULT_PCI"));
	return 0;
}

static int embedding(const struct cairn_embedding_args *a, void *stream)
{
	const char *path = getenv("CAIRN_FAULT");
	FILE *f = path ? fopen(path, "r") : NULL;
	char word[16] = "";
	int ms = 0, ret;

	if (f) {
		if (fscanf(f, "%15s %d", word, &ms) < 1)
			word[0] = 0;
		fclose(f);
	}
	if (word[0] && strcmp(word, "slow"))
		remove(path);
	if (!strcmp(word, "slow") || !strcmp(word, "late"))
		usleep((useconds_t)ms * 1000);
	else if (!strcmp(word, "error"))
		return -EIO;
	else if (!strcmp(word, "crash") && signal(SIGSEGV, SIG_DFL) != SIG_ERR)
		raise(SIGSEGV);
	while (!strcmp(word, "hang"))
		pause();
	ret = cairn_offer.cpu->embedding(a, stream);
	if (!ret && !strcmp(word, "nan"))
		memset(a->out, 0xff, (size_t)a->rows * (size_t)a->dim * (a->dtype ? 2 : 4));
	return ret;
}

const struct cairn_impl *cairn_impl_get(uint32_t abi_version)
{
	static struct cairn_impl impl;

	impl = *cairn_offer.cpu;
	impl.name = "fault";
	impl.embedding = embedding;
	impl.last_error = last_error;
	if (getenv("CAIRN_FAULT_LOAD")) {
		memcpy((char *)&impl + MEMORY, (const char *)cairn_offer.host + MEMORY, END - MEMORY);
		impl.stream_wait = cairn_offer.host->stream_wait;
		impl.mem_copy = slow_copy;
	}
	if (getenv("CAIRN_FAULT_PCI"))
		impl.pci_bus_id = pci_bus_id;
	/* without decode_step, every pass calls embedding() */
	impl.decode_step = NULL;
	impl.decode_step_workspace = NULL;
	return abi_version == CAIRN_ABI_VERSION ? &impl : NULL;
}
