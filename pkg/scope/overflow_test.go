package scope

import "testing"

func TestParseOverflows(t *testing.T) {
	for _, c := range []struct {
		text string
		want uint64
		ok   bool
	}{
		{"TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 18446744073709551615 3\nIpExt: InNoRoutes\nIpExt: 4\n", 1<<64 - 1, true},
		{"IpExt: ListenOverflows\nIpExt: 4\nTcpExt: ListenOverflows\nTcpExt: 7\n", 7, true},
		{"TcpExt: ListenDrops\nTcpExt: 7\n", 0, false},
		{"TcpExt: A ListenOverflows\nTcpExt: 7\n", 0, false},
		{"TcpExt: ListenOverflows\nTcpExt: x\n", 0, false},
		{"TcpExt: ListenOverflows\n", 0, false},
		{"\n\n", 0, false},
		{"", 0, false},
	} {
		got, err := parseOverflows([]byte(c.text))
		if got != c.want && c.ok || (err == nil) != c.ok {
			t.Errorf("%q: %d, %v", c.text, got, err)
		}
	}
}

func TestOverflowsOfThisHost(t *testing.T) {
	if _, err := Overflows(); err != nil {
		t.Error(err)
	}
}
