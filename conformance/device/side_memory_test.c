// SPDX-License-Identifier: Apache-2.0
/* side_memory_test - kept memory is used again and given back; downloads arrive when the stream has ended */
#include "conformance/harness.h"

#include <stdlib.h>
#include <string.h>

#include "conformance/device/side_memory.h"

#define MIB	((size_t)1 << 20)

/* A device whose copies take effect only when a call waits for its stream. */
static struct {
	int allocs, frees, host_allocs, host_frees, syncs, num_copies;
	size_t left;			/* bytes that can still be allocated */
	int no_host_memory, sync_error;
	struct { void *dst; const void *src; size_t bytes; } copies[256];
} device;

static int alloc(void **p, size_t bytes)
{
	if (bytes > device.left)
		return -ENOMEM;
	device.left -= bytes;
	device.allocs++;
	*p = malloc(bytes + sizeof(size_t));
	*(size_t *)*p = bytes;
	*p = (size_t *)*p + 1;
	return 0;
}

static void release(void *p)
{
	device.left += ((size_t *)p)[-1];
	device.frees++;
	free((size_t *)p - 1);
}

static int host_alloc(void **p, size_t bytes)
{
	if (device.no_host_memory)
		return -ENOMEM;
	device.host_allocs++;
	*p = malloc(bytes);
	return 0;
}

static void host_free(void *p)
{
	device.host_frees++;
	free(p);
}

static int copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	(void)kind;
	(void)stream;
	device.copies[device.num_copies].dst = dst;
	device.copies[device.num_copies].src = src;
	device.copies[device.num_copies++].bytes = bytes;
	return 0;
}

static int sync(void *stream)
{
	(void)stream;
	for (int i = 0; i < device.num_copies; i++)
		memcpy(device.copies[i].dst, device.copies[i].src, device.copies[i].bytes);
	device.num_copies = 0;
	device.syncs++;
	return device.sync_error;
}

static const struct cairn_impl impl = {
	.size = sizeof(impl), .mem_alloc = alloc, .mem_free = release, .host_alloc = host_alloc,
	.host_free = host_free, .mem_copy = copy, .stream_sync = sync,
};

static void *get(struct cairn_test *t, size_t bytes)
{
	void *p = NULL;

	EXPECT(t, cairn_side_alloc(&impl, &p, bytes) == 0 && p);
	return p;
}

static void start(int keep)
{
	memset(&device, 0, sizeof(device));
	device.left = 1000 * MIB;
	if (keep)
		cairn_side_memory_keep(&impl);
}

static void blocks_are_kept(struct cairn_test *t)
{
	void *p, *q;

	start(1);
	p = get(t, 5000);
	cairn_side_free(&impl, p, 5000);
	EXPECT(t, device.frees == 0);
	EXPECT(t, get(t, 8192) == p && device.allocs == 1);	/* of the same size: 8 KiB */
	cairn_side_free(&impl, p, 8192);
	q = get(t, 8193);
	EXPECT(t, q != p && device.allocs == 2);
	p = get(t, 100 * MIB);					/* too large to be kept */
	EXPECT(t, device.left == 900 * MIB - 8192 - 16384);
	cairn_side_free(&impl, p, 100 * MIB);
	EXPECT(t, device.frees == 1);
	cairn_side_memory_drop(&impl);
	EXPECT(t, device.frees == 2 && device.allocs == 3);	/* q is still in use */
	cairn_side_free(&impl, q, 8193);
	EXPECT(t, device.frees == 3);
}

static void keeping_has_limits(struct cairn_test *t)
{
	void *p[80];

	start(1);
	for (int i = 0; i < 6; i++)
		p[i] = get(t, 60 * MIB);
	for (int i = 0; i < 6; i++)
		cairn_side_free(&impl, p[i], 60 * MIB);
	EXPECT(t, device.frees == 2);				/* four times 64 MiB are kept */
	device.left = 30 * MIB;
	p[0] = get(t, 20 * MIB);				/* what is kept makes room */
	EXPECT(t, device.frees == 6 && device.allocs == 7);
	cairn_side_free(&impl, p[0], 20 * MIB);
	device.left = 0;
	EXPECT(t, cairn_side_alloc(&impl, &p[0], 1000 * MIB) == -ENOMEM);
	device.left = 1000 * MIB;
	for (int i = 0; i < 80; i++)
		p[i] = get(t, 100);
	for (int i = 0; i < 80; i++)
		cairn_side_free(&impl, p[i], 100);
	cairn_side_memory_drop(&impl);
	EXPECT(t, device.frees == device.allocs);
}

