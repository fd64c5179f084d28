// SPDX-License-Identifier: Apache-2.0
/* validate_mutants - the judges with fault injection (validate_fault.h) */
#include "conformance/validate/validate_mutants.h"

#include "conformance/validate/validate_fault.h"

int validate_fault;

#define judge_round	bits_judge_round
#include "conformance/validate/judge.c"
#undef judge_round
#include "conformance/validate/rates.c"
#include "conformance/validate/links_judge.c"
#include "conformance/validate/health.c"
