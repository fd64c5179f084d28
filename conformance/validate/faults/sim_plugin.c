// SPDX-License-Identifier: Apache-2.0
/*
 * sim_plugin - a device that exists in software alone, with scripted faults, for the tests of validate
 *
 * It has GPCS groups of GPC_UNITS units, a clock of its own, and noise that follows from seed and round, so
 * that two runs are equal. The noise has the distribution of the rates that were recorded on an H200. Digests
 * of the first rounds, which validate compares with the reference, are the reference's; the others are hashes
 * of the inputs, because equal bits are enough there. $CAIRN_SIM sets its behaviour, as NAME=NUMBER separated
 * by blanks:
 *
 *   devices N	devices (1); bad N: the device that has the faults (0)
 *   unit N	the faulty unit: the faults below are its own
 *   part N	its faulty part (0)
 *   flips N	in every N-th round the unit's digest is wrong, also when the round is repeated
 *   once N	in the N-th call of screen a digest is wrong, and not when it is repeated
 *   chance N	a digest is wrong in one of N rounds, whatever the inputs
 *   load N	so is it in every N-th round of calls with many rounds, as under full load
 *   mask N	bits that are wrong (131072); sum N: in that sum of the digest (1)
 *   after N	faults begin with the N-th call of screen
 *   program N	only this program is wrong
 *   all 1	all units compute wrongly alike
 *   half 1	half of the units compute wrongly
 *   census N	N is added to all digests of random inputs
 *   slow N	the unit is N tenths of a percent slower; group N: so is its whole group;
 *		all_slow N: so are all units
 *   pair N	so is its path to the unit after it; pair_until N: in the first N calls alone
 *   stuck N	byte N of large buffers has a bit that is always 1
 *   fade N	byte N of large buffers has lost a bit FADE_S after it was written
 *   atomic N	byte N of large buffers is wrong after atomic additions
 *   copy N	byte N of large copies to the host is wrong; upload N, local N: to and on the device
 *   hang N, crash N, lost N
 *		the N-th call of screen never returns, crashes, or fails, and so do all that follow
 *   honest 1	all digests are the reference's, which takes long
 *   nomem 1	there is no memory for large buffers
 *   moved N	the unit moves in every N-th round
 *   link_from N, link_to N
 *		the faulty link (0, 1): the faults below are those of copies from that device to the other one
 *   link_slow N	it is N tenths of a percent slower
 *   link_byte N	byte N of each copy is wrong
 *   link_down 1	the two devices cannot map each other's memory
 *   link_lost N, link_hang N
 *		from the N-th copy of the device on, those over it fail, or never end
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conformance/abi.h"
#include "conformance/validate/faults/sim.h"
#include "primitives/base/args.h"
#include "primitives/base/error.h"

enum { GPCS = 4, GPC_UNITS = 8, UNITS = GPCS * GPC_UNITS, PARTS = CAIRN_SCREEN_PARTS };
enum { LARGE = 1 << 20, MANY_ROUNDS = 8 };
#define FADE_S	0.01

int sim_device;
static int num_calls, lost;

long long sim_option(const char *name, long long otherwise)
{
	const char *at = getenv("CAIRN_SIM");
	size_t n = strlen(name);

	for (; at && *at; at += strcspn(at, " "), at += *at == ' ')
		if (!strncmp(at, name, n) && at[n] == '=')
			return atoll(at + n + 1);
	return otherwise;
}

/* Returns the option on the faulty device, 0 on the others. */
static long long fault(const char *name)
{
	return sim_device == sim_option("bad", 0) ? sim_option(name, 0) : 0;
}

uint64_t sim_hash(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static int sim_init(int number)
{
	if (number >= sim_option("devices", 1))
		return cairn_error(ENODEV, "sim: there is no device %d", number);
	sim_device = number;
	return 0;
}

static int sim_info(struct cairn_device_info *info)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	snprintf(info->name, sizeof(info->name), "simulated");
	info->num_sms = UNITS;
	info->l2_bytes = 1 << 20;
	info->mem_bytes = 64 << 20;
	return 0;
}

static int sim_pci(char *id, size_t len)
{
	snprintf(id, len, "0000:1b:00.0");
	return 0;
}

/* ---- screen ---- */

