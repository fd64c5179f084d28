// SPDX-License-Identifier: Apache-2.0
/*
 * late_memory - device memory that is accessible only while operations run
 *
 * Blocks get addresses of one range in ascending order, and no address is used twice. Gaps between blocks and
 * freed blocks stay closed (inaccessible). A new block has all bits set, and it ends where a page ends.
 * Blocks of host_alloc are always open. An access to closed memory kills the process, with a line that names
 * the cause.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "conformance/late/late.h"

#define ARENA_BYTES	((size_t)1 << 40)	/* size of the address range */
#define PAGE		((size_t)4096)

struct block {
	char *base;
	size_t bytes;		/* as requested; the block ends where its pages end, apart from alignment */
	char *pages;
	size_t span;
	int host;
};

static struct {
	char *base;
	size_t used;
	struct block *blocks;
	size_t num, room;
	volatile int open;
	struct sigaction before;
} arena;

/* Returns the block that contains p .. p + bytes, or NULL; p may be the end of the block. */
static struct block *find_block(const void *p, size_t bytes)
{
	size_t lo = 0, hi = arena.num;
	const char *at = p;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		struct block *b = &arena.blocks[mid];

		if (at < b->base)
			hi = mid;
		else if (at > b->base + b->bytes)
			lo = mid + 1;
		else
			return bytes <= b->bytes - (size_t)(at - b->base) ? b : NULL;
	}
	return NULL;
}

int late_in_arena(const void *p)
{
	return (uintptr_t)p - (uintptr_t)arena.base < ARENA_BYTES;
}

int late_was_given(const void *p)
{
	return (uintptr_t)p - (uintptr_t)arena.base < arena.used;
}

int late_holds(const void *p, size_t bytes, int host)
{
	const struct block *b = find_block(p, bytes);

	return b && b->host == host;
}

void late_open(int open)
{
	for (size_t i = 0; i < arena.num; i++) {
		if (!arena.blocks[i].host)
			mprotect(arena.blocks[i].pages, arena.blocks[i].span,
				 open ? PROT_READ | PROT_WRITE : PROT_NONE);
	}
	arena.open = open;
}

/* Reports the cause, then restores the previous handler, which gets the repeated fault. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	static const char host[] = "late: the host has touched device memory, or freed memory\n";
	static const char op[] = "late: an operation has touched memory that is freed or not allocated\n";

	(void)context;
	if (late_in_arena(info->si_addr)) {
		ssize_t n = arena.open ? write(2, op, sizeof(op) - 1) : write(2, host, sizeof(host) - 1);

		(void)n;
	}
	sigaction(sig, &arena.before, NULL);
}

int late_reserve(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	void *p;

	if (arena.base)
		return 0;
	p = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return cairn_error(ENOMEM, "late: cannot reserve %zu bytes of addresses", ARENA_BYTES);
	arena.base = p;
	sigaction(SIGSEGV, &action, &arena.before);
	return 0;
}

int late_add(void **ptr, size_t bytes, int host)
{
	size_t size = bytes ? (bytes + LATE_ALIGN - 1) / LATE_ALIGN * LATE_ALIGN : LATE_ALIGN;
	size_t span = (size + PAGE - 1) / PAGE * PAGE;
	char *pages = arena.base + arena.used;

	if (arena.num == arena.room) {
		size_t room = arena.room ? 2 * arena.room : 64;
		void *blocks = realloc(arena.blocks, room * sizeof(*arena.blocks));

		if (!blocks)
			return cairn_error(ENOMEM, "late: no memory for %zu blocks", room);
		arena.blocks = blocks;
		arena.room = room;
	}
	if (span < bytes || span + PAGE > ARENA_BYTES - arena.used ||
	    mprotect(pages, span, PROT_READ | PROT_WRITE))
		return cairn_error(ENOMEM, "late: cannot allocate %zu bytes", bytes);
	memset(pages, 0xff, span);
	if (!host && !arena.open)
		mprotect(pages, span, PROT_NONE);
	arena.used += span + PAGE;
	arena.blocks[arena.num++] = (struct block){
		.base = pages + span - size, .bytes = bytes, .pages = pages, .span = span, .host = host,
	};
	*ptr = pages + span - size;
	return 0;
}

int late_remove(void *ptr, int host)
{
	struct block *b = find_block(ptr, 0);

	if (!b || b->base != ptr || b->host != host)
		return cairn_error(EINVAL, "late: %s: the pointer is not from %s",
				   host ? "host_free" : "mem_free",
				   host ? "host_alloc" : "mem_alloc");
	/* remaps the pages: closed, and their memory is returned */
	mmap(b->pages, b->span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	arena.num--;
	memmove(b, b + 1, (size_t)(&arena.blocks[arena.num] - b) * sizeof(*b));
	return 0;
}
