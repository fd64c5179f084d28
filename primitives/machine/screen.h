/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen - runs the same work on every compute unit, so that a unit that computes wrongly differs from the
 * others
 *
 * A unit is an SM, or a thread of a host table. It has CAIRN_SCREEN_PARTS parts, the sub-partitions of an SM
 * with a tensor core each. A round has `steps` steps; in each step every part computes num_words results of
 * 32 bits, cairn_screen_words(program). Inputs and results depend on (program, inputs, seed, round, part,
 * step) alone, never on the unit, so that all units must give equal bits. Rounds are numbered first_round,
 * first_round + 1, ... The words of the inputs, and the order in which a program uses them, are defined in
 * screen_words.h.
 *
 *   program       what a part does in step s; its words
 *   F16 .. S8     A product on tensor cores. Tile A has 64 rows, tile B 128 rows of 512 bytes, drawn anew
 *                 each round and cut into 16 slices of 32 bytes a row: D = sum over i of A_i B_((i + s) mod
 *                 16)^T. Part p computes rows 16 p to 16 p + 15 of D [64, 128]: word 128 r + c is element
 *                 (16 p + r, c), fp32 or, for S8, int32.
 *   F32           Eight chains in each of 32 lanes: CAIRN_SCREEN_F32_LINKS times x = d - (a x + b) x, two
 *                 fused multiply-adds, with b = -6 a and d = 4 - 9 a. x stays between 2 and 4, and a wrong
 *                 bit grows from link to link. Word 32 j + lane is chain j.
 *   F64           Four chains in each lane, CAIRN_SCREEN_F64_LINKS times, in fp64. Words 64 j + lane and 64 j
 *                 + 32 + lane are the low and the high half of chain j.
 *   INT           Eight words in each lane, mixed CAIRN_SCREEN_INT_LINKS times by multiply-add, rotation,
 *                 logic and shuffles between lanes. Every link is a bijection. Word 32 j + lane is word j.
 *   SPECIAL       64 values in each lane: value n is function n mod 8 of enum cairn_screen_function. Word 32
 *                 n + lane is value n, evaluated three times: 3 y1 - y2 - y3 modulo 2^32, with the bits of
 *                 the evaluations as integers. One wrong evaluation always changes the word, and so do two
 *                 equally wrong ones, unless the sign alone is wrong.
 *   MEMORY        A march over 8 KiB of shared memory: the words are written, CAIRN_SCREEN_COMPLEMENTS times
 *                 read and replaced by their complements through 64 registers of each lane, downwards and
 *                 upwards in turn, read again at other banks and rotated left by 1, and read by ldmatrix.
 *                 Word i is what the last read finds at word i.
 *   MIX           Step s runs cairn_screen_drawn(seed, inputs, round, s mod CAIRN_SCREEN_GROUPS), a program
 *                 drawn for each group of warps and round, with the inputs of that program.
 *
 *   inputs        EXACT    Tensor programs: small integers, whose sums are exact in any order, and never 0.
 *                 RANDOM   Random bits, limited to exponents for which sums remain finite.
 *                 TOGGLE   Words that alternate with their complements every 32 bytes, limited likewise.
 *
 * cairn_screen_is_defined() says for which calls the contract defines every bit: all programs with EXACT
 * inputs except SPECIAL (MIX then draws none), and S8, F32, F64, INT and MEMORY with any inputs. Elsewhere
 * hardware may round as it likes, and digests differ between tables and between models of GPU. Two things
 * are still judged: all units of a device give equal bits, every time, and raw results lie within the bounds
 * of cairn_screen_exact(), which computes in double precision.
 *
 *   argument     dtype   shape                      notes
 *   digest       uint64  [rounds, units, PARTS, 2]  out: two sums modulo 2^64 over the words w(s, i) of all
 *                                                   steps: the sum of w, and that of w times (2 (s
 *                                                   CAIRN_SCREEN_WORDS + i) + 1), which shows moved words
 *   start_ns     int64   [rounds, units]            out: when the first step began, by a clock that all
 *                                                   units share
 *   cycles       int64   [rounds, units, PARTS]     out: cycles of the unit's clock from the first step to
 *                                                   the last of the part, digests included; 0: no clock
 *   place        int32   [rounds, units]            out: number of the physical unit (%smid), 0 or above; -1:
 *                                                   the unit did not run the round, or moved during it
 *   raw          uint32  [units, PARTS, WORDS]      out, may be NULL: the results of the last step of the
 *                                                   last round; words from num_words on are 0
 *
 * Where a place is -1, all other outputs of that round are 0; so is raw, if the place in the last round is
 * -1. With only = -1, min(units, number of the device's units) run, one on each physical unit if nothing else
 * runs on the device, and the others have place -1. Else `only` is the number of the one physical unit that
 * runs, and units is 1; the place is -1 if the device does not have it. A host table has every number. With
 * last_only the digest covers the last step alone, while all steps run: the difference in time is the
 * digests' cost.
 *
 * Supported:   rounds 1..CAIRN_SCREEN_MAX_ROUNDS, steps 1..CAIRN_SCREEN_MAX_STEPS, first_round 0..2^62,
 *              units 1..CAIRN_SCREEN_MAX_UNITS.
 * Determinism: digest and raw of units that ran are repeatable; times and places are measurements.
 * Stream:      asynchronous; no allocation on the device; graph-capturable.
 * Errors:      -EINVAL, -EIO; -ENOMEM (host tables); -EOPNOTSUPP (the device lacks the shared memory).
 */
#ifndef CAIRN_SCREEN_H
#define CAIRN_SCREEN_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_SCREEN_PARTS	4
#define CAIRN_SCREEN_GROUPS	4	/* groups of warps, one warp for each part; step s runs on s mod 4 */
#define CAIRN_SCREEN_WORDS	2048	/* the most words that a part computes in a step */
#define CAIRN_SCREEN_MAX_ROUNDS	4096
#define CAIRN_SCREEN_MAX_STEPS	4096
#define CAIRN_SCREEN_MAX_UNITS	4096
#define CAIRN_SCREEN_F32_LINKS	128
#define CAIRN_SCREEN_F64_LINKS	64
#define CAIRN_SCREEN_INT_LINKS	64
#define CAIRN_SCREEN_COMPLEMENTS	5

enum cairn_screen_program {
	/* tensor cores, by the type of both operands */
	CAIRN_SCREEN_F16, CAIRN_SCREEN_BF16, CAIRN_SCREEN_TF32, CAIRN_SCREEN_E4M3, CAIRN_SCREEN_E5M2,
	CAIRN_SCREEN_S8,
	/* lanes */
	CAIRN_SCREEN_F32, CAIRN_SCREEN_F64, CAIRN_SCREEN_INT, CAIRN_SCREEN_SPECIAL,
	CAIRN_SCREEN_MEMORY,
	CAIRN_SCREEN_MIX,
	CAIRN_SCREEN_NUM_PROGRAMS
};
#define CAIRN_SCREEN_NUM_TENSOR	(CAIRN_SCREEN_S8 + 1)

enum cairn_screen_inputs {
	CAIRN_SCREEN_EXACT, CAIRN_SCREEN_RANDOM, CAIRN_SCREEN_TOGGLE, CAIRN_SCREEN_NUM_INPUTS
};

/* the functions of SPECIAL, as the approximations that the hardware has */
enum cairn_screen_function {
	CAIRN_SCREEN_EX2, CAIRN_SCREEN_LG2, CAIRN_SCREEN_RCP, CAIRN_SCREEN_RSQRT,
	CAIRN_SCREEN_SQRT, CAIRN_SCREEN_SIN, CAIRN_SCREEN_COS, CAIRN_SCREEN_TANH,
	CAIRN_SCREEN_NUM_FUNCTIONS
};

struct cairn_screen_args {
	size_t size;		/* sizeof(struct cairn_screen_args) */
	uint64_t *digest;
	int64_t *start_ns, *cycles;
	int32_t *place;
	uint32_t *raw;
	uint64_t seed;
	int64_t first_round;
	int32_t program, inputs;	/* enum cairn_screen_program, enum cairn_screen_inputs */
	int32_t units, rounds, steps;
	int32_t only, last_only;
};

#ifdef __cplusplus
extern "C" {
#endif

int cairn_screen(const struct cairn_screen_args *args, void *stream);
int cairn_screen_cpu(const struct cairn_screen_args *args, void *stream);
int cairn_screen_ref(const struct cairn_screen_args *args, void *stream);
/* Checks args for every implementation here: 0, -EINVAL or -EOPNOTSUPP with the error text set. */
int cairn_screen_check(const struct cairn_screen_args *args);

/* Returns "f16", "mix" and so on, for messages and the names of cases; NULL if there is no such program. */
const char *cairn_screen_program_name(int32_t program);
const char *cairn_screen_inputs_name(int32_t inputs);
/* Returns how many words a part computes in a step of a program other than MIX. */
int32_t cairn_screen_words(int32_t program);
/*
 * Returns how many operations a part does in a step of a program other than MIX, to count what a run has
 * seen: wgmma instructions (m64n128, a quarter of which is the part's); multiplications and multiply-adds of
 * F32 and F64; integer instructions and shuffles of lanes; evaluations of SPECIAL; accesses to words of
 * memory.
 */
int64_t cairn_screen_operations(int32_t program);
/* Returns whether the contract defines every bit of a program's results. */
int cairn_screen_is_defined(int32_t program, int32_t inputs);
/* Returns the program that a group of warps runs in a round of MIX; group 0 draws a tensor program. */
int32_t cairn_screen_drawn(uint64_t seed, int32_t inputs, int64_t round, int32_t group);
/*
 * Computes one step of one part by the reference. val[i] is word i as a number: an fp32, or for S8, INT and
 * MEMORY the integer; for F64 the value of the chain, in both of its words. bound[i] is the largest error
 * that a correct unit may make, and word[i] the very bits; if results are defined, bounds are 0, else the
 * bits are those of the reference alone. All three arrays hold CAIRN_SCREEN_WORDS elements; NULL: not wanted.
 * Returns the number of words, or -ENOMEM. In MIX the program is the one drawn for the step.
 */
int cairn_screen_exact(const struct cairn_screen_args *args, int64_t round, int32_t part, int32_t step,
		       double *val, double *bound, uint32_t *word);

#ifdef __cplusplus
}
#endif
#endif
