/* SPDX-License-Identifier: Apache-2.0 */
/*
 * validate_mutants - the names under which validate_mutants.c compiles the judges a second time, with faults
 * (validate_fault.h)
 *
 * Must be the first header of validate_mutants.c, and of validate_mutants_test.c, whose checks then call the
 * faulty judges.
 */
#ifndef CAIRN_VALIDATE_MUTANTS_H
#define CAIRN_VALIDATE_MUTANTS_H

#define CAIRN_VALIDATE_MUTANTS

#define validate_majority	mutant_majority
#define validate_bits_add	mutant_bits_add
#define validate_bits_places	mutant_bits_places
#define validate_bits_least	mutant_bits_least
#define validate_bits_evidence	mutant_bits_evidence
#define validate_unit_verdict	mutant_unit_verdict
#define validate_bits_verdict	mutant_bits_verdict
#define validate_excludes	mutant_excludes
#define validate_bits_unseen	mutant_bits_unseen
#define validate_outvoted	mutant_outvoted
#define validate_finds		mutant_finds
#define validate_verdict_name	mutant_verdict_name
#define validate_tally_add	mutant_tally_add
#define validate_exit		mutant_exit
#define validate_median		mutant_median
#define validate_slow		mutant_slow
#define validate_levels		mutant_levels
#define validate_polish		mutant_polish
#define validate_windows	mutant_windows
#define validate_series_add	mutant_series_add
#define validate_beyond		mutant_beyond
#define validate_range_verdict	mutant_range_verdict
#define validate_slow_links	mutant_slow_links
#define validate_link_verdict	mutant_link_verdict
#define validate_down_verdict	mutant_down_verdict
#define validate_health_judge	mutant_health_judge
#define validate_xid		mutant_xid
#define validate_xid_is_own	mutant_xid_is_own

#endif
