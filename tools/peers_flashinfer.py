#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles FlashInfer's modules for conformance/peers: python3 tools/peers_flashinfer.py DIR [NAME]...

DIR holds the packages flashinfer-python and apache-tvm-ffi (tools/peers.sh).  Their JIT compiler needs PyTorch;
this does the same with nvcc alone: it fills in the templates of the modules that the peers call, without custom masks,
and writes DIR/flashinfer_NAME.so.  Without a NAME, all of these:

  norm, activation, rope, sampling   rmsnorm; silu and mul; rotary embedding by a table; top-k and top-p
  decode_D_T                         decoding on the CUDA cores, heads of D elements of type T (bf16 or f16)
  tensor_D_T                         decoding on the tensor cores, by FlashAttention-2
  mla_C_R_bf16                       decoding over latents of C and R elements
  QK_V_bf16                          FlashAttention-3, heads of QK and V elements; takes minutes

Without a NAME, D is 128, in both types on the CUDA cores and in bf16 on the tensor cores, C_R is 512_64, and QK_V
is 128_128.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

NAMES = ("norm", "activation", "rope", "sampling", "decode_128_bf16", "decode_128_f16", "tensor_128_bf16", "mla_512_64_bf16",
         "128_128_bf16")
# Modules that are sources without templates; the flags are those of the package's own compiler.
PLAIN = {
    "norm": (("norm.cu", "flashinfer_norm_binding.cu"), ("-DENABLE_BF16", "-DENABLE_FP8")),
    "rope": (("rope.cu", "flashinfer_rope_binding.cu"), ()),
    "sampling": (("sampling.cu", "renorm.cu", "flashinfer_sampling_binding.cu"), ()),
}
TYPES = {"bf16": "nv_bfloat16", "f16": "half"}
# Arguments of each variant, in the order in which the module's functions take them.
FA3 = {
    "maybe_prefix_len_ptr": "uint32_t*",
    "maybe_token_pos_in_items_ptr": "uint16_t*",
    "maybe_max_item_len_ptr": "uint16_t*",
    "maybe_scale_v": "float*",
    "logits_soft_cap": "double",
    "sm_scale": "double",
    "scale_v_scalar": "double",
    "token_pos_in_items_len": "int64_t",
}
DECODE = {
    "maybe_alibi_slopes": "float*",
    "logits_soft_cap": "double",
    "sm_scale": "double",
    "rope_rcp_scale": "double",
    "rope_rcp_theta": "double",
}
TENSOR = {
    "maybe_custom_mask": "uint8_t*",
    "maybe_mask_indptr": "int32_t*",
    "maybe_alibi_slopes": "float*",
    "maybe_prefix_len_ptr": "uint32_t*",
    "maybe_token_pos_in_items_ptr": "uint16_t*",
    "maybe_max_item_len_ptr": "uint16_t*",
    "maybe_k_cache_sf": "uint8_t*",
    "maybe_v_cache_sf": "uint8_t*",
    "logits_soft_cap": "double",
    "sm_scale": "double",
    "rope_rcp_scale": "double",
    "rope_rcp_theta": "double",
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
# Decoding by FlashAttention-2 has 16 rows or fewer in a tile and no mask: this instance, and an error for all others.
TENSOR_USED = ("Paged", "kNone", "16")
TENSOR_INSTANCE = """
#include <flashinfer/attention/prefill.cuh>
#include "batch_prefill_config.inc"
namespace flashinfer {
template cudaError_t BatchPrefillWithPagedKVCacheDispatched<16, HEAD_DIM_QK, HEAD_DIM_VO, POS_ENCODING_MODE, false,
    MaskMode::kNone, {{ variant_plain }}, PagedParams>(PagedParams, DTypeO*, float*, bool, cudaStream_t);
}  // namespace flashinfer
"""
TENSOR_OTHERS = """
#include <flashinfer/attention/mask.cuh>
#include "batch_prefill_config.inc"
namespace flashinfer {
template <uint32_t tile, uint32_t qk, uint32_t v, PosEncodingMode pos, bool narrow, MaskMode mask, typename Variant,
    typename Params>
cudaError_t BatchPrefillWithRaggedKVCacheDispatched(Params, typename Params::DTypeO*, float*, bool, cudaStream_t);
template <uint32_t tile, uint32_t qk, uint32_t v, PosEncodingMode pos, bool narrow, MaskMode mask, typename Variant,
    typename Params>
cudaError_t BatchPrefillWithPagedKVCacheDispatched(Params, typename Params::DTypeO*, float*, bool, cudaStream_t);
{{ instances }}
}  // namespace flashinfer
"""
TENSOR_OTHER = """
template <> cudaError_t BatchPrefillWith{{ kind }}KVCacheDispatched<{{ tile }}, HEAD_DIM_QK, HEAD_DIM_VO,
    POS_ENCODING_MODE, false, MaskMode::{{ mask }}, {{ variant }}, {{ kind }}Params>(
    {{ kind }}Params, DTypeO*, float*, bool, cudaStream_t)
{
  return cudaErrorNotSupported;
}
"""


def words(arguments, place, variant, types, qk_dim, v_dim):
    """The names of a template: `place` is the struct in which the kernel finds the variant's arguments."""
    pointers = {n: t for n, t in arguments.items() if t.endswith("*")}
    scalars = {n: t for n, t in arguments.items() if n not in pointers}
    taken = [f", Optional<ffi::Tensor> {n}" for n in pointers] + [f", {t} {n}" for n, t in scalars.items()]
    given = [
        f"{place}.{n} = {n} ? static_cast<{t}>({n}.value().data_ptr()) : nullptr;" for n, t in pointers.items()
    ] + [f"{place}.{n} = {n};" for n in scalars]
    return {
        "variant_decl": f"#include <flashinfer/attention/{'hopper/' if arguments is FA3 else ''}variants.cuh>",
        "variant_name": variant,
        "dtype_q": types,
        "dtype_kv": types,
        "dtype_o": types,
        "idtype": "int32_t",
        "head_dim_qk": str(qk_dim),
        "head_dim_vo": str(v_dim),
        "pos_encoding_mode": "PosEncodingMode::kNone",
        "use_sliding_window": "false",
        "use_logits_soft_cap": "false",
        "use_fp16_qk_reduction": "false",
        "additional_params_decl": "\n".join(f"{t} {n};" for n, t in arguments.items()),
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


def write(build, name, text):
    """Writes a source, unless it is there already; its object file then stays valid."""
    path = build / name
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        path.with_suffix(".o").unlink(missing_ok=True)
    return path


def copied(csrc, build, *names):
    return [write(build, name, (csrc / name).read_text()) for name in names]


def fa3_sources(csrc, build, qk_dim, v_dim):
    values = words(FA3, "params.additional_params", "DefaultAttention<false>", TYPES["bf16"], qk_dim, v_dim)
    config = (csrc / "batch_prefill_sm90_customize_config.jinja").read_text()
    write(build, "batch_prefill_sm90_config.inc", fill(config, values))
    sources = [write(build, "others.cu", fill(OTHERS, values))]
    for kind in ("ragged", "paged"):
        template = (csrc / f"batch_prefill_{kind}_sm90_kernel_inst.jinja").read_text()
        for i, mask in enumerate(MASKS):
            sources.append(write(build, f"{kind}_{i}.cu", fill(template, values | {"mask_mode": mask})))
    return sources + copied(csrc, build, "batch_prefill_sm90.cu", "batch_prefill_sm90_jit_binding.cu")


def decode_sources(csrc, build, dim, dtype):
    values = words(DECODE, "params", "DefaultAttention<false, false, false, false>", TYPES[dtype], dim, dim)
    config = (csrc / "batch_decode_customize_config.jinja").read_text()
    write(build, "batch_decode_config.inc", fill(config, values))
    kernel = fill((csrc / "batch_decode_kernel_inst.jinja").read_text(), values)
    sources = [write(build, "batch_decode_kernel.cu", kernel)]
    return sources + copied(csrc, build, "batch_decode.cu", "batch_decode_jit_binding.cu")


def tensor_sources(csrc, build, dim, dtype):
    name = "DefaultAttention<{}, false, false, false>"
    values = words(TENSOR, "params", name.format("use_custom_mask"), TYPES[dtype], dim, dim)
    config = (csrc / "batch_prefill_customize_config.jinja").read_text()
    write(build, "batch_prefill_config.inc", fill(config, values))
    others = ""
    for kind in ("Paged", "Ragged"):
        for mask in ("kNone", "kCausal", "kCustom", "kMultiItemScoring"):
            for tile in ("16", "32", "64", "128"):
                variant = name.format("true" if mask == "kCustom" else "false")
                if (kind, mask, tile) != TENSOR_USED:
                    others += fill(TENSOR_OTHER, {"kind": kind, "mask": mask, "tile": tile, "variant": variant})
    values |= {"variant_plain": name.format("false"), "instances": others}
    sources = [write(build, "instance.cu", fill(TENSOR_INSTANCE, values))]
    sources.append(write(build, "others.cu", fill(TENSOR_OTHERS, values)))
    return sources + copied(csrc, build, "batch_prefill.cu", "batch_prefill_jit_binding.cu")


def mla_sources(csrc, build, latent, rope):
    sizes = {"head_dim_ckv": str(latent), "head_dim_kpe": str(rope), "dtype_idx": "int32_t"}
    values = sizes | {name: TYPES["bf16"] for name in ("dtype_q", "dtype_kv", "dtype_o")}
    write(build, "batch_mla_sm90_config.inc", fill((csrc / "batch_mla_config.jinja").read_text(), values))
    return copied(csrc, build, "batch_mla_sm90_plan.cu", "batch_mla_sm90_run.cu", "batch_mla_sm90_binding.cu")


def activation_sources(package, build):
    """The template lies in a module that cannot be imported without PyTorch, so its text is read."""
    text = (package / "jit" / "activation.py").read_text()
    template, silu = (re.search(name + r' = r"""(.*?)"""', text, re.S)[1] for name in ("activation_templ", "silu_def_cu_str"))
    template = re.sub(r"{% set .*? %}", "", template)
    values = {"act_func_name": "silu", "func_name": "silu_and_mul", "act_func_def": silu}
    return [write(build, "silu_and_mul.cu", fill(template, values))]


def sources_of(name, package, build):
    """The sources of a module, and the flags that only it needs; None: there is no such module."""
    csrc = package / "data" / "csrc"
    if name in PLAIN:
        return copied(csrc, build, *PLAIN[name][0]), PLAIN[name][1]
    if name == "activation":
        return activation_sources(package, build), ()
    if match := re.fullmatch(r"(\d+)_(\d+)_bf16", name):
        return fa3_sources(csrc, build, *map(int, match.groups())), ()
    if match := re.fullmatch(r"mla_(\d+)_(\d+)_bf16", name):
        return mla_sources(csrc, build, *map(int, match.groups())), ()
    if match := re.fullmatch(r"(decode|tensor)_(\d+)_(bf16|f16)", name):
        make = decode_sources if match[1] == "decode" else tensor_sources
        return make(csrc, build, int(match[2]), match[3]), ()
    return None


def flags_of(top, build, cuda):
    data = top / "flashinfer" / "data"
    includes = [build, data / "include", data / "csrc", top / "tvm_ffi" / "include"]
    includes += [data / "cutlass" / "include", data / "cutlass" / "tools" / "util" / "include", data / "spdlog" / "include"]
    includes += [data / "cccl" / name for name in ("cub", "libcudacxx/include", "thrust")]
    # the flags of the package's own compiler, without those that only other modules need
    flags = ["-std=c++17", "-use_fast_math", "-DNDEBUG", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-w"]
    flags += ["-Xfatbin=-compress-all", "--expt-relaxed-constexpr", "-static-global-template-stub=false"]
    flags += ["--compiler-options=-fPIC", "-DFLASHINFER_ENABLE_F16", "-DFLASHINFER_ENABLE_BF16"]
    flags += ["-DFLASHINFER_ENABLE_FP8_E4M3", "-DFLASHINFER_ENABLE_FP8_E5M2", "-DFLASHINFER_ENABLE_FP8_E8M0"]
    flags += ["-DFLASHINFER_ENABLE_FP4_E2M1", "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"]
    return flags + [f"-I{path}" for path in includes]


def main():
    top = pathlib.Path(sys.argv[1]).resolve()
    cuda = os.environ.get("CUDA", "/usr/local/cuda")
    jobs, pool = [], concurrent.futures.ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1)))

    def compiled(source, flags):
        target = source.with_suffix(".o")
        if not target.exists():
            subprocess.run([f"{cuda}/bin/nvcc", *flags, "-c", source, "-o", target.with_suffix(".part")], check=True)
            target.with_suffix(".part").rename(target)
        return target

    for name in sys.argv[2:] or NAMES:
        build = top / f"flashinfer_{name}"
        build.mkdir(parents=True, exist_ok=True)
        found = sources_of(name, top / "flashinfer", build)
        if not found:
            build.rmdir()
            sys.exit(f"peers_flashinfer: {name}: is no module of this script")
        flags = [*flags_of(top, build, cuda), *found[1]]
        jobs.append((build, [pool.submit(compiled, source, flags) for source in found[0]]))
    for build, objects in jobs:
        link = [os.environ.get("CXX", "c++"), "-shared", "-o", f"{build}.so", *(o.result() for o in objects)]
        subprocess.run([*link, f"-L{cuda}/lib64", "-lcudart_static", "-ldl"], check=True)
        print(f"{build}.so", flush=True)


if __name__ == "__main__":
    main()
