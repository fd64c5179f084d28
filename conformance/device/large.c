// SPDX-License-Identifier: Apache-2.0
#include "conformance/device/large.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_BLOCKS	256
#define HUGE_PAGE	((size_t)2 << 20)

static struct block {
	void *p;		/* NULL: this entry is free */
	size_t bytes;
	int used;
} blocks[MAX_BLOCKS];
static size_t kept;		/* bytes of the blocks that are not used */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the most bytes that are kept: none under AddressSanitizer, which is to see each use after free. */
static size_t most_kept(void)
{
#ifdef __SANITIZE_ADDRESS__
	return 0;
#else
	return (size_t)sysconf(_SC_PHYS_PAGES) / 16 * (size_t)sysconf(_SC_PAGESIZE);
#endif
}

static struct block *find(const void *p)
{
	for (int i = 0; i < MAX_BLOCKS; i++)
		if (blocks[i].p == p)
			return &blocks[i];
	return NULL;
}

/* Returns the smallest kept block of at least `bytes` and at most twice as many, or NULL. */
static struct block *fitting(size_t bytes)
{
	struct block *best = NULL;

	for (struct block *b = blocks; b < blocks + MAX_BLOCKS; b++)
		if (b->p && !b->used && b->bytes >= bytes && b->bytes / 2 <= bytes &&
		    (!best || b->bytes < best->bytes))
			best = b;
	return best;
}

static void release(struct block *b)
{
	kept -= b->bytes;
	free(b->p);
	b->p = NULL;
}

static void release_all(void)
{
	for (struct block *b = blocks; b < blocks + MAX_BLOCKS; b++)
		if (b->p && !b->used)
			release(b);
}

static void *new_block(size_t bytes)
{
	struct block *b = find(NULL);
	void *p;

	if (!b) {
		release_all();
		b = find(NULL);
	}
	p = aligned_alloc(HUGE_PAGE, bytes);
	if (!p)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);	/* a hint: small pages serve as well */
	if (b)					/* else it is freed as other memory is */
		*b = (struct block){ .p = p, .bytes = bytes, .used = 1 };
	return p;
}

void *cairn_large_alloc(size_t bytes)
{
	struct block *b;
	void *p;

	bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	pthread_mutex_lock(&lock);
	b = fitting(bytes);
	if (b) {
		b->used = 1;
		kept -= b->bytes;
		p = b->p;
	} else {
		p = new_block(bytes);
	}
	pthread_mutex_unlock(&lock);
	return p;
}

void cairn_large_free(void *p)
{
	struct block *b;

	if (!p)
		return;
	pthread_mutex_lock(&lock);
	b = find(p);
	if (b) {
		b->used = 0;
		kept += b->bytes;
		if (kept > most_kept())
			release(b);
		else
			madvise(b->p, b->bytes, MADV_FREE);
	}
	pthread_mutex_unlock(&lock);
	if (!b)
		free(p);
}
