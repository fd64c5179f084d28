/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_model - model checking of the pool, the prefix tree and the scheduler
 *
 * A model carries out a list of operations on a module and, beside it, on plain arrays that say what must
 * come out; after each it looks at everything. Operations are four numbers that mean something in every
 * state (handles are taken modulo what is there), so that any part of a list is a list: one that fails can
 * be cut down to a few operations that still fail, which is what gets printed.
 *
 * The models are compiled twice: over the modules, and over their armed twins (kv_fault.h, kv_mutants.h).
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
	/* Runs a list over a fresh module: n, or the number of the first operation after which something is
	 * wrong, with why. */
	int (*run)(const struct kv_op *ops, int n, char *why, size_t why_len);
};

extern const struct kv_model kv_model_pool, kv_model_tree, kv_model_scheduler;
extern const struct kv_model mutant_model_pool, mutant_model_tree, mutant_model_scheduler;

/* A list of n operations from a seed, which it advances. */
void kv_model_draw(const struct kv_model *m, struct kv_op *ops, int n, uint64_t *seed);

/* Cuts a failing list down until no single operation can be left out: its new length. */
int kv_model_shrink(const struct kv_model *m, struct kv_op *ops, int n);

/* The list as text, one operation a line, and what is wrong after the last. */
void kv_model_print(const struct kv_model *m, const struct kv_op *ops, int n, char *text, size_t len);

#endif
