#!/bin/sh
# Stands for nvcc where only types are checked (`make candle`): writes an empty file in place of each kernel.
case " $* " in *" --version "*) echo "Cuda compilation tools, release 12.2, V12.2.140"; exit 0 ;; esac
directory=.
while [ $# -gt 0 ]; do
    case "$1" in
        -o | --output-file) : > "$2" ;;
        --output-directory) directory="$2" ;;
        --output-directory=*) directory="${1#*=}" ;;
        *.cu) : > "$directory/$(basename "$1" .cu).ptx" ;;
    esac
    shift
done
