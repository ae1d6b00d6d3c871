package scope

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// overflows is the kernel's name of the count, and its line's.
const overflowsLine, overflows = "TcpExt:", "ListenOverflows"

// Overflows returns how often, since the network namespace of the calling thread
// was made, a connection found the accept queue of its listener full. What the
// kernel counts at a listener itself, [Listener.Dropped], is also every stray
// packet that came to it.
func Overflows() (uint64, error) {
	const file = "/proc/thread-self/net/netstat"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := parseOverflows(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// parseOverflows reads lines in pairs: names, and the numbers that belong to them.
func parseOverflows(text []byte) (uint64, error) {
	var names [][]byte
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) == 0 || string(fields[0]) != overflowsLine {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if string(name) == overflows && i < len(fields) {
				return strconv.ParseUint(string(fields[i]), 10, 64)
			}
		}
	}
	return 0, errors.New("no count " + overflows)
}
