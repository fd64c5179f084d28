/* SPDX-License-Identifier: Apache-2.0 */
/* sha256 - the hash of FIPS 180-4, for names and digests of cached files */
#ifndef CAIRN_SHA256_H
#define CAIRN_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_SHA256_HEX	65	/* hexadecimal digits of a hash, and a zero */

struct cairn_sha256 {
	uint32_t h[8];
	uint8_t block[64];
	uint64_t bytes;			/* added so far */
};

void cairn_sha256_begin(struct cairn_sha256 *s);
void cairn_sha256_add(struct cairn_sha256 *s, const void *data, size_t bytes);
/* Writes the hash of all bytes added in lower-case digits. */
void cairn_sha256_end(struct cairn_sha256 *s, char hex[CAIRN_SHA256_HEX]);

#endif
