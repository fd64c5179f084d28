// SPDX-License-Identifier: Apache-2.0
/*
 * transport_cases.c - cases for every back end in which nothing fails
 *
 * Unless a case says otherwise, rank 0 sends; rank 1 checks and answers. Slot 0 carries the sender's
 * signals, slot 1 the answers. Payloads are checked in full, with the bytes around them, as soon as their
 * signal is seen.
 */
#include "rdma/transport_cases/transport_end.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HALF	(128u << 10)	/* bytes of each half of the memory in most cases */

/*
 * Lengths around cache lines, pages and the path's message sizes (1024, 4096), and lengths that just fill the
 * segments of inline data (12, 28, 44, 60).
 */
static const uint32_t lengths[] = {
	1, 2, 3, 4, 7, 8, 9, 12, 13, 15, 16, 17, 28, 29, 31, 32, 33, 44, 60, 63, 64, 65, 127, 128, 129,
		255, 256, 257,
	511, 512, 513, 1000, 1023, 1024, 1025, 2047, 2049, 4095, 4096, 4097, 8191, 8193, 16385, 65535, 65537,
};
#define NUM_LENGTHS	(sizeof(lengths) / sizeof(lengths[0]))

/* Each round puts one payload, with a length from the list and at an unaligned offset, and is answered. */
static void payload_before_signal(struct end *e)
{
	uint64_t rounds = e->plan->quick ? 3 * NUM_LENGTHS : 12 * NUM_LENGTHS, i;

	if (e->plan->memory == CAIRN_MEMORY_DEVICE)
		rounds = 6 * NUM_LENGTHS;
	NEED(e, !end_open(e, HALF));
	for (i = 1; i <= rounds; i++) {
		uint64_t bytes = lengths[end_random(e, NUM_LENGTHS)];
		uint64_t room = HALF - bytes - 2 * GUARD, from = GUARD + end_random(e, room);
		uint64_t to = GUARD + end_random(e, room);

		if (e->rank) {
			NEED(e, !end_wait(e, 0, 0, i));
			NEED(e, end_check(e, HALF + to, bytes, i));
			end_set(e, HALF + to, 0xee, bytes);
			NEED(e, !end_signal(e, 0, 1, i, 0));
			continue;
		}
		end_fill(e, from, bytes, i);
		NEED(e, !end_put(e, 0, from, to, bytes, 0, i));
		NEED(e, !end_wait(e, 0, 1, i));
	}
}

/* Two rounds in flight use two places alternately, so their payloads must never be mixed. */
static void no_torn_reads(struct end *e)
{
	uint64_t rounds = e->plan->quick ? 60 : e->plan->memory == CAIRN_MEMORY_DEVICE ? 200 : 500, i;
	const uint64_t bytes = 4096;

	NEED(e, !end_open(e, HALF));
	for (i = 1; i <= rounds; i++) {
		uint64_t place = GUARD + (i & 1) * (bytes + 2 * GUARD);

		if (!e->rank) {
			end_fill(e, place, bytes, i);
			NEED(e, !end_put(e, 0, place, place, bytes, 0, i));
			NEED(e, i < 2 || !end_wait(e, 0, 1, i - 1));	/* one round ahead of the checker */
			continue;
		}
		NEED(e, !end_wait(e, 0, 0, i));
		NEED(e, end_check(e, HALF + place, bytes, i));
		NEED(e, !end_signal(e, 0, 1, i, 0));
	}
	NEED(e, !end_barrier(e));
}

/* The word arrives with its signal, in both directions. */
static void words(struct end *e)
{
	uint64_t rounds = e->plan->quick ? 60 : 500, i;
	struct cairn_signal s;

	NEED(e, !end_open(e, 4096));
	for (i = 1; i <= rounds; i++) {
		if (!e->rank)
			NEED(e, !end_signal(e, 0, 0, i, i * 0x9e3779b97f4a7c15u));
		NEED(e, !e->table->wait(e->c[0], (uint32_t)!e->rank, i, WAIT_MS, &s));
		NEED(e, s.value == i);
		NEED(e, s.word == (e->rank ? i * 0x9e3779b97f4a7c15u : ~(i * 0x9e3779b97f4a7c15u)));
		if (e->rank)
			NEED(e, !end_signal(e, 0, 1, i, ~s.word));
	}
}

