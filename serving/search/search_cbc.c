// SPDX-License-Identifier: Apache-2.0
/*
 * search_cbc - solves a program with cbc, the MILP solver of COIN-OR (Debian: coinor-cbc)
 *
 * cbc reads the LP file and the start, and writes its solution and its log to files of a temporary folder.
 */
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/search/search_lp_impl.h"

enum { GRACE_S = 10, MOST_BYTES = 64 << 20 };

struct run {
	char dir[PATH_MAX / 2];
	char lp[PATH_MAX], start[PATH_MAX], solution[PATH_MAX], log[PATH_MAX];
	bool has_start;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int open_run(struct run *r)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(r->dir, sizeof(r->dir), "%s/cairn-search-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(r->dir))
		return cairn_error(EIO, "%s: %s", r->dir, strerror(errno));
	snprintf(r->lp, sizeof(r->lp), "%s/model.lp", r->dir);
	snprintf(r->start, sizeof(r->start), "%s/start.txt", r->dir);
	snprintf(r->solution, sizeof(r->solution), "%s/solution.txt", r->dir);
	snprintf(r->log, sizeof(r->log), "%s/log.txt", r->dir);
	return 0;
}

static void close_run(struct run *r)
{
	unlink(r->lp);
	unlink(r->start);
	unlink(r->solution);
	unlink(r->log);
	rmdir(r->dir);
}

static int write_lp(const struct cairn_lp *lp, const char *path)
{
	FILE *file = fopen(path, "w");
	int bad;

	if (!file)
		return cairn_error(EIO, "%s: %s", path, strerror(errno));
	cairn_lp_write(lp, file);
	bad = ferror(file);
	bad |= fclose(file);
	return bad ? cairn_error(EIO, "%s: cannot be written", path) : 0;
}

/* Writes the start as cbc writes a solution: a heading, then index, name, value and cost of each column. */
static int write_start(const struct cairn_lp *lp, struct run *r)
{
	FILE *file = fopen(r->start, "w");

	if (!file)
		return cairn_error(EIO, "%s: %s", r->start, strerror(errno));
	fprintf(file, "start\n");
	for (int32_t i = 0; i < lp->num_cols; i++)
		if (lp->cols[i].has_start) {
			fprintf(file, "%d %s %.17g 0\n", i, lp->cols[i].name, lp->cols[i].start);
			r->has_start = true;
		}
	return fclose(file) ? cairn_error(EIO, "%s: cannot be written", r->start) : 0;
}

/*
 * In the child: runs cbc, with its output in the log. Returns only if it cannot be run. The child dies with
 * this process, also if that is killed.
 */
static void run_cbc(const struct run *r, const char *program, const struct cairn_lp_limits *limits,
		    pid_t parent)
{
	char seconds[32], gap[32];
	const char *argv[32] = { program, r->lp, "-timeMode", "elapsed", "-seconds", seconds,
				 "-ratioGap", gap, "-allowableGap", "1e-9",
				 "-primalTolerance", "1e-9", "-integerTolerance", "1e-9" };
	const char *const solve[] = { "-solve", "-printingOptions", "all", "-solution", r->solution, NULL };
	int n = 14, in = open("/dev/null", O_RDONLY), out = open(r->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	snprintf(seconds, sizeof(seconds), "%.3f", limits->seconds);
	snprintf(gap, sizeof(gap), "%g", limits->gap);
	if (r->has_start) {
		argv[n++] = "-mips";
		argv[n++] = r->start;
	}
	memcpy(argv + n, solve, sizeof(solve));
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent || dup2(in, 0) < 0 || dup2(out, 1) < 0 ||
	    dup2(out, 2) < 0)
		return;
	execvp(program, (char **)argv);
}

/* The pipe closes when the child runs cbc; otherwise it brings the error. */
static int spawn(const struct run *r, const struct cairn_lp_limits *limits, pid_t *pid)
{
	const char *program = getenv("CAIRN_CBC") ? getenv("CAIRN_CBC") : "cbc";
	pid_t parent = getpid();
	int report[2], err = 0;

	if (pipe2(report, O_CLOEXEC))
		return cairn_error(EIO, "solver: pipe: %s", strerror(errno));
	*pid = fork();
	if (*pid == 0) {
		run_cbc(r, program, limits, parent);
		err = errno;
		_exit(write(report[1], &err, sizeof(err)) != sizeof(err));
	}
	close(report[1]);
	if (*pid < 0 || read(report[0], &err, sizeof(err)) < 0)
		err = errno;
	close(report[0]);
	if (!err)
		return 0;
	if (*pid > 0)
		waitpid(*pid, NULL, 0);
	return err == ENOENT ?
	       cairn_error(ENOENT, "solver: no program '%s': install the package coinor-cbc", program) :
	       cairn_error(EIO, "solver: %s: %s", program, strerror(err));
}

/* Waits for the child, and kills it at the deadline. */
static int await(pid_t pid, double deadline)
{
	struct timespec pause = { 0, 1000000 };
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (now() > deadline) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return cairn_error(ETIMEDOUT, "solver: cbc did not end when its time was up");
		}
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 50000000)
			pause.tv_nsec += pause.tv_nsec / 4;
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return cairn_error(EIO, "solver: cbc failed (status %#x)", status);
	return 0;
}

