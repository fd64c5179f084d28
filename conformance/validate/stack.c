// SPDX-License-Identifier: Apache-2.0
/*
 * stack - which versions run here, and whether the operations of the table pass the must-pass list
 *
 * `cairn check` runs in a process of its own, with one case of each family on the list (--sanitize=1). What
 * it has not judged when the time is over is left out, and the row says how many cases it has judged.
 */
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/suite/lists.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "conformance/validate/validate.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

enum { RECORDS_FD = 3, MAX_NAMED = 8, FIXED_ARGS = 14 };
#define HOST_LIMIT_S	600	/* a host may be busy with other work */
#define LEAST_S		2	/* a case starts a process with a context of its own */
#define ALIVE_S		10	/* the parent hears as often that the list still runs */

extern char **environ;

struct check {
	pid_t pid;
	int fd;
	char line[4096];
	size_t len;
	int passed, failed, ended;	/* ended: it has run to its end */
	json_t *row;
};

static int start_check(struct check *c, const struct validate_device *d, const struct cairn_list *list)
{
	char device[16], seed[32];
	const char *argv[FIXED_ARGS + 1] = { "cairn", "check", "--impl", d->opt->impl, "--device", device,
		"--seed", seed, "--sanitize=1", "--json", "/proc/self/fd/3",
		/* other GPUs run theirs at the same time */
		"--jobs", "4", "--" };
	const char **all = calloc((size_t)list->num + FIXED_ARGS + 1, sizeof(*all));
	posix_spawn_file_actions_t actions;
	int fds[2], ret;

	if (!all)
		return cairn_error(ENOMEM, "no memory for the must-pass list");
	if (pipe2(fds, O_CLOEXEC)) {
		free(all);
		return cairn_error(errno, "no pipe: %s", strerror(errno));
	}
	snprintf(device, sizeof(device), "%d", d->number);
	snprintf(seed, sizeof(seed), "%lld", (long long)d->opt->seed);
	memcpy(all, argv, sizeof(argv));
	for (int i = 0; i < list->num; i++)
		all[FIXED_ARGS + i] = list->rows[i].glob;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, 1, 2);
	posix_spawn_file_actions_adddup2(&actions, fds[1], RECORDS_FD);
	ret = posix_spawn(&c->pid, "/proc/self/exe", &actions, NULL, (char *const *)all, environ);
	posix_spawn_file_actions_destroy(&actions);
	free(all);
	close(fds[1]);
	if (ret) {
		close(fds[0]);
		return cairn_error(ret, "cairn check does not start: %s", strerror(ret));
	}
	c->fd = fds[0];
	return 0;
}

static void take_record(struct check *c)
{
	json_t *r = json_loads(c->line, 0, NULL);
	const char *verdict = json_string_value(json_object_get(r, "verdict"));
	const char *name = json_string_value(json_object_get(r, "check"));
	const char *text = json_string_value(json_object_get(r, "text"));

	if (verdict && name && !strcmp(verdict, "pass"))
		c->passed++;
	else if (verdict && name && strcmp(verdict, "skip") && c->failed++ < MAX_NAMED)
		validate_finding(c->row, VALIDATE_FAIL, json_string_value(json_object_get(r, "again")),
				 "%s: %.200s", name, text ? text : verdict);
	json_decref(r);
}

/* Reads records until the process has closed its end, or until `end`. */
static void read_records(struct check *c, double end, FILE *out)
{
	char some[4096];
	double left;

	while ((left = end - cairn_now()) > 0) {
		struct pollfd p = { .fd = c->fd, .events = POLLIN };
		int ready = poll(&p, 1, (int)ceil(1000 * fmin(left, ALIVE_S)));
		ssize_t n = ready > 0 ? read(c->fd, some, sizeof(some)) : -1;

		if (ready > 0 && n <= 0) {
			c->ended = 1;
			return;
		}
		fprintf(out, "P\n");
		for (ssize_t i = 0; i < n; i++) {
			if (some[i] != '\n') {
				/* a line that is too long is no record, and is dropped below */
				c->line[c->len] = some[i];
				c->len += c->len < sizeof(c->line) - 1;
				continue;
			}
			c->line[c->len] = 0;
			c->len = 0;
			take_record(c);
		}
	}
}

int validate_stack(struct validate_device *d, const struct validate_test *t, double seconds)
{
	struct cairn_list list = { 0, NULL };
	struct check c = { .pid = 0 };
	char path[4200];
	int status = 0;

	snprintf(path, sizeof(path), "%s/conformance/mustpass.txt", cairn_data_dir());
	if (cairn_list_load(path, 0, &list))
		return validate_not_run(d, t, cairn_last_error());
	if (start_check(&c, d, &list)) {
		cairn_list_free(&list);
		return validate_not_run(d, t, cairn_last_error());
	}
	cairn_list_free(&list);
	c.row = validate_row(t->name, t->required);
	read_records(&c, cairn_now() + (d->on_host ? HOST_LIMIT_S : fmax(seconds, LEAST_S)), d->out);
	close(c.fd);
	if (!c.ended)
		kill(c.pid, SIGKILL);
	waitpid(c.pid, &status, 0);
	if (c.failed > MAX_NAMED)
		validate_finding(c.row, VALIDATE_FAIL, NULL, "%d further cases failed", c.failed - MAX_NAMED);
	if (c.ended && !c.failed && (!WIFEXITED(status) || WEXITSTATUS(status)))
		validate_finding(c.row, VALIDATE_FAIL, NULL, "cairn check ended with status %d",
				 WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
	json_object_set_new(c.row, "versions", json_pack("{s:s, s:s, s:s}", "cairn", CAIRN_VERSION, "table",
							 d->impl.version ? d->impl.version : "", "driver",
							 d->info.driver));
	json_object_set_new(c.row, "cases", json_integer(c.passed + c.failed));
	validate_set(c.row, c.passed + c.failed || validate_verdict_of(c.row) == VALIDATE_FAIL ?
		     validate_verdict_of(c.row) : VALIDATE_NOT_RUN,
		     "cairn %s, %s %s, driver %s: %d cases of the must-pass list passed, %d failed%s",
		     CAIRN_VERSION, d->impl.name, d->impl.version ? d->impl.version : "",
		     *d->info.driver ? d->info.driver : "none", c.passed, c.failed,
		     c.ended ? "" : "; there was no time for the others");
	return validate_report(d, c.row);
}
