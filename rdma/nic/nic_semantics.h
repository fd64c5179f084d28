/* SPDX-License-Identifier: Apache-2.0 */
/* nic_semantics - parts of the program nic_semantics; include nic_verbs.h first */
#ifndef CAIRN_NIC_SEMANTICS_H
#define CAIRN_NIC_SEMANTICS_H

void nic_semantics_events(struct end *a, struct end *b);

#endif
