/* SPDX-License-Identifier: Apache-2.0 */
/* program - this program's version, the digest of its sources, and the folder of its data */
#ifndef CAIRN_PROGRAM_H
#define CAIRN_PROGRAM_H

#define CAIRN_VERSION "0.1.0"

/*
 * Returns the folder that holds serving/embedded and the golden files: $CAIRN_DATA if set; else the folder of
 * the program or one of the two above it (for a package or a build folder), or share/cairn in one of these
 * (for an installed program); else the source tree of the build.
 */
const char *cairn_data_dir(void);

/* Returns the digest of all sources that this program was built from, 16 hex digits. */
const char *cairn_source_digest(void);

/* Returns the digest of the sources of the operations alone, 16 hex digits: with another one, measured times
 * of operations no longer hold. */
const char *cairn_kernel_digest(void);

#endif
