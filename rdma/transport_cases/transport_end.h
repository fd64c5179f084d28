/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_end - one end of a transport under test: functions for the cases in transport_cases*.c
 *
 * A case is a function that both ends run, rank 0 and rank 1, in two threads or two processes. A socket
 * between them carries data outside the transport: blobs and barriers. A barrier fails if the other end has
 * ended, so that no end waits for one that has given up. Failed checks are printed with file and line.
 */
#ifndef CAIRN_TRANSPORT_END_H
#define CAIRN_TRANSPORT_END_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/base/error.h"
#include "rdma/transport/transport.h"

#define NUM_CHANNELS	2
#define WAIT_MS		10000	/* ample: whatever should arrive does so much earlier */
#define GUARD		64	/* bytes on each side of a payload that must not change */

/* The link of the case stream_paced, for back ends that have a pace (transport_pace.h). */
#define END_PACED	"stream_paced"
#define END_PACE	"20000:10"
#define END_PACE_S	0.02		/* latency, s */
#define END_PACE_SPEED	1e7		/* bytes per s */

struct plan {
	const struct cairn_transport_table *table;
	const char *device, *faults;
	uint64_t seed;
	uint32_t depth;
	int gpu[2], memory;
	int quick;		/* fewer rounds, for mutants and sanitizers */
	uint32_t wait_ms;	/* for a signal; short for mutants, which lose some */
	uint64_t big;		/* bytes of the largest payload */
	int processes;		/* the ends are in two processes */
	int own_network;	/* this process has a network namespace of its own */
	int detour;		/* tcp: connections go through a relay (transport_detour.h) */
};

struct end {
	const struct plan *plan;
	const struct cairn_transport_table *table;
	const char *name;	/* the case's name */
	int rank, sock, failures, skipped;
	uint64_t rng;		/* state of a random sequence that is equal at both ends */

	struct cairn_transport *t;
	struct cairn_channel *c[NUM_CHANNELS];
	uint8_t *buf, *host;	/* registered memory; host == buf if it is host memory */
	uint64_t bytes;
	struct cairn_region *region;
	struct cairn_remote *remote;
	struct detour *detours;	/* ended by end_close */
};

int end_want(struct end *e, int ok, const char *what, const char *file, int line);
#define WANT(e, cond)		end_want(e, !!(cond), #cond, __FILE__, __LINE__)
/* Returns from the case if the condition does not hold. */
#define NEED(e, cond)		do { if (!WANT(e, cond)) return; } while (0)
int end_contains(struct end *e, const char *part, const char *file, int line);
#define WANT_ERROR(e, part)	end_contains(e, part, __FILE__, __LINE__)
void end_skip(struct end *e, const char *why);
int end_has(struct end *e, uint32_t feature, const char *why);	/* returns 0 with the case skipped */

/* Opens the transport, registers 2 * bytes (the source, then the destination; see below), and connects all
 * channels. */
int end_open(struct end *e, uint64_t bytes);
/* exchanges addresses and connects all channels; call it after end_open or a reset */
int end_connect(struct end *e);
void end_close(struct end *e);
int end_exchange(struct end *e, const void *mine, void *theirs, size_t bytes);
int end_barrier(struct end *e);

/* The memory has two halves: puts read [0, bytes) and write [bytes, 2 * bytes). */
void end_write(struct end *e, uint64_t at, const void *from, uint64_t bytes);
void end_read(struct end *e, uint64_t at, void *to, uint64_t bytes);
void end_set(struct end *e, uint64_t at, int byte, uint64_t bytes);
/* Fills the memory with a pattern that has no period. */
void end_fill(struct end *e, uint64_t at, uint64_t bytes, uint64_t seed);
/* Returns 1 if that pattern is there, with GUARD bytes of 0xee on either side. */
int end_check(struct end *e, uint64_t at, uint64_t bytes, uint64_t seed);
uint64_t end_random(struct end *e, uint64_t limit);

/* Puts from source offset `from` to the peer's destination offset `to`. */
int end_put(struct end *e, int channel, uint64_t from, uint64_t to, uint64_t bytes, uint32_t slot,
	    uint64_t value);
int end_signal(struct end *e, int channel, uint32_t slot, uint64_t value, uint64_t word);
int end_wait(struct end *e, int channel, uint32_t slot, uint64_t value);
double end_now(void);			/* seconds */
void end_nap(long ms);
/* For cases that end_open(e, END_HALF): after a failure or refusal, a payload still arrives correctly. */
#define END_HALF	4096u
void end_still_works(struct end *e, uint64_t value);
/* Both ends reset and connect again; the old signals are gone. */
void end_start_again(struct end *e);

struct end_case {
	const char *name;
	void (*run)(struct end *e);
};
extern const struct end_case transport_cases[], transport_trouble_cases[], transport_device_cases[];
extern const struct end_case transport_time_cases[], transport_tcp_cases[], transport_stream_cases[];

/*
 * Defective versions of a back end's table; NULL after the last. *what: a description of the defect. *by: the
 * case that must fail; NULL: any.
 */
const struct cairn_transport_table *transport_mutant(const struct cairn_transport_table *right, int i,
						     const char **what, const char **by);
/* The same of the tcp back end's own code (transport_tcp_mutants.c). */
const struct cairn_transport_table *transport_tcp_mutant(int i, const char **what, const char **by);

#endif
