// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_start - lead_start.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/lead/lead_start.c"
