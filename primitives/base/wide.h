/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wide - CAIRN_WIDE marks functions that are also compiled for wider vectors
 *
 * The program still runs on any x86-64: the loader picks the clone that fits the processor. Sanitizer builds
 * have no clones, because the function that picks one runs before the sanitizer is initialised.
 */
#ifndef CAIRN_WIDE_H
#define CAIRN_WIDE_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(CAIRN_SANITIZED)
#define CAIRN_WIDE	__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CAIRN_WIDE
#endif

#endif