static int is_wrong(const struct cairn_screen_args *a, int64_t round, int32_t unit, int part)
{
	long long flips = fault("flips"), program = sim_option("program", -1);
	uint64_t drawn;

	if (num_calls < sim_option("after", 0) || (program >= 0 && program != a->program))
		return 0;
	if (part != sim_option("part", 0))
		return 0;
	if (fault("all"))
		return 1;
	if (fault("half"))
		return unit % 2;
	if (unit != sim_option("unit", 0))
		return 0;
	/* multiples of three odd constants, so that calls, seeds and rounds give unrelated numbers */
	drawn = (uint64_t)num_calls * 0x9e3779b97f4a7c15ull + a->seed * 0xd1b54a32d192ed03ull +
		(uint64_t)round * 0xaef17502108ef2d9ull;
	if (fault("chance") && sim_hash(drawn) % (uint64_t)fault("chance") == 0)
		return 1;
	if (fault("load") && a->rounds > MANY_ROUNDS && round % fault("load") == 0)
		return 1;
	if (fault("once") && a->only < 0 && num_calls == fault("once") && round == a->first_round)
		return 1;
	return flips && sim_hash((uint64_t)round + a->seed) % (uint64_t)flips == 0;
}

/*
 * Tenths of a per mille by which SMs of an H200 differ from the median of their GPC in program mix, whose
 * rates scatter most (row rate.mix of reports/h200.jsonl): quantiles 0, 1/16, ... 1.
 */
static const double residuals[] = { -85.9, -31.4, -23.2, -17.3, -13.8, -9.4, -5.8, -2.9, 0.2, 4.4, 8.6, 13.6,
	16.7, 21.1, 28.9, 43.4, 65.8 };

/* Draws from the residuals, as a share. */
static double noise(uint64_t from)
{
	uint64_t x = sim_hash(from);
	double at = (double)(x >> 11) * 0x1p-53 * 16;
	int i = (int)at;

	return 1e-5 * (residuals[i] + (at - i) * (residuals[i + 1] - residuals[i]));
}

/* Cycles of a step: the group's level, what the unit always has and what the round adds. */
static double cycles_of(const struct cairn_screen_args *a, int64_t round, int32_t place)
{
	uint64_t chip = sim_hash(a->seed * CAIRN_SCREEN_NUM_PROGRAMS + (uint64_t)a->program);
	double slow = place == sim_option("unit", 0) ? (double)fault("slow") / 1000 : 0;

	slow += (double)fault("all_slow") / 1000;
	if (place / GPC_UNITS == sim_option("unit", 0) / GPC_UNITS)
		slow += (double)fault("group") / 1000;
	return 3000 * (1 + slow) * (1 + noise(chip + (uint64_t)(place / GPC_UNITS)) / 2) *
	       (1 + noise(chip + 1000 + (uint64_t)place)) *
	       (1 + noise(sim_hash((uint64_t)round) + (uint64_t)place));
}

/* Digests of a round, and raw results of its last step, by the reference. */
static int by_reference(const struct cairn_screen_args *a, int64_t round, uint64_t digest[PARTS][2],
			uint32_t *raw)
{
	struct cairn_screen_args one = *a;
	int64_t start, cycles[PARTS];
	int32_t place;

	one.digest = &digest[0][0];
	one.start_ns = &start;
	one.cycles = cycles;
	one.place = &place;
	one.raw = raw;
	one.units = one.rounds = 1;
	one.first_round = round;
	return cairn_screen_ref(&one, NULL);
}

/* Raw results of the last step by the reference; replays want those of one round a thousand times. */
static int last_step(const struct cairn_screen_args *a, int64_t round, uint32_t *raw)
{
	static struct cairn_screen_args known;
	static int64_t known_round = -1;
	int ret = 0;

	if (known_round == round && known.program == a->program && known.inputs == a->inputs &&
	    known.steps == a->steps && known.seed == a->seed)
		return 0;
	for (int part = 0; part < PARTS && ret >= 0; part++)
		ret = cairn_screen_exact(a, round, part, a->steps - 1, NULL, NULL,
					 raw + part * CAIRN_SCREEN_WORDS);
	known = *a;
	known_round = ret < 0 ? -1 : round;
	return ret < 0 ? ret : 0;
}

