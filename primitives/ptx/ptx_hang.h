/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_hang - a kernel that waits for an mbarrier for ever; a DEBUG build ends it with -EIO and a message
 */
#ifndef CAIRN_PTX_HANG_H
#define CAIRN_PTX_HANG_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Launches the kernel and synchronises. Returns -EIO after the time-out; from then on, the process cannot use
 * the device. In a build without DEBUG, returns -EOPNOTSUPP without launching.
 */
int cairn_ptx_hang(void);

#ifdef __cplusplus
}
#endif
#endif
