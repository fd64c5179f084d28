/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor - the command `cairn doctor`: what this machine has and lacks, what each lack costs, and its remedy
 *
 * Everything foreign (CUDA, optional libraries, and the CPU table, which may contain instructions that this
 * processor lacks) is tried in a separate process with a time-out. A library that crashes, hangs or exits
 * while it is loaded is one line of the report.
 */
#ifndef CAIRN_DOCTOR_H
#define CAIRN_DOCTOR_H

/*
 * Returns the exit status: 0 if the CPU table runs and, with --require-gpu, a usable GPU is there; else 1;
 * 2: bad usage.
 */
int cairn_cmd_doctor(int argc, char **argv);

#endif
