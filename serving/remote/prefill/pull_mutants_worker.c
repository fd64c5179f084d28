// SPDX-License-Identifier: Apache-2.0
/* pull_mutants_worker - prefill_worker.c, compiled again with faults (pull_mutants.h) */
#include "serving/remote/prefill/pull_mutants.h"

#include "serving/remote/prefill/prefill_worker.c"
