/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_model - model checking of the pool, the prefix tree and the scheduler
 *
 * A model runs a list of operations on a module and in parallel on plain arrays that give the expected
 * result; after each operation it checks the whole state. An operation is four numbers that are valid in
 * every state: handles are taken modulo the number that exist. Any subset of a list is therefore a valid
 * list, and a failing list can be shrunk to the few operations that matter, which are then printed.
 *
 * The models are compiled twice: against the modules and against their copies with faults (kv_fault.h,
 * kv_mutants.h).
 */
#ifndef CAIRN_KV_MODEL_H
#define CAIRN_KV_MODEL_H

#include <stddef.h>
#include <stdint.h>

struct kv_op {
	uint8_t what;
	uint32_t a, b, c;
};

struct kv_model {
	const char *name;
	const char *const *ops;		/* their names, [num_ops] */
	int num_ops;
	/* Runs a list on a fresh module. Returns n, or the number of the first operation after which the
	 * state is wrong, with the reason in why. */
	int (*run)(const struct kv_op *ops, int n, char *why, size_t why_len);
};

extern const struct kv_model kv_model_pool, kv_model_tree, kv_model_scheduler;
extern const struct kv_model mutant_model_pool, mutant_model_tree, mutant_model_scheduler;

/* Draws a list of n operations from a seed, which it advances. */
void kv_model_draw(const struct kv_model *m, struct kv_op *ops, int n, uint64_t *seed);

/* Shrinks a failing list until no single operation can be left out; returns its new length. */
int kv_model_shrink(const struct kv_model *m, struct kv_op *ops, int n);

/* Writes the list as text, one operation per line, and the failure after the last. */
void kv_model_print(const struct kv_model *m, const struct kv_op *ops, int n, char *text, size_t len);

#endif
