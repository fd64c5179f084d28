/* SPDX-License-Identifier: Apache-2.0 */
/* spawn - runs this very program again, or one beside it, and catches what it prints; for tests */
#ifndef CAIRN_SPAWN_H
#define CAIRN_SPAWN_H

#include <stddef.h>

/* argv[0] is ignored. stdout and stderr together, cut at len. Returns the exit status, -signal, or -1000. */
int cairn_spawn(char *const argv[], char *out, size_t len);

/*
 * The program of this name that lies beside this one, with the library of that name there preloaded
 * (NULL: none); argv[0] is ignored. -1001: either is not there.
 */
int cairn_spawn_beside(const char *name, const char *preload, char *const argv[], char *out, size_t len);

/* The path of what lies beside this program; 0: it is not there. */
int cairn_beside(const char *name, char *path, size_t len);

#endif
