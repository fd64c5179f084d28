// SPDX-License-Identifier: Apache-2.0
/* serve_power - reads the power and energy of the worker's card once a second */
#include "serving/serve/telemetry/serve_power.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/tables/nvml.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"

#define INTERVAL_NS	1000000000

struct cairn_serve_power {
	char pci[32];
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t stopped;
	/* under the lock, which nobody holds during a query */
	int stop, is_new;
	int64_t energy_mj;
	int32_t power_mw;
};

/* Waits for the next interval. Returns whether the thread is to end. */
static int nap(struct cairn_serve_power *p, int64_t until)
{
	struct timespec at = { until / 1000000000, until % 1000000000 };
	int stop, ret = 0;

	pthread_mutex_lock(&p->lock);
	while (!p->stop && !ret)
		ret = pthread_cond_timedwait(&p->stopped, &p->lock, &at);
	stop = p->stop;
	pthread_mutex_unlock(&p->lock);
	return stop;
}

static void publish(struct cairn_serve_power *p, uint64_t energy_mj, uint32_t power_mw)
{
	pthread_mutex_lock(&p->lock);
	p->energy_mj = (int64_t)energy_mj;
	p->power_mw = (int32_t)power_mw;
	p->is_new = 1;
	pthread_mutex_unlock(&p->lock);
}

static int watch_card(struct cairn_serve_power *p, struct cairn_nvml *card)
{
	uint64_t mj = 0;
	int ret;

	do {
		int64_t next = cairn_clock_ns() + INTERVAL_NS;
		uint32_t mw = 0;

		ret = cairn_nvml_energy(card, &mj);
		if (!ret && cairn_nvml_power(card, &mw))
			mw = 0;
		publish(p, mj, ret ? 0 : mw);
		if (!ret && nap(p, next))
			return 0;
	} while (!ret);
	return ret;
}

static void *run(void *arg)
{
	struct cairn_serve_power *p = arg;
	struct cairn_nvml *card;

	if (cairn_nvml_open(&card, NULL, p->pci) || watch_card(p, card))
		fprintf(stderr, "cairn serve: no power or energy in /metrics: %s\n", cairn_last_error());
	cairn_nvml_close(card);
	return NULL;
}

struct cairn_serve_power *cairn_serve_power_start(const struct cairn_impl *impl)
{
	struct cairn_serve_power *p;
	pthread_condattr_t attr;

	if (!impl->pci_bus_id)
		return NULL;
	p = calloc(1, sizeof(*p));
	if (!p || impl->pci_bus_id(p->pci, sizeof(p->pci))) {
		fprintf(stderr, "cairn serve: no power or energy in /metrics: %s\n",
			p ? cairn_last_error() : "no memory");
		free(p);
		return NULL;
	}
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->stopped, &attr);
	pthread_condattr_destroy(&attr);
	if (!pthread_create(&p->thread, NULL, run, p))
		return p;
	fprintf(stderr, "cairn serve: no power or energy in /metrics: no thread\n");
	pthread_cond_destroy(&p->stopped);
	pthread_mutex_destroy(&p->lock);
	free(p);
	return NULL;
}

int cairn_serve_power_take(struct cairn_serve_power *p, int64_t *energy_mj, int32_t *power_mw)
{
	int is_new;

	pthread_mutex_lock(&p->lock);
	is_new = p->is_new;
	p->is_new = 0;
	*energy_mj = p->energy_mj;
	*power_mw = p->power_mw;
	pthread_mutex_unlock(&p->lock);
	return is_new;
}

void cairn_serve_power_stop(struct cairn_serve_power *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = 1;
	pthread_cond_signal(&p->stopped);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	pthread_cond_destroy(&p->stopped);
	pthread_mutex_destroy(&p->lock);
	free(p);
}
