/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_hang - a kernel that waits at an mbarrier for ever: what a DEBUG build makes of
 * it is -EIO and a message
 */
#ifndef CAIRN_PTX_HANG_H
#define CAIRN_PTX_HANG_H

#ifdef __cplusplus
extern "C" {
#endif

/* Launches it and waits. The device is of no use to this process afterwards. -EOPNOTSUPP without DEBUG. */
int cairn_ptx_hang(void);

#ifdef __cplusplus
}
#endif
#endif
