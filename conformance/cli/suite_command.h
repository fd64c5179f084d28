/* SPDX-License-Identifier: Apache-2.0 */
/* suite_command - the commands list, check and bench */
#ifndef CAIRN_SUITE_COMMAND_H
#define CAIRN_SUITE_COMMAND_H

/* cmd: "list", "check" or "bench". program: see struct cairn_options. Returns the program's exit status. */
int cairn_suite_command(const char *cmd, int argc, char **argv, const char *program);

#endif
