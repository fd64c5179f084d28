/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables - opens an implementation by name: one of those this build contains, or a plug-in
 */
#ifndef CAIRN_TABLES_H
#define CAIRN_TABLES_H

#include "conformance/abi.h"

/*
 * Opens a table: "ref", "cpu", "cuda", "peers", "flashinfer", "unfused", "ladder1" to "ladder5",
 * "cuda:ladder1" to "cuda:ladder4", or the path of a plug-in (contains a '/'). Copies it into *out. Members
 * that the implementation lacks are NULL, except those for memory and streams, which get the built-in ones.
 * Does not call init(). A plug-in stays loaded.
 * -EINVAL: no such name; the file does not load, lacks cairn_impl_get or has another version.
 * -ENODEV: this build has no such table (all but ref and cpu in a build without CUDA).
 */
int cairn_impl_open(const char *name_or_path, struct cairn_impl *out);

/* Calls init(device). -ENODEV: there is no such device. cairn_impl_error() has the text. */
int cairn_impl_start(const struct cairn_impl *impl, int device);
void cairn_impl_stop(const struct cairn_impl *impl);

/* Returns the text of the last failure: the table's own if it has one, else cairn_last_error(). */
const char *cairn_impl_error(const struct cairn_impl *impl);

/*
 * Returns whether the bits of the table's operation at offset `op` may vary from call to call. Only those of
 * cuDNN's attn_bwd may, because its fastest algorithm is not deterministic. The values are judged in any
 * case.
 */
int cairn_impl_bits_vary(const struct cairn_impl *impl, size_t op);

/*
 * Returns whether the table's operation at offset `op`, where the contract fails it, is judged by the
 * family's peer_exact and peer_judge (harness.h), because it is another library's kernel that cannot keep
 * the contract. Only FlashInfer's rmsnorm, sample and mla_decode are, for which fi_rows.h, fi_sample.h and
 * fi_mla.h in conformance/peers have the reasons, and the gemm_w4 of `unfused`, which rounds weights to 16
 * bits.
 */
int cairn_impl_has_own_rules(const struct cairn_impl *impl, size_t op);

extern const struct cairn_impl cairn_impl_ref, cairn_impl_cpu, cairn_impl_cuda, cairn_impl_peers,
	cairn_impl_flashinfer, cairn_impl_unfused, cairn_impl_ladder[5];
/* Makes table `name`, if it is one of cuda:ladder1 to cuda:ladder4. Returns whether it is. */
int cairn_impl_with_step(const char *name, struct cairn_impl *out);

extern const struct cairn_impl cairn_host_runtime, cairn_cuda_runtime;	/* only the memory and stream block */

/* Returns the memory bandwidth, GB/s, in the datasheet of the GPU with this name; 0 if it is unknown. */
double cairn_peak_gbps(const char *gpu);

/* Starts (1) or stops (0) a profiler that was started with ncu --profile-from-start off. */
void cairn_profiler(int on);

#endif
