#!/bin/sh
# rustdoc with its unstable JSON, on any compiler. The variable is set for rustdoc alone: build scripts that see it
# would run again, and with them what depends on them.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
