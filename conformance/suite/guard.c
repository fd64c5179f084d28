// SPDX-License-Identifier: Apache-2.0
#include "conformance/suite/guard.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "primitives/base/error.h"

#define PAGE		((size_t)4096)
#define CANARY		PAGE		/* at least that much memory next to the data */
#define HUGE		((size_t)32 << 20)
#define MAX_GUARDS	256
#define TILE		((size_t)2 << 20)	/* a huge page, which all idle elements of a guard share */
#define STEPS		12	/* in which held data becomes accessible */

#ifndef MADV_COLLAPSE			/* Linux 6.1; glibc 2.36 does not have it */
#define MADV_COLLAPSE	25
#endif

static struct cairn_guard *volatile guards[MAX_GUARDS];
static struct sigaction before;		/* the handler of all other faults */
static __thread sigjmp_buf *way_out;	/* where a fault in cairn_guard_faults() jumps to */

static int is_write(const void *context)
{
#ifdef __x86_64__
	return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1;
#else
	(void)context;
	return 0;
#endif
}

/* Returns the index in stray[] for an address within g, and sets the range to open for it. */
static int side_of(const struct cairn_guard *g, uint8_t *at, uint8_t **range, size_t *bytes)
{
	uint8_t *end = g->inner + g->inner_bytes;

	*bytes = CAIRN_GUARD_BYTES;
	if (at < g->inner || at >= end) {
		*range = at < g->inner ? g->inner - CAIRN_GUARD_BYTES : end;
		return at >= end;
	}
	*range = at - (uintptr_t)at % PAGE;
	if (g->wait) {
		*bytes = g->inner_bytes / STEPS / PAGE * PAGE;
		*bytes = *bytes > PAGE ? *bytes : PAGE;
		if (*range < end - PAGE)	/* leaves the last page */
			end -= PAGE;
	}
	if (*bytes > (size_t)(end - *range))
		*bytes = (size_t)(end - *range);
	return at < g->data ? 0 : at >= g->data + g->bytes ? 1 : 2;
}

/*
 * Records a fault in a guard and opens the range, so that the instruction succeeds when it is repeated. A
 * fault in held memory is not recorded, and in held data it waits first. Any other fault ends
 * cairn_guard_faults() if that is running. Otherwise the handler that was installed before gets the fault,
 * and if it occurs again, it kills the process.
 */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	const int error = errno;
	uint8_t *at = info->si_addr;

	for (int i = 0; info->si_code > 0 && i < MAX_GUARDS; i++) {
		struct cairn_guard *g = guards[i];
		uint8_t *range;
		size_t bytes;
		int side;

		if (!g || at < g->inner - CAIRN_GUARD_BYTES ||
		    at >= g->inner + g->inner_bytes + CAIRN_GUARD_BYTES)
			continue;
		side = side_of(g, at, &range, &bytes);
		if (g->wait && at >= g->inner && at < g->inner + g->inner_bytes) {
			if (side == 2)
				g->wait();
		} else if (!g->stray[side].at) {
			g->stray[side].wrote = is_write(context);
			g->stray[side].at = (uintptr_t)at;
		}
		if (!mprotect(range, bytes, PROT_READ | PROT_WRITE)) {
			errno = error;
			return;
		}
	}
	if (info->si_code > 0 && way_out)
		siglongjmp(*way_out, 1);
	sigaction(sig, &before, NULL);
	before = (struct sigaction){ .sa_handler = SIG_DFL };
	if (info->si_code <= 0)		/* from raise() or kill(): there is no instruction to repeat */
		raise(sig);
}

