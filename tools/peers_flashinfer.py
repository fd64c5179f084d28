#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles FlashInfer's FlashAttention-3 module: python3 tools/peers_flashinfer.py DIR [QK_DIM V_DIM]

DIR holds the packages flashinfer-python and apache-tvm-ffi (tools/peers.sh).  Their JIT compiler needs PyTorch;
this does the same with nvcc alone: it fills in the templates of the module that serves bf16, without custom masks,
and writes DIR/flashinfer_QK_V_bf16.so, which conformance/peers loads.  Takes minutes.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

# Arguments of the variant, in the order in which the module's functions take them.
TENSORS = {
    "maybe_prefix_len_ptr": "uint32_t",
    "maybe_token_pos_in_items_ptr": "uint16_t",
    "maybe_max_item_len_ptr": "uint16_t",
    "maybe_scale_v": "float",
}
SCALARS = {
    "logits_soft_cap": "double",
    "sm_scale": "double",
    "scale_v_scalar": "double",
    "token_pos_in_items_len": "int64_t",
}
MASKS = ["MaskMode::kNone", "MaskMode::kCausal"]
# Custom masks take half of the time to compile, and no peer calls them: these instances return an error.
OTHERS = """
#include <flashinfer/attention/mask.cuh>
#include "batch_prefill_sm90_config.inc"
namespace flashinfer {
template <uint32_t qk, uint32_t v, MaskMode mask, bool window, bool same, typename Variant, typename Params>
cudaError_t BatchPrefillWithRaggedKVCacheDispatched(Params& params, bool pdl, cudaStream_t stream);
template <uint32_t qk, uint32_t v, MaskMode mask, bool window, bool same, typename Variant, typename Params>
cudaError_t BatchPrefillWithPagedKVCacheDispatched(Params& params, bool pdl, cudaStream_t stream);
{% for kind in ["Ragged", "Paged"] %}{% for mask in ["kCustom", "kMultiItemScoring"] %}{% for same in ["true", "false"] %}
template <> cudaError_t BatchPrefillWith{{ kind }}KVCacheDispatched<HEAD_DIM_QK, HEAD_DIM_VO, MaskMode::{{ mask }},
    false, {{ same }}, {{ variant_name }}, {{ kind }}Params>({{ kind }}Params&, bool, cudaStream_t)
{
  return cudaErrorNotSupported;
}
{% endfor %}{% endfor %}{% endfor %}
}  // namespace flashinfer
"""


def words(qk_dim, v_dim):
    declared = [f"{t}* {n};" for n, t in TENSORS.items()] + [f"{t} {n};" for n, t in SCALARS.items()]
    taken = [f", Optional<ffi::Tensor> {n}" for n in TENSORS] + [f", {t} {n}" for n, t in SCALARS.items()]
    given = [
        f"params.additional_params.{n} = {n} ? static_cast<{t}*>({n}.value().data_ptr()) : nullptr;"
        for n, t in TENSORS.items()
    ] + [f"params.additional_params.{n} = {n};" for n in SCALARS]
    return {
        "variant_decl": "#include <flashinfer/attention/hopper/variants.cuh>",
        "variant_name": "DefaultAttention<false>",
        "dtype_q": "nv_bfloat16",
        "dtype_kv": "nv_bfloat16",
        "dtype_o": "nv_bfloat16",
        "idtype": "int32_t",
        "head_dim_qk": str(qk_dim),
        "head_dim_vo": str(v_dim),
        "use_sliding_window": "false",
        "use_logits_soft_cap": "false",
        "additional_params_decl": "\n".join(declared),
        "additional_func_params": "".join(taken),
        "additional_params_setter": " ".join(given),
    }


def fill(template, values):
    """Fills in a template that has names, and loops over lists of texts; inner loops first."""
    loop = r"{% for (\w+) in \[([^\]]*)\] %}((?:(?!{% for ).)*?){% endfor %}"

    def unroll(match):
        name, texts, body = match.groups()
        return "".join(body.replace("{{ " + name + " }}", text) for text in re.findall(r'"([^"]*)"', texts))

    while re.search(loop, template, flags=re.S):
        template = re.sub(loop, unroll, template, flags=re.S)
    return re.sub(r"{{ (\w+) }}", lambda m: values.get(m[1], m[0]), template)


def write_sources(data, build, qk_dim, v_dim):
    csrc, values, sources = data / "csrc", words(qk_dim, v_dim), []
    config = (csrc / "batch_prefill_sm90_customize_config.jinja").read_text()
    (build / "batch_prefill_sm90_config.inc").write_text(fill(config, values))
    for kind in ("ragged", "paged"):
        template = (csrc / f"batch_prefill_{kind}_sm90_kernel_inst.jinja").read_text()
        for i, mask in enumerate(MASKS):
            path = build / f"{kind}_{i}.cu"
            path.write_text(fill(template, values | {"mask_mode": mask}))
            sources.append(path)
    sources.append(build / "others.cu")
    sources[-1].write_text(fill(OTHERS, values))
    for name in ("batch_prefill_sm90.cu", "batch_prefill_sm90_jit_binding.cu"):
        shutil.copy(csrc / name, build)
        sources.append(build / name)
    return sources


def main():
    top = pathlib.Path(sys.argv[1]).resolve()
    qk_dim, v_dim = (int(x) for x in sys.argv[2:4]) if len(sys.argv) > 3 else (128, 128)
    data, build = top / "flashinfer" / "data", top / f"flashinfer_{qk_dim}_{v_dim}_bf16"
    cuda = os.environ.get("CUDA", "/usr/local/cuda")
    includes = [build, data / "include", data / "csrc", top / "tvm_ffi" / "include"]
    includes += [data / "cutlass" / "include", data / "cutlass" / "tools" / "util" / "include", data / "spdlog" / "include"]
    includes += [data / "cccl" / name for name in ("cub", "libcudacxx/include", "thrust")]
    # the flags of the package's own compiler, without those that only other modules need
    flags = ["-std=c++17", "-use_fast_math", "-DNDEBUG", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-w"]
    flags += ["-Xfatbin=-compress-all", "--expt-relaxed-constexpr", "-static-global-template-stub=false"]
    flags += ["--compiler-options=-fPIC", "-DFLASHINFER_ENABLE_F16", "-DFLASHINFER_ENABLE_BF16"]
    flags += ["-DFLASHINFER_ENABLE_FP8_E4M3", "-DFLASHINFER_ENABLE_FP8_E5M2", "-DFLASHINFER_ENABLE_FP8_E8M0"]
    flags += ["-DFLASHINFER_ENABLE_FP4_E2M1", "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"]
    flags += [f"-I{path}" for path in includes]
    build.mkdir(parents=True, exist_ok=True)

    def compiled(source):
        target = source.with_suffix(".o")
        if not target.exists():
            subprocess.run([f"{cuda}/bin/nvcc", *flags, "-c", source, "-o", target.with_suffix(".part")], check=True)
            target.with_suffix(".part").rename(target)
        return target

    sources = write_sources(data, build, qk_dim, v_dim)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as pool:
        objects = list(pool.map(compiled, sources))
    subprocess.run(
        [os.environ.get("CXX", "c++"), "-shared", "-o", f"{build}.so", *objects, f"-L{cuda}/lib64", "-lcudart_static", "-ldl"],
        check=True,
    )
    print(f"{build}.so")


if __name__ == "__main__":
    main()
