/* SPDX-License-Identifier: Apache-2.0 */
/* attn_variant_headers - the sources that a text is compiled with, which the program contains */
#ifndef CAIRN_ATTN_VARIANT_HEADERS_H
#define CAIRN_ATTN_VARIANT_HEADERS_H

#include <stdint.h>

#include <sha2.h>

#define ATTN_VARIANT_HASH	SHA256_DIGEST_STRING_LENGTH	/* hexadecimal digits of a hash, and a zero */

struct attn_variant_header {
	const char *name;		/* as #include has it */
	const char *text;
};

/* The headers of the kernel, and short stand-ins for those of the system and of CUDA. */
extern const struct attn_variant_header attn_variant_headers[];
extern const int attn_variant_num_headers;
/* The sources that the host's compiler gets before and after a text. */
extern const char attn_variant_text_h[], attn_variant_hooks_h[];

/* Adds a text, with its final zero, to a hash. */
void attn_variant_hash_text(SHA2_CTX *s, const char *text);
/* Sets the hash of all headers: a kernel that was compiled with other headers may have other arguments. */
void attn_variant_hash_headers(char hex[ATTN_VARIANT_HASH]);

#endif
