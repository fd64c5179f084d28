// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_share - share.c and pass.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/attention/share.c"
#include "serving/remote/attention/pass.c"