static int run_round(const struct cairn_screen_args *a, int r)
{
	static uint32_t raw[PARTS * CAIRN_SCREEN_WORDS];
	int64_t round = a->first_round + r;
	uint64_t digest[PARTS][2], call = sim_hash(a->seed + (uint64_t)(a->program * 3 + a->inputs));
	int want_raw = a->raw && r + 1 == a->rounds;

	int by_ref = round < CAIRN_SCREEN_NUM_INPUTS || sim_option("honest", 0);

	if (by_ref)
		CAIRN_TRY(by_reference(a, round, digest, raw));
	else if (want_raw)
		CAIRN_TRY(last_step(a, round, raw));
	for (int k = 0; k < 2 * PARTS && !by_ref; k++)
		digest[k / 2][k % 2] = sim_hash(sim_hash(call + (uint64_t)round) +
						(uint64_t)(a->steps * 8 + k));
	for (int u = 0; u < a->units; u++) {
		size_t at = (size_t)r * (size_t)a->units + (size_t)u;
		int32_t place = a->only >= 0 ? a->only : u;
		double cycles = cycles_of(a, round, place);

		a->place[at] = place < UNITS ? place : -1;
		if (fault("moved") && place == sim_option("unit", 0) && round % fault("moved") == 0)
			a->place[at] = -1;
		a->start_ns[at] = round * 1000000;
		for (int part = 0; part < PARTS; part++) {
			uint64_t *d = &a->digest[(at * PARTS + (size_t)part) * 2];

			a->cycles[at * PARTS + (size_t)part] = (int64_t)(a->steps * cycles);
			memcpy(d, digest[part], sizeof(digest[part]));
			if (a->inputs == CAIRN_SCREEN_RANDOM)
				d[0] += (uint64_t)fault("census");
			if (is_wrong(a, round, place, part))
				d[sim_option("sum", 1)] ^= (uint64_t)sim_option("mask", 1 << 17);
		}
		if (want_raw) {
			uint32_t *to = a->raw + (size_t)u * sizeof(raw) / sizeof(*raw);

			memcpy(to, raw, sizeof(raw));
			for (int part = 0; part < PARTS; part++)
				if (is_wrong(a, round, place, part))
					to[part * CAIRN_SCREEN_WORDS + 5] ^=
						(uint32_t)sim_option("mask", 1 << 17);
		}
	}
	return 0;
}

