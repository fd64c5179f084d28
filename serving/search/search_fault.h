/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_fault - fault injection for auto-search
 *
 * In the normal build FAULT() is 0 and costs nothing. search_mutants_*.c compile the modules a second time,
 * under other names, with fault injection; the tests must detect each fault (search_mutants_test.c).
 */
#ifndef CAIRN_SEARCH_FAULT_H
#define CAIRN_SEARCH_FAULT_H

enum cairn_search_fault {
	FAULT_NONE,
	/* the pipeline */
	FAULT_NO_LAYER_EDGES,		/* nothing in a layer waits for the layer before */
	FAULT_NO_DATA_EDGES,		/* nothing waits for another operation of its layer */
	FAULT_NO_CACHE_EDGES,		/* attention does not wait for the keys of earlier rows */
	FAULT_CACHE_NEXT_ONLY,		/* ... waits only for those of the previous nano-batch */
	FAULT_WHOLE_MEETS_FIRST,	/* a whole operation waits only for the first nano-batch */
	/* stage 1 */
	FAULT_NO_WRAP,			/* the last part of a kind may overlap the first of the next period */
	FAULT_KIND_OVERLAPS,		/* parts of one kind may run at the same time */
	FAULT_ROWS_LOST,		/* the nano-batches together may have fewer rows than the pass */
	FAULT_DECODE_LOST,		/* ... may have fewer decoding rows than the pass */
	FAULT_DECODE_UNBOUNDED,		/* a nano-batch may have more decoding rows than rows */
	/* stage 2 */
	FAULT_NO_RHO,			/* the R of parts at the same time may exceed 1 */
	FAULT_NO_TRIPLE,		/* the R of two parts are bounded, not those of three */
	FAULT_P_IS_R,			/* the speed of a part is its R */
	FAULT_KIND_OVERLAPS_2,		/* parts of one kind may run at the same time */
	/* plans */
	FAULT_OTHER_DIGEST,		/* a plan for other kernels is taken */
	FAULT_OTHER_GPU,
	FAULT_OTHER_SHAPE,
	FAULT_OTHER_RANKS,
	FAULT_CUT_OFF_BY_ONE,		/* a cut is read as the row before it */
	FAULT_GAIN_IGNORED,		/* an entry is picked whatever its measured gain */
	FAULT_MORE_ROWS,		/* an entry with more rows than the pass is picked */
	FAULT_FAR_ROWS,			/* one with far fewer rows is picked */
	FAULT_ANY_SHARE,		/* one for another share of decoding rows is picked */
	FAULT_ANY_CONTEXT,		/* one for another context is picked */
	FAULT_SPLIT_SMS,		/* both operations of a green pair get the same SMs */
	FAULT_WRONG_LANE,		/* attention runs on the lane of products */
	FAULT_NETWORK_LANE,		/* so do collectives */
	FAULT_CUTS_EQUAL,		/* all nano-batches get equal rows */
	FAULT_LIGHT_LOST,		/* the light operations of a part have no place */
	NUM_FAULTS
};

#ifdef CAIRN_SEARCH_MUTANTS
extern int cairn_search_fault;
#define FAULT(name)	(cairn_search_fault == FAULT_##name)
#else
#define FAULT(name)	0
#endif

#endif
