// SPDX-License-Identifier: Apache-2.0
/* pull_mutants_link - pull_link.c, compiled again with faults (pull_mutants.h) */
#include "serving/remote/prefill/pull_mutants.h"

#include "serving/remote/pull/pull_link.c"
