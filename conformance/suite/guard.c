// SPDX-License-Identifier: Apache-2.0
#include "conformance/suite/guard.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "primitives/base/error.h"

#define PAGE		((size_t)4096)
#define CANARY		PAGE		/* at least that much memory next to the data */
#define HUGE		((size_t)32 << 20)
#define MAX_GUARDS	128

static struct cairn_guard *volatile guards[MAX_GUARDS];
static struct sigaction before;		/* what other faults do */

static int is_write(const void *context)
{
#ifdef __x86_64__
	return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1;
#else
	(void)context;
	return 0;
#endif
}

/*
 * Records the fault in its guard and opens the range, so that the instruction succeeds when it is repeated.
 * Another fault is left to the action that was installed before, or kills the process if it occurs again.
 */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	uint8_t *at = info->si_addr;

	for (int i = 0; info->si_code > 0 && i < MAX_GUARDS; i++) {
		struct cairn_guard *g = guards[i];
		uint8_t *range;
		int above;

		if (!g || at < g->inner - CAIRN_GUARD_BYTES ||
		    at >= g->inner + g->inner_bytes + CAIRN_GUARD_BYTES)
			continue;
		above = at >= g->inner;
		range = above ? g->inner + g->inner_bytes : g->inner - CAIRN_GUARD_BYTES;
		if (!g->stray[above].at) {
			g->stray[above].wrote = is_write(context);
			g->stray[above].at = (uintptr_t)at;
		}
		if (!mprotect(range, CAIRN_GUARD_BYTES, PROT_READ | PROT_WRITE))
			return;
	}
	sigaction(sig, &before, NULL);
	before = (struct sigaction){ .sa_handler = SIG_DFL };
	if (info->si_code <= 0)		/* sent by raise() or kill(): no instruction repeats it */
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

int cairn_guard_open(struct cairn_guard *g, size_t bytes, size_t align)
{
	uint8_t *map;
	size_t span;
	int slot = 0;

	memset(g, 0, sizeof(*g));
	while (slot < MAX_GUARDS && guards[slot])
		slot++;
	g->inner_bytes = round_up(bytes + CANARY + align, PAGE);
	span = g->inner_bytes + 2 * CAIRN_GUARD_BYTES;
	map = slot < MAX_GUARDS ? mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
				       -1, 0) : MAP_FAILED;
	if (map == MAP_FAILED)
		return cairn_error(ENOMEM, "host: no memory for %zu guarded bytes", bytes);
	if (mprotect(map + CAIRN_GUARD_BYTES, g->inner_bytes, PROT_READ | PROT_WRITE)) {
		munmap(map, span);
		return cairn_error(ENOMEM, "host: no memory for %zu guarded bytes", bytes);
	}
	g->inner = map + CAIRN_GUARD_BYTES;
	if (bytes >= HUGE)
		madvise(g->inner, g->inner_bytes, MADV_HUGEPAGE);	/* a hint */
	g->bytes = bytes;
	g->align = align;
	cairn_guard_place(g, 0);
	guards[slot] = g;
	catch_faults();
	return 0;
}

void cairn_guard_place(struct cairn_guard *g, int at_begin)
{
	g->data = g->inner + g->inner_bytes - round_up(g->bytes, g->align);
	if (at_begin)
		g->data = g->inner + (uintptr_t)g->data % 64;
}

void cairn_guard_fill(const struct cairn_guard *g, int byte)
{
	const uint8_t *end = g->inner + g->inner_bytes;

	memset(g->inner, byte, (size_t)(g->data - g->inner));
	memset(g->data + g->bytes, byte, (size_t)(end - g->data) - g->bytes);
}

void cairn_guard_count(const struct cairn_guard *g, int byte, size_t *below, size_t *above)
{
	const uint8_t *end = g->inner + g->inner_bytes;

	*below = *above = 0;
	for (const uint8_t *p = g->inner; p < g->data; p++)
		*below += *p != byte;
	for (const uint8_t *p = g->data + g->bytes; p < end; p++)
		*above += *p != byte;
}

void cairn_guard_close(struct cairn_guard *g)
{
	for (int i = 0; i < MAX_GUARDS; i++)
		if (g->inner && guards[i] == g)
			guards[i] = NULL;
	if (g->inner)
		munmap(g->inner - CAIRN_GUARD_BYTES, g->inner_bytes + 2 * CAIRN_GUARD_BYTES);
	memset(g, 0, sizeof(*g));
}
