/* SPDX-License-Identifier: Apache-2.0 */
/* peers_folder - where tools/peers.sh puts other libraries: the folder peers beside the program */
#ifndef CAIRN_PEERS_FOLDER_H
#define CAIRN_PEERS_FOLDER_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Writes the path of a file below that folder; "" if it does not fit. */
static inline void cairn_peers_path(char *path, size_t len, const char *file)
{
	ssize_t n = readlink("/proc/self/exe", path, len - 1);
	char *slash;

	path[n > 0 ? n : 0] = 0;
	slash = strrchr(path, '/');
	if (!slash || (size_t)snprintf(slash, len - (size_t)(slash - path), "/peers/%s", file) >=
	    len - (size_t)(slash - path))
		path[0] = 0;
}

#endif
