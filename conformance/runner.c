// SPDX-License-Identifier: Apache-2.0
#include "runner.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "op_case.h"
#include "registry.h"

static const char *const kind_names[CAIRN_NUM_KINDS] = { "exact", "normal", "extreme", "poison" };

/* A glob names a case in full, or any leading part of its name up to a dot: primitives, *.rmsnorm, ... */
static int match_one(const char *glob, const char *name)
{
	char longer[256];

	if (!fnmatch(glob, name, 0))
		return 1;
	snprintf(longer, sizeof(longer), "%s.*", glob);
	return !fnmatch(longer, name, 0);
}

int cairn_glob_match(const struct cairn_options *opt, const struct cairn_family *f, const char *name)
{
	const char *short_name = name + strlen(f->stage) + 1;

	for (int i = 0; i < opt->num_skips; i++)
		if (match_one(opt->skips[i], name) || match_one(opt->skips[i], short_name))
			return 0;
	for (int i = 0; i < opt->num_globs; i++)
		if (match_one(opt->globs[i], name) || match_one(opt->globs[i], short_name))
			return 1;
	return opt->num_globs == 0;
}

int cairn_each(const struct cairn_options *opt, const struct cairn_family *f, cairn_each_fn fn, void *arg)
{
	struct cairn_selected s;
	const char *name;
	int ret;

	for (int i = 0; i < f->num_units; i++) {
		memset(&s, 0, sizeof(s));
		s.what = CAIRN_SEL_UNIT;
		s.case_index = i;
		snprintf(s.name, sizeof(s.name), "%s.%s.%s", f->stage, f->name, f->units[i].name);
		if (cairn_glob_match(opt, f, s.name) && (ret = fn(&s, arg)))
			return ret;
	}
	for (int i = 0; i < f->num_cases; i++) {
		memset(&s, 0, sizeof(s));
		f->describe(i, &s.desc);
		s.case_index = i;
		s.what = CAIRN_SEL_CASE;
		if (!s.desc.kinds)
			s.desc.kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
		for (int kind = 0; kind < CAIRN_NUM_KINDS; kind++) {
			if (!(s.desc.kinds & CAIRN_KIND_BIT(kind)))
				continue;
			s.kind = kind;
			snprintf(s.name, sizeof(s.name), "%s.%s.%s.%s", f->stage, f->name, s.desc.name,
				 kind_names[kind]);
			if (cairn_glob_match(opt, f, s.name) && (ret = fn(&s, arg)))
				return ret;
		}
	}
	for (int i = 0; f->reject; i++) {
		struct cairn_outcome *o = malloc(sizeof(*o));
		int more = o && cairn_op_reject(f, i, NULL, NULL, 0, &name, o);

		free(o);
		if (!more)
			break;
		memset(&s, 0, sizeof(s));
		s.what = CAIRN_SEL_REJECT;
		s.case_index = i;
		snprintf(s.name, sizeof(s.name), "%s.%s.reject_%s", f->stage, f->name, name);
		if (cairn_glob_match(opt, f, s.name) && (ret = fn(&s, arg)))
			return ret;
	}
	return 0;
}

static int say_yes(const struct cairn_selected *s, void *arg)
{
	(void)s;
	(void)arg;
	return 1;
}

int cairn_family_selected(const struct cairn_options *opt, const struct cairn_family *f)
{
	return cairn_each(opt, f, say_yes, NULL);
}

/* Seconds a case. $CAIRN_TIMEOUT overrides: a slow machine, or a test of the time-out itself */
static int timeout_of(const struct cairn_family *f, const struct cairn_options *opt)
{
	const char *env = getenv("CAIRN_TIMEOUT");
	int s = f->timeout_s ? f->timeout_s : 300;

	if (env && atoi(env) > 0)
		return atoi(env);
	return opt->sanitize ? 4 * s : s;
}

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

const char *cairn_run_child(cairn_child_fn fn, const struct cairn_family *f, const struct cairn_impl *impl,
			    const struct cairn_options *opt, void *arg,
			    void (*line)(char *text, void *line_arg), void *line_arg)
{
	static char death[96];
	int timeout_s = timeout_of(f, opt);
	double end = now_s() + timeout_s;
	size_t cap = 1 << 20, len = 0;
	int fds[2], status = 0, timed_out = 0;
	char *buf;
	pid_t self = getpid(), pid;

	fflush(NULL);
	if (pipe2(fds, O_CLOEXEC) < 0)
		return "no pipe";
	pid = fork();
	if (pid < 0)
		return "no process";
	if (pid == 0) {
		FILE *out = fdopen(fds[1], "w");

		close(fds[0]);
		setpgid(0, 0);
		/* who ends the suite ends this: in a group of its own, it would go on using the device */
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != self)
			_exit(1);
		setvbuf(out, NULL, _IOLBF, 1 << 16);
		fn(out, f, impl, opt, arg);
		fclose(out);
		_exit(0);
	}
	close(fds[1]);
	buf = malloc(cap);
	while (buf) {
		struct pollfd p = { .fd = fds[0], .events = POLLIN };
		double left = end - now_s();
		char *start = buf, *nl;
		ssize_t n;

		if (left <= 0) {
			timed_out = 1;
			break;
		}
		if (poll(&p, 1, (int)(left * 1000) + 1) <= 0)
			continue;
		if (len == cap - 1) {
			char *bigger = realloc(buf, cap *= 2);

			if (!bigger)
				break;
			buf = start = bigger;
		}
		n = read(fds[0], buf + len, cap - 1 - len);
		if (n <= 0)
			break;
		len += n;
		buf[len] = 0;
		while ((nl = strchr(start, '\n'))) {
			*nl = 0;
			line(start, line_arg);
			start = nl + 1;
			end = now_s() + timeout_s;
		}
		len -= start - buf;
		memmove(buf, start, len);
	}
	if (timed_out)
		kill(-pid, SIGKILL);
	close(fds[0]);
	free(buf);
	waitpid(pid, &status, 0);
	kill(-pid, SIGKILL);	/* whatever it left behind */
	if (timed_out)
		snprintf(death, sizeof(death), "TIMEOUT after %d s", timeout_s);
	else if (WIFSIGNALED(status))
		snprintf(death, sizeof(death), "CRASH: signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		snprintf(death, sizeof(death), "EXIT with status %d", WEXITSTATUS(status));
	else
		return NULL;
	return death;
}

int cairn_close_json(FILE *json, const struct cairn_options *opt, const char *command)
{
	int lost;

	if (!json)
		return 0;
	lost = ferror(json);
	if (!fclose(json) && !lost)
		return 0;
	fprintf(stderr, "cairn %s: --json: %s: cannot be written\n", command, opt->json);
	return -EIO;
}
