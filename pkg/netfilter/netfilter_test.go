package netfilter

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/internal/lab"
	"headgate/pkg/scope"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

func testHost(t *testing.T) (*lab.Host, Rule) {
	t.Helper()
	l, err := lab.New("server")
	if errors.Is(err, lab.ErrNotRoot) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	h := l.Host("server")
	ns, err := scope.OpenNetns(h.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return h, Rule{Netns: ns, Mark: 0x10000000, Queue: 83}
}

// nft runs the tool of that name, which stands for everybody else here.
func nft(t *testing.T, h *lab.Host, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no nft: ", err)
	}
	out, err := h.Command(context.Background(), "nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestRuleIsMadeOnceAndLeavesNothing(t *testing.T) {
	h, r := testHost(t)
	if err := r.Check(); !errors.Is(err, ErrMissing) {
		t.Errorf("before: %v", err)
	}
	if made, err := r.Ensure(); !made || err != nil {
		t.Fatalf("made %t, %v", made, err)
	}
	list := nft(t, h, "-a", "list", "ruleset")
	t.Log(list)
	for _, part := range []string{"hook prerouting priority raw; policy accept", "0x10000000"} {
		if !strings.Contains(list, part) {
			t.Errorf("no %q", part)
		}
	}
	if made, err := r.Ensure(); made || err != nil {
		t.Errorf("made %t again, %v", made, err)
	}
	if again := nft(t, h, "-a", "list", "ruleset"); again != list {
		t.Errorf("changed: %s", cmp.Diff(list, again))
	}
	for range 2 {
		if err := Remove(r.Netns); err != nil {
			t.Error(err)
		}
		if list := nft(t, h, "list", "ruleset"); list != "" {
			t.Errorf("left: %s", list)
		}
	}
}

func TestWhatOthersDidIsRepaired(t *testing.T) {
	h, r := testHost(t)
	nft(t, h, "add table inet foreign")
	nft(t, h, "add chain inet foreign in { type filter hook prerouting priority raw; }")
	foreign := nft(t, h, "list ruleset")
	for name, damage := range map[string][]string{
		"everything flushed": {"flush table inet headgate"},
		"chain deleted":      {"flush chain inet headgate hold", "delete chain inet headgate hold"},
		"table deleted":      {"delete table inet headgate"},
		"another rule":       {"add rule inet headgate hold accept"},
		"another hook": {"delete table inet headgate", "add table inet headgate",
			"add chain inet headgate hold { type filter hook input priority 0; }"},
		"another policy": {"add chain inet headgate hold { policy drop; }"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := r.Ensure(); err != nil {
				t.Fatal(err)
			}
			for _, d := range damage {
				nft(t, h, d)
			}
			if err := r.Check(); !errors.Is(err, ErrMissing) {
				t.Errorf("not seen: %v", err)
			} else {
				t.Log(err)
			}
			if made, err := r.Ensure(); !made || err != nil {
				t.Errorf("made %t, %v", made, err)
			}
			if err := r.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	other := r
	other.Queue++
	if err := other.Check(); !errors.Is(err, ErrMissing) {
		t.Errorf("another queue: %v", err)
	}
	if made, err := other.Ensure(); !made || err != nil {
		t.Errorf("another queue: %t, %v", made, err)
	}
	if err := Remove(r.Netns); err != nil {
		t.Error(err)
	}
	if got := nft(t, h, "list ruleset"); got != foreign {
		t.Errorf("touched what is not ours: %s", cmp.Diff(foreign, got))
	}
}

func TestMarkMustHaveABit(t *testing.T) {
	if _, err := (Rule{}).Ensure(); err == nil {
		t.Error("a rule that holds everything")
	}
}

func TestParseQueues(t *testing.T) {
	got, err := parseQueues(strings.NewReader(
		"   83  12345    55 2   256     3     4      900  1\n    7 -bad\n"))
	if err == nil {
		t.Errorf("a short line: %v", got)
	}
	got, err = parseQueues(strings.NewReader("   83  12345    55 2   256     3     4      900  1\n"))
	want := map[uint16]Queue{83: {Held: 55, Dropped: 3, Missed: 4}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	if _, err := parseQueues(strings.NewReader("a b c d e f g h i\n")); err == nil {
		t.Error("words")
	}
}
