// SPDX-License-Identifier: Apache-2.0
/* validate_test - `cairn validate` on a simulated device: each class of defect is found and named */
#include <jansson.h>
#include <sys/stat.h>

#include "conformance/validate/validate.h"
#include "conformance/validate/validate_test.h"

static void finds_wrong_bits(struct cairn_test *t)
{
	static const struct defect defects[] = {
		{ "", NULL, "screen.int", 0, "0 failed" },
		{ "unit=7 part=2 flips=1", NULL, "screen.int", 1, "unit 7, part 2 computes int wrongly" },
		{ "unit=0 part=0 flips=3", NULL, "screen.f32", 1, "unit 0, part 0 computes f32 wrongly" },
		{ "unit=31 part=3 flips=2 after=5", NULL, "screen.memory", 1,
		  "unit 31, part 3 computes memory wrongly" },
		{ "unit=9 once=3", NULL, "screen.int", 0,
			"warn: screen.int: unit 9, part 0 computes int wrongly: "
		  "rounds that differ: 1" },
		{ "half=1", NULL, "screen.int", 1, "no result has a majority" },
		{ "all=1", NULL, "screen.int", 1, "the units agree on a digest that is not the reference's" },
		{ "unit=7 flips=1 program=6", NULL, "screen.int,screen.f32", 1, "fail: screen.f32: unit 7" },
		{ "unit=3 part=1 load=2", "", "screen.f32,full-load.f16", 1,
		  "fail: full-load.f16: unit 3, part 1 computes f16 wrongly" },
		{ "unit=3 load=2", "mhz=1535 watts=693", "full-load.f16", 1,
		  " inputs at 1535 MHz, 693 W, 60 degrees; 0 of " },
		{ "unit=3 load=2", NULL, "screen.int,pulses.mix", 0, "0 warned, 0 failed" },
		{ "unit=9 once=3 program=8", "", "screen.int,full-load.f16", 0, "warn: screen.int: unit 9" },
		{ "unit=7 moved=2", NULL, "screen.int", 0, "32 units" },
		{ "unit=7 moved=1", NULL, "screen.int", 3, "31 of 32 units ran, but never unit 7" },
		{ "unit=7 flips=1 mask=64", NULL, "screen.int", 1,
		  " on unit 8 in another GPC; word 5 has wrong bits 00000040 against the reference; " },
	};

	find(t, defects, ARRAY_SIZE(defects));
}

static void finds_slow_parts(struct cairn_test *t)
{
	static const struct defect defects[] = {
		{ "unit=7 slow=50", NULL, "screen.int,dsmem.pairs", 1, "fail: rate.int: unit 7 runs int" },
		{ "unit=7 slow=30", NULL, "screen.int,dsmem.pairs", 0, "warn: rate.int: unit 7 runs int" },
		{ "unit=9 group=40", NULL, "rate.pulses.f16,dsmem.pairs", 0,
		  "warn: rate.pulses.f16: the group of unit 8 runs f16 4." },
		{ "unit=7 slow=10", NULL, "screen.int,dsmem.pairs", 0, "0 warned, 0 failed" },
		{ "unit=4 pair=50", NULL, "dsmem.pairs", 0,
		  "unit 4 reads the shared memory of unit 5 4.9%" },
	};

	find(t, defects, ARRAY_SIZE(defects));
}

static void finds_bad_memory(struct cairn_test *t)
{
	static const struct defect defects[] = {
		{ "", NULL, "hbm,copy,l2", 0, "3 passed" },
		{ "", NULL, "hbm", 0, "A pass excludes, with 95% confidence and for every unit, " },
		{ "atomic=40961", NULL, "hbm", 1, "of the word are wrong, pattern atomic" },
		{ "stuck=40961", NULL, "hbm", 1, "buffer 0, byte 40960: bits 0000000000000400" },
		{ "copy=12345", NULL, "copy", 1,
		  "a copy to the host: bits 0000000000001000 of the word at byte 12344" },
		{ "upload=12345", NULL, "copy", 1, "a copy to the device: the block at byte 12288 is wrong" },
		{ "local=12345", NULL, "copy", 1, "a copy on the device: the block at byte 12288 is wrong" },
		{ "", NULL, "launch", 0, "us from a launch to its end" },
		{ "nomem=1", NULL, "hbm", 3, "not run  hbm" },
		{ "nomem=1", NULL, "copy,screen.int", 3, "the device gives no buffers" },
	};

	find(t, defects, ARRAY_SIZE(defects));
}

