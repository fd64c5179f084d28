/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run - how the keys and values of a prompt travel from a prefill worker to the lead
 *
 * They are cut into runs: consecutive pages of one side (keys or values) of one layer, at most RUN_BYTES of
 * them. The order is that in which a prefill worker has them: chunk of the prompt, layer, side, pages. It
 * follows from the shape, so both ends know which run is next, and neither believes a run that is not.
 *
 * A run is put into the next slot of a ring at the lead: its payload, then its head with a signal. The lead
 * has RING slots, and returns one credit for each run that it has taken. Without a credit the worker waits.
 *
 *   slot of the ring:   struct cairn_run | zeros up to HEAD_BYTES | pages, one after the other
 *
 * The worker chooses the transport: its blob has a channel's address, whose kind the lead opens, too. Most
 * carry runs from host memory to host memory; with a table whose memory is a device's, the worker copies each
 * layer to host memory first (prefill_epoch.h). nvlink carries them from one device's memory to another's,
 * where the ring is. From either ring the lead copies pages to their places in its KV cache (pull_runs.c).
 *
 * A run without pages ends its job: `error` says whether all has been sent. Each job has one such run.
 *
 * Checksums: SipHash-2-4 under a key that the lead has drawn for the epoch and sent over the encrypted
 * control channel. The head holds that of the payload, and one of itself. So neither a damaged run nor one of
 * a stranger, of another job or of another epoch is taken for a good one. On devices, the payload's is the
 * transport's sum under a part of the key, which a GPU computes: it notices damage and mistakes, though a
 * process that may write the memory could forge it.
 */
#ifndef CAIRN_PULL_RUN_H
#define CAIRN_PULL_RUN_H

#include "rdma/transport/transport.h"
#include "serving/model/model.h"
#include "serving/remote/control/sodium.h"

#define CAIRN_RUN_BYTES		((size_t)1 << 20)	/* of the payload; one page may be larger */
#define CAIRN_RUN_HEAD_BYTES	64
#define CAIRN_RUN_RING		16
#define CAIRN_PULL_JOBS		2	/* jobs of one worker: it computes one while it sends another */

/* Signal slots: the lead's end counts runs sent, the worker's end counts runs taken. */
enum { CAIRN_SLOT_RUNS };
enum { CAIRN_SLOT_CREDITS };

/* What the ends exchange. */
struct cairn_pull_blob {
	struct cairn_blob channel;
	struct cairn_blob ring;		/* the lead's: where runs go; the worker's: all 0 */
	uint8_t key[SODIUM_HASH_KEY_BYTES];	/* the lead's: of the checksums */
};

struct cairn_run_shape {
	int32_t num_layers, sides;	/* sides: keys and values, or latents alone */
	int32_t chunk_pages, run_pages;	/* of a pass; of a run at most */
	size_t page_bytes;		/* of one side of one layer */
};

struct cairn_run {
	uint64_t job;
	uint32_t epoch, error;		/* error: of the last run of a job; 0 or an errno */
	int32_t layer, side, page, num_pages;	/* page: of the prompt */
	uint64_t payload, sum;		/* checksums of the payload; of the members before this one */
};

/* The transport of this name, of at most 16 bytes; NULL: none that carries runs between processes. */
const struct cairn_transport_table *cairn_run_transport(const char *name);
/* Returns whether the transport carries runs between devices. */
int cairn_run_on_device(const struct cairn_transport_table *t);
/* impl: the table that has the pages. -EINVAL: the transport carries none of the table's memory. */
int cairn_run_check(const struct cairn_transport_table *t, const struct cairn_impl *impl);
extern const char *cairn_run_as_device;	/* for tests: a transport of host memory that counts as such */

static inline int cairn_run_memory(const struct cairn_transport_table *t)
{
	return t->features & CAIRN_TRANSPORT_HOST_MEMORY ? CAIRN_MEMORY_HOST : CAIRN_MEMORY_DEVICE;
}

/* The part of the key that sums of payloads on devices use. */
static inline uint64_t cairn_run_device_key(const uint8_t *key)
{
	uint64_t part = 0;

	for (int i = 0; i < 8; i++)
		part = part << 8 | key[i];
	return part;
}

/* max_rows: of a pass, a multiple of page_size */
struct cairn_run_shape cairn_run_shape(const struct cairn_model *m, int32_t page_size, int32_t max_rows);
size_t cairn_run_slot_bytes(const struct cairn_run_shape *s);

/*
 * Sets layer, side, page and num_pages to the run that follows, of pages [first, end). Begin with num_pages
 * 0. Returns 0 if there is none.
 */
int cairn_run_next(const struct cairn_run_shape *s, int32_t first, int32_t end, struct cairn_run *run);

/* Returns a checksum of bytes, and that of a run's head. */
uint64_t cairn_run_hash(const struct sodium *s, const uint8_t *key, const void *bytes, size_t num);
uint64_t cairn_run_sum(const struct sodium *s, const uint8_t *key, const struct cairn_run *run);

#endif
