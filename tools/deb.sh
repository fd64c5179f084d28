#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deb.sh BUILD [WHERE]: makes Debian packages in WHERE (default: BUILD) from what is built: cairn, the program; libcairn1, the
# library; libcairn-dev, for programs that use it. DEB_COMPRESS=none is quicker than xz. DEBFULLNAME and DEBEMAIL name the maintainer.
set -eu

out=$1
where=${2:-$out}
mkdir -p "$where"
where=$(readlink -f "$where")
for tool in dpkg-deb dpkg-shlibdeps help2man; do
	command -v $tool >/dev/null 2>&1 || {
		echo "deb: $tool: not found: apt-get install dpkg-dev help2man" >&2
		exit 1
	}
done
version=$("$out/cairn" version | sed 's/^cairn \([^,]*\),.*/\1/')
arch=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
soversion=$(ls "$out"/libcairn.so.* | sed 's/.*\.//')
maintainer="${DEBFULLNAME:-Cairn maintainers} <${DEBEMAIL:-maintainers@cairn.invalid}>"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)	# of all times in the packages
export SOURCE_DATE_EPOCH
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
all=$tmp/all
DESTDIR=$all PREFIX=/usr LIBDIR=/usr/lib/$multiarch tools/install.sh "$out"
strip --strip-unneeded --remove-section=.comment "$all/usr/bin/cairn" "$all/usr/lib/$multiarch/libcairn.so.$soversion"
strip --strip-debug "$all/usr/lib/$multiarch/libcairn.a"
gzip -9n "$all"/usr/share/man/man1/*
mv "$all/usr/share/zsh/site-functions" "$all/usr/share/zsh/vendor-completions"

take() { # take PACKAGE PATH...: moves paths of the installation into the package
	package=$1
	shift
	for path; do
		mkdir -p "$tmp/$package/usr/$(dirname "$path")"
		mv "$all/usr/$path" "$tmp/$package/usr/$path"
	done
}
take libcairn-dev include "lib/$multiarch/libcairn.a" "lib/$multiarch/libcairn.so" "lib/$multiarch/pkgconfig" share/doc/cairn/examples
mkdir -p "$tmp/libcairn-dev/usr/share/doc/libcairn-dev"
mv "$tmp/libcairn-dev/usr/share/doc/cairn/examples" "$tmp/libcairn-dev/usr/share/doc/libcairn-dev/examples"
rmdir "$tmp/libcairn-dev/usr/share/doc/cairn"
take "libcairn$soversion" "lib/$multiarch/libcairn.so.$soversion"
[ ! -d "$all/usr/lib/cairn" ] || {
	strip --strip-unneeded --remove-section=.comment "$all"/usr/lib/cairn/*.so
	take cairn lib/cairn
}
take cairn bin share
rm -f "$tmp/cairn/usr/share/doc/cairn/LICENSE"

needs() { # needs FILE: the packages with the libraries that it is linked with
	mkdir -p "$tmp/debian"
	: >"$tmp/debian/control"
	(cd "$tmp" && dpkg-shlibdeps -O "$1" 2>/dev/null) | sed 's/^shlibs:Depends=//'
}
package() { # package NAME SECTION DEPENDS SUGGESTS SUMMARY, the long description on standard input
	dir=$tmp/$1
	doc=$dir/usr/share/doc/$1
	mkdir -p "$dir/DEBIAN" "$doc"
	{
		echo "Package: $1"
		echo "Source: cairn"
		echo "Version: $version"
		echo "Architecture: $arch"
		[ "$1" = cairn ] || echo "Multi-Arch: same"
		echo "Section: $2"
		echo "Priority: optional"
		echo "Maintainer: $maintainer"
		echo "Installed-Size: $(du -sk "$dir/usr" | cut -f1)"
		echo "Depends: $3"
		[ -z "$4" ] || echo "Suggests: $4"
		echo "Description: $5"
		sed 's/^/ /'
	} >"$dir/DEBIAN/control"
	{
		echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
		printf '\nFiles: *\nCopyright: 2026, the authors of Cairn\nLicense: Apache-2.0\n'
		printf ' On Debian systems, the text of this license is in /usr/share/common-licenses/Apache-2.0.\n'
		[ ! -f "$doc/llguidance.LICENSE" ] || {
			printf '\nFiles: usr/lib/cairn/*\nCopyright: Microsoft Corporation\nLicense: Expat\n'
			sed -e 's/^$/./' -e 's/^/ /' "$doc/llguidance.LICENSE"
			rm "$doc/llguidance.LICENSE"
		}
	} >"$doc/copyright"
	{
		printf 'cairn (%s) unstable; urgency=medium\n\n  * Made by tools/deb.sh from revision %s.\n\n' "$version" \
			"$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)"
		printf ' -- %s  %s\n' "$maintainer" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")"
	} | gzip -9n >"$doc/changelog.gz"
	find "$dir" -type d -exec chmod 755 {} +
	(cd "$dir" && find usr -type f -exec md5sum {} +) >"$dir/DEBIAN/md5sums"
	dpkg-deb --root-owner-group -Z"${DEB_COMPRESS:-xz}" --build "$dir" "$where" >/dev/null
	echo "$where/$1_${version}_$arch.deb"
}
# The program looks for libraries in lib/ beside itself, for the archive of `make package`.
mkdir -p "$tmp/cairn/usr/share/lintian/overrides"
echo 'cairn: custom-library-search-path RUNPATH $ORIGIN/lib [usr/bin/cairn]' >"$tmp/cairn/usr/share/lintian/overrides/cairn"
# This library only defines Python's symbols for llguidance, so it needs no other library.
[ ! -d "$tmp/cairn/usr/lib/cairn" ] ||
	echo 'cairn: shared-library-lacks-prerequisites [usr/lib/cairn/libllguidance_python.so]' \
		>>"$tmp/cairn/usr/share/lintian/overrides/cairn"
mkdir -p "$tmp/libcairn$soversion/DEBIAN"
echo "activate-noawait ldconfig" >"$tmp/libcairn$soversion/DEBIAN/triggers"
echo "libcairn $soversion libcairn$soversion" >"$tmp/libcairn$soversion/DEBIAN/shlibs"

package cairn science "$(needs "$tmp/cairn/usr/bin/cairn")" "libcairn-dev, coinor-cbc, ibverbs-providers, libsodium23" \
	"LLM inference kernels for NVIDIA Hopper, and their server" <<-'EOF'
	Kernels for H100 and H200, a suite that judges any implementation of their
	operations, and an engine built on them, which serves checkpoints over an
	OpenAI-compatible interface. It needs NVIDIA's driver and no CUDA toolkit;
	without a Hopper GPU it runs on the processor, slowly. cairn doctor tells
	what a machine lacks.
EOF
package "libcairn$soversion" libs "$(needs "$tmp/libcairn$soversion/usr/lib/$multiarch/libcairn.so.$soversion")" "" \
	"LLM inference kernels for NVIDIA Hopper (library)" <<-'EOF'
	The operation table of Cairn's kernels, with models, tokenizers and the
	engine that are built on it.
EOF
package libcairn-dev libdevel \
	"libcairn$soversion (= $version), libjansson-dev, libpcre2-dev, libutf8proc-dev, libmd-dev" "pkg-config" \
	"LLM inference kernels for NVIDIA Hopper (development files)" <<-'EOF'
	Headers, the static library and examples of libcairn. The other libraries
	are needed to link with the static one.
EOF
if [ "${DEB_COMPRESS:-xz}" = xz ] && command -v lintian >/dev/null 2>&1; then
	lintian --allow-root --fail-on error,warning "$where"/cairn_"$version"_"$arch".deb "$where"/libcairn*_"$version"_"$arch".deb
fi
