// SPDX-License-Identifier: Apache-2.0
/* pull_mutants_pull - the server's end of a pull, compiled again with faults (pull_mutants.h) */
#include "serving/remote/prefill/pull_mutants.h"

#include "serving/remote/pull/pull.c"
#include "serving/remote/pull/pull_link.c"
#include "serving/remote/pull/pull_runs.c"
