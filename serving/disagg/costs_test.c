// SPDX-License-Identifier: Apache-2.0
/* costs_test - times and bytes of a model in closed form; files of prices and recordings */
#include <limits.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "serving/disagg/disagg_test.h"

static void closed_forms(struct cairn_test *t)
{
	const char *why = costs_are_closed_forms();

	if (why)
		cairn_note(t, "%s", why);
	EXPECT(t, !why);
}

static void refused_models(struct cairn_test *t)
{
	struct cairn_model_config c;
	struct cairn_disagg_model m;

	EXPECT(t, !cairn_model_shape("gemma2-9b", &c) && cairn_disagg_model_open(&m, &c) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "windows");
	EXPECT(t, !cairn_model_shape("dsv2lite", &c) && cairn_disagg_model_open(&m, &c) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "latent");
}

static const char *write_file(struct cairn_test *t, const char *name, const char *text, char *path)
{
	FILE *f;

	snprintf(path, PATH_MAX, "%s/%s", cairn_tmpdir(t), name);
	f = fopen(path, "w");
	if (!EXPECT(t, f != NULL))
		return path;
	fputs(text, f);
	fclose(f);
	return path;
}

#define ROW(op, name, impl, ns, bytes, flops) "{\"v\":1,\"op\":\"" op "\",\"case\":\"" name "\",\"impl\":\"" \
	impl "\",\"median_ns\":" ns ",\"bytes\":" bytes ",\"flops\":" flops "}\n"

/* Rows on exact lines; others beside them must not count. */
static const char recording[] =
	ROW("gemm", "m1_n4096_k4096_bf16", "cuda", "2250", "1000000", "1000000")
	ROW("gemm", "m1_n8192_k8192_bf16", "cuda", "3250", "5000000", "5000000")
	ROW("gemm", "m1_n8192_k8192_bf16", "peers", "9250", "5000000", "5000000")
	ROW("gemm", "m8192_n8192_k8192_bf16", "cuda", "1000000", "400000000", "750000000000")
	ROW("rmsnorm", "rows1_dim4096_bf16", "cuda", "1100", "100000", "0")
	ROW("silu_mul", "rows128_dim9216_bf16_gelu", "cuda", "9100", "100000", "0")
	ROW("silu_mul", "rows128_dim14336_bf16", "cuda", "1200", "200000", "0")
	ROW("attn_paged", "decode_h32_8_b1_kv1024_bf16", "cuda", "5250", "1000000", "0")
	ROW("attn_paged", "decode_h32_8_b4_kv16384_window4096_bf16", "cuda", "99250", "1000000", "0")
	ROW("attn_paged", "decode_h32_8_b64_kv1024_bf16", "cuda", "7500", "10000000", "0")
	ROW("transport", "put_latency_64", "nvlink", "2010", "1000", "0")
	ROW("transport", "one_gpu_put_latency_64", "nvlink", "9010", "1000", "0")
	ROW("transport", "put_latency_1048576", "nvlink", "12000", "1000000", "0")
	"{\"v\":1,\"op\":\"kv_waste\",\"case\":\"waste_page16\",\"impl\":\"host\"}\n";

#define BYTE_RATES "\"products\":{\"base_us\":2,\"gbps\":3600}," \
	"\"light\":{\"base_us\":0,\"gbps\":3000},\"attention\":{\"base_us\":5,\"gbps\":3500}"
#define RATES	BYTE_RATES ",\"tflops\":140"

