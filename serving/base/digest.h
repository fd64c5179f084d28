/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest - a 64-bit digest of bytes, computed about as fast as memory is read
 *
 * It tells apart data that differ by accident. It does not withstand someone who wants two inputs to have the
 * same digest; sodium.h has a keyed hash for that.
 */
#ifndef CAIRN_DIGEST_H
#define CAIRN_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_DIGEST_START	0xcbf29ce484222325u

/* Continues digest h with more bytes. The result depends on how the bytes are divided among the calls. */
uint64_t cairn_digest(uint64_t h, const void *bytes, size_t num);

#endif
