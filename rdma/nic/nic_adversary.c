// SPDX-License-Identifier: Apache-2.0
/*
 * nic_adversary.c - seeded delays, losses and failures that a network and a NIC are allowed to cause
 *
 *   name            effect                                                    what it tests
 *   fetch_us=N      a request is read from the ring up to N us late           ring blocks freed on completion
 *   completion_us=N a completion is written up to N us late                   the same
 *   read_us=N       data of READ and atomics arrive up to N us late; later
 *                   requests pass them unless fenced                          users of data read
 *   pieces=N        a WRITE arrives in up to N pieces, in any order           receivers that poll the payload
 *   piece_us=N      each piece up to N us after the previous one (20)         the same
 *   drop=P          P percent of doorbells are lost; the doorbell record is
 *                   read 200 us later instead                                 producers that need a doorbell
 *   drop_bf=P       the same, only for 64-byte doorbells
 *   revoke=N        the N-th remote access finds its key revoked              error path
 *   overrun=N       the N-th completion finds its queue full                  time-outs
 *   collapse=1      every completion is written to entry 0                    consumers that count entries
 *
 * Under every setting, requests of one queue pair reach memory in order; between queue pairs there is no
 * order.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "rdma/nic/nic_model.h"

static struct {
	uint64_t fetch_us, completion_us, read_us, pieces, piece_us, drop, drop_bf, revoke, overrun, collapse;
} set;

static const struct {
	const char *name;
	uint64_t *value, max;
} options[] = {
	{ "fetch_us", &set.fetch_us, 1000000 }, { "completion_us", &set.completion_us, 1000000 },
	{ "read_us", &set.read_us, 1000000 }, { "pieces", &set.pieces, 64 },
	{ "piece_us", &set.piece_us, 1000000 },
	{ "drop", &set.drop, 100 }, { "drop_bf", &set.drop_bf, 100 }, { "revoke", &set.revoke, UINT32_MAX },
	{ "overrun", &set.overrun, UINT32_MAX }, { "collapse", &set.collapse, 1 },
};

static uint64_t state = 1, accesses, completions;

/* xorshift64*. Only one thread at a time uses it, with the tables' lock held. */
static uint64_t draw(uint64_t below)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return below ? (state * 2685821657736338717u >> 16) % below : 0;
}

static int set_one(const char *name, size_t len, const char *value, char **end)
{
	unsigned i;

	for (i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		if (strlen(options[i].name) != len || memcmp(options[i].name, name, len))
			continue;
		*options[i].value = strtoull(value, end, 10);
		return *end == value || *options[i].value > options[i].max ? -EINVAL : 0;
	}
	return -EINVAL;
}

/* An unknown name is an error, so that no test passes because its adversary was not active. */
int nic_adversary_set(const char *p, uint64_t seed)
{
	char *end;

	state = seed * 0x9e3779b97f4a7c15u | 1;
	accesses = completions = 0;
	memset(&set, 0, sizeof(set));
	set.piece_us = 20;
	while (p && *p) {
		const char *eq = strchr(p, '=');

		if (!eq || set_one(p, (size_t)(eq - p), eq + 1, &end) || (*end && *end != ','))
			return -EINVAL;
		p = *end ? end + 1 : end;
	}
	return 0;
}

int nic_adversary_init(void)
{
	const char *seed = getenv("CAIRN_NIC_SEED");

	return nic_adversary_set(getenv("CAIRN_NIC_ADVERSARY"), seed ? strtoull(seed, NULL, 10) : 1);
}

uint64_t nic_adversary_fetch_ns(void)
{
	return set.fetch_us ? draw(set.fetch_us * 1000) : 0;
}

uint64_t nic_adversary_completion_ns(void)
{
	return set.completion_us ? draw(set.completion_us * 1000) : 0;
}

uint64_t nic_adversary_read_ns(void)
{
	return set.read_us ? draw(set.read_us * 1000) : 0;
}

uint64_t nic_adversary_piece_ns(void)
{
	return set.piece_us ? draw(set.piece_us * 1000) : 0;
}

/* Returns into how many pieces a message is cut, and their order; 1 means uncut. A message of 8 bytes is
 * never cut. */
int nic_adversary_pieces(uint64_t bytes, uint8_t *order)
{
	int n, i, j;
	uint8_t t;

	if (set.pieces < 2 || bytes < 16)
		return 1;
	n = 1 + (int)draw(set.pieces < bytes / 8 ? set.pieces : bytes / 8);
	for (i = 0; i < n; i++)
		order[i] = (uint8_t)i;
	for (i = n - 1; i > 0; i--) {
		j = (int)draw((uint64_t)i + 1);
		t = order[i];
		order[i] = order[j];
		order[j] = t;
	}
	return n;
}

int nic_adversary_drops_doorbell(int is_blueflame)
{
	return (set.drop && draw(100) < set.drop) || (is_blueflame && set.drop_bf && draw(100) < set.drop_bf);
}

int nic_adversary_revokes(void)
{
	return set.revoke && ++accesses == set.revoke;
}

int nic_adversary_overruns(void)
{
	return set.overrun && ++completions == set.overrun;
}

int nic_adversary_collapses(void)
{
	return (int)set.collapse;
}