/* A pattern is left alone for a share of the run, which must last even if the machine is busy. */
static void finds_faded_bits(struct cairn_test *t)
{
	static char out[65536];
	int status = validate("fade=40960", NULL, "hbm", "--minutes 0.02", out, sizeof(out));

	if (status == -1)
		return cairn_skip(t, "sim_plugin.so is not in the directory of this program");
	EXPECT(t, status == 1);
	EXPECT_CONTAINS(t, out, "of the word are wrong, pattern address");
}

static void survives_lost_devices(struct cairn_test *t)
{
	static const struct defect defects[] = {
		{ "crash=6", NULL, "screen.int,copy", 1, "the device's process ended: CRASH" },
		{ "lost=6", NULL, "screen.int,copy", 1, "fallen off the bus" },
		{ "crash=6 devices=2", NULL, "screen.int", 1, "1 failed" },
		{ "crash=6 devices=2 bad=1", NULL, "screen.int", 1,
			"device 0: simulated\n  pass     screen.int" },
	};

	find(t, defects, ARRAY_SIZE(defects));
	setenv("CAIRN_TIMEOUT", "2", 1);
	find(t, &(struct defect){ "hang=6", NULL, "screen.int,copy", 1, "TIMEOUT after 2 s" }, 1);
	unsetenv("CAIRN_TIMEOUT");
}

static const char sim_range[] = "{\"gpu\": \"simulated\", \"configurations\": ["
	"{\"config\": {\"ecc\": false}, \"gpus\": 20, \"nodes\": 3, \"figures\": {}},"
	"{\"config\": {\"ecc\": true, \"limit_w\": null}, \"gpus\": %d, \"nodes\": 3, \"figures\": "
	"{\"rate.int\": {\"cycles\": {\"median\": 3000, \"mad\": 1}}}}]}";

/*
 * Rates are compared with the range of the same configuration, which warns only while it is of few GPUs. A
 * folder without a range of the model, or with one that is no JSON, compares nothing, and says so.
 */
static void compares_with_ranges(struct cairn_test *t)
{
	static const struct {
		const char *sim, *nvml;
		int gpus, status;
		const char *says;
	} tries[] = {
		{ "", "", 20, 0, "pass     ranges              1 figures against 20 GPUs\n" },
		{ "all_slow=60", "", 20, 1, "fail: ranges: rate.int, cycles: 6." },
		{ "all_slow=60", "", 19, 0, "warn: ranges: rate.int, cycles: 6." },
		{ "all_slow=-60", "", 20, 0, "1 figures against 20 GPUs\n" },
		{ "all_slow=60", "eccmode=2", 20, 0, "has no range of this configuration" },
		{ "", "", -1, 0, "not run  ranges              " },
	};
	char dir[] = "/tmp/cairn_ranges_XXXXXX", path[100], more[100];
	static char out[65536];

	if (!EXPECT(t, mkdtemp(dir)))
		return;
	snprintf(path, sizeof(path), "%s/simulated.json", dir);
	snprintf(more, sizeof(more), "--ranges %s", dir);
	for (size_t i = 0; i < ARRAY_SIZE(tries); i++) {
		FILE *f = fopen(path, "w");
		int status;

		if (!EXPECT(t, f))
			break;
		fprintf(f, tries[i].gpus < 0 ? "{%d" : sim_range, tries[i].gpus);
		fclose(f);
		status = validate(tries[i].sim, tries[i].nvml, "rate.int", more, out, sizeof(out));
		if (status == -1) {
			cairn_skip(t, "sim_plugin.so is not in the directory of this program");
			break;
		}
		EXPECT(t, status == tries[i].status);
		EXPECT_CONTAINS(t, out, tries[i].says);
	}
	unlink(path);
	rmdir(dir);
}

