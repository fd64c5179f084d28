/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command - option parsing, sessions and records shared by the subcommands
 *
 * Functions return 0 or -errno with cairn_last_error() set. They print nothing except the progress of
 * loading; output is left to the commands.
 */
#ifndef CAIRN_COMMAND_H
#define CAIRN_COMMAND_H

#include <getopt.h>
#include <stdint.h>

#include "conformance/abi.h"
#include "serving/engine/engine.h"
#include "serving/engine/speculate.h"
#include "serving/model/forward/decode.h"
#include "serving/model/model.h"
#include "serving/nano/nano_plan.h"
#include "serving/remote/lead/lead.h"
#include "serving/tokenizer/tokenizer.h"

/* Exit status of a command, including those of conformance/. */
enum { CAIRN_EXIT_OK, CAIRN_EXIT_FAILED, CAIRN_EXIT_USAGE };

enum cairn_option_kind {
	CAIRN_OPT_FLAG,		/* int: 1 when given */
	CAIRN_OPT_TEXT,		/* const char * */
	CAIRN_OPT_INT,		/* int64_t, a whole number in [lo, hi] */
	CAIRN_OPT_FLOAT,	/* float, a number in [lo, hi] */
	CAIRN_OPT_CHOICE,	/* int: index into names */
	CAIRN_OPT_ADAPTER,	/* struct cairn_adapter_options: adds NAME=DIR; may be repeated */
};

struct cairn_option {
	const char *name;	/* without "--" */
	enum cairn_option_kind kind;
	void *to;		/* destination; unchanged if the option is absent */
	double lo, hi;
	const char *const *names;	/* NULL-terminated */
};

#define CAIRN_MAX_OPTIONS	96

#define CAIRN_MAX_LORA		64	/* adapters of --lora */

/* The adapters of --lora NAME=DIR, in the order given. No two names are equal. */
struct cairn_adapter_options {
	int32_t num;
	struct {
		char name[128];
		const char *dir;
	} list[CAIRN_MAX_LORA];
};

/* Options of speculative decoding, with vLLM's names where it has them. */
struct cairn_speculative_options {
	int method;			/* enum cairn_speculate */
	const char *model;		/* directory of the draft model; NULL: not given */
	int64_t num_tokens, lookup_max, lookup_min, branches, tree_rows;	/* 0: not given */
};

/* Their rows in an array of struct cairn_option. */
#define CAIRN_SPECULATIVE_OPTIONS(to) \
	{ "speculative", CAIRN_OPT_CHOICE, &(to)->method, 0, 0, cairn_speculate_names }, \
	{ "speculative-model", CAIRN_OPT_TEXT, &(to)->model, 0, 0, NULL }, \
	{ "num-speculative-tokens", CAIRN_OPT_INT, &(to)->num_tokens, 1, CAIRN_MAX_DRAFTS, NULL }, \
	{ "prompt-lookup-max", CAIRN_OPT_INT, &(to)->lookup_max, 1, 1024, NULL }, \
	{ "prompt-lookup-min", CAIRN_OPT_INT, &(to)->lookup_min, 1, 1024, NULL }, \
	{ "speculative-branches", CAIRN_OPT_INT, &(to)->branches, 1, CAIRN_MAX_BRANCHES, NULL }, \
	{ "speculative-tree-rows", CAIRN_OPT_INT, &(to)->tree_rows, 1, CAIRN_TREE_ROWS - 1, NULL }

/* Options of attention by other processes. */
struct cairn_attention_options {
	int64_t workers, model_workers;		/* 0: not given */
	const char *listen, *secret_file;	/* NULL: not given */
	int keys;				/* index into cairn_attention_keys */
	int lanes;				/* index into cairn_lanes_names */
	int64_t journal;			/* GiB; 0: none */
};

extern const char *const cairn_attention_keys[];	/* "previous", "all", NULL */
extern const char *const cairn_lanes_names[];		/* "1", "2", "3", "auto", NULL */

/* Their rows in an array of struct cairn_option. */
#define CAIRN_ATTENTION_OPTIONS(to) \
	{ "attention-workers", CAIRN_OPT_INT, &(to)->workers, 1, 255, NULL }, \
	{ "model-workers", CAIRN_OPT_INT, &(to)->model_workers, 1, CAIRN_MAX_LANES, NULL }, \
	{ "workers-listen", CAIRN_OPT_TEXT, &(to)->listen, 0, 0, NULL }, \
	{ "secret-file", CAIRN_OPT_TEXT, &(to)->secret_file, 0, 0, NULL }, \
	{ "attention-keys", CAIRN_OPT_CHOICE, &(to)->keys, 0, 0, cairn_attention_keys }, \
	{ "lanes", CAIRN_OPT_CHOICE, &(to)->lanes, 0, 0, cairn_lanes_names }, \
	{ "kv-journal", CAIRN_OPT_INT, &(to)->journal, 1, 1 << 20, NULL }

