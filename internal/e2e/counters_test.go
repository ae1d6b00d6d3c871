package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"headgate/internal/lab"
)

// counters reads a table of what the network stack of a host counts, Tcp or
// TcpExt, with the names that `nstat -az` shows.
func counters(t *testing.T, h *lab.Host, table string) map[string]uint64 {
	t.Helper()
	all := make(map[string]uint64)
	err := h.Do(func() error {
		for _, file := range []string{"snmp", "netstat"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			// Lines are in pairs: names, and the numbers that belong to them.
			var names []string
			for line := range strings.Lines(string(text)) {
				fields := strings.Fields(line)
				switch {
				case len(fields) == 0 || fields[0] != table+":":
				case names == nil:
					names = fields
				default:
					for i, name := range names[1:] {
						// Some are negative by nature: Tcp's MaxConn is -1.
						n, _ := strconv.ParseInt(fields[i+1], 10, 64)
						all[name] = uint64(n)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// counter reads one counter, which there must be.
func counter(t *testing.T, h *lab.Host, table, name string) uint64 {
	t.Helper()
	n, ok := counters(t, h, table)[name]
	if !ok {
		t.Fatalf("the kernel has no counter %s in table %s", name, table)
	}
	return n
}

// opened is how many connections the listeners of a host have made, by the
// kernel's count.
func opened(t *testing.T, h *lab.Host) uint64 {
	t.Helper()
	return counter(t, h, "Tcp", "PassiveOpens")
}
