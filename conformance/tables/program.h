/* SPDX-License-Identifier: Apache-2.0 */
/* program - this program's version, the digest of its sources, and where its data lies */
#ifndef CAIRN_PROGRAM_H
#define CAIRN_PROGRAM_H

#define CAIRN_VERSION "0.1.0"

/*
 * The folder that holds serving/embedded and the golden files: $CAIRN_DATA; else the folder of the program
 * or up to two folders above it (a package, a build folder); else the source tree that the program was built
 * from.
 */
const char *cairn_data_dir(void);

/* Digest of all sources this program was built from, 16 hex digits. */
const char *cairn_source_digest(void);

#endif