static void copies_wait_once(struct cairn_test *t)
{
	char text[3][8] = { "one", "two", "three" }, got[3][8];
	char *p;

	start(1);
	p = get(t, 24);
	for (int i = 0; i < 3; i++)
		EXPECT(t, cairn_side_upload(&impl, p + 8 * i, text[i], 8, NULL) == 0);
	memset(text, 'x', sizeof(text));			/* the copies no longer need it */
	EXPECT(t, cairn_side_settle(&impl, NULL) == 0 && !strcmp(p + 16, "three"));
	for (int i = 0; i < 3; i++)
		EXPECT(t, cairn_side_download(&impl, got[i], p + 8 * i, 8, NULL) == 0);
	EXPECT(t, device.syncs == 1);
	EXPECT(t, cairn_side_settle(&impl, NULL) == 0 && device.syncs == 2);
	EXPECT(t, !strcmp(got[0], "one") && !strcmp(got[1], "two") && !strcmp(got[2], "three"));
	device.sync_error = -EIO;
	EXPECT(t, cairn_side_download(&impl, got[0], p + 8, 8, NULL) == 0);
	EXPECT(t, cairn_side_settle(&impl, NULL) == -EIO && !strcmp(got[0], "one"));
	device.sync_error = 0;
	EXPECT(t, cairn_side_settle(&impl, NULL) == 0 && !strcmp(got[0], "one"));
	cairn_side_free(&impl, p, 24);
	cairn_side_memory_drop(&impl);
	EXPECT(t, device.host_allocs == 1 && device.host_frees == 1 && device.frees == device.allocs);
}

/* More copies than the staging memory holds, and one that is larger than it. */
static void much_is_copied(struct cairn_test *t)
{
	const size_t bytes = 9 * MIB;
	uint8_t *src = malloc(bytes), *dst = calloc(bytes, 1), *p;

	start(1);
	p = get(t, bytes);
	for (size_t i = 0; i < bytes; i++)
		src[i] = (uint8_t)cairn_rand(t);
	for (size_t at = 0; at < bytes; at += MIB)
		EXPECT(t, cairn_side_upload(&impl, p + at, src + at, MIB, NULL) == 0);
	EXPECT(t, cairn_side_settle(&impl, NULL) == 0 && !memcmp(p, src, bytes));
	for (size_t at = 0; at < bytes; at += 65536)
		EXPECT(t, cairn_side_download(&impl, dst + at, p + at, 65536, NULL) == 0);
	EXPECT(t, cairn_side_settle(&impl, NULL) == 0 && !memcmp(dst, src, bytes));
	memset(p, 0, bytes);
	EXPECT(t, cairn_side_upload(&impl, p, src, bytes, NULL) == 0);
	EXPECT(t, cairn_side_settle(&impl, NULL) == 0 && !memcmp(p, src, bytes));
	cairn_side_free(&impl, p, bytes);
	cairn_side_memory_drop(&impl);
	free(src);
	free(dst);
}

/* Without cairn_side_memory_keep(), for another table, and without pinned memory. */
static void passes_through(struct cairn_test *t)
{
	struct cairn_impl other = impl;
	char got[4] = "";
	void *p;

	start(0);
	p = get(t, 100);
	EXPECT(t, device.left == 1000 * MIB - 100);
	EXPECT(t, cairn_side_upload(&impl, p, "abc", 4, NULL) == 0 && device.host_allocs == 0);
	EXPECT(t, cairn_side_settle(&impl, NULL) == 0);
	cairn_side_free(&impl, p, 100);
	EXPECT(t, device.frees == 1);
	start(1);
	EXPECT(t, cairn_side_alloc(&other, &p, 100) == 0 && device.left == 1000 * MIB - 100);
	cairn_side_free(&other, p, 100);
	EXPECT(t, device.frees == 1);
	device.no_host_memory = 1;
	p = get(t, 100);
	EXPECT(t, cairn_side_upload(&impl, p, "abc", 4, NULL) == 0);
	EXPECT(t, cairn_side_download(&impl, got, p, 4, NULL) == 0);
	EXPECT(t, cairn_side_settle(&impl, NULL) == 0 && !strcmp(got, "abc"));
	cairn_side_free(&impl, p, 100);
	cairn_side_memory_drop(&impl);
	EXPECT(t, device.frees == device.allocs);
}

static const struct cairn_unit units[] = {
	{ "blocks_are_kept", blocks_are_kept },
	{ "keeping_has_limits", keeping_has_limits },
	{ "copies_wait_once", copies_wait_once },
	{ "much_is_copied", much_is_copied },
	{ "passes_through", passes_through },
};

const struct cairn_family cairn_side_memory_family = {
	.stage = "conformance", .name = "side_memory", .units = units, .num_units = ARRAY_SIZE(units),
};
