// SPDX-License-Identifier: Apache-2.0
/*
 * host_runtime - memory, streams and events of the tables that work on host memory
 *
 * A stream is a dummy: every call has finished when it returns. Graphs are not supported (-EOPNOTSUPP), so
 * that callers launch operations one by one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"

static int host_init(int device)
{
	if (device != 0)
		return cairn_error(ENODEV, "host: device %d: there is only device 0", device);
	return 0;
}

static int host_device_info(struct cairn_device_info *info)
{
	FILE *f = fopen("/proc/cpuinfo", "r");
	char line[256];

	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	snprintf(info->name, sizeof(info->name), "host CPU");
	while (f && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (strncmp(line, "model name", 10) || !colon)
			continue;
		line[strcspn(line, "\n")] = 0;
		snprintf(info->name, sizeof(info->name), "%.60s", colon + 2);
		break;
	}
	if (f)
		fclose(f);
	info->num_sms = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
	info->l2_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE) > 0 ? sysconf(_SC_LEVEL3_CACHE_SIZE) : 32 << 20;
	info->mem_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
	return 0;
}

static int host_alloc(void **ptr, size_t bytes)
{
	void *p = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);

	if (!p)
		return cairn_error(ENOMEM, "host: cannot allocate %zu bytes", bytes);
	*ptr = p;
	return 0;
}

static int host_copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	(void)kind;
	(void)stream;
	if (bytes)
		memmove(dst, src, bytes);
	return 0;
}

static int host_set(void *dst, int byte, size_t bytes, void *stream)
{
	(void)stream;
	if (bytes)
		memset(dst, byte, bytes);
	return 0;
}

static int host_stream_create(void **stream)
{
	static int token;

	*stream = &token;
	return 0;
}

static void host_stream_destroy(void *stream)
{
	(void)stream;
}

static int host_stream_sync(void *stream)
{
	(void)stream;
	return 0;
}

static int host_event_create(void **event)
{
	*event = calloc(1, sizeof(struct timespec));
	return *event ? 0 : cairn_error(ENOMEM, "host: no memory for an event");
}

static int host_event_record(void *event, void *stream)
{
	(void)stream;
	clock_gettime(CLOCK_MONOTONIC, event);
	return 0;
}

static int host_event_sync(void *event)
{
	(void)event;
	return 0;
}

static int host_stream_wait(void *stream, void *event)
{
	(void)stream;
	(void)event;
	return 0;
}

static int host_event_elapsed(float *ms, void *start, void *end)
{
	const struct timespec *a = start, *b = end;

	*ms = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) * 1e-6);
	return 0;
}

static int host_graph_begin(void *stream)
{
	(void)stream;
	return cairn_error(EOPNOTSUPP, "host: no graphs");
}

static int host_graph_end(void *stream, void **graph)
{
	(void)stream;
	(void)graph;
	return cairn_error(EOPNOTSUPP, "host: no graphs");
}

static int host_graph_launch(void *graph, void *stream)
{
	(void)graph;
	(void)stream;
	return cairn_error(EOPNOTSUPP, "host: no graphs");
}

static void host_graph_destroy(void *graph)
{
	(void)graph;
}

const struct cairn_impl cairn_host_runtime = {
	.size = sizeof(struct cairn_impl),
	.abi_version = CAIRN_ABI_VERSION,
	.flags = CAIRN_IMPL_HOST_MEM,
	.name = "host",
	.version = CAIRN_VERSION,
	.init = host_init,
	.device_info = host_device_info,
	.mem_alloc = host_alloc,
	.mem_free = free,
	.host_alloc = host_alloc,
	.host_free = free,
	.mem_copy = host_copy,
	.mem_set = host_set,
	.stream_create = host_stream_create,
	.stream_destroy = host_stream_destroy,
	.stream_sync = host_stream_sync,
	.event_create = host_event_create,
	.event_destroy = free,
	.event_record = host_event_record,
	.event_sync = host_event_sync,
	.event_elapsed = host_event_elapsed,
	.graph_begin = host_graph_begin,
	.graph_end = host_graph_end,
	.graph_launch = host_graph_launch,
	.graph_destroy = host_graph_destroy,
	.stream_wait = host_stream_wait,
};