/* Options of prompts that are computed by other processes. */
struct cairn_prefill_options {
	int64_t workers, min_tokens, pages;	/* 0: not given */
	int64_t stages;				/* processes of a worker that is started; 0: not given */
};

/* Their rows in an array of struct cairn_option. */
#define CAIRN_PREFILL_OPTIONS(to) \
	{ "prefill-workers", CAIRN_OPT_INT, &(to)->workers, 1, CAIRN_LEAD_PREFILL, NULL }, \
	{ "prefill-min", CAIRN_OPT_INT, &(to)->min_tokens, 1, 1 << 30, NULL }, \
	{ "prefill-pages", CAIRN_OPT_INT, &(to)->pages, 1, 1 << 30, NULL }, \
	{ "prefill-pp", CAIRN_OPT_INT, &(to)->stages, 1, CAIRN_COMM_MAX_RANKS, NULL }

/* Options that generate, eval and serve have in common. */
struct cairn_common_options {
	int no_json;			/* the command has no --json; set before parsing */
	const char *impl, *model, *json;
	int64_t device, batch;		/* batch 0: not given */
	/*
	 * Ranks of tensor, context and pipeline parallelism, and the time-out of their waits; 0: not given.
	 * If both tp and cp are above 1, they are equal; pp above 1 excludes both.
	 */
	int64_t tp, cp, pp, collective_s;
	int64_t pp_chunk;			/* rows of a prompt's first chunk; 0: not given */
	const char *rendezvous, *rendezvous_key;
	int64_t nodes, node, rendezvous_s;	/* nodes, rendezvous_s 0: not given; node -1: not given */
	int decode;			/* enum cairn_decode_path */
	int weights;			/* enum cairn_weights */
	int kv;				/* enum cairn_kv_form */
	int exchange;			/* enum cairn_exchange, of cp */
	int64_t context_rows, context_keys;	/* of passes that ranks share out; 0: not given */
	int stripes;			/* each rank of cp holds some of the KV pages */
};

/*
 * Parses all arguments by options, [num_options], and by the common options unless common is NULL. Returns 0;
 * 1 after --help, with usage printed to standard output; or -EINVAL. The error text then names option and
 * range, or is empty because getopt has already printed the option. --help=options prints the options
 * instead of the usage, as cairn_print_options() does.
 */
int cairn_parse_options(int argc, char **argv, struct cairn_common_options *common,
			const struct cairn_option *options, int num_options, const char *usage);

/*
 * Prints the options of getopt's table for the shell's completion (tools/completion), one a line: the name,
 * "none", "value" or "optional" for its argument, and the values it may have, with tabs between the three.
 */
void cairn_print_options(const struct option *table);

/* Reads whole numbers in [lo, hi], separated by commas, into values. -EINVAL: the text names the option. */
int cairn_parse_list(const char *option, const char *text, int32_t lo, int32_t hi, int32_t *values, int most,
		     int *num);

/*
 * If ret < 0 and the error text begins with a field of names, "FIELD: ..." or "PART: FIELD: ...", replaces
 * the field by the option that sets it, "--OPTION: ...". names: (field, option), up to a NULL. Returns ret.
 */
int cairn_name_option(int ret, const char *const (*names)[2]);

struct cairn_session {
	struct cairn_impl impl;
	int started;
	enum cairn_weights weights;		/* form of the weights; set before loading */
	enum cairn_kv_form kv;			/* form of the KV cache; set before loading */
	int progress_lines;			/* show progress without a terminal; set before loading */
	int without_text;		/* set before loading: no tokenizer is loaded */
	int32_t rank, ranks;	/* this rank's part; ranks 0: all. Set before loading */
	int is_context;		/* the ranks share rows, not weights */
	int has_context;	/* the ranks share weights, and the rows of long passes */
	int is_pipeline;	/* the ranks have layers of their own */
	enum cairn_exchange exchange;
	struct cairn_model *model;
	struct cairn_model *context;		/* with has_context: the model of long passes; or NULL */
	struct cairn_model *drafter;		/* of --speculative-model, or NULL */
	struct cairn_draft_head *head;		/* with --speculative eagle3 or mtp, or NULL */
	struct cairn_tokenizer *tokenizer;	/* NULL with a shape */
	char dir[4096];				/* the model's directory; "" with a shape */
	struct cairn_plan_engine *plans;	/* NULL: none; closed with the session */
	struct cairn_lead *lead;		/* of workers; NULL: none; the session closes it */
	const char *model_options[16];		/* of prefill workers that the lead starts */
	char stages[8], seed[24];
};

/* impl: NULL for cuda if there is a device, else cpu. */
int cairn_session_start(struct cairn_session *s, const char *impl, int device);
/*
 * dir: NULL for the embedded model. Prints the progress of loading to stderr if it is a terminal, or with
 * progress_lines as at most ten lines.
 */
