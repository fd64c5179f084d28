// SPDX-License-Identifier: Apache-2.0
/*
 * kv_model - draws lists of operations and shrinks a failing one
 *
 * Shrinking is delta debugging: it leaves out each half, each quarter, ... of the list, down to single
 * operations, and keeps any shorter list that still fails; then it makes the numbers small. It ends when a
 * whole round has removed no operation, so that every operation left is needed.
 */
#include "serving/kv/kv_model.h"

#include <stdio.h>
#include <string.h>

static uint64_t draw(uint64_t *seed)
{
	uint64_t z = (*seed += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

void kv_model_draw(const struct kv_model *m, struct kv_op *ops, int n, uint64_t *seed)
{
	for (int i = 0; i < n; i++) {
		uint64_t x = draw(seed), y = draw(seed);

		ops[i] = (struct kv_op) {
			.what = (uint8_t)(x % (uint64_t)m->num_ops),
			.a = (uint32_t)(x >> 32),
			.b = (uint32_t)y,
			.c = (uint32_t)(y >> 32),
		};
	}
}

/* Returns whether the list fails; if so, sets *n to the length up to the failure. */
static int fails(const struct kv_model *m, const struct kv_op *ops, int *n)
{
	char why[512];
	int at = m->run(ops, *n, why, sizeof(why));

	if (at == *n)
		return 0;
	*n = at + 1;
	return 1;
}

static int leave_out(const struct kv_model *m, struct kv_op *ops, int n, int piece)
{
	static struct kv_op rest[1 << 16];

	for (int at = n - piece; at > -piece; at -= piece) {
		int from = at < 0 ? 0 : at, kept = n - (at + piece - from), m_len = kept;

		memcpy(rest, ops, (size_t)from * sizeof(*ops));
		memcpy(rest + from, ops + at + piece, (size_t)(n - at - piece) * sizeof(*ops));
		if (kept > 0 && fails(m, rest, &m_len)) {
			memcpy(ops, rest, (size_t)m_len * sizeof(*ops));
			n = m_len;
			if (at > n)
				at = n;
		}
	}
	return n;
}

static void make_small(const struct kv_model *m, struct kv_op *ops, int n)
{
	for (int i = 0; i < n; i++) {
		uint32_t *numbers[] = { &ops[i].a, &ops[i].b, &ops[i].c };

		for (int k = 0; k < 3; k++) {
			for (uint32_t to = 0; to < 8 && *numbers[k] > to; to++) {
				uint32_t was = *numbers[k];
				int len = n;

				*numbers[k] = to;
				if (fails(m, ops, &len) && len == n)
					break;
				*numbers[k] = was;
			}
		}
	}
}

int kv_model_shrink(const struct kv_model *m, struct kv_op *ops, int n)
{
	int before, rounds = 0;

	if (n > 1 << 16 || !fails(m, ops, &n))
		return n;
	do {
		before = n;
		for (int piece = n / 2; piece > 0; piece /= 2)
			n = leave_out(m, ops, n, piece);
		make_small(m, ops, n);
	} while (n < before && ++rounds < 20);
	return n;
}

void kv_model_print(const struct kv_model *m, const struct kv_op *ops, int n, char *text, size_t len)
{
	char why[512] = "no failure";
	size_t at = 0;

	m->run(ops, n, why, sizeof(why));
	for (int i = 0; i < n && at < len; i++)
		at += (size_t)snprintf(text + at, len - at, "{ %d /* %s */, %u, %u, %u },\n", ops[i].what,
				       m->ops[ops[i].what], ops[i].a, ops[i].b, ops[i].c);
	if (at < len)
		snprintf(text + at, len - at, "%s: %s", m->name, why);
}
