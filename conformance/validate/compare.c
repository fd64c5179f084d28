// SPDX-License-Identifier: Apache-2.0
/* compare - compares the devices of a node with each other */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/validate/links.h"
#include "conformance/validate/rates.h"
#include "conformance/validate/result.h"
#include "primitives/base/error.h"

static int same_model(const struct validate_result *a, const struct validate_result *b)
{
	return !strcmp(validate_text(a->who, "gpu"), validate_text(b->who, "gpu"));
}

/*
 * Devices of one model give equal bits, also where no reference defines them, and have equally many links. A
 * device that differs from most of the others fails; of two that differ, both do.
 */
static void compare_devices(struct validate_result *devices, int num, const char *test, const char *key)
{
	for (int i = 0; i < num; i++) {
		json_t *row = json_object_get(devices[i].rows, test), *mine = json_object_get(row, key);
		int peers = 0, equal = 0;

		for (int k = 0; k < num && mine; k++) {
			json_t *other = json_object_get(json_object_get(devices[k].rows, test), key);

			if (!other || !same_model(&devices[k], &devices[i]))
				continue;
			peers++;
			equal += json_equal(other, mine);
		}
		if (peers && validate_outvoted(equal, peers))
			validate_finding(row, VALIDATE_FAIL, NULL,
					 "%s: differs from %d of %d devices of this model",
					 strcmp(key, "links") ? "digests" : "number of active NVLinks",
					 peers - equal, peers - 1);
	}
}

static const json_t *figure_of(const struct validate_result *d, const char *test, const char *figure)
{
	return json_object_get(json_object_get(json_object_get(d->rows, test), "figures"), figure);
}

int validate_more_is_better(const char *figure)
{
	size_t n = strlen(figure);

	return n >= 4 && !strcmp(figure + n - 4, "gbps");
}

/*
 * Collects the devices with the model and configuration of device `first`. Returns their number, or 0 if an
 * earlier device is among them.
 */
static int peers_of(struct validate_result *devices, int num, int first, struct validate_result **peer)
{
	const json_t *config = json_object_get(devices[first].who, "config");
	int n = 0;

	for (int i = 0; i < num; i++) {
		if (!same_model(&devices[i], &devices[first]) ||
		    !json_equal(json_object_get(devices[i].who, "config"), config))
			continue;
		if (i < first)
			return 0;
		peer[n++] = &devices[i];
	}
	return n;
}

/* All devices run at the same time, so that windows of one number are of about the same time. */
static int compare_figure(struct validate_result **peer, int num, const char *test, const char *figure)
{
	double values[VALIDATE_WINDOWS * VALIDATE_MAX_DEVICES];
	struct validate_slow slow[VALIDATE_MAX_DEVICES];
	int more = validate_more_is_better(figure), rounds = VALIDATE_WINDOWS, found;
	int32_t measured;

	for (int i = 0; i < num; i++) {
		int n = (int)json_array_size(figure_of(peer[i], test, figure));

		/* a device that has no such figure is not measured */
		rounds = n && n < rounds ? n : rounds;
	}
	for (int k = 0; k < rounds * num; k++) {
		const json_t *list = figure_of(peer[k % num], test, figure);
		double v = json_number_value(json_array_get(list, (size_t)(k / num)));

		values[k] = v <= 0 ? NAN : more ? 1 / v : v;
	}
	found = validate_slow(values, rounds, num, NULL, slow, num, &measured);
	for (int i = 0; i < found; i++)
		validate_finding(json_object_get(peer[slow[i].index]->rows, test),
				 slow[i].worse >= VALIDATE_MUCH_WORSE - 0.005 ? VALIDATE_FAIL : VALIDATE_WARN,
				 NULL, "%s: %.1f%% worse than the %d devices of this model on this node",
				 figure, 100 * slow[i].worse, measured);
	return found < 0 ? found : 0;
}

static int compare_figures(struct validate_result *devices, int num)
{
	struct validate_result *peer[VALIDATE_MAX_DEVICES];

	for (int first = 0; first < num; first++) {
		int n = peers_of(devices, num, first, peer);
		const char *test, *figure;
		json_t *row, *list;

		if (n < VALIDATE_MIN_PEERS)
			continue;
		json_object_foreach(peer[0]->rows, test, row)
			json_object_foreach(json_object_get(row, "figures"), figure, list)
				CAIRN_TRY(compare_figure(peer, n, test, figure));
	}
	return 0;
}

