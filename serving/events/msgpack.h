/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msgpack - writes the types of MessagePack that KV events use
 *
 * Each number takes the shortest form, as the format's specification recommends. A failed allocation sets
 * `failed`; the bytes are then incomplete.
 */
#ifndef CAIRN_MSGPACK_H
#define CAIRN_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct msgpack {
	uint8_t *data;
	size_t len, room;
	bool failed;
};

static inline void msgpack_bytes(struct msgpack *p, const void *bytes, size_t num)
{
	if (!p->failed && p->room - p->len < num) {
		size_t room = 2 * p->room + num + 256;
		uint8_t *more = realloc(p->data, room);

		if (more) {
			p->data = more;
			p->room = room;
		}
		p->failed = !more;
	}
	if (p->failed)
		return;
	memcpy(p->data + p->len, bytes, num);
	p->len += num;
}

/* Writes a head and then the last `size` bytes of value, the highest first. */
static inline void msgpack_head(struct msgpack *p, uint8_t head, uint64_t value, int size)
{
	uint8_t bytes[9] = { head };

	for (int i = 0; i < size; i++)
		bytes[1 + i] = (uint8_t)(value >> 8 * (size - 1 - i));
	msgpack_bytes(p, bytes, 1 + (size_t)size);
}

static inline void msgpack_nil(struct msgpack *p)
{
	msgpack_head(p, 0xc0, 0, 0);
}

static inline void msgpack_uint(struct msgpack *p, uint64_t v)
{
	if (v < 0x80)
		msgpack_head(p, (uint8_t)v, 0, 0);
	else if (v <= 0xff)
		msgpack_head(p, 0xcc, v, 1);
	else if (v <= 0xffff)
		msgpack_head(p, 0xcd, v, 2);
	else if (v <= 0xffffffff)
		msgpack_head(p, 0xce, v, 4);
	else
		msgpack_head(p, 0xcf, v, 8);
}

static inline void msgpack_double(struct msgpack *p, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	msgpack_head(p, 0xcb, bits, 8);
}

static inline void msgpack_array(struct msgpack *p, uint32_t num)
{
	if (num < 16)
		msgpack_head(p, (uint8_t)(0x90 | num), 0, 0);
	else if (num <= 0xffff)
		msgpack_head(p, 0xdc, num, 2);
	else
		msgpack_head(p, 0xdd, num, 4);
}

/* num: pairs of key and value that follow, below 16 */
static inline void msgpack_map(struct msgpack *p, uint32_t num)
{
	msgpack_head(p, (uint8_t)(0x80 | num), 0, 0);
}

/* s: below 256 bytes */
static inline void msgpack_string(struct msgpack *p, const char *s)
{
	size_t n = strlen(s);

	if (n < 32)
		msgpack_head(p, (uint8_t)(0xa0 | n), 0, 0);
	else
		msgpack_head(p, 0xd9, n, 1);
	msgpack_bytes(p, s, n);
}

#endif