int cairn_session_load(struct cairn_session *s, const char *dir);
/* Loads adapters beside the loaded model, if there are any; errors name --lora. */
int cairn_session_adapters(struct cairn_session *s, const struct cairn_adapter_options *adapters);
/* The config of a published shape; its error names --shape. */
int cairn_shape_config(const char *shape, struct cairn_model_config *config);
/* Reads the configuration that --model or --shape names. -EINVAL if not exactly one of them is given. */
int cairn_config_option(const char *model, const char *shape, struct cairn_model_config *config);
/* Makes random weights of a published shape; there is no tokenizer. */
int cairn_session_shape(struct cairn_session *s, const char *shape, uint64_t seed);
/*
 * Writes the name of the session's table, with what decides which operations it runs and how fast: the path
 * of decoding, the forms of weights and cache, and the ranks, as "cuda:fp8:tp2".
 */
void cairn_session_table(const struct cairn_session *s, enum cairn_decode_path path, char *name, size_t len);
/*
 * Reads plans of nano-batches for the loaded model from a plan file or a folder of them (plan_engine.h), for
 * struct cairn_engine_options. path NULL: returns NULL. Returns NULL, too, if the plans are refused; standard
 * error then has the reason, after the name of the command, and passes run sequentially. All ranks call this,
 * and rank 0 alone prints the reason.
 */
const struct cairn_nano_plans *cairn_session_plans(struct cairn_session *s, const char *path,
						   const char *command);
void cairn_session_close(struct cairn_session *s);

/* Sets the options of an engine whose attention is by the workers of this lead. */
void cairn_set_attention(struct cairn_engine_options *e, const struct cairn_attention_options *o,
			 struct cairn_lead *lead);
/* Checks that the options go together. p NULL: the command has no such options. */
int cairn_check_attention(const struct cairn_attention_options *o, const struct cairn_prefill_options *p);
/*
 * Gives each stream a hardware queue of its own, because two kernels that wait in one queue would wait for
 * each other. Call before CUDA starts, in attention workers and in processes whose kernels wait for these.
 * Sets an environment variable, which child processes inherit.
 */
void cairn_attention_environment(void);
/* Returns the transport of the prefill workers that a lead starts; NULL: their own choice. p: NULL if none */
const char *cairn_prefill_transport(const struct cairn_impl *impl, const struct cairn_attention_options *o,
				    const struct cairn_prefill_options *p, int gpus_meet);
/*
 * Starts the lead, if there are workers; its errors name the options. The model is loaded. p: as above;
 * c, shape and seed: the options that name table and model.
 */
int cairn_session_lead(struct cairn_session *s, const struct cairn_attention_options *o,
		       const struct cairn_prefill_options *p, const struct cairn_common_options *c,
		       const char *shape, int64_t seed);
/* What cairn_session_say_prefill() has reported so far; zeroed before the first call. */
struct cairn_prefill_told {
	int64_t lost, refused;
	char pids[256];
};
/* Reports on standard error which prefill workers joined, were lost or were refused since the last call. */
void cairn_session_say_prefill(const struct cairn_session *s, const char *command,
			       struct cairn_prefill_told *told);
/* Reports on standard error how often a run, now over, has computed answers again after a loss, if it has. */
void cairn_session_say_recoveries(const struct cairn_session *s, const char *command, int64_t recoveries);
/*
 * Reports on standard error which processes attend, if any do, and the last loss if there was one since the
 * last call. *lost: number of losses reported so far; 0 before the first call.
 */
void cairn_session_say_attention(const struct cairn_session *s, const char *command, int64_t *lost);

/* Checks that the options go together; a draft model implies its method. */
int cairn_check_speculative(struct cairn_speculative_options *o);
/* Sets the engine's options. Loads the draft model, if there is one; it must have the model's tokenizer. */
int cairn_session_speculate(struct cairn_session *s, const struct cairn_speculative_options *o,
			    struct cairn_speculation *speculation);

/* Measures a pure read by the table's stream operation in GB/s, the best of five; 0 if the table has none. */
double cairn_session_read_gbps(const struct cairn_session *s);

/*
 * Writes the members of a bench record that identify table, device and program, without braces:
 * "\"impl\":\"cuda\",\"gpu\":...". The table's name includes a decode path other than auto ("cuda:graph"),
 * 8-bit weights ("cuda:fp8"), an 8-bit KV cache ("cuda:kv-fp8") and what ranks share and their number
 * ("cuda:tp2"). sm_mhz: the measured clock; 0: the one that the table states.
 */
void cairn_session_record(const struct cairn_session *s, enum cairn_decode_path path, double sm_mhz,
			  char *json, size_t len);

/* The device's peak memory bandwidth by its datasheet in GB/s; 0: unknown. */
double cairn_session_peak_gbps(const struct cairn_session *s);

/* The error text for CAIRN_FINISH_FAILED. Its argument is the number of the token, counted from 1. */
#define CAIRN_NAN_TEXT	"the model's logits are not numbers (NaN) at token %d"

double cairn_now(void);		/* seconds, monotonic */

#endif
