// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_lead - lead.c and lead_epoch.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/lead/lead.c"
#include "serving/remote/lead/lead_epoch.c"
