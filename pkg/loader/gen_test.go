package loader

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types units ../../bpf/test/units.bpf.c -- -O2 -mcpu=v3 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
