/* SPDX-License-Identifier: Apache-2.0 */
/* plugin - a table that lies in a shared object; for tables.c alone */
#ifndef CAIRN_PLUGIN_H
#define CAIRN_PLUGIN_H

#include "conformance/abi.h"

/*
 * Loads the table of a plug-in into *out and fills in a missing memory block. The shared object stays loaded.
 * -EINVAL: the file does not load, crashes or exits while it loads, lacks cairn_impl_get(), or is of another
 * ABI version; the message names a plug-in that is older.
 */
int cairn_plugin_open(const char *path, struct cairn_impl *out);

/*
 * Fills a missing memory and stream block with the built-in one. -ENODEV: it would be CUDA's, and this
 * build has none.
 */
int cairn_impl_add_runtime(struct cairn_impl *impl);

#endif
