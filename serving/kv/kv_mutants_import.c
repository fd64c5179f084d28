// SPDX-License-Identifier: Apache-2.0
/* kv_mutants_import - the scheduler's imports, with faults */
#include "serving/kv/kv_mutants.h"

#include "serving/scheduler/scheduler_import.c"
