#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rxe_image.py - makes the files of the soft-RoCE guest (rxe_guest.sh) without root, depmod or cpio.

rxe_image.py kernel PACKAGE.deb CACHE
    Extracts from a Debian kernel package CACHE/vmlinux and, in CACHE/modules, the modules that the guest loads, with
    their order in CACHE/modules/order.
rxe_image.py initramfs CACHE OUT INIT [PROGRAM]...
    Writes to OUT a newc archive of busybox, the programs with the libraries they need, libibverbs' rxe provider, the
    modules, and INIT as /init.
"""

import glob
import lzma
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import zlib

# crc32_generic: rxe requests "crc32" from the crypto layer by name, which the module dependencies do not show.
WANTED = ("crc32_generic", "ib_uverbs", "rdma_rxe", "veth")
# Folders of these modules and their dependencies; the package has 4,000 modules, most of them not needed.
FOLDERS = re.compile(
    r"/kernel/(crypto|lib|net/ipv4|net/ipv6|arch/x86/crypto|drivers/net/[^/]*$|drivers/infiniband/(core|sw))"
)
MODULE = re.compile(r"/([^/]+)\.ko(\.xz)?$")
NAMES = ("sh", "cat", "cut", "grep", "insmod", "mkdir", "mount", "poweroff", "sleep", "stty", "timeout", "tr", "uname")


def fail(text):
    sys.exit(f"rxe_image: {text}")


# ---------------------------------------------------------------- the kernel package


def uncompressed(image):
    """Returns the ELF file within a bzImage: qemu boots it directly (PVH), 3.5 s faster than the kernel decompresses
    itself under emulation. Returns None if Python has no decompressor for it."""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    at = (setup_sectors + 1) * 512 + offset
    payload = image[at : at + length]
    if payload[:6] == b"\xfd7zXZ\0":
        elf = lzma.LZMADecompressor().decompress(payload)
    elif payload[:2] == b"\x1f\x8b":
        elf = zlib.decompressobj(31).decompress(payload)
    else:
        return None
    return elf if elf[:4] == b"\x7fELF" else None


def read_package(package):
    """Returns (image, {module name: bytes})."""
    image, modules = None, {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as dpkg:
        with tarfile.open(fileobj=dpkg.stdout, mode="r|") as tar:
            for member in tar:
                found = MODULE.search(member.name)
                if "/boot/vmlinuz" in member.name:
                    image = tar.extractfile(member).read()
                elif member.isfile() and found and FOLDERS.search(member.name):
                    data = tar.extractfile(member).read()
                    modules[found[1].replace("-", "_")] = lzma.decompress(data) if found[2] else data
    if dpkg.returncode or not image:
        fail(f"{package}: contains no kernel")
    return image, modules


def in_order(modules, wanted):
    order = []

    def add(name, asker):
        if name in order:
            return
        if name not in modules:
            fail(f"module {name}, which {asker} needs, is not in the package")
        depends = re.search(rb"\0depends=([^\0]*)\0", b"\0" + modules[name])
        for other in depends[1].decode().split(",") if depends and depends[1] else ():
            add(other.replace("-", "_"), name)
        order.append(name)

    for name in wanted:
        add(name, "the guest")
    return order


def unpack_kernel(package, cache):
    image, modules = read_package(package)
    order = in_order(modules, WANTED)
    folder = os.path.join(cache, "modules")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name in order:
        with open(os.path.join(folder, name + ".ko"), "wb") as f:
            f.write(modules[name])
    with open(os.path.join(folder, "order"), "w", encoding="ascii") as f:
        f.write("\n".join(order) + "\n")
    # written last, by rename: the file exists only if all others are complete
    with open(os.path.join(cache, "vmlinux.part"), "wb") as f:
        f.write(uncompressed(image) or image)
    os.replace(os.path.join(cache, "vmlinux.part"), os.path.join(cache, "vmlinux"))


# ---------------------------------------------------------------- the archive


def libraries(program):
    """Returns the paths of a program's libraries, including its loader."""
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    missing = re.search(r"(\S+) => not found", out)
    if missing:
        fail(f"{program}: {missing[1]}: library not found")
    return re.findall(r"(/\S+) \(0x", out)


def content(cache, init, programs):
    """Returns {path in the guest: (mode, bytes)} without the folders."""
    files = {"init": (0o100755, read(init)), "bin/busybox": (0o100755, read(which("busybox")))}
    for name in NAMES:
        files[f"bin/{name}"] = (0o120777, b"busybox")
    need = [which("busybox")]  # for a busybox that is not static
    for program in programs:
        path = which(program)
        files[f"bin/{os.path.basename(program)}"] = (0o100755, read(path))
        need.append(path)
    providers = glob.glob("/usr/lib/*/libibverbs/librxe-rdmav*.so")
    if not providers:
        fail("rxe provider of libibverbs not found (package ibverbs-providers)")
    for path in providers:
        files[path[1:]] = (0o100755, read(path))
    files["etc/libibverbs.d/rxe.driver"] = (0o100644, b"driver rxe\n")
    need += providers
    # libgcc_s: the C library opens it by dlopen() when a thread ends
    found = {p for program in need for p in libraries(program)} | set(glob.glob("/lib/*/libgcc_s.so.1"))
    for path in found:
        files[path[1:]] = (0o100755, read(path))
    for path in glob.glob(os.path.join(cache, "modules", "*")):
        files[f"modules/{os.path.basename(path)}"] = (0o100644, read(path))
    return files


def read(path):
    with open(path, "rb") as f:
        return f.read()


def which(program):
    path = program if "/" in program else shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not path or not os.path.exists(path):
        fail(f"{program}: program not found")
    return path


def newc(files):
    """Returns the archive in the format of Linux, Documentation/driver-api/early-userspace/buffer-format."""
    folders = {"dev", "proc", "sys", "tmp"}
    for path in files:
        parts = path.split("/")[:-1]
        folders |= {"/".join(parts[: i + 1]) for i in range(len(parts))}
    entries = [(path, stat.S_IFDIR | 0o755, b"") for path in sorted(folders)]
    entries += [(path, mode, data) for path, (mode, data) in sorted(files.items())]
    out = []
    for number, (path, mode, data) in enumerate(entries + [("TRAILER!!!", 0, b"")], 1):
        name = path.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08x" % n for n in fields) + name
        out += [head, b"\0" * (-len(head) % 4), data, b"\0" * (-len(data) % 4)]
    return b"".join(out)


def main(argv):
    if len(argv) == 4 and argv[1] == "kernel":
        unpack_kernel(argv[2], argv[3])
    elif len(argv) >= 5 and argv[1] == "initramfs":
        archive = newc(content(argv[2], argv[4], argv[5:]))
        with open(argv[3], "wb") as f:
            f.write(archive)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv)
