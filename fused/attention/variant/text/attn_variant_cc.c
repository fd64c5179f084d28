// SPDX-License-Identifier: Apache-2.0
/* attn_variant_cc - compiles the hooks of a text for the host, with the system's compiler */
#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fused/attention/variant/text/attn_variant_compile.h"
#include "fused/attention/variant/text/attn_variant_headers.h"
#include "fused/attention/variant/text/attn_variant_scan.h"
#include "primitives/base/error.h"

#define TABLE	"attn_variant_table"

int attn_variant_cc_limit_s = 60;

void attn_variant_define(unsigned int hooks, char lines[512])
{
	size_t n = 0;

	lines[0] = 0;
	for (int h = 0; h < ATTN_NUM_HOOKS; h++) {
		const char *name = attn_variant_hook_name(h);

		if (!(hooks >> h & 1))
			continue;
		n += (size_t)snprintf(lines + n, 512 - n, "#define ATTN_");
		for (; *name; name++)
			lines[n++] = (char)toupper((unsigned char)*name);
		n += (size_t)snprintf(lines + n, 512 - n, "\n");
	}
}

/* The files of a compilation, in a directory of their own. */
struct files {
	char dir[256], source[280], library[280], log[280];
};

static int make_files(struct files *f)
{
	const char *tmp = getenv("TMPDIR");

	if (snprintf(f->dir, sizeof(f->dir), "%s/cairn-variant-XXXXXX", tmp && tmp[0] ? tmp : "/tmp") >=
	    (int)sizeof(f->dir) || !mkdtemp(f->dir))
		return cairn_error(EIO, "attn_variant: %s: %s", f->dir, strerror(errno));
	snprintf(f->source, sizeof(f->source), "%s/text.c", f->dir);
	snprintf(f->library, sizeof(f->library), "%s/text.so", f->dir);
	snprintf(f->log, sizeof(f->log), "%s/log", f->dir);
	return 0;
}

static void remove_files(const struct files *f)
{
	unlink(f->source);
	unlink(f->library);
	unlink(f->log);
	rmdir(f->dir);
}

static int write_source(const struct files *f, const struct attn_variant_text *t, int exact)
{
	char defines[512];
	FILE *out = fopen(f->source, "w");
	int bad;

	if (!out)
		return cairn_error(EIO, "attn_variant: %s: %s", f->source, strerror(errno));
	attn_variant_define(t->hooks, defines);
	fprintf(out, "#define real %s\n%s%s%s", exact ? "double" : "float",
		exact ? "#define ATTN_EXACT\n" : "", defines, attn_variant_text_h);
	fprintf(out, "#line 1 \"text\"\n%s\n#line 1 \"hooks\"\n", t->text);
	fprintf(out, "#define ATTN_TABLE " TABLE "\n"
		"extern const struct attn_hooks ATTN_TABLE __attribute__((visibility(\"default\")));\n%s",
		attn_variant_hooks_h);
	bad = ferror(out);
	return fclose(out) || bad ? cairn_error(EIO, "attn_variant: %s: cannot be written", f->source) : 0;
}

/*
 * Waits for a process group's leader, and stops the group after the limit. Returns 0; -ETIMEDOUT; or -EIO if
 * there is nothing to wait for, because this process ignores SIGCHLD or another thread waits for any child.
 */
static int wait_for(pid_t pid, const char *name, int *status)
{
	const struct timespec pause = { 0, 5000000 };

	for (int i = 0; i < 200 * attn_variant_cc_limit_s; i++) {
		pid_t ended = waitpid(pid, status, WNOHANG);

		if (ended == pid)
			return 0;
		if (ended < 0 && errno != EINTR)
			return cairn_error(EIO, "%s: cc: its exit status is lost: %s", name, strerror(errno));
		nanosleep(&pause, NULL);
	}
	kill(-pid, SIGKILL);
	while (waitpid(pid, status, 0) < 0 && errno == EINTR)
		;
	return cairn_error(ETIMEDOUT, "%s: cc has not ended after %d s", name, attn_variant_cc_limit_s);
}

/* Runs the compiler. Sets *exit_status to its exit status, or to -1 if there is none. */
static int run_compiler(const struct files *f, const char *name, int *exit_status)
{
	char *argv[] = {
		"cc", "-std=gnu11", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared",
		"-fvisibility=hidden", "-Werror=implicit-function-declaration", "-o", (char *)f->library,
		(char *)f->source, "-lm", NULL,
	};
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	extern char **environ;
	int status, ret;
	pid_t pid;

	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, f->log, O_WRONLY | O_CREAT, 0600);
	posix_spawn_file_actions_adddup2(&actions, 1, 2);
	ret = posix_spawnp(&pid, "cc", &actions, &attr, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	*exit_status = -1;
	if (ret)
		return 0;
	CAIRN_TRY(wait_for(pid, name, &status));
	if (!WIFEXITED(status))
		*exit_status = 1;
	else if (WEXITSTATUS(status) != 127)
		*exit_status = WEXITSTATUS(status);
	return 0;
}

/* Sets the error text to the compiler's first error, with the line of the text. */
static int say_error(const struct files *f, const char *name)
{
	char line[512], first[512] = "the compiler failed", *error;
	FILE *in = fopen(f->log, "r");
	int at = 0, known = 0;

	while (in && !known && fgets(line, sizeof(line), in)) {
		line[strcspn(line, "\n")] = 0;
		error = strstr(line, "error: ");
		if (!error)
			continue;
		known = sscanf(line, "text:%d:", &at) == 1;
		snprintf(first, sizeof(first), "%s", error + 7);
	}
	if (in)
		fclose(in);
	if (known)
		return cairn_error(EINVAL, "%s:%d: %s", name, at, first);
	return cairn_error(EINVAL, "%s: %s", name, first);
}

/* Compiles the text in float or in double. Returns 1 if there is no compiler. */
static int compile(struct attn_variant_text *t, int exact)
{
	struct files f;
	int status = 1, ret;

	CAIRN_TRY(make_files(&f));
	ret = write_source(&f, t, exact);
	if (!ret)
		ret = run_compiler(&f, t->name, &status);
	if (!ret && status > 0)
		ret = say_error(&f, t->name);
	if (!ret && !status) {
		t->library[exact] = dlopen(f.library, RTLD_NOW | RTLD_LOCAL);
		t->tables[exact] = t->library[exact] ? dlsym(t->library[exact], TABLE) : NULL;
		if (!t->tables[exact])
			ret = cairn_error(EINVAL, "%s: %s", t->name, dlerror());
	}
	remove_files(&f);
	return ret ? ret : status < 0;
}

int attn_variant_compile_host(struct attn_variant_text *t)
{
	int ret = compile(t, 1);

	return ret == 0 ? compile(t, 0) : ret > 0 ? 0 : ret;
}
