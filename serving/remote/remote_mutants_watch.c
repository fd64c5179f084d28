// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_watch - lead_watch.c and lead_guest.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/lead/lead_guest.c"
#include "serving/remote/lead/lead_watch.c"
