// SPDX-License-Identifier: Apache-2.0
/* nic_report.c - appends JSON lines to $CAIRN_NIC_REPORT, each in one write(), because processes may share
 * the file */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rdma/nic/nic_model.h"

#define MAX_LINES_PER_RULE 32

static const char *const rule_names[] = {
#define R(name, text) #name,
	NIC_RULES(R)
#undef R
};

static char path[1024];

void nic_report_open(void)
{
	const char *env = getenv("CAIRN_NIC_REPORT");

	snprintf(path, sizeof(path), "%s", env ? env : "");
}

/*
 * Opens the file for each line, with a direct system call, because the application may close any descriptor.
 */
static void append(const char *line, int bytes)
{
	int fd;

	if (!path[0])
		return;
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	(void)!syscall(SYS_write, fd, line, (size_t)bytes);
	syscall(SYS_close, fd);
}

void nic_report_rule(enum nic_rule rule, uint32_t qpn, uint32_t index, const char *text)
{
	char line[512];
	int n;

	if (nic_stats.by_rule[rule] > MAX_LINES_PER_RULE)
		return;
	n = snprintf(line, sizeof(line),
		     "{\"event\":\"rule\",\"rule\":\"%s\",\"pid\":%d,\"qpn\":%u,\"wqe\":%u,"
		     "\"text\":\"%s\"}\n",
		     rule_names[rule], (int)getpid(), qpn, index, text);
	append(line, n);
}

void nic_report_summary(void)
{
	const struct nic_stats *s = &nic_stats;
	const char *comma = "";
	char line[4096];
	int n, i;

#define U(member) (unsigned long long)s->member
	n = snprintf(line, sizeof(line), "{\"event\":\"summary\",\"pid\":%d,\"requests\":%llu,\"bytes\":%llu,"
		     "\"completions\":%llu,\"errors\":%llu,\"flushed\":%llu,\"doorbells\":%llu,"
		     "\"doorbell_wqe\":%llu,\"doorbell_index\":%llu,\"doorbell_early\":%llu,"
		     "\"blueflame\":%llu,"
		     "\"rnr\":%llu,\"arms\":%llu,\"events\":%llu,\"rules\":%llu,\"by_rule\":{",
		     (int)getpid(), U(requests), U(bytes),
		     U(completions), U(errors), U(flushed), U(doorbells), U(doorbell_wqe), U(doorbell_index),
		     U(doorbell_early), U(blueflame), U(rnr), U(arms), U(events),
		     U(rules));
	for (i = 0; i < NIC_NUM_RULES; i++) {
		if (!s->by_rule[i])
			continue;
		n += snprintf(line + n, sizeof(line) - (size_t)n, "%s\"%s\":%llu", comma, rule_names[i],
			      U(by_rule[i]));
		comma = ",";
	}
#undef U
	n += snprintf(line + n, sizeof(line) - (size_t)n, "}}\n");
	append(line, n);
}

void nic_report_error(int ret)
{
	char line[160];
	int n = snprintf(line, sizeof(line), "{\"event\":\"error\",\"pid\":%d,\"errno\":%d}\n",
			 (int)getpid(), -ret);

	append(line, n);
}

const struct nic_stats *cairn_nic_stats(void)
{
	return &nic_stats;
}

void cairn_nic_report(void)
{
	nic_report_summary();
}
