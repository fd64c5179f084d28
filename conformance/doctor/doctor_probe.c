// SPDX-License-Identifier: Apache-2.0
/* doctor_probe - findings, and the processes that try whatever may crash */
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/doctor/doctor_find.h"
#include "conformance/suite/child.h"
#include "primitives/base/error.h"

#define PROBE_TIMEOUT_S	20

struct doctor_finding *doctor_add(struct doctor_findings *all, const char *name, enum doctor_state state,
				  const char *costs, const char *type, const char *fmt, ...)
{
	/* once the list is full, further findings overwrite its last entry, which is not shown */
	struct doctor_finding *f = &all->list[all->num < DOCTOR_MOST - 1 ? all->num++ : DOCTOR_MOST - 1];
	va_list args;

	*f = (struct doctor_finding){ .name = name, .state = state, .costs = costs, .type = type };
	va_start(args, fmt);
	vsnprintf(f->found, sizeof(f->found), fmt, args);
	va_end(args);
	/* the text may come from a foreign library */
	for (char *c = f->found; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = ' ';
	return f;
}

struct tried {
	struct doctor_findings *all;
	const char *name, *costs, *type;
	void (*probe)(FILE *out, void *arg);
	void *arg;
	int lines;
};

static void run_probe(FILE *out, void *arg)
{
	struct tried *t = arg;
	int nowhere = open("/dev/null", O_WRONLY);

	/* a library may print while it is loaded; a bare container may lack the device */
	if (nowhere >= 0 && (dup2(nowhere, STDOUT_FILENO) < 0 || dup2(nowhere, STDERR_FILENO) < 0))
		return;
	t->probe(out, t->arg);
}

static void take_line(char *text, void *arg)
{
	struct tried *t = arg;
	char *end;
	long state = strtol(text, &end, 10);

	if (end == text || *end != '\t' || state < 0 || state >= DOCTOR_NUM_STATES)
		return;
	doctor_add(t->all, t->name, (enum doctor_state)state, t->costs, t->type, "%s", end + 1);
	t->lines++;
}

void doctor_probe(struct doctor_findings *all, const char *name, const char *costs, const char *type,
		  void (*probe)(FILE *out, void *arg), void *arg)
{
	struct tried t = { all, name, costs, type, probe, arg, 0 };
	struct cairn_child child = { .run = run_probe, .line = take_line, .arg = &t,
				     .timeout_s = PROBE_TIMEOUT_S };
	const char *seconds = getenv("CAIRN_TIMEOUT"), *death;

	if (seconds && atoi(seconds) > 0)
		child.timeout_s = atoi(seconds);
	death = cairn_child_run(&child);

	if (death)
		doctor_add(all, name, DOCTOR_BROKEN, costs, type, "the process that tried it: %s", death);
	else if (!t.lines)
		doctor_add(all, name, DOCTOR_BROKEN, costs, type, "the process that tried it said nothing");
}
