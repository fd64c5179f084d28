/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disagg_mutants - the names under which disagg_mutants.c compiles the modules a second time, with faults
 * (disagg_fault.h)
 *
 * Must be the first header of disagg_mutants.c, and of disagg_mutants_test.c, whose checks then call the
 * faulty modules.
 */
#ifndef CAIRN_DISAGG_MUTANTS_H
#define CAIRN_DISAGG_MUTANTS_H

#define CAIRN_DISAGG_MUTANTS

#define cairn_lanes_init		mutant_lanes_init
#define cairn_lanes_start		mutant_lanes_start
#define cairn_lanes_run			mutant_lanes_run
#define cairn_lanes_cycle		mutant_lanes_cycle
#define cairn_disagg_model_open		mutant_disagg_model_open
#define cairn_disagg_model_close	mutant_disagg_model_close
#define cairn_disagg_share		mutant_disagg_share
#define cairn_disagg_room		mutant_disagg_room
#define cairn_disagg_weights		mutant_disagg_weights
#define cairn_disagg_slice_us		mutant_disagg_slice_us
#define cairn_disagg_head_us		mutant_disagg_head_us
#define cairn_disagg_attn_us		mutant_disagg_attn_us
#define cairn_disagg_times		mutant_disagg_times
#define cairn_replay			mutant_replay
#define cairn_disagg_allows		mutant_disagg_allows
#define cairn_disagg_advise		mutant_disagg_advise
#define cairn_disagg_advice_free	mutant_disagg_advice_free

#endif
