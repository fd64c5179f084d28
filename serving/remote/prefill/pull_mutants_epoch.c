// SPDX-License-Identifier: Apache-2.0
/* pull_mutants_epoch - prefill_epoch.c, compiled again with faults (pull_mutants.h) */
#include "serving/remote/prefill/pull_mutants.h"

#include "serving/remote/prefill/prefill_epoch.c"
