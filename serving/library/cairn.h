/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cairn - the library libcairn: the operation table, models, tokenizers and the engine
 *
 * The table is the interface to the kernels: cairn_table("cuda", CAIRN_ABI_VERSION) returns it, and
 * conformance/abi.h says how its operations are called. Models, tokenizers and the engine have their own
 * headers. A program can call the functions that serving/library/exports.map lists, and the inline ones; all
 * other functions that the installed headers declare are hidden in the library.
 *
 *   cc program.c $(pkg-config --cflags --libs cairn)
 *
 * Versions: the number in libcairn.so.1 changes when a program that was compiled before would not run with
 * the new library, as when a struct of the engine grows. CAIRN_ABI_VERSION is the version of the table, which
 * plug-ins have, too. Within it, tables and argument structs only grow at the end.
 *
 * Errors:  functions return 0 or -errno, and cairn_last_error() has the text (primitives/base/error.h). The
 *          library prints nothing, never exits and handles no signals.
 * Threads: cairn_table() may be called from any thread. CUDA and OpenMP start threads of their own; a process
 *          that has used a table must not call into the library after a fork().
 */
#ifndef CAIRN_H
#define CAIRN_H

#include <stdint.h>

#include "conformance/abi.h"
#include "primitives/base/error.h"
#include "serving/engine/engine.h"
#include "serving/model/model.h"
#include "serving/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Returns a table: "cuda", "cpu" or "ref" (naive references). abi: CAIRN_ABI_VERSION. The table stays valid
 * until the process ends, and every call with a name returns the same one. All members up to graph_destroy
 * are set. An operation that the table lacks is NULL, also one that struct cairn_impl has got since this
 * library was built. Call init(device) once before all others; -ENODEV: there is no such device, or it is no
 * Hopper GPU.
 *
 * NULL, with the error set: an unknown name, a build without CUDA, another version of the table.
 */
const struct cairn_impl *cairn_table(const char *name, uint32_t abi);

/* Returns the library's version, "0.1.0". */
const char *cairn_version(void);

#ifdef __cplusplus
}
#endif

#endif
