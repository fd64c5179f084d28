/* SPDX-License-Identifier: Apache-2.0 */
/*
 * large - large blocks of host memory, reused from case to case
 *
 * The kernel zeroes every page that a process touches for the first time. A large case touches gigabytes, so
 * that took more processor time than judging the case. Blocks that were freed are therefore kept, up to a
 * sixteenth of the machine's memory; the kernel may take back their pages when it needs them.
 */
#ifndef CAIRN_LARGE_H
#define CAIRN_LARGE_H

#include <stddef.h>

/* Returns a block with undefined contents, aligned to 2 MiB, or NULL if there is no memory. */
void *cairn_large_alloc(size_t bytes);

/* Frees a block of cairn_large_alloc(), or of malloc(); NULL is ignored. */
void cairn_large_free(void *p);

#endif
