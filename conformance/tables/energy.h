/* SPDX-License-Identifier: Apache-2.0 */
/*
 * energy - mean power, SM clock and share of time at the power limit, of a card under load
 *
 * The driver updates a card's energy counter only every 20 to 100 ms. Power is therefore measured over a
 * window that begins and ends at updates: energy between them, divided by time between them. Energy of one
 * call is this power times the time of a call under the same load. A meter finds the updates by reading the
 * counter every millisecond or so, in a thread of its own; the time of an update is known to about half that.
 */
#ifndef CAIRN_ENERGY_H
#define CAIRN_ENERGY_H

#include <stddef.h>
#include <stdint.h>

#include "conformance/abi.h"
#include "conformance/tables/nvml.h"

#define CAIRN_ENERGY_NS		200000000	/* shortest window */

/* ---- arithmetic, without a clock or a card ---- */

/* A growing counter and the clock, at one moment. */
struct cairn_counted {
	int64_t ns;
	uint64_t count;
};

struct cairn_energy_window {
	struct cairn_counted last;		/* the latest reading */
	struct cairn_counted from, to;		/* first and latest update */
	int num_readings, num_updates;		/* updates since the window began */
};

/*
 * Takes a reading of the energy counter in mJ; readings come in the order of time. Returns whether the
 * counter has been updated since the reading before; the window then begins or grows. If the counter has
 * fallen, because the driver was loaded anew, a new window begins at the next update.
 */
int cairn_energy_read(struct cairn_energy_window *w, int64_t ns, uint64_t mj);
int64_t cairn_energy_length(const struct cairn_energy_window *w);	/* ns from first to latest update */
double cairn_energy_watts(const struct cairn_energy_window *w);		/* NAN if the window has no length */
/* Returns in percent how much of the time between two readings a counter of ns has grown, or NAN. */
double cairn_energy_share(struct cairn_counted from, struct cairn_counted to);

/* ---- the meter ---- */

/* A figure is NAN if it is unknown; why then says so, and why_capped for capped_pct alone. */
struct cairn_energy {
	double watts, sm_mhz, capped_pct;
	char why[128], why_capped[128];
};

enum cairn_meter_state {
	CAIRN_METER_WAITING,	/* for the first update */
	CAIRN_METER_RUNNING,
	CAIRN_METER_ENOUGH,	/* the window is long enough; it still grows */
	CAIRN_METER_FAILED	/* a query has failed, or the counter stands still */
};

struct cairn_meter;

/* Opens the card of a table that has been started. -EOPNOTSUPP: the table has no card, or see nvml.h. */
int cairn_power_open(struct cairn_nvml **out, const struct cairn_impl *impl);

/*
 * Starts a meter. Call it under load: updates of the first 50 ms do not count, because they include the time
 * before. The meter is the card's only user until it stops.
 */
int cairn_meter_start(struct cairn_meter **out, struct cairn_nvml *card, int64_t least_ns);
enum cairn_meter_state cairn_meter_state(struct cairn_meter *m);
/* Ends the meter and frees it. Call it while the load is still there. */
void cairn_meter_stop(struct cairn_meter *m, struct cairn_energy *e);

/*
 * Calls run() again and again until the window is least_ns long; run() returns when its work is done.
 * *seconds is the mean time of a call, 0 if NVML fails. Returns 0 or the error of run().
 */
int cairn_energy_of_runs(struct cairn_nvml *card, int64_t least_ns, int (*run)(void *arg), void *arg,
			 struct cairn_energy *e, double *seconds);

/* Fills in e for a card that cannot be opened or measured, from the error text. */
void cairn_energy_unknown(struct cairn_energy *e);
/*
 * Sets *rest to the power during the part of a call of whole_s seconds that a call of part_s seconds lacks,
 * from the energy of both. Example: decoding is what whole answers do beyond their prompts. Clock and
 * capped_pct of *rest are those of the whole call. If the power is unknown, rest->why says why.
 */
void cairn_energy_rest(const struct cairn_energy *whole, double whole_s, const struct cairn_energy *part,
		       double part_s, struct cairn_energy *rest);
/*
 * Writes the members of a bench record, each after a comma: joules, watts, capped_pct, or the reasons why
 * they are unknown. seconds: time of one call under the measured load. len: at least CAIRN_ENERGY_MEMBERS.
 */
#define CAIRN_ENERGY_MEMBERS	400
void cairn_energy_members(const struct cairn_energy *e, double seconds, char *json, size_t len);

#endif
