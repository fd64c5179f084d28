// SPDX-License-Identifier: Apache-2.0
#include "conformance/tables/energy.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "primitives/base/error.h"

#define MS		1000000ll
#define POLL_NS		(1 * MS)	/* between two readings of the energy */
#define CLOCK_NS	(10 * MS)	/* between two readings of the SM clock */
#define SETTLE_NS	(50 * MS)
#define SILENT_NS	(1000 * MS)	/* a counter that does not change for so long stands still */

/* ---- arithmetic ---- */

int cairn_energy_read(struct cairn_energy_window *w, int64_t ns, uint64_t mj)
{
	struct cairn_counted now = { ns, mj }, before = w->last;
	int first = !w->num_readings++;

	w->last = now;
	if (first || mj == before.count)
		return 0;
	if (mj < before.count) {
		w->num_updates = 0;
		return 0;
	}
	/* the update lies between the two readings */
	now.ns = before.ns + (ns - before.ns) / 2;
	if (!w->num_updates++)
		w->from = now;
	w->to = now;
	return 1;
}

int64_t cairn_energy_length(const struct cairn_energy_window *w)
{
	return w->num_updates ? w->to.ns - w->from.ns : 0;
}

double cairn_energy_watts(const struct cairn_energy_window *w)
{
	int64_t ns = cairn_energy_length(w);

	/* mJ / ns is MW */
	return ns > 0 ? (double)(w->to.count - w->from.count) / (double)ns * 1e6 : (double)NAN;
}

double cairn_energy_share(struct cairn_counted from, struct cairn_counted to)
{
	double share;

	if (to.ns <= from.ns || to.count < from.count)
		return (double)NAN;
	share = 100 * (double)(to.count - from.count) / (double)(to.ns - from.ns);
	return share < 100 ? share : 100;	/* the two clocks may differ a little */
}

/* ---- the meter ---- */

struct cairn_meter {
	struct cairn_nvml *card;
	int64_t least_ns;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t stopped;
	/* under the lock */
	enum cairn_meter_state state;
	int stop;
	/* used by the thread alone until it has ended */
	struct cairn_energy_window window;
	struct cairn_counted capped_from, capped_to;
	int has_capped;
	double mhz_sum;
	int num_mhz;
	int64_t mhz_ns, update_ns;
	char why[128], why_capped[128];
};

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 * MS + now.tv_nsec;
}

static void keep_reason(char why[128])
{
	snprintf(why, 128, "%s", cairn_last_error());
}

/* Waits. Returns whether the meter is to stop. */
static int nap(struct cairn_meter *m, int64_t ns)
{
	int64_t until = now_ns() + ns;
	struct timespec at = { until / (1000 * MS), until % (1000 * MS) };
	int stop, ret = 0;

	pthread_mutex_lock(&m->lock);
	while (!m->stop && !ret)
		ret = pthread_cond_timedwait(&m->stopped, &m->lock, &at);
	stop = m->stop;
	pthread_mutex_unlock(&m->lock);
	return stop;
}

static void set_state(struct cairn_meter *m, enum cairn_meter_state state)
{
	pthread_mutex_lock(&m->lock);
	m->state = state;
	pthread_mutex_unlock(&m->lock);
}

/* A query takes a while; its value is that of some moment during it. */
static int64_t middle(int64_t begin)
{
	return begin + (now_ns() - begin) / 2;
}

static int read_capped(struct cairn_meter *m, struct cairn_counted *to)
{
	int64_t begin = now_ns();
	int ret = cairn_nvml_capped(m->card, &to->count);

	to->ns = middle(begin);
	if (ret)
		keep_reason(m->why_capped);
	return ret;
}

static void read_clock(struct cairn_meter *m)
{
	int64_t now = now_ns();
	uint32_t mhz;

	if (now - m->mhz_ns < CLOCK_NS)
		return;
	m->mhz_ns = now;
	if (cairn_nvml_sm_clock(m->card, &mhz))
		return;
	m->mhz_sum += mhz;
	m->num_mhz++;
}

/* Reads the counter once. Returns the state after it. */
static enum cairn_meter_state poll_once(struct cairn_meter *m)
{
	int64_t begin = now_ns();
	uint64_t mj;

	if (cairn_nvml_energy(m->card, &mj)) {
		keep_reason(m->why);
		return CAIRN_METER_FAILED;
	}
	if (cairn_energy_read(&m->window, middle(begin), mj)) {
		m->update_ns = m->window.to.ns;
		/* the counter of the power limit may take 10 ms, so it is read only here and at the end */
		if (m->window.num_updates == 1)
			m->has_capped = !read_capped(m, &m->capped_from);
	} else if (begin - m->update_ns > SILENT_NS) {
		snprintf(m->why, sizeof(m->why), "NVML: the energy counter has stood still for a second");
		return CAIRN_METER_FAILED;
	}
	if (!m->window.num_updates)
		return CAIRN_METER_WAITING;
	read_clock(m);
	return cairn_energy_length(&m->window) < m->least_ns ? CAIRN_METER_RUNNING : CAIRN_METER_ENOUGH;
}

static void *watch(void *arg)
{
	struct cairn_meter *m = arg;
	enum cairn_meter_state state = CAIRN_METER_WAITING;
	int stop = nap(m, SETTLE_NS);

	m->update_ns = now_ns();
	while (!stop && state != CAIRN_METER_FAILED) {
		state = poll_once(m);
		set_state(m, state);
		stop = nap(m, POLL_NS);
	}
	if (m->has_capped)
		m->has_capped = !read_capped(m, &m->capped_to);
	return NULL;
}