static int sim_screen(const struct cairn_screen_args *args, void *stream)
{
	struct cairn_screen_args a;

	(void)stream;
	CAIRN_TRY(cairn_screen_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	num_calls++;
	if (fault("hang") && num_calls >= fault("hang"))
		for (;;)
			pause();
	if (fault("crash") && num_calls >= fault("crash"))
		raise(SIGKILL);
	if (fault("lost") && num_calls >= fault("lost"))
		lost = 1;
	if (lost)
		return cairn_error(EIO, "sim: the device has fallen off the bus");
	for (int r = 0; r < a.rounds; r++)
		CAIRN_TRY(run_round(&a, r));
	return 0;
}

/* ---- the network between units ---- */

/* Cycles that a place adds to reads. */
static double distance(int place)
{
	return (double)(sim_hash((uint64_t)place) % 900);
}

static int sim_dsmem(const struct cairn_dsmem_args *a, void *stream)
{
	int fit = GPC_UNITS / a->cluster_size * GPCS, size = a->cluster_size;
	int32_t *resident = a->resident;
	static int latency_calls;
	double pair = (double)fault("pair") / 1000;

	if (a->pair_cycles && latency_calls++ >= sim_option("pair_until", INT_MAX))
		pair = 0;
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	*resident = fit;
	for (int c = 0; c < a->num_clusters * size; c++) {
		int cluster = c / size, per = GPC_UNITS / size, place = -1;

		if (cluster < fit)
			place = cluster / per * GPC_UNITS + cluster % per * size + c % size;
		a->smid[c] = place;
		if (place < 0)
			a->sum[c] = 0;
		for (int owner = 0; owner < size && a->pair_cycles; owner++) {
			int other = place - c % size + owner;
			double slow = place == sim_option("unit", 0) && owner == (c + 1) % size ?
				      1 + pair : 1;
			/* each unit is some way from the network, as reader and as owner */
			double cycles = 10000 + distance(place) + distance(other + GPC_UNITS * GPCS) +
					(double)(sim_hash((uint64_t)(c * size + owner)) % 40);

			a->pair_cycles[c * size + owner] = place < 0 ? 0 : (int32_t)(slow * cycles);
		}
	}
	return 0;
}

/* ---- memory ---- */

static int sim_alloc(void **p, size_t bytes)
{
	if (bytes >= LARGE && fault("nomem"))
		return cairn_error(ENOMEM, "sim: no memory");
	*p = aligned_alloc(256, (bytes + 255) / 256 * 256);
	return *p ? 0 : cairn_error(ENOMEM, "sim: no memory");
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double written_s;	/* when a large buffer was written last */

static void fade(void *p, size_t bytes)
{
	if (fault("fade") && bytes >= LARGE && now_s() - written_s > FADE_S)
		((unsigned char *)p)[fault("fade")] &= 0xfe;
}

static void stick(void *p, size_t bytes)
{
	written_s = bytes >= LARGE ? now_s() : written_s;
	if (fault("stuck") && bytes >= LARGE)
		((unsigned char *)p)[fault("stuck")] |= 4;
}

static int sim_copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	static const char *const faults[] = {
		[CAIRN_COPY_TO_DEVICE] = "upload", [CAIRN_COPY_TO_HOST] = "copy",
		[CAIRN_COPY_ON_DEVICE] = "local",
	};

	(void)stream;
	CAIRN_TRY(sim_link_begin(dst, bytes));
	memmove(dst, src, bytes);
	sim_link_end(dst, bytes);
	if (bytes >= LARGE && fault(faults[kind]))
		((unsigned char *)dst)[fault(faults[kind])] ^= 0x10;
	return 0;
}

static int sim_set(void *dst, int byte, size_t bytes, void *stream)
{
	(void)stream;
	memset(dst, byte, bytes);
	stick(dst, bytes);
	return 0;
}

static int sim_stream(const struct cairn_stream_args *a, void *stream)
{
	if (a->op == CAIRN_STREAM_READ)
		fade((void *)a->src, (size_t)a->bytes);
	CAIRN_TRY(cairn_stream_ref(a, stream));
	if (a->op == CAIRN_STREAM_WRITE || a->op == CAIRN_STREAM_ADD)
		stick(a->dst, (size_t)a->bytes);
	if (a->op == CAIRN_STREAM_ADD && fault("atomic") && a->bytes >= LARGE)
		((unsigned char *)a->dst)[fault("atomic")] ^= 8;
	return 0;
}

static int sim_stream_create(void **stream)
{
	static int token;

	*stream = &token;
	return 0;
}

static void sim_stream_destroy(void *stream)
{
	(void)stream;
}

static int sim_sync(void *stream)
{
	(void)stream;
	return lost ? cairn_error(EIO, "sim: the device has fallen off the bus") : 0;
}

static const struct cairn_impl impl = {
	.size = sizeof(impl), .abi_version = CAIRN_ABI_VERSION, .flags = CAIRN_IMPL_HOST_MEM, .name = "sim",
	.version = "1", .init = sim_init, .last_error = cairn_last_error, .device_info = sim_info,
	.mem_alloc = sim_alloc, .mem_free = free, .host_alloc = sim_alloc, .host_free = free,
	.mem_copy = sim_copy, .mem_set = sim_set, .stream_create = sim_stream_create,
	.stream_destroy = sim_stream_destroy, .stream_sync = sim_sync, .stream = sim_stream,
	.dsmem = sim_dsmem, .screen = sim_screen, .pci_bus_id = sim_pci,
	.event_create = sim_event_create, .event_destroy = sim_event_destroy,
	.event_record = sim_event_record, .event_sync = sim_event_sync, .event_elapsed = sim_event_elapsed,
	.comm_open = sim_comm_open, .comm_heap = cairn_comm_heap_cpu, .comm_error = cairn_comm_error_cpu,
	.comm_abort = cairn_comm_abort_cpu, .comm_close = sim_comm_close,
};

const struct cairn_impl *cairn_impl_get(uint32_t abi_version)
{
	return abi_version == CAIRN_ABI_VERSION ? &impl : NULL;
}