/* Sets *value to the number after the last occurrence of key in text. Returns whether there is one. */
static int last_number(const char *text, const char *key, double *value)
{
	const char *at = NULL;
	char *end;

	for (const char *next = text; (next = strstr(next, key)); next += strlen(key))
		at = next + strlen(key);
	if (!at)
		return 0;
	*value = strtod(at, &end);
	return end != at && isfinite(*value);
}

/* cbc numbers columns in the order in which the LP file names them. */
static int32_t find_col(const struct cairn_lp *lp, const char *name)
{
	for (int32_t i = 0; i < lp->num_cols; i++)
		if (!strcmp(lp->cols[i].name, name))
			return i;
	return -1;
}

/* Reads a solution: a heading, then a line for each row and a line for each column. */
static int take_values(const struct cairn_lp *lp, char *text, double *values)
{
	char name[CAIRN_LP_NAME], *line, *rest = strchr(text, '\n');
	int32_t seen = 0, col;
	double value;

	for (; rest && (line = strtok_r(NULL, "\n", &rest)); seen++) {
		if (seen < lp->num_rows)
			continue;
		/* "**" marks a value that misses its bounds by more than the tolerance */
		if (sscanf(line + strspn(line, "* "), "%*d %31s %lf", name, &value) != 2 ||
		    (col = find_col(lp, name)) < 0 || !isfinite(value))
			return cairn_error(EIO, "solver: the solution's line %s is not understood",
					   CAIRN_QUOTED(line));
		values[col] = lp->cols[col].integer ? nearbyint(value) : value;
	}
	return seen == lp->num_rows + lp->num_cols ? 0 :
	       cairn_error(EIO, "solver: the solution has %d lines instead of %d", seen,
			   lp->num_rows + lp->num_cols);
}

static int take_answer(const struct cairn_lp *lp, const struct run *r, struct cairn_lp_answer *a)
{
	char *text = NULL, *log = NULL;
	size_t bytes;
	int ret = cairn_read_file(r->log, MOST_BYTES, &log, &bytes);

	if (!ret)
		ret = cairn_read_file(r->solution, MOST_BYTES, &text, &bytes);
	if (!ret && !strncmp(text, "Infeasible", 10))
		ret = cairn_error(EINVAL, "solver: no solution exists");
	else if (!ret && (strstr(log, "No feasible solution found") ||
			  !last_number(text, "objective value", &a->cost)))
		ret = cairn_error(ETIMEDOUT, "solver: no solution was found in time");
	if (!ret)
		ret = take_values(lp, text, a->values);
	if (!ret) {
		a->optimal = !strncmp(text, "Optimal", 7);
		/* the log has a bound unless the search has closed the gap */
		if (!last_number(log, "\nLower bound:", &a->bound))
			a->bound = a->optimal ? a->cost : -INFINITY;
	}
	free(text);
	free(log);
	return ret;
}

static int run(struct cairn_lp *lp, struct run *r, const struct cairn_lp_limits *limits,
	       struct cairn_lp_answer *a)
{
	double begin;
	pid_t pid = -1;

	CAIRN_TRY(write_lp(lp, r->lp));
	if (limits->dump)
		CAIRN_TRY(write_lp(lp, limits->dump));
	CAIRN_TRY(write_start(lp, r));
	begin = now();
	CAIRN_TRY(spawn(r, limits, &pid));
	CAIRN_TRY(await(pid, begin + limits->seconds + (limits->grace > 0 ? limits->grace : GRACE_S)));
	CAIRN_TRY(take_answer(lp, r, a));
	a->seconds = now() - begin;
	return 0;
}

int cairn_lp_solve(struct cairn_lp *lp, const struct cairn_lp_limits *limits, struct cairn_lp_answer *answer)
{
	struct cairn_lp_answer a = { .values = NULL };
	struct run r = { .has_start = false };
	int ret = lp->error;

	if (ret)
		return ret;
	a.values = calloc((size_t)lp->num_cols + 1, sizeof(*a.values));
	if (!a.values)
		return cairn_error(ENOMEM, "solver: out of memory");
	ret = open_run(&r);
	if (!ret) {
		ret = run(lp, &r, limits, &a);
		close_run(&r);
	}
	if (ret)
		free(a.values);
	else
		*answer = a;
	return ret;
}
