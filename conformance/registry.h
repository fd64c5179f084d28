/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry - what this build contains: families, tables, mutants; and where its data lies
 */
#ifndef CAIRN_REGISTRY_H
#define CAIRN_REGISTRY_H

#include "abi.h"

struct cairn_family;
struct cairn_mutant;

/*
 * Opens a table: "ref", "cpu", "cuda", "peers", "unfused", or the path of a plug-in (contains a '/').
 * Copies it into *out: members the implementation does not have are NULL, a missing memory and
 * stream block is filled with the built-in one. Does not call init(). A plug-in stays loaded.
 * -EINVAL: no such name; the file does not load, lacks cairn_impl_get or is of another version.
 * -ENODEV: this build has no such table (cuda, peers, unfused in a build without CUDA).
 */
int cairn_impl_open(const char *name_or_path, struct cairn_impl *out);

/* init(device), with the table's own error text taken over. -ENODEV where there is no such device. */
int cairn_impl_start(const struct cairn_impl *impl, int device);
void cairn_impl_stop(const struct cairn_impl *impl);

/* cairn_last_error() of the side that failed: the table's own text if it has one. */
const char *cairn_impl_error(const struct cairn_impl *impl);

extern const struct cairn_impl cairn_impl_ref, cairn_impl_cpu, cairn_impl_cuda, cairn_impl_peers,
	cairn_impl_unfused;
extern const struct cairn_impl cairn_host_runtime, cairn_cuda_runtime;	/* memory blocks only */

/* All families, in build order (primitives, fused, serving, rdma, conformance); NULL ends the list. */
const struct cairn_family *const *cairn_families(void);
const struct cairn_mutant *cairn_mutant_at(int i);	/* NULL past the last */

/*
 * The folder that holds serving/embedded and the golden files: $CAIRN_DATA, else beside the program
 * (a package), else the source tree it was built from.
 */
const char *cairn_data_dir(void);

/* Digest of all sources this program was built from (16 hex digits), and its version. */
const char *cairn_source_digest(void);

/* What the memory of this GPU does by its maker's datasheet, GB/s; 0 where we know no figure. */
double cairn_peak_gbps(const char *gpu);

/*
 * From here on (1), or no longer (0), a profiler that was told to wait counts what is launched
 * (ncu --profile-from-start off).
 */
void cairn_profiler(int on);

#define CAIRN_VERSION "0.1.0"

#endif
