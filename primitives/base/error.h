/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error - how every part of Cairn reports failure
 *
 * Functions return 0 or -errno. cairn_last_error() returns the text of this thread's last failure, which
 * names the file and field at fault. Library code never prints or exits.
 *
 *   -EINVAL      the caller's fault: null pointer, bad shape, malformed file
 *   -EOPNOTSUPP  legal, but not implemented here (the suite counts it as skipped)
 *   -ENODEV      this machine has no such device
 *   -ENOMEM      out of memory
 *   -ETIMEDOUT   a wait exceeded its time limit
 *   -EIO         CUDA, a file or the network failed
 */
#ifndef CAIRN_ERROR_H
#define CAIRN_ERROR_H

#include <errno.h>
#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets this thread's text (printf format, truncated at 511 bytes) and returns -err. */
int cairn_error(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " before the text already set; returns ret unchanged. */
int cairn_error_prefix(int ret, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns this thread's text: never NULL, "" if nothing has failed on this thread yet. */
const char *cairn_last_error(void);
void cairn_clear_error(void);

#ifdef __cplusplus
}
#endif

#define CAIRN_TRY(expr) do { int ret_ = (expr); if (ret_) return ret_; } while (0)

#endif
