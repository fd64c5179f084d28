/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commands - the subcommands implemented in this folder; each returns an enum cairn_exit status (command.h)
 */
#ifndef CAIRN_COMMANDS_H
#define CAIRN_COMMANDS_H

int cairn_cmd_generate(int argc, char **argv);
int cairn_cmd_attention_worker(int argc, char **argv);
int cairn_cmd_prefill_worker(int argc, char **argv);
int cairn_cmd_model_worker(int argc, char **argv);
int cairn_cmd_eval(int argc, char **argv);
int cairn_cmd_convert_gqa(int argc, char **argv);
int cairn_cmd_convert_slices(int argc, char **argv);
int cairn_cmd_graph(int argc, char **argv);
int cairn_cmd_profile(int argc, char **argv);
int cairn_cmd_disagg_plan(int argc, char **argv);
int cairn_cmd_search(int argc, char **argv);

#endif
