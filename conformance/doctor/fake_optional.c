// SPDX-License-Identifier: Apache-2.0
/*
 * fake_optional - a library that takes the place of another, for the tests of `cairn doctor`
 *
 * It has none of the functions of any library. $CAIRN_FAKE_OPTIONAL says what loading it does: "crash",
 * "exit", "hang", or "noise", which prints lines that look like findings.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void act(void)
{
	const char *what = getenv("CAIRN_FAKE_OPTIONAL");

	if (what && !strcmp(what, "crash"))
		raise(SIGSEGV);
	if (what && !strcmp(what, "exit"))
		exit(0);
	while (what && !strcmp(what, "hang"))
		pause();
	if (what && !strcmp(what, "noise")) {
		printf("0\tnoise\n");
		fflush(stdout);
	}
}
