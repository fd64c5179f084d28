/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_mutants - compiles the modules of auto-search a second time, under other names and with faults
 * (search_fault.h)
 *
 * Must be the first header of each search_mutants_*.c, which then includes the modules themselves.
 */
#ifndef CAIRN_SEARCH_MUTANTS_H
#define CAIRN_SEARCH_MUTANTS_H

#define CAIRN_SEARCH_MUTANTS

#define cairn_search_list_parts		mutant_search_list_parts
#define cairn_search_part_name		mutant_search_part_name
#define cairn_search_milp_open		mutant_search_milp_open
#define cairn_search_milp_deps		mutant_search_milp_deps
#define cairn_search_milp_apart		mutant_search_milp_apart
#define cairn_search_milp_kinds		mutant_search_milp_kinds
#define cairn_search_milp_solve		mutant_search_milp_solve
#define cairn_search_stage1		mutant_search_stage1
#define cairn_search_stage2		mutant_search_stage2
#define cairn_plan_file_create		mutant_search_plan_create
#define cairn_plan_file_free		mutant_search_plan_free
#define cairn_plan_file_add		mutant_search_plan_add
#define cairn_plan_file_name		mutant_search_plan_name
#define cairn_plan_file_write		mutant_search_plan_write
#define cairn_plan_file_parse		mutant_search_plan_parse
#define cairn_plan_file_read		mutant_search_plan_read
#define cairn_plan_file_has_gain	mutant_search_plan_has_gain
#define cairn_plan_lanes_free		mutant_search_plan_lanes_free
#define cairn_plan_lanes_make		mutant_search_plan_lanes_make
#define cairn_plan_file_pick		mutant_search_plan_pick

#endif