static void catch_faults(void)
{
	struct sigaction now, ours = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	if (sigaction(SIGSEGV, NULL, &now) || ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault))
		return;
	before = now;
	sigaction(SIGSEGV, &ours, NULL);
}

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* Reserves inaccessible memory for `bytes` bytes in a free slot. Returns the slot or -ENOMEM. */
static int reserve(struct cairn_guard *g, size_t bytes, size_t align)
{
	uint8_t *map;
	int slot = 0;

	memset(g, 0, sizeof(*g));
	while (slot < MAX_GUARDS && guards[slot])
		slot++;
	g->inner_bytes = round_up(bytes + CANARY + align, PAGE);
	map = slot < MAX_GUARDS ? mmap(NULL, g->inner_bytes + 2 * CAIRN_GUARD_BYTES, PROT_NONE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
	if (map == MAP_FAILED)
		return cairn_error(ENOMEM, "host: no memory for %zu guarded bytes", bytes);
	g->inner = map + CAIRN_GUARD_BYTES;
	g->bytes = bytes;
	g->align = align;
	return slot;
}

int cairn_guard_open(struct cairn_guard *g, size_t bytes, size_t align)
{
	int slot = reserve(g, bytes, align);

	if (slot < 0)
		return slot;
	if (mprotect(g->inner, g->inner_bytes, PROT_READ | PROT_WRITE)) {
		cairn_guard_close(g);
		return cairn_error(ENOMEM, "host: no memory for %zu guarded bytes", bytes);
	}
	if (bytes >= HUGE)
		madvise(g->inner, g->inner_bytes, MADV_HUGEPAGE);	/* a hint */
	cairn_guard_place(g, 0, 0);
	guards[slot] = g;
	catch_faults();
	return 0;
}

static uint8_t *page_of(uint8_t *p)
{
	return p - (uintptr_t)p % PAGE;
}

/* Fills the tile with bits of NaN. */
static int fill_tile(int fd)
{
	void *tile = mmap(NULL, TILE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (tile == MAP_FAILED)
		return -1;
	memset(tile, 0xff, TILE);
	return munmap(tile, TILE);
}

/*
 * Maps the same pages, of TILE bytes, over all pages of g. The kernel is asked to make one huge page of them,
 * because mapping gigabytes takes fifteen times as long in small pages. Older kernels refuse that.
 */
static int map_tiles(struct cairn_guard *g)
{
	/* MAP_POPULATE takes a fifth of the time that page faults would take */
	const int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
	int fd = memfd_create("idle", 0), ret = fd < 0 || ftruncate(fd, TILE) || fill_tile(fd);
	uint8_t *end = g->inner + g->inner_bytes;
	int asked = 0;

	for (uint8_t *at = g->inner; !ret && at < end;) {
		size_t offset = (uintptr_t)at % TILE, bytes = TILE - offset;

		if (bytes > (size_t)(end - at))
			bytes = (size_t)(end - at);
		ret = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset) == MAP_FAILED;
		if (!ret && bytes == TILE && !asked++)
			madvise(at, TILE, MADV_COLLAPSE);
		at += bytes;
	}
	if (fd >= 0)
		close(fd);
	return ret;
}

/* Makes the span accessible; with idle elements around it, gives it pages of its own. */
static int open_span(const struct cairn_guard *g, const struct cairn_span *s)
{
	uint8_t *from = page_of(g->data + s->at);
	size_t bytes = round_up((size_t)(g->data + s->at + s->bytes - from), PAGE);

	if (!g->idle)
		return mprotect(from, bytes, PROT_READ | PROT_WRITE);
	/* two spans may share a page: keep the page that the first one has mapped */
	if (s > g->spans && from < g->data + s[-1].at + s[-1].bytes) {
		from += PAGE;
		bytes -= PAGE;
	}
	if (bytes && mmap(from, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
			  0) == MAP_FAILED)
		return -1;
	return 0;
}

int cairn_guard_open_far(struct cairn_guard *g, size_t bytes, size_t align, const struct cairn_span *spans,
			 int num, int idle)
{
	int slot = reserve(g, bytes, align), ret;

	if (slot < 0)
		return slot;
	madvise(g->inner, g->inner_bytes, MADV_NOHUGEPAGE);
	g->spans = malloc((size_t)(num + 1) * sizeof(*spans));
	g->data = g->inner + g->inner_bytes - round_up(bytes, align);
	g->idle = idle;
	ret = idle ? map_tiles(g) : 0;
	for (int i = 0; g->spans && !ret && i < num; i++) {
		g->spans[i] = spans[i];
		ret = open_span(g, &g->spans[i]);
	}
	if (!g->spans || ret) {
		cairn_guard_close(g);
		return cairn_error(ENOMEM, "host: no memory for %zu guarded bytes", bytes);
	}
	g->num_spans = num;
	guards[slot] = g;
	catch_faults();
	return 0;
}

void cairn_guard_place(struct cairn_guard *g, int at_begin, int shifted)
{
	if (g->spans)
		return;
	g->data = g->inner + g->inner_bytes - round_up(g->bytes, g->align);
	if (at_begin)
		g->data = g->inner + (shifted ? g->align : 0);
}

void cairn_guard_place_apart(struct cairn_guard *g)
{
	cairn_guard_place(g, 0, 0);
	if (!g->spans && g->bytes > 16 && g->bytes <= 2 * PAGE && g->bytes % 16 == 0)
		g->data = g->inner + g->inner_bytes - PAGE + 16 - g->bytes;
}

void cairn_guard_hold(struct cairn_guard *g, void (*wait)(void))
{
	if (g->spans || !g->inner)
		return;
	g->wait = wait;
	mprotect(g->inner, g->inner_bytes, PROT_NONE);
}

void cairn_guard_release(struct cairn_guard *g)
{
	if (!g->wait)
		return;
	mprotect(g->inner, g->inner_bytes, PROT_READ | PROT_WRITE);
	g->wait = NULL;
}

/*
 * Sets from[0] .. to[0] to the accessible bytes before span i that belong to no span, and from[1] .. to[1]
 * to those after it.
 */
static void beside(const struct cairn_guard *g, int i, uint8_t *from[2], uint8_t *to[2])
{
	const struct cairn_span *s = &g->spans[i];
	uint8_t *begin = g->data + s->at, *end = begin + s->bytes;

	from[0] = page_of(begin);
	to[0] = begin;
	if (i) {
		uint8_t *last = page_of(g->data + s[-1].at + s[-1].bytes + PAGE - 1);

		from[0] = last > begin ? begin : last > from[0] ? last : from[0];
	}
	from[1] = end;
	to[1] = page_of(end + PAGE - 1);
	if (i + 1 < g->num_spans && to[1] > g->data + s[1].at)
		to[1] = g->data + s[1].at;
}

void cairn_guard_fill(const struct cairn_guard *g, int byte)
{
	const uint8_t *end = g->inner + g->inner_bytes;
	uint8_t *from[2], *to[2];

	for (int i = 0; i < g->num_spans && !g->idle; i++) {
		beside(g, i, from, to);
		memset(from[0], byte, (size_t)(to[0] - from[0]));
		memset(from[1], byte, (size_t)(to[1] - from[1]));
	}
	if (g->spans)
		return;
	memset(g->inner, byte, (size_t)(g->data - g->inner));
	memset(g->data + g->bytes, byte, (size_t)(end - g->data) - g->bytes);
}

static size_t count(const uint8_t *p, const uint8_t *end, int byte)
{
	size_t n = 0;

	for (; p < end; p++)
		n += *p != byte;
	return n;
}

void cairn_guard_count(const struct cairn_guard *g, int byte, size_t *below, size_t *above)
{
	uint8_t *from[2], *to[2];

	*below = *above = 0;
	for (int i = 0; i < g->num_spans && !g->idle; i++) {
		beside(g, i, from, to);
		*below += count(from[0], to[0], byte);
		*above += count(from[1], to[1], byte);
	}
	if (g->spans)
		return;
	*below = count(g->inner, g->data, byte);
	*above = count(g->data + g->bytes, g->inner + g->inner_bytes, byte);
}

void cairn_guard_close(struct cairn_guard *g)
{
	for (int i = 0; i < MAX_GUARDS; i++)
		if (g->inner && guards[i] == g)
			guards[i] = NULL;
	if (g->inner)
		munmap(g->inner - CAIRN_GUARD_BYTES, g->inner_bytes + 2 * CAIRN_GUARD_BYTES);
	free(g->spans);
	memset(g, 0, sizeof(*g));
}

int cairn_guard_faults(void (*fn)(void *arg), void *arg)
{
	sigjmp_buf here;
	int faulted;

	catch_faults();
	way_out = &here;
	faulted = sigsetjmp(here, 1);
	if (!faulted)
		fn(arg);
	way_out = NULL;
	return faulted;
}