int cairn_meter_start(struct cairn_meter **out, struct cairn_nvml *card, int64_t least_ns)
{
	struct cairn_meter *m = calloc(1, sizeof(*m));
	pthread_condattr_t attr;

	if (!m)
		return cairn_error(ENOMEM, "energy: no memory for a meter");
	m->card = card;
	m->least_ns = least_ns;
	pthread_mutex_init(&m->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&m->stopped, &attr);
	pthread_condattr_destroy(&attr);
	if (pthread_create(&m->thread, NULL, watch, m)) {
		pthread_cond_destroy(&m->stopped);
		pthread_mutex_destroy(&m->lock);
		free(m);
		return cairn_error(ENOMEM, "energy: no thread for a meter");
	}
	*out = m;
	return 0;
}

enum cairn_meter_state cairn_meter_state(struct cairn_meter *m)
{
	enum cairn_meter_state state;

	pthread_mutex_lock(&m->lock);
	state = m->state;
	pthread_mutex_unlock(&m->lock);
	return state;
}

void cairn_meter_stop(struct cairn_meter *m, struct cairn_energy *e)
{
	pthread_mutex_lock(&m->lock);
	m->stop = 1;
	pthread_cond_signal(&m->stopped);
	pthread_mutex_unlock(&m->lock);
	pthread_join(m->thread, NULL);
	*e = (struct cairn_energy){ .watts = cairn_energy_watts(&m->window), .sm_mhz = NAN,
				    .capped_pct = NAN };
	memcpy(e->why, m->why, sizeof(e->why));
	memcpy(e->why_capped, m->why_capped, sizeof(e->why_capped));
	if (e->why[0] || cairn_energy_length(&m->window) < m->least_ns)
		e->watts = NAN;
	if (isnan(e->watts) && !e->why[0])
		snprintf(e->why, sizeof(e->why), "the load was too short: the energy counter was updated %d "
			 "times", m->window.num_updates);
	if (!isnan(e->watts) && m->num_mhz)
		e->sm_mhz = m->mhz_sum / m->num_mhz;
	if (!isnan(e->watts) && m->has_capped)
		e->capped_pct = cairn_energy_share(m->capped_from, m->capped_to);
	if (isnan(e->capped_pct) && !e->why_capped[0])
		snprintf(e->why_capped, sizeof(e->why_capped),
			 "NVML: the counter of the power limit has fallen");
	pthread_cond_destroy(&m->stopped);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

int cairn_energy_of_runs(struct cairn_nvml *card, int64_t least_ns, int (*run)(void *arg), void *arg,
			 struct cairn_energy *e, double *seconds)
{
	int64_t begin = now_ns(), num = 0;
	struct cairn_meter *m;
	int ret;

	CAIRN_TRY(cairn_meter_start(&m, card, least_ns));
	do {
		ret = run(arg);
		num++;
	} while (!ret && cairn_meter_state(m) < CAIRN_METER_ENOUGH);
	*seconds = (double)(now_ns() - begin) * 1e-9 / (double)num;
	cairn_meter_stop(m, e);
	if (ret || isnan(e->watts))
		*seconds = 0;
	return ret;
}

int cairn_power_open(struct cairn_nvml **out, const struct cairn_impl *impl)
{
	char pci[32] = "";

	*out = NULL;
	if (!impl->pci_bus_id)
		return cairn_error(EOPNOTSUPP, "the table %s has no card with a PCI address", impl->name);
	CAIRN_TRY(impl->pci_bus_id(pci, sizeof(pci)));
	return cairn_nvml_open(out, NULL, pci);
}

void cairn_energy_unknown(struct cairn_energy *e)
{
	*e = (struct cairn_energy){ .watts = NAN, .sm_mhz = NAN, .capped_pct = NAN };
	keep_reason(e->why);
}

void cairn_energy_rest(const struct cairn_energy *whole, double whole_s, const struct cairn_energy *part,
		       double part_s, struct cairn_energy *rest)
{
	double s = whole_s - part_s, joules = whole->watts * whole_s - part->watts * part_s;

	*rest = *whole;
	if (isnan(whole->watts))
		return;
	rest->watts = s > 0 && joules > 0 ? joules / s : (double)NAN;
	if (!isnan(rest->watts))
		return;
	if (isnan(part->watts))
		memcpy(rest->why, part->why, sizeof(rest->why));
	else
		snprintf(rest->why, sizeof(rest->why),
			 "the whole took no more than its part: %.4g J in %.4g s, %.4g J in %.4g s",
			 whole->watts * whole_s, whole_s, part->watts * part_s, part_s);
}

/* Appends a reason as a JSON string; a library's own text may have any characters. */
static void put_reason(char *json, size_t len, const char *key, const char *why)
{
	size_t at = strlen(json);

	snprintf(json + at, len - at, ",\"%s\":\"%s\"", key, why);
	for (char *c = json + at + strlen(key) + 5; *c && c[1]; c++)
		if (*c == '"' || *c == '\\' || *c < ' ' || *c > '~')
			*c = '\'';
}

void cairn_energy_members(const struct cairn_energy *e, double seconds, char *json, size_t len)
{
	size_t at;

	json[0] = 0;
	if (isnan(e->watts)) {
		put_reason(json, len, "no_energy", e->why);
		return;
	}
	snprintf(json, len, ",\"joules\":%.4g,\"watts\":%.1f", e->watts * seconds, e->watts);
	at = strlen(json);
	if (isnan(e->capped_pct))
		put_reason(json, len, "no_capped_pct", e->why_capped);
	else
		snprintf(json + at, len - at, ",\"capped_pct\":%.1f", e->capped_pct);
}