/* ---- links ---- */

static json_t *links_row(const struct validate_result *d)
{
	return json_object_get(d->rows, "links");
}

static int has_nvlink(const struct validate_result *d)
{
	return json_integer_value(json_object_get(links_row(d), "nvlinks")) > 0;
}

/* Returns the rates of a link in windows of time, or NULL. */
static const json_t *rates_of(const struct validate_result *from, const struct validate_result *to,
			      const char *mode)
{
	char key[16];

	snprintf(key, sizeof(key), "%d", to->number);
	return json_object_get(json_object_get(json_object_get(links_row(from), "links"), mode), key);
}

/* Compares the rates of all links in one mode. */
static int compare_rates(struct validate_result *devices, int num, const char *mode)
{
	struct validate_slow_link slow[VALIDATE_MAX_DEVICES];
	double *gbps = malloc((size_t)VALIDATE_WINDOWS * (size_t)num * (size_t)num * sizeof(*gbps));
	int found;

	if (!gbps)
		return cairn_error(ENOMEM, "no memory for the links of %d devices", num);
	for (int i = 0; i < VALIDATE_WINDOWS * num * num; i++) {
		const json_t *list = rates_of(&devices[i / num % num], &devices[i % num], mode);
		double v = json_number_value(json_array_get(list, (size_t)(i / num / num)));

		gbps[i] = v > 0 ? v : NAN;
	}
	found = validate_slow_links(gbps, VALIDATE_WINDOWS, num, slow, VALIDATE_MAX_DEVICES);
	free(gbps);
	for (int i = 0; i < found; i++) {
		struct validate_result *from = &devices[slow[i].from], *to = &devices[slow[i].to];
		char what[64];
		json_t *f;

		if (slow[i].lacking)
			snprintf(what, sizeof(what), "slower than its siblings, which are of a faster kind");
		else if (slow[i].peers == 1)
			snprintf(what, sizeof(what), "slower than the way back");
		else
			snprintf(what, sizeof(what), "slower than the %d others", slow[i].peers);
		f = validate_finding(links_row(from), validate_link_verdict(&slow[i], has_nvlink(from) &&
				     has_nvlink(to)), NULL, "device %d to device %d, %s: %.1f%% %s",
				     from->number, to->number, mode, 100 * slow[i].worse, what);
		json_object_set_new(f, "to", json_integer(to->number));
	}
	return found < 0 ? found : 0;
}

/* A peer that cannot be reached is a fault if both have NVLinks, or if other devices reach each other. */
static void judge_reach(struct validate_result *devices, int num)
{
	int reached = 0;

	for (int i = 0; i < num; i++)
		for (int k = 0; k < num; k++)
			reached += rates_of(&devices[i], &devices[k], validate_link_modes[0]) != NULL;
	for (int i = 0; i < num; i++) {
		const json_t *down;
		size_t at;

		json_array_foreach(json_object_get(links_row(&devices[i]), "down"), at, down) {
			int to = (int)json_integer_value(json_object_get(down, "to"));
			int peer = 0;

			while (peer < num - 1 && devices[peer].number != to)
				peer++;
			if (validate_down_verdict(reached, has_nvlink(&devices[i]) &&
						  has_nvlink(&devices[peer])) == VALIDATE_FAIL)
				validate_finding(links_row(&devices[i]), VALIDATE_FAIL, NULL,
						 "device %d to device %d: down: %s", devices[i].number, to,
						 validate_text(down, "why"));
			else
				validate_set(links_row(&devices[i]), VALIDATE_NOT_RUN,
					     "no device reaches the memory of another one: %s",
					     validate_text(down, "why"));
		}
	}
}

int validate_compare(struct validate_result *devices, int num)
{
	for (int m = 0; m < VALIDATE_LINK_NUM_MODES; m++)
		CAIRN_TRY(compare_rates(devices, num, validate_link_modes[m]));
	judge_reach(devices, num);
	for (int i = 0; i < validate_num_tests; i++)
		compare_devices(devices, num, validate_tests[i].name, "census");
	compare_devices(devices, num, "health", "links");
	return compare_figures(devices, num);
}