static void prices(struct cairn_test *t)
{
	struct cairn_disagg_hardware hw;
	char path[PATH_MAX];
	const struct cairn_disagg_gpu *g = hw.gpus;

	write_file(t, "rows.jsonl", recording, path);
	write_file(t, "prices.json", "{\"gpus\":{\"h100\":{\"dollars_per_hour\":11.06,\"memory_gb\":80,"
		   "\"costs\":\"rows.jsonl\"},\"h20\":{\"dollars_per_hour\":4.63,\"memory_gb\":96,"
		   "\"costs\":{" RATES
		   ",\"slice_us\":[[1,100],[64,107],[128,115]]}}},\"link\":\"rows.jsonl\"}", path);
	if (!EXPECT(t, cairn_disagg_hardware_read(&hw, path) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return;
	}
	EXPECT(t, hw.num_gpus == 2 && !strcmp(g[0].name, "h100") && g[1].dollars_per_hour == 4.63);
	EXPECT(t, fabs(g[0].products.base_us - 2) < 1e-9 && fabs(g[0].products.gbps - 4000) < 1e-6);
	EXPECT(t, fabs(g[0].light.base_us - 1) < 1e-9 && fabs(g[0].light.gbps - 1000) < 1e-6);
	EXPECT(t, fabs(g[0].attention.base_us - 5) < 1e-9 && fabs(g[0].attention.gbps - 4000) < 1e-6);
	EXPECT(t, fabs(hw.link.base_us - 2) < 1e-9 && fabs(hw.link.gbps - 100) < 1e-6);
	EXPECT(t, fabs(g[0].tflops - 750) < 1e-9 && g[1].tflops == 140 && g[1].light.base_us == 0);
	EXPECT(t, cairn_disagg_points_us(&g[1].slice, 0.5) == 100);
	EXPECT(t, cairn_disagg_points_us(&g[1].slice, 96) == 111);
	EXPECT(t, cairn_disagg_points_us(&g[1].slice, 256) == 131);
}

#define LINKED(costs, us, gbps) "{\"gpus\":{\"x\":{\"dollars_per_hour\":1,\"memory_gb\":80," \
	"\"costs\":" costs "}},\"link\":{\"latency_us\":" us ",\"gbps\":" gbps "}}"
#define GPU(costs)	LINKED(costs, "1", "50")

static void bad_prices(struct cairn_test *t)
{
	static const struct { const char *text, *want; } bad[] = {
		{ "{}", "gpus" },
		{ "{\"gpus\":{},\"link\":{}}", "gpus: is empty" },
		{ "{\"gpus\":{\"a b\":{}}}", "the name \"a b\"" },
		{ "{\"gpus\":{\"x\":1}}", "gpus.x: is not an object" },
		{ "{\"gpus\":{\"x\":{\"dollars_per_hour\":0}}}", "gpus.x.dollars_per_hour" },
		{ GPU("1"), "gpus.x.costs: is neither a path nor an object" },
		{ GPU("\"none.jsonl\""), "none.jsonl" },
		{ "{\"gpus\":{\"x\":{\"dollars_per_hour\":1e-308}}}",
		  "gpus.x.dollars_per_hour: must be above" },
		{ LINKED("{" RATES "}", "1e9", "50"), "link.latency_us: must be" },
		{ LINKED("{" RATES "}", "1", "1e-9"), "link.gbps: must be above" },
		{ GPU("{" RATES ",\"slice_us\":[[1,2]]}"), "gpus.x.costs.slice_us: has not 2 to" },
		{ GPU("{" RATES ",\"slice_us\":[[1,2],[1,3]]}"), "gpus.x.costs.slice_us[1]" },
		{ GPU("{" RATES ",\"attention_us\":[[1,2],[2,\"3\"]]}"), "gpus.x.costs.attention_us[1]" },
		{ GPU("{\"products\":{\"base_us\":-0.5,\"gbps\":1}}"), "gpus.x.costs.products.base_us" },
		{ GPU("{\"products\":{\"base_us\":1,\"gbps\":0}}"), "gpus.x.costs.products.gbps" },
		{ GPU("{\"products\":{\"base_us\":1,\"gbps\":1e-9}}"), "gpus.x.costs.products.gbps: must" },
		{ GPU("{\"products\":{\"base_us\":1e9,\"gbps\":1}}"), "gpus.x.costs.products.base_us: must" },
		{ GPU("{" BYTE_RATES ",\"tflops\":1e-6}"), "gpus.x.costs.tflops: must be above" },
		{ GPU("{" RATES ",\"attention_us\":[[1,2],[2,1e9]]}"), "gpus.x.costs.attention_us[1]" },
		{ GPU("\"prices.json\""), "prices.json:1: op" },
	};
	struct cairn_disagg_hardware hw;
	char path[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		write_file(t, "prices.json", bad[i].text, path);
		EXPECT(t, cairn_disagg_hardware_read(&hw, path) < 0);
		EXPECT_CONTAINS(t, cairn_last_error(), bad[i].want);
	}
	write_file(t, "rows.jsonl", ROW("gemm", "m1_bf16", "cuda", "1", "1", "1"), path);
	write_file(t, "prices.json", GPU("\"rows.jsonl\""), path);
	EXPECT(t, cairn_disagg_hardware_read(&hw, path) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "rows.jsonl: has no two rows of gemm bound by memory");
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(closed_forms), UNIT(refused_models), UNIT(prices), UNIT(bad_prices),
};

const struct cairn_family cairn_disagg_costs_family = {
	.stage = "serving",
	.name = "disagg_costs",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
