#!/bin/sh
# Stands for nvcc where only types are checked (`make candle`), or no kernel is launched (conformance/gpu/rust.sh): writes
# an empty file in place of each kernel, and an archive of none.
case " $* " in *" --version "*) echo "Cuda compilation tools, release 12.2, V12.2.140"; exit 0 ;; esac
directory=.
while [ $# -gt 0 ]; do
    case "$1" in
        -o | --output-file) case "$2" in *.a) printf '!<arch>\n' > "$2" ;; *) : > "$2" ;; esac ;;
        --output-directory) directory="$2" ;;
        --output-directory=*) directory="${1#*=}" ;;
        *.cu) : > "$directory/$(basename "$1" .cu).ptx" ;;
    esac
    shift
done
