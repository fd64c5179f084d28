/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_hang - a kernel that waits at an mbarrier for ever; a DEBUG build ends it with -EIO and a message
 */
#ifndef CAIRN_PTX_HANG_H
#define CAIRN_PTX_HANG_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Launches the kernel and synchronises. Returns -EIO after the time-out; the process can no longer use the
 * device then. Returns -EOPNOTSUPP without launching in builds without DEBUG.
 */
int cairn_ptx_hang(void);

#ifdef __cplusplus
}
#endif
#endif