/* A device that is slower than the others is named if there are four or more, and not if there are three. */
static void compares_rates_of_devices(struct cairn_test *t)
{
	static const struct defect defects[] = {
		{ "devices=5 bad=2 all_slow=60", NULL, "rate.int", 1,
		  "fail: rate.int: cycles: 6.0% worse than the 5 devices of this model" },
		{ "devices=5 bad=2 all_slow=30", NULL, "rate.int", 0, "warn: rate.int: cycles: 3." },
		{ "devices=3 bad=2 all_slow=60", NULL, "rate.int", 0, "0 warned, 0 failed" },
	};

	find(t, defects, ARRAY_SIZE(defects));
}

/* The plan of a quick run fits into 90 seconds, also if some tests take longer than they should. */
static void plan_adapts(struct cairn_test *t)
{
	const double start_s = 3, quick_s = 90;

	for (double slow = 1; slow <= 3; slow += 0.5) {
		double planned = 0, of_node = 0, now = start_s, end;

		for (int i = 0; i < validate_num_tests; i++) {
			const struct validate_test *v = &validate_tests[i];

			if (v->kind != VALIDATE_OF_NODE)
				planned += v->seconds;
			else if (strcmp(v->name, "nccl"))
				of_node += v->seconds;
		}
		end = now + planned;
		EXPECT(t, end + of_node <= quick_s);
		for (int i = 0; i < validate_num_tests; i++) {
			const struct validate_test *v = &validate_tests[i];
			double slice = validate_slice(v->seconds, planned, end - now);

			if (v->kind == VALIDATE_OF_NODE)
				continue;
			EXPECT(t, slice >= 0 && slice <= v->seconds);
			now += slice * slow;
			planned -= v->seconds;
		}
		EXPECT(t, now + of_node <= quick_s);
	}
}

/* What the first turn has found is still there after the last one. */
static void remembers_findings(struct cairn_test *t)
{
	static char out[65536];
	int status = validate("unit=4 pair=50 pair_until=24", NULL, "dsmem.pairs", "--minutes 0.008", out,
			      sizeof(out));

	if (status == -1) {
		cairn_skip(t, "sim_plugin.so is not in the directory of this program");
		return;
	}
	EXPECT(t, status == 0);
	EXPECT_CONTAINS(t, out, "warn     dsmem.pairs");
	EXPECT_CONTAINS(t, out, "unit 4 reads the shared memory of unit 5 4.9%");
}

/* A busy device is refused, and with --shared only its bits are judged. */
static void shares_when_told(struct cairn_test *t)
{
	static char out[65536];
	int status = validate("unit=7 slow=50", "processes=3", "rate.int,copy", "--shared", out, sizeof(out));

	if (status == -1) {
		cairn_skip(t, "sim_plugin.so is not in the directory of this program");
		return;
	}
	EXPECT(t, status == 0);
	EXPECT_CONTAINS(t, out, "pass     screen.int");
	EXPECT_CONTAINS(t, out, "not run  rate.int            --shared: others use the device");
	EXPECT(t, validate("", "processes=3", "rate.int", NULL, out, sizeof(out)) == 3);
	EXPECT_CONTAINS(t, out, "not run  screen.int          the device is busy: 3 processes compute on it");
}

/* With --stagger the second device waits before its full load. */
static void staggers_full_load(struct cairn_test *t)
{
	static char out[65536];
	int status = validate("devices=2", NULL, "full-load.mix", "--stagger 0.2", out, sizeof(out));

	if (status == -1) {
		cairn_skip(t, "sim_plugin.so is not in the directory of this program");
		return;
	}
	EXPECT(t, status == 0);
	EXPECT_CONTAINS(t, out, "# device 1: full load begins in 1 s");
	EXPECT(t, !strstr(out, "# device 0: full load begins"));
}

