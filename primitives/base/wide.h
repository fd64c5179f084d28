/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wide - CAIRN_WIDE: the program starts on any x86-64, functions so marked are built for wider vectors too
 *
 * Not with a sanitizer: what chooses among the clones runs before that is ready.
 */
#ifndef CAIRN_WIDE_H
#define CAIRN_WIDE_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(CAIRN_SANITIZED)
#define CAIRN_WIDE	__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CAIRN_WIDE
#endif

#endif
