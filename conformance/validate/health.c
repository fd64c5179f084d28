// SPDX-License-Identifier: Apache-2.0
#include "conformance/validate/health.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/validate/validate_fault.h"

struct list {
	struct validate_finding *out;
	int32_t num, most;
};

static void __attribute__((format(printf, 3, 4)))
add(struct list *l, enum validate_verdict v, const char *fmt, ...)
{
	va_list args;

	if (l->num == l->most)
		return;
	l->out[l->num].verdict = v;
	va_start(args, fmt);
	vsnprintf(l->out[l->num++].text, sizeof(l->out->text), fmt, args);
	va_end(args);
}

/* Returns the value after the run, or 0 if the card lacks it. */
static uint64_t now(const struct validate_health *h, int item)
{
	return h->after.has >> item & 1 ? h->after.value[item] : 0;
}

/* Returns how much a counter grew during the run. A counter that was reset meanwhile counts from 0. */
static uint64_t grew(const struct validate_health *h, int item)
{
	uint64_t before = h->before.has >> item & 1 ? h->before.value[item] : 0, after = now(h, item);

	if (!(h->before.has >> item & 1) || !(h->after.has >> item & 1))
		return 0;
	return after < before || FAULT(TOTALS) ? after : after - before;
}

static void judge_memory(const struct validate_health *h, struct list *l)
{
	uint64_t bad = grew(h, CAIRN_NVML_ECC_UNCORRECTED), mended = grew(h, CAIRN_NVML_ECC_CORRECTED);

	if (bad)
		add(l, VALIDATE_FAIL, "%llu uncorrectable memory errors (ECC)", (unsigned long long)bad);
	if (mended)
		add(l, VALIDATE_WARN, "%llu corrected memory errors (ECC)", (unsigned long long)mended);
	if (now(h, CAIRN_NVML_REMAP_FAILED))
		add(l, VALIDATE_FAIL, "a row of the memory could not be remapped");
	if (now(h, CAIRN_NVML_REMAP_PENDING) && !FAULT(PENDING_IGNORED))
		add(l, VALIDATE_WARN, "a row of the memory waits to be remapped at the next reset");
}

static void judge_clock(const struct validate_health *h, struct list *l)
{
	if (h->reasons & VALIDATE_HW_SLOWDOWN || h->reasons & VALIDATE_HW_THERMAL)
		add(l, VALIDATE_FAIL, "the hardware slowed the clock down%s (at most %u degrees Celsius)",
		    h->reasons & VALIDATE_HW_THERMAL ? " because of heat" : "", h->max_celsius);
	if (h->reasons & VALIDATE_POWER_BRAKE)
		add(l, VALIDATE_FAIL, "the power supply's brake slowed the clock down");
	if (h->reasons & VALIDATE_SW_THERMAL)
		add(l, VALIDATE_WARN, "the driver slowed the clock down because of heat (at most %u degrees "
		    "Celsius)", h->max_celsius);
	if (FAULT(CAP_IS_FAULT) && h->reasons & VALIDATE_POWER_CAP)
		add(l, VALIDATE_FAIL, "power cap");
}

int32_t validate_health_judge(const struct validate_health *h, struct validate_finding *out, int32_t most)
{
	struct list l = { out, 0, most };
	uint64_t width = now(h, CAIRN_NVML_PCIE_WIDTH), widest = now(h, CAIRN_NVML_PCIE_MAX_WIDTH);
	int had = h->before.has >> CAIRN_NVML_LINKS_UP & 1;
	uint64_t links = had ? h->before.value[CAIRN_NVML_LINKS_UP] : 0;

	judge_memory(h, &l);
	judge_clock(h, &l);
	if (now(h, CAIRN_NVML_LINKS_UP) < links)
		add(&l, VALIDATE_FAIL, "%d of %d NVLinks went down",
		    (int)(links - now(h, CAIRN_NVML_LINKS_UP)), (int)links);
	if (width < widest && width)
		add(&l, VALIDATE_WARN, "PCIe has %d lanes of %d", (int)width, (int)widest);
	if (grew(h, CAIRN_NVML_PCIE_REPLAYS))
		add(&l, VALIDATE_WARN, "%llu PCIe packets were sent again",
		    (unsigned long long)grew(h, CAIRN_NVML_PCIE_REPLAYS));
	if (h->xid)
		add(&l, VALIDATE_FAIL, "the kernel's log has Xid %d", h->xid);
	if (h->own_xid)
		add(&l, VALIDATE_WARN, "the kernel's log has Xid %d, which an application causes: report it "
		    "as a bug of this program", h->own_xid);
	return l.num;
}

int32_t validate_xid(const char *line, const char *pci)
{
	const char *at = strstr(line, "Xid (PCI:");
	size_t n = strcspn(pci, ".");

	if (!at || strncasecmp(at + 9, pci, n) || at[9 + n] != ')')
		return 0;
	return at[10 + n] == ':' ? atoi(at + 11 + n) : 0;
}

int validate_xid_is_own(int32_t xid)
{
	return xid == 13 || xid == 31 || xid == 43 || xid == 45;
}
