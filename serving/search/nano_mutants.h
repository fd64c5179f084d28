/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nano_mutants - compiles the modules of auto-search a second time, under other names and with faults
 * (nano_fault.h)
 *
 * Must be the first header of each nano_mutants_*.c, which then includes the modules themselves.
 */
#ifndef CAIRN_NANO_MUTANTS_H
#define CAIRN_NANO_MUTANTS_H

#define CAIRN_NANO_MUTANTS

#define cairn_nano_list_parts		mutant_nano_list_parts
#define cairn_nano_part_name		mutant_nano_part_name
#define cairn_nano_milp_open		mutant_nano_milp_open
#define cairn_nano_milp_deps		mutant_nano_milp_deps
#define cairn_nano_milp_apart		mutant_nano_milp_apart
#define cairn_nano_milp_kinds		mutant_nano_milp_kinds
#define cairn_nano_milp_solve		mutant_nano_milp_solve
#define cairn_nano_stage1		mutant_nano_stage1
#define cairn_nano_stage2		mutant_nano_stage2
#define cairn_plan_file_create		mutant_nano_plan_create
#define cairn_plan_file_free		mutant_nano_plan_free
#define cairn_plan_file_add		mutant_nano_plan_add
#define cairn_plan_file_path		mutant_nano_plan_path
#define cairn_plan_file_write		mutant_nano_plan_write
#define cairn_plan_file_parse		mutant_nano_plan_parse
#define cairn_plan_file_read		mutant_nano_plan_read
#define cairn_plan_file_pick		mutant_nano_plan_pick

#endif