/* The must-pass list, here a short one, runs on the table; its failures are named with a command. */
static void runs_the_must_pass_list(struct cairn_test *t)
{
	char dir[] = "/tmp/cairn_stack_XXXXXX", folder[100], path[120];
	FILE *f;

	static const struct defect defects[] = {
		{ "honest=1", NULL, "stack", 0,
		  ", driver none: 2 cases of the must-pass list passed, 0 failed\n" },
		{ "honest=1 unit=0 flips=1", NULL, "stack", 1, "fail: stack: primitives.screen." },
	};

	if (!EXPECT(t, mkdtemp(dir)))
		return;
	snprintf(folder, sizeof(folder), "%s/conformance", dir);
	snprintf(path, sizeof(path), "%s/mustpass.txt", folder);
	mkdir(folder, 0700);
	f = fopen(path, "w");
	if (EXPECT(t, f)) {
		fprintf(f, "primitives.screen.*\nprimitives.stream.*\n");
		fclose(f);
		setenv("CAIRN_DATA", dir, 1);
		find(t, defects, ARRAY_SIZE(defects));
		unsetenv("CAIRN_DATA");
	}
	unlink(path);
	rmdir(folder);
	rmdir(dir);
}

/* What no reference defines is compared between devices. */
static void compares_devices(struct cairn_test *t)
{
	static const struct defect defects[] = {
		{ "devices=3", NULL, "screen.int", 0, "0 failed" },
		{ "devices=3 bad=1 census=5", NULL, "screen.mix", 1,
			"differs from 2 of 2 devices of this model" },
		{ "devices=2 bad=1 census=5", NULL, "screen.mix", 1,
			"differs from 1 of 1 devices of this model" },
	};

	find(t, defects, ARRAY_SIZE(defects));
}

static void reads_the_counters(struct cairn_test *t)
{
	static const struct defect defects[] = {
		{ "", "reasons=4", "health", 0, "at the power cap" },
		{ "", "uncorrected=2", "health", 1, "2 uncorrectable memory errors" },
		{ "", "ecc=1", "health", 0, "warn: health: 1 corrected" },
		{ "", "failed=1", "health", 1, "could not be remapped" },
		{ "", "pending=1", "health", 0, "waits to be remapped" },
		{ "", "reasons=128", "health", 1, "the power supply's brake" },
		{ "", "reasons=64", "health", 1, "because of heat" },
		{ "", "width=8", "health", 0, "PCIe has 8 lanes of 16" },
		{ "", "drop=2", "health", 1, "1 of 18 NVLinks went down" },
		{ "", "processes=3", "health", 3, "the device is busy: 3 processes" },
		{ "", "processes=1", "health", 0, "1 passed" },
		{ "", "lost=2", "health", 1, "error 15" },
		{ "", "init=9", "health", 3, "Driver Not Loaded" },
	};

	find(t, defects, ARRAY_SIZE(defects));
}

/* A finding's command repeats it, and finds nothing on a sound device. */
static void replays(struct cairn_test *t)
{
	static char out[65536];
	char again[128] = "";
	const char *at;

	if (validate("unit=7 part=2 flips=1", NULL, "screen.int", NULL, out, sizeof(out)) == -1) {
		cairn_skip(t, "sim_plugin.so is not in the directory of this program");
		return;
	}
	at = strstr(out, "--replay ");
	if (!EXPECT(t, at))
		return;
	snprintf(again, sizeof(again), "%.*s", (int)strcspn(at, "\n"), at);
	EXPECT(t, validate("unit=7 part=2 flips=1", NULL, NULL, again, out, sizeof(out)) == 1);
	EXPECT_CONTAINS(t, out, "fail: replay: unit 7, part 2: ");
	EXPECT(t, validate("", NULL, NULL, again, out, sizeof(out)) == 0);
	EXPECT_CONTAINS(t, out, "pass     replay              0 of ");
}

