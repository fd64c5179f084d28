// SPDX-License-Identifier: Apache-2.0
/* remote_mutants_journal - journal.c and journal_write.c, compiled again with faults (remote_mutants.h) */
#include "serving/remote/remote_mutants.h"

#include "serving/remote/attention/journal.c"
#include "serving/remote/attention/journal_write.c"
