/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_fault - fault injection for remote attention and for pulls
 *
 * In the normal build FAULT() is 0 and costs nothing. remote_mutants_*.c compile the modules a second time,
 * under other names, with fault injection; the tests must detect each fault (remote_mutants_test.c,
 * pull_mutants_test.c).
 */
#ifndef CAIRN_REMOTE_FAULT_H
#define CAIRN_REMOTE_FAULT_H

enum cairn_remote_fault {
	FAULT_NONE,
	/* the worker */
	FAULT_OWN_KEYS_REMOTE,		/* a row's own key counts as a previous one */
	FAULT_NEVER_APPENDS,
	FAULT_ONE_KV_BUFFER,		/* K and V of all layers use the same buffer */
	FAULT_PARITY_OF_LAYER,		/* the buffer is chosen by the layer's parity */
	FAULT_WINDOW_IGNORED,
	FAULT_NO_MOVES,			/* pages are not copied */
	FAULT_MOVES_LATE,		/* they are copied after the pass */
	FAULT_NO_ACQUIRE,		/* Q is read without waiting for its signal */
	FAULT_NUMBER_OF_TURN_BEFORE,	/* the result has the number of the turn before */
	FAULT_MOVES_AT_ONCE,		/* pages of all layers are copied before the plan's first layer */
	FAULT_BUFFER_BY_TURN,		/* the buffers of K and V are used in turn by all lanes */
	FAULT_WORKER_LANES_SHARE,	/* all lanes read the buffers of the first one */
	/* the worker, in the order of streams */
	FAULT_POSITIONS_OF_BEFORE,	/* after the first pass, positions are not copied to the device */
	FAULT_RESULTS_PACKED,		/* rows of results leave no room for other workers' heads */
	FAULT_LANES_UNORDERED,		/* a plan's layer does not wait for that of the plan before it */
	FAULT_GRAPH_OF_ANY_ROWS,	/* a plan is replayed with the graph of a plan of other rows */
	FAULT_GRAPH_OF_ANY_SIDE,	/* a graph is replayed although K and V are in the other buffer */
	FAULT_NUMBER_OF_CAPTURE,	/* all passes have the numbers of the first one */
	FAULT_TURN_UNORDERED,		/* a turn does not wait for plans that are under way */
	FAULT_PLAN_OVERTAKES,		/* a turn does not wait for plans that have not begun */
	FAULT_MODEL_BUFFERS_SHARED,	/* another model worker writes its queries where the lead does */
	/* the model worker's end */
	FAULT_HEADS_SHIFTED,		/* K and V are those of the next head */
	FAULT_LSE_OF_OTHERS,		/* the log-sum-exps of workers are exchanged */
	FAULT_RESULT_UNAWAITED,		/* the result is read without waiting for its signal */
	FAULT_SIGNAL_FIRST,		/* the signal of Q is sent before the payload */
	FAULT_RESULTS_SHARED,		/* all lanes read the result of the first one */
	FAULT_TURN_OF_LANE,		/* turns are counted by lane */
	FAULT_PADDING_KEPT,		/* rows of padding keep what they held */
	FAULT_EPOCH_KEPT,		/* a new epoch has the number of the one before */
	FAULT_SPARE_UNASSIGNED,		/* a new worker does not get its share */
	/* stripes and latent attention */
	FAULT_STRIPE_OF_ROW,		/* keys go to the stripe that the row's number chooses */
	FAULT_LAST_PAGE_FULL,		/* the last page of a list counts as full */
	FAULT_POSITIONS_OF_LIST,	/* keys have their positions in the list, not in the request */
	FAULT_PAGE_OF_BEFORE,		/* a page from another stripe is stored before it has come */
	FAULT_STRIPES_IN_ONE_PLACE,	/* the results of all stripes are written to the first one's place */
	FAULT_WEIGHTS_OF_LAYER_0,	/* all layers have the weights of layer 0 */
	/* the journal */
	FAULT_JOURNAL_NO_MOVES,		/* pages are not copied in the journal */
	FAULT_JOURNAL_NO_V,		/* it holds K in the place of V */
	FAULT_JOURNAL_SHIFTED,		/* rows are in the slot behind theirs */
	FAULT_JOURNAL_UNDRAINED,	/* pages are sent while passes still wait for the thread */
	FAULT_JOURNAL_COMMIT_LOST,	/* the last layer's rows are forgotten */
	FAULT_JOURNAL_UNAWAITED,	/* rows are moved before their copies have ended */
	FAULT_JOURNAL_RUN_SHORT,	/* only the first row of a run of rows counts as stored */
	FAULT_JOURNAL_NOT_QUEUED,	/* in the order of streams, rows are not recorded */
	FAULT_RESTORE_FIRST_LAYER,	/* all layers get the rows of the first one */
	FAULT_RESTORE_SHORT,		/* the last row of each page is left out */
	FAULT_RESTORE_STREAM_KEPT,	/* the lane keeps the destroyed stream of a restore that failed */
	/* plans */
	FAULT_PLAN_UNCHECKED,		/* pages beyond the cache are accepted */
	FAULT_PLAN_REPEATED,		/* a plan is accepted twice */
	FAULT_TOKENS_UNCHECKED,		/* draws beyond the vocabulary are accepted */
	FAULT_RESULT_IN_PLACE,		/* draws are read where their model worker can still change them */
	/* a member of any role */
	FAULT_FREED_WITHOUT_BEATS,	/* no beats are sent while the memory of an epoch is freed */
	/* the lead */
	FAULT_ANY_BUILD,		/* members of another build are accepted */
	FAULT_ANY_TABLE,
	FAULT_ANY_WEIGHTS,		/* prefill workers with other weights are accepted */
	FAULT_SILENCE,			/* a silent member is never lost */
	FAULT_LOSS_FORGOTTEN,		/* the loss of a member is not reported */
	FAULT_MODEL_LOSS_FORGOTTEN,	/* nor is that of a model worker */
	FAULT_BLOB_OF_ANY_SIZE,
	FAULT_BURIAL_AWAITED,		/* the lead waits for the end of a process that it has killed */
	FAULT_FLOOD_READ,		/* the lead reads a member's messages until there are no more */
	FIRST_PULL_FAULT,
	/* pulls */
	FAULT_CHECKSUM_IGNORED = FIRST_PULL_FAULT,	/* a run with a wrong checksum is taken */
	FAULT_LEASE_IGNORED,		/* runs are taken after the lease has ended */
	FAULT_CREDIT_LEAK,		/* runs that are not wanted give no credit back */
	FAULT_DROPPED_KEPT,		/* runs of a dropped job are stored */
	FAULT_PLACE_FREED_EARLY,	/* a dropped job's place is free before its worker has ended it */
	FAULT_WRITES_UNASKED,		/* pages are written before they may be */
	FAULT_END_TOO_EARLY,		/* a job may end before all its runs have come */
	FAULT_QUIET_SINCE_PROMPT,	/* a worker counts as quiet while it sends the job before */
	/* prefill workers */
	FAULT_LEASE_ENDLESS,		/* pages are held after the lease has ended */
	FAULT_LEASE_REVIVED,		/* a prompt that was given up is sent on when a LEASE comes */
	FAULT_LAYER_NOT_AWAITED,	/* a layer is sent before it is computed */
	FAULT_CREDITS_IGNORED,		/* runs are sent without credits */
	FAULT_LAYERS_SWAPPED,		/* layers are sent in the place of their neighbours */
	FAULT_SIDES_SWAPPED,		/* keys are sent in the place of values */
	FAULT_PAYLOAD_DAMAGED,		/* a byte is changed after the checksum was taken */
	FAULT_RUNS_LOST,		/* a job ends after its first run */
	FAULT_PAGE_NOT_MIRRORED,	/* the last page of a chunk stays in the device's memory */
	FAULT_VALUES_NOT_MIRRORED,	/* values stay there */
	FAULT_STAGE_LAYERS_FROM_0,	/* all stages write their layers where the first one does */
	FAULT_CHUNK_IS_PASS,		/* a chunk of a layer is taken for all of the pass */
	FAULT_CLEARED_NOT,		/* a job counts what the one before it had */
	/* pulls between devices */
	FAULT_COPY_OF_BEFORE,		/* the pages of a run are those of the one before, with its sum */
	FAULT_PAGES_IN_ONE_PLACE,	/* all pages of a run are written to the first one's place */
	NUM_FAULTS
};

#ifdef CAIRN_REMOTE_MUTANTS
extern int cairn_remote_fault;
void cairn_remote_nap(int ms);
#define FAULT(name)	(cairn_remote_fault == FAULT_##name)
#define FAULT_NAP(ms)	cairn_remote_nap(ms)	/* gives the other end time to overtake this one */
#else
#define FAULT(name)	0
#define FAULT_NAP(ms)	((void)0)
#endif

#endif
