/* SPDX-License-Identifier: Apache-2.0 */
/* spawn - runs this very program again and catches what it prints; for tests of the command line */
#ifndef CAIRN_SPAWN_H
#define CAIRN_SPAWN_H

#include <stddef.h>

/* argv[0] is ignored. stdout and stderr together, cut at len. Returns the exit status, -signal, or -1000. */
int cairn_spawn(char *const argv[], char *out, size_t len);

#endif