/* Thousands of puts before the first wait. The receiver checks all payloads that the value it sees covers. */
static void outstanding(struct end *e)
{
	uint64_t num = e->plan->quick ? 200 : 4000, cell = 200, i, k;
	struct cairn_signal s;

	NEED(e, !end_open(e, num * cell + GUARD));
	for (i = 0; i < num && !e->rank; i++)
		end_fill(e, GUARD + i * cell, cell - 2 * GUARD, i + 1);
	NEED(e, !end_barrier(e));
	for (i = 0; i < num && !e->rank; i++)
		NEED(e, !end_put(e, 0, GUARD + i * cell, GUARD + i * cell, cell - 2 * GUARD, 0, i + 1));
	for (i = 0; i < num && e->rank; i = s.value) {
		NEED(e, !e->table->wait(e->c[0], 0, i + 1, WAIT_MS, &s));
		NEED(e, s.value > i && s.value <= num);
		for (k = i; k < s.value; k++)
			NEED(e, end_check(e, e->bytes + GUARD + k * cell, cell - 2 * GUARD, k + 1));
	}
	WANT(e, !e->table->flush(e->c[0], WAIT_MS));
	NEED(e, !end_barrier(e));
}

/* More puts than 16 bits can count, over many laps of every ring. Each window of puts is answered once. */
static void index_wraps(struct end *e)
{
	uint64_t num = e->plan->quick ? 600 : 70000;
	uint64_t window = 256, i, at, w;

	if (e->plan->memory == CAIRN_MEMORY_DEVICE)
		num = 5000;
	NEED(e, !end_open(e, window * 8));
	for (i = 0; i < window && !e->rank; i++)
		end_write(e, i * 8, (w = i * 77, &w), 8);
	for (i = 0; i < num; i++) {
		at = i % window;
		if (!e->rank)
			NEED(e, !end_put(e, 0, at * 8, (window - 1 - at) * 8, 8, 0, i + 1));
		if (at != window - 1 && i != num - 1)
			continue;
		if (e->rank) {
			NEED(e, !end_wait(e, 0, 0, i + 1));
			end_read(e, e->bytes + (window - 1 - at) * 8, &w, 8);
			NEED(e, w == at * 77);
			NEED(e, !end_signal(e, 0, 1, i + 1, 0));
		} else {
			NEED(e, !end_wait(e, 0, 1, i + 1));
		}
	}
}

static void sizes(struct end *e)
{
	uint64_t n, i = 0;
	int k;

	NEED(e, !end_open(e, e->plan->big + 2 * GUARD));
	for (n = 1; n <= e->plan->big; n *= n < 4096 ? 2 : 16)
		for (k = -1; k <= 1; k++) {
			uint64_t bytes = n + (uint64_t)(int64_t)k;

			if (bytes > e->plan->big)
				continue;
			i++;
			if (!e->rank) {
				end_fill(e, GUARD, bytes, i);
				NEED(e, !end_put(e, 0, GUARD, GUARD, bytes, 0, i));
				NEED(e, !end_wait(e, 0, 1, i));
				continue;
			}
			NEED(e, !end_wait(e, 0, 0, i));
			NEED(e, end_check(e, e->bytes + GUARD, bytes, i));
			end_set(e, e->bytes + GUARD, 0xee, bytes);
			NEED(e, !end_signal(e, 0, 1, i, 0));
		}
}

/* Two channels between the same ends: the payloads and signals of one do not affect the other. */
static void two_channels(struct end *e)
{
	uint64_t rounds = e->plan->quick ? 30 : 300, i;
	struct cairn_signal s;
	int c;

	NEED(e, !end_open(e, HALF));
	for (i = 1; i <= rounds; i++) {
		for (c = 0; c < 2 && !e->rank; c++) {
			end_fill(e, GUARD + (uint64_t)c * 4096, 1000, 2 * i + (unsigned)c);
			NEED(e, !end_put(e, c, GUARD + (uint64_t)c * 4096, GUARD + (uint64_t)c * 4096,
					 1000, 0,
					 c ? 3 * i : i));
		}
		for (c = 1; c >= 0; c--) {
			if (e->rank) {
				NEED(e, !e->table->wait(e->c[c], 0, c ? 3 * i : i, WAIT_MS, &s));
				NEED(e, s.value == (c ? 3 * i : i));
				NEED(e, end_check(e, HALF + GUARD + (uint64_t)c * 4096, 1000,
						  2 * i + (unsigned)c));
				NEED(e, !end_signal(e, c, 1, i, 0));
			} else {
				NEED(e, !end_wait(e, c, 1, i));
			}
		}
	}
}

/* Both ends put a window at the same time and wait for the other's. */
static void both_ways(struct end *e)
{
	uint64_t rounds = e->plan->quick ? 10 : 50, i, k;
	const uint64_t num = 16, cell = 512;

	NEED(e, !end_open(e, HALF));
	for (i = 0; i < rounds; i++) {
		for (k = 0; k < num; k++) {
			end_fill(e, GUARD + k * cell, 300, i * num + k + 1000 * (unsigned)e->rank);
			NEED(e, !end_put(e, 0, GUARD + k * cell, GUARD + k * cell, 300, 0, i * num + k + 1));
		}
		NEED(e, !end_wait(e, 0, 0, (i + 1) * num));
		for (k = 0; k < num; k++)
			NEED(e, end_check(e, HALF + GUARD + k * cell, 300,
					  i * num + k + 1000 * (unsigned)!e->rank));
		NEED(e, !e->table->flush(e->c[0], WAIT_MS));
		NEED(e, !end_barrier(e));
	}
}