static void refuses_bad_options(struct cairn_test *t)
{
	static const struct {
		const char *more, *says;
	} bad[] = {
		{ "--only screen.f23", "--only: 'screen.f23' names no test" },
		{ "--only nccl", "--only: 'nccl' names no test" },
		{ "--replay int:exact:1", "--replay: 'int:exact:1' is not PROGRAM:INPUTS" },
		{ "--replay int:exat:1:1:1:1", "--replay: " },
		{ "--minutes 0", "--minutes" }, { "--stagger -1", "--stagger" },
		{ "--ranges /nowhere", "--ranges: /nowhere: No such" },
		{ "--device 5", "has no device 5" },
		{ "--json /nowhere/x", "/nowhere/x" }, { "more", "'more' is not an option" },
		{ "--impl ./no.so", "no.so" },
	};
	static char out[65536];

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		int status = validate("", NULL, NULL, bad[i].more, out, sizeof(out));

		if (status == -1)
			break;
		if (!EXPECT(t, status == 2))
			cairn_note(t, "%s: %d: %.300s", bad[i].more, status, out);
		EXPECT_CONTAINS(t, out, bad[i].says);
	}
}

/* Each line of --json is an object with the documented members; --strict fails a warning. */
static void writes_records(struct cairn_test *t)
{
	char dir[] = "/tmp/cairn_validate_XXXXXX", more[300], path[100], xml[100], line[65536];
	static char out[65536];
	int num = 0, status;
	FILE *f;

	if (!EXPECT(t, mkdtemp(dir)))
		return;
	snprintf(path, sizeof(path), "%s/r.jsonl", dir);
	snprintf(xml, sizeof(xml), "%s/r.xml", dir);
	snprintf(more, sizeof(more), "--json %s --junit %s --strict", path, xml);
	status = validate("unit=9 once=3 devices=2", NULL, "screen.int,copy", more, out, sizeof(out));
	if (status == -1) {
		cairn_skip(t, "sim_plugin.so is not in the directory of this program");
		rmdir(dir);
		return;
	}
	EXPECT(t, status == 1);
	f = fopen(path, "r");
	while (EXPECT(t, f) && fgets(line, sizeof(line), f)) {
		json_t *r = json_loads(line, 0, NULL);

		num++;
		EXPECT(t, json_string_value(json_object_get(r, "case")) &&
			  json_string_value(json_object_get(r, "verdict")) &&
			  json_string_length(json_object_get(r, "id")) == 16 &&
			  json_is_array(json_object_get(r, "findings")) && !json_object_get(r, "host"));
		json_decref(r);
	}
	EXPECT(t, num == 8);	/* with the row ranges of each device */
	if (f)
		fclose(f);
	f = fopen(xml, "r");
	num = 0;
	while (EXPECT(t, f) && fgets(line, sizeof(line), f))
		num += !strncmp(line, "<testcase ", 10) ? 1 : !strcmp(line, "</testsuite>\n") ? 100 : 0;
	EXPECT(t, num == 108);	/* eight cases and the end */
	if (f)
		fclose(f);
	unlink(path);
	unlink(xml);
	rmdir(dir);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(finds_wrong_bits), UNIT(finds_slow_parts), UNIT(finds_bad_memory), UNIT(finds_faded_bits),
 UNIT(survives_lost_devices),
	UNIT(compares_with_ranges), UNIT(compares_rates_of_devices), UNIT(shares_when_told),
	UNIT(remembers_findings), UNIT(plan_adapts),
	UNIT(staggers_full_load), UNIT(runs_the_must_pass_list), UNIT(compares_devices),
	UNIT(reads_the_counters), UNIT(replays), UNIT(refuses_bad_options), UNIT(writes_records),
};

const struct cairn_family cairn_validate_family = {
	.stage = "conformance", .name = "validate", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 10,
};
