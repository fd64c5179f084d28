/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sodium - the functions of libsodium that the control channel needs, looked up at run time
 *
 * The prototypes and sizes are those of libsodium 1.0.18, whose ABI has been stable since (libsodium.so.23
 * and later). Without the library, the functions that need it return -EOPNOTSUPP.
 */
#ifndef CAIRN_SODIUM_H
#define CAIRN_SODIUM_H

#include <stddef.h>

#define SODIUM_KEY_BYTES	32	/* of all keys here */
#define SODIUM_HEADER_BYTES	24	/* of a secretstream */
#define SODIUM_FRAME_BYTES	17	/* that a secretstream adds to a message */
#define SODIUM_HASH_KEY_BYTES	16	/* of a shorthash */
#define SODIUM_TAG_MESSAGE	0
#define SODIUM_TAG_FINAL	3

/* crypto_secretstream_xchacha20poly1305_state */
struct sodium_stream {
	unsigned char key[32], nonce[12], pad[8];
};

#define SODIUM_FUNCTIONS(F)									\
	F(int, sodium_init, (void))								\
	F(void, sodium_memzero, (void *bytes, size_t num))					\
	F(int, crypto_kx_keypair, (unsigned char *pk, unsigned char *sk))			\
	F(int, crypto_kx_client_session_keys, (unsigned char *rx, unsigned char *tx,		\
		const unsigned char *client_pk, const unsigned char *client_sk,			\
		const unsigned char *server_pk))						\
	F(int, crypto_kx_server_session_keys, (unsigned char *rx, unsigned char *tx,		\
		const unsigned char *server_pk, const unsigned char *server_sk,			\
		const unsigned char *client_pk))						\
	F(void, randombytes_buf, (void *bytes, size_t num))					\
	/* SipHash-2-4: 8 bytes, under a key of SODIUM_HASH_KEY_BYTES */			\
	F(int, crypto_shorthash, (unsigned char *out, const unsigned char *in,			\
		unsigned long long in_bytes, const unsigned char *key))				\
	F(int, crypto_generichash, (unsigned char *out, size_t out_bytes, const unsigned char *in, \
		unsigned long long in_bytes, const unsigned char *key, size_t key_bytes))	\
	F(int, crypto_secretstream_xchacha20poly1305_init_push, (struct sodium_stream *s,	\
		unsigned char *header, const unsigned char *key))				\
	F(int, crypto_secretstream_xchacha20poly1305_init_pull, (struct sodium_stream *s,	\
		const unsigned char *header, const unsigned char *key))				\
	F(int, crypto_secretstream_xchacha20poly1305_push, (struct sodium_stream *s,		\
		unsigned char *c, unsigned long long *c_bytes, const unsigned char *m,		\
		unsigned long long m_bytes, const unsigned char *ad, unsigned long long ad_bytes, \
		unsigned char tag))								\
	F(int, crypto_secretstream_xchacha20poly1305_pull, (struct sodium_stream *s,		\
		unsigned char *m, unsigned long long *m_bytes, unsigned char *tag,		\
		const unsigned char *c, unsigned long long c_bytes, const unsigned char *ad,	\
		unsigned long long ad_bytes))

struct sodium {
#define F(type, name, args)	type (*name) args;
	SODIUM_FUNCTIONS(F)
#undef F
};

/* Loads the library once. -EOPNOTSUPP: it is not there, or lacks a function. */
int sodium_load(const struct sodium **out);

#endif