/* After a flush the source may be changed, and payloads put without a signal have arrived. */
static void flush_is_done(struct end *e)
{
	uint64_t rounds = e->plan->quick ? 10 : 40, i, n;

	if (!end_has(e, CAIRN_TRANSPORT_ONE_SIDED, "puts progress only while the other end waits"))
		return;
	NEED(e, !end_open(e, HALF));
	for (i = 1; i <= rounds; i++) {
		n = i % 2 ? HALF - 2 * GUARD : 1 + end_random(e, 1000);
		if (!e->rank) {
			end_fill(e, GUARD, n, i);
			NEED(e, !end_put(e, 0, GUARD, GUARD, n, CAIRN_NO_SIGNAL, 0));
			NEED(e, !e->table->flush(e->c[0], WAIT_MS));
			end_set(e, GUARD, 0x55, n);
		}
		NEED(e, !end_barrier(e));
		if (e->rank) {
			NEED(e, end_check(e, HALF + GUARD, n, i));
			end_set(e, HALF + GUARD, 0xee, n);
		}
		NEED(e, !end_barrier(e));
	}
}

/* Values continue past 2^63 and 2^64; a later value ends a wait for an earlier one. */
static void values_wrap(struct end *e)
{
	static const uint64_t values[] = {
		1, 1ull << 62, (1ull << 63) - 1, 1ull << 63, 3ull << 62, UINT64_MAX - 1, UINT64_MAX, 0, 1, 5,
	};
	uint64_t i;

	NEED(e, !end_open(e, 4096));
	for (i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		if (!e->rank)
			NEED(e, !end_signal(e, 0, 0, values[i], 0));
		else
			NEED(e, !end_wait(e, 0, 0, values[i]));
		if (e->rank && i > 1)	/* the next value must not have arrived yet */
			WANT(e, e->table->wait(e->c[0], 0, values[i] + 1, 0, NULL) == -ETIMEDOUT);
		NEED(e, !end_barrier(e));
	}
	if (e->rank)
		WANT(e, !end_wait(e, 0, 0, 3) && !end_wait(e, 0, 0, UINT64_MAX));
}

/* Each slot has its own value, including the first and the last. */
static void slots(struct end *e)
{
	const uint32_t which[] = { 0, 1, 31, 62, 63 };
	struct cairn_signal s;
	uint64_t i;

	NEED(e, !end_open(e, 4096));
	for (i = 0; i < 5 && !e->rank; i++)
		NEED(e, !end_signal(e, 0, which[i], 100 + i, i));
	for (i = 0; i < 5 && e->rank; i++) {
		NEED(e, !e->table->wait(e->c[0], which[i], 100 + i, WAIT_MS, &s));
		WANT(e, s.value == 100 + i && s.word == i);
	}
	if (e->rank)
		WANT(e, e->table->wait(e->c[0], 2, 1, 0, NULL) == -ETIMEDOUT);
	NEED(e, !end_barrier(e));
}

/* The same puts, done twice, leave the same bytes in the whole memory. */
static void repeatable(struct end *e)
{
	uint8_t *first = malloc(HALF), *second = malloc(HALF);
	int turn, i;

	NEED(e, first && second && !end_open(e, HALF));
	for (turn = 0; turn < 2; turn++) {
		end_set(e, HALF, 0xee, HALF);
		NEED(e, !end_barrier(e));
		for (i = 0; i < 32 && !e->rank; i++) {
			end_fill(e, (uint64_t)i * 4096, 3000, (unsigned)i + 7);
			NEED(e, !end_put(e, i & 1, (uint64_t)i * 4096,
					 (uint64_t)(31 - i) * 4096 + (unsigned)i, 3000,
					 0, (unsigned)(turn * 32 + i + 1)));
		}
		if (e->rank) {
			NEED(e, !end_wait(e, 0, 0, (unsigned)turn * 32 + 31));
			NEED(e, !end_wait(e, 1, 0, (unsigned)turn * 32 + 32));
			end_read(e, HALF, turn ? second : first, HALF);
		}
		NEED(e, !end_barrier(e));
	}
	if (e->rank)
		WANT(e, !memcmp(first, second, HALF));
	free(first);
	free(second);
}

const struct end_case transport_cases[] = {
	{ "payload_before_signal", payload_before_signal }, { "no_torn_reads", no_torn_reads },
	{ "words", words }, { "outstanding", outstanding }, { "index_wraps", index_wraps },
	{ "sizes", sizes },
	{ "two_channels", two_channels }, { "both_ways", both_ways }, { "flush_is_done", flush_is_done },
	{ "values_wrap", values_wrap }, { "slots", slots }, { "repeatable", repeatable }, { NULL, NULL },
};
