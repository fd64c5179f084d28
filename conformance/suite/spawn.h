/* SPDX-License-Identifier: Apache-2.0 */
/* spawn - for tests: runs this program, or another one in its directory, and captures its output */
#ifndef CAIRN_SPAWN_H
#define CAIRN_SPAWN_H

#include <stddef.h>

/*
 * Runs this program with the arguments argv[1..]. out gets stdout and stderr, truncated to len bytes. Returns
 * the exit status, -signal, or -1000 if the program could not be started.
 */
int cairn_spawn(char *const argv[], char *out, size_t len);

/*
 * As cairn_spawn(), for program `name` in this program's directory, preloading library `preload` from there
 * (NULL: none). Returns -1001 if either file is missing.
 */
int cairn_spawn_beside(const char *name, const char *preload, char *const argv[], char *out, size_t len);

/* As cairn_spawn_beside(), for this program, with `dir` as its directory for temporary files. */
int cairn_spawn_in(const char *dir, const char *preload, char *const argv[], char *out, size_t len);

/* Writes the path of a file in this program's directory; returns 0 if there is no such file. */
int cairn_beside(const char *name, char *path, size_t len);

#endif
