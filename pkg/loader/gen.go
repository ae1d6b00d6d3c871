package loader

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -type target_flags -type signal -type target_conf -type target_state -type cohort -type target_counters -type histogram -type pending_key -type pending -type hold -type claimed -type port -type conn -type event -type verdict -type tally -type correction -type party_correction -type policy -type source_key -type source -type parts headgate ../../bpf/headgate.bpf.c -- -O2 -mcpu=v3 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
