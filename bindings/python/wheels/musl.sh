#!/usr/bin/env bash
# A CPython on musl, for the trial of a wheel of musllinux on a machine whose C library is glibc:
#
#   bindings/python/wheels/musl.sh [FOLDER]      `target/musl`, where `make wheels` looks for it
#
# Debian's musl is unpacked, not installed, and loads itself by its path in that folder. zlib and libffi are built into
# the interpreter, which has no ssl. Two minutes; 300 MB. Needs gcc on x86_64. musl before 1.2.4 does not know the
# relocations (RELR) of NumPy's wheel, and so crashes at its import.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/musl}")
mkdir -p "$folder"
cd "$folder"
[ ! -x cpython/bin/python3.13 ] || exit 0
pool=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | head -n 1 || true)
pool=${pool:-https://deb.debian.org/debian}/pool/main
while read -r sha256 path; do
    file=${path##*/}
    [ -f "$file" ] || curl -sSfLO "$pool/$path"
    echo "$sha256  $file" | sha256sum --check --quiet
done <<'FILES'
4288deaf14438e6c237491be45f10e3e7badb2e723cedfb08ff1fe687b646c84 m/musl/musl_1.2.5-3_amd64.deb
fb173bdd7a292097cb6c8b5418b11ea220d35d7a793e90df232a23f8b0d31f6c m/musl/musl-dev_1.2.5-3_amd64.deb
d66c56ad259a82cf2a9dfc408b32bf5da52371500b84745f7fb8b645712df676 libf/libffi/libffi_3.4.4.orig.tar.gz
71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1 z/zlib/zlib_1.2.13.dfsg.orig.tar.bz2
93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640 p/python3.13/python3.13_3.13.5.orig.tar.xz
FILES
root=$folder/root
headers=$root/usr/include/x86_64-linux-musl
libraries=$root/usr/lib/x86_64-linux-musl
for package in ./*.deb; do dpkg-deb -x "$package" "$root"; done
for archive in ./*.orig.tar.*; do tar -xf "$archive"; done
# The kernel's headers are the machine's; the compiler is its gcc, told of musl, and says so.
ln -sfn /usr/include/linux "$headers/linux"
ln -sfn /usr/include/asm-generic "$headers/asm-generic"
ln -sfn /usr/include/x86_64-linux-gnu/asm "$headers/asm"
sed -e "s|/usr/|$root/usr/|g" -e "s|-dynamic-linker /lib/|-dynamic-linker $root/usr/lib/|" \
    "$libraries/musl-gcc.specs" >"$folder/gcc.specs"
cat >"$folder/cc" <<CC
#!/bin/sh
case "\$*" in *--print-multiarch*) echo x86_64-linux-musl && exit ;; esac
exec gcc "\$@" -specs $folder/gcc.specs
CC
chmod +x "$folder/cc"
export CC=$folder/cc
(cd zlib-1.2.13*/ && CFLAGS='-O2 -fPIC' ./configure --static && make -s libz.a && cp libz.a "$libraries" && cp z*.h "$headers")
(cd libffi-3.4.4 && CFLAGS='-O2 -fPIC' ./configure --prefix="$folder/ffi" --disable-shared --disable-docs && make -s -j2 install)
cp "$folder"/ffi/lib/libffi.a "$libraries"
cp "$folder"/ffi/include/*.h "$headers"
left_out=()
for module in _ssl _hashlib _sqlite3 readline _bz2 _lzma _uuid _curses _curses_panel _dbm _gdbm _tkinter; do
    left_out+=("py_cv_module_$module=n/a")
done
mkdir -p build
cd build
CXX=false LIBFFI_CFLAGS=' ' LIBFFI_LIBS=-l:libffi.a ZLIB_CFLAGS=' ' ZLIB_LIBS=-l:libz.a ../Python-3.13.5/configure --quiet \
    --prefix="$folder/cpython" --without-ensurepip --build=x86_64-pc-linux-musl "${left_out[@]}"
make -s -j2
make -s altbininstall libinstall sharedinstall
"$folder/cpython/bin/python3.13" -c 'import ctypes, zlib'
